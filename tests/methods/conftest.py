"""A tiny policy and a text-only log of it, with returns that differ."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from iterpo.domain import Conversation, Ending, Outcome, PolicyRef, Role, Sampling, Turn  # noqa: E402
from iterpo.methods import RoundBatch  # noqa: E402
from iterpo.models import hub  # noqa: E402
from iterpo.models.lora import LoraSpec  # noqa: E402
from iterpo.policy_improvement.base import ImproveConfig  # noqa: E402
from iterpo.testing.tiny_model import tiny_model  # noqa: E402

IMPROVE = ImproveConfig(
    lora=LoraSpec(r=4, alpha=4),
    sampling=Sampling(max_new_tokens=6),
    prompts_per_step=4,
    group_size=4,
    steps=2,
    learning_rate=1e-2,
    beta=0.1,
)


@pytest.fixture(scope="session")
def policy(tmp_path_factory: pytest.TempPathFactory) -> PolicyRef:
    return hub.base_policy(str(tiny_model(tmp_path_factory.mktemp("tiny"))))


def talk(i: int, n_actions: int = 2) -> Conversation:
    """Conversation number i: opening, then partner and agent in turn; worth i / 10."""
    turns = [Turn(Role.AGENT, "hello", scripted=True)]
    for t in range(n_actions):
        turns += [Turn(Role.PARTNER, f"offer {i} {t}"), Turn(Role.AGENT, f"ok {i * t}")]
    outcome = Outcome(Ending.AGREED, i / 10, closing_message=len(turns) - 1)
    return Conversation(f"0/k{i}/0", f"k{i}", "toy", tuple(turns), outcome, "be brief")


@pytest.fixture
def batch(policy: PolicyRef) -> RoundBatch:
    return RoundBatch(0, tuple(talk(i) for i in range(8)), policy)
