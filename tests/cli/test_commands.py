"""Commands parse, call and print: exit codes, clean errors, tables, JSON."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cli.conftest import Call, fake_phase


def read(text: str) -> Any:
    return json.loads(text)


@pytest.mark.parametrize(
    "arguments",
    [
        ["envs", "--json"],
        ["envs", "show", "ultimatum", "--json"],
        ["envs", "show", "deal_or_no_deal", "--json"],
        ["methods", "--json"],
        ["models", "--json"],
        ["config", "schema"],
        ["config", "check", "smoke", "--json"],
        ["config", "show", "smoke", "--json"],
    ],
    ids=" ".join,
)
def test_reads_print_json(call: Call, arguments: list[str]) -> None:
    done = call(*arguments)
    assert done.exit_code == 0, done.output
    assert read(done.stdout)


@pytest.mark.parametrize(
    "arguments",
    [["envs"], ["envs", "show", "ultimatum"], ["methods"], ["models"], ["config", "show", "demo"]],
    ids=" ".join,
)
def test_reads_print_tables(call: Call, arguments: list[str]) -> None:
    done = call(*arguments)
    assert done.exit_code == 0, done.output
    assert done.stdout.strip()
    assert done.stderr == ""


def test_a_data_sheet_shows_both_views(call: Call) -> None:
    facts = read(
        call("envs", "show", "ultimatum", "--option", "prompt_style=compact", "--json").stdout
    )
    assert set(facts["views"]) == {"agent", "partner"}
    assert facts["views"]["agent"] != facts["views"]["partner"]
    assert {"name": "prompt_style", "value": "compact"}.items() <= {
        k: v for o in facts["options"] if o["name"] == "prompt_style" for k, v in o.items()
    }.items()


ERRORS = {
    "config check nope": "demo, paper, smoke",
    "config check smoke --set q.gama=1 --set rounds=0": "2 mistakes",
    "config check smoke --set environment.name=chess": "'chess'",
    "config check smoke --set environment.name=chess --set rounds=0": "2 mistakes",
    "config check smoke --set environment.options.closing=x --set rounds=0": "2 mistakes",
    "config check smoke --set environment.options.promptstyle=compact": "prompt_style",
    "config check smoke --set nonsense": "key=value",
    "run smoke --set colect.scenarios=3": "Did you mean collect?",
    "show nowhere": "nowhere",
    "measure nowhere.jsonl": "nowhere.jsonl",
    "envs show chess": "'chess'",
    "envs show ultimatum --option closing=always": "unilateral",
    "collect --out x --split test": "train, heldout",
    "collect --out x --env chess": "'chess'",
    "fit-q nowhere.jsonl --policy nano --out x": "nowhere.jsonl",
    "fit-q nowhere.jsonl --policy nano --out x --gamma 2": "gamma",
    "improve nowhere.jsonl --policy nano --q y --out x --set groupsize=1": "group_size",
}


@pytest.mark.parametrize(("line", "part"), ERRORS.items(), ids=list(ERRORS))
def test_a_mistake_is_one_clean_message_and_exit_code_2(call: Call, line: str, part: str) -> None:
    done = call(*line.split())
    assert done.exit_code == 2, done.output
    assert done.stderr.startswith("iterpo: "), done.stderr
    assert part in done.stderr
    assert "Traceback" not in done.output
    assert done.stdout == ""


def test_debug_shows_the_traceback(call: Call) -> None:
    done = call("--debug", "show", "nowhere")
    assert done.exit_code == 2
    assert "Traceback" in done.stderr
    assert "MissingDataError" in done.stderr


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_signal_to_end_says_how_to_go_on(
    call: Call, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    number = getattr(signal, name)
    before = signal.signal(number, signal.SIG_DFL)
    monkeypatch.setattr("iterpo.cli.plans.read_plan", lambda *_: os.kill(os.getpid(), number))
    try:
        done = call("run", "anything")
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, before)
    assert done.exit_code == 128 + number
    assert "ended by a signal" in done.stderr
    assert "--resume" in done.stderr


def test_an_interrupt_says_how_to_go_on(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("iterpo.experiments.results.read_run", interrupted)
    monkeypatch.setattr("iterpo.cli.plans.read_plan", interrupted)
    done = call("run", "x")
    assert done.exit_code == 130
    assert "--resume" in done.stderr
    done = call("show", "x")
    assert done.exit_code == 130
    assert done.stderr.strip() == "iterpo: interrupted.", "there is nothing to resume"


def test_errors_of_our_own_making_are_not_hidden(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bug must not look like a user's mistake."""

    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("iterpo.experiments.results.read_run", broken)
    done = call("show", "x")
    assert done.exit_code == 1
    assert isinstance(done.exception, ZeroDivisionError)


