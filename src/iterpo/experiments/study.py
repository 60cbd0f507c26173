"""A study: environments x methods x seeds over one plan, so that like is compared with like."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any, get_args

from iterpo import environments
from iterpo.config import override, parse, read_yaml
from iterpo.domain.rules import broken
from iterpo.errors import ConfigError
from iterpo.experiments.layers import cell_values
from iterpo.experiments.plan import Plan, plan_values
from iterpo.experiments.speakers import Yardstick, YardstickName, check_seats, partner_of
from iterpo.experiments.study_check import Check, mistakes

__all__ = ["BASE", "Cell", "Study", "load_study", "study_names"]

BASE = "base"
"""What pi_0 is called beside the methods."""

_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    """One run of a study, or one fixed agent of it."""

    environment: str
    """Label among the study's environments."""
    method: str
    """Label among its methods, or the name of a yardstick."""
    seed: int
    """Seed."""

    def __str__(self) -> str:
        return f"{self.environment}/{self.method}/seed-{self.seed}"

    @property
    def is_yardstick(self) -> bool:
        """Whether a fixed agent plays it, so that there is no run."""
        return self.method in get_args(YardstickName)

    def folder(self, study: Path) -> Path:
        """Its run folder in a study's folder; that of a yardstick only holds records."""
        return study / ("yardsticks" if self.is_yardstick else "cells") / str(self)


@dataclass(frozen=True, slots=True)
class Study:
    """What is compared, on what, and how often."""

    plan: Mapping[str, Any]
    """Settings that all cells share: a mapping, a YAML file (relative to the study's), or the name
    of a preset. Its seed has no say."""
    environments: Mapping[str, Mapping[str, Any] | None]
    """By label, settings on top of the plan's, e.g. `casino: {environment: {options: {…}}}`; the
    label is the game's name where `environment.name` gives none."""
    methods: Mapping[str, Mapping[str, Any] | None]
    """By label, settings on top of these, e.g. `mt_kto: {method: {name: mt_kto}}`; the shuffled
    control is `{q: {shuffle_returns: true}}`."""
    name: str = "study"
    """What it is called; names its default folder."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Seeds of the runs. The kernels stay the same (`collect.data_seed`), so that methods and seeds
    can be compared kernel by kernel."""
    reference: str | None = None
    """Method that the others are compared with, and whose pi_0 is `base`; null: the first."""
    yardsticks: tuple[YardstickName, ...] | None = None
    """Fixed agents beside the methods; null: all that can play the game and know its partner."""

    def __post_init__(self) -> None:
        """Refuse labels that can't be folders, and comparisons of nothing."""
        found = broken(
            self,
            name=(lambda v: bool(_LABEL.fullmatch(v)), "letters, digits and ._+-, as for a folder"),
            seeds=(
                # Columns of kernels.parquet hold 64 bits.
                lambda v: bool(v) and len(set(v)) == len(v) and min(v) >= 0 and max(v) < 2**63,
                "at least one, each 0 or more, below 2^63 and given once",
            ),
            environments=(bool, "at least one"),
            methods=(bool, "at least one"),
        )
        for part in ("environments", "methods"):
            found += [
                f"{part}: the label {label!r} names a folder; accepted: letters, digits and ._+-"
                for label in getattr(self, part)
                if not _LABEL.fullmatch(label)
            ]
        reserved = {BASE, *get_args(YardstickName)} & set(self.methods)
        found += [f"methods: {n!r} is taken; accepted: another label" for n in sorted(reserved)]
        if self.reference is not None and self.reference not in self.methods:
            known = ", ".join(self.methods)
            found.append(f"reference: given {self.reference!r}; accepted: null, or one of {known}")
        if found:
            raise ConfigError("\n".join(found))

    @property
    def against(self) -> str:
        """The reference's label."""
        return self.reference or next(iter(self.methods))

    def plans(self) -> dict[Cell, Plan]:
        """Every cell and its plan, fixed agents last.

        They come seed by seed, so that an unfinished study has few seeds of all methods rather than
        all seeds of some.
        """
        kinds = {
            (e, m): self.plan_of(e, None if m in get_args(YardstickName) else m)
            for e in self.environments
            for m in (*self.methods, *self._yardsticks_of(e))
        }
        cells = [Cell(e, m, s) for s in self.seeds for e, m in kinds]
        cells.sort(key=lambda c: c.is_yardstick)
        return {c: _seeded(kinds[c.environment, c.method], c) for c in cells}

    def _yardsticks_of(self, environment: str) -> tuple[YardstickName, ...]:
        wanted = get_args(YardstickName) if self.yardsticks is None else self.yardsticks
        plan = self.plan_of(environment, None)
        game = environments.make(plan.environment.name, **plan.environment.options)
        able = []
        for name in wanted:
            try:
                check_seats(game, Yardstick(name), partner_of(plan.partner))
            except ConfigError:
                if self.yardsticks is not None:
                    raise
            else:
                able.append(name)
        return tuple(able)

    def plan_of(self, environment: str, method: str | None) -> Plan:
        """The plan of all runs of a method in an environment, but for their seed.

        Args:
            environment: Label.
            method: Label; None: without the settings of any.
        """
        own = self.methods[method] if method is not None else None
        values = cell_values(self.plan, environment, self.environments[environment], own)
        return parse(Plan, values, f"the plan of {environment} with {method or 'no method'}")

    def plan_of_cell(self, cell: Cell) -> Plan:
        """The plan of one cell; a fixed agent plays without a method's settings."""
        method = None if cell.is_yardstick else cell.method
        return _seeded(self.plan_of(cell.environment, method), cell)


def study_names() -> tuple[str, ...]:
    """Names of the studies that come with the package."""
    folder = resources.files("iterpo.experiments") / "studies"
    return tuple(sorted(f.name.removesuffix(".yaml") for f in folder.iterdir()))


def load_study(
    source: str | Path,
    overrides: Sequence[str] = (),
    check: Check = lambda _: (),
) -> Study:
    """The study of a YAML file or a built-in one, with ``a.b=c`` settings applied on top.

    Args:
        source: Path of a file, or the name of a built-in study. A file of that very name wins.
        overrides: Settings of the study, e.g. ``seeds=[1, 2]`` or ``plan.rounds=2``.
        check: Gives further mistakes of a plan's plain values (``load_plan``).

    Raises:
        ConfigError: with all mistakes of the study and of its cells' plans at once.
    """
    path = Path(source)
    if path.is_file():
        values = read_yaml(path)
    elif str(source) in study_names():
        with resources.as_file(resources.files("iterpo.experiments") / "studies") as folder:
            values = read_yaml(folder / f"{source}.yaml")
    else:
        raise ConfigError(
            f"no study at {str(source)!r}: give a YAML file, the folder of a study, or one of the "
            f"built-in studies: {', '.join(study_names())}."
        )
    if isinstance(given := values.get("plan"), str):
        beside = path.parent / given
        values["plan"] = plan_values(beside if beside.is_file() else given)
    values = override(values, overrides)
    named = f"the study {source}" + (f" with {', '.join(overrides)}" if overrides else "")
    return parse(Study, values, named, list(mistakes(values, check)))


def _seeded(plan: Plan, cell: Cell) -> Plan:
    # Round 0 is drawn by the plan's seed alone, so all methods of a seed can share its batch.
    return replace(plan, seed=cell.seed, name=str(cell).replace("/", "-"))
