"""play, chat and collect: who sits where, what is printed, and what is refused."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cli.conftest import Call
from iterpo.cli.games import _GAMES_OF_NANO
from iterpo.domain import Role, Split
from iterpo.environments import REGISTRY, make
from iterpo.store import read_conversations
from iterpo.testing.chat_server import ChatServer, Sent
from iterpo.testing.tiny_model import tiny_model

HALF = "\\boxed{AGREED: split=$50}"


def test_play_works_at_once_and_tells_what_it_was_worth(call: Call) -> None:
    done = call("play")
    assert done.exit_code == 0, done.output
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[0].startswith("ultimatum, ult-p100-r6-0: first-counter is the agent, scripted")
    assert [line.partition(">")[0] for line in lines if "> " in line] == [
        "agent (opening)",
        "partner",
        "agent",
    ]
    for part in ("agreed; split 35; agent's reward 0.700", "agent_turn", "message", "J*", "regret"):
        assert part in done.stdout


def test_play_prints_json(call: Call) -> None:
    done = call("play", "--agent", "oracle", "--gamma", "0.8", "--kernel", "2", "--json")
    assert done.exit_code == 0, done.output
    facts = json.loads(done.stdout)
    assert (facts["agent"], facts["partner"], facts["environment"]) == (
        "oracle",
        "scripted",
        "ultimatum",
    )
    assert facts["gamma"] == facts["j_star"]["gamma"] == 0.8
    assert facts["returns"]["agent_turn"] == pytest.approx(facts["j_star"]["agent_turn"])
    assert facts["returns"]["message"] <= facts["j_star"]["message"] + 1e-9


def test_play_chooses_kernel_split_and_draws(call: Call) -> None:
    def played(*options: str) -> dict[str, Any]:
        done = call("play", "--agent", "random-offer", "--json", *options)
        assert done.exit_code == 0, done.output
        facts: dict[str, Any] = json.loads(done.stdout)
        return facts

    kernels = make("ultimatum").scenarios(Split.TRAIN, 2)
    assert played("--kernel", "1", "--split", "train")["kernel_id"] == kernels[1].kernel_id
    assert played() == played()
    texts = {tuple(t["text"] for t in played("--seed", str(n))["turns"]) for n in range(4)}
    assert len(texts) > 1


def test_messages_are_printed_when_they_are_spoken() -> None:
    """The first ones are there while the server still thinks about its own."""
    with ChatServer(lambda asked: Sent({}, 500, delay_s=30)) as server:
        command = ["-m", "iterpo", "play", "--agent", f"{server.base_url}#m"]
        process = subprocess.Popen(
            [sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert process.stdout is not None
        try:
            said = [process.stdout.readline() for _ in range(5)]
            assert said[-1].startswith("partner> ")
            assert process.poll() is None
        finally:
            process.kill()
            process.communicate()


def test_one_ctrl_c_ends_a_chat_that_waits_for_a_line() -> None:
    """asyncio's own handler would only cancel, which a blocking read never notices."""
    # Where the tests run in the background, children would inherit that SIGINT is ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "iterpo", "chat", "--as", "agent"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    finally:
        signal.signal(signal.SIGINT, before)
    assert process.stdout is not None
    try:
        while not process.stdout.readline().startswith("partner> "):
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        process.wait(timeout=20)  # before anything closes its standard input
        _, told = process.communicate()
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130
    assert told.strip() == "iterpo: interrupted."


SPEAKERS = {
    "play --agent scripted": "the agent can't be 'scripted'",
    "play --partner oracle": "the partner can't be 'oracle'",
    "play --agent orcale": "first-counter",
    "play --agent http://localhost:1/v1": "URL#MODEL",
    "play --agent ftp://me:hush@h/v1#m": "api_key_env",
    "play chess": "'chess'",
    "play --split test": "train, heldout",
    "play --top-p 0": "--top-p: given 0.0",
    "play --temperature inf": "--temperature: given inf",
    "play --temperature 1e-300 --top-p 0": "--top-p: given 0.0",
    "play --agent nano --threads 100000": "--threads",
    "play deal_or_no_deal": "ITERPO_DATA",
    "play --agent http://127.0.0.1:9/v1#m": "the conversation broke off",
    "chat --as referee": "agent, partner",
    "chat --as agent --policy nano": "yourself; name your opponent with --partner",
    "chat --partner nano": "yourself; name your opponent with --agent",
    "chat ultimatum --run runs/x": "leave them out",
    "chat --run runs/x": "runs/x",
    "collect --out x --partner first-counter": "can't be 'first-counter'",
    "collect --out x --agent oracle --partner nano": "oracle reads the scripted partner's mind",
    "envs show alliance --data .": "reads no data set",
}


