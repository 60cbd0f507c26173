"""The tables of a study, as ``study`` and ``study show`` print them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from iterpo.cli.output import number, print_table, say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iterpo.experiments.comparison import Contrast, Standing
    from iterpo.experiments.overall import Overview
    from iterpo.experiments.study_records import StudyFacts
    from iterpo.measure.intervals import Interval

__all__ = ["print_study", "study_as_json"]


def print_study(facts: StudyFacts, against: str | None) -> None:
    """Four tables a game, one over all games, and what is missing."""
    from iterpo.experiments.comparison import contrasts, standings, unmoved
    from iterpo.experiments.overall import overview

    for game in facts.games:
        found = standings(facts, game)
        if found:
            _print_standings(game, found)
            for remark in unmoved(facts, game):
                say(remark)
            _print_contrasts(game, contrasts(facts, game, against))
            _print_splits(game, found)
            _print_costs(game, found)
    whole = overview(facts, against)
    if whole:
        _print_overview(whole)
    failed = facts.meta["failed"]
    missing = [cell for cell in facts.meta["unfinished"] if cell not in failed]
    if missing:
        say(
            f"{len(missing)} cells are not finished: {', '.join(missing[:6])}"
            + (" …" if len(missing) > 6 else "")
        )
    for cell, why in failed.items():
        say(f"{cell} failed: {why.splitlines()[0]}")


def study_as_json(facts: StudyFacts, against: str | None) -> dict[str, Any]:
    """The same for programs."""
    from iterpo.experiments.comparison import contrasts, standings
    from iterpo.experiments.overall import overview

    games = {}
    for game in facts.games:
        found = standings(facts, game)
        if found:
            told = contrasts(facts, game, against)
            games[game] = {
                "standings": [s.to_dict() for s in found],
                "contrasts": [c.to_dict() for c in told],
            }
    whole = overview(facts, against)
    return {
        "folder": str(facts.folder),
        "meta": facts.meta,
        "games": games,
        "overview": whole.to_dict() if whole else None,
    }


def _print_standings(game: str, found: Sequence[Standing]) -> None:
    rows = [
        (
            s.method,
            _mean(s.J),
            _mean(s.gain),
            _mean(s.agreement),
            _mean(s.reward),
            _mean(s.turns),
            number(s.j_star),
            "-" if s.regret_closed is None else f"{s.regret_closed.mean:.0%}",
            s.seeds,
        )
        for s in found
    ]
    columns = ("method", "J", "gain", "agreed", "reward", "turns", "J*", "regret closed", "seeds")
    title = f"{game}: held-out kernels, round chosen on training kernels (mean ± SE over seeds)"
    print_table(title, columns, rows)


def _print_contrasts(game: str, found: Sequence[Contrast]) -> None:
    rows = [
        (
            c.method,
            f"{c.found.difference.mean:+.3f}",
            f"[{number(c.found.difference.low)}, {number(c.found.difference.high)}]",
            _p(c.p_holm),
            f"{c.found.seeds} x {c.found.kernels}",
        )
        for c in found
    ]
    if rows:
        columns = ("method", "difference in J", "95% interval", "p (Holm)", "seeds x kernels")
        over = ", ".join(dict.fromkeys(f"new {c.found.over}" for c in found))
        print_table(f"{game}: against {found[0].against}, paired; for {over}", columns, rows)


def _print_splits(game: str, found: Sequence[Standing]) -> None:
    rows = [
        (
            s.method,
            *(f"{getattr(s.split, p):+.3f}" for p in ("agreement", "deal", "length", "total")),
        )
        for s in found
        if s.split is not None and s.method != "base"
    ]
    if rows:
        columns = ("method", "more agreements", "better deals", "shorter", "gain")
        print_table(f"{game}: the gain over pi_0 by its causes", columns, rows)


def _print_costs(game: str, found: Sequence[Standing]) -> None:
    rows = [
        (
            s.method,
            f"{s.cost.conversations:.0f}",
            f"{s.cost.tokens:.0f}",
            "-" if s.cost.steps is None else f"{s.cost.steps:.0f}",
            "-" if s.cost.candidate_tokens is None else f"{s.cost.candidate_tokens:.0f}",
            f"{s.cost.minutes:.1f}",
        )
        for s in found
        if s.cost.steps is not None
    ]
    if rows:
        columns = ("method", "conversations", "tokens", "steps", "candidate tokens", "minutes")
        print_table(f"{game}: what a run took (mean over seeds)", columns, rows)


def _print_overview(found: Overview) -> None:
    rows = []
    for r in found.rows:
        gap = r.difference.difference if r.difference and r.method != found.against else None
        rows.append(
            (
                r.method,
                f"{r.rank:.2f}",
                number(r.attained),
                "-" if r.regret_closed is None else f"{r.regret_closed:.0%}",
                f"{gap.mean:+.3f} [{number(gap.low)}, {number(gap.high)}]" if gap else "-",
                _p(r.p_holm),
                f"{len(r.above)} / {len(r.below)}",
            )
        )
    columns = (
        "method",
        "rank",
        "J / J*",
        "regret closed",
        "difference",
        "p (Holm)",
        "above / below",
    )
    title = (
        f"over {len(found.games)} games: mean rank, and J / J* beside {found.against}; above / "
        "below: games with a sure difference"
    )
    print_table(title, columns, rows)


def _p(value: float | None) -> str:
    return "-" if value is None else "<0.001" if value < 0.001 else f"{value:.3f}"


def _mean(value: Interval | None) -> str:
    return "-" if value is None else str(value)
