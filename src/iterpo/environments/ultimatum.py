r"""Ultimatum: two players split an amount of money over a few rounds, or lose it.

Data sheet
    Roles: agent = Player 1, who holds the pool and proposes; partner = Player 2, who responds.
    Private information: none.
    Protocol: ``\boxed{AGREED: split=$X}``, X always Player 1's share; a deal closes when a side
        boxes what stands in the other's latest valid box (rule A); ``\boxed{NO DEAL}`` ends it.
    Scenarios: generated, 5 pools x 3 numbers of rounds; no data set, no licence.
    Held out: the pairs (100, 6), (1000, 8), (10000, 4).
    Reward: X / (pool / 2) at a deal, in [0, 2]; otherwise 0.
    End: deal, NO DEAL, or ``rounds`` messages after the opening.
    Paper: appendix D.2.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING, Literal

from iterpo.domain import Ending, Outcome, Role, Scenario, Split, Turn, View
from iterpo.environments import bargain as bargaining
from iterpo.environments import boxed
from iterpo.environments.base import PromptStyle
from iterpo.environments.claims import clauses, denies
from iterpo.environments.remembered import remembered
from iterpo.errors import DataError

if TYPE_CHECKING:
    from numpy.random import Generator

__all__ = ["SplitBargain", "Ultimatum", "UltimatumOptions"]

CODE = 2
POOLS = (100, 500, 1000, 5000, 10000)
ROUNDS = (4, 6, 8)
HELDOUT = frozenset({(100, 6), (1000, 8), (10000, 4)})
LIMIT = 10


@dataclass(frozen=True, slots=True)
class UltimatumOptions:
    """Settings of the game."""

    closing: boxed.Closing = "bilateral"
    """``unilateral``: the first valid box closes at once (exploitable; for comparison)."""
    round_unit: Literal["message", "exchange"] = "message"
    """What a round is: one message, or one by each side (then at most 10 messages)."""
    enforce_final_turn: bool = False
    """Whether a new split boxed in a side's own last message is ignored."""
    holdout: Literal["pairs", "none"] = "pairs"
    """``none``: both splits use all 15 pairs, so that nothing is held out."""
    prompt_style: PromptStyle = "full"
    """Rules in prose, or a few tokens for small models."""


class Ultimatum:
    """The game as pure functions of (scenario, transcript)."""

    name = "ultimatum"
    code = CODE
    options_type = UltimatumOptions

    def __init__(self, options: UltimatumOptions | None = None) -> None:
        self.options = options or UltimatumOptions()

    def scenarios(self, split: Split, n: int, data_seed: int = 42) -> tuple[Scenario, ...]:  # noqa: ARG002
        """The pairs in order of (pool, rounds), repeated with replicate 0, 1, … until ``n``."""
        pairs = [p for p in product(POOLS, ROUNDS) if self._in_split(p, split)]
        out = []
        for i in range(n):
            replicate, (pool, rounds) = i // len(pairs), pairs[i % len(pairs)]
            kernel = f"ult-p{pool}-r{rounds}-{replicate}"
            out.append(Scenario(kernel, self.name, split, {"pool": pool, "rounds": rounds}))
        return tuple(out)

    def _in_split(self, pair: tuple[int, int], split: Split) -> bool:
        return self.options.holdout == "none" or (pair in HELDOUT) == (split is Split.HELDOUT)

    def limit(self, scenario: Scenario) -> int:
        """Largest number of messages after the opening."""
        rounds = _facts(scenario)[1]
        return rounds if self.options.round_unit == "message" else min(2 * rounds, LIMIT)

    def opening(self, scenario: Scenario) -> Turn:
        """The proposer's scripted greeting; it holds no number besides the pool."""
        pool = _facts(scenario)[0]
        if self.options.prompt_style == "compact":
            return Turn(Role.AGENT, f"Split ${pool}?", scripted=True)
        text = (
            f"Hi! There is ${pool} for the two of us to split. I am holding it and I get to "
            "propose first. Without an agreement both of us leave with nothing. "
            "Which split would seem fair to you?"
        )
        return Turn(Role.AGENT, text, scripted=True)

    def view(self, scenario: Scenario, role: Role, turns: Sequence[Turn]) -> View:
        """What one player sees; nothing is private."""
        pool, rounds = _facts(scenario)
        return View(role, _prompt(self.options, role, pool, rounds), tuple(turns))

    def read(self, scenario: Scenario, turns: Sequence[Turn]) -> Outcome | None:
        """The outcome, or None while the players still talk."""
        pool = _facts(scenario)[0]
        talk = self.talk(scenario, turns)
        if talk.ending is None:
            return None
        flags = _flags(turns[: talk.message + 1], pool)
        if talk.ending is not Ending.AGREED or talk.terms is None:
            return talk.without_deal(flags)
        return Outcome(
            Ending.AGREED,
            talk.terms / (50 * pool),
            {"split": boxed.money(talk.terms)},
            talk.closed_by,
            talk.message,
            flags,
        )

    def talk(self, scenario: Scenario, turns: Sequence[Turn]) -> boxed.Talk[int]:
        """The fold behind ``read``: live boxed splits and how it ended, in cents."""
        pool = _facts(scenario)[0]
        options = self.options
        return boxed.matching_boxes(
            turns,
            lambda text: _act(text, pool),
            self.limit(scenario),
            options.closing,
            options.enforce_final_turn,
        )

    def bargain(self, scenario: Scenario, partner_seed: int = 0) -> SplitBargain:
        """What the scripted responder needs, for one scenario and one private draw."""
        draw = bargaining.private_draw(partner_seed, CODE, scenario.kernel_id)
        pool, n_turns = _facts(scenario)[0], self.limit(scenario) // 2
        curve = bargaining.aspirations(
            (0.20 + 0.25 * draw.u) * pool, 0.65 * pool, draw.beta, n_turns
        )
        return SplitBargain(self, scenario, pool, tuple(float(bargaining.ceil(a)) for a in curve))


