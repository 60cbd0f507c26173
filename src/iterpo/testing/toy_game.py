"""A toy dialogue of two turns whose best policy is known, to see whether a method learns.

The first word of the agent moves the partner: to "left" if the number of its first letter (0 where
nothing was said) is odd, else to "right". After "left" an answer with an odd number is agreed to
and worth 1, after "right" one whose number divides by four; all else ends without agreement. So the
first turn pays only by what follows it. A turn is one token long, which is why the value of a
policy can be computed exactly.

The game of one turn is the second half of it: the kernel says where the partner is, and the answer
is all that there is. A method that credits a turn with nothing that comes later can learn it too.
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

__all__ = ["GAMMA", "KERNELS", "TURNS", "play_toy", "toy_optimum", "toy_policy", "toy_value"]

GAMMA = 0.9
"""Discount of ``toy_value``, per agent turn."""
TURNS = (1, 2)
"""How many turns of the agent a game can have."""
KERNELS = 4
"""Different conversations, told apart by the partner's first message."""

_DRAW = Sampling(max_new_tokens=1)
_SYSTEM = "be brief"


def toy_policy(folder: Path, seed: int = 0) -> PolicyRef:
    """The tiny random model as the initial policy of the game; written to ``folder``."""
    return base_policy(str(tiny_model(folder, seed)))


def toy_optimum(turns: int = 2) -> float:
    """Value of the best policy: a sure agreement in the last turn."""
    return float(GAMMA ** (turns - 1))


def play_toy(
    policy: PolicyRef,
    n: int,
    *,
    round: int = 0,  # noqa: A002
    seed: int = 0,
    turns: int = 2,
) -> tuple[Conversation, ...]:
    """``n`` conversations sampled by a policy, a kernel after the other.

    Args:
        policy: Who speaks for the agent.
        n: How many.
        round: Round that they are logged for.
        seed: Seed of the draws.
        turns: Of the agent; one of ``TURNS``.
    """
    from iterpo.models.backbone import load
    from iterpo.models.generation import generate

    backbone = load(policy, device="cpu")
    talks = [[Turn(Role.PARTNER, _first(i % KERNELS, turns))] for i in range(n)]
    for t in range(turns):
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


def toy_value(policy: PolicyRef, turns: int = 2) -> float:
    """J of a policy, exactly: the discounted probability of agreement, all answers enumerated.

    A policy that never agrees has 0, the best one ``toy_optimum``.
    """
    from iterpo.models.backbone import load

    backbone = load(policy, device="cpu")
    ids = range(backbone.model.config.vocab_size)
    texts = [backbone.chat.decode([i]) for i in ids]
    told = [Sampled((i,), None, _DRAW, "", 0, "", "length") for i in ids]
    talks = [[Turn(Role.PARTNER, _first(k, turns))] for k in range(KERNELS)]
    weights = [1 / KERNELS] * KERNELS
    for _ in range(turns - 1):
        rows = _next_word(backbone, talks)
        weights = [w * p for w, row in zip(weights, rows, strict=True) for p in row]
        talks = [
            [
                *own,
                Turn(Role.AGENT, texts[i], sampled=told[i]),
                Turn(Role.PARTNER, _answer(texts[i])),
            ]
            for own in talks
            for i in ids
        ]
    agreed = [
        sum(p for text, p in zip(texts, row, strict=True) if _agreed(own[-1].text, text))
        for own, row in zip(talks, _next_word(backbone, talks), strict=True)
    ]
    return toy_optimum(turns) * math.fsum(map(operator.mul, weights, agreed))


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


def _first(kernel: int, turns: int) -> str:
    return f"item {kernel}" + ("" if turns > 1 else " left" if kernel % 2 else " right")


def _number(text: str) -> int:
    return ord(text[0]) if text else 0


def _answer(said: str) -> str:
    return "left" if _number(said) % 2 else "right"


def _agreed(heard: str, said: str) -> bool:
    number = _number(said)
    return number % 2 == 1 if heard.endswith("left") else number % 4 == 0


def _outcome(turns: Sequence[Turn]) -> Outcome:
    if _agreed(turns[-2].text, turns[-1].text):
        return Outcome(Ending.AGREED, 1.0, closing_message=len(turns) - 1)
    return Outcome(Ending.TURN_LIMIT, 0.0)
