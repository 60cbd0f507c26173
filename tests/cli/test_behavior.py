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
from iterpo.testing.chat_server import Asked, ChatServer, Sent, completion

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


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs whose conversations are put in later, as running takes longer than copying."""
    folder = tmp_path_factory.mktemp("played")
    for name, n in (("ji", 2), ("broad", 12)):
        settings = ["environment.name=job_interview", f"heldout.scenarios={n}", "rounds=1"]
        run_plan(load_plan("smoke", settings), folder / name, execute=fake_phase)
    return folder


@pytest.fixture
def interviews(tmp_path: Path, played: Path) -> Path:
    """Round 0 never gives way; round 1, the best, does on the salary in 3 of 4 conversations."""
    folder = tmp_path / "runs" / "ji"
    shutil.copytree(played / "ji", folder)
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
    row = r"targeted_concession\W+rule\W+2 \(4\+4\)\W+0.0%\W+75.0%\W+\+75.0 \[-100.0, \+100.0\]"
    assert re.search(row, shown)
    assert "needs a judge (--judge URL#MODEL): splits_difference, reveals_priorities" in shown
    assert "pi_1 (rule), ji-" in shown


FORM = re.compile(r'"(\w+)": \[<numbers>\]')


def answers(asked: Asked) -> str | Sent:
    """Finds every concession but one, and breaks down over the conversation without any."""
    prompt = asked.body["messages"][-1]["content"]
    form: dict[str, list[int]] = {key: [] for key in FORM.findall(prompt)}
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
        "both": 3,
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
    assert "5 of 8 conversations coded, 3 unreadable, 0 not had" in result.stdout
    told = found["judge"]
    assert (told["coded"], told["unreadable"], told["not_had"], told["asked_now"]) == (5, 3, 0, 2)
    assert "first unreadable: no JSON object, but 'Sure! {" in result.stderr
    by = rows(found)
    # what is left of round 1 is one conversation of one kernel
    assert by[("targeted_concession", "judge")]["after"]["n"] == 1
    assert by[("targeted_concession", "rule")]["after"]["n"] == 4
    assert by[("targeted_concession", "judge")]["kappa"]["conversations"] == 5


@pytest.mark.parametrize(
    ("sent", "advice"),
    [
        (Sent("boom", 500), "look at the server"),
        (Sent({"error": {"message": "too long"}}, 400), "correct the setting that it names"),
        (Sent("who?", 404), "check base_url (it usually ends in /v1)"),
        (Sent("key?", 401), "the server wants another key"),
        (Sent("", 307, {"location": "http://x/v1"}), "give the final address as base_url"),
        (
            Sent(completion("", finish="length")),
            "raise max_new_tokens, or switch",
        ),
        (Sent(completion("", finish="content_filter")), "take another model"),
        (Sent("late", delay_s=5), "no answer within 0.1 s"),
    ],
    ids=lambda x: f"{x.status}-{x.delay_s}" if isinstance(x, Sent) else None,
)
def test_a_judge_that_codes_nothing_is_told_and_the_rules_stand(
    interviews: Path, call: Call, monkeypatch: pytest.MonkeyPatch, sent: Sent, advice: str
) -> None:
    monkeypatch.setattr("iterpo.cli.behavior._RETRIES", 0)
    with ChatServer(lambda _: sent) as server:
        spec = ("--judge", f"{server.base_url}#wise", "--timeout", "0.1" if sent.delay_s else "9")
        result = call("behavior", interviews, *spec)
    assert result.exit_code == 1
    assert "the judge coded nothing; what the rules say stands" in result.stderr
    assert advice in result.stderr
    assert "needs a judge (the judge coded no kernel at both rounds; --judge" in result.stdout
    stored = (interviews / "behavior" / "behavior.json").read_text()
    found = json.loads(stored)
    assert {by for _, by in rows(found)} == {"rule"}
    # also what a rule codes, too, since its row of the judge is not there
    assert {"asks_priorities", "targeted_concession"} <= set(found["needs_judge"])
    assert not any("kappa" in row for row in found["rows"])
    assert (found["judge"]["coded"], found["judge"]["not_had"]) == (0, 8)
    assert "call_timeout_s is --timeout, max_new_tokens is --max-tokens" in result.stderr


def test_the_options_reach_the_server(interviews: Path, call: Call) -> None:
    def slow(asked: Asked) -> Sent:
        return Sent(completion(str(answers(asked))), delay_s=0.05)

    kernels = [s.kernel_id for s in GAME.scenarios(Split.HELDOUT, 2)]
    fill(interviews, 1, [talk(k, 1, r, 30, 31 + r) for k in kernels for r in range(9)])
    for most in ("1", "3"):
        with ChatServer(slow) as server:
            spec = (f"{server.base_url}#wise", "--concurrency", most, "--max-tokens", "77")
            assert call("behavior", interviews, "--judge", *spec).exit_code == 0
        assert server.most_at_once == int(most)
        body = server.asked[0].body
        assert (body["max_tokens"], body["temperature"]) == (77, 0.0)
        assert "seed" not in body


@pytest.fixture
def broad(tmp_path: Path, played: Path) -> Path:
    """Twelve kernels with one conversation a round, all of them different."""
    folder = tmp_path / "runs" / "broad"
    shutil.copytree(played / "broad", folder)
    kernels = [s.kernel_id for s in GAME.scenarios(Split.HELDOUT, 12)]
    for i in (0, 1):
        fill(folder, i, [talk(k, i, 0, 20 + 2 * j + i) for j, k in enumerate(kernels)])
    return folder


def blind(asked: Asked) -> str:
    """Finds nothing anywhere."""
    return json.dumps({key: [] for key in FORM.findall(str(asked.body["messages"]))})


def read_kept(folder: Path) -> list[str]:
    return (folder / "behavior" / "judge.jsonl").read_text().splitlines()


def test_a_sample_of_kernels_is_the_same_at_both_rounds(broad: Path, call: Call) -> None:
    with ChatServer(blind) as server:
        spec = ("--judge", f"{server.base_url}#wise", "--json")
        few = json.loads(call("behavior", broad, *spec, "--kernels", "4").stdout)
        assert len(server.asked) == 8
        more = json.loads(call("behavior", broad, *spec, "--kernels", "6").stdout)
        assert len(server.asked) == 12  # the smaller sample is a part of the larger one
    assert (few["conversations"], few["kernels"]) == ([4, 4], {"compared": 4, "shared": 12})
    for row in few["rows"]:
        assert (row["difference"]["clusters"], row["before"]["n"], row["after"]["n"]) == (4, 4, 4)
    assert more["judge"]["asked_now"] == 4
    names = [s.kernel_id for s in GAME.scenarios(Split.HELDOUT, 12)]
    prompts = [json.loads(line)["prompt"] for line in read_kept(broad)]
    drawn = {(int(re.findall(r"Salary=(\d+)", p)[0]) - 20) // 2 for p in prompts}
    assert len(drawn) == 6
    for first in (names[:6], sorted(names)[:6]):
        assert drawn != set(map(names.index, first)), "a sample, not whatever comes first"
    shown = call("behavior", broad, "--kernels", "4").stdout
    assert "4 and 4 conversations on 4 of 12 kernels (a sample)" in shown


def test_who_dies_in_the_middle_leaves_pairs(broad: Path, call: Call) -> None:
    """Kernel by kernel, both rounds in turn; and then it is left alone."""
    dead = Sent("gone", 400)
    with ChatServer(lambda a: blind(a) if a.number < 7 else dead) as server:
        spec = ("--judge", f"{server.base_url}#wise", "--concurrency", "1")
        result = call("behavior", broad, *spec)
        found = json.loads((broad / "behavior" / "behavior.json").read_text())
        assert result.exit_code == 0, result.output
        assert len(server.asked) == 15  # 7 answers, then 8 failures in a row
        told = found["judge"]
        assert (told["coded"], told["unreadable"], told["not_had"]) == (7, 0, 17)
        assert (told["asked_now"], told["failed_now"], told["stopped"]) == (15, 8, True)
        row = rows(found)[("asks_priorities", "judge")]
        assert (row["difference"]["clusters"], row["before"]["n"]) == (3, 3)
        assert "failed so often in a row that the rest was not asked" in result.stderr
        server.script = blind
        again = json.loads(call("behavior", broad, *spec, "--json").stdout)["judge"]
    assert (again["coded"], again["not_had"], again["asked_now"]) == (24, 0, 17)


def test_both_rounds_of_a_kernel_are_asked_about_in_turn(interviews: Path, call: Call) -> None:
    kernels = [s.kernel_id for s in GAME.scenarios(Split.HELDOUT, 2)]
    for i in (0, 1):
        talks = [
            talk(k, i, r, 20 + 10 * j + 2 * r + i) for j, k in enumerate(kernels) for r in (0, 1, 2)
        ]
        fill(interviews, i, talks)
    with ChatServer(blind) as server:
        spec = ("--judge", f"{server.base_url}#wise", "--concurrency", "1")
        assert call("behavior", interviews, *spec).exit_code == 0
    said = [str(a.body["messages"]) for a in server.asked]
    salaries = [int(re.findall(r"Salary=(\d+)", prompt)[0]) for prompt in said]
    assert sorted(salaries[:6]) in (list(range(20, 26)), list(range(30, 36)))  # one kernel first
    assert [s % 2 for s in salaries] == [0, 1] * 6


def test_equal_answers_to_all_questions_are_told(broad: Path, call: Call) -> None:
    with ChatServer(blind) as server:
        spec = ("--judge", f"{server.base_url}#wise")
        result = call("behavior", broad, *spec, "--kernels", "3")
        assert "are the same text" not in result.stderr  # so few may well be
        result = call("behavior", broad, *spec, "--kernels", "4")
    assert "all 8 answers of the judge are the same text" in result.stderr


def test_a_judge_that_repeats_the_form_codes_nothing(broad: Path, call: Call) -> None:
    def parrot(asked: Asked) -> str:
        return str(asked.body["messages"][-1]["content"].split("\n")[-2])

    with ChatServer(parrot) as server:
        result = call("behavior", broad, "--judge", f"{server.base_url}#wise")
    assert result.exit_code == 1
    assert "0 of 24 conversations coded, 24 unreadable, 0 not had" in result.stdout
    again = call("behavior", broad, "--judge", f"{server.base_url}#wise", "--json")
    assert again.exit_code == 1
    assert "the judge coded nothing; what the rules say stands. no JSON object" in again.stderr
    assert json.loads(again.stdout)["judge"]["asked_now"] == 0


def test_what_was_cut_off_is_called_so(interviews: Path, call: Call) -> None:
    def long(asked: Asked) -> Sent | str:
        good = str(answers(asked))
        short = asked.body["max_tokens"] < 100
        return Sent(completion(good[:9], finish="length")) if short and "[4]" in good else good

    with ChatServer(long) as server:
        spec = ("--judge", f"{server.base_url}#wise")
        result = call("behavior", interviews, *spec, "--max-tokens", "50")
        assert "3 unreadable (3 of them cut off)" in result.stdout
        assert "first unreadable: cut off at the limit of 50 tokens" in result.stderr
        assert "a larger --max-tokens asks for these again" in result.stderr
        result = call("behavior", interviews, *spec, "--max-tokens", "500", "--json")
    told = json.loads(result.stdout)["judge"]
    assert (told["coded"], told["cut"], told["asked_now"]) == (8, 0, 1)


def test_without_the_judge_its_kept_answers_are_read_again(interviews: Path, call: Call) -> None:
    kept = interviews / "behavior" / "behavior.json"
    with ChatServer(answers) as server:
        out = ("--out", interviews / "behavior")
        call("behavior", interviews, "--judge", f"{server.base_url}#wise")
        before, asked = json.loads(kept.read_text()), len(server.asked)
        result = call("behavior", interviews, *out)
        assert len(server.asked) == asked
    after = json.loads(kept.read_text())
    assert (after["rows"], after["judge"]["coded"]) == (before["rows"], 8)
    assert "its kept answers were read again, and nobody was asked" in result.stdout
    assert "asks_priorities" in call("behavior", interviews).stdout  # the default folder, too
    before["judge"].pop("url")
    kept.write_text(json.dumps(before))
    result = call("behavior", interviews, *out)
    assert "is left out: an older version of iterpo asked it" in result.stderr


def test_a_file_as_folder_is_refused_before_anybody_is_asked(interviews: Path, call: Call) -> None:
    Path("notes").write_text("mine")
    with ChatServer(answers) as server:
        for place in ("notes", "notes/deeper"):
            spec = ("--judge", f"{server.base_url}#wise", "--out", place)
            result = call("behavior", interviews, *spec)
            assert result.exit_code == 2
            assert f"{place} lies at a file, or below one; name another" in result.stderr
        assert not server.asked
    assert Path("notes").read_text() == "mine"


def test_a_talk_in_which_the_agent_is_silent_is_coded_and_not_asked_about(
    interviews: Path, call: Call
) -> None:
    kernels = [s.kernel_id for s in GAME.scenarios(Split.HELDOUT, 2)]
    fill(interviews, 1, [talk(kernels[0], 1, 0), talk(kernels[1], 1, 0, 30, 40)])
    with ChatServer(lambda a: Sent("no", 400)) as server:
        result = call("behavior", interviews, "--judge", f"{server.base_url}#wise")
    told = json.loads((interviews / "behavior" / "behavior.json").read_text())["judge"]
    assert result.exit_code == 1
    assert (told["coded"], told["silent"], told["not_had"]) == (1, 1, 5)


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
        (
            ["--judge", "http://me:secret@x/v1#m"],
            "--judge: base_url: holds a user name or password",
        ),
        (["--judge", "http://me:secret@x/v1#m"], "the key is read from OPENAI_API_KEY"),
        (["--concurrency", "0"], "should be greater than or equal to"),
        (["--timeout", "0"], "should be greater than or equal to"),
        (["--max-tokens", "0"], "should be greater than or equal to"),
        (["--kernels", "0"], "should be greater than or equal to"),
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
