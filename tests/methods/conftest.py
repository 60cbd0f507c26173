"""A tiny policy and a text-only log of it, with returns that differ."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from iterpo.domain import (  # noqa: E402
    Conversation,
    Ending,
    Outcome,
    PolicyRef,
    Role,
    Sampled,
    Sampling,
    Turn,
)
from iterpo.methods import RoundBatch  # noqa: E402
from iterpo.models import hub  # noqa: E402
from iterpo.models.backbone import load  # noqa: E402
from iterpo.models.generation import generate  # noqa: E402
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


def sampled_talks(
    policy: PolicyRef, n: int, sampling: Sampling, round_: int = 0
) -> tuple[Conversation, ...]:
    """Two actions each, really sampled by the policy, worth more the longer it speaks."""
    backbone = load(policy)
    out = []
    for i in range(n):
        turns = [Turn(Role.AGENT, "hello", scripted=True)]
        for t in range(2):
            turns.append(Turn(Role.PARTNER, f"offer {i} {t}"))
            state = Conversation(
                "", "", "toy", tuple(turns), Outcome(Ending.AGREED, 1.0), "be brief"
            )
            prompt = backbone.chat.prompt_ids(state.agent_view(len(turns)).messages())
            got = generate(backbone, [prompt], sampling, [10_000 * round_ + 100 * i + t])[0]
            how = Sampled(
                got.token_ids, got.logprobs, sampling, "", len(prompt), policy.id, got.finish
            )
            turns.append(Turn(Role.AGENT, backbone.chat.decode(got.token_ids), sampled=how))
        outcome = Outcome(Ending.AGREED, (i % 5) / 4, closing_message=len(turns) - 1)
        name, kernel = f"{round_}/k{i // 2}/{i % 2}", f"k{i // 2}"
        played = Conversation(name, kernel, "toy", tuple(turns), outcome, "be brief")
        out.append(replace(played, policy=policy.id, round=round_))
    return tuple(out)


@pytest.fixture
def batch(policy: PolicyRef) -> RoundBatch:
    return RoundBatch(0, tuple(talk(i) for i in range(8)), policy)
