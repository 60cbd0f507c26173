"""tune: a fitted head and a critic's adapter are trained together, so that features follow returns.

What the frozen backbone does not tell apart, no head can. The head starts as it was fitted to the
frozen features, and the adapter adds nothing at first: Q starts as the frozen one and moves on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from iterpo.domain import derive
from iterpo.errors import TrainingError
from iterpo.models.backbone import Backbone, inner
from iterpo.models.chains import TokenRow
from iterpo.models.critic import attach_critic, learning
from iterpo.models.padding import pad
from iterpo.policy_evaluation.base import Pooling, QConfig, TuneConfig
from iterpo.policy_evaluation.features import pooled
from iterpo.policy_evaluation.qfunction import ValueHead
from iterpo.policy_evaluation.regression import one_epoch, seeded, shuffled

__all__ = ["read_with_gradients", "tune"]


def tune(
    backbone: Backbone,
    head: ValueHead,
    read: tuple[Sequence[TokenRow], Tensor],
    targets: tuple[Tensor, Tensor | None],
    config: QConfig,
    on_epoch: Callable[[int, float], None],
) -> Backbone:
    """Train ``head`` further, in place, with an adapter; the critic that it reads is returned.

    The loss is that of ``regress``: min mean w_t (Q(s_t, a_t) - G_t)^2. The head keeps its step
    size and its scales, those of the returns and of the frozen features.

    Args:
        backbone: The policy; unchanged.
        head: Fitted to the backbone's features at ``rows``.
        read: n rows with a response each, and their columns of numbers (n, k).
        targets: Returns (n,), and weights (n,) or None, as for ``regress``.
        config: With ``tune``; equal seeds and rows give equal bytes.
        on_epoch: Called with the epoch and its mean squared error in the unit of the returns.

    Raises:
        TrainingError: if the loss stops being finite.
    """
    settings = config.tune or TuneConfig()
    rows, said = read
    returns, weights = targets
    if config.shuffle_returns:
        returns = shuffled(returns, config.seed)
    scaled = (returns - head.return_mean) / head.return_scale
    weights = None if weights is None else weights / weights.mean()
    critic = attach_critic(backbone, settings.lora, derive(config.seed, "q-critic"))
    with seeded(derive(config.seed, "q-tune")), learning(critic) as adapter:
        optimizer = torch.optim.AdamW(
            [
                {"params": list(head.parameters()), "lr": config.learning_rate},
                {"params": adapter, "lr": settings.learning_rate},
            ],
            weight_decay=config.weight_decay,
        )

        def features(index: Tensor) -> Tensor:
            mine = [rows[i] for i in index.tolist()]
            return torch.cat([read_with_gradients(critic, mine, config.pooling), said[index]], 1)

        def slices(index: Tensor) -> list[Tensor]:
            return _slices(index, rows, config.max_batch_tokens)

        for epoch in range(1, settings.epochs + 1):
            data = (scaled, weights)
            loss = one_epoch(head, optimizer, features, data, config.batch_size, slices)
            if not math.isfinite(loss):
                raise TrainingError(
                    f"tuning Q diverged in epoch {epoch} (loss {loss}); lower tune.learning_rate "
                    f"(now {settings.learning_rate})"
                )
            on_epoch(epoch, loss * float(head.return_scale) ** 2)
    head.eval()
    return critic


def read_with_gradients(critic: Backbone, rows: Sequence[TokenRow], pooling: Pooling) -> Tensor:
    """Features as ``features.extract_rows`` gives them, (n, d) fp32 on the CPU, for learning.

    A pass for every row, its prompt included: inside ``learning``.
    """
    ids, mask = (x.to(critic.device) for x in pad([[*r.prompt, *r.response] for r in rows]))
    hidden = inner(critic.model).get_decoder()(
        input_ids=ids,
        attention_mask=mask,
        position_ids=(mask.long().cumsum(-1) - 1).clamp(min=0),
        use_cache=False,
    )
    states = hidden.last_hidden_state  # (n, longest, d)
    found = []
    for state, row in zip(states, rows, strict=True):
        begin = len(row.prompt)
        found.append(pooled(state[begin : begin + len(row.response)], pooling))
    return torch.stack(found)


def _slices(index: Tensor, rows: Sequence[TokenRow], most: int) -> list[Tensor]:
    """Rows of a step, the longest first, cut where another would make more than ``most`` tokens."""
    lengths = {i: len(rows[i].prompt) + len(rows[i].response) for i in index.tolist()}
    if len(lengths) * max(lengths.values()) <= most:
        return [index]
    parts: list[list[int]] = []
    for i in sorted(lengths, key=lambda i: (-lengths[i], i)):
        if not parts or (len(parts[-1]) + 1) * lengths[parts[-1][0]] > most:
            parts.append([])
        parts[-1].append(i)
    return [torch.tensor(part) for part in parts]
