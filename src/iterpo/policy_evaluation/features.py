"""Features: the frozen backbone's hidden states that Q's head reads (section 3.1, Table 3)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from iterpo.domain import Message, Response, State
from iterpo.errors import ContextOverflowError
from iterpo.models.attention import keeps_prompts
from iterpo.models.backbone import Backbone, hidden_states
from iterpo.models.chains import Chain, TokenRow, batches, chain_rows
from iterpo.models.chat import check_ids
from iterpo.models.padding import PaddingSide, pad
from iterpo.models.shared_prefix import shared_states
from iterpo.policy_evaluation.base import Pooling
from iterpo.policy_evaluation.candidates import candidates, portions
from iterpo.policy_evaluation.numbers import beside

__all__ = ["Extracted", "extract", "extract_rows", "features", "pooled", "token_rows"]


@dataclass(frozen=True, slots=True)
class Extracted:
    """Features and what they cost."""

    features: Tensor
    """(n, d), or (n, 2d) with pooling ``final_and_mean``; fp32 on the CPU. A row without response
    tokens, or whose hidden state is not finite, is all NaN. Columns of numbers come last."""
    rows: int
    """n."""
    forwards: int
    """Sequences that went through the backbone; ``rows - forwards`` were saved."""
    tokens: int
    """Tokens that went through the backbone, padding left out; a shared prompt counts once."""
    hidden_dtype: str
    """What the backbone computed in, before the explicit cast to fp32."""


def features(
    backbone: Backbone,
    states: Sequence[State],
    responses: Sequence[Response],
    *,
    pooling: Pooling = "final",
    numbers: int = 0,
    max_batch_tokens: int = 8192,
) -> Tensor:
    """Hidden state of the final token of each (state, response), as fp32.

    The final token is located by the attention mask: padding side, batch size and stop tokens
    inside the prompt do not move it. One forward pass serves all turns of a conversation for as
    long as the prefix property holds, and several responses at one state share its prompt's.

    Args:
        backbone: Frozen model with its chat template.
        states: n states.
        responses: One for each state.
        pooling: ``final``, or ``final_and_mean`` to append the mean over the response's tokens.
        numbers: How many of each message to append; see ``numbers.numbers``.
        max_batch_tokens: Padded tokens of one forward pass.

    Returns:
        (n, d) or (n, 2d), and ``numbers.columns`` more, on the CPU; see ``Extracted.features``.

    Raises:
        ContextOverflowError: if a state and its response do not fit the context; nothing is cut.
    """
    return extract(
        backbone,
        states,
        responses,
        pooling=pooling,
        numbers=numbers,
        max_batch_tokens=max_batch_tokens,
    ).features


def extract(
    backbone: Backbone,
    states: Sequence[State],
    responses: Sequence[Response],
    *,
    pooling: Pooling = "final",
    numbers: int = 0,
    max_batch_tokens: int = 8192,
    padding: PaddingSide = "right",
) -> Extracted:
    """``features`` with the counts of what was done; ``padding`` exists to show it is harmless."""
    rows = token_rows(backbone, states, responses)
    found = extract_rows(
        backbone, rows, pooling=pooling, max_batch_tokens=max_batch_tokens, padding=padding
    )
    return replace(found, features=beside(found.features, states, responses, numbers))


def extract_rows(
    backbone: Backbone,
    rows: Sequence[TokenRow],
    *,
    pooling: Pooling = "final",
    max_batch_tokens: int = 8192,
    padding: PaddingSide = "right",
) -> Extracted:
    """``extract`` of rows that are token ids already, whatever they stand for.

    A prompt whose last token is given as its response yields the hidden state of a state.
    """
    spoken = [i for i, row in enumerate(rows) if len(row.response)]
    chains = chain_rows([rows[i] for i in spoken])
    _check_context(chains, backbone.context_length, [rows[i] for i in spoken])
    check_ids((chain.ids for chain in chains), backbone.vocabulary)
    alone, shared = candidates(chains) if keeps_prompts(backbone.model.config) else (chains, [])
    found: dict[int, Tensor] = {}
    dtype = ""
    for batch in batches(alone, max_batch_tokens):
        ids, mask = pad([chain.ids for chain in batch], padding)
        hidden = hidden_states(backbone, ids, mask)  # (b, longest, d), without gradients or dropout
        dtype = str(hidden.dtype).removeprefix("torch.")
        for row, value in _read(hidden, mask, batch, pooling):
            found[spoken[row]] = value
    for portion in portions(shared, max_batch_tokens):
        index = [i for i, group in enumerate(portion) for _ in group.chains]
        own = [chain for group in portion for chain in group.chains]
        said = [chain.ids[chain.reads[0].start :] for chain in own]
        hidden = shared_states(backbone, [g.prompt for g in portion], index, said)
        dtype = str(hidden.dtype).removeprefix("torch.")
        for states_of, ids_of, chain in zip(hidden, said, own, strict=True):
            value = pooled(states_of[: len(ids_of)], pooling)
            for row in chain.reads[0].rows:
                found[spoken[row]] = value
    tokens = _n_tokens(chains) - sum(len(g.prompt) * (len(g.chains) - 1) for g in shared)
    return Extracted(_stack(found, len(rows)), len(rows), len(chains), tokens, dtype)


def token_rows(
    backbone: Backbone, states: Sequence[State], responses: Sequence[Response]
) -> list[TokenRow]:
    """Each (state, response) as token ids; a prompt that comes again is rendered once.

    Raises:
        BatchError: if the stored ids of a response don't spell its text.
    """
    if len(states) != len(responses):
        raise ValueError(f"{len(states)} states but {len(responses)} responses; give one for each")
    prompts: dict[tuple[Message, ...], Sequence[int]] = {}
    out = []
    for state, response in zip(states, responses, strict=True):
        if state.messages not in prompts:
            prompts[state.messages] = backbone.chat.prompt_ids(state.messages)
        ids = backbone.chat.response_token_ids(response)
        out.append(TokenRow(state.conversation_id, state.t, prompts[state.messages], ids))
    return out


def _check_context(chains: Sequence[Chain], limit: int, rows: Sequence[TokenRow]) -> None:
    for chain in chains:
        if len(chain.ids) > limit:
            row = rows[chain.reads[-1].rows[0]]
            raise ContextOverflowError(
                f"turn {row.t} of conversation {row.group!r} takes {len(chain.ids)} "
                f"tokens with its response, but the backbone's context holds {limit}. A scored "
                "response is never truncated: shorten the prompts or the turn limit, or use a "
                "model with a longer context."
            )


def _read(
    hidden: Tensor, mask: Tensor, batch: Sequence[Chain], pooling: Pooling
) -> Iterator[tuple[int, Tensor]]:
    for states, real, chain in zip(hidden, mask.bool(), batch, strict=True):
        columns = real.nonzero().flatten().to(hidden.device)  # k-th real token -> its column
        for read in chain.reads:
            value = pooled(states[columns[read.start : read.end]], pooling)
            for row in read.rows:
                yield row, value


def pooled(states: Tensor, pooling: Pooling) -> Tensor:
    """What the head reads of a response's hidden states (n, d); all NaN where one is not finite."""
    value = states[-1].float()
    if pooling == "final_and_mean":
        value = torch.cat([value, states.float().mean(dim=0)])
    value = value.cpu()
    return value if bool(torch.isfinite(value).all()) else torch.full_like(value, float("nan"))


def _stack(found: dict[int, Tensor], n: int) -> Tensor:
    width = next(iter(found.values())).shape[0] if found else 0
    blank = torch.full((width,), float("nan"))
    return torch.stack([found.get(i, blank) for i in range(n)]) if n else torch.empty((0, 0))


def _n_tokens(chains: Sequence[Chain]) -> int:
    return sum(len(chain.ids) for chain in chains)
