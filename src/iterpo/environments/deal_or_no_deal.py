r"""Deal or No Deal: two people divide books, hats and balls that each values differently.

Data sheet
    Roles: agent 1 is trained, agent 2 is the partner; both get the same rules.
    Private information: own value per item; each side's total is 10.
    Protocol: ``\boxed{AGREED: MINE: book=n hat=n ball=n; THEIRS: book=n hat=n ball=n}`` proposes
        (MINE = the writer's share), ``\boxed{ACCEPT}`` by the other side closes,
        ``\boxed{REJECT}`` clears, ``\boxed{NO DEAL}`` ends it (rule B).
    Scenarios: Lewis et al. (2017), train.txt for training, test.txt (or val.txt) held out.
        Licence CC BY-NC 4.0; no record is shipped, see the options ``data_dir`` and ``source``.
    Held out: by file; a scenario that occurs in both is removed from training.
    Reward: own points / 5 at a deal, in [0, 2]; otherwise 0.
    End: deal, NO DEAL, or 10 messages after the opening.
    Hazard: a verbatim copy of the standing proposal closes at the first proposer's partition, as
        in the paper, even if the copier meant the share for itself. A message that also holds a
        REJECT box is never an echo.
    Paper: appendix D.3 and J.3.1.
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
from iterpo.errors import DataError, MissingDataError

__all__ = ["DealOrNoDeal", "DealOrNoDealOptions"]

CODE = 3
ITEMS = ("book", "hat", "ball")
NOUNS = ("books", "hats", "balls")
UNIT = 5
LIMIT = 10
TOP = 9
FOLDER = "dealornodeal"


@dataclass(frozen=True, slots=True)
class DealOrNoDealOptions:
    """Settings of the game."""

    data_dir: str | None = None
    """Folder with train.txt, val.txt, test.txt (or the hub's rows in train.jsonl, validation.jsonl,
    test.jsonl), or with the sub-folder ``dealornodeal``."""
    source: Literal["folder", "hub"] = "folder"
    """``hub``: download mikelewis0/deal_or_no_dialog instead (needs the package ``datasets``)."""
    heldout_file: Literal["test", "val"] = "test"
    """File of the held-out scenarios; ``val`` for tuning."""
    orders: Literal["both", "first"] = "both"
    """Keep both orders of a scenario where both occur, or the one that occurs first."""
    echo: boxed.Echo = "both"
    """Which copies of the standing proposal close it."""
    strict_order: bool = False
    """Whether a box must name book, hat, ball in this order."""
    reminder: bool = True
    """Whether each side's private values are repeated before the latest message it reads."""
    prompt_style: PromptStyle = "full"
    """Rules in prose, or a few tokens for small models."""


