"""Collection: seeded, concurrent, resumable; failures are records."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from iterpo.agents.base import Agent, Reply, Seat
from iterpo.artifacts import open_sealed
from iterpo.collect import Pace, Table, Tally, collect, collect_into, play, seats
from iterpo.domain import Ending, Outcome, Role, Scenario, Split, Turn, View
from iterpo.errors import BatchError, StorageFullError
from iterpo.measure import measure
from iterpo.store import read_conversations


class Toy:
    """Ends after six messages; the reward is the number of agent messages that say 'a'."""

    name = "toy"
    options = None

    def scenarios(self, split: Split, n: int, data_seed: int = 42) -> tuple[Scenario, ...]:
        return tuple(Scenario(f"toy-{i}", "toy", split, {}) for i in range(n))

    def opening(self, scenario: Scenario) -> Turn:
        return Turn(Role.AGENT, "open", scripted=True)

    def view(self, scenario: Scenario, role: Role, turns: Sequence[Turn]) -> View:
        return View(role, f"{role} of {scenario.kernel_id}", tuple(turns))

    def read(self, scenario: Scenario, turns: Sequence[Turn]) -> Outcome | None:
        if len(turns) < 6:
            return None
        return Outcome(Ending.AGREED, sum(t.text == "a" for t in turns) / 2, closing_message=5)


@dataclass
class Voice:
    """Speaks from its seed; fails where told to; counts who is open."""

    word: str = "a"
    fail: dict[str, int] = field(default_factory=dict)
    """kernel_id -> how many of its next calls fail."""
    open: int = 0
    calls: int = 0

    def __call__(self, seat: Seat) -> Agent:
        self.open += 1
        return _Seated(self, seat)


@dataclass
class _Seated:
    voice: Voice
    seat: Seat

    async def reply(self, view: View) -> Reply:
        await asyncio.sleep(0)
        self.voice.calls += 1
        left = self.voice.fail.get(self.seat.scenario.kernel_id, 0)
        if left:
            self.voice.fail[self.seat.scenario.kernel_id] = left - 1
            raise TimeoutError("the server is silent")
        return Reply(self.voice.word if self.seat.seed % 2 else "b")

    def close(self) -> None:
        self.voice.open -= 1


def _places(n: int = 5, k: int = 2, seed: int = 0) -> tuple[Seat, ...]:
    return seats(Toy().scenarios(Split.TRAIN, n), k, round=1, seed=seed)


def test_pain_52_every_conversation_has_its_own_seed_and_keeps_it() -> None:
    few, many = _places(3), _places(30)
    assert len({p.seed for p in many}) == 60
    assert few == many[:6]
    assert _places(3, seed=1)[0].seed != few[0].seed


def test_conversations_carry_what_training_needs() -> None:
    voice = Voice()
    first = collect(Table(Toy(), voice, Voice("p"), "r1-x"), _places(), concurrency=3)[0]
    assert (first.id, first.round, first.policy) == ("1/toy-0/0", 1, "r1-x")
    assert first.system == "agent of toy-0"
    assert len(first.turns) == 6
    assert voice.open == 0, "every seat must be closed"


def test_a_conversation_goes_on_from_where_it_stands() -> None:
    table, seat = Table(Toy(), Voice(), Voice("p")), _places()[0]
    whole = asyncio.run(play(table, seat))
    for n in range(1, len(whole.turns)):
        assert asyncio.run(play(table, seat, whole.turns[:n])) == whole
    ended = asyncio.run(play(table, seat, whole.turns))
    assert ended == whole


def test_pain_35_a_failure_is_retried_then_recorded_never_a_zero() -> None:
    agent = Voice(fail={"toy-1": 2, "toy-2": 99})
    played = collect(Table(Toy(), agent, Voice()), _places(4, 1), attempts=3)
    endings = {c.kernel_id: c.outcome.ending for c in played}
    assert endings["toy-1"] is Ending.AGREED
    lost = next(c for c in played if c.kernel_id == "toy-2")
    assert lost.outcome.ending is Ending.INFRASTRUCTURE_FAILURE
    assert lost.outcome.reward is None
    assert "the server is silent" in lost.outcome.detail
    assert agent.open == 0


def test_progress_counts_every_conversation_once() -> None:
    told: list[Tally] = []
    agent = Voice(fail={"toy-0": 1, "toy-2": 99})
    collect(Table(Toy(), agent, Voice()), _places(4, 1), concurrency=2, progress=told.append)
    assert [t.done for t in told] == [1, 2, 3, 4]
    assert told[-1].failed == 1
    assert told[-1].facts()["agreement"] == 1.0


def test_pain_73_resuming_plays_only_what_is_missing(tmp_path: Path) -> None:
    whole = collect_into(tmp_path / "a", Table(Toy(), Voice(), Voice()), _places(), concurrency=4)

    class Killed(BaseException):
        pass

    def die(tally: Tally) -> None:
        if tally.done == 6:
            raise Killed

    with pytest.raises(Killed):
        collect_into(
            tmp_path / "b", Table(Toy(), Voice(), Voice()), _places(), concurrency=4, progress=die
        )
    again = Voice()
    collect_into(tmp_path / "b", Table(Toy(), again, Voice()), _places(), concurrency=4)
    assert again.calls == 6 * 2, "the first block of four must not be played again"
    assert read_conversations(tmp_path / "b") == whole
    for name in open_sealed(tmp_path / "a")["files"]:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_too_many_failures_stop_a_batch_and_only_their_blocks_are_played_again(
    tmp_path: Path,
) -> None:
    places = _places(4, 1)
    ill = Table(Toy(), Voice(fail={"toy-2": 99}), Voice())
    with pytest.raises(
        BatchError, match=r"1 of 4 .* more than the share of 0\.2 .* silent.*resume"
    ):
        collect_into(tmp_path, ill, places, concurrency=2, attempts=1, max_failed=0.2)
    well = Voice()
    played = collect_into(tmp_path, Table(Toy(), well, Voice()), places, concurrency=2)
    assert played == collect(Table(Toy(), Voice(), Voice()), places, concurrency=2)
    assert 0 < well.calls < sum(len(c.turns) for c in played) / 2, "one block of two"
    assert open_sealed(tmp_path, "conversations")["facts"]["conversations"] == 4


def test_a_share_of_failures_may_be_allowed(tmp_path: Path) -> None:
    ill = Table(Toy(), Voice(fail={"toy-2": 99}), Voice())
    played = collect_into(tmp_path, ill, _places(4, 1), attempts=1, max_failed=0.25)
    assert [c.outcome.ending.scored for c in played] == [True, True, False, True]


def test_a_finished_batch_is_a_look_up(tmp_path: Path) -> None:
    first = collect_into(tmp_path, Table(Toy(), Voice(), Voice()), _places())
    silent = Voice(fail={"toy-0": 99})
    assert collect_into(tmp_path, Table(Toy(), silent, silent), _places()) == first
    assert silent.calls == 0


def test_a_full_disk_stops_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise StorageFullError("the disk is full")

    monkeypatch.setattr("iterpo.store.conversations.write_atomic", full)
    with pytest.raises(StorageFullError):
        collect_into(tmp_path / "x", Table(Toy(), Voice(), Voice()), _places())


def test_works_inside_a_running_loop_as_in_a_notebook() -> None:
    async def cell() -> int:
        return len(collect(Table(Toy(), Voice(), Voice()), _places()))

    assert asyncio.run(cell()) == 10


@pytest.mark.parametrize("reward", [float("nan"), None])
def test_pain_35_a_reward_that_is_no_number_is_a_recorded_failure(reward: float | None) -> None:
    class Broken(Toy):
        def read(self, scenario: Scenario, turns: Sequence[Turn]) -> Outcome | None:
            outcome = super().read(scenario, turns)
            return outcome and replace(outcome, reward=reward)

    played = collect(Table(Broken(), Voice(), Voice()), _places(2, 1))
    assert {c.outcome.ending for c in played} == {Ending.INFRASTRUCTURE_FAILURE}
    assert all(c.outcome.reward is None for c in played)
    assert "gave the reward" in played[0].outcome.detail


def test_pain_49_measures_do_not_depend_on_where_a_batch_was_resumed(tmp_path: Path) -> None:
    """J* has more digits than a rounded log would keep."""
    table = Table(Toy(), Voice(), Voice())
    best = {"message": 0.9**11 * 0.7, "gamma": 0.9}
    whole = collect_into(tmp_path, table, _places(), j_star=lambda _: best)
    read_back = collect_into(tmp_path, table, _places(), j_star=lambda _: best)
    assert measure(whole, 0.9) == measure(read_back, 0.9)
    assert measure(whole, 0.9).j_star_message is not None


def test_the_pace_counts_what_this_attempt_played(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("iterpo.collect.batch.time.monotonic", lambda: now[0])
    pace = Pace()
    now[0] = 101.0
    pace.facts(Tally(41, 50, 20, 0, 4000))  # forty were there already
    now[0] = 104.0
    facts = pace.facts(Tally(44, 50, 22, 0, 4400))
    assert facts["conversations_per_s"] == 1.0
    assert facts["tokens_per_s"] == 100.0
    assert facts["agreement"] == 0.5


def test_half_a_character_is_a_recorded_failure_and_the_batch_can_be_stored(
    tmp_path: Path,
) -> None:
    table = Table(Toy(), Voice("a"), Voice("\ud800"))
    played = collect_into(tmp_path / "log", table, _places(3, 2))
    failed = [c for c in played if c.outcome.ending is Ending.INFRASTRUCTURE_FAILURE]
    assert failed
    assert all("half a character" in c.outcome.detail for c in failed)
    assert read_conversations(tmp_path / "log") == played
