"""Comparison of the methods of a study: where each stands, by how much it differs, and by what."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from iterpo.errors import UnknownNameError
from iterpo.experiments.speakers import YardstickName
from iterpo.experiments.study import BASE
from iterpo.experiments.study_records import StudyFacts
from iterpo.measure.crossed import Crossed, crossed_difference
from iterpo.measure.gain_split import GainSplit, Worth, split_gain
from iterpo.measure.holm import holm
from iterpo.measure.intervals import Interval, mean_interval

__all__ = ["SURE", "Contrast", "Cost", "Standing", "contrasts", "players", "standings", "unmoved"]


SURE = 0.05
"""Below it, a p-value that Holm's procedure has adjusted tells of a significant difference."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What a run took; means over seeds. None where a method has no such thing."""

    conversations: float
    """Conversations collected for training, all rounds; held-out ones come on top."""
    tokens: float
    """Tokens that the policy said in these."""
    steps: float | None
    """Optimizer steps of the policy, all updates."""
    candidate_tokens: float | None
    """Tokens of responses drawn in the updates."""
    minutes: float
    """Wall time, the shared round-0 batch included."""


@dataclass(frozen=True, slots=True)
class Standing:
    """One method or fixed agent in one game; held-out kernels, selected rounds.

    Intervals are over seeds: mean, standard error of the mean over runs, Student's t. With a single
    seed there is none.
    """

    game: str
    """Environment."""
    method: str
    """Method, yardstick or ``base``."""
    seeds: int
    """Finished runs."""
    J: Interval
    """J per agent turn."""
    agreement: Interval
    """Share of agreements."""
    turns: Interval
    """Agent turns."""
    reward: Interval
    """Undiscounted reward."""
    j_star: float | None
    """Best attainable J; None where it is not known."""
    gain: Interval | None
    """J less that of pi_0; None without round 0."""
    regret_closed: Interval | None
    """(J - J0) / (J* - J0)."""
    split: GainSplit | None
    """The gain by its causes, mean over seeds; the parts sum to the gain."""
    cost: Cost
    """What it took."""

    def to_dict(self) -> dict[str, Any]:
        """JSON values only."""
        return _plain(self)


@dataclass(frozen=True, slots=True)
class Contrast:
    """How a method differs from another on the same kernels and seeds."""

    game: str
    """Environment."""
    method: str
    """Who."""
    against: str
    """Compared with whom."""
    found: Crossed
    """Difference in held-out J of the selected rounds."""
    p_holm: float | None
    """p-value, adjusted by Holm over all methods that are compared in this game; below 0.05 the
    difference is significant. None for fixed agents, ``base``, and where there is no p-value."""

    def to_dict(self) -> dict[str, Any]:
        """JSON values only."""
        return _plain(self)


def players(facts: StudyFacts) -> tuple[str, ...]:
    """Who is in the tables: methods in the study's order, then pi_0, then the fixed agents."""
    there = {r["method"] for r in facts.records}
    return tuple(m for m in (*facts.methods, BASE, *get_args(YardstickName)) if m in there)


def standings(facts: StudyFacts, game: str) -> tuple[Standing, ...]:
    """Where everybody stands in a game."""
    found = ((method, facts.rows(game, method)) for method in players(facts))
    return tuple(_standing(facts, game, method, rows) for method, rows in found if rows)


def contrasts(facts: StudyFacts, game: str, against: str | None = None) -> tuple[Contrast, ...]:
    """How everybody differs from one of them.

    Args:
        facts: The study.
        game: Environment.
        against: Whom to compare with; None: the study's reference, and nothing where none of its
            cells is finished yet.

    Raises:
        UnknownNameError: if nobody is called so.
    """
    other = against or facts.meta["reference"]
    if other not in players(facts):
        if against is None:
            return ()
        raise UnknownNameError(
            f"nobody in this study is called {other!r}, or it has not finished a cell; there are: "
            f"{', '.join(players(facts)) or 'none yet'}"
        )
    old = facts.scores(game, other)
    found: dict[str, Crossed] = {}
    for method in players(facts):
        new = facts.scores(game, method)
        if method != other and new.keys() & old.keys():
            found[method] = crossed_difference(new, old)
    family = {m: found[m].p for m in facts.methods if m in found}
    adjusted = {m: p for m, p in holm(family).items() if not math.isnan(p)}
    return tuple(Contrast(game, m, other, c, adjusted.get(m)) for m, c in found.items())


