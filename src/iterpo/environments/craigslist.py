r"""Craigslist: a vendor and a buyer haggle over the price of a listed thing.

Data sheet
    Roles: agent = vendor, partner = buyer.
    Private information: the buyer's target price; the item and its list price are known to both.
    Protocol: ``\boxed{AGREED: $<price>}``; a deal closes when a side boxes the price that stands
        in the other's latest valid box (rule A); ``\boxed{NO DEAL}`` ends it.
    Scenarios: CraigslistBargain (He et al. 2018), one for each pair of a listing and a target; no
        licence is stated for the dialogues, and none are read; no record is shipped, see the
        options ``data_dir`` and ``source``.
    Held out: by file; a listing (title and price) that occurs in both is removed from training.
    Reward: price / list price at a deal, otherwise 0. Above the list price it exceeds 1 (flag
        ``above_list``), as the paper does not clip.
    End: deal, NO DEAL, or 10 messages after the opening.
    Paper: appendix D.1.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from iterpo.domain import Ending, Outcome, Role, Scenario, Split, Turn, View
from iterpo.environments import bargain as bargaining
from iterpo.environments import boxed, sources
from iterpo.environments.base import PromptStyle
from iterpo.environments.claims import clauses, denies
from iterpo.environments.remembered import remembered
from iterpo.errors import ConfigError, DataError

if TYPE_CHECKING:
    from numpy.random import Generator

__all__ = ["Craigslist", "CraigslistOptions", "PriceBargain"]

CODE = 1
LIMIT = 10
WHOLE_DOLLARS_FROM = 2000
"""List price in cents from which the scripted buyer thinks in whole dollars."""


@dataclass(frozen=True, slots=True)
class CraigslistOptions:
    """Settings of the game."""

    data_dir: str | None = None
    """Folder with test.json (or dev.json) and train.csv or train.json; also found in its
    sub-folders ``craigslist``, ``cocoa_native``, ``agreemate_csv`` and ``hf_format_jsonl``."""
    source: Literal["folder", "hub"] = "folder"
    """``hub``: download stanfordnlp/craigslist_bargains instead (needs the package
    ``datasets``)."""
    heldout_file: Literal["test", "dev"] = "test"
    """The held-out part. Without a training file, test is held out and dev trained on."""
    item_text: Literal["title", "title_and_description"] = "title"
    """What full prompts say about the item; the buyer reads the first half of a description."""
    closing: boxed.Closing = "bilateral"
    """``unilateral``: the first valid box closes at once (exploitable; for comparison)."""
    reward_cap: float | None = None
    """Highest reward, e.g. 1.0; null does not clip."""
    prompt_style: PromptStyle = "full"
    """Rules in prose, or a few tokens for small models."""


class Craigslist:
    """The game as pure functions of (scenario, transcript)."""

    name = "craigslist"
    code = CODE
    options_type = CraigslistOptions

    def __init__(self, options: CraigslistOptions | None = None) -> None:
        self.options = options or CraigslistOptions()
        cap = self.options.reward_cap
        if cap is not None and not cap > 0:
            raise ConfigError(f"craigslist: option 'reward_cap' is {cap}; accepted: above 0 | null")

    def scenarios(self, split: Split, n: int, data_seed: int = 42) -> tuple[Scenario, ...]:
        """The first ``n`` kernels of a split, in an order drawn from ``data_seed``.

        Raises:
            MissingDataError: if the data are not where ``data_dir`` says.
            ConfigError: if the split holds fewer than ``n`` kernels.
        """
        listings, _ = self._load(split)
        chosen = sources.first_kernels(self.name, CODE, split, listings, n, data_seed)
        return tuple(self.scenario(listing, split) for listing in chosen)

    def scenario(self, listing: sources.Listing, split: Split) -> Scenario:
        """The kernel of one listing and target; with descriptions where prompts show them."""
        facts: dict[str, str | float] = {
            "title": listing.title,
            "list_price": listing.list_price,
            "target": listing.target,
        }
        if self.options.item_text == "title_and_description":
            facts |= {
                "description": listing.description,
                "buyer_description": listing.buyer_description,
            }
        return Scenario(listing.kernel_id, self.name, split, facts)

    def load_report(self, split: Split) -> sources.LoadReport:
        """What was read for a split, and what was odd about it."""
        return self._load(split)[1]

    def _load(self, split: Split) -> tuple[tuple[sources.Listing, ...], sources.LoadReport]:
        options = self.options
        return sources.craigslist(split, options.data_dir, options.heldout_file, options.source)

    def limit(self, scenario: Scenario) -> int:  # noqa: ARG002
        """Largest number of messages after the opening."""
        return LIMIT

    def opening(self, scenario: Scenario) -> Turn:
        """The vendor's scripted greeting: what is for sale, and the asking price in plain text."""
        title, price = _fact(scenario, "title"), boxed.money_text(_cents(scenario, "list_price"))
        if self.options.prompt_style == "compact":
            return Turn(Role.AGENT, f"Sell {title}? ${price}", scripted=True)
        text = f"Hi there! I am selling this: {title}. I ask ${price} for it. Does it interest you?"
        return Turn(Role.AGENT, text, scripted=True)

    def view(self, scenario: Scenario, role: Role, turns: Sequence[Turn]) -> View:
        """What one side sees; the target is in the buyer's prompt only."""
        price, target, text = _cents(scenario, "list_price"), None, ""
        if role is Role.PARTNER:
            target = _cents(scenario, "target")
        if self.options.item_text == "title_and_description":
            seen = "description" if role is Role.AGENT else "buyer_description"
            text = str(_fact(scenario, seen))
        title = str(_fact(scenario, "title"))
        return View(role, _prompt(self.options, title, text, price, target), tuple(turns))

    def read(self, scenario: Scenario, turns: Sequence[Turn]) -> Outcome | None:
        """The outcome, or None while they still talk."""
        talk = self.talk(scenario, turns)
        if talk.ending is None:
            return None
        if talk.ending is not Ending.AGREED or talk.terms is None:
            return talk.without_deal()
        price = _cents(scenario, "list_price")
        return Outcome(
            Ending.AGREED,
            _reward(talk.terms, price, self.options.reward_cap),
            {"price": boxed.money(talk.terms)},
            talk.closed_by,
            talk.message,
            ("above_list",) if talk.terms > price else (),
        )

    def talk(self, scenario: Scenario, turns: Sequence[Turn]) -> boxed.Talk[int]:  # noqa: ARG002
        """The fold behind ``read``: live boxed prices and how it ended, in cents."""
        return boxed.matching_boxes(turns, _act, LIMIT, self.options.closing)

    def bargain(self, scenario: Scenario, partner_seed: int = 0) -> PriceBargain:
        """What the scripted buyer needs, for one scenario and one private draw."""
        draw = bargaining.private_draw(partner_seed, CODE, scenario.kernel_id)
        price, target = _cents(scenario, "list_price"), _cents(scenario, "target")
        limits = _limits(price, target, 0.2 + 0.7 * draw.u, draw.beta)
        return PriceBargain(self, scenario, price, tuple(float(price - limit) for limit in limits))


