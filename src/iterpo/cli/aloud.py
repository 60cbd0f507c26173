"""One conversation in a terminal: printed as it is spoken, by whoever is to be heard."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import typer

from iterpo.cli.output import remark
from iterpo.cli.transcripts import print_message

if TYPE_CHECKING:
    from iterpo.agents.base import Agent, AgentFactory, Reply, Seat
    from iterpo.domain import Conversation, Role, Scenario, View
    from iterpo.experiments.speakers import Seating

__all__ = ["Aloud", "check_unbroken", "converse"]


def converse(
    seating: Seating, scenario: Scenario, seed: int, heard: Collection[Role]
) -> Conversation:
    """Play one conversation, J* noted where it is known.

    Args:
        seating: Game and speakers.
        scenario: Kernel.
        seed: Seed of what the speakers draw.
        heard: Sides whose messages are printed.
    """
    import asyncio
    from dataclasses import replace

    from iterpo.agents.base import Seat
    from iterpo.collect import play
    from iterpo.domain import Role

    table = seating.table
    if Role.AGENT in heard:
        table = replace(table, agent=Aloud(table.agent))
    if Role.PARTNER in heard:
        table = replace(table, partner=Aloud(table.partner))
    place = Seat(scenario, Role.AGENT, seating.round, 0, seed)
    conversation = asyncio.run(play(table, place))
    return replace(conversation, j_star=dict(seating.j_star(scenario)) if seating.j_star else {})


def check_unbroken(conversation: Conversation) -> None:
    """End the command, with a word, if a speaker failed.

    Raises:
        Exit: with code 2.
    """
    from iterpo.domain import Ending

    if conversation.outcome.ending is Ending.INFRASTRUCTURE_FAILURE:
        remark(f"iterpo: the conversation broke off: {conversation.outcome.detail}")
        raise typer.Exit(2)


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
