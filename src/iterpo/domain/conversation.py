"""A conversation: who said what, under which policy, sampled how."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from iterpo.domain.outcome import Outcome
from iterpo.domain.rules import broken, within

__all__ = [
    "Conversation",
    "Exploration",
    "Message",
    "Role",
    "Sampled",
    "Sampling",
    "Turn",
    "View",
]


class Role(StrEnum):
    """The two parties of a conversation."""

    AGENT = "agent"
    """The trained policy pi."""
    PARTNER = "partner"
    """The other side: a customer, a counterpart, the paper's pi_env."""

    @property
    def other(self) -> Role:
        """The opposite party."""
        return Role.PARTNER if self is Role.AGENT else Role.AGENT


@dataclass(frozen=True, slots=True)
class Sampling:
    """Effective sampling settings: what was really applied, not what was asked for."""

    temperature: float = 1.0
    """Softmax temperature; 0 is greedy."""
    top_p: float = 1.0
    """Nucleus mass; 1 switches the nucleus off."""
    top_k: int = 0
    """Number of candidates; 0 switches it off."""
    repetition_penalty: float = 1.0
    """1 is neutral. Checkpoints that ship another default are overruled."""
    max_new_tokens: int = 64
    """Longest response in tokens, the stop token included."""

    @property
    def reshaped(self) -> bool:
        """Whether more than the temperature shapes the draws: a nucleus, ``top_k``, a penalty."""
        return self.top_p < 1 or self.top_k > 0 or self.repetition_penalty != 1

    def mistakes(self) -> list[str]:
        """What nothing can be drawn with, a line for each setting; empty if all is well.

        >>> Sampling(top_k=-1).mistakes()
        ['top_k: given -1; accepted: 0 (off) or more']
        """
        return broken(
            self,
            # Logits divided by less than a thousandth overflow half precision, and further down
            # all.
            temperature=(lambda v: v == 0 or 1e-3 <= v <= 1e3, "0 (greedy), or 0.001 to 1000"),
            top_p=within("(0, 1]"),
            top_k=within("[0, inf)", zero="off"),
            repetition_penalty=within("(0, inf)"),
            max_new_tokens=within("[1, inf)"),
        )


@dataclass(frozen=True, slots=True)
class Sampled:
    """How a turn came to be; absent for scripted and text-only turns.

    A server may keep back ids, log-probabilities or both: None says so. An empty tuple is a
    response without a token.
    """

    token_ids: tuple[int, ...] | None
    """Ids as sampled, never re-tokenised; ends with the stop token if ``finish`` is ``stop``.
    None if they are not known."""
    logprobs: tuple[float, ...] | None
    """Natural log-probability of each token; same length as ``token_ids`` where both are known.
    None if they are not known."""
    sampling: Sampling
    """Effective settings."""
    prompt_sha256: str
    """Hash of the rendered prompt's token ids; empty if a server kept them back."""
    n_prompt_tokens: int
    """Length of that prompt in tokens; 0 if a server did not say."""
    policy: str
    """``PolicyRef.id`` of the policy that sampled it, or the name of a served model."""
    finish: str
    """``stop`` (the model ended its turn) or ``length`` (cut at ``max_new_tokens``)."""
    logprobs_mode: str = "processed"
    """``processed``: under the distribution that was drawn from (after temperature and nucleus);
    ``raw``: before them, so no ratio can be formed unless the settings are neutral."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of the transcript."""

    role: Role
    """Who speaks."""
    text: str
    """The message as the other side reads it."""
    scripted: bool = False
    """True for the opening: a template, never sampled, never an action."""
    sampled: Sampled | None = None
    """Evidence of sampling; None for scripted speakers and text-only logs."""
    off_policy: bool = False
    """True if the turn was drawn under exploration instead of the policy itself."""


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message as a model sees it."""

    role: str
    """``system``, ``user`` or ``assistant``."""
    content: str
    """Text."""
    token_ids: tuple[int, ...] | None = None
    """Sampled ids of an assistant message where they are known."""

    def as_dict(self) -> dict[str, str]:
        """The role/content pair that chat templates take."""
        return {"role": self.role, "content": self.content}


@dataclass(frozen=True, slots=True)
class View:
    """What one party sees: its own instructions, its private note, and the transcript."""

    role: Role
    """Whose view this is."""
    system: str
    """System prompt."""
    turns: tuple[Turn, ...] = ()
    """Transcript so far."""
    reminder: str | None = None
    """Private note put before the other side's latest message in the rendered prompt only."""

    def messages(self) -> tuple[Message, ...]:
        r"""Chat messages: own turns are ``assistant``, the other's ``user``; reminder applied.

        >>> hello = Turn(Role.AGENT, "Hi!", scripted=True)
        >>> view = View(Role.PARTNER, "Be kind.", (hello,), reminder="[NOTE]")
        >>> [(m.role, m.content) for m in view.messages()]
        [('system', 'Be kind.'), ('user', '[NOTE]\nHi!')]
        """
        latest = max((i for i, t in enumerate(self.turns) if t.role is not self.role), default=-1)
        out = [Message("system", self.system)]
        for i, turn in enumerate(self.turns):
            if turn.role is self.role:
                ids = turn.sampled.token_ids if turn.sampled else None
                out.append(Message("assistant", turn.text, ids))
            else:
                note = f"{self.reminder}\n" if self.reminder and i == latest else ""
                out.append(Message("user", note + turn.text))
        return tuple(out)


