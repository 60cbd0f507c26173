"""What checking a plug-in showed: what was tried, what could not be, and what is wrong."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from iterpo.errors import MissingDataError

__all__ = ["Findings", "Report"]

_SHOWN = 240


@dataclass(frozen=True, slots=True)
class Report:
    """Result of a check; printed, it is a page for people."""

    name: str
    """Name of what was checked."""
    kind: str
    """What it is: ``an environment`` or ``a method``."""
    checked: Mapping[str, int]
    """Cases tried by property."""
    unchecked: Mapping[str, str]
    """Why a property, or a part of it, was not tried, and what to do."""
    endings: Mapping[str, int]
    """How an environment's plays ended, by ``Ending``."""
    remarks: tuple[str, ...]
    """What was measured, for people."""
    violations: Mapping[str, str]
    """First counter-example by broken rule, named ``property: what must hold``; empty if none."""

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.violations

    def __str__(self) -> str:
        """The report as text."""
        head = "keeps" if self.ok else "breaks"
        lines = [f"{self.name} {head} what {self.kind} promises"]
        lines += [f"  WRONG {name}\n        {example}" for name, example in self.violations.items()]
        lines += [f"  not checked: {name}: {why}" for name, why in self.unchecked.items()]
        tried = ", ".join(f"{name} ({n})" for name, n in self.checked.items())
        lines += [f"  {remark}" for remark in self.remarks] + [f"  checked: {tried}"]
        if self.kind == "an environment":
            ended = ", ".join(f"{name} {n}" for name, n in self.endings.items()) or "none"
            lines.append(f"  plays ended: {ended}")
        return "\n".join(lines)


class Findings:
    """Collects what the checks find; ``report`` sums it up."""

    def __init__(self) -> None:
        """Empty."""
        self._checked: Counter[str] = Counter()
        self._unchecked: dict[str, str] = {}
        self._endings: Counter[str] = Counter()
        self._remarks: list[str] = []
        self._wrong: dict[str, list[str]] = {}

    def expect(self, rule: str, holds: object, *example: object) -> bool:
        """Note one case of a rule, ``"property: what must hold"``, and what it was tried on."""
        self._checked[rule.partition(":")[0]] += 1
        if not holds:
            self._wrong.setdefault(rule, []).append(" ".join(map(_told, example)))
        return bool(holds)

    def unchecked(self, what: str, why: str) -> None:
        """Note what could not be tried."""
        self._unchecked.setdefault(what, why)

    def ended(self, ending: str) -> None:
        """Count the ending of a play."""
        self._endings[ending] += 1

    def remark(self, text: str) -> None:
        """Keep what was measured."""
        self._remarks.append(text)

    @contextmanager
    def calling(self, what: str, *example: object) -> Iterator[None]:
        """Whatever is raised inside is a breach of ``robustness``, not a crash of the check."""
        raised: tuple[object, ...] = ()
        try:
            yield
        except MissingDataError:
            raise  # nothing can be said without the data
        except Exception as error:
            raised = (f"{type(error).__name__}: {error}", _place(error))
        self.expect(f"robustness: {what} does not raise", not raised, *raised, *example)

    def report(self, name: str, kind: str = "an environment") -> Report:
        """All of it."""
        wrong = {
            rule: examples[0] + (f" (and {len(examples) - 1} more)" if examples[1:] else "")
            for rule, examples in self._wrong.items()
        }
        return Report(
            name, kind, self._checked, self._unchecked, self._endings, tuple(self._remarks), wrong
        )


def _place(error: Exception) -> str:
    """Where it was raised: the last line of theirs, if there is one."""
    ours = Path(__file__).parents[1]
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [f for f in frames if ours not in Path(f.filename).parents]
    foreign = [f for f in theirs if "site-packages" not in f.filename] or theirs or frames
    return f"({foreign[-1].filename}, line {foreign[-1].lineno})" if foreign else ""


def _told(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
