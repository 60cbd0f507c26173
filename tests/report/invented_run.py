"""A finished run whose words are hostile: written by hand, with numbers that can be worked out."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from cli.conftest import conversation
from iterpo.artifacts import seal
from iterpo.domain import Conversation, Outcome
from iterpo.experiments.events import Report
from iterpo.experiments.loop import run as run_plan
from iterpo.experiments.plan import load_plan
from iterpo.measure import measure
from iterpo.store import MetricsTable, write_conversations

__all__ = ["HOSTILE", "PAYLOADS", "finished_run", "records_file"]

PAYLOADS = (
    "<script>document.title='owned'</script>",
    "<img src=x onerror=\"document.title='owned'\">",
    '=HYPERLINK("http://evil.example","x")',
    "| a | b |\n|---|---|\n[x](javascript:alert(1)) `code` ${7*7} {{ 7*7 }} \x1b[31m \u202e",
    "</p></li></ol></style><svg onload=\"document.title='owned'\">",
)
HOSTILE = " ".join(PAYLOADS)
WORTH = {0: 0.5, 1: 0.75}
"""Reward of an agreement in each round."""


def played(i: int, split: str) -> list[Conversation]:
    """Two kernels, two conversations each; the second of each ends without agreement."""
    out = []
    for kernel in ("a", "b"):
        for replica in range(2):
            c = conversation(f"{split}-{kernel}-<i>k</i>", replica, agreed=replica == 0)
            turns = (c.turns[0], replace(c.turns[1], text=HOSTILE), *c.turns[2:])
            end = c.outcome
            if replica == 0:
                terms = {"=split": "<b>50</b>"}
                end = Outcome(end.ending, WORTH[i] + (kernel == "b") * i * 0.1, terms)
            out.append(replace(c, turns=turns, outcome=end, round=i, policy=f"r{i}-<u>"))
    return out


def health(i: int) -> dict[str, Any]:
    bins = [
        {"n": 12, "predicted": 0.1 * k, "observed": 0.1 * k + 0.01 * i, "lowest": 0, "highest": 1}
        for k in range(4)
    ]
    turns = [
        {"t": t, "n": n, "pearson": 0.5 - 0.1 * t, "mean_q": 0.4, "mean_return": 0.5, "mse": 0.1}
        for t, n in ((1, 30), (2, 12), (3, 4))
    ]
    fit = {"pearson": 0.5, "spearman": 0.4, "r2": 0.2, "mse": 0.1, "variance": 0.125}
    return {
        "rows": 48,
        "fit": {**fit, "slope": 1.1, "intercept": 0.0, "bins": bins, "turns": turns},
    }


def phase(folder: Path, key: str, lock_fd: int, report: Report) -> None:
    place, name = folder / key, key.rpartition("/")[2]
    place.mkdir(parents=True)
    told: dict[str, Any] = {}
    if name == "deploy":
        i = int(key[6])
        told = {"policy": f"r{i}-<u>"}
        for split in ("train", "heldout"):
            talks = played(i, split)
            write_conversations(place / split / "conversations.jsonl", talks)
            seal(place / split, "conversations", {})
            told[split] = measure(talks).to_dict()
    elif name == "update":
        why = f"better: {PAYLOADS[0]}"
        told = {"q_health": health(0), "verdict": "improved", "why": why, "evidence": {"kl": 0.2}}
        table = MetricsTable(place / "metrics" / "improve-metrics.jsonl", round=0, phase="improve")
        for step in (1, 2, 3):
            table.record(step, {"reward": 0.1 * step, "completion_tokens": 8.0})
    seal(place, name, told)


def finished_run(folder: Path, *settings: str) -> Path:
    """One update; J of round 1 is higher."""
    run_plan(load_plan("smoke", settings), folder, execute=phase)
    return folder


def records_file(
    path: Path, *, key: str = "arm", seeds: int = 3, games: tuple[str, ...] = ("g1", "<b>g2</b>")
) -> Path:
    """Records without kernels: J rises by 0.1 + seed / 100, the control's doesn't."""
    rows = []
    for game in games:
        for seed in range(seeds):
            for name, gain in (("iterpo", 0.1 + seed / 100), ("shuffled-returns", 0.0)):
                for i in (0, 1):
                    for split in ("train", "heldout"):
                        j = 0.5 + i * gain
                        row = {"game": game, key: name, "seed": seed, "round": i, "split": split}
                        row |= {"selected": i == 1, "J_agent_turn": j, "J_star": 1.0, "J_se": 0.02}
                        rows.append(row | {"agreement": 0.8, "turns": 2.0, "reward": j + 0.1})
    path.write_text(json.dumps({"meta": {"versions": {"iterpo": "0.0.9"}}, "records": rows}))
    return path
