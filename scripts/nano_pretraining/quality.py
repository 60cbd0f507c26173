"""What a model does in the games: conversations with the scripted partner, and their facts."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from iterpo.agents.local import LocalPolicy
from iterpo.agents.scripted import Bargaining, ScriptedPartner
from iterpo.collect.batch import collect, seats
from iterpo.collect.play import Table
from iterpo.domain import (
    Conversation,
    Ending,
    Role,
    Sampling,
    Scenario,
    Split,
    Turn,
    discounted_return,
)
from iterpo.models.backbone import Backbone
from nano_pretraining.judging import agent_boxes, consent_is_copied, words_fit
from nano_pretraining.kernels import game, kernels

__all__ = ["Quality", "converse", "measure"]

GAMMA = 0.9


@dataclass(frozen=True, slots=True)
class Quality:
    """Facts about a sample of conversations."""

    n: int
    """Conversations."""
    agreement: float
    """Share that closed a deal."""
    j: float
    """Mean discounted return, gamma 0.9 per agent turn."""
    j_star: float
    """Mean of the best attainable return."""
    boxing: float
    """Share of conversations in which the agent boxed something valid."""
    valid_boxes: float
    """Share of the agent's boxes that the game can read; sums that don't add up are invalid."""
    right_boxes: float
    """Share of boxes with terms that are valid, agree with their message's words, and, where the
    words consent, repeat the partner's standing offer."""
    right_words: float
    """Of the boxed messages that also name terms in words, the share where both agree."""
    copied: float
    """Of the boxes under words of consent, the share that repeats the standing offer; NaN where a
    game accepts by a keyword."""
    first_offer: float
    """Mean first boxed offer, as a share of what the agent could get at most."""
    spread: float
    """Standard deviation of the first boxed offers."""
    tokens: tuple[float, float, float]
    """5%, 50% and 95% points of the reply length in tokens."""
    truncated: float
    """Share of replies cut at the token limit."""


def converse(
    backbone: Backbone,
    name: str,
    n: int,
    sampling: Sampling,
    seed: int,
    *,
    split: Split = Split.TRAIN,
    data_dir: str | None = None,
) -> tuple[list[Conversation], dict[str, Scenario]]:
    """Conversations of a model with the scripted partner, at least ``n``.

    Args:
        backbone: The model.
        name: Game.
        n: Conversations; every kernel is played equally often.
        sampling: How replies are drawn.
        seed: Of the kernels (never those that were trained on) and of the draws.
        split: Kind of kernels.
        data_dir: Where a game's data set lies, to measure on its kernels; None: invented ones.
    """
    if data_dir is None:
        environment, scenarios = game(name), kernels(name, n, seed + 1, split)
    else:
        environment = game(name, data_dir=data_dir)
        scenarios = environment.scenarios(split, min(n, 150))  # CaSiNo has no more held out
    partner = ScriptedPartner(cast(Bargaining, environment))
    table = Table(environment, LocalPolicy(backbone, sampling), partner)
    places = seats(scenarios, math.ceil(n / len(scenarios)), round=0, seed=seed)
    played = collect(table, places, j_star=lambda s: partner.j_star(s, GAMMA))
    return list(played), {s.kernel_id: s for s in scenarios}


def measure(conversations: Sequence[Conversation], scenarios: Mapping[str, Scenario]) -> Quality:
    """The facts of a sample."""
    boxed: list[bool] = []
    right: list[bool] = []
    named: list[bool] = []
    consents: list[bool] = []
    first: list[float] = []
    boxing = 0
    sampled = []
    for conversation in conversations:
        scenario = scenarios[conversation.kernel_id]
        offers: list[float] = []
        valid_before = sum(boxed)
        for i, turn in _spoken(conversation):
            found = agent_boxes(turn.text, scenario)
            boxed += [box.valid for box in found]
            offers += [box.share for box in found if box.share is not None]
            fits = words_fit(turn.text, scenario)
            copied = consent_is_copied(turn.text, conversation.turns[:i], scenario)
            named += [] if fits is None else [fits]
            consents += [] if copied is None else [copied]
            bad = fits is False or copied is False
            right += [box.valid and not bad for box in found if box.names_terms]
            sampled += [turn.sampled] if turn.sampled else []
        boxing += sum(boxed) > valid_before
        first += offers[:1]
    lengths = statistics.quantiles([len(s.token_ids or ()) for s in sampled], n=20)
    return Quality(
        n=len(conversations),
        agreement=_mean([c.outcome.ending is Ending.AGREED for c in conversations]),
        j=_mean([discounted_return(c, GAMMA, "agent_turn") for c in conversations]),
        j_star=_mean([c.j_star["agent_turn"] for c in conversations]),
        boxing=boxing / len(conversations),
        valid_boxes=_mean(boxed),
        right_boxes=_mean(right),
        right_words=_mean(named),
        copied=_mean(consents),
        first_offer=_mean(first),
        spread=statistics.pstdev(first) if first else math.nan,
        tokens=(lengths[0], lengths[9], lengths[18]),
        truncated=_mean([s.finish != "stop" for s in sampled]),
    )


def _spoken(conversation: Conversation) -> list[tuple[int, Turn]]:
    turns = enumerate(conversation.turns)
    return [(i, t) for i, t in turns if t.role is Role.AGENT and not t.scripted]


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else math.nan
