"""The summary: what was compared and what came out, in a few sentences with their intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence

from iterpo.experiments.comparison import SURE, Contrast
from iterpo.experiments.overall import Overview, overview
from iterpo.experiments.study import BASE
from iterpo.report.estimates import learners
from iterpo.report.findings import against
from iterpo.report.sources import ALL_KERNELS, Material
from iterpo.report.tables import shown

__all__ = ["summary"]


def summary(material: Material) -> tuple[str, ...]:
    """Paragraphs: what was compared, what the reference gained, how the others differ from it."""
    return (_compared(material), *_outcome(material))


def _compared(material: Material) -> str:
    """Who was compared, on what, and how often."""
    facts = material.facts
    methods = learners(facts)
    rows = [r for r in facts.records if r["method"] in methods]
    if not rows:
        return f"No method has a finished round in {_listed(facts.games)}."
    seeds = sorted({r["seed"] for r in rows})
    rounds = max((r["round"] for r in rows), default=0)
    kernels = {
        (k["game"], k["kernel"])
        for k in facts.kernels
        if k["split"] == "heldout" and k["kernel"] != ALL_KERNELS
    }
    there = {r["game"] for r in rows}
    games = [g for g in facts.games if g in there]
    parts = [
        f"{_listed(methods)} played {_counted(len(games), 'game')} ({_listed(games)})",
        f"with {_counted(len(seeds), 'seed')} and {_counted(rounds, 'update')} each",
    ]
    if kernels:
        parts.append(f"measured on {_counted(len(kernels), 'held-out kernel')}")
    return ", ".join(parts) + "."


def _outcome(material: Material) -> tuple[str, ...]:
    """What the reference gained, and how the others differ from it: game by game, and overall."""
    reference = material.facts.meta["reference"]
    gains = [
        c for g in material.facts.games for c in against(material, g, BASE) if c.method == reference
    ]
    told = [_gains(reference, gains)] if gains else []
    versus = [
        c
        for g in material.facts.games
        for c in against(material, g, reference)
        if c.method in learners(material.facts)
    ]
    told += [_versus(reference, versus)] if versus else []
    whole = overview(material.facts, reference)
    told += [_overall(whole)] if whole else []
    return tuple(told) or (
        "No method has an ended run whose held-out return can be set beside that of pi_0, so there "
        "is no result yet.",
    )


def _gains(reference: str, found: Sequence[Contrast]) -> str:
    told = [c for c in found if math.isfinite(c.found.difference.low)]
    sure = [c for c in told if c.found.difference.low > 0]
    worse = [c for c in told if c.found.difference.high < 0]
    least, most = (f(found, key=lambda c: c.found.difference.mean) for f in (min, max))
    spread = _one(least) if len(found) == 1 else f"from {_one(least)} to {_one(most)}"
    text = f"On held-out kernels the gain of {reference} over pi_0 is {spread}"
    if not told:
        return text + "; a single run on one kernel, or none told apart, shows no interval."
    if len(found) == 1:
        held = "so it did better" if sure else "so it did worse" if worse else "which includes 0"
        return f"{text}, {held}. The interval is at 95%, for new {_overs(found)}."
    text += f"; the interval lies above 0 in {len(sure)} of {_counted(len(found), 'game')}"
    text += f" and below 0 in {len(worse)}" if worse else ""
    return f"{text}. Intervals are at 95%, for new {_overs(found)}."


def _overs(found: Sequence[Contrast]) -> str:
    return _listed(sorted({c.found.over for c in found if c.found.over != "nothing"}))


def _one(c: Contrast) -> str:
    d = c.found.difference
    known = math.isfinite(d.low)
    told = shown(d, "difference") if known else shown(d.mean, "signed")
    return f"{told} ({c.game})"


def _versus(reference: str, found: Sequence[Contrast]) -> str:
    """Who is surely below or above the reference, and where; of a single difference also its size.

    Method by method: where somebody differs is what a reader looks for.
    """
    decided = [c for c in found if c.p_holm is not None and c.p_holm < SURE]
    parts = []
    for word, sign in (("below", -1), ("above", 1)):
        where: dict[str, list[str]] = {}
        for c in decided:
            if c.found.difference.mean * sign > 0:
                where.setdefault(c.method, []).append(c.game)
        if where:
            told = "; ".join(f"{m} in {_listed(games)}" for m, games in where.items())
            parts.append(f"Significantly {word} {reference} (Holm within a game): {told}.")
    rest = len(found) - len(decided)
    if rest and not decided:
        parts.append(f"No difference from {reference} is significant (Holm within a game).")
    elif rest:
        which = "difference is" if rest == 1 else f"{rest} differences are"
        parts.append(f"The other {which} not significant.")
    if len(found) == 1:
        parts.append(f"The difference of {found[0].method} is {_one(found[0])}.")
    return " ".join(parts)


def _overall(found: Overview) -> str:
    """Where the reference ranks over all games, and who differs from it there."""
    own = next(r for r in found.rows if r.method == found.against)
    games = f"Over the {len(found.games)} games that all have finished"
    text = f"{games}, {own.method} has mean rank {own.rank:.2g} among {len(found.rows)}"
    told = [
        (r.method, r.difference, r.p_holm)
        for r in found.rows
        if r.difference and r.p_holm is not None
    ]
    if own.attained is None or not told:
        return text + "."
    text += f" and {own.attained:.3f} of J*. Differences from it (Holm over the methods): "
    parts = []
    for sure, word in ((True, ""), (False, "not ")):
        these = [
            f"{name} {shown(d.difference, 'difference')}"
            for name, d, p in told
            if (p < SURE) is sure
        ]
        if these:
            parts.append(f"{word}significant {_listed(these)}")
    return text + "; ".join(parts) + "."


def _counted(n: int, noun: str) -> str:
    return f"{n} {noun}" + ("" if n == 1 else "s")


def _listed(names: Sequence[str]) -> str:
    """In words.

    >>> _listed(["a", "b", "c"])
    'a, b and c'
    """
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
