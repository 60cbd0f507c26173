"""What a model does in the games: conversations with the scripted partner, and their facts."""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from iterpo.agents.local import LocalPolicy
from iterpo.agents.scripted import Bargaining, ScriptedPartner
from iterpo.collect.batch import collect, seats
from iterpo.collect.play import Table
from iterpo.domain import Conversation, Ending, Role, Sampling, Scenario, Split, discounted_return
from iterpo.environments.boxed import amount_cents, boxes, partition
from iterpo.models.backbone import Backbone
from nano_pretraining.corpus import game, generated_dond

__all__ = ["Quality", "agent_boxes", "converse", "measure", "right_sums"]


@dataclass(frozen=True, slots=True)
class Quality:
    """Facts about a sample of conversations."""

    agreement: float
    """Share that closed a deal."""
    j: float
    """Mean discounted return, gamma 0.9 per agent turn."""
    j_star: float
    """Mean of the best attainable return."""
    valid_boxes: float
    """Share of the agent's keyword boxes that the game can read."""
    right_sums: float
    """Share of messages with amounts in words that agree with their box."""
    first_offer: float
    """Mean first boxed offer: the agent's part of the pool, or of its 10 points."""
    spread: float
    """Standard deviation of the first boxed offers."""
    tokens: tuple[float, float, float]
    """5%, 50% and 95% points of the reply length in tokens."""
    truncated: float
    """Share of replies cut at the token limit."""


def converse(
    backbone: Backbone, name: str, n: int, sampling: Sampling, seed: int
) -> tuple[list[Conversation], dict[str, Scenario]]:
    """Conversations of a model with the scripted partner, on ``n`` train kernels of a game.

    Deal or No Deal kernels are invented ones, in the layout of the data.
    """
    environment = game(name)
    scenarios = (
        environment.scenarios(Split.TRAIN, n)
        if name == "ultimatum"
        else generated_dond(n, seed + 1)
    )
    partner = ScriptedPartner(cast(Bargaining, environment))
    table = Table(environment, LocalPolicy(backbone, sampling), partner)
    places = seats(scenarios, 1, round=0, seed=seed)
    played = collect(table, places, j_star=lambda s: partner.j_star(s, 0.9))
    return list(played), {s.kernel_id: s for s in scenarios}


def measure(conversations: Sequence[Conversation], scenarios: Mapping[str, Scenario]) -> Quality:
    """The facts of a sample."""
    boxed: list[bool] = []
    sums: list[bool] = []
    first: list[float] = []
    sampled = []
    for conversation in conversations:
        scenario = scenarios[conversation.kernel_id]
        offers = []
        for turn in conversation.turns[1:]:
            if turn.role is Role.AGENT:
                found = agent_boxes(turn.text, scenario)
                boxed += [valid for valid, _ in found]
                offers += [share for _, share in found if share is not None]
                sums += right_sums(turn.text, scenario)
                sampled += [turn.sampled] if turn.sampled else []
        first += offers[:1]
    lengths = statistics.quantiles([len(s.token_ids) for s in sampled], n=20)
    return Quality(
        statistics.fmean(c.outcome.ending is Ending.AGREED for c in conversations),
        statistics.fmean(discounted_return(c, 0.9, "agent_turn") for c in conversations),
        statistics.fmean(c.j_star["agent_turn"] for c in conversations),
        statistics.fmean(boxed),
        statistics.fmean(sums) if sums else float("nan"),
        statistics.fmean(first),
        statistics.pstdev(first),
        (lengths[0], lengths[9], lengths[18]),
        statistics.fmean(s.finish != "stop" for s in sampled),
    )


def agent_boxes(text: str, scenario: Scenario) -> list[tuple[bool, float | None]]:
    """(valid, offered part in [0, 1]) of each box of an agent's message; no part for ACCEPT etc."""
    out: list[tuple[bool, float | None]] = []
    for body in boxes(text):
        if body in ("NO DEAL", "ACCEPT", "REJECT"):
            out.append((body == "NO DEAL" or scenario.environment == "deal_or_no_deal", None))
            continue
        terms = body.removeprefix("AGREED:").strip()
        share = _money(terms, scenario) if scenario.environment == "ultimatum" else None
        if scenario.environment == "deal_or_no_deal":
            share = _worth(terms, scenario)
        out.append((share is not None, share))
    # A marker that is never closed is no box for the game, but it was meant as one.
    return out + [(False, None)] * (text.count("\\boxed") - len(out))


def _money(terms: str, scenario: Scenario) -> float | None:
    cents = amount_cents(terms.removeprefix("split=")) if terms.startswith("split=") else None
    pool = 100 * int(scenario.facts["pool"])
    return cents / pool if cents is not None and cents <= pool else None


def _worth(terms: str, scenario: Scenario) -> float | None:
    facts = scenario.facts
    found = partition(terms, ("book", "hat", "ball"), tuple(facts["counts"]))
    if found is None:
        return None
    return sum(n * int(v) for n, v in zip(found[0], facts["agent_values"], strict=True)) / 10


_AMOUNT = re.compile(r"\$(\d+)")
_ITEM = re.compile(r"(\d) (book|hat|ball)")


def right_sums(text: str, scenario: Scenario) -> list[bool]:
    """Whether what is said in words fits the box of the same message; empty if nothing is said."""
    words, _, rest = text.partition("\\boxed{AGREED:")
    if not rest:
        return []
    if scenario.environment == "ultimatum":
        box = _AMOUNT.search(rest)
        said = {int(a) for a in _AMOUNT.findall(words)}
        if not said or not box:
            return []
        x = int(box[1])
        return [said <= {x, scenario.facts["pool"] - x}]
    named = {i: int(n) for n, i in _ITEM.findall(words)}
    sides = re.findall(r"book=(\d+) hat=(\d+) ball=(\d+)", rest)
    if not named or len(sides) != 2:
        return []
    said_counts = tuple(named.get(i, 0) for i in ("book", "hat", "ball"))
    return [said_counts in [tuple(int(n) for n in side) for side in sides]]
