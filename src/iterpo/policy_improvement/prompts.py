"""Prompts of logged states, fitted to the context without ever cutting a message in two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from iterpo.domain import Message, State
from iterpo.errors import ContextOverflowError

if TYPE_CHECKING:
    from iterpo.models.chat import ChatFormat

__all__ = ["Prompts", "fit_prompts"]


@dataclass(frozen=True, slots=True)
class Prompts:
    """States with their rendered prompts; sampler and reward see the same ones."""

    states: tuple[State, ...]
    """The states, old turns left out where the prompt had to be shortened."""
    ids: tuple[tuple[int, ...], ...]
    """Token ids of each prompt."""
    shortened: int
    """Number of states that lost turns."""


def fit_prompts(
    chat: ChatFormat,
    states: Sequence[State],
    room: int | Sequence[int],
    *,
    drop_old_turns: bool = False,
) -> Prompts:
    """Render every state, leaving out oldest whole turns where that is allowed and needed.

    The system message and the latest message always stay, and so does the room for the response.

    Args:
        chat: Renders messages to token ids.
        states: What to render.
        room: Tokens that a prompt may take; one number for all, or one for each.
        drop_old_turns: Whether prompts may be shortened.

    Raises:
        ContextOverflowError: if prompts don't fit; names the longest and the number of them.
    """
    kept: list[State] = []
    ids: list[tuple[int, ...]] = []
    shortened = 0
    too_long: list[tuple[int, int, State]] = []
    rooms = [room] * len(states) if isinstance(room, int) else room
    for state, most in zip(states, rooms, strict=True):
        messages = state.messages
        prompt = tuple(chat.prompt_ids(messages))
        full = len(prompt)
        while drop_old_turns and len(prompt) > most:
            fewer = _without_oldest(messages)
            if fewer is None:
                break
            messages = fewer
            prompt = tuple(chat.prompt_ids(messages))
        if len(prompt) > most:
            too_long.append((full, most, state))
        shortened += len(messages) < len(state.messages)
        kept.append(replace(state, messages=messages))
        ids.append(prompt)
    if too_long:
        raise _overflow(too_long, len(states), drop_old_turns)
    return Prompts(tuple(kept), tuple(ids), shortened)


def _without_oldest(messages: tuple[Message, ...]) -> tuple[Message, ...] | None:
    start = next((i for i, m in enumerate(messages) if m.role != "system"), len(messages))
    if start >= len(messages) - 1:
        return None
    return messages[:start] + messages[start + 1 :]


def _overflow(
    too_long: list[tuple[int, int, State]], n: int, dropping: bool
) -> ContextOverflowError:
    length, room, state = max(too_long, key=lambda item: item[0])
    hint = (
        "even without its older turns" if dropping else "set drop_old_turns to leave out old turns"
    )
    return ContextOverflowError(
        f"{len(too_long)} of {n} prompts don't fit the {room} tokens that the context leaves "
        f"beside the response; the longest has {length} (conversation "
        f"{state.conversation_id!r}, action {state.t}; {hint}). Use a model with a longer "
        "context, shorter responses (sampling.max_new_tokens) or shorter system prompts."
    )
