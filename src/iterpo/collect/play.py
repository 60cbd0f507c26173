"""One conversation: two agents speak in turn until the environment reads an outcome."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from iterpo.agents.base import Agent, AgentFactory, Explorer, Seat
from iterpo.domain import Conversation, Ending, Outcome, Role, Turn
from iterpo.environments.base import Environment
from iterpo.errors import DataError

__all__ = ["Table", "play", "wait_for"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Table:
    """Who plays what: an environment and the two sides."""

    environment: Environment
    """The game."""
    agent: AgentFactory
    """The policy's side."""
    partner: AgentFactory
    """The other side."""
    policy: str = ""
    """``PolicyRef.id`` noted on every conversation."""


async def play(table: Table, seat: Seat, begun: Sequence[Turn] = ()) -> Conversation:
    """Play one conversation to its end, from its opening or from where ``begun`` stops.

    Whatever goes wrong in an agent, or a reward that is no number, is recorded as
    ``Ending.INFRASTRUCTURE_FAILURE`` with the reason and the turns so far; it never raises, never
    costs the batch, never becomes a reward.
    """
    env, scenario = table.environment, seat.scenario
    turns: list[Turn] = list(begun) or [env.opening(scenario)]
    parties: dict[Role, Agent] = {}
    try:
        parties[Role.AGENT] = table.agent(replace(seat, role=Role.AGENT))
        parties[Role.PARTNER] = table.partner(replace(seat, role=Role.PARTNER))
        while (outcome := env.read(scenario, turns)) is None:
            role = turns[-1].role.other
            reply = await parties[role].reply(env.view(scenario, role, turns))
            _check_characters(reply.text)
            turns.append(reply.turn(role))
        if outcome.ending.scored and not _finite(outcome.reward):
            raise DataError(f"{env.name} gave the reward {outcome.reward!r}, no finite number")
    except Exception as error:
        outcome = Outcome(
            Ending.INFRASTRUCTURE_FAILURE,
            closing_message=len(turns) - 1,
            detail=f"{type(error).__name__}: {error}"[:500],
        )
    finally:
        for party in parties.values():
            party.close()
    view = env.view(scenario, Role.AGENT, turns[:1])  # the plain one, also under exploration
    agent = parties.get(Role.AGENT)
    return Conversation(
        id=f"{seat.round}/{scenario.kernel_id}/{seat.replica}",
        kernel_id=scenario.kernel_id,
        environment=env.name,
        turns=tuple(turns),
        outcome=outcome,
        system=view.system,
        reminder=view.reminder,
        policy=table.policy,
        round=seat.round,
        replica=seat.replica,
        seed=seat.seed,
        exploration=agent.exploration if isinstance(agent, Explorer) else None,
    )


def wait_for(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """``asyncio.run``, also from inside a running loop (a notebook): there in a thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work())
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: asyncio.run(work())).result()


def _check_characters(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"a reply holds half a character ({text[error.start]!r}, a lone surrogate), which can "
            "be neither tokenised nor stored"
        ) from error


def _finite(reward: float | None) -> bool:
    return reward is not None and math.isfinite(reward)
