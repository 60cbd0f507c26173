"""Optimism: what is drawn, which draft is said, how it is marked, and that nothing else changes."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from agents.test_persona import Toy
from iterpo.agents.base import Agent, AgentFactory, Reply, Seat
from iterpo.agents.optimist import (
    CHOICE,
    OptimismConfig,
    Optimistic,
    best,
    draw_optimism,
)
from iterpo.agents.persona import Exploring, PersonaConfig, draw_persona
from iterpo.collect import Table, collect, seats
from iterpo.domain import (
    Conversation,
    Ending,
    Exploration,
    Response,
    Role,
    Sampled,
    Sampling,
    Scenario,
    Split,
    State,
    View,
    decisions,
    derive,
)
from iterpo.errors import ConfigError
from iterpo.policy_evaluation.continuation import first_own_return
from iterpo.store import from_line, to_line

HALF = OptimismConfig(share=0.5, candidates=5, within=3)


@pytest.mark.parametrize("share", [0.4, 1.0])
def test_propensities_sum_to_1_and_draws_are_as_frequent(share: float) -> None:
    config = OptimismConfig(share=share, within=4)
    possible = [Exploration(CHOICE, share / 4, action) for action in (1, 2, 3, 4)]
    if share < 1:
        possible.append(Exploration({}, 1 - share))
    expected = {d.action: d.propensity for d in possible}
    assert math.fsum(expected.values()) == pytest.approx(1.0, abs=1e-15)
    n = 20_000
    drawn = [draw_optimism(config, seed) for seed in range(n)]
    counts = Counter(d.action for d in drawn)
    assert counts.keys() == expected.keys()
    chi_square = sum((counts[k] - n * p) ** 2 / (n * p) for k, p in expected.items())
    assert chi_square < 18.5  # 99.9% quantile at 4 degrees of freedom; the seeds are fixed
    assert all(d in possible for d in drawn[:300])


def test_the_draw_is_not_the_personas() -> None:
    """Else both would explore the same conversations and leave the others to nobody."""
    persona = PersonaConfig(share=0.5)
    both = Counter(
        (draw_optimism(HALF, s).off_policy, draw_persona(persona, s).off_policy)
        for s in range(4000)
    )
    assert all(abs(n - 1000) < 120 for n in both.values()), both


@pytest.mark.parametrize(
    ("scores", "place"),
    [
        ([0.1, 0.4, 0.3], 1),
        ([0.4, 0.1, 0.4], 0),
        ([None, -3.0, math.nan], 1),
        ([math.nan, None], 0),
        ([-math.inf, -1e30], 1),
    ],
)
def test_the_best_by_hand(scores: Sequence[float | None], place: int) -> None:
    assert best(scores) == place


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"share": 0.0}, r"share: given 0\.0; accepted: above 0, at most 1"),
        ({"share": math.nan}, "share: given nan"),
        ({"candidates": 1}, "candidates: given 1; accepted: 2 or more"),
        ({"scale": -0.5}, "scale: given -0.5; accepted: 0 or more"),
        ({"scale": math.inf}, "scale: given inf"),
        ({"within": 0}, "within: given 0; accepted: 1 or more"),
    ],
)
def test_impossible_settings_are_refused(given: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        OptimismConfig(**given)


class Speaker:
    """Says a number that follows from its seed and the length of the talk; notes its seats."""

    def __init__(self) -> None:
        self.open: Counter[int] = Counter()
        self.opened = 0

    def __call__(self, seat: Seat) -> Agent:
        self.open[seat.seed] += 1
        self.opened += 1
        return _Seated(self, seat)


class _Seated:
    def __init__(self, speaker: Speaker, seat: Seat) -> None:
        self.speaker, self.seat = speaker, seat

    async def reply(self, view: View) -> Reply:
        number = draft(self.seat.seed, len(view.turns))
        evidence = Sampled((number,), (-1.0,), Sampling(), view.system, 1, "r0-x", "stop")
        return Reply(str(number), evidence)

    def close(self) -> None:
        self.speaker.open[self.seat.seed] -= 1


def draft(seed: int, turns: int) -> int:
    return derive("draft", seed, turns) % 1000


class Score:
    """Likes large numbers, but for those that it doesn't know; notes what it was asked."""

    def __init__(self, unknown: int = 0) -> None:
        self.unknown = unknown
        self.asked: list[tuple[State, tuple[Response, ...]]] = []

    def __call__(
        self, states: Sequence[State], responses: Sequence[Response]
    ) -> list[float | None]:
        assert len(set(map(id, states))) == 1
        self.asked.append((states[0], tuple(responses)))
        values = [int(r.text) for r in responses]
        return [None if v > 1000 - self.unknown else float(v) for v in values]


