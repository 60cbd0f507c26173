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
        kappa = row.get("kappa") or {}
        agreement = None if kappa.get("kappa") is None else float(kappa["kappa"])
        who = (str(row["behaviour"]), str(row["by"]))
        basis = (_whole(row["difference"].get("clusters")), _whole(row["difference"].get("n")))
        rates = (before, after, _interval(row["difference"]))
        rows.append((*who, *basis, *rates, agreement, _whole(kappa.get("conversations"))))
    later = ", ".join(map(str, dict.fromkeys(found["rounds"])))
    before_n, after_n = found["conversations"]
    return Table(
        f"behaviours-{number + 1}",
        f"Behaviours in {found['environment']}, {found['split']} kernels ({found['owner']})",
        (
            Column("behaviour"),
            Column("coded by"),
            Column("kernels", "count"),
            Column("conversations", "count"),
            Column("round 0", "share"),
            Column(f"round {later}", "share"),
            Column("difference [95%]", "difference"),
            Column("kappa", "number"),
            Column("kappa over", "count"),
        ),
        tuple(rows),
        f"Share of conversations that show it, of {before_n} at round 0 and {after_n} later; a row "
        "rests on the kernels and conversations that are told in it. The difference is paired by "
        "kernel. Kappa is the agreement of rule and judge beyond chance, over the conversations "
        f"that both coded. {_judge(found.get('judge'))}{_waiting(found)}",
        rules=by_first(rows),
    )


def _judge(told: Mapping[str, Any] | None) -> str:
    """Who judged, and how much of it was had."""
    if not told:
        return "Nobody was asked as a judge."
    counts = {
        "coded": "conversations coded",
        "unreadable": "unreadable",
        "cut": "of these cut off",
        "not_had": "not had",
    }
    had = [f"{told[key]} {text}" for key, text in counts.items() if told.get(key) is not None]
    at = f" at {told['url']}" if told.get("url") else ""
    warning = (
        f" All {told['identical']} answers are the same text: perhaps it did not read the "
        "conversations."
        if told.get("identical")
        else ""
    )
    of = f", of {told['conversations']} conversations" if told.get("conversations") else ""
    return f"The judge is {told.get('model')}{at}: {', '.join(had)}{of}.{warning}"


def _waiting(found: Mapping[str, Any]) -> str:
    names = found.get("needs_judge")
    return f" Needs a judge, so it has no row of one: {', '.join(names)}." if names else ""


def _whole(value: Any) -> int | None:
    return None if value is None else int(value)


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
    """Quoted messages of a result, a row each, in the order of the table."""
    told = found.get("examples") or {}
    order = dict.fromkeys([*(str(row["behaviour"]) for row in found["rows"]), *told])
    return [{"behaviour": name, **quoted} for name in order for quoted in told.get(name, ())]
