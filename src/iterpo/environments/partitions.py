"""Dividing a pool of items by rule B: what games of that kind share, box by box and point by point.

A game says what it is made of in a ``Partitioning``; its facts, prompts and scenarios stay its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING

from iterpo.domain import Ending, Outcome, Role, Turn
from iterpo.environments import bargain as bargaining
from iterpo.environments import boxed
from iterpo.environments.base import PromptStyle
from iterpo.environments.claims import said_share
from iterpo.environments.remembered import remembered

if TYPE_CHECKING:
    from numpy.random import Generator

__all__ = [
    "Counts",
    "PartitionBargain",
    "Partitioning",
    "Written",
    "box_rules",
    "points",
    "written",
]

Counts = tuple[int, ...]
"""A number per item, in the order of the game's items."""
Written = tuple[Counts, Counts]
"""(MINE, THEIRS) as the writer put it."""


@dataclass(frozen=True, slots=True)
class Partitioning:
    """What a game of dividing fixes for all its scenarios."""

    code: int
    """Number of the environment."""
    items: tuple[str, ...]
    """Items as boxes name them, in order."""
    nouns: tuple[str, ...]
    """Items as people talk of several or much of them, in the same order; other names of a
    substance after a slash."""
    unit: int
    """Points that make a reward of 1."""
    limit: int
    """Largest number of messages after the opening."""
    echo: boxed.Echo = "both"
    """Which copies of the standing proposal close it."""
    strict_order: bool = False
    """Whether a box must name the items in order."""
    style: PromptStyle = "full"
    """Wording of the scripted partner."""
    mass: bool = False
    """Whether nouns are substances ("water"), so that claims read "the water", not "two waters"."""

    def act(self, text: str, pool: Counts) -> boxed.Act[Written]:
        """What one message does."""
        return _act(text, self.items, pool, self.strict_order)

    def talk(self, turns: Sequence[Turn], pool: Counts) -> boxed.Talk[Written]:
        """The standing proposal and how the conversation ended, folded from its messages."""
        return boxed.propose_accept(
            turns, lambda text: self.act(text, pool), _mirror, self.limit, self.echo
        )

    def read(self, turns: Sequence[Turn], pool: Counts, values: Counts) -> Outcome | None:
        """The outcome, or None while they still talk.

        Args:
            turns: Transcript, opening first.
            pool: Items to divide.
            values: Points of the agent per item.
        """
        talk = self.talk(turns, pool)
        if talk.ending is None:
            return None
        if talk.ending is not Ending.AGREED or talk.terms is None:
            return talk.without_deal()
        share = talk.terms[0] if talk.proposer is Role.AGENT else talk.terms[1]
        terms = dict(zip(self.items, share, strict=True))
        reward = points(share, values) / self.unit
        return Outcome(Ending.AGREED, reward, terms, talk.closed_by, talk.message)


@dataclass(frozen=True)
class PartitionBargain:
    """The partner's side of one scenario; terms are the agent's share, a count per item."""

    game: Partitioning
    """What is divided, and how it is written."""
    pool: Counts
    """Items to divide."""
    agent_values: Counts
    """Values of the agent; used for the bound only, never for the partner's decisions."""
    partner_values: Counts
    """Values of the partner."""
    aspirations: tuple[float, ...]
    """alpha_k in points, k = 1..K."""

    talks_first = True
    rejection = "\\boxed{REJECT}"

    @property
    def code(self) -> int:
        """Number of the environment, for the wording's seed."""
        return self.game.code

    @property
    def style(self) -> PromptStyle:
        """Prompt style, for the wording."""
        return self.game.style

    @property
    def preference(self) -> str:
        """The partner's true ranking in words, without numbers."""
        compact = self.style == "compact"
        names = self.game.items if compact else tuple(n.split("/")[0] for n in self.game.nouns)
        return _ranking(names, self.partner_values, compact)

    def standing(self, turns: Sequence[Turn], role: Role) -> Counts | None:
        """The agent's share in the proposal of a side, where one stands."""
        proposal = self.game.talk(turns, self.pool).offers.get(role)
        if proposal is None:
            return None
        return proposal[0] if role is Role.AGENT else proposal[1]

    def boxed_offer(self, text: str) -> Counts | None:
        """The share that a message of the agent boxes for itself."""
        terms = self.game.act(text, self.pool).terms
        return terms[0] if terms else None

    def plain_offer(self, text: str, turns: Sequence[Turn] = ()) -> Counts | None:  # noqa: ARG002
        """The share that a message of the agent claims in words."""
        names = self.game.nouns if self.game.mass else self.game.items
        return said_share(boxed.outside(text), names, self.pool, self.game.mass)

    def worth(self, terms: Counts) -> float:
        """Points of the partner."""
        return points(_rest(self.pool, terms), self.partner_values)

    def reward(self, terms: Counts) -> float:
        """Reward of the agent."""
        return points(terms, self.agent_values) / self.game.unit

    def counter(
        self, aspiration: float, towards: Counts | None, standing: Counts | None
    ) -> Counts | None:
        """The offer nearest to the agent's among those worth the aspiration; None if none is left.

        Without an offer of the agent: the one that leaves it most items.
        """
        worth = _enumerated(self.pool, self.partner_values)
        good = [s for s, w in worth if w >= aspiration and not self.clashes(s, standing)]

        def far(share: Counts) -> int:
            if towards is None:
                return -sum(share)
            return sum(abs(a - b) for a, b in zip(share, towards, strict=True))

        return min(good, key=lambda s: (far(s), -self.worth(s), s), default=None)

    def clashes(self, terms: Counts, standing: Counts | None) -> bool:
        """Whether the partner's box would read like the agent's standing one, word for word."""
        return standing is not None and _rest(self.pool, terms) == standing

    def best(self, aspiration: float) -> Counts:
        """The agent's best share among those worth the aspiration to the partner."""
        return _best(self.pool, self.agent_values, self.partner_values, aspiration)

    def reach(self, aspiration: float) -> float:
        """M(a): the agent's reward at ``best``."""
        return self.reward(self.best(aspiration))

    def box(self, terms: Counts, role: Role) -> str:
        """The box in which ``role`` proposes the terms."""
        rest = _rest(self.pool, terms)
        mine, theirs = (terms, rest) if role is Role.AGENT else (rest, terms)
        items = self.game.items
        return boxed.agreed(f"MINE: {written(items, mine)}; THEIRS: {written(items, theirs)}")

    def acceptance(self, terms: Counts, role: Role) -> str:  # noqa: ARG002
        """The box that closes at the other side's standing terms."""
        return "\\boxed{ACCEPT}"

    def draw_terms(self, rng: Generator) -> Counts:
        """Any valid terms."""
        return tuple(int(rng.integers(0, c + 1)) for c in self.pool)

    def j_star(self, gamma: float) -> dict[str, float]:
        """Best attainable return by discount unit (``message``: an upper bound)."""
        reach = [self.reach(a) for a in self.aspirations]
        return bargaining.j_star(gamma, reach, range(2, len(reach) + 1))


