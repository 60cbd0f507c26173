"""Games over a few issues with a list of options each: how deals are written, and bargained over.

A deal picks one option per issue. An ``Agenda`` reads deals in boxes and in plain words; an
``IssueBargain`` is the scripted partner's side. Every deal is one cell of a grid, so that the best
deals and the nearest ones are found by looking at all of them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from iterpo.domain import Role, Turn
from iterpo.environments import bargain as bargaining
from iterpo.environments import boxed
from iterpo.environments.base import PromptStyle
from iterpo.environments.remembered import remembered

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Agenda", "Issue", "IssueBargain", "Sheet", "Terms", "points"]

LIMIT = 10
TOLERANCE = 1e-12

Terms = tuple[int, ...]
"""An option per issue, counted from 0."""
Sheet = tuple[tuple[float, ...] | tuple[tuple[float, ...], ...], ...]
"""One side's points per issue and option; nested where they depend on the issue before, too."""


@dataclass(frozen=True, slots=True)
class Issue:
    """One thing to settle."""

    name: str
    """As it is written in boxes."""
    options: tuple[str, ...]
    """As they are written in boxes, in order."""
    key: str
    """Pattern of the names that it goes by, case-insensitive."""
    before: str = ""
    """Pattern of what may stand in front of an option, behind the ``=``."""
    after: str = ""
    """Pattern of what may follow an option."""
    bare: str | None = None
    """In plain words, what may stand in front of an option in place of ``name=``; None: nothing."""
    gap: int = 1
    """Distance between different options; where they are ordered, between neighbours."""
    ordered: bool = False
    """Whether options far apart in the list are far apart."""

    @property
    def choice(self) -> str:
        """Pattern of its options."""
        return "|".join(map(re.escape, self.options))


_CLAUSE = re.compile(r"[;!?\n]|[.,](?=\s|$)")
_DENIES = re.compile(
    r"\b(?:no|not|never|cannot|nor|neither|without|than|except|instead|hate|refuse|reject"
    r"|impossible|unacceptable|out of the question|(?:any|every)thing but|all but"
    r"|too (?:much|many|little|few|high|low|long|far))\b|n't\b",
    re.IGNORECASE,
)
_EITHER = re.compile(r"\bor\b", re.IGNORECASE)
_SEPARATOR = re.compile(r" ?[,;] ?| ")
_FLAGS = re.IGNORECASE | re.ASCII


