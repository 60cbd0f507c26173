"""Behaviours: results of `iterpo behavior` that lie beside a run, as tables and examples."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from iterpo.measure.intervals import Interval
from iterpo.report.tables import Column, Table, by_first

__all__ = ["behaviour_table", "examples", "found_beside"]

_PLACES = ("behavior.json", "behavior/behavior.json")


def found_beside(folder: Path, owner: str, notes: list[str]) -> list[dict[str, Any]]:
    """Results in a folder; one that can't be read gets a line in ``notes``."""
    out = []
    for place in _PLACES:
        path = folder / place
        if not path.is_file():
            continue
        try:
            told = json.loads(path.read_text(encoding="utf-8"))
            behaviour_table({**told, "owner": owner}, 0)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            notes.append(f"{place} of {owner} is left out: it can't be read ({error})")
        else:
            out.append({**told, "owner": owner})
    return out


def behaviour_table(found: Mapping[str, Any], number: int) -> Table:
    """How often each behaviour was shown at round 0 and later, paired by kernel (appendix J).

    Args:
        found: Result of `iterpo behavior`.
        number: Tells tables of several results apart.
    """
    rows = []
    for row in found["rows"]:
        before, after = (float(row[k]["mean"]) for k in ("before", "after"))
        kappa = (row.get("kappa") or {}).get("kappa")
        agreement = None if kappa is None else float(kappa)
        who = (str(row["behaviour"]), str(row["by"]))
        rows.append((*who, before, after, _interval(row["difference"]), agreement))
    later = ", ".join(map(str, dict.fromkeys(found["rounds"])))
    before_n, after_n = found["conversations"]
    return Table(
        f"behaviours-{number + 1}",
        f"Behaviours in {found['environment']}, {found['split']} kernels ({found['owner']})",
        (
            Column("behaviour"),
            Column("coded by"),
            Column("round 0", "share"),
            Column(f"round {later}", "share"),
            Column("difference [95%]", "difference"),
            Column("kappa", "number"),
        ),
        tuple(rows),
        f"Share of conversations that show it: {before_n} at round 0, {after_n} later; the "
        "difference is paired by kernel. Kappa is the agreement of rule and judge beyond chance.",
        rules=by_first(rows),
    )


def _interval(told: Mapping[str, Any]) -> Interval:
    low, high = (told.get("low"), told.get("high"))
    return Interval(
        float(told["mean"]),
        float("nan") if told.get("se") is None else float(told["se"]),
        float("-inf") if low is None else float(low),
        float("inf") if high is None else float(high),
        int(told.get("n", 0)),
        int(told.get("clusters", 0)),
    )


def examples(found: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Quoted messages of a result, a row each."""
    return [
        {"behaviour": name, **quoted}
        for name, several in (found.get("examples") or {}).items()
        for quoted in several
    ]
