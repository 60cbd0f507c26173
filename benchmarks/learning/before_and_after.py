"""Held-out conversations of two policies of a run, side by side, as Markdown to read."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path

from cells import Cell

from iterpo.domain import Conversation, Role, Split, discounted_return
from iterpo.experiments.results import read_run
from iterpo.store import read_conversations


def side_by_side(folder: Path, cell: Cell, n: int) -> str:
    """The first conversation of ``n`` held-out kernels, before the first round and after the last.

    Kernels are taken at equal distances, not by what was said; both policies meet the same private
    draw of the partner, whose words may differ.
    """
    run = read_run(folder)
    first, last = run.rounds[0].round, run.rounds[-1].round
    before, after = (
        {c.kernel_id: c for c in _heldout(folder, i) if c.replica == 0} for i in (first, last)
    )
    order = list(before)
    n = min(n, len(order))
    chosen = [order[i * len(order) // n] for i in range(n)]
    lines = [f"## {', '.join(map(str, cell))}: pi_{first} and pi_{last}", ""]
    for kernel in chosen:
        lines += _table(kernel, before[kernel], after[kernel], run.plan.q.gamma)
    return "\n".join(lines)


def _heldout(folder: Path, i: int) -> Sequence[Conversation]:
    return read_conversations(folder / f"round-{i}" / "deploy" / Split.HELDOUT.value)


def _table(kernel: str, left: Conversation, right: Conversation, gamma: float) -> list[str]:
    best = left.j_star.get("agent_turn")
    lines = [f"### {kernel}", ""]
    lines += [f"The agent knows: {left.reminder}", ""] if left.reminder else []
    lines += [f"J* {best:.3f}", ""] if best is not None else []
    lines += ["| # | before | after |", "|---|---|---|"]
    for i, turns in enumerate(zip_longest(left.turns, right.turns)):
        said = [
            "" if t is None else f"**{'A' if t.role is Role.AGENT else 'P'}** {_plain(t.text)}"
            for t in turns
        ]
        lines.append(f"| {i} | {said[0]} | {said[1]} |")
    return [*lines, f"| | {_end(left, gamma)} | {_end(right, gamma)} |", ""]


def _end(played: Conversation, gamma: float) -> str:
    ending = played.outcome.ending
    if not ending.scored:
        return f"*{ending.value}*"
    worth = discounted_return(played, gamma, "agent_turn")
    return f"*{ending.value}, reward {played.outcome.reward:.3f}, return {worth:.3f}*"


def _plain(text: str) -> str:
    """On one line, and no end of a cell."""
    return " ".join(text.replace("|", "\\|").split())
