"""Sources: runs, studies and records make one set of facts, and what can't be told is refused."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from experiments.test_study_loop import STUDY, Starts
from iterpo.errors import ConfigError, DataError, MissingDataError
from iterpo.experiments.plan import load_plan
from iterpo.experiments.study import Cell
from iterpo.experiments.study_loop import run_study
from iterpo.experiments.versions import VERSIONS, present
from iterpo.report import sources
from iterpo.report.estimates import by_round, chosen, roster
from iterpo.report.findings import against, heldout_table, overview_table, split_table
from iterpo.report.sections import sections
from iterpo.report.sources import read_material
from iterpo.report.summary import summary
from iterpo.report.tables import Table
from report.invented_run import finished_run, records_file


def test_records_without_kernels_are_paired_by_seed(tmp_path: Path) -> None:
    """Gains of 0.10, 0.11 and 0.12: mean 0.11, standard error 0.01 / sqrt(3)."""
    material = read_material([records_file(tmp_path / "r.json")])
    assert material.facts.games == ("g1", "<b>g2</b>")
    found = {c.method: c.found for c in against(material, "g1", "base")}
    assert found["iterpo"].difference.mean == pytest.approx(0.11)
    assert found["iterpo"].difference.se == pytest.approx(0.01 / math.sqrt(3))
    assert (found["iterpo"].over, found["iterpo"].seeds) == ("seeds", 3)
    assert found["shuffled-returns"].difference.mean == pytest.approx(0)
    kinds = {p.name: (p.kind, p.present) for p in roster(material.facts)}
    assert kinds["shuffled-returns"] == ("control", True)
    assert kinds["oracle"] == ("fixed", False), "a yardstick that is absent still has its row"
    assert split_table(material) is None, "these records don't tell deals"
    assert "paired by seed" in material.notes[0]


def test_method_and_arm_are_the_same(tmp_path: Path) -> None:
    a, b = (
        read_material([records_file(tmp_path / f"{key}.json", key=key)]).facts.records
        for key in ("arm", "method")
    )
    assert [r["method"] for r in a] == [r["method"] for r in b]


def test_spread_is_over_seeds_or_else_over_kernels(tmp_path: Path) -> None:
    several = read_material([records_file(tmp_path / "r.json")]).facts
    found = by_round(several, "g1", "iterpo", "J_agent_turn", "heldout")
    assert found[1].over == "seeds"
    assert found[1].interval.se == pytest.approx(0.01 / math.sqrt(3))
    single = read_material([records_file(tmp_path / "s.json", seeds=1)]).facts
    end = chosen(single, "g1", "iterpo")
    assert end is not None
    assert (end.over, end.interval.se) == ("kernels", 0.02), "that of the records"
    turns = chosen(single, "g1", "iterpo", "turns")
    assert turns is not None
    assert turns.over == "nothing"
    run = read_material([finished_run(tmp_path / "run")]).facts
    kernels = chosen(run, "ultimatum", "iterpo")
    assert kernels is not None
    # 0.81 x 0.75 and 0.81 x 0.85 in half of the conversations: kernel means 0.30375 and 0.34425.
    assert kernels.interval.mean == pytest.approx(0.324)
    assert kernels.interval.se == pytest.approx(0.02025)
    assert kernels.over == "kernels"


def test_over_several_games_there_is_a_table_of_ranks(tmp_path: Path) -> None:
    """0.5 and, after gains of 0.10, 0.11 and 0.12, a mean of 0.61 in both games; J* is 1."""
    material = read_material([records_file(tmp_path / "r.json")])
    table = overview_table(material, "iterpo")
    assert table is not None
    rows = {row[0]: row for row in table.cells()}
    assert rows["iterpo"][1:5] == ("1.000", "0.610", "22%", "–")
    # se: 0.01 / sqrt(3) in each game, / sqrt(2) for their mean; t(4) = 2.776
    assert rows["shuffled-returns"][1:6] == ("2.500", "0.500", "0%", *_GAP)
    assert rows["shuffled-returns"][6:] == ("0", "0", "2")
    assert rows["base"][5:] == ("–", "–", "–", "–")
    *_, told = summary(material)
    assert "has mean rank 1 among 3 and 0.610 of J*." in told
    assert told.endswith(": significant shuffled-returns −0.110 [−0.121, −0.099].")
    one = read_material([records_file(tmp_path / "s.json", games=("g",))])
    assert overview_table(one, "iterpo") is None


_GAP = ("−0.110 [−0.121, −0.099]", "<0.001")


def test_runs_of_other_settings_are_not_pooled_as_seeds(tmp_path: Path) -> None:
    folders = [
        finished_run(tmp_path / "one", "seed=1"),
        finished_run(tmp_path / "two", "seed=2"),
        finished_run(tmp_path / "heads", "seed=1", "q.heads=2"),
        finished_run(tmp_path / "control", "seed=1", "q.shuffle_returns=true"),
    ]
    material = read_material(folders)
    cells = sorted(str(r.cell) for r in material.runs)
    assert cells == [
        "ultimatum/iterpo-2/seed-1",
        "ultimatum/iterpo-shuffled/seed-1",
        "ultimatum/iterpo/seed-1",
        "ultimatum/iterpo/seed-2",
    ]
    assert {p.name for p in roster(material.facts) if p.kind == "control"} == {"iterpo-shuffled"}
    row = next(r for r in heldout_table(material).cells() if r[0] == "iterpo")
    assert row[1].startswith("0.324 ± 0.000"), "two seeds with the same numbers"
    assert read_material(folders, "iterpo-2").facts.meta["reference"] == "iterpo-2"


def test_the_same_cell_twice_is_refused(tmp_path: Path) -> None:
    run = finished_run(tmp_path / "a")
    assert len(read_material([run, run]).runs) == 1
    with pytest.raises(ConfigError, match="give each once"):
        read_material([run, finished_run(tmp_path / "b")])
    files = [records_file(tmp_path / f"{n}.json") for n in "cd"]
    with pytest.raises(ConfigError, match="two sources tell of"):
        read_material(files)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[]", "no file of records"),
        ("{", "no file of records"),
        ('{"records": [1]}', "no file of records"),
        ('{"records": [{"game": "g"}]}', "lacks seed"),
        (None, "J_agent_turn is nan"),
    ],
)
def test_damaged_records_are_named(tmp_path: Path, text: str | None, told: str) -> None:
    path = records_file(tmp_path / "r.json")
    if text is None:
        rows = json.loads(path.read_text())
        rows["records"][3]["J_agent_turn"] = math.nan
        text = json.dumps(rows)
    path.write_text(text)
    with pytest.raises(DataError, match=told):
        read_material([path])


def test_cells_that_a_study_still_lacks_are_counted_and_failed_ones_named(tmp_path: Path) -> None:
    study = replace(STUDY, seeds=(1, 2, 3, 4))
    starts = Starts(study, failing=[Cell("ultimatum", "shuffled", 1)], die_at=3)
    with pytest.raises(KeyboardInterrupt):
        run_study(study, tmp_path / "s", start=starts)
    material = read_material([tmp_path / "s"])
    assert material.facts.games == ("ultimatum",)
    lacking, failed = material.notes[-2:]
    assert lacking.startswith("5 cells are not finished and left out: ultimatum/")
    assert lacking.endswith(" …")
    assert failed.startswith("ultimatum/shuffled/seed-1 is left out: ")
    assert "broke" in failed


def test_records_of_a_study_are_told_as_the_study_with_kernels_beside(tmp_path: Path) -> None:
    study = replace(STUDY, methods={"shuffled": STUDY.methods["shuffled"], "iterpo": {}})
    starts = Starts(study, die_at=3)
    with pytest.raises(KeyboardInterrupt):
        run_study(study, tmp_path / "s", start=starts)
    whole = read_material([tmp_path / "s"])
    shutil.copy(tmp_path / "s" / "records.json", tmp_path / "kept.json")
    shutil.copy(tmp_path / "s" / "kernels.parquet", tmp_path / "kept-kernels.parquet")
    kept = read_material([tmp_path / "kept.json"])
    assert kept.facts.methods == whole.facts.methods == ("shuffled", "iterpo")
    assert kept.notes == whole.notes
    for other in ("base", "shuffled"):
        assert against(kept, "ultimatum", other) == against(whole, "ultimatum", other)
    (tmp_path / "kept-kernels.parquet").write_text("no table")
    with pytest.raises(DataError, match=r"kept-kernels\.parquet holds no means by kernel"):
        read_material([tmp_path / "kept.json"])


def test_nothing_to_report_is_said(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match="records"):
        read_material([tmp_path])
    with pytest.raises(MissingDataError, match="there is no"):
        read_material([tmp_path / "nowhere"])
    with pytest.raises(ConfigError, match="accepted: base, iterpo"):
        read_material([finished_run(tmp_path / "run")], "nobody")


def versions(*sources: Path) -> Table:
    *_, setting = sections(read_material(sources), "base")
    (table,) = (i for i in setting.items if isinstance(i, Table) and i.name == "versions")
    return table


def test_who_has_not_played_yet_is_not_said_to_have(tmp_path: Path) -> None:
    """A study whose runs have all failed in one of two games, and one of fixed agents alone."""
    source = records_file(tmp_path / "r.json", games=("g1",))
    material = read_material([source])
    games = {"g1": {}, "g2": {}}
    meta = {**material.facts.meta, "study": {**material.facts.meta["study"], "environments": games}}
    one = replace(material, facts=replace(material.facts, meta=meta))
    assert "played 1 game (g1), with 3 seeds" in summary(one)[0]
    fixed = tuple(
        {**r, "method": "oracle"} for r in material.facts.records if r["method"] == "iterpo"
    )
    none = replace(one, facts=replace(one.facts, records=fixed))
    assert summary(none)[0] == "No method has a finished round in g1 and g2."
    causes = next(s for s in sections(none, "base") if s.anchor == "causes")
    assert "no run has ended" in str(causes.items[0])


def test_the_versions_of_all_sources_are_told(tmp_path: Path) -> None:
    one, two = (finished_run(tmp_path / f"seed-{s}", f"seed={s}") for s in (1, 2))
    table = versions(one)
    assert dict(table.rows) == present()
    assert table.note == ""
    (two / VERSIONS).write_text(json.dumps([{}, {"torch": "1.9", "iterpo": "0.0.2"}]))
    told = dict(versions(one, two, records_file(tmp_path / "r.json")).rows)
    assert told["torch"] == f"{present()['torch']}, 1.9"
    assert told["iterpo"] == f"0.0.9, {present()['iterpo']}, 0.0.2"
    assert versions(one, two).note == "1 of 2 run folders do not tell all of theirs."


def test_a_run_without_versions_gets_those_of_the_report_and_is_told_so(tmp_path: Path) -> None:
    run = finished_run(tmp_path / "run")
    (run / VERSIONS).unlink()
    table = versions(run)
    assert dict(table.rows) == present()
    assert table.title == "Versions, installed where this report was made"
    records = json.loads((source := records_file(tmp_path / "r.json")).read_text())
    source.write_text(json.dumps(records | {"meta": {"versions": ["1"]}}))
    assert dict(versions(source).rows) == present(), "no mapping says nothing"


def test_a_run_is_read_though_the_package_of_its_method_is_gone(tmp_path: Path, run: Path) -> None:
    place = tmp_path / "cell"
    shutil.copytree(run, place)
    plan = (place / "plan.yaml").read_text()
    (place / "plan.yaml").write_text(plan.replace("name: iterpo", "name: of_another_package"))
    seen = sources._Gathering()
    sources._add_cell_run(seen, Cell("ultimatum", "of_another_package", 3), place)
    (one,) = seen.runs
    assert one.run.plan.method.name == "of_another_package"
    with pytest.raises(ConfigError, match="there is no method 'of_another_package'"):
        load_plan(place / "plan.yaml")


def test_a_cell_whose_plan_is_of_another_version_is_left_to_its_records(
    tmp_path: Path, run: Path
) -> None:
    place = tmp_path / "cell"
    shutil.copytree(run, place)
    with (place / "plan.yaml").open("a") as file:
        file.write("later: 1\n")
    seen = sources._Gathering()
    sources._add_cell_run(seen, Cell("ultimatum", "iterpo", 3), place)
    assert not seen.runs
    (note,) = seen.notes
    assert "later: unknown key" in note
