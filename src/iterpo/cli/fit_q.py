"""``iterpo fit-q``: policy evaluation from a conversation log alone (Observation 3.5)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from iterpo.cli.options import Conversations, Json, Model, OutFolder, Settings
from iterpo.cli.output import examples, number, print_json, print_table, say

if TYPE_CHECKING:
    from iterpo.policy_evaluation.qfunction import QFunction

__all__ = ["EXAMPLES", "NAME", "command"]

NAME = "fit-q"
EXAMPLES = examples(
    "iterpo fit-q logs.jsonl --policy nano --out work",
    "iterpo fit-q logs.jsonl --policy nano --out work --gamma 0 --set epochs=5",
)


def command(
    log: Conversations,
    policy: Model,
    out: OutFolder,
    gamma: Annotated[float, typer.Option(help="Discount per agent turn, in [0, 1].")] = 0.9,
    settings: Settings = None,
    as_json: Json = False,
) -> None:
    """Fit Q to the returns of logged conversations; no game and no simulator is touched.

    Writes OUT/q (the value head) and OUT/q_health.json. A share of the conversations is set aside
    for the judge of `iterpo improve` (judge_fraction; 0 fits on all). --set takes the keys of a
    plan's `q` section.
    """
    from iterpo.artifacts import is_sealed
    from iterpo.config import override, parse
    from iterpo.errors import ConfigError, ResumeError
    from iterpo.methods.base import RoundBatch
    from iterpo.methods.workspace import FolderWorkspace
    from iterpo.methods.workspace import Settings as Operators
    from iterpo.models.checkpoints import load_policy
    from iterpo.policy_evaluation.base import QConfig
    from iterpo.policy_evaluation.split import set_aside, why_none_aside
    from iterpo.store import read_conversations

    config = parse(QConfig, override({"gamma": gamma}, settings or ()), "the settings of Q")
    if config.pool_rounds:
        raise ConfigError("pool_rounds: given for one log; accepted: 0, or a run of several rounds")
    if is_sealed(out / "q"):
        raise ResumeError(f"{out / 'q'} already holds a fitted Q; name another folder with --out.")
    batch = read_conversations(log)
    ref = load_policy(policy)
    q = FolderWorkspace(out, Operators(q=config)).fit_q(ref, RoundBatch(ref.round, batch, ref))
    aside = len(set_aside(batch, config)[1])
    told = why_none_aside(batch, config)
    if aside:
        told = (
            f"{aside} of {len(batch)} conversations are set aside for the judge of iterpo improve"
        )
    _print_health(q, out, (aside, told), as_json)


def _print_health(q: QFunction, out: Path, judge: tuple[int, str], as_json: bool) -> None:
    import json

    health: dict[str, Any] = json.loads((out / "q_health.json").read_text())
    if as_json:
        facts = {"q": str(out / "q"), "policy": q.backbone.policy.id, "health": health}
        print_json({**facts, "judge_conversations": judge[0], "judge": judge[1]})
        return
    names = ("pearson", "spearman", "r2", "mse", "variance", "slope")
    rows = [
        (part, *(number(health[key].get(name)) for name in names))
        for part, key in (("held-out", "fit"), ("fitted on", "train_fit"))
    ]
    print_table(f"Q from {health['rows']} rows", ("conversations", *names), rows)
    if judge[1]:
        say(judge[1])
    say(f"Q is in {out / 'q'}; next: iterpo improve LOG --q {out / 'q'} --policy ... --out {out}")
