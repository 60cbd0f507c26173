"""Dialogue pairs: one kernel as played at round 0 and at the best round, side by side."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from iterpo.domain import (
    Conversation,
    Role,
    Split,
    action_indices,
    decisions,
    discounted_return,
)
from iterpo.environments.boxed import spans
from iterpo.measure.returns import scored
from iterpo.report.sources import CellRun, Material
from iterpo.report.tables import Cell, Column, Table, clean
from iterpo.store import read_conversations

__all__ = ["DialoguePair", "Said", "Side", "dialogue_pairs", "dialogue_table"]


@dataclass(frozen=True, slots=True)
class Said:
    """One message."""

    who: str
    """agent or partner."""
    remark: str
    """Such as the scripted opening."""
    parts: tuple[tuple[bool, str], ...]
    """Its text in pieces, and whether each is a box."""
    ret: float | None
    """Return from here on, for the agent's actions."""

    @property
    def text(self) -> str:
        """The whole of it."""
        return "".join(text for _, text in self.parts)


@dataclass(frozen=True, slots=True)
class Side:
    """One conversation."""

    round: int
    """Round of the policy."""
    policy: str
    """Its name."""
    said: tuple[Said, ...]
    """Messages."""
    ending: str
    """How it ended, on what terms, and what that was worth."""


@dataclass(frozen=True, slots=True)
class DialoguePair:
    """The same circumstances under two policies."""

    game: str
    """Environment."""
    run: str
    """Method and seed."""
    kernel: str
    """Which kernel."""
    gain: float
    """Mean return on it at the best round less that at round 0."""
    kernels: int
    """Kernels among which it has the median gain."""
    before: Side
    """Round 0."""
    after: Side
    """The best round."""


def dialogue_pairs(material: Material) -> tuple[list[DialoguePair], list[str]]:
    """A pair for every game, from the reference's first run, and why there is none where not.

    The kernel is the held-out one with the median gain, ties by name: neither the best nor the
    worst example. Of its conversations it is the first that both rounds have.
    """
    pairs, missing = [], []
    for game in material.facts.games:
        runs = [r for r in material.runs if r.cell.environment == game]
        own = [r for r in runs if r.cell.method == material.facts.meta["reference"]] or runs
        ended = [r for r in own if r.run.best_round]
        if ended:
            first = min(ended, key=lambda r: r.cell.seed)
            pairs.append(_pair(first))
        elif any(r.run.best_round == 0 for r in own):
            missing.append(f"{game}: the best round is round 0, so there is nothing to set beside")
        elif own:
            missing.append(f"{game}: no run has ended, so no round is the best yet")
        else:
            missing.append(f"{game}: no run folder among the sources, and records hold no words")
    return pairs, missing


def _pair(one: CellRun) -> DialoguePair:
    gamma = one.run.plan.q.gamma
    best = one.run.best_round or 0
    before, after = (_by_kernel(one, i) for i in (0, best))

    def gain(kernel: str) -> float:
        return _mean_return(after[kernel], gamma) - _mean_return(before[kernel], gamma)

    shared = sorted((gain(k), k) for k in before.keys() & after.keys())
    worth, kernel = shared[(len(shared) - 1) // 2]
    sides = [
        _side(min(log[kernel], key=lambda c: c.replica), i, gamma)
        for log, i in ((before, 0), (after, best))
    ]
    name = f"{one.cell.method}, seed {one.cell.seed}"
    return DialoguePair(one.cell.environment, name, kernel, worth, len(shared), *sides)


def _by_kernel(one: CellRun, i: int) -> dict[str, list[Conversation]]:
    out: dict[str, list[Conversation]] = defaultdict(list)
    for c in scored(
        read_conversations(one.run.folder / f"round-{i}" / "deploy" / Split.HELDOUT.value)
    ):
        out[c.kernel_id].append(c)
    return out


def _mean_return(played: Sequence[Conversation], gamma: float) -> float:
    return math.fsum(discounted_return(c, gamma, "agent_turn") for c in played) / len(played)


def _side(conversation: Conversation, i: int, gamma: float) -> Side:
    rows = decisions(conversation, gamma, "agent_turn")
    returns = dict(zip(action_indices(conversation.turns), (row.ret for row in rows), strict=False))
    said = tuple(
        Said(
            turn.role.value,
            "opening" if turn.scripted else "explored" if turn.off_policy else "",
            _parts(clean(turn.text)),
            returns.get(m) if turn.role is Role.AGENT else None,
        )
        for m, turn in enumerate(conversation.turns)
    )
    return Side(i, clean(conversation.policy), said, _ending(conversation, gamma))


def _parts(text: str) -> tuple[tuple[bool, str], ...]:
    out, at = [], 0
    for begin, _, end in spans(text):
        out += [(False, text[at:begin]), (True, text[begin : end + 1])]
        at = end + 1
    return tuple(part for part in (*out, (False, text[at:])) if part[1])


def _ending(c: Conversation, gamma: float) -> str:
    o = c.outcome
    told = [o.ending.value.replace("_", " "), ", ".join(f"{k} {v}" for k, v in o.terms.items())]
    told.append(f"reward {o.reward:.3f}" if o.reward is not None else "no reward")
    told.append(f"return {discounted_return(c, gamma, 'agent_turn'):.3f}")
    if "agent_turn" in c.j_star:
        told.append(f"best attainable {c.j_star['agent_turn']:.3f}")
    return clean("; ".join(t for t in told if t))


def dialogue_table(pair: DialoguePair) -> Table:
    """The same as rows, for files."""
    rows: list[tuple[Cell, ...]] = []
    for side in (pair.before, pair.after):
        for i, said in enumerate(side.said):
            rows.append((side.round, i, said.who, said.text, said.ret))
        rows.append((side.round, None, "outcome", side.ending, None))
    columns = (
        *(Column(t, "count") for t in ("round", "message")),
        *(Column(t) for t in ("who", "says")),
        Column("return G_t", "number"),
    )
    title = f"Kernel {pair.kernel} of {pair.game} at rounds 0 and {pair.after.round}"
    return Table(f"dialogue-{pair.game}", title, columns, tuple(rows), f"{pair.run}.")
