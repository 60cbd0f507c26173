"""A workspace in a folder: the two operators, each finished once and found again on resume."""

from __future__ import annotations

import gc
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from iterpo import artifacts
from iterpo.artifacts import is_sealed, write_atomic
from iterpo.domain import Conversation, PolicyRef, Response, Reward, State, decisions
from iterpo.errors import BatchError, TrainingError
from iterpo.methods.asked import ask, listen
from iterpo.methods.base import Build, RoundBatch
from iterpo.methods.corrections import explored_ratios, responder
from iterpo.methods.earlier_rounds import earlier_rounds
from iterpo.methods.evidence import weigh
from iterpo.methods.judge import Judge, fit_judge
from iterpo.methods.likelihood import log_probs
from iterpo.methods.verdict import Evidence, Verdict, VerdictConfig, decide
from iterpo.models.backbone import Backbone, frozen, load
from iterpo.models.checkpoints import read_policy, save_policy
from iterpo.policy_evaluation.base import QConfig
from iterpo.policy_evaluation.fit import fit_q
from iterpo.policy_evaluation.qfunction import QFunction, stored_quantization
from iterpo.policy_evaluation.split import log_sha256, set_aside, why_none_aside
from iterpo.policy_improvement.base import ImproveConfig, ImproveResult, Learner, Training
from iterpo.policy_improvement.single_turn import improve
from iterpo.store import METRICS, MetricsTable

__all__ = ["FolderWorkspace", "Settings", "quiet"]

Progress = Callable[[str, int, int, Mapping[str, float]], None]
"""(stage, done, total, facts)."""


def quiet(stage: str, done: int, total: int, facts: Mapping[str, float]) -> None:
    """Progress that says nothing."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How the operators run."""

    q: QConfig = field(default_factory=QConfig)
    """Policy evaluation."""
    improve: ImproveConfig = field(default_factory=ImproveConfig)
    """Policy improvement."""
    dtype: str = "auto"
    """Number type of the policy's weights."""
    device: str = "auto"
    """Where to compute."""
    tracking: Path | None = None
    """Where to keep what a tracker (tensorboard) writes to files; None: ``tracking`` in the
    workspace's folder. It holds wall-clock times, so a folder that is sealed is no place for it."""
    verdict: VerdictConfig = field(default_factory=VerdictConfig)
    """What is asked about an update once it is done."""
    step_factor: float = 1.0
    """Factor on the learning rate of a training that has one of its own."""


