"""Scoring the candidates of a state: their prompt once, against once for each of them.

The same code, model and rows, by turns in one process. Run it as

    python benchmarks/speed/q_candidates.py --model smollm2-135m --states 4
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from importlib.metadata import version
from pathlib import Path

import torch
from q_features import conversation

from iterpo.domain import Response, decisions
from iterpo.models.backbone import load
from iterpo.models.checkpoints import load_policy
from iterpo.policy_evaluation import features

RESULT = Path(__file__).parents[1] / "results" / "q-candidates.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--states", type=int, default=4)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULT)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    backbone = load(load_policy(args.model), dtype="float32")
    last = [decisions(conversation(i, 3), 0.9)[-1].state for i in range(args.states)]
    states = [state for state in last for _ in range(args.group_size)]
    said = [Response(f"I could do it for ${200 + i} and no less.") for i in range(len(states))]
    cpu: dict[bool, list[float]] = {True: [], False: []}
    found = {}
    for _ in range(args.repeats):
        for share in (True, False):
            features.can_share = lambda _, share=share: share
            begun = time.process_time()
            found[share] = features.extract(backbone, states, said, pooling="final_and_mean")
            cpu[share].append(time.process_time() - begun)
    gap = found[True].features - found[False].features
    row = {
        "model": args.model,
        "states": args.states,
        "group_size": args.group_size,
        "tokens": {"shared": found[True].tokens, "apart": found[False].tokens},
        "cpu_s": {"shared": cpu[True], "apart": cpu[False]},
        "ratio": statistics.median(cpu[False]) / statistics.median(cpu[True]),
        "ratios": [apart / shared for shared, apart in zip(cpu[True], cpu[False], strict=True)],
        "largest_difference": float(gap.abs().max()),
        "largest_feature": float(found[True].features.abs().max()),
        "threads": args.threads,
        "versions": {n: version(n) for n in ("iterpo", "torch", "transformers")},
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
    }
    kept = json.loads(args.out.read_text()) if args.out.is_file() else []
    kept = [r for r in kept if r["model"] != args.model] + [row]
    args.out.write_text(json.dumps(kept, indent=1) + "\n")
    print(f"{args.model}: {row['ratio']:.1f}x, difference {row['largest_difference']:.1e}")


if __name__ == "__main__":
    main()
