"""The best settings that tune-nano.yaml found, by in-training return alone, for table1.py.

    python benchmarks/paper/choose.py runs/tune-nano

Of each method (the label up to the first `+`) the candidate whose selected round has the highest
return on training kernels, averaged over the trial seeds. Held-out rows are never read. Only what
differs between a method's candidates is written. The records of all candidates are kept as
benchmarks/results/tune-nano.json.
"""

from __future__ import annotations

import argparse
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from iterpo.artifacts import write_atomic
from iterpo.experiments.records import RECORDS
from iterpo.experiments.study_records import StudyFacts, read_study

CHOSEN = Path(__file__).with_name("chosen-nano.yaml")
RESULTS = Path(__file__).parents[1] / "results" / "tune-nano.json"
Scores = dict[str, dict[str, tuple[float, int]]]


def scores(facts: StudyFacts) -> Scores:
    """Mean in-training return and number of seeds, by method and candidate."""
    out: Scores = defaultdict(dict)
    (game,) = facts.games
    for label in facts.methods:
        rows = facts.rows(game, label, "train")
        if rows:
            mean = statistics.fmean(r["J_agent_turn"] for r in rows)
            out[label.partition("+")[0]][label] = (mean, len(rows))
    return dict(out)


def choose(facts: StudyFacts) -> dict[str, str]:
    """The best candidate of each method.

    Raises:
        SystemExit: if cells are missing: a method with fewer trials would have had less effort.
    """
    if missing := [*facts.meta["unfinished"], *facts.meta["failed"]]:
        raise SystemExit(
            f"{len(missing)} cells of {facts.folder} are missing (first: {missing[0]}); run the "
            "study again, which goes on with them"
        )
    return {m: max(each, key=lambda label: each[label][0]) for m, each in scores(facts).items()}


def settings(facts: StudyFacts, chosen: Mapping[str, str]) -> dict[str, Any]:
    """What is to be laid over the methods of table1-nano.yaml: where their candidates differ."""
    given = facts.meta["study"]["methods"]
    return {
        method: differing(
            given[label], [v for k, v in given.items() if k.partition("+")[0] == method]
        )
        for method, label in chosen.items()
    }


def differing(one: Mapping[str, Any] | None, others: Sequence[Any]) -> dict[str, Any]:
    """The part of ``one`` that is not the same in all others.

    >>> differing({"a": 1, "b": {"c": 2, "d": 3}}, [{"a": 1, "b": {"c": 2, "d": 4}}])
    {'b': {'d': 3}}
    """
    found: dict[str, Any] = {}
    for key, value in (one or {}).items():
        theirs = [(other or {}).get(key) for other in others]
        if all(each == value for each in theirs):
            continue
        found[key] = differing(value, theirs) if isinstance(value, Mapping) else value
    return found


def main() -> None:
    """Print all candidates and write the chosen ones."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="study folder of tune-nano.yaml")
    parser.add_argument("--out", type=Path, default=CHOSEN)
    parser.add_argument("--results", type=Path, default=RESULTS, help="where records are kept")
    options = parser.parse_args()
    facts = read_study(options.folder)
    chosen = choose(facts)
    for method, each in scores(facts).items():
        for label, (mean, n) in each.items():
            mark = "  <- chosen" if label == chosen[method] else ""
            print(f"{label:40} J on training kernels {mean:.3f}, seeds {n}{mark}")
    head = "# Written by choose.py from the records of tune-nano.yaml; read by table1.py.\n"
    write_atomic(options.out, head + yaml.safe_dump(settings(facts, chosen), sort_keys=True))
    write_atomic(options.results, (options.folder / RECORDS).read_text())
    print(f"wrote {options.out} and {options.results}")


if __name__ == "__main__":
    main()