def points(share: Counts, values: Counts) -> int:
    """What a share is worth.

    >>> points((3, 0, 1), (2, 0, 2))
    8
    """
    return sum(n * v for n, v in zip(share, values, strict=True))


def written(items: tuple[str, ...], counts: Sequence[int | str], equals: str = "=") -> str:
    """Counts as a box has them.

    >>> written(("book", "hat"), (2, 1))
    'book=2 hat=1'
    """
    return " ".join(f"{item}{equals}{n}" for item, n in zip(items, counts, strict=True))


def box_rules(items: tuple[str, ...], total: str) -> str:
    """What prompts tell about the boxes.

    Args:
        items: As boxes name them.
        total: The whole pool in words.
    """
    form = written(items, "n" * len(items))
    return f"""\
The boxes:
1. Propose: \\boxed{{AGREED: MINE: {form}; THEIRS: {form}}}. MINE is \
what you, the writer, get; THEIRS is what the other person gets. Put whole numbers for n, name all \
three items on both sides in the order {", ".join(items)} (also when it is 0), and let the two \
sides add up exactly to {total}.
2. Accept: \\boxed{{ACCEPT}} takes the other person's latest proposal and closes the deal at it.
3. Reject: \\boxed{{REJECT}} turns the standing proposal down; keep talking or propose anew.
4. A deal closes only by one side's proposal and the other side's \\boxed{{ACCEPT}}. Agreeing in \
words, or silence, closes nothing. A new proposal replaces the one that stands.
5. If there is no hope of agreeing: \\boxed{{NO DEAL}}.
6. If the standing proposal is not good enough for you, go on negotiating until you find a better \
one."""


def _mirror(proposal: Written) -> Written:
    return proposal[1], proposal[0]


def _rest(pool: Counts, share: Counts) -> Counts:
    return tuple(c - s for c, s in zip(pool, share, strict=True))


@remembered
def _act(text: str, items: tuple[str, ...], pool: Counts, strict: bool) -> boxed.Act[Written]:
    return boxed.act(
        text, lambda body: boxed.partition(body, items, pool, strict), boxed.PROPOSAL_TOKENS
    )


@lru_cache(maxsize=4096)
def _enumerated(pool: Counts, partner_values: Counts) -> tuple[tuple[Counts, int], ...]:
    """Every share of the agent with the partner's points for the rest, in lexicographic order."""
    shares = product(*(range(c + 1) for c in pool))
    return tuple((s, points(_rest(pool, s), partner_values)) for s in shares)


@lru_cache(maxsize=16384)
def _best(pool: Counts, agent: Counts, partner: Counts, aspiration: float) -> Counts:
    worth = _enumerated(pool, partner)
    return min(
        (s for s, w in worth if w >= aspiration),
        key=lambda s: (-points(s, agent), -points(_rest(pool, s), partner), s),
    )


@lru_cache(maxsize=4096)
def _ranking(names: tuple[str, ...], values: Counts, compact: bool) -> str:
    levels = sorted(set(values), reverse=True)
    tiers = [[i for i, v in zip(names, values, strict=True) if v == level] for level in levels]
    if compact:
        return ">".join("=".join(tier) for tier in tiers)
    words = [" and ".join(tier) for tier in tiers]
    if len(words) == 1:
        return f"{names[0].capitalize()}, {names[1]} and {names[2]} all matter equally to me"
    between = f", then {words[1]}" if len(words) == 3 else ""
    return f"I care most about {words[0]}{between}, and least about {words[-1]}"
