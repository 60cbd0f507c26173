"""Q features: one forward pass per conversation against one per (state, response) pair.

Both sides use the same code, model, batching rule and rows, in one process, by turns; the only
difference is whether rows of a conversation may share a pass. Run it as

    python benchmarks/speed/q_features.py --model smollm2-135m --dtype float32
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path

import torch

from iterpo.domain import Conversation, Ending, Outcome, Response, Role, State, Turn, decisions
from iterpo.models.backbone import Backbone, load
from iterpo.models.checkpoints import load_policy
from iterpo.policy_evaluation.features import Extracted, extract

RESULT = Path(__file__).parents[1] / "results" / "q-features.json"

SYSTEM = (
    "You are a shop assistant. A customer asks about a used bicycle that is listed at $240. The "
    "bicycle was serviced last month, has new tyres and a small scratch on the frame. Your task "
    "is to sell it for a good price and to stay polite. You may offer a lock worth $20 or free "
    "delivery within the city, but not both. When you and the customer agree on a price, write "
    "the price in a box, for example \\boxed{AGREED: $200}. If you can't agree at all, write "
    "\\boxed{NO DEAL}. Keep every message short: one or two sentences. Never name the lowest "
    "price that you would accept."
)
LINES = ("I could pay ${} today.", "It is worth ${} at least.")


def conversation(index: int, n_turns: int) -> Conversation:
    turns = [Turn(Role.AGENT, "Hello! How can I help you?", scripted=True)]
    for t in range(n_turns):
        turns.append(Turn(Role.PARTNER, LINES[0].format(150 + index + 5 * t)))
        turns.append(Turn(Role.AGENT, LINES[1].format(230 + index - 5 * t)))
    outcome = Outcome(Ending.AGREED, 0.8)
    return Conversation(f"c{index}", f"k{index}", "shop", tuple(turns), outcome, SYSTEM)


def timed(run: Callable[[], Extracted]) -> tuple[float, float, Extracted]:
    """Wall-clock and processor seconds; the second tells more on a machine that others use too."""
    wall, cpu = time.perf_counter(), time.process_time()
    out = run()
    return time.perf_counter() - wall, time.process_time() - cpu, out


def compare(backbone: Backbone, n_turns: int, args: argparse.Namespace) -> dict[str, object]:
    talks = [conversation(i, n_turns) for i in range(args.conversations)]
    rows = [d for talk in talks for d in decisions(talk, 0.9)]
    states: list[State] = [d.state for d in rows]
    responses: list[Response] = [d.response for d in rows]
    # A conversation of its own for every row: nothing can be shared.
    apart = [replace(s, conversation_id=f"{s.conversation_id}/{s.t}") for s in states]

    def run(these: list[State], said: list[Response]) -> Extracted:
        return extract(backbone, these, said, max_batch_tokens=args.max_batch_tokens)

    run(states[:1], responses[:1])  # warms up
    wall: dict[str, list[float]] = {"conversation": [], "pair": []}
    cpu: dict[str, list[float]] = {"conversation": [], "pair": []}
    found: dict[str, Extracted] = {}
    for _ in range(args.repeats):
        for name, these in (("conversation", states), ("pair", apart)):
            w, c, found[name] = timed(partial(run, these, responses))
            wall[name].append(w)
            cpu[name].append(c)
    shared, single = found["conversation"], found["pair"]
    gap = shared.features - single.features
    one, many = (statistics.median(wall[k]) for k in ("conversation", "pair"))
    one_cpu, many_cpu = (statistics.median(cpu[k]) for k in ("conversation", "pair"))
    return {
        "turns": n_turns,
        "rows": len(rows),
        "tokens_per_conversation": shared.tokens / args.conversations,
        "forwards_per_conversation_s": one,
        "forwards_per_pair_s": many,
        "all_wall_s": wall,
        "all_cpu_s": cpu,
        "forwards": [shared.forwards, single.forwards],
        "tokens": [shared.tokens, single.tokens],
        "ratio_wall": many / one,
        "ratio_cpu": many_cpu / one_cpu,
        "max_difference": float(gap.abs().max()),
        "max_feature": float(shared.features.abs().max()),
        "max_relative_difference": float((gap.norm(dim=1) / single.features.norm(dim=1)).max()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--turns", type=int, nargs="+", default=[6])
    parser.add_argument("--conversations", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--max-batch-tokens", type=int, default=4096)
    # On a busy machine two threads wait for each other, which hides what is being compared.
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULT)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    backbone = load(load_policy(args.model), dtype=args.dtype, device="cpu")
    results = []
    print(f"{args.model}, {args.dtype}, {args.threads} threads: seconds, median of {args.repeats}")
    print(
        "turns  tokens/conv  per conversation  per pair  ratio  (cpu)  max difference  (relative)"
    )
    for n_turns in args.turns:
        r = compare(backbone, n_turns, args)
        results.append(r)
        print(
            f"{r['turns']:>5}  {r['tokens_per_conversation']:>11.0f}  "
            f"{r['forwards_per_conversation_s']:>16.2f}  {r['forwards_per_pair_s']:>8.2f}  "
            f"{r['ratio_wall']:>5.1f}  {r['ratio_cpu']:>5.1f}  {r['max_difference']:>14.1e}  "
            f"{r['max_relative_difference']:>10.1e}",
            flush=True,
        )
    facts = {
        "what": "Q features: one forward per conversation against one per (state, response) pair",
        "model": args.model,
        "dtype": args.dtype,
        "conversations": args.conversations,
        "repeats": args.repeats,
        "max_batch_tokens": args.max_batch_tokens,
        "threads": args.threads,
        "machine": {
            "cpus": os.cpu_count(),
            "machine": platform.machine(),
            "system": platform.system(),
            "python": platform.python_version(),
        },
        "versions": {name: version(name) for name in ("torch", "transformers", "iterpo")},
        "results": results,
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(facts, indent=1, sort_keys=True) + "\n")
    print(f"written to {args.out}")


if __name__ == "__main__":
    main()
