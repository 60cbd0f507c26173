"""``iterpo models``: which models are at hand without a download."""

from __future__ import annotations

from iterpo.cli.options import Json
from iterpo.cli.output import examples, print_json, print_table, say

__all__ = ["EXAMPLES", "NAME", "command"]

NAME = "models"
EXAMPLES = examples("iterpo models", "iterpo run smoke --set policy.model=smollm2-135m")


def command(as_json: Json = False) -> None:
    """List the embedded models; a plan names one in policy.model.

    A local folder in transformers format (safetensors) and a hub id work as well.
    """
    from iterpo.models.hub import list_models

    rows = list_models()
    if as_json:
        print_json(rows)
        return
    print_table(
        "Embedded models",
        ("name", "parameters", "at hand", "what it is"),
        [(r["name"], f"{r['parameters']:,}", r["available"], r["summary"]) for r in rows],
    )
    say("Also accepted: a local folder in transformers format, or a hub id such as owner/model.")
