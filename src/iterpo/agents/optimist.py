"""Optimism: in a share of the conversations one message is the most promising of several drafts.

What is promising is said by a score that is high also where little is known, such as an upper
confidence bound of the last round's Q. From the next message on the policy speaks itself.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from iterpo.agents.base import Agent, AgentFactory, Explorer, Reply, Seat
from iterpo.domain import Exploration, Response, Reward, Role, State, View, derive, uniform
from iterpo.domain.rules import refuse, within
from iterpo.errors import ConfigError

__all__ = ["CHOICE", "OptimismConfig", "Optimistic", "best", "draw_optimism"]

CHOICE: Mapping[str, str] = {"choice": "optimistic"}
"""What a conversation that was drawn for this notes as its trait."""


@dataclass(frozen=True, slots=True)
class OptimismConfig:
    """How one message of a conversation is chosen optimistically."""

    share: float = 0.25
    """Probability that a conversation is explored so, in (0, 1]; under personas it is that of the
    conversations that these leave plain."""
    candidates: int = 8
    """Messages that the policy draws for the one that it says; 2 or more."""
    scale: float = 1.0
    """Standard deviations over Q's heads (n - 1 in the denominator) that are added to their mean;
    0 says what Q finds best. Above 0 it needs `q.heads` of 2 or more."""
    within: int = 3
    """The message is drawn evenly from the agent's first so many, before the first word."""

    def __post_init__(self) -> None:
        """Refuse impossible values.

        Raises:
            ConfigError: with one line for each mistake.
        """
        refuse(
            self,
            share=within("(0, 1]"),
            candidates=within("[2, inf)"),
            scale=within("[0, inf)"),
            within=within("[1, inf)"),
        )


def draw_optimism(config: OptimismConfig, seed: int) -> Exploration:
    """The draw for the conversation of that seed: explored or not, and at which action."""
    if uniform(seed, "optimism", "share") >= config.share:
        return Exploration({}, 1.0 - config.share)
    action = 1 + int(config.within * uniform(seed, "optimism", "action"))
    return Exploration(CHOICE, config.share / config.within, action)


def best(scores: Sequence[float | None]) -> int:
    """Place of the highest score; the first of equals, and 0 where nothing has one.

    >>> best([0.2, None, 0.7, float("nan"), 0.7])
    2
    >>> best([None, None])
    0
    """
    known = [-math.inf if s is None or math.isnan(s) else s for s in scores]
    return max(range(len(known)), key=known.__getitem__)


@dataclass(frozen=True)
class Optimistic:
    """An ``AgentFactory``: the policy's agents, which say one message by choice of a score.

    The first draft is what the agent would have said anyway, so that the choice alone differs.
    All drafts are drawn under the plain prompt: ids and log-probabilities that are stored with the
    chosen one are the policy's own log pi(a | s). It was not *drawn* from that distribution, so
    they are no denominator of an importance weight; the turn is marked off-policy, as a
    persona's is. Returns from it on are the policy's own, those before it are not.
    """

    policy: AgentFactory
    """The policy's agents; each further draft is one of theirs, with a seed of its own."""
    score: Reward
    """How promising responses are."""
    config: OptimismConfig
    """What is drawn."""
    inner: AgentFactory | None = None
    """Who speaks otherwise: the policy under personas; None for the policy itself. What the persona
    explores is left to it."""

    def __call__(self, seat: Seat) -> Agent:
        """An agent for one seat.

        Raises:
            ConfigError: if the seat is the partner's, whose draws nobody would note.
        """
        if seat.role is not Role.AGENT:
            raise ConfigError(
                f"optimism is for the agent's seat, not for the {seat.role.value!r}'s"
            )
        agent = (self.inner or self.policy)(seat)
        drawn = draw_optimism(self.config, seat.seed)
        if isinstance(agent, Explorer):
            if agent.exploration.off_policy:
                return agent
            chance = drawn.propensity * agent.exploration.propensity
            drawn = replace(drawn, propensity=chance)
        return _Optimist(self, agent, seat, drawn)


class _Optimist:
    def __init__(
        self, table: Optimistic, agent: Agent, seat: Seat, exploration: Exploration
    ) -> None:
        self.exploration = exploration
        self._table = table
        self._agent = agent
        self._seat = seat

    async def reply(self, view: View) -> Reply:
        """The next message: the agent's own, or the most promising draft where that was drawn."""
        t = 1 + sum(turn.role is view.role and not turn.scripted for turn in view.turns)
        if self.exploration.action != t:
            return await self._agent.reply(view)
        drafts = await self._drafts(view)
        name = f"{self._seat.round}/{self._seat.scenario.kernel_id}/{self._seat.replica}"
        state = State(name, self._seat.scenario.kernel_id, t, view.messages())
        said = [Response(d.text, d.sampled.token_ids if d.sampled else None) for d in drafts]
        scores = self._table.score([state] * len(said), said)
        return replace(drafts[best(scores)], off_policy=True)

    async def _drafts(self, view: View) -> list[Reply]:
        """All at once: agents that share a model wait for each other, then share its call."""
        seeds = [
            derive(self._seat.seed, "optimism", "draft", k)
            for k in range(1, self._table.config.candidates)
        ]
        extra: list[Agent] = []
        try:
            extra.extend(self._table.policy(replace(self._seat, seed=seed)) for seed in seeds)
            # All are awaited also where one fails: none may go on after its seat is given up.
            drawn = await asyncio.gather(
                *(agent.reply(view) for agent in (self._agent, *extra)), return_exceptions=True
            )
        finally:
            for agent in extra:
                agent.close()
        drafts = []
        for reply in drawn:
            if isinstance(reply, BaseException):
                raise reply
            drafts.append(reply)
        return drafts

    def close(self) -> None:
        """The conversation is over."""
        self._agent.close()
