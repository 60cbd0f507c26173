"""``iterpo methods``: what can turn conversations into a better policy."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer

from iterpo.cli.options import Json
from iterpo.cli.output import examples, print_json, print_table, remark, say
from iterpo.errors import ConfigError, MissingExtraError

__all__ = ["EXAMPLES", "NAME", "command"]

NAME = "methods"
EXAMPLES = examples("iterpo methods", "iterpo methods mt_ppo", "iterpo methods --json")


def command(
    name: Annotated[
        str | None, typer.Argument(help="One method: its options, their defaults and meaning.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the methods, or the options of one; a plan names it in method.name.

    Options are set in method.options; docs/reference/methods.md says what each does, too.
    """
    from iterpo import methods
    from iterpo.methods.base import PLUGINS

    if name is not None:
        _show(_described(name), as_json)
        return
    rows = []
    for known in methods.names():
        try:
            rows.append(_described(known))
        except (MissingExtraError, ConfigError) as error:  # must not hide the others
            rows.append({"name": known, "summary": str(error), "options": {}})
    if as_json:
        print_json(rows)
        return
    shown = [(r["name"], r["summary"], ", ".join(r["options"])) for r in rows]
    print_table("Methods", ("name", "what it does", "options"), shown)
    for line in PLUGINS.shadowed():
        remark(line)
    say("More on one of them: iterpo methods NAME")


def _show(row: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(row)
        return
    say(f"{row['name']}: {row['summary']}")
    if not row["options"]:
        say("It has no options of its own.")
        return
    shown = [
        (option, json.dumps(told["default"]) if "default" in told else "none", told["meaning"])
        for option, told in row["options"].items()
    ]
    print_table("Options (method.options)", ("option", "default", "what it means"), shown)


def _described(name: str) -> dict[str, Any]:
    """Name, first line of documentation, and what each option means, with its default."""
    from iterpo.config import json_schema
    from iterpo.methods.base import PLUGINS, options_type

    kind = PLUGINS.load(name)
    summary = (sys.modules[kind.__module__].__doc__ or "").strip().split("\n")[0]
    accepted = options_type(name, kind)
    schema = json_schema(accepted)["properties"] if accepted else {}
    options = {
        option: {k: told[k] for k in ("default",) if k in told}
        | {"meaning": told.get("description", "")}
        for option, told in schema.items()
    }
    return {"name": name, "summary": summary, "options": options}
