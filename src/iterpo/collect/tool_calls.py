"""An environment as TRL's ``environment_factory``: the policy speaks by calling a tool.

For on-policy training with ``trl.GRPOTrainer``; duck-typed, nothing is imported from TRL. Its
trainer makes one ``ToolConversation`` for each rollout and resets it with each row of the data.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from iterpo.agents.base import AgentFactory, Seat
from iterpo.collect.stepwise import Backstage, Dialogue
from iterpo.domain import Ending, Role, Scenario, derive
from iterpo.environments.base import Environment
from iterpo.errors import ConfigError, OutOfTurnError

__all__ = ["HINT", "ToolConversation", "ToolEnvironments"]

HINT = "Everything that you want the other side to read, you say with the tool `say`."
"""Told to the policy at the end of its instructions."""


class ToolEnvironments:
    """An ``environment_factory``, and the rows of data to train on."""

    def __init__(
        self,
        environment: Environment,
        partner: AgentFactory,
        scenarios: Sequence[Scenario],
        *,
        seed: int = 0,
        unfinished: float | None = 0.0,
        hint: str = HINT,
    ) -> None:
        """Nothing is played yet.

        Args:
            environment: The game.
            partner: Who sits opposite.
            scenarios: Kernels; one row of data for each.
            seed: Seed of the partner's draws.
            unfinished: Reward of a rollout that stops before the game has ended, because the
                policy fell silent or ran out of tokens; None leaves such rollouts out.
            hint: Sentence on the tool, put after the instructions; empty for none.
        """
        self.environment = environment
        self.partner = partner
        self.unfinished = unfinished
        self._scenarios = {s.kernel_id: s for s in scenarios}
        self._hint = hint
        self._seed = seed
        self._played: Counter[str] = Counter()
        self.backstage = Backstage()

    def __call__(self) -> ToolConversation:
        """An environment for one rollout at a time."""
        return ToolConversation(self)

    def rows(self) -> list[dict[str, Any]]:
        """Rows for ``datasets.Dataset.from_list``: ``prompt`` and ``kernel_id``.

        A prompt holds the instructions, the opening, and an empty user message, to which ``reset``
        adds the partner's first words.
        """
        rows = []
        for kernel_id, scenario in self._scenarios.items():
            opening = self.environment.opening(scenario)
            view = self.environment.view(scenario, Role.AGENT, (opening,))
            system = f"{view.system}\n{self._hint}" if self._hint else view.system
            prompt = [
                {"role": "system", "content": system},
                {"role": "assistant", "content": opening.text},
                {"role": "user", "content": ""},
            ]
            rows.append({"prompt": prompt, "kernel_id": kernel_id})
        return rows

    def seat(self, kernel_id: str) -> Seat:
        """The next conversation of a kernel; each has its own wording and draws.

        Raises:
            ConfigError: if the kernel is none of ``scenarios``.
        """
        scenario = self._scenarios.get(kernel_id)
        if scenario is None:
            raise ConfigError(
                f"kernel_id: given {kernel_id!r}, which is none of the {len(self._scenarios)} "
                "kernels of this factory; make the data set of its rows()"
            )
        replica = self._played[kernel_id]
        self._played[kernel_id] += 1
        seed = derive(self._seed, "tool calls", kernel_id, replica)
        return Seat(scenario, Role.AGENT, 0, replica, seed)


class ToolConversation:
    """One conversation at a time; every public method but two is a tool of the policy."""

    def __init__(self, factory: ToolEnvironments) -> None:
        """Nothing is played yet."""
        self._factory = factory
        self._talk: Dialogue | None = None

    def reset(self, kernel_id: str = "", **_: Any) -> str:
        """Begin a conversation about a kernel; what the partner says first."""
        if self._talk:
            self._talk.leave()
        f = self._factory
        self._talk = Dialogue(f.backstage, f.environment, f.partner, f.seat(kernel_id))
        return _heard(self._talk)

    def say(self, message: str) -> str:
        """Say something to the other side.

        Args:
            message: What the other side is to read.

        Returns:
            What the other side answers.
        """
        if self._talk is None:
            raise OutOfTurnError("no conversation has begun")
        self._talk.say(str(message))
        return _heard(self._talk)

    def get_reward(self) -> float | None:
        """The reward of the conversation; None, which TRL leaves out, where there is none."""
        if self._talk is None:
            return None
        if self._talk.outcome is None:
            self._talk.leave()
            return self._factory.unfinished
        return self._talk.outcome.reward


def _heard(talk: Dialogue) -> str:
    """The partner's latest words with the agent's private note, and whether it is over."""
    said = []
    ending = talk.outcome.ending if talk.outcome else None
    if talk.turns[-1].role is Role.PARTNER:
        said.append(talk.view.messages()[-1].content)
    if ending is Ending.INFRASTRUCTURE_FAILURE:
        said.append("(The line is dead.)")
    elif ending:
        said.append(f"(The conversation is over: {ending.value.replace('_', ' ')}.)")
    return "\n".join(said)
