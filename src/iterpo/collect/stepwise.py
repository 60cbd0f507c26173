"""A conversation that is steered from outside, one message of the agent at a time.

``collect.play`` runs it as it runs every conversation, in a thread of its own, with a puppet in the
agent's seat. The adapters for on-policy tools are built on this; iterpo's own loop is not.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import weakref
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any

from iterpo.agents.base import AgentFactory, Reply, Seat
from iterpo.collect.play import Table, play
from iterpo.domain import Conversation, Outcome, Role, Turn, View
from iterpo.environments.base import Environment
from iterpo.errors import OutOfTurnError

__all__ = ["Backstage", "Dialogue"]

_GRACE_S = 5.0


class Backstage:
    """An event loop in a thread, where partners think; it ends with its owner."""

    def __init__(self) -> None:
        """The thread starts here."""
        self._loop = asyncio.new_event_loop()
        thread = threading.Thread(target=_serve, args=(self._loop,), daemon=True)
        thread.start()
        self._end = weakref.finalize(self, _stop, self._loop, thread)

    def run(self, work: Coroutine[Any, Any, Any]) -> Future[Any]:
        """Start some work; its future."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def close(self) -> None:
        """End the thread; what still runs is cancelled."""
        self._end()


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    loop.run_forever()
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
    loop.run_until_complete(loop.shutdown_asyncgens())  # connections of model servers
    loop.close()


def _stop(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(loop.stop)
    if thread is not threading.current_thread():
        thread.join(_GRACE_S)


class Dialogue:
    """One conversation; made, it stands where the agent is to speak, or is over already."""

    def __init__(
        self, backstage: Backstage, environment: Environment, partner: AgentFactory, seat: Seat
    ) -> None:
        """The opening is said and the partner answers it."""
        self.environment = environment
        self.seat = seat
        self.view: View
        """What the agent sees now, the end included."""
        self.conversation: Conversation | None = None
        """The whole conversation once it is over; text only, without evidence of sampling."""
        self._events: queue.SimpleQueue[View | None] = queue.SimpleQueue()
        self._puppet = _Puppet(self._events)
        table = Table(environment, self._puppet.seated, partner)
        self._playing = backstage.run(play(table, seat))
        events = self._events
        self._playing.add_done_callback(lambda _: events.put(None))
        self._wait()

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self.conversation is not None

    @property
    def outcome(self) -> Outcome | None:
        """How it ended; None while it goes on."""
        return self.conversation.outcome if self.conversation else None

    @property
    def turns(self) -> tuple[Turn, ...]:
        """The transcript so far."""
        return self.view.turns

    def say(self, text: str) -> None:
        """The agent speaks; returns when the partner has answered or the conversation is over.

        Raises:
            OutOfTurnError: if it is over.
        """
        if self.over or self._playing.cancelled():
            raise OutOfTurnError("the conversation is over; begin a new one")
        self._puppet.say(text)
        self._wait()

    def leave(self) -> None:
        """Break it off, without an outcome; nothing happens if it is over."""
        self._playing.cancel()

    def _wait(self) -> None:
        view = self._events.get()
        if view is None:
            if self._playing.cancelled():
                raise OutOfTurnError("the conversation was broken off while somebody spoke")
            self.conversation = talk = self._playing.result()
            view = self.environment.view(self.seat.scenario, Role.AGENT, talk.turns)
        self.view = view


class _Puppet:
    """Takes the agent's seat and says what it is given."""

    def __init__(self, events: queue.SimpleQueue[View | None]) -> None:
        self._events = events
        self._loop: asyncio.AbstractEventLoop | None = None
        self._line: asyncio.Future[str] | None = None

    def seated(self, seat: Seat) -> _Puppet:  # noqa: ARG002 - an AgentFactory
        return self

    def say(self, text: str) -> None:
        line, loop = self._line, self._loop
        if line is not None and loop is not None:
            loop.call_soon_threadsafe(line.set_result, text)

    async def reply(self, view: View) -> Reply:
        """The next line, when it comes."""
        self._loop = asyncio.get_running_loop()
        self._line = self._loop.create_future()
        self._events.put(view)
        return Reply(await self._line)

    def close(self) -> None:
        """Nothing to release."""