class DealOrNoDeal:
    """The game as pure functions of (scenario, transcript)."""

    name = "deal_or_no_deal"
    code = CODE
    options_type = DealOrNoDealOptions

    def __init__(self, options: DealOrNoDealOptions | None = None) -> None:
        chosen = self.options = options or DealOrNoDealOptions()
        self._rules = Partitioning(
            CODE,
            ITEMS,
            NOUNS,
            UNIT,
            LIMIT,
            echo=chosen.echo,
            strict_order=chosen.strict_order,
            style=chosen.prompt_style,
        )

    def scenarios(self, split: Split, n: int, data_seed: int = 42) -> tuple[Scenario, ...]:
        """The first ``n`` kernels of a split, in an order drawn from ``data_seed``.

        Raises:
            MissingDataError: if the data are not where ``data_dir`` says.
            ConfigError: if the split holds fewer than ``n`` kernels.
        """
        kept, _ = self._load(split)
        found = {_kernel_id(d): d for d in kept}
        ids = sorted(found)
        chosen = sources.first_kernels(self.name, CODE, split, ids, n, data_seed)
        return tuple(self.scenario(found[kernel], split) for kernel in chosen)

    def scenario(self, division: sources.Division, split: Split) -> Scenario:
        """The kernel in which the agent is the first side of a division."""
        facts = {
            "counts": list(division.counts),
            "agent_values": list(division.you),
            "partner_values": list(division.them),
        }
        return Scenario(_kernel_id(division), self.name, split, facts)

    def load_report(self, split: Split) -> sources.LoadReport:
        """What was read for a split, and what was odd about it."""
        return self._load(split)[1]

    def _load(self, split: Split) -> tuple[tuple[sources.Division, ...], sources.LoadReport]:
        kept, report = _read(self.options, Split.HELDOUT)
        if split is Split.TRAIN:
            heldout = kept
            kept, report = _read(self.options, Split.TRAIN)
            kept, shared = sources.without_shared(kept, heldout)
            report = report.adding(shared_with_heldout=shared)
        if self.options.orders == "first":
            kept = tuple({sources.unordered(d): d for d in reversed(kept)}.values())[::-1]
        return kept, report

    def limit(self, scenario: Scenario) -> int:  # noqa: ARG002
        """Largest number of messages after the opening."""
        return LIMIT

    def opening(self, scenario: Scenario) -> Turn:
        """Agent 1's scripted greeting: what there is to divide, without values."""
        pool, _, _ = _facts(scenario)
        if self.options.prompt_style == "compact":
            return Turn(Role.AGENT, f"{written(ITEMS, pool, ' ')}. You like?", scripted=True)
        text = (
            f"Hi there! We have some items to share out: {_named(pool)}. "
            "Let us find a split that is fair to both. What interests you most?"
        )
        return Turn(Role.AGENT, text, scripted=True)

    def view(self, scenario: Scenario, role: Role, turns: Sequence[Turn]) -> View:
        """What one side sees: the rules, the pool and its own values."""
        pool, agent, partner = _facts(scenario)
        values = agent if role is Role.AGENT else partner
        compact = self.options.prompt_style == "compact"
        note = _reminder(compact, pool, values) if self.options.reminder else None
        return View(role, _prompt(compact, pool, values), tuple(turns), note)

    def read(self, scenario: Scenario, turns: Sequence[Turn]) -> Outcome | None:
        """The outcome, or None while they still talk."""
        pool, agent, _ = _facts(scenario)
        return self._rules.read(turns, pool, agent)

    def talk(self, scenario: Scenario, turns: Sequence[Turn]) -> boxed.Talk[Written]:
        """The fold behind ``read``: the standing proposal and how it ended."""
        return self._rules.talk(turns, _facts(scenario)[0])

    def bargain(self, scenario: Scenario, partner_seed: int = 0) -> PartitionBargain:
        """What the scripted partner needs, for one scenario and one private draw."""
        draw = bargaining.private_draw(partner_seed, CODE, scenario.kernel_id)
        curve = bargaining.aspirations(3 + int(3 * draw.u), TOP, draw.beta, LIMIT // 2)
        pool, agent, partner = _facts(scenario)
        alphas = tuple(float(bargaining.ceil(a)) for a in curve)
        return PartitionBargain(self._rules, pool, agent, partner, alphas)


def _facts(scenario: Scenario) -> tuple[Counts, Counts, Counts]:
    f = scenario.facts
    try:
        return tuple(f["counts"]), tuple(f["agent_values"]), tuple(f["partner_values"])
    except KeyError as error:
        raise DataError(
            f"scenario {scenario.kernel_id!r} has no fact {error}; deal_or_no_deal needs counts, "
            "agent_values and partner_values"
        ) from None


def _read(
    options: DealOrNoDealOptions, split: Split
) -> tuple[tuple[sources.Division, ...], sources.LoadReport]:
    heldout = options.heldout_file
    hub_names = ("train", "validation" if heldout == "val" else heldout)
    if options.source == "hub":
        return sources.hub_divisions(hub_names[split.code])
    texts = ("train.txt", f"{heldout}.txt")
    try:
        paths = sources.locate(options.data_dir, DealOrNoDeal.name, FOLDER, texts)
    except MissingDataError as error:
        jsons = [f"{name}.jsonl" for name in hub_names]
        try:
            paths = sources.locate(options.data_dir, DealOrNoDeal.name, FOLDER, jsons)
        except MissingDataError:
            raise error from None
    return sources.read_divisions(paths[split.code])


def _kernel_id(d: sources.Division) -> str:
    return "dond-" + "|".join(",".join(map(str, part)) for part in (d.counts, d.you, d.them))


def _named(counts: Counts) -> str:
    parts = [f"{n} {item}{'s' * (n != 1)}" for item, n in zip(ITEMS, counts, strict=True)]
    return f"{parts[0]}, {parts[1]} and {parts[2]}"


def _reminder(compact: bool, pool: Counts, values: Counts) -> str:
    if compact:
        return f"[{_prompt(True, pool, values)}]"
    return (
        f"[PRIVATE NOTE | values: {written(ITEMS, values)} | pool: {written(ITEMS, pool)} | "
        "maximise the value of your share]"
    )


@lru_cache(maxsize=4096)
def _prompt(compact: bool, pool: Counts, values: Counts) -> str:
    rows = zip(ITEMS, pool, values, strict=True)
    if compact:
        return " ".join(f"{item} {n}x{v}" for item, n, v in rows)
    items = "\n".join(f"- {item}: {n} in the pool, worth {v} each to you" for item, n, v in rows)
    return f"""\
You and one other person share out a set of items. What the items are worth differs between you: \
you know your own values only, and nobody knows the other's.
{items}
Get as many points as you can. Only items that end up with you count for you. Every item must go \
to one of you.
How to go about it: first talk in plain words, without a box, about what you want most and least, \
and ask the other side. When you understand each other, propose a division. Either side may \
answer with another one, until you agree.
{box_rules(ITEMS, _named(pool))}"""
