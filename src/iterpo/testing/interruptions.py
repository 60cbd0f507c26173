"""Updates that are stopped on the way: where they can be, and that they are, also by SIGKILL."""

from __future__ import annotations

import os
import pickle
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from iterpo.domain import Conversation, PolicyRef, Response, Reward, State
from iterpo.methods import Method, RoundBatch, make
from iterpo.methods.base import Build
from iterpo.methods.workspace import FolderWorkspace, Settings
from iterpo.policy_evaluation.base import QConfig
from iterpo.policy_improvement.base import Learner

if TYPE_CHECKING:
    from iterpo.models.backbone import Backbone

__all__ = ["Moment", "Stopped", "Trial", "Watched", "kill", "main", "spread"]

Moment = tuple[str, int]
"""Where an update is: a stage and how far it has come."""

_PATIENCE_S = 600


class Stopped(BaseException):
    """As a kill, but the process lives on."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A method with all that its updates depend on; can be sent to another process."""

    method: str | Callable[[], Method]
    """Registered name, or what makes the method."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options, where it is given by name."""
    settings: Settings = field(default_factory=Settings)
    """Of its workspace."""

    def made(self) -> Method:
        """The method, made anew."""
        return make(self.method, self.options) if isinstance(self.method, str) else self.method()

    def update(
        self,
        policy: PolicyRef,
        batch: RoundBatch,
        folder: Path,
        *,
        before: Path | None = None,
        hear: Callable[[Moment], None] = lambda _: None,
    ) -> PolicyRef:
        """One update in a folder, or the rest of it; ``hear`` is told every moment."""

        def progress(stage: str, done: int, _total: int, _facts: Mapping[str, float]) -> None:
            hear((stage, done))

        _scatter()
        space = FolderWorkspace(folder, self.settings, progress, before)
        return self.made().update(policy, batch, Watched(space, hear))


def _scatter() -> None:
    # Trainers seed the global generators, so a method that draws from them would draw alike after
    # each training and look deterministic.
    random.seed()
    np.random.seed()
    torch.seed()


@dataclass(frozen=True, slots=True)
class Watched:
    """A workspace that also tells when a stage of the method's own is filled, but not yet kept."""

    inner: FolderWorkspace
    """Does the work."""
    hear: Callable[[Moment], None]
    """Is told."""

    @property
    def q(self) -> QConfig:
        """As the inner one."""
        return self.inner.q

    def fit_q(self, policy: PolicyRef, batch: RoundBatch, *, gamma: float | None = None) -> Reward:
        """As the inner one."""
        return self.inner.fit_q(policy, batch, gamma=gamma)

    def improve(self, policy: PolicyRef, batch: RoundBatch, *, reward: Reward) -> PolicyRef:
        """As the inner one."""
        return self.inner.improve(policy, batch, reward=reward)

    def learn(self, policy: PolicyRef, batch: RoundBatch, learner: Learner) -> PolicyRef:
        """As the inner one."""
        return self.inner.learn(policy, batch, learner)

    def stage(self, name: str, build: Build) -> Path:
        """As the inner one."""

        def built(folder: Path, before: Path | None) -> Mapping[str, Any]:
            facts = build(folder, before)
            self.hear((f"stage {name}", 1))
            return facts

        return self.inner.stage(name, built)

    def backbone(self, policy: PolicyRef, quantize: Literal["nf4"] | None = None) -> Backbone:
        """As the inner one."""
        return self.inner.backbone(policy, quantize)

    def log_probs(
        self, policy: PolicyRef, states: Sequence[State], responses: Sequence[Response]
    ) -> list[tuple[float, ...]]:
        """As the inner one."""
        return self.inner.log_probs(policy, states, responses)

    def own(self, batch: RoundBatch) -> tuple[Conversation, ...]:
        """As the inner one."""
        return self.inner.own(batch)

    def note(self, text: str) -> None:
        """As the inner one."""
        self.inner.note(text)


def spread(moments: Iterable[Moment]) -> tuple[Moment, ...]:
    """Of each stage the moment in its middle, in the order of the update.

    >>> spread([("fit_q", 1), ("fit_q", 2), ("fit_q", 3), ("stage critic", 1)])
    (('fit_q', 2), ('stage critic', 1))
    """
    stages: dict[str, list[int]] = {}
    for stage, done in moments:
        stages.setdefault(stage, []).append(done)
    return tuple((stage, done[len(done) // 2]) for stage, done in stages.items())


def kill(trial: Trial, policy: PolicyRef, batch: RoundBatch, folder: Path, at: Moment) -> bool:
    """Go on with an update in a process of its own, until SIGKILL ends it at ``at``.

    Returns:
        Whether it was killed; else the update was through without coming there.

    Raises:
        pickle.PicklingError: if the method can't be sent to another process.
        subprocess.CalledProcessError: if the process failed.
    """
    import torch

    asked = pickle.dumps((trial, policy, batch, folder, at, torch.get_num_threads()))
    child = (
        "import pickle, sys\n"
        "sys.path[:] = pickle.load(sys.stdin.buffer)\n"
        "from iterpo.testing.interruptions import main\n"
        "main(sys.stdin.buffer.read())\n"
    )
    done = subprocess.run(  # noqa: S603 - this very interpreter
        [sys.executable, "-c", child],
        input=pickle.dumps(sys.path) + asked,
        capture_output=True,
        timeout=_PATIENCE_S,
        check=False,
    )
    if done.returncode not in (0, -signal.SIGKILL):
        done.check_returncode()
    return done.returncode != 0


def main(asked: bytes) -> None:
    """The process that is killed."""
    import torch

    trial, policy, batch, folder, at, threads = pickle.loads(asked)  # noqa: S301 - our parent's
    torch.set_num_threads(threads)

    def hear(moment: Moment) -> None:
        if moment == at:
            os.kill(os.getpid(), signal.SIGKILL)

    trial.update(policy, batch, folder, hear=hear)
