"""Both sides of a conversation at policies of this process: nobody waits for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from iterpo.agents.base import Agent, AgentFactory, Reply, Seat
from iterpo.agents.local import LocalPolicy
from iterpo.collect.batch import Tally, collect, collect_into, seats
from iterpo.collect.play import Table
from iterpo.domain import Conversation, Ending, Outcome, Role, Sampling, Scenario, Split, Turn, View
from iterpo.environments.base import Environment
from iterpo.models import hub
from iterpo.models.backbone import Backbone, load
from iterpo.testing.tiny_model import tiny_model

SAMPLING = Sampling(max_new_tokens=5)
OTHER = Sampling(temperature=0.5, top_p=0.9, max_new_tokens=4)

Pair = tuple[AgentFactory, AgentFactory]


class Talk:
    """Ends after as many messages as the scenario says; some begin with the partner."""

    name = "talk"
    options = None

    def scenarios(self, split: Split, n: int, data_seed: int = 42) -> tuple[Scenario, ...]:
        return tuple(
            Scenario(f"k{i}", "talk", split, {"length": 1 + 3 * i % 7, "first": i % 3 != 1})
            for i in range(n)
        )

    def opening(self, scenario: Scenario) -> Turn:
        return Turn(Role.AGENT if scenario.facts["first"] else Role.PARTNER, "hello", scripted=True)

    def view(self, scenario: Scenario, role: Role, turns: Sequence[Turn]) -> View:
        return View(role, f"You are the {role.value}.", tuple(turns))

    def read(self, scenario: Scenario, turns: Sequence[Turn]) -> Outcome | None:
        if len(turns) <= int(scenario.facts["length"]):
            return None
        return Outcome(Ending.AGREED, 1.0, closing_message=len(turns) - 1)


ENV: Environment = Talk()


class Breaking:
    """Seats whom it is given, but lets some conversations fail, at once or in the middle."""

    def __init__(self, inner: AgentFactory, kernels: set[str], after: int) -> None:
        self.inner, self.kernels, self.after = inner, kernels, after

    def __call__(self, seat: Seat) -> Agent:
        agent = self.inner(seat)
        breaks = seat.scenario.kernel_id in self.kernels
        return _Breaking(agent, self.after) if breaks else agent


class _Breaking:
    def __init__(self, inner: Agent, after: int) -> None:
        self.inner, self.after = inner, after

    async def reply(self, view: View) -> Reply:
        if len(view.turns) > self.after:
            raise ConnectionError("gone")
        return await self.inner.reply(view)

    def close(self) -> None:
        self.inner.close()


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Backbone:
    folder = tiny_model(tmp_path_factory.mktemp("tiny"))
    return load(hub.base_policy(str(folder)), device="cpu")


def one(backbone: Backbone) -> Pair:
    policy = LocalPolicy(backbone, SAMPLING)
    return policy, policy


def two(backbone: Backbone) -> Pair:
    policy = LocalPolicy(backbone, SAMPLING)
    return policy, LocalPolicy(backbone, OTHER, beside=policy)


def play(pair: Pair, concurrency: int = 128, n: int = 7) -> tuple[Conversation, ...]:
    places = seats(ENV.scenarios(Split.TRAIN, n), 2, round=0, seed=3)
    return collect(Table(ENV, *pair), places, concurrency=concurrency, attempts=1)


def said(played: Sequence[Conversation]) -> list[list[tuple[int, ...] | None]]:
    return [[t.sampled.token_ids for t in c.turns if t.sampled] for c in played]


@pytest.mark.parametrize("pair", [one, two])
@pytest.mark.timeout(60)  # a barrier that waits for ever is what can go wrong
def test_self_play_ends_whatever_the_lengths(
    backbone: Backbone, pair: Callable[[Backbone], Pair]
) -> None:
    played = play(pair(backbone))
    assert [c.outcome.ending for c in played] == [Ending.AGREED] * 14
    lengths = {len(c.turns) for c in played}
    assert len(lengths) > 3
    for conversation in played:
        assert all(t.sampled for t in conversation.turns[1:]), "both sides leave their evidence"


@pytest.mark.parametrize("pair", [one, two])
@pytest.mark.timeout(60)
def test_self_play_repeats_and_does_not_depend_on_the_company(
    backbone: Backbone, pair: Callable[[Backbone], Pair]
) -> None:
    whole = said(play(pair(backbone)))
    assert whole == said(play(pair(backbone)))
    assert whole == said(play(pair(backbone), concurrency=1))
    assert whole == said(play(pair(backbone), concurrency=3))
    first = [c[0] for c in whole if c]
    assert len(set(first)) > len(first) // 2, "seats have streams of their own"


def test_the_sides_speak_with_their_own_settings(backbone: Backbone) -> None:
    for conversation in play(two(backbone)):
        for turn in conversation.turns[1:]:
            assert turn.sampled
            assert turn.sampled.sampling == (SAMPLING if turn.role is Role.AGENT else OTHER)


@pytest.mark.parametrize("pair", [one, two])
@pytest.mark.parametrize("after", [0, 2])
@pytest.mark.timeout(60)
def test_conversations_that_fail_hold_nobody_up(
    backbone: Backbone, pair: Callable[[Backbone], Pair], after: int
) -> None:
    agent, partner = pair(backbone)
    broken = (Breaking(agent, {"k2"}, after), Breaking(partner, {"k5", "k6"}, after))
    played = play(broken)
    failed = {c.kernel_id for c in played if c.outcome.ending is Ending.INFRASTRUCTURE_FAILURE}
    assert {"k2", "k6"} <= failed
    assert failed <= {"k2", "k5", "k6"}
    whole = said(play(pair(backbone)))
    for conversation, texts in zip(played, whole, strict=True):
        if conversation.kernel_id not in failed:
            assert said([conversation]) == [texts]


@pytest.mark.parametrize("pair", [one, two])
@pytest.mark.timeout(60)
def test_a_batch_that_is_killed_and_resumed_is_the_same_to_the_last_bit(
    backbone: Backbone, pair: Callable[[Backbone], Pair], tmp_path: Path
) -> None:
    """What is kept of open conversations, and how much fits, is a matter of a block alone."""
    places = seats(ENV.scenarios(Split.TRAIN, 7), 2, round=0, seed=3)

    def small() -> Pair:
        sides = pair(backbone)
        for side in sides:
            side._kept.most_bytes = 60_000  # type: ignore[attr-defined]  # a few conversations
        return sides

    def run(folder: Path, sides: Pair) -> tuple[Conversation, ...]:
        return collect_into(folder, Table(ENV, *sides), places, concurrency=4, attempts=2)

    whole = run(tmp_path / "whole", small())

    class Killed(BaseException):
        pass

    def kill(tally: Tally) -> None:
        if tally.done == 10:
            raise Killed

    with pytest.raises(Killed):
        collect_into(tmp_path / "two", Table(ENV, *small()), places, concurrency=4, progress=kill)
    assert len(list((tmp_path / "two" / "parts").iterdir())) == 2
    assert run(tmp_path / "two", small()) == whole


@pytest.mark.timeout(60)
def test_a_conversation_that_is_tried_again_starts_with_nothing(backbone: Backbone) -> None:
    policy = LocalPolicy(backbone, SAMPLING)
    places = seats(ENV.scenarios(Split.TRAIN, 7), 2, round=0, seed=3)
    failed = {"left": 2}

    class Once(_Breaking):
        async def reply(self, view: View) -> Reply:
            if len(view.turns) > 2 and failed["left"]:
                failed["left"] -= 1
                raise ConnectionError("gone")
            return await self.inner.reply(view)

    partner = LocalPolicy(backbone, SAMPLING, beside=policy)
    played = collect(Table(ENV, lambda s: Once(policy(s), 0), partner), places, attempts=2)
    assert failed["left"] == 0
    assert said(played) == said(play(two_alike(backbone)))
    assert policy._kept.count == partner._kept.count == 0


def two_alike(backbone: Backbone) -> Pair:
    policy = LocalPolicy(backbone, SAMPLING)
    return policy, LocalPolicy(backbone, SAMPLING, beside=policy)


def test_conversations_at_the_same_turn_share_one_call(backbone: Backbone) -> None:
    policy = LocalPolicy(backbone, SAMPLING)
    played = play((policy, policy), n=6)
    assert policy.calls == max(len(c.turns) for c in played) - 1


@pytest.mark.timeout(60)
def test_counting_seats_instead_of_conversations_would_wait_for_ever(backbone: Backbone) -> None:
    """The wrong twin: two policies that do not know of each other, openings by either side."""
    pair = LocalPolicy(backbone, SAMPLING), LocalPolicy(backbone, OTHER)

    async def talk() -> None:
        from iterpo.collect.play import play as one_conversation

        places = seats(ENV.scenarios(Split.TRAIN, 7), 1, round=0, seed=3)
        table = Table(ENV, *pair)
        await asyncio.wait_for(
            asyncio.gather(*(one_conversation(table, place) for place in places)), timeout=1
        )

    with pytest.raises(TimeoutError):
        asyncio.run(talk())


def test_progress_counts_the_policys_tokens_only(backbone: Backbone) -> None:
    seen: list[Tally] = []
    places = seats(ENV.scenarios(Split.TRAIN, 7), 1, round=0, seed=3)
    policy = LocalPolicy(backbone, SAMPLING)
    played = collect(Table(ENV, policy, policy), places, progress=seen.append)
    own = [t.sampled for c in played for t in c.turns if t.sampled and t.role is Role.AGENT]
    assert seen[-1].tokens == sum(len(s.token_ids or ()) for s in own)
    assert policy.tokens_generated > seen[-1].tokens
