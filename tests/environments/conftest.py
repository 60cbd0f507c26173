"""Short transcripts: ``[X]`` stands for a box, ``-`` for a message without one."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from iterpo.domain import Role, Turn

pytest.register_assert_rewrite("environments.rows")

DATA = Path(__file__).parents[2] / ".." / "shared" / "data"


def _talk(*messages: str) -> tuple[Turn, ...]:
    turns = [Turn(Role.AGENT, "Hello, what would be fair?", scripted=True)]
    for i, text in enumerate(messages, start=1):
        said = (
            "I will think about it." if text == "-" else re.sub(r"\[(.*?)\]", r"\\boxed{\1}", text)
        )
        turns.append(Turn(Role.PARTNER if i % 2 else Role.AGENT, said))
    return tuple(turns)


@pytest.fixture(scope="session")
def talk() -> Callable[..., tuple[Turn, ...]]:
    """Messages after the opening, partner first, as turns."""
    return _talk


@pytest.fixture(scope="session")
def data_dir() -> str:
    """The real data sets, or a skip."""
    if not DATA.is_dir():
        pytest.skip("../shared/data is absent")
    return str(DATA)


@pytest.fixture
def deal_files(tmp_path: Path) -> str:
    """Invented records in the native layout: two training scenarios, one held out, one shared."""

    def row(you: str, them: str, output: str = "item0=0") -> str:
        return (
            f"<input> {you} </input> <dialogue> YOU: hello <eos> THEM: <selection> </dialogue> "
            f"<output> {output} </output> <partner_input> {them} </partner_input>\n"
        )

    a, b = "2 1 1 4 2 2", "2 2 1 0 2 3"
    c, d = "1 0 2 2 3 2", "1 10 2 0 3 0"
    e = "4 1 1 0 1 6"
    f, g = "1 1 1 3 3 2", "1 4 1 0 3 2"
    train = [row(a, b), row(b, a, "<disagree>"), row(c, d, "<disconnect>"), row(f, g), row(a, b)]
    held = [row(e, e, "<no_agreement>"), row(g, f)]
    for name, rows in (("train", train), ("test", held), ("val", held[:1])):
        (tmp_path / f"{name}.txt").write_text("".join(rows) + "\n")
    return str(tmp_path)


@pytest.fixture
def publish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Publishes rows on a data-set hub of this test: ``publish(id, split, rows, config=None)``.

    As on the real hub, the newest revision is a script, which ``datasets`` refuses to run, and the
    rows lie in the Parquet copy.
    """
    datasets = pytest.importorskip("datasets")
    parquet = pytest.importorskip("pyarrow.parquet")
    pyarrow = pytest.importorskip("pyarrow")
    hub, load = tmp_path / "hub", datasets.load_dataset

    def publish(dataset_id: str, split: str, rows: list[dict[str, Any]], config: str = "") -> None:
        folder = hub / dataset_id / (config or "default") / split
        folder.mkdir(parents=True)
        parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "0000.parquet")

    def load_dataset(
        path: str, *, split: str, revision: str | None, data_dir: str | None = None, **_: Any
    ) -> Any:
        if revision != "refs/convert/parquet":
            raise RuntimeError("Dataset scripts are no longer supported")
        cache = str(tmp_path / "cache")
        return load(str(hub / path), data_dir=data_dir, split=split, cache_dir=cache)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return publish
