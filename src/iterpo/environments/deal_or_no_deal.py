r"""Deal or No Deal: two people divide books, hats and balls that each values differently.

Data sheet
    Roles: agent 1 is trained, agent 2 is the partner; both get the same rules.
    Private information: own value per item; each side's total is 10.
    Protocol: ``\boxed{AGREED: MINE: book=n hat=n ball=n; THEIRS: book=n hat=n ball=n}`` proposes
        (MINE = the writer's share), ``\boxed{ACCEPT}`` by the other side closes,
        ``\boxed{REJECT}`` clears, ``\boxed{NO DEAL}`` ends it (rule B).
    Scenarios: Lewis et al. (2017), train.txt for training, test.txt (or val.txt) held out.
        Licence CC BY-NC 4.0; no record is shipped, see the option ``data_dir``.
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
from itertools import product
from typing import TYPE_CHECKING, Literal

from iterpo.domain import Ending, Outcome, Role, Scenario, Split, Turn, View
from iterpo.environments import bargain as bargaining
from iterpo.environments import boxed, sources
from iterpo.environments.base import PromptStyle
from iterpo.environments.claims import said_share
from iterpo.errors import ConfigError, DataError

if TYPE_CHECKING:
    from numpy.random import Generator

__all__ = ["DealBargain", "DealOrNoDeal", "DealOrNoDealOptions"]

CODE = 3
ITEMS = ("book", "hat", "ball")
LIMIT = 10
TOP = 9

Counts = tuple[int, ...]
"""A number per item, in the order of ``ITEMS``."""
Written = tuple[Counts, Counts]
"""(MINE, THEIRS) as the writer put it."""


@dataclass(frozen=True, slots=True)
class DealOrNoDealOptions:
    """Settings of the game."""

    data_dir: str | None = None
    """Folder with train.txt, val.txt, test.txt, or with the sub-folder ``dealornodeal``."""
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
        self.options = options or DealOrNoDealOptions()

    def scenarios(self, split: Split, n: int, data_seed: int = 42) -> tuple[Scenario, ...]:
        """The first ``n`` kernels of a split, in an order drawn from ``data_seed``.

        Raises:
            MissingDataError: if the data are not where ``data_dir`` says.
            ConfigError: if the split holds fewer than ``n`` kernels.
        """
        import numpy as np  # importing an environment stays light

        kept, _ = self._load(split)
        found = {_kernel_id(d): d for d in kept}
        ids = sorted(found)
        if n > len(ids):
            raise ConfigError(
                f"deal_or_no_deal has {len(ids)} {split.value} kernels, {n} were asked for; "
                f"ask for at most {len(ids)}"
            )
        order = np.random.default_rng([data_seed, CODE, split.code]).permutation(len(ids))
        return tuple(self.scenario(found[ids[int(i)]], split) for i in order[:n])

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
        options = self.options
        return _load(options.data_dir, options.heldout_file, options.orders == "first", split)

    def limit(self, scenario: Scenario) -> int:  # noqa: ARG002
        """Largest number of messages after the opening."""
        return LIMIT

    def opening(self, scenario: Scenario) -> Turn:
        """Agent 1's scripted greeting: what there is to divide, without values."""
        pool, _, _ = _facts(scenario)
        if self.options.prompt_style == "compact":
            return Turn(Role.AGENT, f"{_written(pool, ' ')}. You like?", scripted=True)
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
        talk = self.talk(scenario, turns)
        if talk.ending is None:
            return None
        if talk.ending is not Ending.AGREED or talk.terms is None:
            detail = f"refused by the {talk.by.value}" if talk.by else ""
            return Outcome(talk.ending, 0.0, closing_message=talk.message, detail=detail)
        share = talk.terms[0] if talk.proposer is Role.AGENT else talk.terms[1]
        reward = _points(share, _facts(scenario)[1]) / 5
        terms = dict(zip(ITEMS, share, strict=True))
        return Outcome(Ending.AGREED, reward, terms, talk.closed_by, talk.message)

    def talk(self, scenario: Scenario, turns: Sequence[Turn]) -> boxed.Talk[Written]:
        """The fold behind ``read``: the standing proposal and how it ended."""
        pool, strict = _facts(scenario)[0], self.options.strict_order
        return boxed.propose_accept(
            turns, lambda text: _act(text, pool, strict), _mirror, LIMIT, self.options.echo
        )

    def bargain(self, scenario: Scenario, partner_seed: int = 0) -> DealBargain:
        """What the scripted partner needs, for one scenario and one private draw."""
        draw = bargaining.private_draw(partner_seed, CODE, scenario.kernel_id)
        curve = bargaining.aspirations(3 + int(3 * draw.u), TOP, draw.beta, LIMIT // 2)
        pool, agent, partner = _facts(scenario)
        alphas = tuple(float(bargaining.ceil(a)) for a in curve)
        return DealBargain(self, scenario, pool, agent, partner, alphas)


@dataclass(frozen=True)
class DealBargain:
    """The partner's side of one scenario; terms are the agent's share, a count per item."""

    game: DealOrNoDeal
    """The environment."""
    scenario: Scenario
    """Kernel."""
    pool: Counts
    """Items to divide."""
    agent_values: Counts
    """Values of the agent; used for the bound only, never for the partner's decisions."""
    partner_values: Counts
    """Values of the partner."""
    aspirations: tuple[float, ...]
    """alpha_k in points, k = 1..K."""

    code = CODE
    talks_first = True
    rejection = "\\boxed{REJECT}"

    @property
    def style(self) -> PromptStyle:
        """Prompt style, for the wording."""
        return self.game.options.prompt_style

    @property
    def preference(self) -> str:
        """The partner's true ranking in words, without numbers."""
        return _ranking(self.partner_values, self.style == "compact")

    def standing(self, turns: Sequence[Turn], role: Role) -> Counts | None:
        """The agent's share in the proposal of a side, where one stands."""
        written = self.game.talk(self.scenario, turns).offers.get(role)
        if written is None:
            return None
        return written[0] if role is Role.AGENT else written[1]

    def boxed_offer(self, text: str) -> Counts | None:
        """The share that a message of the agent boxes for itself."""
        terms = _act(text, self.pool, self.game.options.strict_order).terms
        return terms[0] if terms else None

    def plain_offer(self, text: str, turns: Sequence[Turn] = ()) -> Counts | None:  # noqa: ARG002
        """The share that a message of the agent claims in words."""
        return said_share(boxed.outside(text), ITEMS, self.pool)

    def worth(self, terms: Counts) -> float:
        """Points of the partner."""
        return _points(_rest(self.pool, terms), self.partner_values)

    def reward(self, terms: Counts) -> float:
        """Reward of the agent."""
        return _points(terms, self.agent_values) / 5

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
        return boxed.agreed(f"MINE: {_written(mine)}; THEIRS: {_written(theirs)}")

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


def _facts(scenario: Scenario) -> tuple[Counts, Counts, Counts]:
    f = scenario.facts
    try:
        return tuple(f["counts"]), tuple(f["agent_values"]), tuple(f["partner_values"])
    except KeyError as error:
        raise DataError(
            f"scenario {scenario.kernel_id!r} has no fact {error}; deal_or_no_deal needs counts, "
            "agent_values and partner_values"
        ) from None


def _load(
    data_dir: str | None, heldout_file: str, first: bool, split: Split
) -> tuple[tuple[sources.Division, ...], sources.LoadReport]:
    names = ("train.txt", f"{heldout_file}.txt")
    train_path, heldout_path = sources.locate(data_dir, DealOrNoDeal.name, "dealornodeal", names)
    kept, report = sources.read_divisions(heldout_path)
    if split is Split.TRAIN:
        heldout = kept
        kept, report = sources.read_divisions(train_path)
        kept, shared = sources.without_shared(kept, heldout)
        report = report.adding(shared_with_heldout=shared)
    if first:
        kept = tuple({sources.unordered(d): d for d in reversed(kept)}.values())[::-1]
    return kept, report


def _kernel_id(d: sources.Division) -> str:
    return "dond-" + "|".join(",".join(map(str, part)) for part in (d.counts, d.you, d.them))


def _mirror(written: Written) -> Written:
    return written[1], written[0]


def _rest(pool: Counts, share: Counts) -> Counts:
    return tuple(c - s for c, s in zip(pool, share, strict=True))


def _points(share: Counts, values: Counts) -> int:
    return sum(n * v for n, v in zip(share, values, strict=True))


@lru_cache(maxsize=16384)
def _act(text: str, pool: Counts, strict: bool) -> boxed.Act[Written]:
    return boxed.act(
        text, lambda body: boxed.partition(body, ITEMS, pool, strict), boxed.PROPOSAL_TOKENS
    )


@lru_cache(maxsize=4096)
def _enumerated(pool: Counts, partner_values: Counts) -> tuple[tuple[Counts, int], ...]:
    """Every share of the agent with the partner's points for the rest, in lexicographic order."""
    shares = product(*(range(c + 1) for c in pool))
    return tuple((s, _points(_rest(pool, s), partner_values)) for s in shares)


@lru_cache(maxsize=16384)
def _best(pool: Counts, agent: Counts, partner: Counts, aspiration: float) -> Counts:
    worth = _enumerated(pool, partner)
    return min(
        (s for s, w in worth if w >= aspiration),
        key=lambda s: (-_points(s, agent), -_points(_rest(pool, s), partner), s),
    )


@lru_cache(maxsize=4096)
def _ranking(values: Counts, compact: bool) -> str:
    levels = sorted(set(values), reverse=True)
    tiers = [[i for i, v in zip(ITEMS, values, strict=True) if v == level] for level in levels]
    if compact:
        return ">".join("=".join(tier) for tier in tiers)
    words = [" and ".join(f"{item}s" for item in tier) for tier in tiers]
    if len(words) == 1:
        return "Books, hats and balls all matter equally to me"
    between = f", then {words[1]}" if len(words) == 3 else ""
    return f"I care most about {words[0]}{between}, and least about {words[-1]}"


def _written(counts: Counts, equals: str = "=") -> str:
    return " ".join(f"{item}{equals}{n}" for item, n in zip(ITEMS, counts, strict=True))


def _named(counts: Counts) -> str:
    parts = [f"{n} {item}{'s' * (n != 1)}" for item, n in zip(ITEMS, counts, strict=True)]
    return f"{parts[0]}, {parts[1]} and {parts[2]}"


def _reminder(compact: bool, pool: Counts, values: Counts) -> str:
    if compact:
        return f"[{_prompt(True, pool, values)}]"
    return (
        f"[PRIVATE NOTE | values: {_written(values)} | pool: {_written(pool)} | "
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
The boxes:
1. Propose: \\boxed{{AGREED: MINE: book=n hat=n ball=n; THEIRS: book=n hat=n ball=n}}. MINE is \
what you, the writer, get; THEIRS is what the other person gets. Put whole numbers for n, name all \
three items on both sides in the order book, hat, ball (also when it is 0), and let the two sides \
add up exactly to {_named(pool)}.
2. Accept: \\boxed{{ACCEPT}} takes the other person's latest proposal and closes the deal at it.
3. Reject: \\boxed{{REJECT}} turns the standing proposal down; keep talking or propose anew.
4. A deal closes only by one side's proposal and the other side's \\boxed{{ACCEPT}}. Agreeing in \
words, or silence, closes nothing. A new proposal replaces the one that stands.
5. If there is no hope of agreeing: \\boxed{{NO DEAL}}.
6. If the standing proposal is not good enough for you, go on negotiating until you find a better \
one."""
