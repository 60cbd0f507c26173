"""``iterpo collect``: deploy a policy against a game's scripted partner and log what is said."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from iterpo.cli.options import EnvOptions, Json, Model, OutFolder
from iterpo.cli.output import estimate, examples, print_json, print_table, say

if TYPE_CHECKING:
    from iterpo.collect import Tally
    from iterpo.domain import Conversation, Sampling

__all__ = ["EXAMPLES", "NAME", "command"]

NAME = "collect"
EXAMPLES = examples(
    "iterpo collect --env ultimatum --option prompt_style=compact --policy nano --out logs/nano",
    "iterpo collect --policy work/policy --option prompt_style=compact --out logs/better "
    "--split heldout",
)


def command(
    out: OutFolder,
    policy: Model = "nano",
    env: Annotated[str, typer.Option("--env", help="Game (`iterpo envs`).")] = "ultimatum",
    option: EnvOptions = None,
    scenarios: Annotated[int, typer.Option(min=1, help="Kernels to play.")] = 100,
    per_scenario: Annotated[int, typer.Option(min=1, help="Conversations per kernel.")] = 4,
    split: Annotated[str, typer.Option(help="Kernels: train or heldout.")] = "train",
    seed: Annotated[int, typer.Option(help="Seed of all draws.")] = 42,
    data_seed: Annotated[int, typer.Option(help="Seed that chooses the kernels.")] = 42,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 is greedy.")] = 1.0,
    top_p: Annotated[float, typer.Option(help="Nucleus mass; 1 is off.")] = 1.0,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest response.")] = 64,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a stopped batch.")] = False,
    as_json: Json = False,
) -> None:
    """Play conversations and log them in OUT/conversations.jsonl, with a progress bar.

    A failed conversation is a record in the log, never a lost batch and never a zero reward.
    """
    from iterpo.config import parse
    from iterpo.domain import Sampling, Split
    from iterpo.measure import measure

    asked: dict[str, Any] = {"env": env, "option": sorted(option or []), "policy": policy}
    asked |= {"scenarios": scenarios, "per_scenario": per_scenario, "split": split}
    asked |= {"seed": seed, "data_seed": data_seed}
    drawn = {"temperature": temperature, "top_p": top_p, "max_new_tokens": max_new_tokens}
    sampling = parse(Sampling, drawn, "the sampling options")
    _claim(out, asked | drawn, resume)
    played = _play(out, asked, sampling, Split(_split(split)))
    facts = measure(played).to_dict()
    if as_json:
        print_json({"folder": str(out), "measurement": facts})
        return
    means = [(k, estimate(v)) for k, v in facts.items() if isinstance(v, dict) and "mean" in v]
    print_table(f"{len(played)} conversations", ("measure", "mean ± standard error"), means)
    say(f"the log is {out / 'conversations.jsonl'}; next: iterpo fit-q {out} --policy {policy} ...")


def _split(name: str) -> str:
    from iterpo.domain import Split
    from iterpo.errors import ConfigError

    if name not in [s.value for s in Split]:
        raise ConfigError(f"--split is {name!r}; accepted: {', '.join(s.value for s in Split)}")
    return name


def _claim(out: Path, asked: dict[str, Any], resume: bool) -> None:
    """Refuse to add to a batch that was asked for with other settings."""
    import json

    from iterpo.artifacts import is_sealed, write_atomic
    from iterpo.errors import ResumeError

    note = out / "collect.json"
    begun = out.exists() and any(out.iterdir())
    if is_sealed(out) or (begun and not (resume and note.is_file())):
        raise ResumeError(
            f"{out} is not empty. Go on with a stopped batch with --resume, or name another --out."
        )
    if note.is_file():
        known = json.loads(note.read_text())
        if known != asked:
            other = sorted(k for k in asked if asked[k] != known.get(k))
            raise ResumeError(
                f"{out} holds a batch with other settings ({', '.join(other)}); "
                "give the same ones, or name another --out."
            )
    write_atomic(note, json.dumps(asked, indent=1, sort_keys=True) + "\n")


def _play(
    out: Path, asked: dict[str, Any], sampling: Sampling, split: Any
) -> tuple[Conversation, ...]:
    from iterpo.agents.local import LocalPolicy
    from iterpo.agents.scripted import Bargaining, ScriptedPartner
    from iterpo.cli.games import make_game
    from iterpo.cli.progress import Bars
    from iterpo.collect import Pace, Table, collect_into, seats
    from iterpo.config import override
    from iterpo.models.backbone import load
    from iterpo.models.checkpoints import load_policy

    game = make_game(asked["env"], override({}, asked["option"]))
    ref = load_policy(asked["policy"])
    scenarios = game.scenarios(split, asked["scenarios"], asked["data_seed"])
    places = seats(scenarios, asked["per_scenario"], round=ref.round, seed=asked["seed"])
    partner = ScriptedPartner(cast(Bargaining, game))
    table = Table(game, LocalPolicy(load(ref), sampling), partner, ref.id)
    pace = Pace()
    with Bars() as bars:

        def progress(tally: Tally) -> None:
            bars.update("collect", tally.done, tally.total, pace.facts(tally))

        return collect_into(
            out,
            table,
            places,
            j_star=lambda scenario: partner.j_star(scenario, 0.9),
            progress=progress,
        )
