"""The whole report: what is in it, what is said to be missing, and that it is one harmless file."""

from __future__ import annotations

import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")

from iterpo.report import sections as contents
from iterpo.report.build import Written, write_report
from report.conftest import Call
from report.invented_run import PAYLOADS, records_file


class _Tags(HTMLParser):
    """Tags, attributes and ids of a page, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def page(written: Written) -> _Tags:
    return _Tags(written.page.read_text(encoding="utf-8"))


def test_everything_is_there(written: Written, page: _Tags) -> None:
    assert written.missing == ()
    for part in (
        *("Table 1.", "Figure 2.", "Figure 3.", "Figure 4.", "Table 6.", "Contents"),
        *("by its causes", "Calibration of Q", "by turn", "Verdicts", "Mean reward of the cand"),
        *("Behaviours in ultimatum", "Plan of iterpo", "What a run took", "Versions"),
    ):
        assert part in page.text, part
    ids = [value for name, value in page.attributes if name == "id"]
    assert len(ids) == len(set(ids)), "an id is given once"
    for name, target in page.attributes:
        if name.endswith("href") and target.startswith("#"):
            assert target[1:] in ids, target
    assert page.tags.count("h1") == 1


def test_numbers_are_those_worked_by_hand(written: Written, page: _Tags) -> None:
    """J = 0.81 x reward / 2: 0.2025 at round 0; 0.30375 and 0.34425 by kernel at round 1."""
    assert "+0.121 [−0.136, +0.379]" in page.text  # mean 0.1215, se 0.02025, t(1) = 12.706
    assert "+0.121 [−0.136, +0.379] (ultimatum), which includes 0" in written.summary[1]
    table = (written.folder / "tables" / "heldout-J.csv").read_text()
    assert "base (pi_0),0.2025,0,kernels" in table
    assert "iterpo,0.324,0.02025,kernels" in table
    rounds = (written.folder / "tables" / "table-6.csv").read_text().splitlines()
    assert rounds[1].startswith("ultimatum,iterpo,0.5,0,kernels,0.5,0,kernels")
    # Nothing but the reward has changed, so all of the gain is better deals.
    assert "iterpo,0,0.1215,0,0.1215" in (written.folder / "tables" / "gain-split.csv").read_text()


def test_the_kernel_of_the_transcripts_is_the_one_with_the_median_gain(page: _Tags) -> None:
    """Gains of a and b: 0.10125 and 0.14175; of two, the lower middle one."""
    assert "gain +0.101, the median of 2 kernels" in page.text
    assert "kernel heldout-a-<i>k</i>" in page.text
    assert "G 0.500" in page.text
    assert "G 0.750" in page.text


def test_hostile_words_stay_words(written: Written, page: _Tags) -> None:
    assert not {"script", "img", "iframe", "object", "b", "i", "u"} & set(page.tags)
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert PAYLOADS[0] in page.text, "it can be read"
    assert "${7*7} {{ 7*7 }}" in page.text
    for path in (p for p in written.folder.rglob("*") if p.suffix in (".html", ".md", ".csv")):
        text = path.read_text(encoding="utf-8")
        assert not re.search("[\x00-\x08\x0b-\x1f\u202e]", text), path
    markdown = (written.folder / "report.md").read_text(encoding="utf-8")
    assert "<" not in markdown
    assert "](" not in markdown


def test_nothing_is_loaded_from_anywhere(page: _Tags) -> None:
    sources = [v for n, v in page.attributes if n in ("src", "srcset", "action", "data", "poster")]
    assert sources == []
    targets = [v for n, v in page.attributes if n.endswith("href")]
    assert all(t.startswith(("#", "data:,")) for t in targets)
    styles = " ".join([page.text, *(v for n, v in page.attributes if n == "style")])
    assert not re.search(r"@import|url\((?!#)", styles)
    policy = next(v for n, v in page.attributes if n == "content" and "default-src" in v)
    assert policy.startswith("default-src 'none'")


def test_below_every_plot_stand_its_numbers(written: Written) -> None:
    text = written.page.read_text(encoding="utf-8")
    kinds = re.findall(r'<figure class="(plot|table)"', text)
    assert "plot" in kinds
    for one, two in zip(kinds, [*kinds[1:], ""], strict=True):
        if one == "plot":
            assert two in ("table", "plot"), "two plots of Q share a table"
    assert kinds[-1] == "table"
    assert len(written.plots) == 2 * kinds.count("plot")
    for name in (*written.tables, *written.plots):
        assert (written.folder / name).stat().st_size > 0, name


def test_what_records_do_not_tell_is_said_and_equal_records_give_equal_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contents, "_ROUNDS", contents._ROUNDS[:1])  # drawing takes time
    made = []
    for place in ("one", "two"):
        (tmp_path / place).mkdir()
        source = records_file(tmp_path / place / "records-of-a-trial.json", games=("<b>g</b>",))
        made.append(write_report([source], tmp_path / place / "out"))
    first, second = (
        {str(p.relative_to(m.folder)): p.read_bytes() for p in m.folder.rglob("*") if p.is_file()}
        for m in made
    )
    assert first == second
    told = "\n".join(made[0].missing)
    for part in ("causes", "Health of Q", "Learning curves", "Transcripts", "Behaviours", "Config"):
        assert part in told, part
    assert "+0.110" in made[0].summary[1]
    assert "below iterpo (Holm within a game): shuffled-returns in <b>g</b>." in made[0].summary[2]
    text = made[0].page.read_text(encoding="utf-8")
    assert text.count("Not here:") == len(made[0].missing)
    assert "0.0.9" in text, "the versions that the records state"


def test_names_in_sources_lead_to_no_other_place(tmp_path: Path, undrawn: None) -> None:
    source = records_file(tmp_path / "r.json", seeds=1)
    source.write_text(source.read_text().replace("shuffled-returns", "../../../escaped"))
    made = write_report([source], tmp_path / "deep" / "er" / "out")
    outside = {p for p in tmp_path.rglob("*") if p.is_file() and made.folder not in p.parents}
    assert outside == {source}


def test_the_command(call: Call, undrawn: None) -> None:
    source = records_file(Path("r.json"), seeds=2)
    done = call("report", source, "--against", "shuffled-returns", "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["page"] == "r-report/index.html"
    assert "Differences from shuffled-returns" in Path(told["page"]).read_text()
    assert "tables/differences.csv" in told["tables"]
    failed = call("report", source, "--against", "nobody")
    assert failed.exit_code == 2
    assert "nobody here is called 'nobody'" in failed.stderr


def test_a_missing_package_is_named_with_its_extra(
    call: Call, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("build", "page", "plots"):
        monkeypatch.delitem(sys.modules, f"iterpo.report.{name}")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = call("report", run)
    assert done.exit_code == 2
    assert "matplotlib" in done.stderr
    assert "pip install 'iterpo[report]'" in done.stderr
