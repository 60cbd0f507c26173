"""``iterpo improve``: single-turn RL on a fitted Q, from a log alone (Observation 3.1)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from iterpo.cli.options import Conversations, Json, Model, OutFolder, Settings
from iterpo.cli.output import examples, print_json, say

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

    Writes OUT/policy, an adapter that any --policy option takes, and says whether it is better as
    far as the log can tell: from the conversations that `iterpo fit-q` set aside. --set takes the
    keys of a plan's `improve` section.
    """
    from iterpo.artifacts import is_sealed
    from iterpo.cli.progress import Bars
    from iterpo.config import override, parse
    from iterpo.errors import ResumeError
    from iterpo.methods.base import RoundBatch
    from iterpo.methods.workspace import FolderWorkspace
    from iterpo.methods.workspace import Settings as Operators
    from iterpo.models.checkpoints import load_policy
    from iterpo.policy_improvement.base import ImproveConfig
    from iterpo.store import read_conversations

    config = parse(ImproveConfig, override({}, settings or ()), "the settings of the improvement")
    if is_sealed(out / "policy"):
        raise ResumeError(f"{out / 'policy'} already holds a policy; name another --out.")
    batch = read_conversations(log)
    ref = load_policy(policy)
    folder = q / "q" if (q / "q").is_dir() else q
    with Bars() as bars:
        workspace = FolderWorkspace(out, Operators(improve=config), bars.update)
        reward = workspace.stored_q(ref, folder)
        logged = RoundBatch(ref.round, batch, ref)
        new = workspace.improve(ref, logged, reward=reward)
        # What the Q was not fitted on is what its own settings set aside.
        judging = FolderWorkspace(out, Operators(q=reward.config, improve=config), bars.update)
        del workspace, reward  # their weights
        found = judging.verdict(ref, new, logged)
    told = found.to_dict() if found else {}
    if as_json:
        print_json({"policy": str(out / "policy"), "id": new.id, "parent": ref.id, **told})
    else:
        say(f"{ref.id} became {new.id} in {out / 'policy'}")
        say(f"{told.get('verdict', 'no verdict')}: {told.get('why', '')}")
        say(f"next: iterpo collect --policy {out / 'policy'} --out ... to see what it is worth")