@dataclass(frozen=True, slots=True)
class Exploration:
    """What was drawn to make the agent of one conversation explore (section 3.4)."""

    traits: Mapping[str, str] = field(default_factory=dict)
    """Value by trait, e.g. ``{"tone": "warm"}``; empty if the plain policy was drawn."""
    propensity: float = 1.0
    """Probability of exactly this draw, in (0, 1]."""
    action: int | None = None
    """Index t of the one action that the traits were meant for, drawn before the first word and
    perhaps never reached; None: every action."""

    @property
    def off_policy(self) -> bool:
        """Whether the draw changed the distribution of the responses."""
        return bool(self.traits)

    @property
    def chosen(self) -> bool:
        """Whether the message was chosen among drafts: what is stored is then not its density."""
        return "choice" in self.traits


@dataclass(frozen=True, slots=True)
class Conversation:
    """A finished conversation with all that training and scoring need; no environment required."""

    id: str
    """Unique within a log."""
    kernel_id: str
    """The scenario that was played (the paper's kernel); the unit of clustering."""
    environment: str
    """Registry name of the game, or the source of the log."""
    turns: tuple[Turn, ...]
    """Transcript, opening first."""
    outcome: Outcome
    """How it ended."""
    system: str
    """The agent's system prompt."""
    reminder: str | None = None
    """The agent's private note (see ``View``)."""
    policy: str = ""
    """``PolicyRef.id`` of the deployed policy."""
    round: int = 0
    """Round that logged it."""
    replica: int = 0
    """Index among the conversations of one kernel and round."""
    seed: int = 0
    """Seed of the conversation's random draws."""
    j_star: Mapping[str, float] = field(default_factory=dict)
    """Best attainable return by discount unit, and the ``gamma`` that it holds for, where the
    partner is scripted; else empty."""
    exploration: Exploration | None = None
    """Draw of the exploration that the agent was under; None where nothing was drawn."""

    @property
    def explored(self) -> bool:
        """Whether it is no sample of the policy itself: by its draw, or by a marked agent turn."""
        drawn = self.exploration is not None and self.exploration.off_policy
        return drawn or any(t.off_policy for t in self.turns if t.role is Role.AGENT)

    def agent_view(self, n_turns: int) -> View:
        """What the agent saw after the first ``n_turns`` messages."""
        return View(Role.AGENT, self.system, self.turns[:n_turns], self.reminder)
