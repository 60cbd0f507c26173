"""A training job: all that one run of an operator needs, and what adds up while it runs."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iterpo.domain import Reward
from iterpo.policy_improvement.base import ImproveConfig, Progress, Record
from iterpo.policy_improvement.prompts import Prompts

if TYPE_CHECKING:
    from iterpo.models.backbone import Backbone
    from iterpo.policy_improvement.objectives import Objective

__all__ = ["Job", "Tally"]


@dataclass(frozen=True, slots=True)
class Job:
    """All that one training run needs."""

    backbone: Backbone
    """Tokenizer, chat and device; its model is the base of ``model``."""
    model: Any
    """``PeftModel`` with one active adapter, the policy that collected the batch."""
    prompts: Prompts
    """States and their token ids."""
    reward: Reward
    """Scores candidates."""
    objective: Objective
    """What the operator makes of the rewards."""
    config: ImproveConfig
    """Checked settings."""
    names: Sequence[str]
    """A name for each state, no two alike: what the draws of its candidates are seeded by."""
    order: Sequence[Sequence[int]]
    """Indices of the states that each sampled batch visits."""
    steps: int
    """Optimizer steps planned."""
    workdir: Path
    """Folder of checkpoints."""
    inputs_sha256: str
    """Identity of all inputs; a checkpoint of others is refused."""
    record: Record | None
    """Receives the metrics of every step."""
    progress: Progress | None
    """Receives how far the work is."""


@dataclass(slots=True)
class Tally:
    """What adds up over the steps of a job."""

    counts: Counter[str] = field(default_factory=Counter)
    """Responses, missing scores, … ; stored with a checkpoint."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Time by stage, of this process only."""
    latest: dict[str, float] = field(default_factory=dict)
    """Metrics of the latest sampled batch."""
    entropy: float = 0.0
    """Entropy in nats per token of the policy's own candidates; adds up over micro-batches."""

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Add the time spent inside to a stage."""
        start = time.perf_counter()
        yield
        self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - start
