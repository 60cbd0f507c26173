"""Sections of a report in their order: tables and figures, or what is missing for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from iterpo.config import dump
from iterpo.config.text import to_yaml
from iterpo.experiments.study import BASE
from iterpo.experiments.study_records import without_places
from iterpo.experiments.versions import joined, present
from iterpo.report import findings, learning, trends
from iterpo.report.behaviours import behaviour_table, examples
from iterpo.report.dialogues import DialoguePair, dialogue_pairs
from iterpo.report.estimates import learners
from iterpo.report.figures import Figure
from iterpo.report.sources import Material
from iterpo.report.tables import Column, Table

__all__ = ["Item", "Missing", "Quotes", "Section", "Text", "sections"]

_ROUNDS = (
    ("figure-2", "Figure 2. Discounted return by round, in training", "J_agent_turn", "train"),
    ("figure-2-heldout", "Discounted return by round, held-out", "J_agent_turn", "heldout"),
    ("figure-3", "Figure 3. Agent turns by round", "turns", "train"),
    ("figure-4", "Figure 4. Undiscounted terminal reward by round", "reward", "train"),
)
_NO_RUNS = "needs run folders among the sources; records alone do not tell"


@dataclass(frozen=True, slots=True)
class Missing:
    """What would stand here, and why it doesn't."""

    what: str
    """Figure or table."""
    why: str
    """Reason, and what would help."""


@dataclass(frozen=True, slots=True)
class Text:
    """Lines set as they are, such as a configuration."""

    title: str
    """Heading."""
    text: str
    """Lines."""


@dataclass(frozen=True, slots=True)
class Quotes:
    """Quoted messages."""

    title: str
    """Heading."""
    rows: tuple[tuple[str, str], ...]
    """Where each was said, and its words."""


Item = Table | Figure | Missing | Text | Quotes | DialoguePair


@dataclass(frozen=True, slots=True)
class Section:
    """A chapter of the page."""

    anchor: str
    """Where the table of contents points."""
    title: str
    """Heading."""
    intro: str
    """What it is about."""
    items: tuple[Item, ...]
    """In order."""


def sections(material: Material, other: str) -> tuple[Section, ...]:
    """All sections.

    Args:
        material: What was read.
        other: Whom the methods are compared with.
    """
    return (
        _glance(material),
        _heldout(material, other),
        _by_round(material),
        _causes(material),
        _q(material),
        _curves(material),
        _dialogues(material),
        _behaviours(material),
        _setting(material),
    )


def _or_missing(found: Item | None, what: str, why: str) -> Item:
    empty = found is None or (isinstance(found, Table) and not found.rows)
    return Missing(what, why) if empty or found is None else found


def _glance(material: Material) -> Section:
    reference = material.facts.meta["reference"]
    why = f"no run of {reference} has ended, so no round of it is chosen yet"
    table = _or_missing(findings.glance(material), "The result at a glance", why)
    return Section("summary", "Summary", "", (table,))


def _heldout(material: Material, other: str) -> Section:
    reference = material.facts.meta["reference"]
    why = f"nobody shares seeds and kernels with {other}, or no run has ended"
    items: list[Item] = [findings.heldout_table(material)]
    overall = findings.overview_table(material, other)
    items += [overall] if overall else []
    figure = trends.difference_figure(material, other)
    items.append(_or_missing(figure, f"Differences from {other}", why))
    if figure:
        items.append(findings.difference_table(material, other))
    intro = (
        f"What each method is worth on kernels that nobody trained on, beside pi_0 ({BASE}), which "
        f"is round 0 of {reference}, fixed agents, and a control that learns from shuffled "
        "returns: what the control gains is no merit of the returns."
    )
    return Section("heldout", "Held-out return", intro, tuple(items))


def _by_round(material: Material) -> Section:
    items: list[Item] = []
    for name, title, measure, split in _ROUNDS:
        figure = trends.round_figure(material, name, title, measure, split)
        why = "no method has two finished rounds"
        items.append(_or_missing(figure, title, why))
        items.append(findings.round_table(material, name, f"{title}: numbers", measure, split))
    title = "Table 6. Agreement by round (%)"
    items.append(findings.round_table(material, "table-6", title, "agreement", "train"))
    intro = (
        "J = E[gamma^(tau-1) r] rises by earlier closings, by better deals, or by both; turns and "
        "terminal reward tell them apart. Bands are one standard error."
    )
    return Section("rounds", "Round by round", intro, tuple(items))


def _causes(material: Material) -> Section:
    table = findings.split_table(material)
    what = "The gain over pi_0 by its causes"
    if table is None:
        why = "the records do not tell discount and deal of agreements; run folders and studies do"
        names = learners(material.facts)
        if not any(r["selected"] for r in material.facts.records if r["method"] in names):
            why = "no run has ended, so no round is chosen yet"
        items: tuple[Item, ...] = (Missing(what, why),)
    else:
        figure = trends.split_figure(table, material)
        items = (_or_missing(figure, what, "no method has an ended run"), table)
    return Section("causes", "Where the gain comes from", "", items)