@dataclass(frozen=True, eq=False)
class Agenda:
    """The issues of a game, public to both sides; compared by identity."""

    issues: tuple[Issue, ...]
    """In the order in which boxes are written."""
    gives: int | None = None
    """Issue that the partner gives way on, towards its first option, while it has heard no offer.

    None: it then asks for its own best deal.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of options per issue."""
        return tuple(len(issue.options) for issue in self.issues)

    def act(self, text: str) -> boxed.Act[Terms]:
        """What a message does under rule A."""
        return _act(self, text)

    def talk(self, turns: Sequence[Turn], closing: boxed.Closing) -> boxed.Talk[Terms]:
        """The fold of a transcript: live boxed deals and how it ended."""
        return boxed.matching_boxes(turns, self.act, LIMIT, closing)

    def read(self, body: str) -> Terms | None:
        """Terms of a box: ``name=option`` once for each issue, in any order; None if malformed.

        Blanks, commas or semicolons stand between them.
        """
        found: dict[int, int] = {}
        at = 0
        while pair := self._pair.match(body, at):
            i, option = self._option(pair)
            if option is None or i in found:
                return None
            found[i] = option
            if pair.end() == len(body):
                break
            separator = _SEPARATOR.match(body, pair.end())
            if separator is None:
                return None
            at = separator.end()
        if pair is None or len(found) < len(self.issues):
            return None
        return tuple(found[i] for i in range(len(self.issues)))

    def said(self, text: str) -> tuple[int | None, ...] | None:
        """Options that a message offers outside its boxes, None for issues it leaves out.

        None in all if it names no option, two for one issue, one of a range, one that does not
        exist, some with an "or" between them, or one in a clause with a "not" or the like.
        """
        return _said(self, text)

    def written(self, terms: Terms) -> str:
        """Terms as they stand in a box."""
        pairs = zip(self.issues, terms, strict=True)
        return " ".join(f"{issue.name}={issue.options[option]}" for issue, option in pairs)

    def terms(self, cell: int) -> Terms:
        """The deal at an index of the tables, in which deals stand in lexicographic order."""
        out = []
        for size in reversed(self.shape):
            cell, option = divmod(cell, size)
            out.append(option)
        return tuple(reversed(out))

    def distances(self, terms: Terms) -> NDArray[np.int64]:
        """Distance of every deal from one, in whole units; shape (deals,)."""
        import numpy as np  # importing an environment stays light

        total = np.zeros((), np.int64)
        for issue, option in zip(self.issues, terms, strict=True):
            away = np.abs(np.arange(len(issue.options)) - option)
            total = total[..., None] + issue.gap * (away if issue.ordered else away != 0)
        return total.ravel()

    def _option(self, found: re.Match[str]) -> tuple[int, int | None]:
        """(issue, option) of a match of one of the patterns below; option None: there is none."""
        group = found.lastgroup
        if group is None:
            return -1, None
        i = int(group[1:])
        return i, self._lookup[i][found[group].lower()]

    @cached_property
    def _lookup(self) -> tuple[dict[str, int], ...]:
        return tuple({o.lower(): n for n, o in enumerate(i.options)} for i in self.issues)

    @cached_property
    def _pair(self) -> re.Pattern[str]:
        pairs = (
            f"(?:{issue.key}) ?= ?{issue.before}(?P<k{i}>{issue.choice}){issue.after}"
            for i, issue in enumerate(self.issues)
        )
        return re.compile(f"(?:{'|'.join(pairs)})(?=$|[ ,;])", _FLAGS)

    @cached_property
    def _mention(self) -> re.Pattern[str]:
        end = r"(?!\w|[.,–-][0-9]| ?(?:-|–|to|or) ?[$]?[0-9])"
        ways = []
        for i, issue in enumerate(self.issues):
            option = f"{issue.before}(?P<k{i}>{issue.choice}){issue.after}{end}"
            ways.append(f"(?:{issue.key}) ?[=:] ?(?:{option})?")
            if issue.bare:  # a letter: whatever number follows is meant as an option
                ways.append(f"{issue.bare}(?:(?P<b{i}>{issue.choice}){end}|[0-9])")
            elif issue.bare is not None:
                ways.append(f"(?P<b{i}>{issue.choice}){end}")
        # "my manager" and "our sales" are no positions.
        return re.compile(rf"(?<![\w$])(?<!my )(?<!our )(?:{'|'.join(ways)})", _FLAGS)


@remembered
def _act(agenda: Agenda, text: str) -> boxed.Act[Terms]:
    return boxed.act(text, agenda.read, boxed.MATCHING_TOKENS)


@remembered
def _said(agenda: Agenda, text: str) -> tuple[int | None, ...] | None:
    said: dict[int, int] = {}
    for clause in _CLAUSE.split(boxed.outside(text).replace("’", "'")):
        mentions = [agenda._option(found) for found in agenda._mention.finditer(clause)]
        if mentions and _DENIES.search(clause):
            return None
        if len(mentions) > 1 and _EITHER.search(clause):
            return None
        for i, option in mentions:
            if option is None or said.setdefault(i, option) != option:
                return None
    return tuple(said.get(i) for i in range(len(agenda.issues))) if said else None


def points(sheet: Sheet, terms: Terms) -> float:
    """Points of a deal, added up in the order of the issues.

    >>> points(((0.5, 0.0), ((1.0, 2.0), (3.0, 4.0))), (0, 1))
    2.5
    """
    total = 0.0
    for i, part in enumerate(sheet):
        value = part[terms[i - 1]] if isinstance(part[0], tuple) else part
        assert isinstance(value, tuple)  # noqa: S101
        total += value[terms[i]]
    return total


@lru_cache(maxsize=512)
def _utilities(sheet: Sheet) -> NDArray[np.float64]:
    """Points of every deal; the same sums as ``points``, so that both agree to the last bit."""
    import numpy as np  # importing an environment stays light

    total = np.zeros(())
    for part in sheet:
        values = np.asarray(part)
        total = total[..., None] + values
    return np.ascontiguousarray(total).ravel()


def _favourite(cells: NDArray[np.int64], *scores: NDArray[Any]) -> int:
    """The cell with the largest first score, then second, …; of equals the first."""
    for score in scores:
        of_cells = score[cells]
        cells = cells[of_cells >= of_cells.max() - TOLERANCE]
    return int(cells[0])


