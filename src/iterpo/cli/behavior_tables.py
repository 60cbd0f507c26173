"""print_behaviours: how a comparison of behaviours is told in a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from iterpo.cli.output import print_table, remark, say

__all__ = ["print_behaviours"]


def print_behaviours(found: Mapping[str, Any]) -> None:
    """The table, quoted messages and remarks of a result of ``behaviour_shifts``."""
    later = "/".join(f"pi_{i}" for i in dict.fromkeys(found["rounds"]))
    several = len(found["runs"]) > 1
    rates = ("pi_0", later, "difference [95%]", "a talk", "a turn")
    columns = ("behaviour", "by", "kernels (n)", *rates, "kappa (n)")
    rows = []
    for row in found["rows"]:
        cells = (
            row["behaviour"],
            row["by"],
            f"{row['difference']['clusters']} ({row['before']['n']}+{row['after']['n']})",
            _rate(row["before"]),
            _rate(row["after"]),
            _difference(row["difference"]),
            _two(row["count_before"]["mean"], row["count_after"]["mean"]),
            _two(row["per_turn_before"], row["per_turn_after"]),
            _kappa(row.get("kappa")),
        )
        rows.append((*cells, _direction(row["by_run"])) if several else cells)
    talks, kernels = " and ".join(map(str, found["conversations"])), found["kernels"]
    sample = " (a sample)" if kernels["compared"] < kernels["shared"] else ""
    print_table(
        f"{found['environment']}, {found['split']}: {talks} conversations on "
        f"{kernels['compared']} of {kernels['shared']} kernels{sample}",
        (*columns, "alike") if several else columns,
        rows,
    )
    say(
        "kernels (n): what a row rests on, conversations before + after; pi_0 and the later "
        "policy: share of conversations; a talk, a turn: how often, before > after; kappa (n): "
        "agreement of rule and judge beyond chance, on n conversations that both coded"
        + ("; alike: how many runs moved the way that most did" if several else "")
    )
    _print_examples(found["examples"], later)
    _remarks(found)


def _print_examples(shown: Mapping[str, list[dict[str, Any]]], later: str) -> None:
    for name, quoted in shown.items():
        say(f"\n{name}")
        for e in quoted:
            who = later if e["after"] else "pi_0"
            text = " ".join(e["text"].split())
            say(f"  {who} ({e['by']}), {e['kernel_id']}, message {e['message']}: {text}")
    say()


def _remarks(found: Mapping[str, Any]) -> None:
    """What the table leaves out, and why."""
    absent = [name for name, who in found["coding"].items() if not who]
    if absent:
        say(f"can't occur in {found['environment']}: {', '.join(absent)}")
    if found["judge"]:
        _tell_judge(found["judge"])
    if found["needs_judge"]:
        why = "the judge coded no kernel at both rounds" if found["judge"] else ""
        why = f"{why}; --judge URL#MODEL" if why else "--judge URL#MODEL"
        say(f"needs a judge ({why}): {', '.join(found['needs_judge'])}")
    if found["left_out"]:
        say(f"left out: {found['left_out']} conversations that failed or were explored")
    same = [run for run, i in zip(found["runs"], found["rounds"], strict=True) if i == 0]
    if same:
        remark(
            f"the best round of {', '.join(same)} is round 0, so it is compared with itself; "
            "give --round to see another"
        )


def _tell_judge(judge: Mapping[str, Any]) -> None:
    """Who judged, what was had, and what makes it doubtful."""
    other = [name for name in judge["served_models"] if name != judge["model"]]
    named = f", which calls itself {', '.join(other)}" if other else ""
    cut = f" ({judge['cut']} of them cut off)" if judge["cut"] else ""
    say(
        f"judge {judge['model']} at {judge['url']}{named}: {judge['coded']} of "
        f"{judge['conversations']} conversations coded, {judge['unreadable']} unreadable{cut}, "
        f"{judge['not_had']} not had; raw answers: {judge['answers']}"
    )
    if judge["read_again"]:
        say("its kept answers were read again, and nobody was asked (--judge asks)")
    if judge["stopped"]:
        remark(
            "the judge failed so often in a row that the rest was not asked; the same command "
            "goes on with what is missing"
        )
    if judge["identical"]:
        remark(
            f"all {judge['identical']} answers of the judge are the same text: perhaps it did not "
            "read the conversations; look at the raw answers"
        )
    if judge["cut"]:
        limit = judge["sampling"]["max_new_tokens"]
        remark(
            f"{judge['cut']} answers were cut off at {limit} tokens; a larger --max-tokens asks "
            "for these again"
        )
    for key in ("first_unreadable", "first_failure"):
        if judge[key]:
            remark(f"{key.replace('_', ' ')}: {judge[key]}")


def _rate(interval: Mapping[str, Any]) -> str:
    return f"{interval['mean']:.1%}"


def _difference(interval: Mapping[str, Any]) -> str:
    ends = (interval["low"], interval["high"])
    low, high = (f"{100 * v:+.1f}" if v is not None else "?" for v in ends)
    return f"{100 * interval['mean']:+.1f} [{low}, {high}]"


def _two(before: float | None, after: float | None) -> str:
    return ">".join("-" if v is None else f"{v:.2f}" for v in (before, after))


def _kappa(told: Mapping[str, Any] | None) -> str:
    if not told:
        return "-"
    value = "-" if told["kappa"] is None else f"{told['kappa']:.2f}"
    return f"{value} ({told['conversations']})"


def _direction(by_run: Sequence[float | None]) -> str:
    """How many runs moved the way that most of them did."""
    known = [d for d in by_run if d is not None]
    most = max(sum(d > 0 for d in known), sum(d < 0 for d in known))
    return f"{most} of {len(known)}"
