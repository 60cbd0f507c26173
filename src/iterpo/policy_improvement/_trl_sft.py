"""TRL's ``SFTTrainer`` on token ids that are made already, with a mask for the agent's tokens.

What differs from the trainer's own: a row stands for one or several sequences (the turns of a
conversation that could not be read in one pass), and with weights the loss is a weighted sum over
each row's tokens, averaged over the rows of a step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from trl import SFTConfig, SFTTrainer
from trl.trainer.utils import disable_dropout_in_model

from iterpo.models.backbone import Backbone
from iterpo.models.chains import Chain
from iterpo.models.padding import pad
from iterpo.policy_improvement.logged import Schedule
from iterpo.policy_improvement.supervised import Build

__all__ = ["trainer"]

_NO_LABEL = -100


def trainer(
    backbone: Backbone,
    schedule: Schedule,
    rows: Sequence[Sequence[Chain]],
    weights: Sequence[float] | None = None,
) -> Build:
    """How to make a trainer.

    Args:
        backbone: Its tokenizer.
        schedule: In which order the rows come.
        rows: The sequences of each row; what they read is learned.
        weights: One for each row; None: the mean over all tokens of a step.
    """

    def collate(batch: Sequence[Mapping[str, int]]) -> dict[str, Tensor]:
        chosen = [entry["row"] for entry in batch]
        inputs = _inputs([chain for i in chosen for chain in rows[i]])
        if weights is not None:
            inputs["weights"] = torch.tensor([weights[i] for i in chosen])
        return inputs

    def build(model: Any, fields: Mapping[str, Any]) -> Any:
        disable_dropout_in_model(model)
        kind = SFTTrainer if weights is None else _Weighted
        return kind(
            model=model,
            args=SFTConfig(**fields, dataset_kwargs={"skip_prepare_dataset": True}),
            data_collator=collate,
            train_dataset=Dataset.from_dict({"row": list(schedule.visits)}),
            processing_class=backbone.tokenizer,
        )

    return build


def _inputs(chains: Sequence[Chain]) -> dict[str, Tensor]:
    """Ids, mask and labels, all (sequences, longest)."""
    ids, mask = pad([chain.ids for chain in chains])
    labels = torch.full_like(ids, _NO_LABEL)
    for row, chain in enumerate(chains):
        for read in chain.reads:
            labels[row, read.start : read.end] = ids[row, read.start : read.end]
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


class _Weighted(SFTTrainer):  # type: ignore[misc]
    """-mean over sequences of weight * sum over tokens of log pi."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.model_accepts_loss_kwargs = False  # a loss per forward pass, averaged by the trainer

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Tensor],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Tensor:
        del return_outputs, num_items_in_batch
        weights = inputs.pop("weights")  # (b,)
        outputs = model(**inputs, use_cache=False, fused_lm_head=True)
        said = outputs.log_probs.sum(-1)  # (b,), zero at all but the labels
        tokens = outputs.label_mask.sum().clamp(min=1)
        self._metrics["train"]["entropy"].append((outputs.entropy.detach().sum() / tokens).item())
        loss: Tensor = -(weights.to(said.dtype) * said).mean()
        return loss
