from __future__ import annotations

import asyncio
from collections.abc import Hashable, Sequence
from pathlib import Path

import pytest

from iterpo.agents import local
from iterpo.agents.base import Agent, Reply, Seat
from iterpo.agents.local import LocalPolicy
from iterpo.domain import Role, Sampling, Scenario, Split, Turn, View
from iterpo.errors import ContextOverflowError
from iterpo.models import hub
from iterpo.models.backbone import Backbone, load
from iterpo.models.chat import prompt_sha256
from iterpo.models.kept_turns import KeptTurns, Past
from iterpo.testing.tiny_model import tiny_model

SAMPLING = Sampling(temperature=1.0, top_p=0.95, max_new_tokens=6)


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Backbone:
    folder = tiny_model(
        tmp_path_factory.mktemp("tiny"), generation_config={"repetition_penalty": 1.1}
    )
    return load(hub.base_policy(str(folder)), device="cpu")


def seat(kernel: int, replica: int = 0) -> Seat:
    scenario = Scenario(f"k{kernel}", "toy", Split.TRAIN, {})
    return Seat(scenario, Role.AGENT, round=0, replica=replica, seed=100 * kernel + replica)


async def converse(policy: LocalPolicy, where: Seat, n_turns: int) -> list[Reply]:
    """A conversation of ``n_turns`` agent turns."""
    agent: Agent = policy(where)
    turns: list[Turn] = [Turn(Role.AGENT, "hello", scripted=True)]
    replies = []
    try:
        for i in range(n_turns):
            turns.append(Turn(Role.PARTNER, f"{where.scenario.kernel_id} says {i}"))
            reply = await agent.reply(View(Role.AGENT, "Sell.", tuple(turns)))
            replies.append(reply)
            turns.append(reply.turn(Role.AGENT))
    finally:
        agent.close()
    return replies


async def play(policy: LocalPolicy, lengths: list[int]) -> list[list[Reply]]:
    return await asyncio.gather(*(converse(policy, seat(i), n) for i, n in enumerate(lengths)))


def test_all_waiting_conversations_share_one_call(backbone: Backbone) -> None:
    policy = LocalPolicy(backbone, SAMPLING)
    out = asyncio.run(play(policy, [1, 3, 2, 3]))
    assert [len(replies) for replies in out] == [1, 3, 2, 3]
    assert policy.calls == 3  # closed seats do not hold up the others
    assert policy.tokens_generated == sum(
        len(r.sampled.token_ids) for replies in out for r in replies if r.sampled
    )


def test_pain_40_the_effective_settings_are_logged_with_full_evidence(backbone: Backbone) -> None:
    policy = LocalPolicy(backbone, SAMPLING)
    ((reply,),) = asyncio.run(play(policy, [1]))
    sampled = reply.sampled
    assert sampled is not None
    assert sampled.sampling == SAMPLING
    assert sampled.sampling.repetition_penalty == 1.0
    assert backbone.model.generation_config.repetition_penalty == 1.1
    assert len(sampled.token_ids) == len(sampled.logprobs)
    assert sampled.policy == backbone.policy.id
    assert sampled.finish in ("stop", "length")
    turns = (Turn(Role.AGENT, "hello", scripted=True), Turn(Role.PARTNER, "k0 says 0"))
    prompt = backbone.chat.prompt_ids(View(Role.AGENT, "Sell.", turns).messages())
    assert (sampled.prompt_sha256, sampled.n_prompt_tokens) == (prompt_sha256(prompt), len(prompt))
    assert reply.text == backbone.chat.decode(sampled.token_ids)


