"""``iterpo behavior`` on a finished run, with and without a judge."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from cli.conftest import Call, fake_phase
from iterpo.artifacts import seal
from iterpo.domain import Conversation, Ending, Outcome, Role, Split, Turn
from iterpo.environments import make
from iterpo.experiments.loop import run as run_plan
from iterpo.experiments.plan import load_plan
from iterpo.store import write_conversations
from iterpo.testing.chat_server import Asked, ChatServer, Sent

GAME = make("job_interview")
TERMS = "Workplace=Seoul Company=Google Position=Sales"


def talk(kernel: str, i: int, replica: int, *salaries: int) -> Conversation:
    """The recruiter names salaries; the worker finds each too low."""
    turns = [Turn(Role.AGENT, "Job offer.", scripted=True)]
    for salary in salaries:
        turns.append(Turn(Role.PARTNER, "The salary is too low."))
        box = f"\\boxed{{AGREED: Salary={salary} Holiday=4 {TERMS}}}"
        turns.append(Turn(Role.AGENT, f"How is this? {box}"))
    outcome = Outcome(Ending.TURN_LIMIT, 0.0)
    return Conversation(
        f"{i}/{kernel}/{replica}", kernel, GAME.name, tuple(turns), outcome, "own", round=i
    )


def fill(folder: Path, i: int, played: list[Conversation]) -> None:
    """Put other conversations into a sealed round."""
    place = folder / f"round-{i}" / "deploy"
    facts = json.loads((place / "manifest.json").read_text())["facts"]
    shutil.rmtree(place / "heldout")
    (place / "heldout").mkdir(parents=True)
    write_conversations(place / "heldout" / "conversations.jsonl", played)
    seal(place / "heldout", "conversations", {})
    (place / "manifest.json").unlink()
    seal(place, "deploy", facts)


@pytest.fixture
def interviews(tmp_path: Path) -> Path:
    """Round 0 never gives way; round 1, the best, does on the salary in 3 of 4 conversations."""
    folder = tmp_path / "runs" / "ji"
    settings = ["environment.name=job_interview", "heldout.scenarios=2", "rounds=1"]
    run_plan(load_plan("smoke", settings), folder, execute=fake_phase)
    kernels = [s.kernel_id for s in GAME.scenarios(Split.HELDOUT, 2)]
    fill(folder, 0, [talk(k, 0, r, 30) for k in kernels for r in range(2)])
    after = [talk(k, 1, r, 30, 40) for k in kernels for r in range(2)]
    fill(folder, 1, [*after[:3], talk(kernels[1], 1, 1, 30)])
    return folder


def rows(found: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(row["behaviour"], row["by"]): row for row in found["rows"]}


def test_rules_alone(interviews: Path, call: Call) -> None:
    result = call("behavior", interviews, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["environment"], found["rounds"], found["judge"]) == ("job_interview", [1], None)
    shifted = rows(found)[("targeted_concession", "rule")]
    assert (shifted["before"]["mean"], shifted["after"]["mean"]) == (0.0, 0.75)
    assert shifted["difference"]["mean"] == 0.75  # (1 - 0 + 0.5 - 0) / 2
    assert shifted["count_after"]["mean"] == 0.75
    assert shifted["per_turn_after"] == pytest.approx(3 / 7)
    (example, *_) = found["examples"]["targeted_concession"]
    assert (example["message"], example["after"]) == (4, True)
    assert "Salary=40" in example["text"]
    assert {by for _, by in rows(found)} == {"rule"}
    assert not (interviews / "behavior").exists()


def test_the_table_says_what_it_can_not(interviews: Path, call: Call) -> None:
    shown = call("behavior", interviews).stdout
    assert re.search(r"targeted_concession\W+rule\W+0.0%\W+75.0%\W+\+75.0 \[", shown)
    assert "needs a judge (--judge URL#MODEL): splits_difference, reveals_priorities" in shown
    assert "pi_1 (rule), ji-" in shown


def answers(asked: Asked) -> str | Sent:
    """Finds every concession but one, and breaks down over the conversation without any."""
    prompt = asked.body["messages"][-1]["content"]
    form: dict[str, list[int]] = {key: [] for key in json.loads(prompt.split("\n")[-1])}
    if "Salary=40" in prompt:
        return json.dumps({**form, "targeted_concession": [4], "asks_priorities": [2, 4]})
    return json.dumps(form)


def test_a_judge_codes_the_rest_and_is_held_against_the_rules(interviews: Path, call: Call) -> None:
    with ChatServer(answers) as server:
        spec = f"{server.base_url}#wise"
        result = call("behavior", interviews, "--judge", spec, "--json")
        assert result.exit_code == 0, result.output
        found = json.loads(result.stdout)
        asked = len(server.asked)
        again = call("behavior", interviews, "--judge", spec, "--json")
        assert len(server.asked) == asked
    # the kernel and the round are no part of a question, so that equal talks are asked about once
    assert asked == 2
    assert found["judge"]["asked_now"] == 2
    assert json.loads(again.stdout)["rows"] == found["rows"]
    by = rows(found)
    assert by[("asks_priorities", "judge")]["count_after"]["mean"] == 1.5
    assert by[("targeted_concession", "judge")]["kappa"]["kappa"] == 1.0
    # the rule sees an offer that trades in some of the conversations, this judge none
    assert by[("targeted_concession", "judge")]["kappa"]["said_by"] == {
        "neither": 5,
        "rulejudge": 3,
    }
    answered = interviews / "behavior" / "judge.jsonl"
    stored = [json.loads(x) for x in answered.read_text().splitlines()]
    assert {row["model"] for row in stored} == {"wise"}
    assert json.loads((interviews / "behavior" / "behavior.json").read_text())["rows"]


def test_unreadable_answers_are_counted_and_never_guessed(interviews: Path, call: Call) -> None:
    def garbage(asked: Asked) -> str:
        good = answers(asked)
        return f"Sure! {good}" if "Salary=40" in str(good) or "[4]" in str(good) else str(good)

    with ChatServer(garbage) as server:
        result = call("behavior", interviews, "--judge", f"{server.base_url}#wise")
        found = json.loads((interviews / "behavior" / "behavior.json").read_text())
    assert "5 of 8 conversations coded, 3 answers unreadable, 0 not had" in result.stdout
    assert "first unreadable: no JSON object, but 'Sure! {" in result.stderr
    by = rows(found)
    # what is left of round 1 is one conversation of one kernel
    assert by[("targeted_concession", "judge")]["after"]["n"] == 1
    assert by[("targeted_concession", "rule")]["after"]["n"] == 4
    assert by[("targeted_concession", "judge")]["kappa"]["conversations"] == 5


def test_several_seeds_are_pooled_and_their_direction_told(interviews: Path, call: Call) -> None:
    other = interviews.with_name("other")
    shutil.copytree(interviews, other)
    kernels = [s.kernel_id for s in GAME.scenarios(Split.HELDOUT, 2)]
    fill(other, 1, [talk(k, 1, 0, 30) for k in kernels])
    result = call("behavior", interviews, other, "--json")
    shifted = rows(json.loads(result.stdout))[("targeted_concession", "rule")]
    assert shifted["by_run"] == [0.75, 0.0]
    assert shifted["after"]["mean"] == 0.5  # 3 of 6
    assert re.search(r"targeted_concession.*1 of 2", call("behavior", interviews, other).stdout)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--round", "7"], "no finished round 7; there are [0, 1]"),
        (["--split", "dev"], "accepted: train, heldout"),
        (["--judge", "nano"], "accepted: a served model as URL#MODEL"),
        (["--judge", "http://localhost:1/v1"], "names no model"),
    ],
)
def test_what_can_not_be_done_is_said(
    interviews: Path, call: Call, arguments: list[str], why: str
) -> None:
    result = call("behavior", interviews, *arguments)
    assert result.exit_code == 2
    assert why in " ".join(result.stderr.split())
    assert not (interviews / "behavior").exists()


def test_games_are_not_mixed(interviews: Path, run_folder: Path, call: Call) -> None:
    result = call("behavior", interviews, run_folder)
    assert result.exit_code == 2
    assert "job_interview, ultimatum; give one game" in result.stderr


def test_conversations_that_failed_are_left_out_and_counted(interviews: Path, call: Call) -> None:
    kernels = [s.kernel_id for s in GAME.scenarios(Split.HELDOUT, 2)]
    failed = Outcome(Ending.INFRASTRUCTURE_FAILURE)
    good = [talk(k, 1, 0, 30) for k in kernels]
    bad = Conversation("x", kernels[0], GAME.name, good[0].turns[:1], failed, "own", round=1)
    fill(interviews, 1, [*good, bad])
    found = json.loads(call("behavior", interviews, "--json").stdout)
    assert (found["conversations"], found["left_out"]) == ([4, 2], 1)


def test_a_kernel_that_the_plan_does_not_draw_is_no_guess(interviews: Path, call: Call) -> None:
    fill(interviews, 1, [talk("ji-7-1-0", 1, 0, 30)])
    result = call("behavior", interviews)
    assert result.exit_code == 2
    assert "'ji-7-1-0' is none of those that the plan draws" in result.stderr
