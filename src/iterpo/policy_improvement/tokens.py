"""Encoded: logged examples as token ids, whole or not at all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from iterpo.domain import State
from iterpo.models.chat import check_ids
from iterpo.policy_improvement.logged import Example, LoggedConfig
from iterpo.policy_improvement.prompts import fit_prompts

if TYPE_CHECKING:
    from iterpo.models.backbone import Backbone

__all__ = ["Encoded", "encode"]


@dataclass(frozen=True, slots=True)
class Encoded:
    """Examples in the order in which they were given."""

    states: tuple[State, ...]
    """Their states, old turns left out where a prompt had to be shortened."""
    prompts: tuple[tuple[int, ...], ...]
    """Token ids of each state."""
    responses: tuple[tuple[int, ...], ...]
    """Token ids of each response, as sampled where they are known; the stop token included."""
    shortened: int
    """Number of states that lost turns."""


def encode(
    backbone: Backbone,
    examples: Sequence[Example],
    config: LoggedConfig,
    pairs: Iterable[tuple[int, int]] = (),
) -> Encoded:
    """Token ids of states and responses; nothing is cut.

    Args:
        backbone: Whose tokenizer, template and context.
        examples: What to encode.
        config: Its ``max_length`` and ``drop_old_turns``.
        pairs: (i, j) where the response of example j must fit the state of example i as well.

    Raises:
        ContextOverflowError: if a state with its response doesn't fit and may not be shortened.
        BatchError: if another model's tokenizer made the ids.
    """
    responses = [tuple(backbone.chat.response_token_ids(e.response)) for e in examples]
    longest = list(map(len, responses))
    for i, j in pairs:
        longest[i] = max(longest[i], len(responses[j]))
    limit = min(config.max_length or backbone.context_length, backbone.context_length)
    prompts = fit_prompts(
        backbone.chat,
        [e.state for e in examples],
        [limit - n for n in longest],
        drop_old_turns=config.drop_old_turns,
    )
    check_ids((*prompts.ids, *responses), backbone.vocabulary)
    return Encoded(prompts.states, prompts.ids, tuple(responses), prompts.shortened)
