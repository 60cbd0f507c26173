"""Transcripts with the return and Q of every agent turn (pain 56: what each turn was credited)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from iterpo.cli.output import console, number, print_table, say

if TYPE_CHECKING:
    from iterpo.domain import Conversation, DiscountUnit, Exploration, Reward

__all__ = ["Credit", "as_json", "print_message", "print_outcome", "print_transcript"]

_UNITS: tuple[DiscountUnit, ...] = ("agent_turn", "message")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


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
        "exploration": _drawn(conversation.exploration),
        "turns": [
            {"message": i, "role": turn.role.value, "scripted": turn.scripted, "text": turn.text}
            | ({"off_policy": True} if turn.off_policy else {})
            | by_message.get(i, {})
            for i, turn in enumerate(conversation.turns)
        ],
    }


def print_transcript(shown: dict[str, Any], credit: Credit) -> None:
    """The same for people."""
    best = shown["j_star"].get(credit.unit)
    with_q = any(turn.get("q") is not None for turn in shown["turns"])
    rows = []
    for turn in shown["turns"]:
        remark = "opening" if turn["scripted"] else "explored" if turn.get("off_policy") else ""
        who = turn["role"] + (f" ({remark})" if remark else "")
        credited = (number(turn.get("t")), number(turn.get("return")))
        q = (number(turn.get("q")),) if with_q else ()
        rows.append((turn["message"], who, _harmless(turn["text"]), *credited, *q))
    columns = ("#", "who", "says", "t", "return G_t", *(("Q",) if with_q else ()))
    title = f"{shown['kernel_id']}, round {shown['round']}, replica {shown['replica']}"
    print_table(title, columns, rows)
    parts = [*_ending(shown["ending"], shown["terms"], shown["reward"]), shown["detail"]]
    if best is not None:
        parts.append(f"best attainable return {number(best)}")
    if shown["exploration"] and shown["exploration"]["traits"]:
        traits = shown["exploration"]["traits"]
        kind = "one message" if "choice" in traits else "persona"  # see agents.optimist.CHOICE
        parts.append(f"{kind}: " + ", ".join(f"{k} {v}" for k, v in traits.items()))
    say("  " + "; ".join(p for p in parts if p) + "\n")


def print_message(who: str, text: str) -> None:
    """One message as it is spoken; in a terminal its boxes stand out."""
    from rich.text import Text

    from iterpo.environments.boxed import spans

    shown = Text(f"{who}> ", style="bold")
    said = Text(_harmless(text), style="not bold")
    for begin, _, end in spans(said.plain):
        said.stylize("bold yellow", begin, end + 1)
    console().print(shown.append_text(said), soft_wrap=True)


def print_outcome(conversation: Conversation, gamma: float) -> None:
    """How it ended, and what it was worth in both discount units, beside J* where it is known."""
    from iterpo.domain import discounted_return

    outcome = conversation.outcome
    parts = [*_ending(outcome.ending.value, outcome.terms, outcome.reward), *outcome.flags]
    say("\n" + "; ".join(p for p in (*parts, _harmless(outcome.detail)) if p))
    if not outcome.ending.scored:
        return
    rows = []
    for unit in _UNITS:
        value = discounted_return(conversation, gamma, unit)
        best = conversation.j_star.get(unit)
        # Rounding must not show an optimal play as one with a regret of -0.000.
        regret = None if best is None else round(best - value, 9) + 0.0
        rows.append((unit, value, best, regret))
    known = any(row[2] is not None for row in rows)
    columns = ("discounted by", "return", "J*", "regret")
    print_table(
        f"agent's return, gamma {gamma:g}",
        columns if known else columns[:2],
        [row if known else row[:2] for row in rows],
    )


def _drawn(exploration: Exploration | None) -> dict[str, Any] | None:
    from dataclasses import asdict

    return None if exploration is None else asdict(exploration)


def _ending(ending: str, terms: Any, reward: float | None) -> tuple[str, ...]:
    agreed = ", ".join(f"{k} {v}" for k, v in terms.items())
    return ending, agreed, "no reward" if reward is None else f"agent's reward {number(reward)}"


def _harmless(text: str) -> str:
    """Without characters that steer a terminal: whoever spoke may be no friend."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)
