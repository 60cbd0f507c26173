"""Sampling: `models.generation.generate` against transformers' `generate`.

Both sides draw with the same model, prompts and settings in one process, by turns. Every response
has full length. `8x8` is 8 prompts with 8 samples each. Run it as

    python benchmarks/speed/sampling.py --model smollm2-135m --dtype bfloat16

A run that is cut goes on where it was.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from side_by_side import Repeats, gflop_per_token, matmul_gflops, messages_of, never_stop

from iterpo.domain import Sampling
from iterpo.models.backbone import Backbone, load
from iterpo.models.checkpoints import load_policy
from iterpo.models.generation import generate

RESULT = Path(__file__).parents[1] / "results" / "sampling.json"
CASES = {"1": (1, 1), "16": (16, 1), "64": (64, 1), "8x8": (8, 8)}


def ours(backbone: Backbone, prompts: list[list[int]], sampling: Sampling) -> int:
    found = generate(backbone, prompts, sampling, range(len(prompts)))
    return sum(len(g.token_ids) for g in found)


def theirs(backbone: Backbone, prompts: list[list[int]], sampling: Sampling) -> int:
    width = max(map(len, prompts))
    ids = torch.full((len(prompts), width), backbone.chat.stop_ids[0])
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = torch.tensor(prompt)
        mask[row, width - len(prompt) :] = 1
    with torch.no_grad():
        out = backbone.model.generate(
            ids,
            attention_mask=mask,
            do_sample=True,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=0,
            min_new_tokens=sampling.max_new_tokens,
            max_new_tokens=sampling.max_new_tokens,
            pad_token_id=backbone.chat.stop_ids[0],
        )
    return (out.shape[1] - width) * len(prompts)


def timed(
    sample: Callable[[Backbone, list[list[int]], Sampling], int],
    backbone: Backbone,
    prompts: list[list[int]],
    sampling: Sampling,
) -> dict[str, Any]:
    start, cpu = time.perf_counter(), time.process_time()
    tokens = sample(backbone, prompts, sampling)
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    needed = sum(map(len, {tuple(p) for p in prompts})) + tokens
    return {
        "seconds": seconds,
        "cpu_seconds": cpu,
        "new_tokens": tokens,
        "tokens_per_s": tokens / seconds,
        "useful_gflop": needed * gflop_per_token(backbone),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--prompt-tokens", type=int, default=290)
    parser.add_argument("--new-tokens", type=int, default=48)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULT)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    names = ("model", "dtype", "prompt_tokens", "new_tokens", "threads")
    settings = {name: getattr(args, name) for name in names}
    repeats = Repeats(args.out, "sampling: ours against transformers' generate", settings)
    backbone = load(load_policy(args.model), dtype=args.dtype, device="cpu")
    prompts = [
        backbone.chat.prompt_ids(messages_of(backbone, i, args.prompt_tokens)) for i in range(64)
    ]
    never_stop(backbone, prompts[0])
    sampling = Sampling(temperature=0.7, top_p=0.9, max_new_tokens=args.new_tokens)
    warm = Sampling(temperature=0.7, top_p=0.9, max_new_tokens=2)
    for case in args.cases:
        count, each = CASES[case]
        batch = [p for p in prompts[:count] for _ in range(each)]
        for sample in (ours, theirs):
            sample(backbone, batch[:2], warm)
        sides = {
            "iterpo": partial(timed, ours, backbone, batch, sampling),
            "transformers": partial(timed, theirs, backbone, batch, sampling),
        }
        repeats.run(case, sides, args.repeats)
    repeats.summary("iterpo", matmul_gflops(backbone.dtype))


if __name__ == "__main__":
    main()
