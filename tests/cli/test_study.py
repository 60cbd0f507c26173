"""``iterpo study``: a file without a subcommand is run, failures end with status 1, tables tell."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest

from cli.conftest import Call
from experiments.test_study_loop import Starts, cells
from iterpo.experiments import study_loop
from iterpo.experiments.study import Cell, load_study

SMALL = ("--set", "yardsticks=[]")


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> Starts:
    """Made-up cells instead of processes."""
    made = Starts(load_study("smoke"))
    monkeypatch.setattr(study_loop, "run_study", partial(study_loop.run_study, start=made))
    return made


def test_a_study_is_run_shown_and_gone_on_with(call: Call, starts: Starts) -> None:
    done = call("study", "smoke", "--jobs", "2", *SMALL)
    assert done.exit_code == 0, done.output
    for part in ("shuffled", "against iterpo", "p (Holm)", "more agreements", "candidate tokens"):
        assert part in done.stdout, part
    assert "runs/compare" in done.stdout
    shown = call("study", "show", "runs/compare", "--json")
    told: dict[str, Any] = json.loads(shown.stdout)["games"]["ultimatum"]
    assert [s["method"] for s in told["standings"]] == ["iterpo", "shuffled", "base"]
    assert told["contrasts"][0]["found"]["mean"] == pytest.approx(-0.2)
    assert "against base" in call("study", "show", "runs/compare", "--against", "base").stdout
    starts.started.clear()
    assert call("study", "run", "runs/compare", *SMALL).exit_code == 0
    assert starts.started == []


def test_several_games_are_told_in_one_more_table(call: Call, starts: Starts) -> None:
    more = "environments.deal_or_no_deal={}"
    starts.study = load_study("smoke", [more])
    done = call("study", "smoke", *SMALL, "--set", more)
    assert done.exit_code == 0, done.output
    assert "over 2 games: mean rank, and J / J* beside iterpo" in " ".join(done.stdout.split())
    told = json.loads(call("study", "show", "runs/compare", "--json").stdout)["overview"]
    assert [(r["method"], r["rank"]) for r in told["rows"]] == [
        ("iterpo", 1),
        ("shuffled", 2),
        ("base", 3),
    ]


def test_a_failed_cell_makes_exit_status_1(call: Call, starts: Starts) -> None:
    starts.failing = [Cell("ultimatum", "shuffled", 2)]
    done = call("study", "smoke", *SMALL)
    assert done.exit_code == 1
    assert len(cells(starts)) == 4
    assert "cell ultimatum/shuffled/seed-2 failed" in done.stderr
    assert "1 of 4 cells failed" in done.stderr
    assert "ultimatum/shuffled/seed-2 failed" in call("study", "show", "runs/compare").stdout


def test_the_rest_is_shown_where_the_reference_has_failed(call: Call, starts: Starts) -> None:
    starts.failing = [Cell("ultimatum", "iterpo", 1), Cell("ultimatum", "iterpo", 2)]
    done = call("study", "smoke", *SMALL)
    assert done.exit_code == 1
    assert "2 of 4 cells failed" in done.stderr
    shown = call("study", "show", "runs/compare", "--json")
    (game,) = json.loads(shown.stdout)["games"].values()
    assert [s["method"] for s in game["standings"]] == ["shuffled"]
    assert game["contrasts"] == []
    asked = call("study", "show", "runs/compare", "--against", "iterpo")
    assert "nobody in this study is called 'iterpo'" in asked.stderr


def test_mistakes_end_with_status_2_before_anything_runs(call: Call, starts: Starts) -> None:
    done = call("study", "smoke", "--set", "seeds=[1, 1]", "--set", "plan.q.headz=1")
    assert done.exit_code == 2
    assert "2 mistakes" in done.stderr
    assert starts.started == []
    assert "no study at 'nothing'" in call("study", "nothing").stderr
    assert "holds no records" in call("study", "show", ".").stderr


def test_variables_set_keys_of_the_plan_as_for_a_run(
    call: Call, starts: Starts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ITERPO__Q__HEADZ", "3")
    assert "plan.q.headz" in call("study", "smoke").stderr