@dataclass(frozen=True)
class SplitBargain:
    """The responder's side of one scenario; terms are Player 1's share in cents."""

    game: Ultimatum
    """The environment."""
    scenario: Scenario
    """Kernel."""
    pool: int
    """Dollars."""
    aspirations: tuple[float, ...]
    """alpha_k in dollars that the responder keeps, k = 1..K."""

    code = CODE
    talks_first = False
    preference = ""
    rejection = ""

    @property
    def style(self) -> PromptStyle:
        """Prompt style, for the wording."""
        return self.game.options.prompt_style

    def standing(self, turns: Sequence[Turn], role: Role) -> int | None:
        """The live boxed offer of a side."""
        return self.game.talk(self.scenario, turns).offers.get(role)

    def boxed_offer(self, text: str) -> int | None:
        """The terms that a message boxes."""
        return _act(text, self.pool).terms

    def plain_offer(self, text: str, turns: Sequence[Turn] = ()) -> int | None:  # noqa: ARG002
        """The terms that a message of Player 1 offers in words."""
        return _plain_split(text, self.pool)

    def worth(self, terms: int) -> float:
        """Dollars for the responder."""
        return self.pool - terms / 100

    def reward(self, terms: int) -> float:
        """Reward of Player 1."""
        return terms / (50 * self.pool)

    def counter(self, aspiration: float, towards: int | None, standing: int | None) -> int:  # noqa: ARG002
        """The offer nearest to Player 1's among those worth the aspiration."""
        return self.best(aspiration)

    def clashes(self, terms: int, standing: int | None) -> bool:  # noqa: ARG002
        """Whether boxing the terms could be taken for an echo (never under rule A)."""
        return False

    def best(self, aspiration: float) -> int:
        """Player 1's best terms among those worth the aspiration to the responder."""
        return round(100 * (self.pool - aspiration))

    def reach(self, aspiration: float) -> float:
        """M(a): Player 1's reward at ``best``."""
        return self.reward(self.best(aspiration))

    def box(self, terms: int, role: Role) -> str:  # noqa: ARG002
        """The box that proposes the terms."""
        return boxed.agreed(f"split=${boxed.money_text(terms)}")

    def acceptance(self, terms: int, role: Role) -> str:
        """The box that closes at the other side's standing terms."""
        return self.box(terms, role)

    def draw_terms(self, rng: Generator) -> int:
        """Any valid terms, in whole dollars."""
        return 100 * int(rng.integers(0, self.pool + 1))

    def j_star(self, gamma: float) -> dict[str, float]:
        """Best attainable return by discount unit; empty under unilateral closing."""
        if self.game.options.closing == "unilateral":
            return {}
        reach = [self.reach(a) for a in self.aspirations]
        return bargaining.j_star(gamma, reach, range(1, len(reach) + 1))


