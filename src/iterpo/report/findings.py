"""The tables of the paper and their company: J on held-out kernels, differences, rounds, costs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from iterpo.errors import BatchError, UnknownNameError
from iterpo.experiments.comparison import Contrast, Standing, contrasts, standings
from iterpo.experiments.overall import overview
from iterpo.experiments.study import BASE
from iterpo.measure.intervals import Interval
from iterpo.report.estimates import Player, by_round, chosen, learners, roster
from iterpo.report.sources import Material
from iterpo.report.tables import Cell, Column, Estimate, Kind, Table, by_first

__all__ = [
    "SPREAD",
    "against",
    "best_attainable",
    "cost_table",
    "difference_table",
    "glance",
    "heldout_table",
    "overview_table",
    "round_table",
    "split_table",
]

SPREAD = (
    "± is one standard error of the mean over seeds; ° marks a single seed, where it is over the "
    "kernels of that run and tells nothing of another run."
)
_ABSENT = "A dash: not among the sources."


def against(material: Material, game: str, other: str) -> tuple[Contrast, ...]:
    """How everybody differs from one of them in a game; empty where nothing can be paired."""
    try:
        return contrasts(material.of(game), game, other)
    except (BatchError, UnknownNameError):
        return ()


def best_attainable(material: Material, game: str, split: str) -> float | None:
    """J* of a split's kernels."""
    known = [
        float(r["J_star"])
        for r in material.facts.records
        if (r["game"], r["split"]) == (game, split) and r["J_star"] is not None
    ]
    return math.fsum(known) / len(known) if known else None


def heldout_table(material: Material) -> Table:
    """Table 1 of the paper: J on held-out kernels, by method and game."""
    games = material.facts.games
    people = roster(material.facts)
    rows: list[tuple[Cell, ...]] = []
    for player in people:
        found = [chosen(material.of(g), g, player.name) for g in games]
        rows.append((_called(player), *found))
    rows.append(("J* (best attainable)", *(best_attainable(material, g, "heldout") for g in games)))
    trained = [i for i, p in enumerate(people) if p.kind == "method"]
    return Table(
        "heldout-J",
        "Table 1. Expected discounted return J on held-out kernels",
        (Column("method"), *(Column(g, "mean") for g in games)),
        tuple(rows),
        f"The round that counts is the one with the best return on training kernels. {SPREAD} "
        f"Bold: the highest mean among the methods, whether or not it is surely higher. {_ABSENT}",
        best=_highest(rows, trained),
        rules=frozenset({trained[0] if trained else 1, _first(people), len(people)}),
    )


def _first(people: Sequence[Player]) -> int:
    """Where the yardsticks begin."""
    return next(i for i, p in enumerate(people) if p.kind in ("control", "fixed"))


def _called(player: Player) -> str:
    return {"base": f"{BASE} (pi_0)", "control": f"{player.name} (control)"}.get(
        player.kind, player.name
    )


def _highest(rows: Sequence[Sequence[Cell]], among: Sequence[int]) -> frozenset[tuple[int, int]]:
    out = set()
    for j in range(1, len(rows[0])):
        means = {i: c.interval.mean for i in among if isinstance(c := rows[i][j], Estimate)}
        if len(means) > 1:
            out |= {(i, j) for i, m in means.items() if m == max(means.values())}
    return frozenset(out)


