r"""CaSiNo: two neighbours at a campsite share out packages of food, water and firewood.

Data sheet
    Roles: camper 1 is trained, camper 2 is the partner; both get the same rules.
    Private information: own order of priorities, and a personal reason for each.
    Protocol: ``\boxed{AGREED: MINE: Food=n Water=n Firewood=n; THEIRS: Food=n Water=n Firewood=n}``
        proposes (MINE = the writer's share), ``\boxed{ACCEPT}`` by the other side closes,
        ``\boxed{REJECT}`` clears, ``\boxed{NO DEAL}`` ends it (rule B).
    Scenarios: CaSiNo (Chawla et al. 2021, "CaSiNo: A Corpus of Campsite Negotiation Dialogues for
        Automatic Negotiation Systems"), 1,030 dialogues; camper 1 is mturk_agent_1. Licence
        CC BY 4.0: cite it with your results. No record is shipped, see the options ``data_dir`` and
        ``source``. Demographics, personality and what the people said are never looked at.
    Held out: 155 dialogues, by number; 875 are for training.
    Reward: (5 high + 4 medium + 3 low packages) / 18 at a deal, in [0, 2]; otherwise 0.
    End: deal, NO DEAL, or 10 messages after the opening.
    Hazard: a verbatim copy of the standing proposal closes at the first proposer's partition, as
        in the paper, even if the copier meant the share for itself. A message that also holds a
        REJECT box is never an echo.
    Paper: appendix D.4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from iterpo.domain import Outcome, Role, Scenario, Split, Turn, View
from iterpo.environments import bargain as bargaining
from iterpo.environments import boxed, sources
from iterpo.environments.base import PromptStyle
from iterpo.environments.partitions import (
    Counts,
    PartitionBargain,
    Partitioning,
    Written,
    box_rules,
    written,
)
from iterpo.errors import DataError

__all__ = ["Casino", "CasinoOptions"]

CODE = 4
ITEMS = ("Food", "Water", "Firewood")
NOUNS = ("food", "water", "firewood/wood")
LEVELS = ("High", "Medium", "Low")
POINTS = (5, 4, 3)
POOL = (3, 3, 3)
UNIT = 18
LIMIT = 10
TOP = 27


@dataclass(frozen=True, slots=True)
class CasinoOptions:
    """Settings of the game."""

    data_dir: str | None = None
    """Folder with casino.json, or with the sub-folder ``casino``."""
    source: Literal["folder", "hub"] = "folder"
    """``hub``: download kchawla123/casino instead (needs the package ``datasets``)."""
    echo: boxed.Echo = "both"
    """Which copies of the standing proposal close it."""
    strict_order: bool = False
    """Whether a box must name Food, Water, Firewood in this order."""
    reminder: bool = True
    """Whether each side's priorities are repeated before the latest message it reads."""
    prompt_style: PromptStyle = "full"
    """Rules in prose, or a few tokens for small models (then without the reasons)."""


