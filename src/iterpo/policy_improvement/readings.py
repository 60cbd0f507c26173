"""Readings: what a policy makes of the actions of episodes, with gradients or without."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from iterpo.models.backbone import inner
from iterpo.models.padding import pad
from iterpo.policy_improvement.episodes import Action, Episode
from iterpo.policy_improvement.shared_prompt import precomputed

__all__ = ["Autocast", "Reading", "read"]

Autocast = Callable[[], AbstractContextManager[Any]]
"""Context of a forward pass."""


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """All tokens of the actions of some episodes, one action after the other."""

    logps: Tensor
    """(n,) log-probs in nats, float32, at the temperature that each was sampled at."""
    entropies: Tensor
    """(n,) entropies in nats where they are drawn, without gradients."""
    states: Tensor
    """(n, d) hidden states that predict them."""


def read(model: Any, episodes: Sequence[Episode], autocast: Autocast) -> Reading:
    """Run a policy over whole episodes, all their passes at once.

    Logits are made only where a token of an action is predicted.

    Args:
        model: A causal language model, within a ``PeftModel`` or not.
        episodes: At least one.
        autocast: Context of the pass.
    """
    device = inner(model).device
    ids, mask = (x.to(device) for x in pad([ids for e in episodes for ids in e.passes]))
    actions = _rows(episodes)
    rows = torch.tensor([row for row, a in actions for _ in range(a.length)], device=device)
    places = torch.tensor([p for _, a in actions for p in range(a.start, a.end)], device=device)
    heat = torch.tensor([a.temperature for _, a in actions for _ in range(a.length)], device=device)
    decoder = inner(model).base_model
    with autocast():
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        hidden = decoder(
            input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False
        ).last_hidden_state  # (passes, longest, d)
        states = hidden[rows, places - 1]
        with precomputed(decoder, states[None]):
            # The model's own head: some scale or cap their logits.
            logits = model(input_ids=ids.new_zeros(1, len(states))).logits[0]
    scores = torch.log_softmax(logits.float() / heat[:, None], -1)  # (n, V)
    logps = scores.gather(-1, ids[rows, places][:, None])[:, 0]
    with torch.no_grad():
        entropies = -(scores.exp() * scores).sum(-1)
    return Reading(logps, entropies, states)


def _rows(episodes: Sequence[Episode]) -> list[tuple[int, Action]]:
    """Every action with the row of its pass in the batch of all passes."""
    out, before = [], 0
    for episode in episodes:
        out += [(before + action.of, action) for action in episode.actions]
        before += len(episode.passes)
    return out