@pytest.mark.parametrize(("line", "part"), SPEAKERS.items(), ids=list(SPEAKERS))
def test_a_wrong_speaker_is_one_clean_message(call: Call, line: str, part: str) -> None:
    done = call(*line.split())
    assert done.exit_code == 2, done.output
    assert part in done.stderr
    assert "Traceback" not in done.output
    assert "hush" not in done.output, "a password is not shown"
    assert not Path("x").exists(), "nothing is claimed for a batch that can't be played"


def test_nano_gets_the_prompts_that_it_reads_and_that_is_said(call: Call) -> None:
    done = call("play", "--agent", "nano", "--max-new-tokens", "8", "--json")
    assert done.exit_code == 0, done.output
    assert "prompt_style=compact" in done.stderr
    assert len(json.loads(done.stdout)["turns"][0]["text"]) < 40

    asked = call("play", "--agent", "nano", "--option", "prompt_style=full", "--json")
    assert asked.stderr == ""
    assert len(json.loads(asked.stdout)["turns"][0]["text"]) > 40
    assert call("play", "--agent", "oracle").stderr == "", "nobody else needs them"


def test_nano_warns_of_games_that_it_has_not_learned(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert set(_GAMES_OF_NANO) == set(REGISTRY), "it has learned what comes with iterpo"
    learned = ("ultimatum", "deal_or_no_deal")
    monkeypatch.setattr("iterpo.cli.games._GAMES_OF_NANO", learned)
    short = ("--partner", "nano", "--max-new-tokens", "4")
    warned = call("play", "alliance", *short, "--option", "prompt_style=full")
    assert warned.exit_code == 0, warned.output
    assert "nano has learned ultimatum, deal_or_no_deal only" in warned.stderr
    assert "has learned" not in call("play", "ultimatum", *short).stderr
    assert "has learned" not in call("play", "alliance", "--agent", "oracle").stderr


def test_facts_are_told_without_a_tail_of_digits(call: Call) -> None:
    for said in (
        call("play", "job_interview", "--agent", "oracle").stdout.splitlines()[1],
        call("envs", "show", "job_interview").stdout.partition("A scenario: ")[2].split("\n\n")[0],
    ):
        assert "agent {'weights': [0." in said
        assert not re.search(r"\d\.\d{4}", said)


def test_a_model_plays_itself(call: Call, tmp_path: Path) -> None:
    tiny = tiny_model(tmp_path / "tiny", max_position_embeddings=4096)
    both = ("--agent", str(tiny), "--partner", str(tiny), "--max-new-tokens", "4")
    done = call("play", *both, "--option", "prompt_style=compact")
    assert done.exit_code == 0, done.output
    assert "J*" not in done.stdout, "no bound is known against a model"


def test_what_a_stranger_says_does_not_steer_the_terminal(call: Call) -> None:
    with ChatServer(lambda asked: f"\x1b[2J\x1b]0;gotcha\x07[red]hi[/red] {HALF}") as server:
        done = call("play", "--agent", f"{server.base_url}#m")
    assert done.exit_code == 0, done.output
    assert "\x1b" not in done.stdout
    assert "\x07" not in done.stdout
    assert f"[red]hi[/red] {HALF}" in done.stdout, "and brackets are no markup"


def test_chat_as_the_partner(call: Call) -> None:
    done = call("chat", "ultimatum", "--agent", "first-counter", stdin=f"hello\n{HALF}\n")
    assert done.exit_code == 0, done.output
    said = [line for line in done.stdout.splitlines() if re.match("(agent|you).*>", line)]
    who = [line.partition(">")[0] for line in said]
    assert who == ["agent (opening)", "you", "agent", "you", "agent"]
    assert "You are the partner in ultimatum" in done.stdout
    assert "agreed; split 50; agent's reward 1.000" in done.stdout
    assert "J*" not in done.stdout, "a person is not the scripted partner"


def test_chat_as_the_agent_against_the_scripted_partner(call: Call) -> None:
    done = call("chat", "--as", "agent", stdin="let me think\n\\boxed{NO DEAL}\n")
    assert done.exit_code == 0, done.output
    assert "You are Player 1" in done.stdout
    assert "you (opening)> " in done.stdout
    assert "refused; agent's reward 0.000" in done.stdout
    assert "regret" in done.stdout


def test_leaving_a_chat_is_no_failure(call: Call) -> None:
    done = call("chat", "--as", "agent", stdin="")
    assert done.exit_code == 0
    assert "you left" in done.stdout


def test_chat_takes_the_game_and_the_other_side_from_a_run(call: Call, run_folder: Path) -> None:
    done = call("chat", "--run", run_folder, "--as", "agent", stdin="")
    assert done.exit_code == 0, done.output
    assert "P1 pool=100" in done.stdout, "the run plays with compact prompts"
    other = call("chat", "--run", run_folder, "--agent", "oracle", stdin="")
    assert other.exit_code == 2
    assert "scripted partner's mind" in other.stderr


def test_collect_logs_any_pair(call: Call) -> None:
    few = ("--scenarios", "3", "--per-scenario", "2")
    done = call("collect", "--agent", "first-counter", "--out", "logs", *few, "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["measurement"]["regret_agent_turn"]["mean"] > 0
    played = read_conversations(Path("logs"))
    assert {c.policy for c in played} == {"first-counter"}

    self_play = ("--policy", "nano", "--partner", "nano", "--threads", "1")
    short = ("--max-new-tokens", "6", "--out", "self")
    done = call("collect", *self_play, *short, *few)
    assert done.exit_code == 0, done.output
    assert "prompt_style=compact" in done.stderr
    assert "fit-q self --policy nano" in done.stdout
    for conversation in read_conversations(Path("self")):
        assert {t.role for t in conversation.turns if t.sampled} == {Role.AGENT, Role.PARTNER}
        assert not conversation.j_star

    again = call("collect", *self_play, *short, *few, "--resume", "--partner", "scripted")
    assert again.exit_code == 2


def test_a_share_of_a_batch_is_explored(call: Call) -> None:
    few = ("--scenarios", "2", "--per-scenario", "2", "--max-new-tokens", "6", "--threads", "1")
    line = ("collect", "--policy", "nano", "--out", "logs", *few, "--explore", "1")
    done = call(*line)
    assert done.exit_code == 0, done.output
    assert "--set off_policy=drop" in done.stdout
    played = read_conversations(Path("logs"))
    assert all(c.explored and c.exploration and c.exploration.action for c in played)
    assert call(*line, "--resume").exit_code == 2, "it is finished"
    wrong = call(*line[:-1], "0.5", "--explore-scope", "turn", "--out", "other")
    assert "scope: given 'turn'; accepted: conversation, action" in wrong.stderr
    assert not Path("other").exists()
    assert "follows no persona" in call(*line, "--policy", "oracle", "--out", "other").stderr
    (Path("logs") / "manifest.json").unlink()
    other = call(*line[:-2], "--resume")
    assert "other settings (explore, explore_scope)" in other.stderr


def test_a_batch_is_not_continued_with_another_partner(call: Call) -> None:
    few = ("--scenarios", "2", "--per-scenario", "1", "--out", "logs")
    with ChatServer(lambda asked: "hm") as server:
        first = call("collect", "--agent", f"{server.base_url}#m", *few)
        assert first.exit_code == 0, first.output
    Path("logs/manifest.json").unlink()  # as if it had been stopped
    other = call("collect", "--agent", "first-counter", *few, "--resume")
    assert other.exit_code == 2
    assert "other settings (agent)" in other.stderr


def test_a_batch_in_which_all_failed_is_played_again(call: Call) -> None:
    """Its cause was the server's; the message says to collect again, so that must work."""
    few = ("--scenarios", "2", "--per-scenario", "1", "--out", "logs")
    replies: dict[bool, Sent | str] = {True: Sent("no key", 401), False: "hm"}
    down = True
    with ChatServer(lambda asked: replies[down]) as server:
        command = ("collect", "--agent", f"{server.base_url}#m", *few)
        first = call(*command)
        assert first.exit_code == 2
        assert "collect again" in first.stderr
        assert len(read_conversations(Path("logs"))) == 2, "the log says what went wrong"
        down = False
        again = call(*command, "--resume")
    assert again.exit_code == 0, again.output
    assert all(c.outcome.ending.scored for c in read_conversations(Path("logs")))
    finished = call(*command, "--resume")
    assert finished.exit_code == 2
    assert "finished batch" in finished.stderr


def test_failures_among_others_are_told(call: Call) -> None:
    few = ("--scenarios", "8", "--per-scenario", "1", "--out", "logs")
    with ChatServer(lambda a: Sent("no", 401) if "$100" in str(a.body) else "hm") as server:
        done = call("collect", "--agent", f"{server.base_url}#m", *few)
    assert done.exit_code == 0, done.output
    failed = [c for c in read_conversations(Path("logs")) if not c.outcome.ending.scored]
    assert 0 < len(failed) < 8
    assert f"{len(failed)} of 8 conversations failed" in done.stderr
    assert "HTTP 401" in done.stderr


def test_a_file_is_no_folder_to_collect_into(call: Call) -> None:
    Path("taken").write_text("")
    for out in ("taken", "taken/logs"):
        done = call("collect", "--agent", "oracle", "--out", out)
        assert done.exit_code == 2
        assert "lies at a file" in done.stderr


@pytest.mark.parametrize(
    "stdin", [b"hm \xff\n", "h\u00e9 \u2603\n".encode()], ids=["a stray byte", "other letters"]
)
@pytest.mark.parametrize("language", ["C", "C.UTF-8"])
def test_bytes_that_the_terminal_lacks_end_no_chat(stdin: bytes, language: str) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "utf8=0", "-m", "iterpo", "chat", "--as", "agent"],
        input=stdin,
        capture_output=True,
        env=os.environ | {"LC_ALL": language, "PYTHONCOERCECLOCALE": "0"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert b"you left" in done.stdout, done.stdout


def test_a_chat_whose_input_was_closed_is_left(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("iterpo.cli.chat.sys", SimpleNamespace(stdin=None, stdout=sys.stdout))
    done = call("chat", "--as", "agent")
    assert "you left" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "stdin"),
    [
        (["play", "--agent", "random-offer"], ""),
        (["chat", "--as", "agent"], "hm\n"),
        (["chat", "--agent", "first-counter"], "hm\n"),
        (["collect", "--agent", "oracle", "--scenarios", "2", "--out", "x"], ""),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_whoever_seats_no_model_needs_no_torch(
    arguments: list[str], stdin: str, tmp_path: Path
) -> None:
    code = (
        "import sys\n"
        "from iterpo.cli.main import app\n"
        f"try: app({arguments!r})\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.data
@pytest.mark.parametrize("name", ["casino", "craigslist", "deal_or_no_deal"])
def test_what_was_read_is_shown_with_its_checksums(call: Call, name: str) -> None:
    data = Path(__file__).parents[2] / ".." / "shared" / "data"
    if not data.is_dir():
        pytest.skip("../shared/data is absent")
    done = call("envs", "show", name, "--data", data)
    assert done.exit_code == 0, done.output
    for part in ("Data of the train split", "Data of the heldout split", "the published file"):
        assert part in done.stdout
    facts = json.loads(call("envs", "show", name, "--data", data, "--json").stdout)
    for report in facts["data"].values():
        assert report["rows"] > 0
        assert report["counts"]
        assert all(report["published"].values())
        assert report["sha256"]
