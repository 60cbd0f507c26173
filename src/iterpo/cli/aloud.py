"""Aloud: a speaker whose messages are printed as they are spoken."""

from __future__ import annotations

from typing import TYPE_CHECKING

from iterpo.cli.transcripts import print_message

if TYPE_CHECKING:
    from iterpo.agents.base import Agent, AgentFactory, Reply, Seat
    from iterpo.domain import View

__all__ = ["Aloud"]


class Aloud:
    """An ``AgentFactory`` that prints what another one's agents say."""

    def __init__(self, inner: AgentFactory) -> None:
        """Wrap a factory."""
        self._inner = inner

    def __call__(self, seat: Seat) -> Agent:
        """An agent for one seat, heard."""
        return _Heard(self._inner(seat), seat.role.value)


class _Heard:
    def __init__(self, inner: Agent, who: str) -> None:
        self._inner = inner
        self._who = who

    async def reply(self, view: View) -> Reply:
        """The next message."""
        reply = await self._inner.reply(view)
        print_message(self._who, reply.text)
        return reply

    def close(self) -> None:
        """The conversation is over."""
        self._inner.close()
