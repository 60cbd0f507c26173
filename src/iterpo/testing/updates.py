"""Updates of a method: what each must give back, again, after a stop, and of which turns."""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from iterpo.config import dump, json_schema, parse
from iterpo.domain import Conversation, Ending, Outcome, PolicyRef, Role, Sampling, Turn
from iterpo.errors import BatchError, ResumeError
from iterpo.methods import Method, RoundBatch
from iterpo.methods.workspace import Settings
from iterpo.models.checkpoints import read_policy
from iterpo.models.lora import LoraSpec
from iterpo.policy_evaluation.base import QConfig
from iterpo.policy_evaluation.split import set_aside
from iterpo.policy_improvement.base import ImproveConfig
from iterpo.testing.interruptions import Moment, Stopped, Trial, kill, spread
from iterpo.testing.report import Findings
from iterpo.testing.toy_game import play_toy, toy_policy

__all__ = [
    "QUICK",
    "Update",
    "check_explored",
    "check_kills",
    "check_options",
    "check_set_aside",
    "check_stops",
    "check_update",
    "quick_batch",
]

QUICK = Settings(
    q=QConfig(epochs=2, hidden=8, heads=1, learning_rate=1e-2, judge_fraction=0.25),
    improve=ImproveConfig(
        lora=LoraSpec(r=4, alpha=4),
        sampling=Sampling(max_new_tokens=1),
        prompts_per_step=4,
        group_size=4,
        steps=2,
        learning_rate=1e-2,
        checkpoint_every=1,
        clipped_ratio_alarm=1.0,  # a turn is one token long, none is finished
    ),
    device="cpu",
)
"""Settings under which the promises are tried; nothing is learned with so few steps."""

_PLAYED = 32


@dataclass(frozen=True, slots=True)
class Update:
    """An update that went through, for others to be compared with."""

    policy: PolicyRef
    """What it gave back."""
    folder: Path
    """Where it worked."""
    moments: tuple[Moment, ...]
    """All that it passed."""


def quick_batch(folder: Path) -> tuple[PolicyRef, RoundBatch]:
    """The toy game's initial policy, written to ``folder``, and a batch of it.

    Some conversations have no reward: a server failed, or nobody ever answered.
    """
    policy = toy_policy(folder)
    played = play_toy(policy, _PLAYED)
    failed = replace(played[0], id="failed", outcome=Outcome(Ending.INFRASTRUCTURE_FAILURE))
    silent = replace(
        played[1], id="silent", turns=played[1].turns[:1], outcome=Outcome(Ending.ABANDONED)
    )
    return policy, RoundBatch(0, (failed, *played, silent), policy)


def check_options(method: Method, findings: Findings) -> None:
    """Options can be read from a plan and are described, and so is the method."""
    module = sys.modules[type(method).__module__]
    findings.expect(
        "options: the module says what the method does in its docstring, for `iterpo methods`",
        (module.__doc__ or "").strip(),
        module.__name__,
    )
    accepted: Any = getattr(type(method), "Options", None)
    if accepted is None:
        return
    with findings.calling("reading options", "the defaults, from a plan"):
        same = parse(accepted, dump(accepted()), "options") == accepted()
        findings.expect("options: the defaults survive a plan", same, dump(accepted()))
        for name, field in json_schema(accepted)["properties"].items():
            rule = "options: every field has a docstring below it"
            findings.expect(rule, field.get("description"), name)


def check_update(
    trial: Trial, policy: PolicyRef, batch: RoundBatch, root: Path, findings: Findings
) -> Update:
    """A batch becomes the next policy, stored where it can be found, and away from the last one."""
    moments: list[Moment] = []
    folder = root / "whole"
    new = trial.update(policy, batch, folder, hear=moments.append)
    if not isinstance(new, PolicyRef):
        raise TypeError(
            f"update returned {new!r}; it must return the PolicyRef that workspace.learn or "
            "workspace.improve gave, or the policy that it was given"
        )
    findings.expect(
        "batch: the new policy is one round on from the one that was deployed",
        (new.round, new.base_model) == (policy.round + 1, policy.base_model),
        f"round {policy.round} of {policy.base_model!r} gave round {new.round} of",
        new.base_model,
    )
    findings.expect("batch: the policy moves", new.id != policy.id, "it gave back", policy.id)
    if new.id != policy.id:
        stored = read_policy(folder / "policy")
        rule = "batch: the policy is stored by workspace.learn or workspace.improve"
        findings.expect(rule, stored == new, "stored", stored.id, "given back", new.id)
    return Update(new, folder, tuple(moments))


