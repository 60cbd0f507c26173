"""``iterpo improve``: single-turn RL on a fitted Q, from a log alone (Observation 3.1)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from iterpo.cli.options import Conversations, Json, Model, OutFolder, Settings
from iterpo.cli.output import examples, print_json, remark, say

if TYPE_CHECKING:
    from iterpo.domain import Conversation, PolicyRef
    from iterpo.policy_improvement.base import ImproveConfig

__all__ = ["EXAMPLES", "NAME", "command"]

NAME = "improve"
EXAMPLES = examples(
    "iterpo improve logs.jsonl --q work/q --policy nano --out work",
    "iterpo improve logs.jsonl --q work/q --policy nano --out work --set steps=24",
)


def command(
    log: Conversations,
    policy: Model,
    q: Annotated[Path, typer.Option("--q", help="Folder of a fitted Q (`iterpo fit-q`).")],
    out: OutFolder,
    settings: Settings = None,
    as_json: Json = False,
) -> None:
    """Improve a policy on the logged states with Q as the reward; no simulator is touched.

    Writes OUT/policy, an adapter that any --policy option takes, and OUT/verdict.json: whether it
    is better as far as the log can tell, from the conversations that `iterpo fit-q` set aside. The
    same command goes on where it was interrupted, and tells again what is done. --set takes the
    keys of a plan's `improve` section.
    """
    from iterpo.artifacts import is_sealed, write_atomic
    from iterpo.config import override, parse
    from iterpo.models.checkpoints import load_policy
    from iterpo.policy_improvement.base import ImproveConfig
    from iterpo.store import read_conversations

    config = parse(ImproveConfig, override({}, settings or ()), "the settings of the improvement")
    batch = read_conversations(log)
    ref = load_policy(policy)
    folder = q / "q" if (q / "q").is_dir() else q
    stored = out / "verdict.json"
    _check_same(out, _request(ref, batch, folder, config))
    if is_sealed(out / "policy") and stored.is_file():
        told = json.loads(stored.read_text())
        remark(f"{out} holds the policy and its verdict already: nothing was computed")
    else:
        told = _improved(ref, batch, folder, (out, config))
        write_atomic(stored, json.dumps(told, indent=1, sort_keys=True) + "\n")
    if as_json:
        print_json({"policy": str(out / "policy"), **told})
    else:
        say(f"{told['parent']} became {told['id']} in {out / 'policy'}")
        say(f"{told.get('verdict', 'no verdict')}: {told.get('why', '')}")
        say(f"next: iterpo collect --policy {out / 'policy'} --out ... to see what it is worth")


def _request(
    ref: PolicyRef, batch: Sequence[Conversation], q: Path, config: ImproveConfig
) -> dict[str, Any]:
    """What OUT is made from: another Q, log or setting would make another policy."""
    from dataclasses import asdict

    from iterpo.artifacts import MANIFEST, file_sha256, open_sealed
    from iterpo.policy_evaluation.qfunction import KIND
    from iterpo.policy_evaluation.split import log_sha256

    open_sealed(q, KIND)
    return {
        "policy": ref.id,
        "log_sha256": log_sha256(batch),
        "q_sha256": file_sha256(q / MANIFEST),
        "settings": asdict(config),
    }


def _check_same(out: Path, request: dict[str, Any]) -> None:
    """Note what OUT is for, or refuse to go on in it with something else.

    Raises:
        ResumeError: if OUT holds, or was to hold, the outcome of another request.
    """
    from iterpo.artifacts import is_sealed, write_atomic
    from iterpo.errors import ResumeError

    noted, holds = out / "improve.json", f"{out / 'policy'} already holds a policy"
    if noted.is_file():
        before = json.loads(noted.read_text())
        given = json.loads(json.dumps(request))
        other = [key for key in request if before.get(key) != given[key]]
        if other:
            what = holds if is_sealed(out / "policy") else f"{out} was begun"
            raise ResumeError(
                f"{what}, from another {', '.join(other)}. Repeat that command to go on, or name "
                "another --out."
            )
    elif is_sealed(out / "policy"):
        raise ResumeError(f"{holds}; name another --out.")
    else:
        write_atomic(noted, json.dumps(request, indent=1, sort_keys=True) + "\n")


def _improved(
    ref: PolicyRef,
    batch: tuple[Conversation, ...],
    folder: Path,
    asked: tuple[Path, ImproveConfig],
) -> dict[str, Any]:
    """Train, or find what was trained, and let it be judged."""
    from dataclasses import replace

    from iterpo.cli.progress import Bars
    from iterpo.methods.base import RoundBatch
    from iterpo.methods.workspace import FolderWorkspace, Settings
    from iterpo.policy_evaluation.split import log_sha256

    out, config = asked
    with Bars() as bars:
        workspace = FolderWorkspace(out, Settings(improve=config), bars.update)
        reward = workspace.stored_q(ref, folder)
        logged = RoundBatch(ref.round, batch, ref)
        new = workspace.improve(ref, logged, reward=reward)
        # What the Q was not fitted on is what its own settings set aside, of its own log.
        doubt = _doubt(reward.log_sha256, log_sha256(batch))
        fitted = replace(reward.config, judge_fraction=0.0) if doubt else reward.config
        judging = FolderWorkspace(out, Settings(q=fitted, improve=config), bars.update)
        del workspace, reward  # their weights
        found = judging.verdict(ref, new, logged, (doubt,) if doubt else ())
    return {"id": new.id, "parent": ref.id, **(found.to_dict() if found else {})}


def _doubt(fitted_on: str | None, given: str) -> str:
    """Why nothing can be known to be unseen by Q; empty if it can."""
    if fitted_on == given:
        return ""
    if fitted_on is None:
        return (
            "the Q's folder does not say what log it was fitted on, so nothing counts as unseen: "
            "fit it again (fit-q)"
        )
    return "Q was fitted on another log than this one, so nothing here counts as unseen by it"
