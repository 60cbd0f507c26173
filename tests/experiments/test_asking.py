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
from iterpo.errors import ArtifactError, ConfigError, EndpointError
from iterpo.experiments.asking import ask, question_key
from iterpo.experiments.speakers import Served
from iterpo.measure.judging import Question
from iterpo.testing.chat_server import Asked, ChatServer, Script, Sent

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
    assert (answers.asked, answers.failed) == (6, 0)
    assert answers.raw[question_key(QUESTIONS[3], wise)] == "about Talk 3"
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


def test_nothing_is_asked_twice(serve: list[ChatServer], tmp_path: Path) -> None:
    path = tmp_path / "judge.jsonl"
    wise = judge(serve, echo)
    first = ask(path, [*QUESTIONS[:4], QUESTIONS[0]], wise)
    assert len(serve[0].asked) == 4
    # killed in the middle of a line, and gone on with at another address
    whole = path.read_text().splitlines(keepends=True)
    path.write_text("".join(whole[:2]) + whole[2][:30])
    elsewhere = judge(serve, echo)
    second = ask(path, QUESTIONS, elsewhere)
    assert second.asked == 4
    assert len(serve[1].asked) == 4
    assert second.raw.items() >= first.raw.items()
    assert len(path.read_text().splitlines()) == 6
    assert ask(path, QUESTIONS, elsewhere).asked == 0


@pytest.mark.parametrize("what", ["prompt", "system", "model", "temperature"])
def test_whatever_could_change_an_answer_asks_anew(
    serve: list[ChatServer], tmp_path: Path, what: str
) -> None:
    path, wise, asked = tmp_path / "judge.jsonl", judge(serve, echo), QUESTIONS[0]
    ask(path, [asked], wise)
    if what in ("prompt", "system"):
        asked = replace(asked, **{what: "other"})
    elif what == "model":
        wise = replace(wise, endpoint=replace(wise.endpoint, model="wiser"))
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
    assert (len(answers.raw), answers.failed) == (4, 2)
    assert "wise" in answers.why
    broken.clear()
    again = ask(path, QUESTIONS, wise)
    assert (len(again.raw), again.asked, again.failed) == (6, 2, 0)


def test_a_busy_server_is_asked_again_at_once(serve: list[ChatServer], tmp_path: Path) -> None:
    wise = judge(serve, lambda a: Sent("busy", 503) if a.number == 0 else echo(a))
    answers = ask(tmp_path / "judge.jsonl", QUESTIONS, wise)
    assert (len(answers.raw), answers.failed) == (6, 0)


def test_a_dead_server_is_not_asked_for_everything(serve: list[ChatServer], tmp_path: Path) -> None:
    many = [replace(QUESTIONS[0], prompt=f"{i}") for i in range(50)]
    wise = judge(serve, lambda _: Sent("no", 400))
    path = tmp_path / "judge.jsonl"
    with pytest.raises(EndpointError, match="answered none of"):
        ask(path, many, wise)
    # at most three questions were on their way when the second failed, each put twice
    assert len(serve[0].asked) <= 6
    assert not path.exists()


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