def converse(agent: AgentFactory, attempts: int = 1) -> tuple[Conversation, ...]:
    places = seats(Toy().scenarios(Split.TRAIN, 20), 2, round=1, seed=3)
    return collect(Table(Toy(), agent, Speaker(), "r1-x"), places, attempts=attempts)


def test_the_draft_with_the_highest_score_is_said_and_marked_and_nothing_else_changes() -> None:
    speaker, score = Speaker(), Score()
    played = converse(Optimistic(speaker, score, HALF))
    plain = converse(Speaker())
    said = 0
    for c, p in zip(played, plain, strict=True):
        drawn = draw_optimism(HALF, c.seed)
        assert c.exploration == drawn
        assert c.system == p.system
        if not drawn.off_policy:
            assert to_line(dataclasses.replace(c, exploration=None)) == to_line(p)
            continue
        assert drawn.action is not None
        m = 2 * drawn.action  # message index of action t
        seeds = [c.seed, *(derive(c.seed, "optimism", "draft", k) for k in range(1, 5))]
        drafts = [draft(seed, m) for seed in seeds]
        assert c.turns[m].text == str(max(drafts))
        for i, turn in enumerate(c.turns):
            assert turn.off_policy == (i == m)
            assert turn.text == p.turns[i].text or i == m, "later turns are the agent's own"
        sampled = c.turns[m].sampled
        assert sampled is not None
        assert (sampled.token_ids, sampled.logprobs) == ((max(drafts),), (-1.0,))
        said += max(drafts) != drafts[0]
    assert said > 5, "else the first draft would always do"
    explored = [c for c in played if c.explored]
    assert len(score.asked) == len(explored)
    for c, (state, responses) in zip(
        sorted(explored, key=lambda c: c.id),
        sorted(score.asked, key=lambda a: a[0].conversation_id),
        strict=True,
    ):
        row = decisions(c, 0.9)[first_own_return(c, 0.9) - 1]
        assert row.state == state, "Q reads at collection what it is fitted to later"
        assert row.turn.off_policy
        assert row.response in responses
        assert len(responses) == 5
    assert speaker.opened == 40 + 4 * len(explored)
    assert not +speaker.open, "every seat is given up"


def test_a_draft_without_a_score_is_not_said() -> None:
    knows, fails = Score(unknown=400), Score(unknown=2000)
    for c in converse(Optimistic(Speaker(), knows, HALF)):
        for turn in c.turns:
            drafts = next((r for s, r in knows.asked if s.conversation_id == c.id), ())
            if turn.off_policy and any(int(r.text) <= 600 for r in drafts):
                assert int(turn.text) <= 600
    for c, p in zip(converse(Optimistic(Speaker(), fails, HALF)), converse(Speaker()), strict=True):
        assert [t.text for t in c.turns] == [t.text for t in p.turns], "the agent's own draft"
        assert any(t.off_policy for t in c.turns) == c.explored, "marked by the draw all the same"


def test_a_draw_is_the_same_in_every_run_and_survives_the_store() -> None:
    first, second = (converse(Optimistic(Speaker(), Score(), HALF)) for _ in range(2))
    assert first == second
    assert tuple(from_line(to_line(c), "here") for c in first) == first
    assert all(c.exploration.traits == CHOICE for c in first if c.explored and c.exploration)


def test_an_action_that_is_never_reached_leaves_the_conversation_explored() -> None:
    late = dataclasses.replace(HALF, within=9)  # a talk has three actions
    played = [c for c in converse(Optimistic(Speaker(), Score(), late)) if c.explored]
    unreached = [c for c in played if not any(t.off_policy for t in c.turns)]
    assert 0 < len(unreached) < len(played)
    assert all(first_own_return(c, 0.9) > 3 for c in unreached), "none of its rows is Q's"