def test_pain_1_the_next_prompt_holds_the_sampled_ids(
    backbone: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts: list[list[int]] = []
    plain = local.generate

    def spy(b: Backbone, p: list[list[int]], *rest: object, **more: object) -> object:
        prompts.extend(p)
        return plain(b, p, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(local, "generate", spy)
    ((first, _),) = asyncio.run(play(LocalPolicy(backbone, SAMPLING), [2]))
    assert first.sampled is not None
    ids = list(first.sampled.token_ids)
    assert prompts[1][len(prompts[0]) : len(prompts[0]) + len(ids)] == ids


def test_pain_52_replies_repeat_and_do_not_depend_on_the_company(backbone: Backbone) -> None:
    def texts(lengths: list[int]) -> list[list[tuple[int, ...]]]:
        out = asyncio.run(play(LocalPolicy(backbone, SAMPLING), lengths))
        return [[r.sampled.token_ids for r in replies if r.sampled] for replies in out]

    first = texts([2, 3, 2])
    assert first == texts([2, 3, 2])
    assert first[0] == texts([2])[0]
    assert len({replies[0] for replies in first}) == 3  # no two seats share a stream


def test_a_batch_is_ordered_by_scenario_and_replica(
    backbone: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    from iterpo.domain import derive

    seen: list[list[int]] = []
    plain = local.generate

    def spy(b: Backbone, p: object, s: object, seeds: list[int], **more: object) -> object:
        seen.append(seeds)
        return plain(b, p, s, seeds, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(local, "generate", spy)
    seats = [seat(2), seat(1, 1), seat(1, 0), seat(0)]

    async def run() -> None:
        policy = LocalPolicy(backbone, SAMPLING)
        await asyncio.gather(*(converse(policy, s, 1) for s in seats))

    asyncio.run(run())
    assert seen == [[derive(s.seed, 2) for s in (seats[3], seats[2], seats[1], seats[0])]]


def test_a_failure_reaches_every_waiter_and_the_policy_goes_on(
    backbone: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> object:
        raise RuntimeError("out of memory")

    async def run() -> list[object]:
        policy = LocalPolicy(backbone, SAMPLING)
        with monkeypatch.context() as patch:
            patch.setattr(local, "generate", broken)
            failed = await asyncio.gather(
                *(converse(policy, seat(i), 2) for i in range(3)), return_exceptions=True
            )
        return [*failed, *await converse(policy, seat(5), 1)]

    *failed, after = asyncio.run(run())
    assert [str(e) for e in failed] == ["out of memory"] * 3
    assert isinstance(after, Reply)


def test_a_prompt_that_does_not_fit_fails_its_own_conversation_only(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path / "m", max_position_embeddings=90)
    policy = LocalPolicy(load(hub.base_policy(str(folder)), device="cpu"), SAMPLING)

    async def long() -> Reply:
        agent = policy(seat(9))
        try:
            return await agent.reply(View(Role.AGENT, "x" * 200))
        finally:
            agent.close()

    async def run() -> list[object]:
        return list(
            await asyncio.gather(long(), converse(policy, seat(0), 1), return_exceptions=True)
        )

    overflow, fine = asyncio.run(run())
    assert isinstance(overflow, ContextOverflowError)
    assert isinstance(fine, list)


def test_a_cancelled_request_leaves_the_queue(backbone: Backbone) -> None:
    async def run() -> None:
        policy = LocalPolicy(backbone, SAMPLING)
        idle = policy(seat(7))  # holds the barrier
        task = asyncio.create_task(converse(policy, seat(0), 1))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        idle.close()
        assert len(await converse(policy, seat(1), 1)) == 1
        assert policy.calls == 1

    asyncio.run(run())


def known_tokens(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Tokens of each prompt that were known from its own earlier turns, in order."""
    seen: list[int] = []
    plain = KeptTurns.find

    def spy(self: KeptTurns, speaker: Hashable, prompt: Sequence[int]) -> Past | None:
        past = plain(self, speaker, prompt)
        seen.append(past.length if past else 0)
        return past

    monkeypatch.setattr(KeptTurns, "find", spy)
    return seen


def test_earlier_turns_run_once_and_are_dropped_with_their_conversation(
    backbone: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = known_tokens(monkeypatch)
    policy = LocalPolicy(backbone, SAMPLING)
    kept = asyncio.run(play(policy, [3, 2, 3]))
    first, second, third = known[:3], known[3:6], known[6:]
    assert first == [0, 0, 0]
    assert all(
        n == r[0].sampled.n_prompt_tokens + len(r[0].sampled.token_ids) - 1
        for n, r in zip(second, kept, strict=True)
        if r[0].sampled
    )
    assert min(third) > max(second)
    assert (policy._kept.count, policy._kept.bytes) == (0, 0)
    anew = asyncio.run(play(LocalPolicy(backbone, SAMPLING, kept_bytes=0), [3, 2, 3]))
    for ours, theirs in zip(kept, anew, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            assert a.sampled is not None
            assert b.sampled is not None
            assert a.sampled.token_ids == b.sampled.token_ids
            # 1e-4: float32 sums in another order.
            assert a.sampled.logprobs == pytest.approx(b.sampled.logprobs, abs=1e-4)
            assert a.sampled.prompt_sha256 == b.sampled.prompt_sha256


def test_a_note_that_moves_is_not_taken_for_known(
    backbone: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = known_tokens(monkeypatch)
    policy = LocalPolicy(backbone, SAMPLING)
    start = Turn(Role.AGENT, "hello", scripted=True)
    note = "[mind the price]"

    async def talk() -> tuple[list[int], Reply]:
        agent = policy(seat(0))
        turns = (start, Turn(Role.PARTNER, "ten"))
        first = View(Role.AGENT, "Sell.", turns, note)
        reply = await agent.reply(first)
        later = (*turns, reply.turn(Role.AGENT), Turn(Role.PARTNER, "nine"))
        again = await agent.reply(View(Role.AGENT, "Sell.", later, note))
        agent.close()
        return backbone.chat.prompt_ids(first.messages()), again

    prompt, again = asyncio.run(talk())
    assert 8 < known[1] < len(prompt)
    assert again.sampled is not None
    alone = LocalPolicy(backbone, SAMPLING, kept_bytes=0)
    monkeypatch.undo()

    async def anew() -> Reply:
        agent = alone(seat(0))
        turns = [start, Turn(Role.PARTNER, "ten")]
        first = await agent.reply(View(Role.AGENT, "Sell.", tuple(turns), note))
        turns += [first.turn(Role.AGENT), Turn(Role.PARTNER, "nine")]
        out = await agent.reply(View(Role.AGENT, "Sell.", tuple(turns), note))
        agent.close()
        return out

    other = asyncio.run(anew()).sampled
    assert other is not None
    assert other.token_ids == again.sampled.token_ids
    assert other.logprobs == pytest.approx(again.sampled.logprobs, abs=1e-4)
