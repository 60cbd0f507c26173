"""Log-probabilities of given responses under a policy, all turns of a conversation in one pass."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch

from iterpo.domain import Conversation, Response, State, decisions
from iterpo.errors import ContextOverflowError
from iterpo.models.backbone import Backbone
from iterpo.models.chains import Chain, batches, chain_rows
from iterpo.models.padding import pad
from iterpo.policy_evaluation.features import token_rows

__all__ = ["log_probs", "stored_gap"]

# Logits are (rows, positions, vocabulary): a smaller bound than that of a pass for hidden states.
_MAX_BATCH_TOKENS = 2048
_CHECKED = 16


@torch.no_grad()
def log_probs(
    policy: Backbone,
    states: Sequence[State],
    responses: Sequence[Response],
    temperature: float = 1.0,
    max_batch_tokens: int = _MAX_BATCH_TOKENS,
) -> list[tuple[float, ...]]:
    """Log-probability of every token of every response given what came before, in nats, float32.

    Args:
        policy: A policy as it was loaded, with nothing being trained on it.
        states: n states.
        responses: One for each.
        temperature: Of the distribution that the responses are judged under; above 0.
        max_batch_tokens: Padded tokens of one forward pass.

    Raises:
        ContextOverflowError: if a state and its response don't fit the context.
    """
    rows = token_rows(policy, states, responses)
    spoken = [i for i, row in enumerate(rows) if len(row.response)]
    chains = chain_rows([rows[i] for i in spoken])
    longest = max((len(chain.ids) for chain in chains), default=0)
    if longest > policy.context_length:
        raise ContextOverflowError(
            f"a logged state and its response take {longest} tokens, but the policy's context "
            f"holds {policy.context_length}; use the policy that logged them"
        )
    found: list[tuple[float, ...]] = [()] * len(rows)
    for batch in batches(chains, max_batch_tokens):
        for row, values in _score(policy, batch, temperature):
            found[spoken[row]] = values
    return found


def stored_gap(
    policy: Backbone, conversations: Sequence[Conversation], temperature: float
) -> float | None:
    """Mean |stored - recomputed| log-prob of a token over the first 16 conversations, if any.

    Args:
        policy: The policy that sampled them.
        conversations: With the log-probs of every agent turn.
        temperature: That they were sampled at.
    """
    rows = [d for c in conversations[:_CHECKED] for d in decisions(c, 1.0)]
    again = log_probs(policy, [d.state for d in rows], [d.response for d in rows], temperature)
    stored = [d.turn.sampled.logprobs or () if d.turn.sampled else () for d in rows]
    gaps = [
        abs(a - b) for x, y in zip(again, stored, strict=True) for a, b in zip(x, y, strict=True)
    ]
    return math.fsum(gaps) / len(gaps) if gaps else None


def _score(
    policy: Backbone, batch: Sequence[Chain], temperature: float
) -> Iterator[tuple[int, tuple[float, ...]]]:
    ids, mask = pad([chain.ids for chain in batch])
    ids, mask = ids.to(policy.device), mask.to(policy.device)
    # Only the positions before a response token predict one (the union over the batch).
    wanted = sorted(
        {p for chain in batch for read in chain.reads for p in range(read.start, read.end)}
    )
    place = {p: k for k, p in enumerate(wanted)}
    logits = policy.model(
        input_ids=ids,
        attention_mask=mask,
        position_ids=(mask.cumsum(-1) - 1).clamp(min=0),
        use_cache=False,
        logits_to_keep=torch.tensor(wanted, device=policy.device) - 1,
    ).logits  # (b, wanted, V)
    for k, chain in enumerate(batch):
        for read in chain.reads:
            at = [place[p] for p in range(read.start, read.end)]
            scores = torch.log_softmax(logits[k, at].float() / temperature, dim=-1)
            said = ids[k, read.start : read.end, None]
            values = tuple(scores.gather(-1, said)[:, 0].tolist())
            for row in read.rows:
                yield row, values
