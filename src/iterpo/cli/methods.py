"""``iterpo methods``: what can turn conversations into a better policy."""

from __future__ import annotations

import sys

from iterpo.cli.options import Json
from iterpo.cli.output import examples, print_json, print_table

__all__ = ["EXAMPLES", "NAME", "command"]

NAME = "methods"
EXAMPLES = examples("iterpo methods", "iterpo methods --json")


def command(as_json: Json = False) -> None:
    """List the methods; a plan names one in method.name."""
    from iterpo import methods

    rows = []
    for name in methods.names():
        module = sys.modules[type(methods.make(name)).__module__]
        rows.append({"name": name, "summary": (module.__doc__ or "").strip().split("\n")[0]})
    if as_json:
        print_json(rows)
    else:
        print_table("Methods", ("name", "what it does"), [(r["name"], r["summary"]) for r in rows])