def _q(material: Material) -> Section:
    intro = "Whether Q, the only reward of the update, says what conversations return."
    table = learning.health_table(material)
    if table is None:
        why = _NO_RUNS if not material.runs else "no run here has fitted a Q"
        return Section("q", "Health of Q", intro, (Missing("Health of Q by round", why),))
    items: list[Item] = [table]
    for method in learners(material.facts):
        for figure in (
            learning.calibration(material, method),
            learning.correlation_by_turn(material, method),
        ):
            items += [figure] if figure else []
        by_turn = learning.turn_table(material, method)
        items += [by_turn] if by_turn else []
    if not any(isinstance(item, Figure) for item in items):
        why = "the runs' health reports hold neither groups nor turns with enough rows"
        items.append(Missing("Calibration and correlation by turn", why))
    return Section("q", "Health of Q", intro, tuple(items))


def _curves(material: Material) -> Section:
    found = learning.curves(material, learners(material.facts))
    items: list[Item] = [item for pair in found for item in pair]
    if not items:
        why = "the runs hold no metrics yet" if material.runs else _NO_RUNS
        items.append(Missing("Learning curves", why))
    updates = learning.update_table(material)
    why = _NO_RUNS if not material.runs else "no update has a verdict (verdict.states is 0)"
    items.append(_or_missing(updates, "Verdicts on updates", why))
    return Section("curves", "Learning curves", "What each update did, step by step.", tuple(items))


def _dialogues(material: Material) -> Section:
    pairs, missing = dialogue_pairs(material)
    intro = (
        "One kernel a game at round 0 and at the best round, from the first seed of "
        f"{material.facts.meta['reference']}: the held-out kernel with the median gain in mean "
        "return (ties by name), its first conversation. Neither the best nor the worst was looked "
        "for. G is the return from that message on."
    )
    left = tuple(Missing("Transcripts", why) for why in missing)
    return Section("dialogues", "Before and after, in words", intro, (*pairs, *left))


def _behaviours(material: Material) -> Section:
    items: list[Item] = []
    for i, found in enumerate(material.behaviours):
        items.append(behaviour_table(found, i))
        rows = tuple(_quote(e) for e in examples(found))
        items += [Quotes("As it was said", rows)] if rows else []
    if not items:
        why = "no behavior.json lies beside the sources: iterpo behavior RUN --out RUN makes one"
        items.append(Missing("Behaviours (appendix J)", why))
    return Section("behaviours", "Behaviours", "", tuple(items))


def _quote(e: Mapping[str, Any]) -> tuple[str, str]:
    when = "later" if e.get("after") else "round 0"
    where = f"{e.get('kernel_id')}, message {e.get('message')}"
    return f"{e['behaviour']}, {when} ({e.get('by')}), {where}", str(e.get("text", ""))


def _setting(material: Material) -> Section:
    meta = material.facts.meta
    costs = findings.cost_table(material)
    items: list[Item] = [_or_missing(costs, "Budgets", "no method has an ended run")]
    items.append(_versions(material))
    machine = f"Machine: {meta['machine']}. " if meta.get("machine") else ""
    items += _plans(material)
    intro = f"{machine}Sources: {', '.join(material.names)}."
    return Section("setting", "Budgets, versions, configuration", intro, tuple(items))


def _versions(material: Material) -> Table:
    """What made the numbers, of all sources; several versions of one package are all told."""
    runs = [one.run.versions for one in material.runs]
    told = joined([material.facts.meta.get("versions", {}), *(v for run in runs for v in run)])
    when = "as the sources state them" if told else "installed where this report was made"
    silent = sum(not run or not all(run) for run in runs) if told else 0
    note = f"{silent} of {len(runs)} run folders do not tell all of theirs." if silent else ""
    rows = tuple((told or present()).items())
    columns = (Column("package"), Column("version"))
    return Table("versions", f"Versions, {when}", columns, rows, note)


def _plans(material: Material) -> Sequence[Item]:
    """One plan for each method, of its first run; what else differs is the game and the seed."""
    out: dict[str, Item] = {}
    for one in material.runs:
        cell = one.cell
        if cell.method not in out:
            title = f"Plan of {cell.method} ({cell.environment}, seed {cell.seed})"
            out[cell.method] = Text(title, to_yaml(without_places(dump(one.run.plan))))
    if out:
        return tuple(out.values())
    known = material.facts.meta.get("plan")
    if known:
        return (Text("Plan, as the records tell it", to_yaml(without_places(known))),)
    return (Missing("Configuration", _NO_RUNS),)