def glance(material: Material) -> Table:
    """What the reference came to, game by game."""
    reference = material.facts.meta["reference"]
    rows: list[tuple[Cell, ...]] = []
    for game in material.facts.games:
        facts = material.of(game)
        gain = next((c for c in against(material, game, BASE) if c.method == reference), None)
        end = chosen(facts, game, reference)
        if end is None:
            continue
        stand = next(s for s in standings(facts, game) if s.method == reference)
        closed = stand.regret_closed
        rows.append(
            (
                game,
                chosen(facts, game, BASE),
                end,
                gain.found.difference if gain else None,
                gain.found.over if gain else None,
                best_attainable(material, game, "heldout"),
                None if closed is None else closed.mean,
            )
        )
    columns = (
        Column("game"),
        Column("J of pi_0", "mean"),
        Column("J", "mean"),
        Column("gain [95%]", "difference"),
        Column("for new"),
        Column("J*", "number"),
        Column("regret closed", "share"),
    )
    note = (
        "Held-out kernels; the gain is paired by kernel and seed, its interval is for new ones of "
        f"what the next column says. Regret closed is (J - J0) / (J* - J0). {SPREAD}"
    )
    return Table("glance", f"{reference} at a glance", columns, tuple(rows), note)


def difference_table(material: Material, other: str) -> Table:
    """Everybody against one, with Holm over the methods of a game."""
    rows: list[tuple[Cell, ...]] = []
    for game in material.facts.games:
        for c in against(material, game, other):
            f = c.found
            told: tuple[Cell, ...] = (f.difference, None if math.isnan(f.p) else f.p, c.p_holm)
            rows.append((game, c.method, *told, f.seeds, f.kernels, f.over))
    columns = (
        Column("game"),
        Column("method"),
        Column("difference in J [95%]", "difference"),
        Column("p", "p"),
        Column("p (Holm)", "p"),
        Column("seeds", "count"),
        Column("kernels", "count"),
        Column("for new"),
    )
    note = (
        "Differences of held-out J, paired by seed and kernel; the interval is for new ones of "
        "what the last column says. p (Holm) is adjusted over the methods of a game: below 0.05 a "
        "difference is significant. Fixed agents and pi_0 are not among the hypotheses, so they "
        "have none."
    )
    title = f"Differences from {other}"
    return Table("differences", title, columns, tuple(rows), note, rules=by_first(rows))


def overview_table(material: Material, other: str) -> Table | None:
    """Ranks and differences over all games that everybody has played; None where there is one."""
    found = overview(material.facts, other)
    if found is None:
        return None
    rows: list[tuple[Cell, ...]] = []
    for r in found.rows:
        compared = r.method not in (other, BASE)
        level = len(found.games) - len(r.above) - len(r.below)
        told = (len(r.above), level, len(r.below)) if compared else (None, None, None)
        gap = r.difference if r.method != other else None
        rows.append(
            (
                r.method,
                r.rank,
                r.attained,
                r.regret_closed,
                gap.difference if gap else None,
                r.p_holm,
                *told,
            )
        )
    columns = (
        Column("method"),
        Column("mean rank", "number"),
        Column("J / J*", "number"),
        Column("regret closed", "share"),
        Column("difference [95%]", "difference"),
        Column("p (Holm)", "p"),
        *(Column(t, "count") for t in ("above", "level", "below")),
    )
    overs = {r.difference.over for r in found.rows if r.difference}
    note = (
        f"Means over {', '.join(found.games)}: the games that everybody here has finished, each "
        "weighing the same. Ranks are by J among these rows, 1 is the best. J is divided by J*, "
        f"since games pay on different scales; the difference is that from {other}, its interval "
        f"for new {', '.join(sorted(overs))} of these games, its p adjusted over the methods. "
        f"Above, level, below: games in which J is significantly above that of {other}, not shown "
        "to differ, or below it (Holm within a game, 0.05)."
    )
    title = f"Over {len(found.games)} games: rank, and difference from {other}"
    return Table("overall", title, columns, tuple(rows), note)


