"""A policy in this process speaks: all conversations that wait share one generate call.

The batch runs when every open conversation waits for the policy, so its composition depends on
the conversations alone, not on timing; rows are ordered by scenario and replica.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from iterpo.agents.base import Reply, Seat
from iterpo.domain import Sampled, Sampling, View, derive
from iterpo.models.backbone import Backbone
from iterpo.models.chat import prompt_sha256
from iterpo.models.generation import Generated, check_context, generate

__all__ = ["LocalPolicy"]


@dataclass(frozen=True, slots=True, eq=False)
class _Request:
    """One agent waiting for its next message."""

    key: tuple[str, int, str]
    """Scenario, replica and role: the order in a batch."""
    prompt: list[int]
    """Rendered prompt."""
    seed: int
    """Seed of this one message."""
    reply: asyncio.Future[Generated]
    """Where the answer goes."""


class LocalPolicy:
    """An ``AgentFactory``: gives every conversation a seat at one shared model.

    Args:
        backbone: The loaded policy.
        sampling: Effective settings; nothing of the checkpoint's defaults is added.
        max_wait_s: Longest time that a request waits for the other conversations, for partners
            that are slow; None waits until all do, which makes runs reproducible.
    """

    def __init__(
        self, backbone: Backbone, sampling: Sampling, *, max_wait_s: float | None = None
    ) -> None:
        self.backbone = backbone
        self.sampling = sampling
        self.tokens_generated = 0
        self.calls = 0
        self._max_wait_s = max_wait_s
        self._open = 0
        self._waiting: list[_Request] = []
        self._timer: asyncio.TimerHandle | None = None

    def __call__(self, seat: Seat) -> _LocalAgent:
        """An agent for one seat."""
        self._open += 1
        return _LocalAgent(self, seat)

    async def sample(self, seat: Seat, view: View) -> Reply:
        """One message, sampled in a batch with everyone who waits.

        Raises:
            ContextOverflowError: if the prompt does not fit; only this conversation is affected.
            Exception: whatever the generate call raised, for every conversation in it.
        """
        prompt = self.backbone.chat.prompt_ids(view.messages())
        check_context(
            self.backbone, len(prompt), self.sampling, what=f"{seat.scenario.kernel_id}: the prompt"
        )
        loop = asyncio.get_running_loop()
        request = _Request(
            key=(seat.scenario.kernel_id, seat.replica, seat.role.value),
            prompt=prompt,
            seed=derive(seat.seed, len(view.turns)),
            reply=loop.create_future(),
        )
        self._waiting.append(request)
        self._look(loop)
        try:
            done = await request.reply
        finally:
            if request in self._waiting:  # cancelled while it waited
                self._waiting.remove(request)
        return self._reply(done, prompt)

    def leave(self) -> None:
        """A conversation is over: the others need not wait for it."""
        self._open -= 1
        if self._waiting:
            self._look(self._waiting[0].reply.get_loop())

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        # Deferred by one turn of the loop: whoever is about to speak or to sit down gets there.
        loop.call_soon(self._flush_if_all_wait)
        if self._max_wait_s is not None and self._timer is None:
            self._timer = loop.call_later(self._max_wait_s, self._flush)

    def _flush_if_all_wait(self) -> None:
        if self._waiting and len(self._waiting) >= self._open:
            self._flush()

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        batch = sorted((r for r in self._waiting if not r.reply.done()), key=lambda r: r.key)
        self._waiting.clear()
        if not batch:
            return
        try:
            results = self._generate(batch)
        except Exception as error:
            for request in batch:
                request.reply.set_exception(error)
            return
        for request, result in zip(batch, results, strict=True):
            request.reply.set_result(result)

    def _generate(self, batch: Sequence[_Request]) -> list[Generated]:
        results = generate(
            self.backbone, [r.prompt for r in batch], self.sampling, [r.seed for r in batch]
        )
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
            policy=self.backbone.policy.id,
            finish=done.finish,
        )
        return Reply(self.backbone.chat.decode(done.token_ids), evidence)


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
            self._policy.leave()
