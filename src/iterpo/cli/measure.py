"""``iterpo measure``: J and its company from a conversation log."""

from __future__ import annotations

from typing import Annotated

import typer

from iterpo.cli.options import Conversations, Json
from iterpo.cli.output import estimate, examples, number, print_json, print_table

__all__ = ["EXAMPLES", "NAME", "command"]

NAME = "measure"
EXAMPLES = examples(
    "iterpo measure runs/smoke/round-0/deploy/heldout", "iterpo measure logs.jsonl --json"
)


def command(
    log: Conversations,
    gamma: Annotated[float, typer.Option(help="Discount factor in [0, 1].")] = 0.9,
    as_json: Json = False,
) -> None:
    """Measure a log: J in both units, agreement, reward, turns, J* and regret.

    Standard errors are clustered by kernel. Conversations without a reward (failures) are left
    out of every mean and counted.
    """
    from iterpo.measure import measure
    from iterpo.store import read_conversations

    facts = measure(read_conversations(log), gamma).to_dict()
    if as_json:
        print_json(facts)
        return
    rows = [
        (name, estimate(value) if isinstance(value, dict) and "mean" in value else _plain(value))
        for name, value in facts.items()
    ]
    print_table(str(log), ("measure", "mean ± standard error"), rows)


def _plain(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k} {number(v)}" for k, v in value.items()) or "-"
    return number(value)
