"""Hidden states of responses where the candidates of one prompt share its forward pass.

A group of G candidates has one prompt. Computing that prompt once, with gradients, instead of G
times gives the same numbers (to rounding) for a fraction of the work.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, cast

import torch
from transformers.modeling_outputs import MoeModelOutputWithPast

from iterpo.models.attention import keeps_prompts
from iterpo.models.padding import distinct
from iterpo.models.shared_prefix import states_behind

__all__ = [
    "agree",
    "can_share",
    "precomputed",
    "response_logps",
    "response_states",
    "shared_logps",
    "token_logits",
    "token_states",
    "vocabulary",
]


_log = logging.getLogger(__name__)


def can_share(model: Any, prompt_ids: torch.Tensor) -> bool:
    """Whether sharing is exact for this model's attention and pays for these prompts (B, P)."""
    checkpointing = any(getattr(m, "gradient_checkpointing", False) for m in model.modules())
    exact = keeps_prompts(model.config) and not checkpointing
    return exact and 2 * len(_distinct(prompt_ids)[0]) <= len(prompt_ids)


def response_states(
    decoder: Any, ids: torch.Tensor, mask: torch.Tensor, n_response: int
) -> torch.Tensor:
    """The hidden states that predict the response tokens.

    Args:
        decoder: Transformer body, adapters included.
        ids: (B, P + C), prompts padded on the left, responses on the right.
        mask: (B, P + C), 1 on real tokens.
        n_response: C.

    Returns:
        (B, C, d): at place j the state before response token j.
    """
    width = ids.size(1) - n_response
    real = mask[:, :width].sum(1, keepdim=True)  # a prompt may begin with the padding's token
    rows, index = _distinct(torch.cat([real, ids[:, :width]], dim=1))
    before = ids[rows, :width], mask[rows, :width]
    return states_behind(decoder, before, index, ids[:, width:-1], mask[:, :-1])


def token_states(
    model: Any, ids: torch.Tensor, mask: torch.Tensor, n_response: int, *, shared: bool
) -> torch.Tensor:
    """The hidden states (n, d) that predict the n real response tokens; ids and mask as above.

    Args:
        model: ``PeftModel`` of a causal language model.
        ids: (B, P + C).
        mask: (B, P + C).
        n_response: C.
        shared: Whether rows of one prompt share its forward pass.
    """
    decoder = model.get_base_model().base_model
    if shared:
        states = response_states(decoder, ids, mask, n_response)
    else:
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        out = decoder(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False)
        states = out.last_hidden_state[:, -n_response - 1 : -1]
    return states[mask[:, -n_response:].bool()]


def token_logits(model: Any, states: torch.Tensor) -> torch.Tensor:
    """Logits (n, V), in the model's own type, of states (n, d)."""
    ids = states.new_zeros(1, len(states), dtype=torch.long)  # are not looked at
    with precomputed(model.get_base_model().base_model, states[None]):
        return cast(torch.Tensor, model(input_ids=ids).logits[0])


def shared_logps(
    model: Any,
    ids: torch.Tensor,
    mask: torch.Tensor,
    n_response: int,
    size: int,
    autocast: Callable[[], AbstractContextManager[Any]],
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs and entropies (B, C) of responses, ``size`` rows at a time; ids and mask as above.

    Returns:
        Both as ``response_logps`` gives them.
    """
    n, logps, entropies = n_response, [], []
    decoder = model.get_base_model().base_model
    for part, real in zip(torch.split(ids, size), torch.split(mask, size), strict=True):
        with autocast():
            states = response_states(decoder, part, real, n)
            found = response_logps(model, states, part[:, -n:], real[:, -n:])
        logps.append(found[0])
        entropies.append(found[1])
    return torch.cat(logps), torch.cat(entropies)


def response_logps(
    model: Any, states: torch.Tensor, ids: torch.Tensor, mask: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs of response tokens and entropies where they are drawn, by the trainer's own head.

    Args:
        model: ``PeftModel`` whose head the trainer has fused.
        states: (B, C, d) hidden states that predict the tokens.
        ids: (B, C).
        mask: (B, C), 1 on real tokens.

    Returns:
        Both (B, C), 0 on padding, which costs nothing.
    """
    real = mask.bool()
    with precomputed(model.get_base_model().base_model, states[real][None]):
        out = model(input_ids=ids, shift_labels=ids[real][None], fused_lm_head=True)

    def spread(values: torch.Tensor) -> torch.Tensor:
        return values.new_zeros(real.shape).masked_scatter(real, values)

    return spread(out.log_probs), spread(out.entropy)


def agree(plain: torch.Tensor, shared: torch.Tensor, mask: torch.Tensor, most: float) -> bool:
    """Whether both ways gave the same log-probs (B, C), but for ``most``; warns where not."""
    gap = float(((plain - shared).abs() * mask).sum() / mask.sum().clamp(min=1))
    if gap < most:
        return True
    _log.warning(
        "sharing a prompt among its candidates changes this model's log-probs by %.3f on average; "
        "training goes on without it, more slowly",
        gap,
    )
    return False


@contextmanager
def precomputed(decoder: Any, states: torch.Tensor) -> Iterator[None]:
    """Let the model's next forward take these hidden states (B, C, d) as its body's output."""
    output = MoeModelOutputWithPast(last_hidden_state=states)
    decoder.__dict__["forward"] = lambda *_, **__: output
    try:
        yield
    finally:
        del decoder.__dict__["forward"]


def _distinct(prompts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows (U,) of the distinct prompts, in order, and the place (B,) of each row's prompt."""
    found, index = distinct(prompts.tolist())
    rows = [index.index(k) for k in range(len(found))]
    device = prompts.device
    return torch.tensor(rows, device=device), torch.tensor(index, device=device)


def vocabulary(model: Any) -> int:
    """Logits of a token."""
    return int(model.config.get_text_config().vocab_size)
