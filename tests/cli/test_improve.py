"""``iterpo improve``: a verdict that outlives a kill, and claims no more than is known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cli.conftest import Call
from cli.test_training_from_a_log import write_log
from iterpo.methods.workspace import FolderWorkspace
from iterpo.store import read_conversations, write_conversations
from iterpo.testing.tiny_model import tiny_model

QUICK = [
    *("--set", "steps=1", "--set", "prompts_per_step=2", "--set", "group_size=2"),
    *("--set", "sampling.max_new_tokens=4"),
]


@pytest.fixture
def improve(tmp_path: Path, call: Call) -> Any:
    """``improve("out")`` after a Q was fitted to log.jsonl."""
    tiny_model(tmp_path / "model")
    write_log(tmp_path / "log.jsonl")
    fitted = call(
        *("fit-q", "log.jsonl", "--policy", "model", "--out", "work", "--set", "epochs=1"),
        *("--set", "heads=2", "--set", "hidden=8", "--set", "holdout_fraction=0"),
    )
    assert fitted.exit_code == 0, fitted.output
    return lambda out, *more, log="log.jsonl": call(
        *("improve", log, "--policy", "model", "--q", "work", "--out", out, *QUICK, *more)
    )


def test_a_verdict_that_was_interrupted_is_gone_on_with_alone(
    improve: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = FolderWorkspace.verdict

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(FolderWorkspace, "verdict", killed)
    assert improve("out").exit_code != 0
    policy = {p: p.read_bytes() for p in (tmp_path / "out/policy").iterdir()}
    assert policy
    assert not (tmp_path / "out/verdict.json").exists()

    other = improve("out", "--set", "seed=7")
    assert other.exit_code == 2
    assert "already holds a policy, from another settings" in other.stderr

    monkeypatch.setattr(FolderWorkspace, "verdict", real)
    gone_on = improve("out", "--json")
    assert gone_on.exit_code == 0, gone_on.output
    assert {p: p.read_bytes() for p in (tmp_path / "out/policy").iterdir()} == policy
    told = json.loads(gone_on.stdout)
    stored = json.loads((tmp_path / "out/verdict.json").read_text())
    assert stored == {k: v for k, v in told.items() if k != "policy"}
    assert stored["evidence"]["judge_gain"], "by what was set aside of this very log"

    monkeypatch.setattr(FolderWorkspace, "improve", killed)
    again = improve("out", "--json")
    assert (again.exit_code, json.loads(again.stdout)) == (0, told)
    assert "nothing was computed" in again.stderr
    (tmp_path / "out/improve.json").unlink()
    old = improve("out")
    assert old.exit_code == 2, "of an earlier version: what it was made from is not known"
    assert "already holds a policy; name another --out" in old.stderr


def test_nothing_is_unseen_where_q_was_fitted_on_another_log(improve: Any, tmp_path: Path) -> None:
    talks = read_conversations(tmp_path / "log.jsonl")
    write_conversations(tmp_path / "fewer.jsonl", talks[:38])
    found = improve("fewer", "--json", log="fewer.jsonl")
    assert found.exit_code == 0, found.output
    told = json.loads(found.stdout)
    assert told["evidence"]["notes"][0].startswith("Q was fitted on another log than this one")
    assert (told["evidence"]["independent"], told["evidence"]["judge_gain"]) == (False, None)
    assert told["verdict"] != "improved"

    manifest = tmp_path / "work/q/manifest.json"
    facts = json.loads(manifest.read_text())
    del facts["facts"]["log_sha256"]  # as earlier versions stored it
    manifest.write_text(json.dumps(facts))
    old = json.loads(improve("old", "--json").stdout)
    assert "does not say what log it was fitted on" in old["evidence"]["notes"][0]
    assert old["evidence"]["judge_gain"] is None