class FolderWorkspace:
    """Runs both operators in ``folder``.

    ::

        folder/q/        value head and health report, sealed
        folder/judge/    value head of the judge, where conversations are set aside for it
        folder/policy/   adapter of the new policy, sealed
        folder/metrics/  one table per operator
        folder/work/     trainer state while it runs
    """

    def __init__(
        self,
        folder: Path,
        settings: Settings,
        progress: Progress = quiet,
        before: Path | None = None,
    ) -> None:
        """Nothing is loaded before it is needed; ``before`` is the folder of the last update."""
        self.folder = folder
        if settings.verdict.states == 0:  # nobody would ask a judge: all conversations are for Q
            settings = replace(settings, q=replace(settings.q, judge_fraction=0.0))
        self.settings = settings
        self._progress = progress
        self._before = before
        self._loaded: dict[tuple[str, str | None], Backbone] = {}
        self.notes: list[str] = []
        self.given: PolicyRef | None = None
        """What this update has trained, once it has."""

    @property
    def q(self) -> QConfig:
        """How the plan values conversations."""
        return self.settings.q

    def fit_q(
        self, policy: PolicyRef, batch: RoundBatch, *, gamma: float | None = None
    ) -> QFunction:
        """Q^pi by regression on the batch, by ``q.estimator`` (Observation 3.5)."""
        config = self.settings.q if gamma is None else replace(self.settings.q, gamma=gamma)
        backbone = self.backbone(policy, "nf4" if config.backbone == "nf4" else None)
        target = self.folder / "q"
        if not is_sealed(target):
            table = self._table(batch.round, "fit_q")
            refits = config.refit_on_all and config.holdout_fraction > 0
            epochs = config.passes * (2 if refits else 1)

            def record(step: int, values: Mapping[str, float]) -> None:
                table.record(step, values)
                self._progress("fit_q", step, epochs, values)

            own, aside = set_aside(batch.conversations, config)  # the rest is for the judge alone
            speaker = partial(self.backbone, policy, None)
            earlier = earlier_rounds(speaker, batch, aside, config)
            explored = explored_ratios(speaker, own, config)
            respond = responder(speaker, own, config, self.settings.improve.sampling)
            result = fit_q(backbone, own, config, record, earlier, explored, respond)
            report = json.dumps(result.report.to_dict(), indent=1, sort_keys=True)
            write_atomic(self.folder / "q_health.json", report + "\n")
            q = replace(result.q, log_sha256=log_sha256(batch.conversations))
            q.save(target)  # last: a sealed q/ says that all before it is there
        return QFunction.load(target, backbone)

    def improve(self, policy: PolicyRef, batch: RoundBatch, *, reward: Reward) -> PolicyRef:
        """Single-turn RL on the logged states (Observation 3.1)."""

        def on_reward(training: Training) -> ImproveResult:
            states = [row.state for c in batch.conversations for row in decisions(c, gamma=0.0)]
            return improve(
                training.backbone,
                states,
                reward,
                self.settings.improve,
                workdir=training.workdir,
                record=training.record,
                progress=training.progress,
            )

        return self.learn(policy, batch, on_reward)

    def learn(self, policy: PolicyRef, batch: RoundBatch, learner: Learner) -> PolicyRef:
        """Any training of the policy; the adapter is stored unmerged.

        Raises:
            TrainingError: if this update has trained already: what is finished is found again, so
                a second training would give back the policy of the first.
        """
        if self.given is not None:
            raise TrainingError(
                "an update trains once, but its method called workspace.learn or workspace.improve "
                "a second time. Give one learner all that is to be learned, or leave the second "
                "training to another round (batch.round tells which one it is)."
            )
        self.given = self._learn(policy, batch, learner)
        return self.given

    def _learn(self, policy: PolicyRef, batch: RoundBatch, learner: Learner) -> PolicyRef:
        target = self.folder / "policy"
        if is_sealed(target):
            self._clear_work()  # a kill may have fallen between sealing and clearing
            return read_policy(target)
        result = learner(
            Training(
                self.backbone(policy),
                self.settings.improve.lora,
                self.settings.improve.seed,
                self.folder / "work",
                record=self._table(batch.round, "improve").record,
                progress=lambda done, total, facts: self._progress("improve", done, total, facts),
                checkpoint_every=self.settings.improve.checkpoint_every,
                step_factor=self.settings.step_factor,
            )
        )
        saved = save_policy(
            target, result.model, result.adapter_name, parent=policy, round=policy.round + 1
        )
        self._clear_work()
        return saved

    def stage(self, name: str, build: Build) -> Path:
        """``folder/name``, filled by ``build`` and sealed; left-overs of a kill are removed."""
        target = self.folder / name
        if not is_sealed(target):
            earlier = self._before / name if self._before is not None else None
            if earlier is not None and not is_sealed(earlier):
                earlier = None
            facts: dict[str, Any] = {}
            with artifacts.build(target, name, facts) as fresh:
                facts |= build(fresh, earlier)
        return target

    def log_probs(
        self, policy: PolicyRef, states: Sequence[State], responses: Sequence[Response]
    ) -> list[tuple[float, ...]]:
        """As ``methods.likelihood.log_probs``, under the policy as it was loaded."""
        backbone = self.backbone(policy)
        with frozen(backbone):
            return log_probs(backbone, states, responses)

    def own(self, batch: RoundBatch) -> tuple[Conversation, ...]:
        """The conversations to learn from: a verdict may only praise by others."""
        return set_aside(batch.conversations, self.settings.q)[0]

    def note(self, text: str) -> None:
        """Keep a remark in ``notes``."""
        self.notes.append(text)

    def verdict(
        self, old: PolicyRef, new: PolicyRef, batch: RoundBatch, notes: tuple[str, ...] = ()
    ) -> Verdict | None:
        """Whether ``new`` is better than ``old``, from evidence; None where no states are asked.

        Nothing is trained on what this finds. The value is that of the settings' own discount,
        whatever a method made of it. ``notes`` are told first.
        """
        settings = self.settings
        config = settings.verdict
        if config.states == 0:
            return None
        if new.id == old.id:
            return decide(Evidence(moved=False, notes=tuple(self.notes)), config)
        own, aside = set_aside(batch.conversations, settings.q)
        try:
            asked = ask(own, aside, config, settings.q, settings.improve.sampling)
        except BatchError as error:
            return decide(Evidence(moved=True, notes=(str(error),)), config)
        self._progress("verdict", 0, 2, {})
        self._forget()  # one policy in memory at a time; a trained one would also not be as stored
        heard = listen(load(new, dtype=settings.dtype, device=settings.device), asked)
        self._progress("verdict", 1, 2, {})
        gc.collect()
        backbone = self.backbone(old, None)
        judge, no_judge = self._judge(old, aside)
        no_judge = why_none_aside(batch.conversations, settings.q) or no_judge
        notes = (*notes, no_judge) if no_judge else notes
        stored = self.folder / "q"
        fitted = (self.stored_q(old, stored) if is_sealed(stored) else None, judge)
        found = weigh(backbone, asked, heard, fitted, config)
        counts = {**found.counts, "judge_conversations": len(aside) if judge else 0}
        self._progress("verdict", 2, 2, {})
        return decide(replace(found, counts=counts, notes=(*notes, *found.notes)), config)

    def _judge(
        self, policy: PolicyRef, aside: tuple[Conversation, ...]
    ) -> tuple[Judge | None, str]:
        """Fitted only on what was set aside; None, and why, where that can't be learnt from."""
        q = self.settings.q
        if not aside:
            return None, ""
        try:
            judge = fit_judge(
                self.backbone(policy, "nf4" if q.backbone == "nf4" else None), aside, q
            )
        except BatchError as error:
            return None, f"no judge: {error}"
        if not is_sealed(self.folder / "judge"):  # kept for people; the refits are not
            judge.q.save(self.folder / "judge")
        return judge, ""

    def stored_q(self, policy: PolicyRef, folder: Path) -> QFunction:
        """A Q fitted earlier, on the backbone of ``policy`` in the form that it was fitted on.

        Raises:
            ArtifactError: if ``folder`` holds no Q of this policy.
        """
        return QFunction.load(folder, self.backbone(policy, stored_quantization(folder)))

    def _forget(self) -> None:
        self._loaded.clear()
        gc.collect()  # a PEFT model refers to itself

    def _clear_work(self) -> None:
        work = self.folder / "work"
        written = work / "runs"  # where trainers let trackers write
        if written.is_dir():
            kept = self.settings.tracking or self.folder / "tracking"
            shutil.copytree(written, kept, dirs_exist_ok=True)
        shutil.rmtree(work, ignore_errors=True)

    def backbone(self, policy: PolicyRef, quantize: Literal["nf4"] | None = None) -> Backbone:
        """The frozen weights of a policy, loaded once."""
        key = (policy.id, quantize)
        if key not in self._loaded:
            s = self.settings
            self._loaded[key] = load(policy, dtype=s.dtype, device=s.device, quantize=quantize)
        return self._loaded[key]

    def _table(self, round: int, phase: str) -> MetricsTable:  # noqa: A002
        return MetricsTable(
            self.folder / "metrics" / f"{phase}-{METRICS}", round=round, phase=phase
        )
