"""Episodes: logged conversations as a training on whole trajectories takes them.

An episode has one or more forward passes. Where each prompt is the beginning of the next one, a
single pass goes through all actions; a reminder line that moves on takes a pass for each.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from iterpo.domain import Conversation, Decision, DiscountUnit, Turn, decisions, discounts
from iterpo.errors import BatchError, ContextOverflowError
from iterpo.models.chains import TokenRow, chain_rows
from iterpo.policy_improvement.prompts import fit_prompts

if TYPE_CHECKING:
    from iterpo.models.chat import ChatFormat

__all__ = ["Action", "Episode", "episodes", "fingerprint"]


@dataclass(frozen=True, slots=True)
class Action:
    """An agent turn: its tokens are ``passes[of][start:end]`` of its episode."""

    of: int
    """Which pass."""
    start: int
    """Index of its first token, at least 1."""
    end: int
    """One past its last token (the stop token, where it was sampled)."""
    reward: float
    """What it earned at once, discounted to it; what later actions earned is theirs."""
    discount: float
    """What a reward of the next action counts here; 0 after the last one."""
    temperature: float
    """Temperature that it was sampled at; 1 where that is not known, or was 0."""

    @property
    def length(self) -> int:
        """Its tokens."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Episode:
    """The actions of one conversation, in order; the last one closes it."""

    name: str
    """Conversation id."""
    passes: tuple[tuple[int, ...], ...]
    """Token ids of each forward pass."""
    actions: tuple[Action, ...]
    """At least one."""

    @property
    def tokens(self) -> int:
        """Tokens that the agent said."""
        return sum(a.length for a in self.actions)

    @property
    def read(self) -> int:
        """Tokens that go through the model."""
        return sum(map(len, self.passes))


def episodes(
    conversations: Sequence[Conversation],
    chat: ChatFormat,
    limit: int,
    *,
    gamma: float,
    unit: DiscountUnit = "agent_turn",
    drop_old_turns: bool = False,
) -> tuple[tuple[Episode, ...], int]:
    """The conversations in which the agent acted, with their terminal reward at the last action.

    Args:
        conversations: With rewards.
        chat: Renders messages to token ids.
        limit: Most tokens of a state with its response.
        gamma: Discount, as in ``domain.decisions``.
        unit: What one power of it stands for.
        drop_old_turns: Whether prompts may be shortened by whole oldest turns.

    Returns:
        The episodes, and how many states were shortened.

    Raises:
        BatchError: if a reward is not finite, or stored ids are another model's.
        ContextOverflowError: if a state with its response doesn't fit and may not be shortened.
    """
    found, shortened = [], 0
    for number, conversation in enumerate(conversations):
        rows = decisions(conversation, gamma, unit)
        if not rows:
            continue
        if not math.isfinite(rows[-1].ret):
            raise BatchError(
                f"conversation {conversation.id!r} has the reward {rows[-1].ret}; a finite number "
                "is needed: re-score the log"
            )
        tokens = []
        for row in rows:
            said = chat.response_token_ids(row.response)
            prompt, cut = _prompt(row, chat, limit - len(said), drop_old_turns)
            shortened += cut
            tokens.append(TokenRow(str(number), row.state.t, prompt, said))
        if all(row.response for row in tokens):  # a turn without a token is nobody's action
            ahead = discounts(conversation, gamma, unit)
            found.append(_episode(conversation.id, rows, ahead, tokens))
    return tuple(found), shortened


def fingerprint(given: Sequence[Episode]) -> str:
    """SHA-256 of all that is in them."""
    facts = json.dumps([asdict(e) for e in given], sort_keys=True)
    return hashlib.sha256(facts.encode()).hexdigest()


def _prompt(row: Decision, chat: ChatFormat, room: int, drop: bool) -> tuple[Sequence[int], bool]:
    prompt = chat.prompt_ids(row.state.messages)
    if len(prompt) <= room:
        return prompt, False
    if not drop:
        raise ContextOverflowError(
            f"action {row.state.t} of conversation {row.state.conversation_id!r} has a prompt of "
            f"{len(prompt)} tokens, but max_length (or the model's context) leaves {room} beside "
            "the response. Nothing is cut: set drop_old_turns to leave out old turns, or raise "
            "max_length."
        )
    return fit_prompts(chat, [row.state], room, drop_old_turns=True).ids[0], True


def _episode(
    name: str, rows: Sequence[Decision], ahead: Sequence[float], tokens: Sequence[TokenRow]
) -> Episode:
    chains = chain_rows(tokens)
    places = {
        row: (i, read.start, read.end)
        for i, chain in enumerate(chains)
        for read in chain.reads
        for row in read.rows
    }
    last = len(rows) - 1
    actions = tuple(
        Action(*places[i], row.ret if i == last else 0.0, discount, _temperature(row.turn))
        for i, (row, discount) in enumerate(zip(rows, ahead, strict=True))
    )
    return Episode(name, tuple(tuple(chain.ids) for chain in chains), actions)


def _temperature(turn: Turn) -> float:
    return (turn.sampled.sampling.temperature if turn.sampled else 0.0) or 1.0
