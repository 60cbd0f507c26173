"""A policy in this process speaks: all conversations that wait share one generate call.

The batch runs when every open conversation waits for a policy, so its composition depends on
the conversations alone, not on timing; rows are ordered by scenario and replica. Both sides of a
conversation may be local: at one policy (self-play), or at two that count together (``beside``).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from iterpo.agents.base import Reply, Seat
from iterpo.domain import Sampled, Sampling, View, derive
from iterpo.models.backbone import Backbone
from iterpo.models.chat import prompt_sha256
from iterpo.models.generation import Generated, check_context, generate
from iterpo.models.kept_turns import KeptTurns
from iterpo.models.voice import Voice

__all__ = ["Engine", "LocalPolicy"]


class Engine(Voice, Protocol):
    """A policy with an engine of its own, such as ``models.vllm_sampler.VllmSampler``."""

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, seeds: Sequence[int]
    ) -> list[Generated]:
        """One response per prompt, as ``models.generation.generate`` gives them."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class _Request:
    """One agent waiting for its next message."""

    key: tuple[str, int, str]
    """Scenario, replica and role: the order in a batch."""
    prompt: list[int]
    """Rendered prompt."""
    seed: int
    """Seed of this one message."""
    speaker: tuple[object, ...]
    """Whose message it is."""
    reply: asyncio.Future[Generated]
    """Where the answer goes."""


class _Gathering:
    """Open conversations and their requests: answered together once every conversation waits.

    Conversations are counted, not seats: where both sides are local, only one of them can wait.
    """

    def __init__(self) -> None:
        self._open: Counter[tuple[object, ...]] = Counter()
        self._waiting: list[tuple[LocalPolicy, _Request]] = []

    def sit(self, seat: Seat) -> None:
        self._open[_conversation(seat)] += 1

    def leave(self, seat: Seat) -> None:
        self._open[_conversation(seat)] -= 1
        self._open += Counter()  # drops conversations that nobody sits in
        if self._waiting:
            self._look(self._waiting[0][1].reply.get_loop())

    async def ask(self, policy: LocalPolicy, request: _Request) -> Generated:
        entry = (policy, request)
        self._waiting.append(entry)
        self._look(request.reply.get_loop())
        try:
            return await request.reply
        finally:
            if entry in self._waiting:  # cancelled while it waited
                self._waiting.remove(entry)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        # Deferred by one turn of the loop: whoever is about to speak or to sit down gets there.
        loop.call_soon(self._flush_if_all_wait)

    def _flush_if_all_wait(self) -> None:
        if len(self._waiting) < len(self._open):
            return
        waiting = sorted(
            (w for w in self._waiting if not w[1].reply.done()), key=lambda w: w[1].key
        )
        self._waiting.clear()
        batches: dict[LocalPolicy, list[_Request]] = {}
        for policy, request in waiting:
            batches.setdefault(policy, []).append(request)
        for policy, batch in batches.items():
            policy.answer(batch)


def _conversation(seat: Seat) -> tuple[object, ...]:
    return (seat.scenario.kernel_id, seat.round, seat.replica, seat.seed)


def _speaker(seat: Seat) -> tuple[object, ...]:
    return (*_conversation(seat), seat.role)


class LocalPolicy:
    """An ``AgentFactory``: gives every conversation a seat at one shared model.

    Args:
        model: The loaded policy, or an engine that holds it.
        sampling: Effective settings; nothing of the checkpoint's defaults is added.
        beside: Policy on the other side of the same conversations; both then count conversations
            together, so that neither waits for one whose turn is at the other.
        kept_bytes: Memory for the keys and values of open conversations, whose earlier turns are
            then not computed again at every message; what does not fit is. 0 keeps nothing, None
            1 GiB on a CPU and 4 GiB elsewhere.
    """

    def __init__(
        self,
        model: Backbone | Engine,
        sampling: Sampling,
        *,
        beside: LocalPolicy | None = None,
        kept_bytes: int | None = None,
    ) -> None:
        self.model = model
        self.sampling = sampling
        self.tokens_generated = 0
        self.calls = 0
        on_cpu = isinstance(model, Backbone) and model.device.type == "cpu"
        usual = 2**30 if on_cpu else 2**32
        self._kept = KeptTurns(usual if kept_bytes is None else kept_bytes)
        self._gathering: _Gathering = beside._gathering if beside else _Gathering()

    def __call__(self, seat: Seat) -> _LocalAgent:
        """An agent for one seat."""
        self._gathering.sit(seat)
        return _LocalAgent(self, seat)

    async def sample(self, seat: Seat, view: View) -> Reply:
        """One message, sampled in a batch with everyone who waits.

        Raises:
            ContextOverflowError: if the prompt does not fit; only this conversation is affected.
            Exception: whatever the generate call raised, for every conversation in it.
        """
        prompt = self.model.chat.prompt_ids(view.messages())
        check_context(
            self.model, len(prompt), self.sampling, what=f"{seat.scenario.kernel_id}: the prompt"
        )
        request = _Request(
            key=(seat.scenario.kernel_id, seat.replica, seat.role.value),
            prompt=prompt,
            seed=derive(seat.seed, len(view.turns)),
            speaker=_speaker(seat),
            reply=asyncio.get_running_loop().create_future(),
        )
        return self._reply(await self._gathering.ask(self, request), prompt)

    def leave(self, seat: Seat) -> None:
        """A conversation is over: the others need not wait for it."""
        self._kept.drop(_speaker(seat))
        self._gathering.leave(seat)

    def answer(self, batch: Sequence[_Request]) -> None:
        """Run one generate call for requests in their order, and hand out what came of it."""
        try:
            results = self._generate(batch)
        except Exception as error:
            for request in batch:
                request.reply.set_exception(error)
            return
        for request, result in zip(batch, results, strict=True):
            request.reply.set_result(result)

    def _generate(self, batch: Sequence[_Request]) -> list[Generated]:
        prompts, seeds = [r.prompt for r in batch], [r.seed for r in batch]
        if isinstance(self.model, Backbone):
            whose = [r.speaker for r in batch]
            results = generate(
                self.model, prompts, self.sampling, seeds, kept=self._kept, speakers=whose
            )
        else:
            results = self.model.generate(prompts, self.sampling, seeds)
        self.calls += 1
        self.tokens_generated += sum(len(r.token_ids) for r in results)
        return results

    def _reply(self, done: Generated, prompt: Sequence[int]) -> Reply:
        evidence = Sampled(
            token_ids=done.token_ids,
            logprobs=done.logprobs,
            sampling=self.sampling,
            prompt_sha256=prompt_sha256(prompt),
            n_prompt_tokens=len(prompt),
            policy=self.model.policy.id,
            finish=done.finish,
        )
        return Reply(self.model.chat.decode(done.token_ids), evidence)


class _LocalAgent:
    """One seat of a ``LocalPolicy``."""

    def __init__(self, policy: LocalPolicy, seat: Seat) -> None:
        self._policy = policy
        self._seat = seat
        self._closed = False

    async def reply(self, view: View) -> Reply:
        """The next message, given what this party sees."""
        return await self._policy.sample(self._seat, view)

    def close(self) -> None:
        """The conversation is over."""
        if not self._closed:
            self._closed = True
            self._policy.leave(self._seat)