def _facts(scenario: Scenario) -> tuple[int, int]:
    try:
        return scenario.facts["pool"], scenario.facts["rounds"]
    except KeyError as error:
        raise DataError(
            f"scenario {scenario.kernel_id!r} has no fact {error}; ultimatum needs pool and rounds"
        ) from None


_SPLIT = re.compile(r"split ?[=:](.*)", re.IGNORECASE | re.ASCII)


@remembered
def _act(text: str, pool: int) -> boxed.Act[int]:
    def split(body: str) -> int | None:
        found = _SPLIT.fullmatch(body)
        cents = boxed.amount_cents(found[1]) if found else None
        return cents if cents is not None and cents <= 100 * pool else None

    return boxed.act(text, split, boxed.MATCHING_TOKENS)


_DOLLARS = re.compile(
    r"(?<!/)\$ ?([0-9][0-9,]*(?:\.[0-9]+)?)(?![0-9a-zA-Z%]|[,.–—-][0-9]|\s[0-9]{3}\b|/[$0-9])"
)
_OWN = re.compile(r"\b(?:I|I'll|I'd|me|my|mine|myself)\b", re.IGNORECASE)
_OTHER = re.compile(r"\b(?:you|your|yours|yourself)\b", re.IGNORECASE)
_GIVES = re.compile(
    r"\b(?:give|giving|offer|offering|leave|leaving|let)\s+you\b|\b(?:for|to)\s+you\b",
    re.IGNORECASE,
)


@remembered
def _plain_split(text: str, pool: int) -> int | None:
    """Player 1's share in cents as Player 1 says it: the last $ amount with a clear owner."""
    said = boxed.outside(text).replace("’", "'")
    words = re.sub(rf"\bof (?:the |our )?\$(?:{pool}|{pool:,})\b", "", said)
    priced = [c for c in clauses(words) if "$" in c]
    amounts = _DOLLARS.findall(priced[-1]) if priced else []
    cents = boxed.amount_cents(amounts[-1]) if amounts else None
    if cents is None or cents > 100 * pool or denies(priced[-1]):
        return None
    own, other = bool(_OWN.search(priced[-1])), bool(_OTHER.search(priced[-1]))
    if other and (not own or _GIVES.search(priced[-1])):
        return 100 * pool - cents
    return cents if own and not other else None


def _flags(turns: Sequence[Turn], pool: int) -> tuple[str, ...]:
    """``perspective_suspect``: a partner boxes as Player 1's share what it claims for itself."""
    for turn in turns[1:]:
        split = _act(turn.text, pool).terms if turn.role is Role.PARTNER else None
        if split is None or 2 * split == 100 * pool:
            continue
        words = re.sub(r"(?<![$0-9.,])(?=[0-9])", "$", boxed.outside(turn.text))
        if _plain_split(words, pool) == split:
            return ("perspective_suspect",)
    return ()


@lru_cache(maxsize=256)
def _prompt(options: UltimatumOptions, role: Role, pool: int, rounds: int) -> str:
    me, other = (1, 2) if role is Role.AGENT else (2, 1)
    if options.prompt_style == "compact":
        return f"P{me} pool={pool} rounds={rounds}"
    own = (
        "that is, your own share"
        if me == 1
        else f"NOT yours: your share is ${pool} minus X, so a small X is good for you"
    )
    holds = "you hold all of it" if me == 1 else "Player 1 holds all of it"
    nothing = "Player 2 holds nothing" if me == 1 else "you hold nothing"
    unit = (
        "a round is one message; you take turns"
        if options.round_unit == "message"
        else f"one message by each player per round, at most {LIMIT} messages"
    )
    last = " (a new split there is ignored)" if options.enforce_final_turn else ""
    closes = (
        "The first valid box by either player closes the deal."
        if options.closing == "unilateral"
        else "A deal counts only when both players have boxed the same X; words close nothing."
    )
    return (
        f"You are Player {me}, talking with Player {other} about how to split ${pool}. "
        f"At the start {holds} and {nothing}.\n"
        f"You have {rounds} rounds ({unit}). If no deal stands by then, both players get $0; "
        "a refusal destroys the money as well. In your last message you may only accept or "
        f"refuse{last}.\n"
        "You may propose a split, answer with a different one, or accept the other player's.\n"
        "- To propose or accept a split, write \\boxed{AGREED: split=$X}. "
        f"X is always Player 1's share, {own}. {closes}\n"
        "- To refuse and end the game with nothing for anyone, write \\boxed{NO DEAL}."
    )
