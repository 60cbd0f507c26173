"""Asking a judge: kept answers, failures, kills and impatience."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from iterpo.agents.endpoint import EndpointConfig
from iterpo.domain import Sampling
from iterpo.errors import ArtifactError, ConfigError, ResumeError
from iterpo.experiments.asking import Given, ask, question_key, stored
from iterpo.experiments.ledger import hold
from iterpo.experiments.speakers import Served
from iterpo.measure.judging import Question
from iterpo.testing.chat_server import Asked, ChatServer, Script, Sent, completion

QUESTIONS = [Question("Code.", f"Talk {i}", ("offer",), (2,)) for i in range(6)]


def echo(asked: Asked) -> str:
    return f"about {asked.body['messages'][-1]['content']}"


@pytest.fixture
def serve() -> Iterator[list[ChatServer]]:
    running: list[ChatServer] = []
    yield running
    for server in running:
        server.__exit__()


def judge(serve: list[ChatServer], script: Script, **config: object) -> Served:
    serve.append(ChatServer(script).__enter__())
    given = {"concurrency": 2, "retries": 1, "backoff_s": 0.0, "logprobs": False, **config}
    endpoint = EndpointConfig(serve[-1].base_url, "wise", **given)  # type: ignore[arg-type]
    return Served(endpoint, Sampling(temperature=0.0, max_new_tokens=99))


def test_raw_answers_are_kept_with_all_that_led_to_them(
    serve: list[ChatServer], tmp_path: Path
) -> None:
    wise = judge(serve, echo)
    told: list[tuple[int, int, int]] = []
    path = tmp_path / "new" / "judge.jsonl"
    answers = ask(path, QUESTIONS, wise, lambda *n: told.append(n))
    assert (answers.asked, answers.failed, answers.stopped) == (6, 0, False)
    assert answers.given[question_key(QUESTIONS[3], wise)].text == "about Talk 3"
    assert told == [(n, 6, 0) for n in range(7)]
    assert serve[0].most_at_once <= 2
    body = serve[0].asked[0].body
    assert [m["role"] for m in body["messages"]] == ["system", "user"]
    assert (body["model"], body["temperature"], body["max_tokens"]) == ("wise", 0.0, 99)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    row = next(r for r in rows if r["prompt"] == "Talk 3")
    assert row["key"] == question_key(QUESTIONS[3], wise)
    assert (row["model"], row["system"], row["answer"]) == ("wise", "Code.", "about Talk 3")
    assert row["sampling"]["temperature"] == 0.0
    assert (row["url"], row["finish_reason"]) == (serve[0].base_url, "stop")
    assert row["usage"] == {"prompt_tokens": 11, "completion_tokens": 3}
    assert row["served_model"] == ""  # this server does not say


def test_who_answered_and_how_it_ended_is_kept(serve: list[ChatServer], tmp_path: Path) -> None:
    body = {**completion("about", finish="length"), "model": "wise-q4.gguf"}
    del body["usage"]
    wise = judge(serve, lambda _: Sent(body))
    answers = ask(tmp_path / "judge.jsonl", QUESTIONS[:1], wise)
    assert list(answers.given.values()) == [Given("about", True, "wise-q4.gguf")]
    row = json.loads((tmp_path / "judge.jsonl").read_text())
    assert (row["served_model"], row["finish_reason"], row["usage"]) == (
        "wise-q4.gguf",
        "length",
        {},
    )


def test_a_larger_limit_asks_only_for_what_was_cut(serve: list[ChatServer], tmp_path: Path) -> None:
    def script(asked: Asked) -> Sent | str:
        cut = "Talk 1" in echo(asked) and asked.body["max_tokens"] < 200
        return Sent(completion("ab", finish="length")) if cut else echo(asked)

    path, wise = tmp_path / "judge.jsonl", judge(serve, script)
    key = question_key(QUESTIONS[1], wise)
    assert ask(path, QUESTIONS, wise).given[key].cut
    assert ask(path, QUESTIONS, wise).asked == 0
    patient = replace(wise, sampling=replace(wise.sampling, max_new_tokens=200))
    again = ask(path, QUESTIONS, patient)
    assert (again.asked, again.given[key].text, again.given[key].cut) == (1, "about Talk 1", False)
    assert ask(path, QUESTIONS, patient).asked == 0


def test_answers_that_do_not_say_who_gave_them_are_not_used(
    serve: list[ChatServer], tmp_path: Path
) -> None:
    path, wise = tmp_path / "judge.jsonl", judge(serve, echo)
    old = {"key": question_key(QUESTIONS[0], wise), "model": "wise", "answer": "old"}
    path.write_text(json.dumps(old) + "\n")
    answers = ask(path, QUESTIONS[:1], wise)
    assert (answers.asked, [g.text for g in answers.given.values()]) == (1, ["about Talk 0"])
    assert ask(path, QUESTIONS[:1], wise).asked == 0


def test_reading_asks_nobody_and_changes_nothing(serve: list[ChatServer], tmp_path: Path) -> None:
    path, wise = tmp_path / "judge.jsonl", judge(serve, echo)
    assert stored(path, QUESTIONS, wise).given == {}
    ask(path, QUESTIONS[:2], wise)
    path.write_text(path.read_text() + '{"key')  # somebody is writing
    before = path.read_text()
    answers = stored(path, QUESTIONS, wise)
    assert (len(answers.given), answers.asked) == (2, 0)
    assert (len(serve[0].asked), path.read_text()) == (2, before)


def test_two_processes_do_not_ask_the_same(
    serve: list[ChatServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("iterpo.experiments.ledger._LOCK_WAIT_S", 0.0)
    wise = judge(serve, echo)
    ask(tmp_path / "judge.jsonl", QUESTIONS[:1], wise)
    with hold(tmp_path, ".judge.lock"), pytest.raises(ResumeError, match="another process is"):
        ask(tmp_path / "judge.jsonl", QUESTIONS, wise)
    assert len(serve[0].asked) == 1
    with hold(tmp_path):  # a run that works in the same folder is no hindrance
        assert ask(tmp_path / "judge.jsonl", QUESTIONS, wise).asked == 5


def test_questions_are_asked_in_order(serve: list[ChatServer], tmp_path: Path) -> None:
    wise = judge(serve, echo, concurrency=1)
    ask(tmp_path / "judge.jsonl", QUESTIONS[::-1], wise)
    said = [a.body["messages"][-1]["content"] for a in serve[0].asked]
    assert said == [f"Talk {i}" for i in (5, 4, 3, 2, 1, 0)]


def test_nothing_is_asked_twice(serve: list[ChatServer], tmp_path: Path) -> None:
    path = tmp_path / "judge.jsonl"
    wise = judge(serve, echo)
    first = ask(path, [*QUESTIONS[:4], QUESTIONS[0]], wise)
    assert len(serve[0].asked) == 4
    # killed in the middle of a line
    whole = path.read_text().splitlines(keepends=True)
    path.write_text("".join(whole[:2]) + whole[2][:30])
    second = ask(path, QUESTIONS, wise)
    assert second.asked == 4
    assert len(serve[0].asked) == 8
    assert second.given.items() >= first.given.items()
    assert len(path.read_text().splitlines()) == 6
    assert ask(path, QUESTIONS, wise).asked == 0


@pytest.mark.parametrize("what", ["prompt", "system", "model", "temperature", "url"])
def test_whatever_could_change_an_answer_asks_anew(
    serve: list[ChatServer], tmp_path: Path, what: str
) -> None:
    path, wise, asked = tmp_path / "judge.jsonl", judge(serve, echo), QUESTIONS[0]
    ask(path, [asked], wise)
    if what in ("prompt", "system"):
        asked = replace(asked, **{what: "other"})
    elif what == "model":
        wise = replace(wise, endpoint=replace(wise.endpoint, model="wiser"))
    elif what == "url":
        wise = judge(serve, echo)
    else:
        wise = replace(wise, sampling=Sampling(temperature=0.5))
    assert ask(path, [asked], wise).asked == 1


def test_a_failure_is_counted_and_asked_again(serve: list[ChatServer], tmp_path: Path) -> None:
    broken = {"Talk 1": Sent("no", 400), "Talk 2": Sent("late", delay_s=9)}

    def script(asked: Asked) -> Sent | str:
        return broken.get(asked.body["messages"][-1]["content"]) or echo(asked)

    path = tmp_path / "judge.jsonl"
    wise = judge(serve, script, call_timeout_s=0.3, retries=0)
    started = time.monotonic()
    answers = ask(path, QUESTIONS, wise)
    assert time.monotonic() - started < 5
    assert (len(answers.given), answers.failed, answers.stopped) == (4, 2, False)
    assert "wise" in answers.why
    broken.clear()
    again = ask(path, QUESTIONS, wise)
    assert (len(again.given), again.asked, again.failed) == (6, 2, 0)


def test_a_busy_server_is_asked_again_at_once(serve: list[ChatServer], tmp_path: Path) -> None:
    wise = judge(serve, lambda a: Sent("busy", 503) if a.number == 0 else echo(a))
    answers = ask(tmp_path / "judge.jsonl", QUESTIONS, wise)
    assert (len(answers.given), answers.failed) == (6, 0)


@pytest.mark.parametrize("lives_for", [0, 10])
def test_a_dead_server_is_not_asked_for_everything(
    serve: list[ChatServer], tmp_path: Path, lives_for: int
) -> None:
    """Also if it has answered before."""
    many = [replace(QUESTIONS[0], prompt=f"{i}") for i in range(50)]
    wise = judge(serve, lambda a: echo(a) if a.number < lives_for else Sent("no", 400))
    path = tmp_path / "judge.jsonl"
    answers = ask(path, many, wise, patience=3)
    assert answers.stopped
    assert len(answers.given) == lives_for
    # one more was on its way when the third failed
    assert answers.failed in (3, 4)
    assert answers.asked == lives_for + answers.failed
    assert "HTTP 400" in answers.why
    assert path.exists() is bool(lives_for)


def test_failures_between_answers_stop_nothing(serve: list[ChatServer], tmp_path: Path) -> None:
    many = [replace(QUESTIONS[0], prompt=f"{i}") for i in range(20)]
    wise = judge(serve, lambda a: Sent("no", 401) if a.number % 2 else echo(a), concurrency=1)
    answers = ask(tmp_path / "judge.jsonl", many, wise, patience=2)
    assert (answers.stopped, len(answers.given), answers.failed) == (False, 10, 10)


def test_a_file_of_something_else_is_refused(serve: list[ChatServer], tmp_path: Path) -> None:
    path = tmp_path / "judge.jsonl"
    path.write_text('{"id": "c-1"}\n')
    with pytest.raises(ArtifactError, match="line 1"):
        ask(path, QUESTIONS, judge(serve, echo))
    assert not serve[0].asked


def test_no_key_is_sent_to_where_none_is_set(
    serve: list[ChatServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUDGE_KEY", "with blank")
    wise = judge(serve, echo, api_key_env="JUDGE_KEY")
    with pytest.raises(ConfigError, match="JUDGE_KEY"):
        ask(tmp_path / "judge.jsonl", QUESTIONS, wise)
    assert not serve[0].asked
