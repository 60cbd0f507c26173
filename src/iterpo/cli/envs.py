"""``iterpo envs``: the games, and the data sheet of one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from iterpo.cli.options import EnvOptions, Json
from iterpo.cli.output import examples, facts_text, number, print_json, print_table, say

if TYPE_CHECKING:
    from iterpo.environments.base import Environment

__all__ = ["app", "list_games", "show"]

app = typer.Typer(
    help="List the games; `envs show NAME` prints the data sheet of one.",
    rich_markup_mode="rich",
    epilog=examples("iterpo envs", "iterpo envs show ultimatum"),
)


@app.callback(invoke_without_command=True)
def list_games(context: typer.Context, as_json: Json = False) -> None:
    """List the games; `envs show NAME` prints the data sheet of one."""
    if context.invoked_subcommand:
        return
    from iterpo import environments

    rows = [
        {"name": name, "summary": _sheet(environments.make(name)).split("\n")[0]}
        for name in environments.names()
    ]
    if as_json:
        print_json(rows)
        return
    print_table("Games", ("name", "what it is"), [(r["name"], r["summary"]) for r in rows])
    say("More on one of them: iterpo envs show NAME")


@app.command(
    epilog=examples(
        "iterpo envs show ultimatum",
        "iterpo envs show ultimatum --option prompt_style=compact",
        "iterpo envs show deal_or_no_deal --data data",
    )
)
def show(
    name: Annotated[str, typer.Argument(help="Name of the game.")],
    option: EnvOptions = None,
    data: Annotated[
        Path | None,
        typer.Option(help="Folder of the game's data set; default: ITERPO_DATA, where it is set."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Print a game's data sheet and options, what was read of its data set, and one scenario.

    The scenario comes with what both parties see of it.
    """
    from iterpo.config import json_schema

    game = _game(name, option, data)
    schema = json_schema(type(game.options))["properties"]
    options = [
        {"name": key, "value": getattr(game.options, key), "meaning": s.get("description", "")}
        for key, s in schema.items()
    ]
    scenario, views, missing = _one_scenario(game)
    reports = {} if missing else _load_reports(game)
    if as_json:
        facts = {"name": name, "sheet": _sheet(game), "options": options, "data": reports}
        print_json(facts | {"scenario": scenario, "views": views, "missing": missing})
        return
    say(_sheet(game))
    say()
    columns = ("option", "value", "meaning")
    if options:
        print_table("Options", columns, [tuple(_text(v) for v in o.values()) for o in options])
    else:
        say("It has no options.")
    if missing:
        say(f"\nNo scenario can be shown: {missing}")
        return
    for split, report in reports.items():
        _print_report(split, report)
    say(f"\nA scenario: {scenario['kernel_id']}: {facts_text(scenario['facts'])}")
    for role, messages in views.items():
        say(f"\n--- what the {role} sees ---")
        for message in messages:
            say(f"[{message['role']}] {message['content']}")


def _game(name: str, settings: list[str] | None, data: Path | None) -> Any:
    from iterpo.cli.games import make_game
    from iterpo.config import override
    from iterpo.errors import ConfigError

    given = override({}, settings or ())
    if data is None:
        return make_game(name, given)
    if not hasattr(make_game(name, given).options, "data_dir"):
        raise ConfigError(f"{name} draws its scenarios and reads no data set; leave out --data")
    return make_game(name, given | {"data_dir": str(data)})


def _text(value: Any) -> str:
    return " ".join(value.split()).replace("``", "`") if isinstance(value, str) else number(value)


def _sheet(game: Environment) -> str:
    return (sys.modules[type(game).__module__].__doc__ or game.name).strip().replace("``", "`")


def _load_reports(game: Any) -> dict[str, dict[str, Any]]:
    """What was read for each split, for games that read a data set."""
    from iterpo.config import dump
    from iterpo.domain import Split
    from iterpo.errors import MissingDataError

    if not callable(getattr(game, "load_report", None)):
        return {}
    out = {}
    for split in Split:
        try:
            out[split.value] = dump(game.load_report(split))
        except MissingDataError as error:
            out[split.value] = {"missing": str(error)}
    return out


def _print_report(split: str, report: dict[str, Any]) -> None:
    if "missing" in report:
        say(f"\nNo data of the {split} split: {report['missing']}")
        return
    found = f"{report['rows']} records with {report['scenarios']} scenarios"
    say(f"\nData of the {split} split: read were {found}")
    for place in report["files"]:
        name = Path(place).name
        checksum = report["sha256"].get(name)
        known = {True: "the published file", False: "not the published file", None: ""}
        told = [f"sha256 {checksum[:12]}" if checksum else "", known[report["published"].get(name)]]
        say(f"  {place}" + "".join(f", {part}" for part in told if part))
    if report["counts"]:
        rows = [(key.replace("_", " "), count) for key, count in report["counts"].items()]
        print_table("", ("found in it", "count"), rows)


def _one_scenario(game: Environment) -> tuple[dict[str, Any], dict[str, Any], str]:
    from iterpo.config import dump
    from iterpo.domain import Role, Split
    from iterpo.errors import MissingDataError

    try:
        scenario = game.scenarios(Split.TRAIN, 1)[0]
    except MissingDataError as error:
        return {}, {}, str(error)
    turns = (game.opening(scenario),)
    views = {
        role.value: [m.as_dict() for m in game.view(scenario, role, turns).messages()]
        for role in Role
    }
    return dump(scenario), views, ""
