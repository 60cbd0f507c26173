"""write_report: run folders, studies or records to a page, tables and plots in one folder."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from iterpo.artifacts import write_atomic
from iterpo.report.dialogues import DialoguePair, dialogue_table
from iterpo.report.figures import Figure
from iterpo.report.page import render
from iterpo.report.plots import whole
from iterpo.report.sections import Missing, Section, sections
from iterpo.report.sources import Material, read_material
from iterpo.report.summary import summary
from iterpo.report.tables import Table, clean, in_markdown

__all__ = ["PAGE", "Written", "write_report"]

PAGE = "index.html"
"""Name of the page."""
MARKDOWN = "report.md"
"""All tables and the summary as Markdown."""


@dataclass(frozen=True, slots=True)
class Written:
    """What a report came to."""

    folder: Path
    """Where it lies."""
    summary: tuple[str, ...]
    """What was compared, and what came out; a paragraph each."""
    tables: tuple[str, ...]
    """CSV files, below the folder."""
    plots: tuple[str, ...]
    """SVG and PNG files, below the folder."""
    missing: tuple[str, ...]
    """What is not in the report, and why."""

    @property
    def page(self) -> Path:
        """The page."""
        return self.folder / PAGE


def write_report(sources: Sequence[Path], out: Path, against: str | None = None) -> Written:
    """Write ``index.html``, ``report.md``, ``tables/`` and ``plots/``.

    Equal sources give equal bytes.

    Args:
        sources: Run folders, study folders, files of records; as ``read_material`` takes them.
        out: Folder for all of it; files of an earlier report with the same names are replaced.
        against: Whom the methods are compared with: a method, base or a fixed agent; None: the
            study's reference where there are several methods, else base.

    Raises:
        DataError: if a source is none (``read_material`` names the reasons).
        ConfigError: if nobody is called ``against``.
    """
    material = read_material(sources, against)
    told = sections(material, against or _usual(material))
    top = summary(material)
    names = _Names()
    title = _title(material)
    headline = {"title": title, "summary": top, "notes": material.notes}
    write_atomic(out / PAGE, render(headline, told, names.stem))
    found = _tables(told)
    write_atomic(out / MARKDOWN, _markdown(title, top, material, found))
    csv = []
    for table in found:
        csv.append(f"tables/{names.stem(table.name)}.csv")
        write_atomic(out / csv[-1], table.to_csv())
    plots = []
    for figure in (i for s in told for i in s.items if isinstance(i, Figure)):
        for ending, raw in zip(("svg", "png"), whole(figure), strict=True):
            plots.append(f"plots/{names.stem(figure.name)}.{ending}")
            write_atomic(out / plots[-1], raw)
    missing = [f"{i.what}: {i.why}" for s in told for i in s.items if isinstance(i, Missing)]
    return Written(out, top, tuple(csv), tuple(plots), tuple(missing))


def _usual(material: Material) -> str:
    reference = str(material.facts.meta["reference"])
    return reference if len(material.facts.methods) > 1 else "base"


def _title(material: Material) -> str:
    shown = ", ".join(material.names[:3])
    more = len(material.names) - 3
    return clean(shown + (f" and {more} more" if more > 0 else ""))


def _tables(told: Sequence[Section]) -> list[Table]:
    out = []
    for item in (i for s in told for i in s.items):
        if isinstance(item, Table):
            out.append(item)
        elif isinstance(item, DialoguePair):
            out.append(dialogue_table(item))
    return out


def _markdown(title: str, top: tuple[str, ...], material: Material, found: Sequence[Table]) -> str:
    lines = [f"# {in_markdown(title)}", "", *(f"{in_markdown(t)}\n" for t in top)]
    lines += [f"- {in_markdown(note)}" for note in material.notes]
    return "\n".join([*lines, "", *(table.to_markdown() for table in found)])


class _Names:
    """Names of files and anchors: whatever a label holds, it leads nowhere else."""

    def __init__(self) -> None:
        self._given: dict[str, str] = {}

    def stem(self, name: str) -> str:
        if name not in self._given:
            plain = re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-")[:60] or "x"
            taken = {s.lower() for s in self._given.values()}
            stem, i = plain, 2
            while stem.lower() in taken:
                stem, i = f"{plain}-{i}", i + 1
            self._given[name] = stem
        return self._given[name]
