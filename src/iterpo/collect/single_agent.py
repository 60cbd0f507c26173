"""An environment with its partner as one Gymnasium-style environment, for on-policy tools.

Duck-typed: nothing is imported from gymnasium (docs/how-to/on-policy-tools.md makes it an instance
of ``gymnasium.Env``). One step is one action of the agent; the reward comes with the last.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from iterpo.agents.base import AgentFactory, Seat
from iterpo.collect.stepwise import Backstage, Dialogue
from iterpo.domain import Ending, Role, Scenario, View, derive
from iterpo.environments.base import Environment
from iterpo.errors import ConfigError, OutOfTurnError, TrainingError

__all__ = ["SingleAgentEnv", "as_messages", "as_text"]


def as_messages(view: View) -> list[dict[str, str]]:
    """The view as chat messages, reminder applied: what iterpo's own policies are given."""
    return [message.as_dict() for message in view.messages()]


def as_text(view: View) -> str:
    """The view as one text, a paragraph for each message.

    >>> from iterpo.domain import Turn
    >>> print(as_text(View(Role.PARTNER, "Be kind.", (Turn(Role.AGENT, "Hi!"),))))
    system: Be kind.
    user: Hi!
    """
    return "\n".join(f"{m.role}: {m.content}" for m in view.messages())


class SingleAgentEnv:
    """The agent's side of an environment as ``reset`` and ``step``.

    ``terminated`` is true where the game itself has ended, by agreement, refusal or its own message
    limit: its reward is final and nothing would have followed. ``truncated`` is true where the
    reward is not known: at ``max_actions``, or where the game calls the transcript unscorable.
    """

    def __init__(
        self,
        environment: Environment,
        partner: AgentFactory,
        scenarios: Sequence[Scenario],
        *,
        observe: Callable[[View], Any] = as_messages,
        seed: int = 0,
        max_actions: int | None = None,
    ) -> None:
        """Nothing is played yet.

        Args:
            environment: The game.
            partner: Who sits opposite.
            scenarios: Kernels; each episode draws one of them.
            observe: Makes an observation of the agent's view (``as_messages``, ``as_text``, …).
            seed: Seed of the episodes until ``reset`` is given another one.
            max_actions: Longest episode in agent actions; None leaves it to the game.
        """
        if not scenarios:
            raise ConfigError("scenarios: given none; accepted: at least one kernel")
        self.metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 1}
        self.render_mode = "ansi"
        self._environment = environment
        self._partner = partner
        self._scenarios = tuple(scenarios)
        self._observe = observe
        self._seed = seed
        self._episode = 0
        self._max_actions = max_actions
        self._backstage: Backstage | None = None
        self._talk: Dialogue | None = None
        self._ended = True
        self._actions = 0

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode: the opening is said and the partner answers it.

        If the partner ends the conversation with that answer, ``info["over"]`` is true: the next
        ``step`` says nothing and gives the outcome, so that such conversations are counted, too.

        Args:
            seed: Restarts the sequence of episodes; the same seed gives the same sequence.
            options: ``{"kernel_id": ...}`` plays that kernel.

        Raises:
            ConfigError: if there is no such kernel.
            TrainingError: if the partner failed.
        """
        if seed is not None:
            self._seed, self._episode = seed, 0
        scenario = self._scenario(options or {})
        self._leave()
        self._backstage = self._backstage or Backstage()
        seed_here = derive(self._seed, "episode", self._episode)
        seat = Seat(scenario, Role.AGENT, 0, self._episode, seed_here)
        self._episode += 1
        self._actions, self._ended = 0, False
        self._talk = Dialogue(self._backstage, self._environment, self._partner, seat)
        self._check(self._talk)
        return self._observe(self._talk.view), self._info(self._talk)

    def step(self, action: str) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """The agent says ``action``.

        Returns:
            Observation, reward, terminated, truncated, info. At the end ``info["conversation"]``
            is the whole conversation, its outcome included.

        Raises:
            OutOfTurnError: if no episode runs.
            TrainingError: if the partner failed: there is no reward then, not even a zero.
        """
        talk = self._talk
        if talk is None or self._ended:
            raise OutOfTurnError("no conversation is going on; call reset() first")
        if not isinstance(action, str):
            raise ConfigError(f"action: given {action!r}; accepted: a text, what the agent says")
        if not talk.over:
            talk.say(action)
            self._actions += 1
            self._check(talk)
        outcome = talk.outcome
        terminated = outcome is not None and outcome.ending.scored
        truncated = outcome is not None and not terminated
        if outcome is None and self._actions == self._max_actions:
            truncated = True
            talk.leave()
        self._ended = terminated or truncated
        reward = float(outcome.reward or 0.0) if outcome and terminated else 0.0
        return self._observe(talk.view), reward, terminated, truncated, self._info(talk)

    def render(self) -> str:
        """The transcript so far, as text."""
        turns = self._talk.turns if self._talk else ()
        return "\n".join(f"{turn.role.value}: {turn.text}" for turn in turns)

    def close(self) -> None:
        """Break off what is going on and end the partner's thread; ``reset`` begins anew."""
        self._leave()
        if self._backstage:
            self._backstage.close()
        self._backstage = self._talk = None

    def _leave(self) -> None:
        if self._talk:
            self._talk.leave()
        self._ended = True

    def _scenario(self, options: Mapping[str, Any]) -> Scenario:
        unknown = set(options) - {"kernel_id"}
        if unknown:
            raise ConfigError(f"options: given {sorted(unknown)}; accepted: kernel_id")
        if not options:
            draw = derive(self._seed, "kernel of episode", self._episode)
            return self._scenarios[draw % len(self._scenarios)]
        wanted = options["kernel_id"]
        found = [s for s in self._scenarios if s.kernel_id == wanted]
        if not found:
            known = ", ".join(s.kernel_id for s in self._scenarios[:5])
            raise ConfigError(f"kernel_id: given {wanted!r}; accepted: one of {known}, …")
        return found[0]

    def _check(self, talk: Dialogue) -> None:
        outcome = talk.outcome
        if outcome and outcome.ending is Ending.INFRASTRUCTURE_FAILURE:
            self._ended = True
            raise TrainingError(
                f"the conversation about {talk.seat.scenario.kernel_id} failed and has no reward: "
                f"{outcome.detail}. Call reset() and leave it out"
            )

    def _info(self, talk: Dialogue) -> dict[str, Any]:
        info: dict[str, Any] = {
            "kernel_id": talk.seat.scenario.kernel_id,
            "actions": self._actions,
            "over": talk.over,
        }
        if talk.conversation:
            outcome = talk.conversation.outcome
            info |= {
                "ending": outcome.ending.value,
                "reward": outcome.reward,
                "terms": dict(outcome.terms),
                "conversation": talk.conversation,
            }
        return info
