"""TRL's ``KTOTrainer`` on token ids and reference log-probs that are made already.

The trainer's own reference would be a copy of the adapter as it starts: the policy of the round,
where the paper's is the initial policy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from datasets import Dataset
from trl import KTOConfig, KTOTrainer
from trl.trainer.kto_trainer import DataCollatorForUnpairedPreference

from iterpo.models.backbone import Backbone
from iterpo.policy_improvement.supervised import Build

__all__ = ["Rated", "trainer"]


@dataclass(frozen=True, slots=True)
class Rated:
    """One visit of an example."""

    prompt: tuple[int, ...]
    """Token ids of the state."""
    response: tuple[int, ...]
    """Those of what was said."""
    mismatched: tuple[int, ...]
    """Those of what another example of the same forward pass said."""
    agreed: bool
    """Whether it is desirable."""
    reference: float
    """log pi_ref of the response."""
    reference_mismatched: float
    """log pi_ref of the mismatched one."""


def trainer(
    backbone: Backbone, rows: Sequence[Rated], beta: float, weights: tuple[float, float]
) -> Build:
    """How to make a trainer.

    Args:
        backbone: Its tokenizer.
        rows: All visits in their order.
        beta: See ``kto.train``.
        weights: lambda_D and lambda_U.
    """
    # Padded positions are masked, so any id will do.
    collator = DataCollatorForUnpairedPreference(pad_token_id=0)

    def collate(batch: Sequence[Mapping[str, int]]) -> Any:
        return collator([_columns(rows[entry["row"]]) for entry in batch])

    def build(model: Any, fields: Mapping[str, Any]) -> Any:
        made = _Trainer(
            model=model,
            args=KTOConfig(
                **fields,
                beta=beta,
                desirable_weight=weights[0],
                undesirable_weight=weights[1],
                precompute_ref_log_probs=True,
                disable_dropout=True,
            ),
            data_collator=collate,
            train_dataset=Dataset.from_dict({"row": list(range(len(rows)))}),
            processing_class=backbone.tokenizer,
        )
        model.delete_adapter(_REFERENCE)
        return made

    return build


_REFERENCE = "ref"
"""The adapter that the trainer copies for a reference of its own."""


def _columns(row: Rated) -> dict[str, Any]:
    return {
        "prompt_ids": list(row.prompt),
        "completion_ids": list(row.response),
        "KL_completion_ids": list(row.mismatched),
        "label": row.agreed,
        "ref_logps": row.reference,
        "ref_KL_logps": row.reference_mismatched,
    }


class _Trainer(KTOTrainer):  # type: ignore[misc]
    """KTO on rows that need no preparation."""

    def _prepare_dataset(self, dataset: Dataset, *_: Any) -> Dataset:
        return dataset

    def _precompute_ref_logps(self, dataset: Dataset, *_: Any) -> Dataset:
        return dataset