class Casino:
    """The game as pure functions of (scenario, transcript)."""

    name = "casino"
    code = CODE
    options_type = CasinoOptions

    def __init__(self, options: CasinoOptions | None = None) -> None:
        chosen = self.options = options or CasinoOptions()
        self._rules = Partitioning(
            CODE,
            ITEMS,
            NOUNS,
            UNIT,
            LIMIT,
            echo=chosen.echo,
            strict_order=chosen.strict_order,
            style=chosen.prompt_style,
            mass=True,
        )

    def scenarios(self, split: Split, n: int, data_seed: int = 42) -> tuple[Scenario, ...]:
        """The first ``n`` kernels of a split, in an order drawn from ``data_seed``.

        Raises:
            MissingDataError: if the data are not where ``data_dir`` says.
            ConfigError: if the split holds fewer than ``n`` kernels.
        """
        sites, _ = self._load(split)
        found = {_kernel_id(site): site for site in sites}
        ids = sorted(found)
        chosen = sources.first_kernels(self.name, CODE, split, ids, n, data_seed)
        return tuple(self.scenario(found[kernel], split) for kernel in chosen)

    def scenario(self, site: sources.Campsite, split: Split) -> Scenario:
        """The kernel in which the agent is the first camper of a site."""
        agent, partner = site.campers
        facts = {
            "agent_order": list(agent.order),
            "agent_reasons": list(agent.reasons),
            "partner_order": list(partner.order),
            "partner_reasons": list(partner.reasons),
        }
        return Scenario(_kernel_id(site), self.name, split, facts)

    def load_report(self, split: Split) -> sources.LoadReport:
        """What was read for a split, and what was odd about it (counts are of the whole file)."""
        return self._load(split)[1]

    def _load(self, split: Split) -> tuple[tuple[sources.Campsite, ...], sources.LoadReport]:
        if self.options.source == "hub":
            sites, report = sources.hub_campsites()
        else:
            (path,) = sources.locate(self.options.data_dir, self.name, "casino", ("casino.json",))
            sites, report = sources.read_campsites(path)
        kept = tuple(site for site in sites if sources.campsite_split(site.number) is split)
        return kept, report.adding(**{f"{split.value}_scenarios": len(kept)})

    def limit(self, scenario: Scenario) -> int:  # noqa: ARG002
        """Largest number of messages after the opening."""
        return LIMIT

    def opening(self, scenario: Scenario) -> Turn:  # noqa: ARG002
        """Camper 1's scripted greeting: what there is to share, without priorities."""
        if self.options.prompt_style == "compact":
            return Turn(Role.AGENT, f"{written(ITEMS, POOL, ' ')}. You like?", scripted=True)
        text = (
            "Hello, neighbour! There are some extra supplies of food, water and firewood that the "
            "two of us can share out for our trips. I need some of them more than others. "
            "Which would you like most?"
        )
        return Turn(Role.AGENT, text, scripted=True)

    def view(self, scenario: Scenario, role: Role, turns: Sequence[Turn]) -> View:
        """What one side sees: the rules and its own priorities with their reasons."""
        order, reasons = _camper(scenario, role)
        compact = self.options.prompt_style == "compact"
        note = _reminder(compact, order) if self.options.reminder else None
        return View(role, _prompt(compact, order, reasons), tuple(turns), note)

    def read(self, scenario: Scenario, turns: Sequence[Turn]) -> Outcome | None:
        """The outcome, or None while they still talk."""
        return self._rules.read(turns, POOL, _values(_camper(scenario, Role.AGENT)[0]))

    def talk(self, scenario: Scenario, turns: Sequence[Turn]) -> boxed.Talk[Written]:  # noqa: ARG002
        """The fold behind ``read``: the standing proposal and how it ended."""
        return self._rules.talk(turns, POOL)

    def bargain(self, scenario: Scenario, partner_seed: int = 0) -> PartitionBargain:
        """What the scripted partner needs, for one scenario and one private draw."""
        draw = bargaining.private_draw(partner_seed, CODE, scenario.kernel_id)
        curve = bargaining.aspirations(12 + int(5 * draw.u), TOP, draw.beta, LIMIT // 2)
        alphas = tuple(float(bargaining.ceil(a)) for a in curve)
        agent, partner = (_values(_camper(scenario, role)[0]) for role in Role)
        return PartitionBargain(self._rules, POOL, agent, partner, alphas)


def _camper(scenario: Scenario, role: Role) -> tuple[tuple[str, ...], tuple[str, ...]]:
    try:
        order, reasons = (scenario.facts[f"{role.value}_{what}"] for what in ("order", "reasons"))
    except KeyError as error:
        raise DataError(
            f"scenario {scenario.kernel_id!r} has no fact {error}; casino needs agent_order, "
            "agent_reasons, partner_order and partner_reasons, each from high to low priority"
        ) from None
    return tuple(order), tuple(reasons)


def _kernel_id(site: sources.Campsite) -> str:
    return f"casino-{site.number}"


@lru_cache(maxsize=16)
def _values(order: tuple[str, ...]) -> Counts:
    """Points of a package of each item."""
    return tuple(POINTS[order.index(item)] for item in ITEMS)


def _plain(reason: str) -> str:
    """A reason as it stands in brackets: outer blanks and one final dot dropped."""
    return reason.strip().removesuffix(".").rstrip()


def _reminder(compact: bool, order: tuple[str, ...]) -> str:
    if compact:
        return f"[{_prompt(True, order, ())}]"
    ranked = zip(LEVELS, order, POINTS, strict=True)
    own = ", ".join(f"{level} {item}={points}" for level, item, points in ranked)
    return (
        f"[PRIVATE NOTE | priorities: {own} | pool: {written(ITEMS, POOL)} | "
        "maximise the points of your share]"
    )


@lru_cache(maxsize=4096)
def _prompt(compact: bool, order: tuple[str, ...], reasons: tuple[str, ...]) -> str:
    if compact:
        rows = zip(ITEMS, POOL, _values(order), strict=True)
        return " ".join(f"{item} {n}x{v}" for item, n, v in rows)
    needs = "\n".join(
        f"- {level}: {item}, {points} points a package ({_plain(reason)})"
        for level, item, points, reason in zip(LEVELS, order, POINTS, reasons, strict=True)
    )
    total = "3 of each, 9 packages in all (so every n is 0, 1, 2 or 3)"
    return f"""\
You are about to go camping, and so is the neighbour of your campsite. Beyond what everybody has \
there are extra packages for the two of you to share out: 3 of food, 3 of water, 3 of firewood. \
You need some things more than others, and so does your neighbour, but neither of you knows the \
other's priorities.
Your own priorities, and why:
{needs}
Get as many points as you can. Only packages that end up with you count for you. Every package \
must go to one of you.
How to go about it: first talk in plain words, without a box, about what you need and why, and \
ask your neighbour. When you understand each other, propose a division. Either side may answer \
with another one, until you agree.
{box_rules(ITEMS, total)}"""