def _standing(
    facts: StudyFacts, game: str, method: str, rows: Sequence[dict[str, Any]]
) -> Standing:
    gains = [r["gain"] for r in rows]
    known = None not in gains
    return Standing(
        game,
        method,
        len(rows),
        _over_seeds(rows, "J_agent_turn"),
        _over_seeds(rows, "agreement"),
        _over_seeds(rows, "turns"),
        _over_seeds(rows, "reward"),
        _mean([r["J_star"] for r in rows]),
        _over_seeds(rows, "gain") if known else None,
        _over_seeds(rows, "regret_closed")
        if all(r["regret_closed"] is not None for r in rows)
        else None,
        _split(facts, game, method, rows) if known else None,
        _cost(facts, game, method),
    )


def _split(
    facts: StudyFacts, game: str, method: str, rows: Sequence[dict[str, Any]]
) -> GainSplit | None:
    starts = {
        (r["method"], r["seed"]): r
        for r in facts.records
        if (r["game"], r["split"], r["round"]) == (game, "heldout", 0)
    }
    learning = method in facts.methods
    splits = []
    for row in rows:
        start = starts.get((method if learning else BASE, row["seed"]))
        if start is None:
            return None
        splits.append(split_gain(_worth(row), _worth(start)))
    parts = ("agreement", "deal", "length")
    return GainSplit(*(math.fsum(getattr(s, p) for s in splits) / len(splits) for p in parts))


def _worth(row: dict[str, Any]) -> Worth:
    return Worth(row["agreement"], row["discount"], row["deal"], row["no_deal"])


def _cost(facts: StudyFacts, game: str, method: str) -> Cost:
    rows = [r for r in facts.records if (r["game"], r["method"]) == (game, method)]
    train = [r for r in rows if r["split"] == "train"]
    seeds = len({r["seed"] for r in train}) or 1

    def total(key: str) -> float:
        return math.fsum(r[key] or 0 for r in train) / seeds

    updated = any(r["steps"] is not None for r in train)
    return Cost(
        total("conversations"),
        total("tokens"),
        total("steps") if updated else None,
        total("candidate_tokens") if updated else None,
        total("wall_s") / 60,
    )


def _over_seeds(rows: Sequence[dict[str, Any]], key: str) -> Interval:
    return mean_interval([r[key] for r in rows], [str(r["seed"]) for r in rows])


def _mean(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return math.fsum(known) / len(known) if known else None


def _plain(value: Any) -> dict[str, Any]:
    """A value with its parts as JSON."""
    out: dict[str, Any] = {}
    for name in value.__dataclass_fields__:
        part = getattr(value, name)
        told: Callable[[], Any] | None = getattr(part, "to_dict", None)
        out[name] = told() if told else _plain(part) if isinstance(part, Cost) else part
    return out


def unmoved(facts: StudyFacts, game: str) -> list[str]:
    """Of each method whose best round is round 0, before any update, under some seeds: how many.

    There its gain is 0 and has no spread since pi_0 is compared with itself, not since updates were
    measured to change nothing.
    """
    told = []
    for method in facts.methods:
        rows = facts.rows(game, method)
        still = sum(r["round"] == 0 for r in rows)
        if still:
            told.append(
                f"{game}: under {still} of {len(rows)} seeds the best round of {method} on "
                "training kernels is round 0; its gain there is 0 by choice: pi_0 beside itself"
            )
    return told