@dataclass(frozen=True)
class PriceBargain:
    """The buyer's side of one scenario; terms are a price in cents."""

    game: Craigslist
    """The environment."""
    scenario: Scenario
    """Kernel."""
    list_price: int
    """Asking price in cents."""
    aspirations: tuple[float, ...]
    """alpha_k in cents below the list price, k = 1..K; the limit L_k is what is left of it."""

    code = CODE
    talks_first = False
    preference = ""
    rejection = ""

    @property
    def style(self) -> PromptStyle:
        """Prompt style, for the wording."""
        return self.game.options.prompt_style

    def standing(self, turns: Sequence[Turn], role: Role) -> int | None:
        """The live boxed price of a side."""
        return self.game.talk(self.scenario, turns).offers.get(role)

    def boxed_offer(self, text: str) -> int | None:
        """The price that a message boxes."""
        return _act(text).terms

    def plain_offer(self, text: str, turns: Sequence[Turn]) -> int | None:  # noqa: ARG002
        """The price that a message names in words: its last $ amount outside boxes."""
        return _plain_price(text)

    def worth(self, terms: int) -> float:
        """Cents that the buyer saves on the list price."""
        return self.list_price - terms

    def reward(self, terms: int) -> float:
        """Reward of the vendor."""
        return _reward(terms, self.list_price, self.game.options.reward_cap)

    def counter(self, aspiration: float, towards: int | None, standing: int | None) -> int:  # noqa: ARG002
        """The highest price that is worth the aspiration."""
        return self.best(aspiration)

    def clashes(self, terms: int, standing: int | None) -> bool:  # noqa: ARG002
        """Whether boxing the terms could be taken for an echo (never under rule A)."""
        return False

    def best(self, aspiration: float) -> int:
        """The highest price that is worth the aspiration: L_k."""
        return self.list_price - round(aspiration)

    def reach(self, aspiration: float) -> float:
        """M(a): the vendor's reward at ``best``."""
        return self.reward(self.best(aspiration))

    def box(self, terms: int, role: Role) -> str:  # noqa: ARG002
        """The box that proposes the price."""
        return boxed.agreed(f"${boxed.money_text(terms)}")

    def acceptance(self, terms: int, role: Role) -> str:
        """The box that closes at the other side's standing price."""
        return self.box(terms, role)

    def draw_terms(self, rng: Generator) -> int:
        """Any valid price up to 1.2 times the list price."""
        unit = 100 if self.list_price >= WHOLE_DOLLARS_FROM else 1
        return unit * int(rng.integers(1, 2 + 12 * self.list_price // (10 * unit)))

    def j_star(self, gamma: float) -> dict[str, float]:
        """Best attainable return by discount unit; empty under unilateral closing."""
        if self.game.options.closing == "unilateral":
            return {}
        reach = [self.reach(a) for a in self.aspirations]
        return bargaining.j_star(gamma, reach, range(1, len(reach) + 1))


def _limits(price: int, target: int, share: float, beta: float) -> tuple[int, ...]:
    """L_k in cents: the most the buyer pays at its turn k, from its target towards the list price.

    L_k = target + share (price - target) F(k), rounded down to whole dollars from a list price of
    $20 (to cents below, or where whole dollars would leave nothing).

    >>> [limit // 100 for limit in _limits(26500, 24300, 0.8, 1.0)]
    [243, 247, 251, 256, 260]
    """
    unit = 100 if price >= WHOLE_DOLLARS_FROM and target >= 100 else 1
    curve = bargaining.aspirations(target + share * (price - target), target, beta, LIMIT // 2)
    return tuple(-bargaining.ceil(-limit / unit) * unit for limit in curve)


def _fact(scenario: Scenario, name: str) -> object:
    try:
        return scenario.facts[name]
    except KeyError:
        raise DataError(
            f"scenario {scenario.kernel_id!r} has no fact {name!r}; craigslist needs title, "
            "list_price and target, with item_text: title_and_description also description and "
            "buyer_description"
        ) from None


def _cents(scenario: Scenario, name: str) -> int:
    dollars = _fact(scenario, name)
    if not isinstance(dollars, int | float) or not 0 < dollars < 1e12:
        raise DataError(
            f"scenario {scenario.kernel_id!r} has {name} {dollars!r}; accepted: dollars above 0"
        )
    return round(100 * dollars)


def _reward(price: int, list_price: int, cap: float | None) -> float:
    ratio = price / list_price
    return ratio if cap is None else min(ratio, float(cap))


@remembered
def _act(text: str) -> boxed.Act[int]:
    # No price is 0 cents, so that a valid one is always true.
    return boxed.act(text, lambda body: boxed.amount_cents(body) or None, boxed.MATCHING_TOKENS)


_DOLLARS = re.compile(
    r"\$ ?([0-9]+(?:,[0-9]{3})*(?:\.[0-9]+)?)(?![0-9a-zA-Z%]|[,./–—-][0-9]|\s[0-9]{3}\b)"
)


@remembered
def _plain_price(text: str) -> int | None:
    said = boxed.outside(text)
    last = said.rfind("$")
    found = _DOLLARS.match(said, last) if last >= 0 else None
    if not found or denies(clauses(said[:last])[-1] + clauses(said[last:])[0]):
        return None
    return boxed.amount_cents(found[1]) or None


@lru_cache(maxsize=4096)
def _prompt(
    options: CraigslistOptions, title: str, description: str, price: int, target: int | None
) -> str:
    """The rules and the facts of one side; the target is given for the buyer only."""
    asked, aim = boxed.money_text(price), "" if target is None else boxed.money_text(target)
    if options.prompt_style == "compact":
        return f"buy {asked} target {aim}" if aim else f"sell {asked}"
    if aim:
        task = (
            f"You want to buy an item from its vendor. The vendor asks ${asked} for it. Your "
            f"target price is ${aim}: buy it at a price as close to that as you can get."
        )
        refusal = "If it stays too expensive for you, write \\boxed{NO DEAL} to leave"
    else:
        task = (
            f"You are the vendor of an item and talk with someone who may buy it. Your list price "
            f"is ${asked}. Get the best price for it that you can."
        )
        refusal = "If no agreement is possible, write \\boxed{NO DEAL} to end the talk"
    closes = (
        "The first valid box by either side closes the deal."
        if options.closing == "unilateral"
        else "A deal counts only when both of you have boxed the same price; words close nothing."
    )
    item = f"Item: {title}\n" + (f"Description: {description}\n" if description else "")
    return (
        f"{task}\n{item}"
        "- To agree on a price, write \\boxed{AGREED: $<price>} with the number in the place of "
        f"<price>. {closes}\n"
        f"- {refusal} without a deal."
    )
