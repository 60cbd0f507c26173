"""``iterpo methods``: what can turn conversations into a better policy."""

from __future__ import annotations

import sys
from typing import Any

from iterpo.cli.options import Json
from iterpo.cli.output import examples, print_json, print_table

__all__ = ["EXAMPLES", "NAME", "command"]

NAME = "methods"
EXAMPLES = examples("iterpo methods", "iterpo methods --json")


def command(as_json: Json = False) -> None:
    """List the methods and their options; a plan names one in method.name.

    Options are set in method.options; docs/reference/methods.md says what each does, and so does
    --json.
    """
    from iterpo import methods

    rows = []
    for name in methods.names():
        kind = type(methods.make(name))
        summary = (sys.modules[kind.__module__].__doc__ or "").strip().split("\n")[0]
        rows.append({"name": name, "summary": summary, "options": _options(kind)})
    if as_json:
        print_json(rows)
    else:
        shown = [(r["name"], r["summary"], ", ".join(r["options"])) for r in rows]
        print_table("Methods", ("name", "what it does", "options"), shown)


def _options(kind: type) -> dict[str, Any]:
    """What each option means, and its default."""
    from iterpo.config import dump, json_schema

    accepted = getattr(kind, "Options", None)
    if accepted is None:
        return {}
    defaults, schema = dump(accepted()), json_schema(accepted)["properties"]
    return {
        name: {"default": default, "meaning": schema[name].get("description", "")}
        for name, default in defaults.items()
    }