def check_stops(
    trial: Trial,
    policy: PolicyRef,
    batch: RoundBatch,
    first: Update,
    findings: Findings,
    *,
    every: bool,
) -> None:
    """Stopped in its last stage, or once in ``every`` one, it comes to the same files.

    So it is also deterministic; only where the files differ, an update from the beginning tells
    which of the two is missing.
    """
    folder = first.folder.with_name("stopped")
    moments = spread(first.moments)[0 if every else -1 :]
    for moment in moments:
        try:
            trial.update(policy, batch, folder, hear=partial(_stop, moment))
        except Stopped:
            continue
        findings.expect("resume: the update comes to where it was before", False, moment)
    rule = "resume: stopped on the way, an update goes on to the same policy and files"
    try:
        new = trial.update(policy, batch, folder)
    except ResumeError:
        findings.expect(rule, False, "it came back to its training with other inputs than before")
    else:
        if _expect_same(rule, first, new, folder, findings):
            return
    again = first.folder.with_name("again")
    new = trial.update(policy, batch, again)
    rule = "determinism: the same batch gives the same policy and files again"
    _expect_same(rule, first, new, again, findings)


def _stop(at: Moment, now: Moment) -> None:
    if now == at:
        raise Stopped


def check_set_aside(
    trial: Trial, policy: PolicyRef, batch: RoundBatch, first: Update, findings: Findings
) -> None:
    """How the conversations end that are kept for the judge of the update is nothing to it."""
    _, aside = set_aside(batch.conversations, trial.settings.q)
    kept = {c.id for c in aside if c.outcome.ending.scored}
    other = tuple(_turned(c) if c.id in kept else c for c in batch.conversations)
    new = trial.update(policy, replace(batch, conversations=other), first.folder.with_name("aside"))
    findings.expect(
        "judge: endings of conversations that workspace.own leaves out change nothing",
        new.id == first.policy.id,
        f"other endings of {len(kept)} conversations gave another policy",
    )


def check_explored(
    trial: Trial, policy: PolicyRef, batch: RoundBatch, first: Update, findings: Findings
) -> None:
    """What was said under exploration is refused, or told from what the policy said by itself."""
    some = tuple(_marked(c) if i % 4 == 1 else c for i, c in enumerate(batch.conversations))
    folder = first.folder.with_name("explored")
    try:
        new = trial.update(policy, replace(batch, conversations=some), folder)
    except BatchError as error:
        findings.expect(
            "off-policy: the refusal says what to do", "off_policy" in str(error), str(error)
        )
    else:
        findings.expect(
            "off-policy: explored turns are refused (BatchError), left out or weighed",
            new.id != first.policy.id,
            "the same policy came of a batch whether its turns were marked as explored or not",
        )
    every = tuple(_marked(c) for c in batch.conversations)
    refused = False
    try:
        trial.update(
            policy, replace(batch, conversations=every), first.folder.with_name("all-explored")
        )
    except BatchError:
        refused = True
    findings.expect(
        "off-policy: a batch without a turn of the policy's own, nor log-probabilities, is refused",
        refused,
        "a policy came of it",
    )


def check_kills(
    trial: Trial, policy: PolicyRef, batch: RoundBatch, first: Update, findings: Findings
) -> None:
    """As ``check_stops``, by SIGKILL, in processes with other hash salts."""
    folder = first.folder.with_name("killed")
    for moment in spread(first.moments):
        rule = "SIGKILL: killed in every stage, an update goes on to the same policy and files"
        try:
            killed = kill(trial, policy, batch, folder, moment)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            findings.unchecked("SIGKILL", f"the method can't be sent to another process ({error})")
            return
        except subprocess.CalledProcessError as error:
            findings.expect(rule, False, error.stderr.decode(errors="replace")[-200:])
            return
        findings.expect("SIGKILL: the update comes to where it was before", killed, moment)
    new = trial.update(policy, batch, folder)
    _expect_same(rule, first, new, folder, findings)


def _expect_same(
    rule: str, first: Update, new: PolicyRef, folder: Path, findings: Findings
) -> bool:
    differing = _differing(first.folder, folder)
    same = new.id == first.policy.id and not differing
    return findings.expect(
        rule, same, f"{first.policy.id} and {new.id}; files that differ:", differing
    )


def _differing(one: Path, other: Path) -> list[str]:
    """Files that are not alike; those of trackers hold wall-clock times."""
    left, right = _files(one), _files(other)
    return sorted(n for n in {*left, *right} if left.get(n) != right.get(n))


def _files(folder: Path) -> dict[str, bytes]:
    found = {p.relative_to(folder).as_posix(): p for p in folder.rglob("*") if p.is_file()}
    return {n: p.read_bytes() for n, p in found.items() if not n.startswith("tracking/")}


def _turned(c: Conversation) -> Conversation:
    if c.outcome.ending is Ending.AGREED:
        return replace(c, outcome=Outcome(Ending.TURN_LIMIT, 0.0))
    return replace(c, outcome=Outcome(Ending.AGREED, 1.0, closing_message=len(c.turns) - 1))


def _marked(c: Conversation) -> Conversation:
    """Explored, and all that a correction could lean on is gone."""
    return replace(c, turns=tuple(map(_explored, c.turns)))


def _explored(turn: Turn) -> Turn:
    if turn.role is not Role.AGENT or turn.scripted or turn.sampled is None:
        return turn
    return replace(turn, off_policy=True, sampled=replace(turn.sampled, logprobs=None))
