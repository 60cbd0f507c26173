"""Timed repeats of several sides, by turns, kept one by one so that a run may be cut and go on."""

from __future__ import annotations

import json
import os
import platform
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from iterpo.artifacts import write_atomic
from iterpo.domain import Message
from iterpo.models.backbone import Backbone

PACKAGES = ("torch", "transformers", "trl", "peft", "iterpo")
TEXT = (
    "You sell a used bicycle that is listed at $240; it has new tyres and a small scratch. "
    "Agree on a price with the customer, stay polite, and put the price in a box at the end. "
)


class Repeats:
    """Records of one benchmark in a file; those of the same settings are kept and not redone."""

    def __init__(self, path: Path, what: str, settings: Mapping[str, Any]) -> None:
        self.path = path
        self.meta = {
            "what": what,
            "settings": dict(settings),
            "machine": {
                "cpus": os.cpu_count(),
                "machine": platform.machine(),
                "system": platform.system(),
                "python": platform.python_version(),
            },
            "versions": {name: version(name) for name in PACKAGES},
        }
        self.records: list[dict[str, Any]] = []
        self.extra: dict[str, Any] = {}
        if path.exists():
            found = json.loads(path.read_text())
            if found["meta"] == json.loads(json.dumps(self.meta)):
                self.records, self.extra = found["records"], found["extra"]
                print(f"going on from {len(self.records)} records in {path}")
            else:
                raise SystemExit(f"{path} holds other settings or versions; give another --out")

    def run(
        self, case: str, sides: Mapping[str, Callable[[], dict[str, Any]]], repeats: int
    ) -> None:
        """Time every side once, then again, …; which goes first changes from repeat to repeat."""
        done = {(r["case"], r["side"], r["repeat"]) for r in self.records}
        for repeat in range(repeats):
            order = list(sides.items())
            for side, measure in order if repeat % 2 == 0 else reversed(order):
                if (case, side, repeat) in done:
                    continue
                found = measure()
                self.records.append({"case": case, "side": side, "repeat": repeat, **found})
                self.save()
                print(f"{case:>8} {side:>22} {repeat}: {found['seconds']:.2f} s", flush=True)

    def save(self) -> None:
        content = {"meta": self.meta, "records": self.records, "extra": self.extra}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(self.path, json.dumps(content, indent=1, sort_keys=True) + "\n")

    def summary(self, ours: str, gflops: float) -> None:
        """Medians, and the ratio of each other side to ours within one repeat, with its range."""
        rows = []
        for case in dict.fromkeys(r["case"] for r in self.records):
            by_side: dict[str, dict[int, dict[str, Any]]] = {}
            for r in self.records:
                if r["case"] == case:
                    by_side.setdefault(r["side"], {})[r["repeat"]] = r
            for side, found in by_side.items():
                seconds = statistics.median(r["seconds"] for r in found.values())
                useful = statistics.median(r["useful_gflop"] for r in found.values())
                both = [i for i in found if i in by_side.get(ours, {})]
                ratios = sorted(
                    found[i]["seconds"] / by_side[ours][i]["seconds"] for i in both
                ) or [float("nan")]
                rows.append(
                    {
                        "case": case,
                        "side": side,
                        "median_s": seconds,
                        "ratio_to_ours": statistics.median(ratios),
                        "ratio_range": [ratios[0], ratios[-1]],
                        "share_of_matmul_rate": useful / seconds / gflops,
                    }
                )
        self.extra.update(summary=rows, matmul_gflops=gflops)
        self.save()
        print("case, side: median s, ratio to ours (range), share of the matrix-product rate")
        for r in rows:
            low, high = r["ratio_range"]
            print(
                f"{r['case']:>8} {r['side']:>22}: {r['median_s']:8.2f}  {r['ratio_to_ours']:5.2f} "
                f"({low:.2f} to {high:.2f})  {r['share_of_matmul_rate']:.1%}"
            )


def matmul_gflops(dtype: torch.dtype, size: int = 2048) -> float:
    """Rate of a square matrix product here and now."""
    a, b = (torch.randn(size, size).to(dtype) for _ in range(2))
    torch.mm(a, b)
    times = []
    for _ in range(5):
        start = time.perf_counter()
        torch.mm(a, b)
        times.append(time.perf_counter() - start)
    return 2 * size**3 / statistics.median(times) / 1e9


def gflop_per_token(backbone: Backbone) -> float:
    """A forward pass of one token: two operations per weight that multiplies."""
    embeddings = backbone.model.get_input_embeddings().weight.numel()
    weights = sum(p.numel() for p in backbone.model.parameters())
    tied = backbone.model.config.get_text_config().tie_word_embeddings
    return 2 * (weights if tied else weights - embeddings) / 1e9


def messages_of(backbone: Backbone, index: int, tokens: int) -> tuple[Message, ...]:
    """A conversation whose prompt has about ``tokens`` tokens, other words for each index.

    The words come in another order from the first one on: prompts that begin alike would share
    part of their prefill on our side only.
    """
    said = Message("user", f"Hello! I can pay ${100 + index} for it.")
    words = (TEXT * (1 + tokens // 10)).split()
    random.Random(index).shuffle(words)
    low, high = 0, len(words)
    while low < high:  # the longest that fits
        middle = (low + high + 1) // 2
        prompt = (Message("system", " ".join(words[:middle])), said)
        low, high = (
            (middle, high) if len(backbone.chat.prompt_ids(prompt)) <= tokens else (low, middle - 1)
        )
    return Message("system", " ".join(words[:low])), said


def never_stop(backbone: Backbone, prompt: Sequence[int]) -> None:
    """Make the least probable token the only one that ends a response, so all have full length."""
    with torch.no_grad():
        logits = backbone.model(input_ids=torch.tensor([list(prompt)])).logits[0, -1]
    backbone.chat.stop_ids = (int(logits.argmin()),)