def test_what_a_persona_explores_is_left_to_it() -> None:
    persona = PersonaConfig(share=0.5, traits={"tone": {"warm": 1}})
    policy = Speaker()
    played = converse(
        Optimistic(policy, Score(), HALF, inner=Exploring(policy, persona, "compact"))
    )
    kinds = Counter[str]()
    for c in played:
        assert c.exploration is not None
        told, drawn = draw_persona(persona, c.seed), draw_optimism(HALF, c.seed)
        if told.off_policy:
            assert c.exploration == told
            kinds["persona"] += 1
        else:
            assert c.exploration.traits == drawn.traits
            assert c.exploration.propensity == pytest.approx(0.5 * drawn.propensity)
            kinds["optimistic" if drawn.off_policy else "plain"] += 1
    assert len(kinds) == 3


def test_a_failing_draft_fails_the_conversation_and_leaves_no_seat_taken() -> None:
    class Failing(Speaker):
        def __call__(self, seat: Seat) -> Agent:
            agent = super().__call__(seat)
            own = {s.seed for s in seats(Toy().scenarios(Split.TRAIN, 20), 2, round=1, seed=3)}
            if seat.seed in own:
                return agent

            async def fail(view: View) -> Reply:
                raise TimeoutError("no draft")

            agent.reply = fail  # type: ignore[method-assign]
            return agent

    speaker = Failing()
    for c in converse(Optimistic(speaker, Score(), HALF)):
        failed = c.outcome.ending is Ending.INFRASTRUCTURE_FAILURE
        assert failed == c.explored
        assert ("no draft" in c.outcome.detail) == failed
    assert not +speaker.open


def test_the_partners_seat_is_refused() -> None:
    place = Seat(Scenario("k", "toy", Split.TRAIN, {}), Role.PARTNER, 0, 0, 0)
    with pytest.raises(ConfigError, match="agent's seat, not for the 'partner'"):
        Optimistic(Speaker(), Score(), HALF)(place)


def test_drafts_of_a_model_share_its_calls_and_carry_the_policys_own_evidence(
    tmp_path: Path,
) -> None:
    """Agents of one model wait for each other; a draft that nobody counts would wait forever."""
    pytest.importorskip("torch")
    from iterpo.agents.local import LocalPolicy
    from iterpo.models import hub
    from iterpo.models.backbone import load
    from iterpo.models.chat import prompt_sha256
    from iterpo.models.generation import generate
    from iterpo.testing.tiny_model import tiny_model

    backbone = load(hub.base_policy(str(tiny_model(tmp_path / "tiny"))), device="cpu")
    places = seats(Toy().scenarios(Split.TRAIN, 6), 1, round=1, seed=3)
    sampling = Sampling(max_new_tokens=4)

    def longest(states: Sequence[State], responses: Sequence[Response]) -> list[float | None]:
        return [float(sum(r.token_ids or ())) for r in responses]

    def deploy(optimistic: bool) -> tuple[tuple[Conversation, ...], int]:
        policy = LocalPolicy(backbone, sampling)
        partner = LocalPolicy(backbone, sampling, beside=policy)
        agent = Optimistic(policy, longest, HALF) if optimistic else policy
        played = collect(Table(Toy(), agent, partner, "r1-x"), places, concurrency=6)
        return played, policy.calls

    (explored, calls), (_, plain_calls) = deploy(True), deploy(False)
    assert calls == plain_calls == 3, "all drafts come with the others' messages"
    assert {c.explored for c in explored} == {True, False}
    for c in explored:
        assert c.outcome.ending is Ending.AGREED
        for m in (2, 4, 6):
            turn = c.turns[m]
            if not turn.off_policy:
                continue
            assert turn.sampled is not None
            prompt = backbone.chat.prompt_ids(c.agent_view(m).messages())
            assert turn.sampled.prompt_sha256 == prompt_sha256(prompt)
            seeds = [c.seed, *(derive(c.seed, "optimism", "draft", k) for k in range(1, 5))]
            drawn = generate(backbone, [prompt] * 5, sampling, [derive(s, m) for s in seeds])
            chosen = max(drawn, key=lambda g: sum(g.token_ids))
            assert turn.sampled.token_ids == chosen.token_ids
            assert turn.sampled.logprobs == pytest.approx(chosen.logprobs, abs=1e-4)
