"""Training needs a conversation file and nothing else: games can't even be imported here."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from cli.conftest import Call, conversation
from iterpo.domain import Ending, Outcome
from iterpo.store import write_conversations
from iterpo.testing.tiny_model import tiny_model

WALL = """
import sys

class Wall:
    def find_spec(self, name, path=None, target=None):
        if name.split('.')[:2] in (['iterpo', 'environments'], ['iterpo', 'agents']):
            raise RuntimeError('training reached ' + name)

sys.meta_path.insert(0, Wall())
from iterpo.cli.main import app
app(sys.argv[1:])
"""


def walled(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WALL, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def write_log(path: Path) -> None:
    """Forty conversations, worth 0 to 3.9, no two alike."""
    write_conversations(
        path,
        [
            replace(
                conversation(f"k{i}"), outcome=Outcome(Ending.AGREED, i / 10), system=f"P1 pool={i}"
            )
            for i in range(40)
        ],
    )


@pytest.mark.slow
def test_fit_q_and_improve_work_from_a_file_without_any_game(tmp_path: Path, call: Call) -> None:
    tiny_model(tmp_path / "model")
    write_log(tmp_path / "log.jsonl")
    fitted = walled(
        tmp_path,
        *("fit-q", "log.jsonl", "--policy", "model", "--out", "work", "--gamma", "0.5"),
        *("--set", "epochs=1", "--json"),
    )
    assert fitted.returncode == 0, fitted.stderr
    told = json.loads(fitted.stdout)
    assert told["health"]["rows"] == 90, "three agent actions in each of thirty of the forty"
    assert told["judge_conversations"] == 10
    assert told["judge"] == "10 of 40 conversations are set aside for the judge of iterpo improve"
    manifest = json.loads((tmp_path / "work" / "q" / "manifest.json").read_text())
    assert manifest["facts"]["config"]["gamma"] == 0.5

    better = walled(
        tmp_path,
        *("improve", "log.jsonl", "--policy", "model", "--q", "work/q", "--out", "work", "--json"),
        *("--set", "steps=1", "--set", "prompts_per_step=2", "--set", "group_size=2"),
        *("--set", "sampling.max_new_tokens=4"),
    )
    assert better.returncode == 0, better.stderr
    new = json.loads(better.stdout)
    assert new["parent"] == told["policy"]
    assert new["verdict"] in ("unchanged", "refused")
    assert new["evidence"]["judge_gain"], "judged by what was set aside"
    assert new["evidence"]["off_policy"] is None, "this log holds no log-probabilities"
    assert (tmp_path / "work" / "policy" / "adapter_model.safetensors").is_file()

    pooled = call("fit-q", "log.jsonl", "--policy", "model", "--out", "x", "--set", "pool_rounds=1")
    assert "a run of several rounds" in pooled.stderr
    # what is finished is never overwritten
    again = call("fit-q", "log.jsonl", "--policy", "model", "--out", "work")
    assert again.exit_code == 2
    assert "already holds" in again.stderr


def test_collect_logs_in_the_same_bytes_and_goes_on_where_it_stopped(
    tmp_path: Path, call: Call
) -> None:
    tiny_model(tmp_path / "model")
    asked = [
        *("collect", "--policy", "model", "--option", "prompt_style=compact", "--json"),
        *("--scenarios", "2", "--per-scenario", "2", "--max-new-tokens", "4"),
    ]
    first = call(*asked, "--out", "a")
    assert first.exit_code == 0, first.output
    assert json.loads(first.stdout)["measurement"]["conversations"] == 4
    assert call(*asked, "--out", "b").exit_code == 0
    logs = [(tmp_path / x / "conversations.jsonl").read_bytes() for x in "ab"]
    assert logs[0] == logs[1]

    done = call(*asked, "--out", "a")
    assert done.exit_code == 2, "a finished batch is never overwritten"
    for name in ("manifest.json", "conversations.jsonl"):
        (tmp_path / "b" / name).unlink()
    assert call(*asked, "--out", "b").exit_code == 2, "going on must be asked for"
    other = call(*asked, "--out", "b", "--resume", "--seed", "7")
    assert other.exit_code == 2
    assert "seed" in other.stderr
    assert call(*asked, "--out", "b", "--resume").exit_code == 0
    assert (tmp_path / "b" / "conversations.jsonl").read_bytes() == logs[0]


def test_a_person_plays_the_partner_from_a_pipe(tmp_path: Path, call: Call) -> None:
    tiny_model(tmp_path / "model")
    chat = ["chat", "--policy", "model", "--max-new-tokens", "4"]
    style = ["--option", "prompt_style=compact"]
    refused = call(*chat, *style, stdin="What do you offer?\n\n\\boxed{NO DEAL}\nnever read\n")
    assert refused.exit_code == 0, refused.output
    assert "P2 pool=100" in refused.stdout, "the partner's own instructions"
    assert "refused; agent's reward 0.000" in refused.stdout
    assert refused.stdout.count("you> ") == 2, "an empty line says nothing"

    left = call(*chat, *style, stdin="hello\n")
    assert left.exit_code == 0
    assert "you left" in left.stdout

    broken = call(*chat, stdin="hello\n")
    assert broken.exit_code == 2, "the full prompt does not fit this tiny model"
    assert "prompt_style=compact" in broken.stderr