def round_table(material: Material, name: str, title: str, measure: str, split: str) -> Table:
    """A measure by round for everybody; a fixed agent has one number."""
    facts = material.facts
    kind: Kind = "percent" if measure == "agreement" else "mean"
    found: list[tuple[str, str, dict[int, Estimate]]] = []
    people = [p for p in roster(facts) if p.kind != "base"]  # it is round 0 of the reference
    for game in facts.games:
        part = material.of(game)
        for player in people:
            told = by_round(part, game, player.name, measure, split)
            if told:
                found.append((game, _called(player), told))
        star = best_attainable(material, game, split) if measure == "J_agent_turn" else None
        if star is not None:
            alone = Interval(star, math.nan, -math.inf, math.inf, 1, 1)
            found.append((game, "J* (best attainable)", {0: Estimate(alone, "nothing")}))
    rounds = sorted({i for _, _, told in found for i in told}) or [0]
    rows = tuple((g, m, *(told.get(i) for i in rounds)) for g, m, told in found)
    unit = " (%)" if measure == "agreement" else ""
    return Table(
        name,
        title,
        (Column("game"), Column("method"), *(Column(f"R{i}{unit}", kind) for i in rounds)),
        rows,
        f"{_kernels_of(split)} Round 0 of a method is pi_0 (base); fixed agents do not learn, so "
        f"they and J* have one number. {SPREAD}{_absent(people)}",
        rules=by_first(rows),
    )


def _absent(people: Sequence[Player]) -> str:
    """Yardsticks that have no row."""
    names = [p.name for p in people if not p.present]
    return f" Not among the sources: {', '.join(names)}." if names else ""


def _kernels_of(split: str) -> str:
    return "Training kernels, as collected." if split == "train" else "Held-out kernels."


def split_table(material: Material) -> Table | None:
    """The gain over pi_0 by its causes; None where the records don't tell them."""
    rows: list[tuple[Cell, ...]] = []
    for game in material.facts.games:
        for s in standings(material.of(game), game):
            if s.method != BASE and s.split is not None and _has_causes(material, s):
                parts = s.split
                told = (parts.agreement, parts.deal, parts.length, parts.total)
                rows.append((game, s.method, *told))
    if not rows:
        return None
    columns = (
        Column("game"),
        Column("method"),
        *(
            Column(t, "signed")
            for t in ("more agreements", "better deals", "shorter conversations", "gain in J")
        ),
    )
    note = (
        "Held-out kernels, chosen rounds, mean over seeds. J = P(agree) x E[gamma^(tau-1) | agree] "
        "x deal; each cause has its Shapley value, so that the three sum to the gain."
    )
    title = "The gain over pi_0 by its causes"
    return Table("gain-split", title, columns, tuple(rows), note, rules=by_first(rows))


def _has_causes(material: Material, standing: Standing) -> bool:
    """Whether the records tell lengths and deals: files of records needn't."""
    rows = [
        r
        for r in material.of(standing.game).records
        if r["method"] in (standing.method, BASE) and r["split"] == "heldout" and r["selected"]
    ]
    return all(r["deal"] is not None or r["agreement"] == 0 for r in rows)


def cost_table(material: Material) -> Table | None:
    """What a run took; None where the records don't tell."""
    rows: list[tuple[Cell, ...]] = []
    names = learners(material.facts)
    for game in material.facts.games:
        facts = material.of(game)
        for s in standings(facts, game):
            if s.method in names:
                rows.append((game, s.method, s.seeds, *_costs(s, facts.rows(game, s.method))))
    if not rows:
        return None
    columns = (
        Column("game"),
        Column("method"),
        *(Column(t, "count") for t in ("seeds", "conversations", "tokens said", "optimizer steps")),
        Column("candidate tokens", "count"),
        Column("minutes", "number"),
    )
    note = (
        "Mean over seeds of a whole run. Conversations and tokens are those collected to train on; "
        "held-out ones come on top. Candidate tokens are those of responses drawn in updates."
    )
    return Table("budget", "What a run took", columns, tuple(rows), note, rules=by_first(rows))


def _costs(standing: Standing, rows: Sequence[dict[str, Any]]) -> tuple[Cell, ...]:
    cost = standing.cost
    told = all(r["conversations"] is not None for r in rows)
    spent = (cost.conversations, cost.tokens) if told else (None, None)
    return (*spent, cost.steps, cost.candidate_tokens, cost.minutes or None)
