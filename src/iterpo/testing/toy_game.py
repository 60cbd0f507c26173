"""A toy dialogue of two turns whose best policy is known, to see whether a method learns.

The first word of the agent moves the partner: to "left" if the number of its first letter (0 where
nothing was said) is odd, else to "right". After "left" an answer with an odd number is agreed to
and worth 1, after "right" one whose number divides by four; all else ends without agreement. So the
first turn pays only by what follows it. A turn is one token long, which is why the value of a
policy can be computed exactly.
"""

from __future__ import annotations

import math
import operator
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from iterpo.domain import (
    Conversation,
    Ending,
    Outcome,
    PolicyRef,
    Role,
    Sampled,
    Sampling,
    Turn,
    derive,
)
from iterpo.models.hub import base_policy
from iterpo.testing.tiny_model import tiny_model

if TYPE_CHECKING:
    from iterpo.models.backbone import Backbone

__all__ = ["GAMMA", "KERNELS", "OPTIMUM", "play_toy", "toy_policy", "toy_value"]

GAMMA = 0.9
"""Discount of ``toy_value``, per agent turn."""
OPTIMUM = GAMMA
"""Value of the best policy: a sure agreement in the second turn."""
KERNELS = 4
"""Different conversations, told apart by the partner's first message."""

_DRAW = Sampling(max_new_tokens=1)
_SYSTEM = "be brief"


def toy_policy(folder: Path, seed: int = 0) -> PolicyRef:
    """The tiny random model as the initial policy of the game; written to ``folder``."""
    return base_policy(str(tiny_model(folder, seed)))


def play_toy(
    policy: PolicyRef,
    n: int,
    *,
    round: int = 0,  # noqa: A002
    seed: int = 0,
) -> tuple[Conversation, ...]:
    """``n`` conversations sampled by a policy, a kernel after the other.

    Args:
        policy: Who speaks for the agent.
        n: How many.
        round: Round that they are logged for.
        seed: Seed of the draws.
    """
    from iterpo.models.backbone import load
    from iterpo.models.generation import generate

    backbone = load(policy, device="cpu")
    talks = [[Turn(Role.PARTNER, _first(i % KERNELS))] for i in range(n)]
    for t in range(2):
        if t:
            for own in talks:
                own.append(Turn(Role.PARTNER, _answer(own[1].text)))
        prompts = [_prompt(backbone, own) for own in talks]
        seeds = [derive("toy", seed, round, i, t) for i in range(n)]
        for own, ids, got in zip(
            talks, prompts, generate(backbone, prompts, _DRAW, seeds), strict=True
        ):
            said = Sampled(got.token_ids, got.logprobs, _DRAW, "", len(ids), policy.id, got.finish)
            own.append(Turn(Role.AGENT, backbone.chat.decode(got.token_ids), sampled=said))
    return tuple(
        Conversation(
            f"{round}/{seed}/{i}", f"k{i % KERNELS}", "toy", tuple(own), _outcome(own), _SYSTEM,
            policy=policy.id, round=round,
        )
        for i, own in enumerate(talks)
    )  # fmt: skip


def toy_value(policy: PolicyRef) -> float:
    """J of a policy, exactly: the mean over kernels of E[gamma * reward], all answers enumerated.

    A policy that never agrees has 0, the best one ``OPTIMUM``.
    """
    from iterpo.models.backbone import load

    backbone = load(policy, device="cpu")
    openings = [[Turn(Role.PARTNER, _first(k))] for k in range(KERNELS)]
    ids = range(backbone.model.config.vocab_size)
    texts = [backbone.chat.decode([i]) for i in ids]
    told = [Sampled((i,), None, _DRAW, "", 0, "", "length") for i in ids]
    later = [
        [*own, Turn(Role.AGENT, texts[i], sampled=told[i]), Turn(Role.PARTNER, _answer(texts[i]))]
        for own in openings
        for i in ids
    ]
    weights = [p for row in _next_word(backbone, openings) for p in row]
    agreed = [
        sum(p for text, p in zip(texts, row, strict=True) if _agreed(own[2].text, text))
        for own, row in zip(later, _next_word(backbone, later), strict=True)
    ]
    return GAMMA * math.fsum(map(operator.mul, weights, agreed)) / KERNELS


def _next_word(backbone: Backbone, talks: Sequence[Sequence[Turn]]) -> list[list[float]]:
    """Probability of every token after each conversation."""
    import torch

    groups: dict[int, list[int]] = defaultdict(list)
    prompts = [_prompt(backbone, talk) for talk in talks]
    for i, ids in enumerate(prompts):
        groups[len(ids)].append(i)
    out: list[list[float]] = [[] for _ in talks]
    with torch.no_grad():
        for group in groups.values():  # of equal length, so nothing is padded
            batch = torch.tensor([prompts[i] for i in group])  # (b, L)
            logits = backbone.model(batch, logits_to_keep=1).logits[:, -1]  # (b, V)
            for i, row in zip(group, torch.softmax(logits.double(), -1).tolist(), strict=True):
                out[i] = row
    return out


def _prompt(backbone: Backbone, turns: Sequence[Turn]) -> list[int]:
    open_end = Outcome(Ending.ABANDONED, 0.0)
    view = Conversation("", "", "toy", tuple(turns), open_end, _SYSTEM).agent_view(len(turns))
    return list(backbone.chat.prompt_ids(view.messages()))


def _first(kernel: int) -> str:
    return f"item {kernel}"


def _number(text: str) -> int:
    return ord(text[0]) if text else 0


def _answer(said: str) -> str:
    return "left" if _number(said) % 2 else "right"


def _agreed(where: str, said: str) -> bool:
    number = _number(said)
    return number % 2 == 1 if where == "left" else number % 4 == 0


def _outcome(turns: Sequence[Turn]) -> Outcome:
    if _agreed(turns[2].text, turns[3].text):
        return Outcome(Ending.AGREED, 1.0, closing_message=3)
    return Outcome(Ending.TURN_LIMIT, 0.0)
