"""Plays of an environment by all kinds of speakers, and what must hold for how they end."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from iterpo.agents.base import AgentFactory, Seat
from iterpo.agents.scripted import ScriptedPartner, bargaining
from iterpo.agents.yardsticks import FirstCounter, Oracle, RandomOffer
from iterpo.collect.play import wait_for
from iterpo.domain import Ending, Outcome, Role, Scenario, Turn, derive
from iterpo.environments.base import Environment
from iterpo.testing.report import Findings
from iterpo.testing.speakers import GARBAGE, Parrot, Rambler, Silent

__all__ = [
    "Play",
    "check_outcomes",
    "check_repeatable",
    "check_what_follows",
    "play_all",
]

Pair = tuple[str, AgentFactory, AgentFactory]
"""What the two are called, the agent and the partner."""


@dataclass(frozen=True, slots=True)
class Play:
    """One conversation of the check."""

    who: str
    """Who spoke."""
    seat: Seat
    """Kernel and seed."""
    turns: tuple[Turn, ...]
    """Transcript, opening first."""
    outcome: Outcome | None
    """How it ended; None if it did not within the bound."""

    def __repr__(self) -> str:
        """For counter-examples: who played what, and what was said last."""
        last = self.turns[-1].text
        said = f"{last[:60]!r}" if len(last) < 61 else f"{last[:60]!r}…"
        kernel, n = self.seat.scenario.kernel_id, len(self.turns)
        return f"[{self.who} on kernel {kernel}, {n} messages, the last {said}]"


def play_all(
    env: Environment,
    scenarios: Sequence[Scenario],
    n: int,
    seed: int,
    max_messages: int,
    speaker: AgentFactory | None,
    findings: Findings,
) -> list[Play]:
    """``n`` plays, every kind of speaker in turn; those that raised or made no sense are left out.

    Termination is checked on the way.
    """
    rule = f"termination: a conversation ends within {max_messages} messages"
    plays: list[Play] = []
    pairs = _pairs(env, speaker)
    for i in range(n):
        pair = pairs[i % len(pairs)]
        scenario = scenarios[i // len(pairs) % len(scenarios)]
        seat = Seat(scenario, Role.AGENT, 0, i, derive(seed, "check", i))
        with findings.calling("a play", pair[0], "on kernel", scenario.kernel_id):
            play = _play(env, pair, seat, max_messages)
            findings.expect(rule, play.outcome is not None, play)
            if _well_formed(play, findings):
                plays.append(play)
                findings.ended(play.outcome.ending.value if play.outcome else "not at all")
    return plays


def _well_formed(play: Play, findings: Findings) -> bool:
    outcome = play.outcome
    return findings.expect(
        "outcome: read gives an Outcome with an Ending of the game's own, or None",
        outcome is None
        or (
            isinstance(outcome, Outcome)
            and isinstance(outcome.ending, Ending)
            and outcome.ending is not Ending.INFRASTRUCTURE_FAILURE
        ),
        play,
        "gave",
        outcome,
    )


def _pairs(env: Environment, speaker: AgentFactory | None) -> list[Pair]:
    pairs: list[Pair] = [
        ("two silent parties", Silent, Silent),
        ("two rambling parties", Rambler, Rambler),
        ("two parrots", Parrot, Parrot),
    ]
    if speaker:
        pairs += [("two of the speaker", speaker, speaker), ("parrot, speaker", Parrot, speaker)]
    game = bargaining(env)
    if game:
        partner = ScriptedPartner(game)
        pairs += [
            ("silent agent, scripted partner", Silent, partner),
            ("random offers, scripted partner", RandomOffer(game), partner),
            ("first counter, scripted partner", FirstCounter(game), partner),
            ("oracle, scripted partner", Oracle(game), partner),
        ]
    return pairs


def _play(env: Environment, pair: Pair, seat: Seat, max_messages: int) -> Play:
    who, agent, partner = pair
    speakers = {
        role: factory(Seat(seat.scenario, role, seat.round, seat.replica, seat.seed))
        for role, factory in ((Role.AGENT, agent), (Role.PARTNER, partner))
    }

    async def talk() -> Play:
        turns: list[Turn] = [env.opening(seat.scenario)]
        outcome = env.read(seat.scenario, tuple(turns))
        while outcome is None and len(turns) <= max_messages:
            role = Role.PARTNER if len(turns) % 2 else Role.AGENT
            reply = await speakers[role].reply(env.view(seat.scenario, role, tuple(turns)))
            turns.append(reply.turn(role))
            outcome = env.read(seat.scenario, tuple(turns))
        return Play(who, seat, tuple(turns), outcome)

    try:
        return wait_for(talk)
    finally:
        for speaker in speakers.values():
            speaker.close()


def check_repeatable(
    other: Environment,
    plays: Sequence[Play],
    max_messages: int,
    speaker: AgentFactory | None,
    findings: Findings,
) -> None:
    """The same seeds give the same conversation on another instance of the game."""
    pairs = {pair[0]: pair for pair in _pairs(other, speaker)}
    first = {play.who: play for play in reversed(plays)}
    for play in first.values():
        with findings.calling("a play on another instance", play):
            again = _play(other, pairs[play.who], play.seat, max_messages)
            findings.expect(
                "determinism: the same seeds give the same conversation",
                (again.turns, again.outcome) == (play.turns, play.outcome),
                play,
                "became",
                again,
            )


def check_outcomes(
    plays: Sequence[Play], reward_range: tuple[float, float] | None, findings: Findings
) -> None:
    """Form of the outcome, and its reward."""
    for play in plays:
        outcome = play.outcome
        if outcome is None:
            continue
        _check_form(play, outcome, findings)
        _check_reward(play, outcome, reward_range, findings)
    if reward_range is None:
        findings.unchecked("reward: bounds", "none were given; pass reward_range=(low, high)")
    if not any(p.outcome and p.outcome.ending is Ending.AGREED for p in plays):
        findings.unchecked(
            "reward: agreements",
            "no play ended in a deal; pass speaker=, an agent factory that says what closes one",
        )


def _check_form(play: Play, outcome: Outcome, findings: Findings) -> None:
    try:
        terms = dict(outcome.terms)
        stored = json.loads(json.dumps(terms, allow_nan=False)) == terms
        flat = all(isinstance(v, (int, float, str)) for v in terms.values())
    except (TypeError, ValueError):
        stored = flat = False
    findings.expect(
        "outcome: terms are named numbers and texts, which JSON keeps",
        stored and flat,
        play,
        "gave terms",
        outcome.terms,
    )
    findings.expect(
        "outcome: closing_message is the index of the message that ended it",
        outcome.closing_message == len(play.turns) - 1,
        play,
        f"gave {outcome.closing_message}, not {len(play.turns) - 1}",
    )
    words = (outcome.closed_by, outcome.detail, *outcome.flags)
    findings.expect(
        "outcome: flags are a tuple of texts, closed_by and detail are texts",
        isinstance(outcome.flags, tuple) and all(isinstance(w, str) for w in words),
        play,
        "gave",
        outcome,
    )


def _check_reward(
    play: Play, outcome: Outcome, bounds: tuple[float, float] | None, findings: Findings
) -> None:
    reward: Any = outcome.reward
    if not outcome.ending.scored:
        findings.expect(
            f"reward: none where the ending is not scored ({outcome.ending.value})",
            reward is None,
            play,
            "gave",
            reward,
        )
        return
    number = isinstance(reward, (int, float)) and not isinstance(reward, bool)
    finite = findings.expect(
        "reward: a finite number where the ending is scored",
        number and math.isfinite(reward),
        play,
        f"ended {outcome.ending.value} with",
        reward,
    )
    if bounds and finite:
        low, high = bounds
        within = low - 1e-9 <= reward <= high + 1e-9
        findings.expect(
            f"reward: within [{low:g}, {high:g}]",
            within,
            play,
            f"ended {outcome.ending.value} with",
            reward,
        )


def check_what_follows(
    env: Environment, plays: Sequence[Play], seed: int, findings: Findings
) -> None:
    """Nothing that is said after the end changes the outcome."""
    pool = sorted({turn.text for play in plays for turn in play.turns})
    for i, play in enumerate(plays):
        if play.outcome is None:
            continue
        rng = random.Random(derive(seed, "after the end", i))
        for more in ([play.turns[-1].text], rng.choices(pool, k=3), rng.choices(GARBAGE, k=2)):
            turns = list(play.turns)
            for text in more:
                turns.append(Turn(turns[-1].role.other, text))
            with findings.calling("read after the end", play, "then", more):
                later = env.read(play.seat.scenario, tuple(turns))
                findings.expect(
                    "after the end: further messages change nothing",
                    later == play.outcome,
                    play,
                    "then",
                    more,
                    "gave",
                    later,
                )
