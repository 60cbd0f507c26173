"""A finished run made by hand, and a way to call the command line in this process."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from iterpo.artifacts import seal
from iterpo.cli.main import app
from iterpo.domain import Conversation, Ending, Outcome, Role, Turn
from iterpo.experiments.events import Report
from iterpo.experiments.loop import run as run_plan
from iterpo.experiments.plan import load_plan
from iterpo.store import write_conversations

Call = Callable[..., Result]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Call:
    """``call("show", "runs/x")`` in an empty folder with a plain environment."""
    import os

    for name in [n for n in os.environ if n.startswith("ITERPO")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)

    def invoke(*arguments: str | Path, stdin: str | None = None) -> Result:
        return CliRunner().invoke(app, [str(a) for a in arguments], input=stdin)

    return invoke


def conversation(kernel: str, replica: int = 0, *, agreed: bool = True) -> Conversation:
    """Three agent actions, outcome worth 1: returns 0.81, 0.9, 1 at gamma 0.9."""
    box = "\\boxed{AGREED: split=$50}"
    turns = [Turn(Role.AGENT, "Split $100?", scripted=True)]
    for i in range(3):
        turns.append(Turn(Role.PARTNER, box if i == 2 and agreed else f"hm {i}"))
        turns.append(Turn(Role.AGENT, box if i == 2 else f"[say {i}]"))
    ending = Ending.AGREED if agreed else Ending.TURN_LIMIT
    outcome = Outcome(ending, 1.0 if agreed else 0.0, {"split": 50} if agreed else {})
    return Conversation(
        id=f"0/{kernel}/{replica}",
        kernel_id=kernel,
        environment="ultimatum",
        turns=tuple(turns),
        outcome=outcome,
        system="P1 pool=100 rounds=6",
        replica=replica,
        j_star={"agent_turn": 1.2, "message": 0.9},
    )


def facts(j: float) -> dict[str, Any]:
    measures = ("J_agent_turn", "J_message", "agreement", "turns", "reward", "regret_agent_turn")
    return {name: {"mean": j, "se": 0.01} for name in measures} | {"conversations": 4}


HEALTH = {
    "rows": 12,
    "fit": {"pearson": 0.5, "spearman": 0.4, "r2": 0.2, "mse": 0.1, "variance": 0.125},
}


def fake_phase(folder: Path, key: str, lock_fd: int, report: Report) -> None:
    """Seals what a phase would have left."""
    place, name = folder / key, key.rpartition("/")[2]
    place.mkdir(parents=True)
    told: dict[str, Any] = {}
    if name == "deploy":
        i = int(key[6])
        told = {"policy": f"r{i}", "train": facts(0.5 + i / 10), "heldout": facts(0.4 + i / 10)}
        for split, kernel in (("train", "ult-p100-r4"), ("heldout", "ult-p100-r6")):
            (place / split).mkdir()
            played = [
                replace(conversation(f"{kernel}-{k}", replica, agreed=replica == 0), round=i)
                for k in range(2)
                for replica in range(2)
            ]
            write_conversations(place / split / "conversations.jsonl", played)
            seal(place / split, "conversations", {})
    elif name == "update":
        told = {"q_health": HEALTH}
    seal(place, name, told)


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "runs" / "made"
    run_plan(load_plan("smoke"), folder, execute=fake_phase)
    timing = {"phase": "round-0/deploy", "wall_s": 1.5, "peak_memory_mb": 300.0}
    (folder / "timings.jsonl").write_text(json.dumps(timing) + "\n")
    return folder
