"""A study's file: cells and their plans, and every mistake before anything runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from iterpo.cli.plans import read_study_file
from iterpo.config import canonical_yaml, parse
from iterpo.errors import ConfigError
from iterpo.experiments.plan import load_plan
from iterpo.experiments.shared_batch import batch_key
from iterpo.experiments.study import Cell, Study, load_study, study_names

STUDY = """
plan: smoke
environments:
  ultimatum:
  short: {environment: {name: ultimatum, options: {round_unit: exchange}}}
methods:
  iterpo:
  shuffled: {q: {shuffle_returns: true}}
  cool: {collect: {sampling: {temperature: 0.7}}}
seeds: [3, 5]
"""


def study(tmp_path: Path, text: str = STUDY, *settings: str) -> Study:
    (tmp_path / "s.yaml").write_text(text)
    return read_study_file(str(tmp_path / "s.yaml"), settings)


def test_every_combination_is_a_cell_seed_by_seed_and_fixed_agents_come_last(
    tmp_path: Path,
) -> None:
    plans = study(tmp_path).plans()
    runs = [c for c in plans if not c.is_yardstick]
    assert len(runs) == 2 * 3 * 2
    assert [c.seed for c in runs] == [3] * 6 + [5] * 6
    assert list(plans)[: len(runs)] == runs
    fixed = {c.method for c in plans if c.is_yardstick}
    assert fixed == {"oracle", "first-counter", "random-offer"}
    assert Cell("ultimatum", "iterpo", 3).folder(Path("x")) == Path(
        "x/cells/ultimatum/iterpo/seed-3"
    )


def test_a_cell_is_the_plan_with_the_settings_of_its_game_then_its_method(tmp_path: Path) -> None:
    made = study(tmp_path)
    plans = made.plans()
    base = load_plan("smoke", ["seed=5"])
    assert plans[Cell("ultimatum", "iterpo", 5)].identity() == base.identity()
    assert plans[Cell("ultimatum", "shuffled", 5)].q == replace(base.q, shuffle_returns=True)
    short = plans[Cell("short", "shuffled", 5)]
    assert short.environment.options == {"prompt_style": "compact", "round_unit": "exchange"}
    assert short.q.shuffle_returns
    assert plans[Cell("short", "oracle", 5)].q == base.q, "fixed agents take no method's settings"


def test_settings_reach_the_study_and_its_plan(tmp_path: Path) -> None:
    made = study(tmp_path, STUDY, "seeds=[1]", "plan.rounds=2", "methods.iterpo={q: {heads: 2}}")
    plans = made.plans()
    assert {c.seed for c in plans} == {1}
    assert {p.rounds for p in plans.values()} == {2}
    assert plans[Cell("ultimatum", "iterpo", 1)].q.heads == 2


def test_what_is_written_down_is_the_same_study(tmp_path: Path) -> None:
    made = load_study("smoke")
    (tmp_path / "study.yaml").write_text(canonical_yaml(made))
    again = load_study(tmp_path / "study.yaml")
    assert again == made
    assert made.plans() == again.plans()


def test_a_plan_beside_the_study_is_found(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("rounds: 7\n")
    text = "plan: mine.yaml\nenvironments: {ultimatum: }\nmethods: {iterpo: }\nseeds: [0]\n"
    assert {p.rounds for p in study(tmp_path, text).plans().values()} == {7}


def test_methods_share_the_first_batch_unless_they_collect_otherwise(tmp_path: Path) -> None:
    made = study(tmp_path)
    keys = {c: batch_key(p) for c, p in made.plans().items()}

    def key(method: str, seed: int = 3, game: str = "ultimatum") -> str:
        return keys[Cell(game, method, seed)]

    assert key("iterpo") == key("shuffled")
    assert len({key("iterpo"), key("cool"), key("iterpo", 5), key("iterpo", 3, "short")}) == 4
    moved = replace(
        made.plans()[Cell("ultimatum", "iterpo", 3)],
        environment=replace(
            load_plan("smoke").environment,
            options={"prompt_style": "compact", "data_dir": "elsewhere"},
        ),
    )
    assert batch_key(moved) == key("iterpo"), "the place of the data changes no batch"


WRONG = """
plan: {rounds: 1, q: {headz: 3}}
environments:
  ultimatum: {seed: 3}
  casinoo: {}
  prose: {environment: {name: ultimatum, options: {bad: 1}}}
methods:
  iterpo: {}
  a b: {}
  oracle:
  x: {heldout: {scenarios: 3}, method: {name: foo}, q: {gamma: 0.5}}
  pool: {q: {pool_rounds: 1}}
  options: {method: {options: {a: 1}}}
seeds: [1, 1]
reference: z
"""


def test_every_mistake_is_told_at_once_and_where_it_comes_from(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        study(tmp_path, WRONG)
    told = str(caught.value)
    for part in (
        "seeds: given",
        "methods: the label 'a b'",
        "methods: 'oracle' is taken",
        "reference: given 'z'",
        "environments.ultimatum.seed: given",
        "methods.x.heldout: given",
        "methods.x.q.gamma: given",
        "plan.q.headz: unknown key",
        "environments.casinoo.environment.name: there is no environment",
        "environments.prose.environment.options: environment 'ultimatum': unknown option 'bad'",
        "methods.x.method.name: there is no method",
        "methods.pool.q.pool_rounds: given",
        "methods.options.method.options",
    ):
        assert part in told, part
    assert told.count("headz") == 1, "a mistake of the plan is not told for each cell"
    assert told.splitlines()[0].endswith("mistakes")


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("plan: smoke", "environments: required"),
        ("plan: 3\nenvironments: 4\nmethods: [a]", "methods: given"),
        ("plan: nope\nenvironments: {}\nmethods: {}", "no plan at 'nope'"),
        (
            "plan: smoke\nenvironments: {ultimatum: 3}\nmethods: {iterpo: }",
            "environments.ultimatum: given",
        ),
        (
            "plan: smoke\nenvironments: {ultimatum: }\nmethods: {a: }\n"
            "seeds: [9223372036854775808]",
            "below 2^63",
        ),
    ],
)
def test_a_malformed_study_is_explained(tmp_path: Path, text: str, part: str) -> None:
    with pytest.raises(ConfigError) as caught:
        study(tmp_path, text)
    assert part in str(caught.value)


def test_fixed_agents_that_cannot_play_are_left_out_unless_they_are_asked_for() -> None:
    values = {
        "plan": {"partner": {"kind": "local", "model": "nano"}},
        "environments": {"ultimatum": {}},
        "methods": {"iterpo": {}},
    }
    made = parse(Study, values, "it")
    fixed = [c.method for c in made.plans() if c.is_yardstick]
    assert "oracle" not in fixed, "it reads the scripted partner's mind only"
    assert "first-counter" in fixed
    with pytest.raises(ConfigError, match="oracle"):
        replace(made, yardsticks=("oracle",)).plans()


def test_built_in_studies_are_valid() -> None:
    for name in study_names():
        assert load_study(name).plans()
    with pytest.raises(ConfigError, match="smoke"):
        load_study("nothing")
