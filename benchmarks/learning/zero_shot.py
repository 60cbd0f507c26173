"""A model as it is, in every game, against the scripted partner and against itself.

    python benchmarks/learning/zero_shot.py --model smollm2-135m --conversations 20

One cell is a game and a partner. Cells that are done are looked up, a stopped cell goes on from its
last block, and the records are rewritten after each cell.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import torch
from cells import DATA, ROOT, write_records

from iterpo import environments
from iterpo.agents.base import AgentFactory
from iterpo.agents.local import LocalPolicy
from iterpo.agents.scripted import Bargaining, ScriptedPartner
from iterpo.collect import Table, collect_into, seats
from iterpo.domain import Conversation, Ending, Role, Sampling, Split
from iterpo.environments.boxed import boxes
from iterpo.measure import measure
from iterpo.models.backbone import load
from iterpo.models.checkpoints import load_policy


def make(name: str, style: str) -> environments.Environment:
    """The game, with its data from ../shared/data where it needs any."""
    wants_data = hasattr(environments.make(name).options, "data_dir")
    given = {"data_dir": str(DATA)} if wants_data else {}
    return environments.make(name, prompt_style=style, **given)


def row_of(played: tuple[Conversation, ...], wall_s: float) -> dict[str, Any]:
    """Endings and what the agent said."""
    n = len(played)
    said = [t for c in played for t in c.turns if t.role is Role.AGENT and not t.scripted]
    facts = measure(played).to_dict()
    return {
        "conversations": n,
        "endings": {
            e.value: share
            for e in Ending
            if (share := sum(c.outcome.ending is e for c in played) / n)
        },
        "failures": sorted({c.outcome.detail for c in played if not c.outcome.ending.scored}),
        "J_agent_turn": facts["J_agent_turn"]["mean"],
        "reward": facts["reward"]["mean"],
        "turns": facts["turns"]["mean"],
        "boxed_agent_messages": sum(bool(boxes(t.text)) for t in said) / len(said) if said else 0,
        "cut_agent_messages": sum(
            t.sampled is not None and t.sampled.finish == "length" for t in said
        )
        / max(len(said), 1),
        "wall_s": round(wall_s, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--style", default="full", choices=["full", "compact"])
    parser.add_argument("--games", nargs="*", default=list(environments.names()))
    parser.add_argument("--partners", nargs="*", default=["scripted", "itself"])
    parser.add_argument("--conversations", type=int, default=20)
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--top-p", type=float, default=0.9)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--work", type=Path, default=ROOT / "runs" / "zero-shot")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    out = args.out or ROOT / "benchmarks" / "results" / f"zero-shot-{args.model}.json"
    torch.set_num_threads(args.threads)
    ref = load_policy(args.model)
    backbone = load(ref)
    sampling = Sampling(args.temperature, args.top_p, max_new_tokens=args.max_new_tokens)
    meta = {
        "iterpo": version("iterpo"),
        "torch": version("torch"),
        "transformers": version("transformers"),
        "model": args.model,
        "policy": ref.id,
        "style": args.style,
        "sampling": {f.name: getattr(sampling, f.name) for f in fields(sampling)},
        "threads": args.threads,
        "machine": platform.machine(),
    }
    records: list[dict[str, Any]] = []
    if out.is_file():
        found = json.loads(out.read_text())
        records = found["records"] if found["meta"] == meta else []
    for game in args.games:
        for kind in args.partners:
            if any((r["game"], r["partner"]) == (game, kind) for r in records):
                continue
            env = make(game, args.style)
            partner: AgentFactory = (
                # A second barrier over the same weights: each side waits for its own seats only.
                LocalPolicy(backbone, sampling)
                if kind == "itself"
                else ScriptedPartner(cast(Bargaining, env))
            )
            table = Table(env, LocalPolicy(backbone, sampling), partner, ref.id)
            places = seats(env.scenarios(Split.TRAIN, args.conversations), 1, round=0, seed=0)
            start = time.monotonic()
            played = collect_into(args.work / args.model / game / kind, table, places)
            row = {"game": game, "partner": kind, **row_of(played, time.monotonic() - start)}
            records.append(row)
            print(json.dumps(row), flush=True)
            write_records(out, meta, records)


if __name__ == "__main__":
    main()