def test_a_missing_training_stack_is_named_with_its_remedy(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(*_: object) -> None:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setattr("iterpo.experiments.results.read_run", absent)
    done = call("show", "x")
    assert done.exit_code == 2
    assert "iterpo[train]" in done.stderr


def test_set_comes_after_the_environment_which_comes_after_the_file(
    call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "p.yaml").write_text("seed: 1\nrounds: 1\nq: {epochs: 1, hidden: 16}\n")
    monkeypatch.setenv("ITERPO__ROUNDS", "2")
    monkeypatch.setenv("ITERPO__Q__EPOCHS", "2")
    monkeypatch.setenv("ITERPO__Q__LEARNING_RATE", "1e-3")
    done = call("config", "show", "p.yaml", "--set", "q.epochs=3", "--json")
    plan = read(done.stdout)
    assert (plan["seed"], plan["rounds"], plan["heldout"]["scenarios"]) == (1, 2, 100)
    assert plan["q"]["epochs"] == 3
    assert plan["q"]["hidden"] == 16
    assert plan["q"]["learning_rate"] == 1e-3


def test_a_wrong_environment_variable_is_named(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ITERPO__Q__GAMA", "1")
    done = call("config", "check", "demo")
    assert done.exit_code == 2
    assert "q.gama=1" in done.stderr


def test_config_show_prints_a_plan_that_reads_back(call: Call, tmp_path: Path) -> None:
    (tmp_path / "again.yaml").write_text(call("config", "show", "demo").stdout)
    first, again = (
        read(call("config", "check", plan, "--json").stdout)["identity"]
        for plan in ("demo", "again.yaml")
    )
    assert first == again


def test_the_schema_describes_every_key_of_a_plan(call: Call) -> None:
    schema = read(call("config", "schema").stdout)
    parts = [schema, *schema["$defs"].values()]
    assert {"rounds", "q", "improve"} <= set(schema["properties"])
    silent = [k for p in parts for k, v in p.get("properties", {}).items() if not v["description"]]
    assert not silent


def test_the_data_folder_of_the_environment_reaches_games_that_need_it(
    call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ITERPO_DATA", "data")
    plan = read(call("config", "show", "paper", "--json").stdout)
    assert plan["environment"]["options"]["data_dir"] == str(tmp_path / "data")
    plan = read(call("config", "show", "demo", "--json").stdout)
    assert "data_dir" not in plan["environment"]["options"], "Ultimatum reads no data"


def test_show_prints_returns_per_turn_pain_56(call: Call, run_folder: Path) -> None:
    done = call("show", run_folder, "--json", "-n", "1")
    assert done.exit_code == 0, done.output
    (shown,) = read(done.stdout)
    actions = [turn for turn in shown["turns"] if "t" in turn]
    assert [turn["t"] for turn in actions] == [1, 2, 3]
    assert [round(turn["return"], 4) for turn in actions] == [0.81, 0.9, 1.0]
    assert all(turn["q"] is None for turn in actions), "no Q was fitted in this run"


def test_show_prints_text_as_it_was_said(call: Call, run_folder: Path) -> None:
    done = call("show", run_folder, "-n", "1")
    assert done.exit_code == 0, done.output
    assert "[say 0]" in done.stdout, "brackets are no markup"
    assert "\\boxed{AGREED: split=$50}" in done.stdout
    assert "0.810" in done.stdout


def test_show_chooses(call: Call, run_folder: Path) -> None:
    def ids(*options: str) -> list[str]:
        done = call("show", run_folder, "--json", "-n", "9", *options)
        assert done.exit_code == 0, done.output
        return [c["kernel_id"] + "/" + str(c["replica"]) for c in read(done.stdout)]

    assert len(ids()) == 4
    assert ids("--split", "heldout", "--kernel", "ult-p100-r6-1") == [
        "ult-p100-r6-1/0",
        "ult-p100-r6-1/1",
    ]
    assert ids("--ending", "turn_limit") == ["ult-p100-r4-0/1", "ult-p100-r4-1/1"]
    assert ids("--ending", "refused") == []
    for wrong in (("--round", "7"), ("--split", "x"), ("--kernel", "x"), ("--ending", "x")):
        done = call("show", run_folder, *wrong)
        assert done.exit_code == 2
        assert wrong[0] in done.stderr


def test_the_table_of_rounds_holds_every_measure(call: Call, run_folder: Path) -> None:
    facts = read(call("show", run_folder, "--rounds", "--json").stdout)
    assert [r["round"] for r in facts["rounds"]] == [0, 1]
    assert facts["best_round"] == 1
    text = call("show", run_folder, "--rounds").stdout
    for part in ("0.400 ± 0.010", "0.600 ± 0.010", "pi_1 *", "agreed", "regret", "J (msg)"):
        assert part in text, text
    for part in ("correlation", "0.200", "Q of pi_0", "peak MB", "1.5"):
        assert part in text, text


def test_a_corrupt_run_is_reported(call: Call, run_folder: Path) -> None:
    log = run_folder / "round-0" / "deploy" / "train" / "conversations.jsonl"
    log.write_text(log.read_text()[:-40])
    done = call("show", run_folder)
    assert done.exit_code == 2
    assert "truncated or changed" in done.stderr


def test_run_prints_the_rounds_and_where_they_lie(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("iterpo.experiments.loop.run.__kwdefaults__", _with_fake())
    done = call("run", "smoke")
    assert done.exit_code == 0, done.output
    assert "runs/smoke" in done.stdout
    assert "pi_1" in done.stdout
    assert "round-0/update" in done.stderr, "progress goes to standard error"

    again = call("run", "smoke")
    assert again.exit_code == 2
    assert "--resume" in again.stderr

    resumed = call("run", "runs/smoke", "--resume", "--json")
    assert resumed.exit_code == 0, resumed.output
    assert read(resumed.stdout)["best_round"] == 1

    other = call("run", "smoke", "--resume", "--set", "seed=5")
    assert other.exit_code == 2
    assert "seed: 0 -> 5" in other.stderr


def test_demo_shows_rounds_a_conversation_before_and_after_and_the_places(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("iterpo.experiments.loop.run.__kwdefaults__", _with_fake())
    done = call("demo")
    assert done.exit_code == 0, done.output
    for part in ("pi_0", "pi_2 *", "agreed", "regret", "Q of pi_1", "result.json"):
        assert part in done.stdout, part
    before, after = (f"ult-p100-r6-0, round {i}, replica 0" for i in (0, 2))
    assert done.stdout.index(before) < done.stdout.index(after), "the same kernel, in this order"
    assert "runs/demo" in done.stdout
    told = re.search(
        r"Held-out J of pi_2 against pi_0: (\S+) \(95% interval (\S+) to (\S+),", done.stdout
    )
    assert told is not None, done.stdout
    mean, low, high = map(float, told.groups())
    assert low <= mean <= high
    assert ("the run made the policy better" in done.stdout) == (low > 0)

    again = call("demo")
    assert again.exit_code == 0, "a finished demo is shown again"
    assert "round-0/deploy: already done" in again.stderr
    other = call("demo", "--seed", "1")
    assert other.exit_code == 0, other.output
    assert "runs/demo-seed-1" in other.stdout


def test_resuming_a_run_folder_ignores_the_environment(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("iterpo.experiments.loop.run.__kwdefaults__", _with_fake())
    assert call("run", "smoke").exit_code == 0
    monkeypatch.setenv("ITERPO__SEED", "9")
    assert call("run", "runs/smoke", "--resume").exit_code == 0


def _with_fake() -> dict[str, Any]:
    from iterpo.experiments.loop import run

    return {**(run.__kwdefaults__ or {}), "execute": fake_phase}


def test_measure_reads_a_log_file(call: Call, run_folder: Path) -> None:
    log = run_folder / "round-0" / "deploy" / "train" / "conversations.jsonl"
    facts = read(call("measure", log, "--json").stdout)
    # kernels of two conversations, one agreed at tau = 3 with reward 1, one at the limit
    assert facts["agreement"]["mean"] == pytest.approx(0.5)
    assert facts["J_agent_turn"]["mean"] == pytest.approx(0.405)
    text = call("measure", log).stdout
    assert "0.405" in text


def test_reading_commands_never_load_torch(run_folder: Path) -> None:
    for arguments in (
        ["show", str(run_folder), "--no-q"],
        ["show", str(run_folder), "--rounds"],
        ["measure", str(run_folder / "round-0" / "deploy" / "train")],
        ["envs", "show", "ultimatum"],
        ["methods"],
        ["models"],
        ["config", "check", "demo"],
    ):
        code = (
            "import sys\n"
            "from iterpo.cli.main import app\n"
            f"try: app({arguments!r})\n"
            "except SystemExit as end: assert not end.code, end.code\n"
            "assert not {'torch', 'transformers'} & set(sys.modules)\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, (arguments, done.stderr)


def test_piped_output_holds_no_colour_codes(run_folder: Path) -> None:
    command = [sys.executable, "-m", "iterpo.cli.main", "show", str(run_folder), "--rounds"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "\x1b" not in done.stdout


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk_under_the_output_is_one_line() -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        done = subprocess.run(
            [sys.executable, "-m", "iterpo", "envs"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 2
    assert "No space left" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_one_method_is_explained_with_its_defaults(call: Call) -> None:
    told = read(call("methods", "mt_ppo", "--json").stdout)["options"]["target_kl"]
    assert told["default"] == 0.05
    assert "KL" in told["meaning"]
    assert "target_kl" in call("methods", "mt_ppo").stdout
    wrong = call("methods", "mt_pp")
    assert wrong.exit_code == 2
    assert "Did you mean mt_ppo?" in wrong.stderr


def test_a_broken_package_hides_no_other_method(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = importlib.metadata.EntryPoint("broken", "not_a_module:Method", "iterpo.methods")
    monkeypatch.setattr("iterpo.domain.plugins.entry_points", lambda group: [broken])
    rows = {row["name"]: row for row in read(call("methods", "--json").stdout)}
    assert "can't be loaded" in rows["broken"]["summary"]
    assert rows["mt_ppo"]["options"]
