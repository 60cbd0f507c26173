"""Transcripts with the return and Q of every agent turn (pain 56: what each turn was credited)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from iterpo.cli.output import number, print_table, say

if TYPE_CHECKING:
    from iterpo.domain import Conversation, DiscountUnit, Reward

__all__ = ["Credit", "as_json", "print_transcript"]


@dataclass(frozen=True, slots=True)
class Credit:
    """How agent turns are credited."""

    gamma: float
    """Discount of the returns."""
    unit: DiscountUnit
    """What one power of gamma stands for."""
    q: Reward | None = None
    """Fitted Q of the policy that spoke; None where there is none."""


def as_json(conversation: Conversation, credit: Credit) -> dict[str, Any]:
    """A conversation with, for every agent action, its index t, its return and its Q."""
    from iterpo.domain import action_indices, decisions

    rows = decisions(conversation, credit.gamma, credit.unit)
    scores: Sequence[float | None] = [None] * len(rows)
    if credit.q and rows:
        scores = credit.q([r.state for r in rows], [r.response for r in rows])
    by_message = {
        m: {"t": r.state.t, "return": r.ret, "q": score}
        for m, r, score in zip(action_indices(conversation.turns), rows, scores, strict=False)
    }
    outcome = conversation.outcome
    return {
        "id": conversation.id,
        "kernel_id": conversation.kernel_id,
        "round": conversation.round,
        "replica": conversation.replica,
        "policy": conversation.policy,
        "ending": outcome.ending.value,
        "reward": outcome.reward,
        "terms": dict(outcome.terms),
        "detail": outcome.detail,
        "j_star": dict(conversation.j_star),
        "turns": [
            {"message": i, "role": turn.role.value, "scripted": turn.scripted, "text": turn.text}
            | by_message.get(i, {})
            for i, turn in enumerate(conversation.turns)
        ],
    }


def print_transcript(shown: dict[str, Any], credit: Credit) -> None:
    """The same for people."""
    terms = ", ".join(f"{k} {v}" for k, v in shown["terms"].items())
    reward = "no reward" if shown["reward"] is None else f"reward {number(shown['reward'])}"
    best = shown["j_star"].get(credit.unit)
    with_q = any(turn.get("q") is not None for turn in shown["turns"])
    rows = []
    for turn in shown["turns"]:
        who = turn["role"] + (" (opening)" if turn["scripted"] else "")
        credited = (number(turn.get("t")), number(turn.get("return")))
        q = (number(turn.get("q")),) if with_q else ()
        rows.append((turn["message"], who, turn["text"], *credited, *q))
    columns = ("#", "who", "says", "t", "return G_t", *(("Q",) if with_q else ()))
    title = f"{shown['kernel_id']}, round {shown['round']}, replica {shown['replica']}"
    print_table(title, columns, rows)
    parts = [shown["ending"], terms, reward, shown["detail"]]
    if best is not None:
        parts.append(f"best attainable return {number(best)}")
    say("  " + "; ".join(p for p in parts if p) + "\n")