@lru_cache(maxsize=16384)
def _best(agent: Sheet, partner: Sheet, aspiration: float) -> int:
    import numpy as np  # importing an environment stays light

    worth = _utilities(partner)
    return _favourite(np.flatnonzero(worth >= aspiration), _utilities(agent), worth)


@dataclass(frozen=True)
class IssueBargain:
    """The partner's side of one scenario under rule A."""

    code: int
    """Number of the environment."""
    style: PromptStyle
    """Prompt style, for the wording."""
    closing: boxed.Closing
    """Closing rule of the game."""
    agenda: Agenda
    """What there is to settle."""
    agent: Sheet
    """Points of the agent; used for the bound only, never for the partner's decisions."""
    partner: Sheet
    """Points of the partner."""
    aspirations: tuple[float, ...]
    """alpha_k in points of the partner, k = 1..K."""
    preference: str
    """The partner's true ranking in words, without numbers."""
    unit: float = 1.0
    """Points of the agent that are worth a reward of 1."""
    least: float = 0.0
    """Points below which a deal pays the agent nothing."""

    talks_first = True
    rejection = ""

    def standing(self, turns: Sequence[Turn], role: Role) -> Terms | None:
        """The live boxed offer of a side."""
        return self.agenda.talk(turns, self.closing).offers.get(role)

    def boxed_offer(self, text: str) -> Terms | None:
        """The terms that a message boxes."""
        return self.agenda.act(text).terms

    def plain_offer(self, text: str, turns: Sequence[Turn] = ()) -> Terms | None:
        """The terms that a message of the agent offers in words.

        Issues that it leaves out are those of the partner's own last box in ``turns``; without
        one it is no offer.
        """
        said = self.agenda.said(text)
        if said is None:
            return None
        own = self.standing(turns, Role.PARTNER) if None in said else ()
        if own is None:
            return None
        return tuple(own[i] if option is None else option for i, option in enumerate(said))

    def worth(self, terms: Terms) -> float:
        """Points of the partner."""
        return points(self.partner, terms)

    def reward(self, terms: Terms) -> float:
        """Reward of the agent."""
        total = points(self.agent, terms)
        return total / self.unit if total >= self.least else 0.0

    def counter(
        self,
        aspiration: float,
        towards: Terms | None,
        standing: Terms | None,  # noqa: ARG002
    ) -> Terms:
        """The deal nearest to the agent's among those worth the aspiration."""
        import numpy as np  # importing an environment stays light

        worth, agenda = _utilities(self.partner), self.agenda
        if towards is not None:
            good = np.flatnonzero(worth >= aspiration)
            return agenda.terms(_favourite(good, -agenda.distances(towards), worth))
        own = agenda.terms(_favourite(np.arange(len(worth)), worth))
        if agenda.gives is None:
            return own
        for option in range(own[agenda.gives]):
            less = (*own[: agenda.gives], option, *own[agenda.gives + 1 :])
            if self.worth(less) >= aspiration:
                return less
        return own

    def clashes(self, terms: Terms, standing: Terms | None) -> bool:  # noqa: ARG002
        """Whether boxing the terms could be taken for an echo (never under rule A)."""
        return False

    def best(self, aspiration: float) -> Terms:
        """The agent's best deal among those worth the aspiration to the partner."""
        return self.agenda.terms(_best(self.agent, self.partner, aspiration))

    def reach(self, aspiration: float) -> float:
        """M(a): the agent's reward at ``best``."""
        return self.reward(self.best(aspiration))

    def box(self, terms: Terms, role: Role) -> str:  # noqa: ARG002
        """The box that proposes the terms."""
        return boxed.agreed(self.agenda.written(terms))

    def acceptance(self, terms: Terms, role: Role) -> str:
        """The box that closes at the other side's standing terms."""
        return self.box(terms, role)

    def draw_terms(self, rng: np.random.Generator) -> Terms:
        """Any valid terms."""
        return tuple(int(rng.integers(size)) for size in self.agenda.shape)

    def j_star(self, gamma: float) -> dict[str, float]:
        """Best attainable return by discount unit (``message``: an upper bound).

        Empty under unilateral closing.
        """
        if self.closing == "unilateral":
            return {}
        reach = [self.reach(a) for a in self.aspirations]
        return bargaining.j_star(gamma, reach, range(2, len(reach) + 1))
