"""A served model in either seat: patience, deadlines, evidence, and a key that shows nowhere."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import socket
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from iterpo.agents.base import Reply, Seat
from iterpo.agents.endpoint import Endpoint, EndpointConfig
from iterpo.agents.scripted import ScriptedPartner
from iterpo.collect import Table, collect, collect_into, seats
from iterpo.config import Secret, dump, parse
from iterpo.domain import (
    Conversation,
    Ending,
    Message,
    Role,
    Sampling,
    Split,
    Turn,
    View,
    decisions,
    derive,
)
from iterpo.environments.ultimatum import Ultimatum
from iterpo.errors import ConfigError, EndpointError
from iterpo.models.chat import prompt_sha256
from iterpo.store import from_line, to_line
from iterpo.testing.chat_server import Asked, ChatServer, Script, Sent, completion

CANARY = "sk-canary-0123456789"
GAME = Ultimatum()
KERNELS = GAME.scenarios(Split.TRAIN, 6)
NEUTRAL = Sampling()

Serve = Callable[[Script], ChatServer]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts servers; all are stopped at the end."""
    running: list[ChatServer] = []

    def start(script: Script) -> ChatServer:
        running.append(ChatServer(script).__enter__())
        return running[-1]

    yield start
    for server in running:
        server.__exit__()


def endpoint(
    server: ChatServer | str, sampling: Sampling = NEUTRAL, key: str = CANARY, **config: Any
) -> Endpoint:
    base_url = server if isinstance(server, str) else server.base_url
    config = {"backoff_s": 0.002, "call_timeout_s": 5.0} | config
    return Endpoint(EndpointConfig(base_url, "m", **config), sampling, Secret(key))


def a_seat(role: Role = Role.PARTNER, seed: int = 7) -> Seat:
    return Seat(KERNELS[0], role, 0, 0, seed)


def opening(role: Role = Role.PARTNER) -> View:
    return GAME.view(KERNELS[0], role, [GAME.opening(KERNELS[0])])


def ask(speaker: Endpoint, *, seed: int = 7) -> Reply:
    """One message, in a loop of its own."""

    async def once() -> Reply:
        agent = speaker(a_seat(seed=seed))
        try:
            return await agent.reply(opening())
        finally:
            agent.close()

    return asyncio.run(once())


def script_of(*sent: Sent | str) -> Script:
    """Sends these in turn, then the last one for ever."""
    return lambda asked: sent[min(asked.number, len(sent) - 1)]


# -- one message --------------------------------------------------------------------------------


def test_a_reply_with_its_evidence(serve: Serve) -> None:
    body = completion("Hello", token_ids=[5, 2], logprobs=[-0.5, -1], prompt_token_ids=[1, 2, 3])
    server = serve(script_of(Sent(body)))
    sampling = Sampling(0.7, 0.9, max_new_tokens=9)
    speaker = endpoint(server, sampling)
    reply = ask(speaker)
    assert reply.text == "Hello"
    evidence = reply.sampled
    assert evidence is not None
    assert (evidence.token_ids, evidence.logprobs) == ((5, 2), (-0.5, -1.0))
    assert (evidence.prompt_sha256, evidence.n_prompt_tokens) == (prompt_sha256([1, 2, 3]), 3)
    assert (evidence.sampling, evidence.policy, evidence.finish) == (sampling, "m", "stop")
    assert evidence.logprobs_mode == "raw"
    (asked,) = server.asked
    assert asked.headers["authorization"] == f"Bearer {CANARY}"
    assert asked.body["seed"] == derive(7, 1) % 2**31
    assert (speaker.usage.requests, speaker.usage.prompt_tokens) == (1, 3)
    assert speaker.usage.completion_tokens == 2


def test_under_neutral_settings_raw_log_probs_are_those_of_the_draw(serve: Serve) -> None:
    server = serve(lambda _: Sent(completion("Hi", logprobs=[-1.0])))
    evidence = ask(endpoint(server)).sampled
    assert evidence is not None
    assert (evidence.token_ids, evidence.logprobs_mode) == (None, "processed")


def test_without_a_key_no_header_is_sent(serve: Serve) -> None:
    server = serve(script_of("Hi"))
    ask(Endpoint(EndpointConfig(server.base_url, "m"), NEUTRAL))
    assert "authorization" not in server.asked[0].headers


def test_what_a_server_keeps_back_is_none_in_the_log_and_in_training() -> None:
    """An empty tuple would be read as a response without a token."""
    body = completion("\\boxed{NO DEAL}")
    with ChatServer(lambda _: Sent(body)) as server:
        table = Table(GAME, endpoint(server), ScriptedPartner(GAME))
        (played,) = collect(table, seats(KERNELS[:1], 1, round=0, seed=1))
    turn = played.turns[2]
    assert turn.sampled is not None
    assert (turn.sampled.token_ids, turn.sampled.logprobs) == (None, None)
    assert from_line(to_line(played), "here") == played
    assert decisions(played, 0.9)[0].response.token_ids is None
    assert played.agent_view(3).messages()[-1] == Message("assistant", turn.text, None)


# -- servers that refuse fields -----------------------------------------------------------------


def strict(*known: str) -> Script:
    """Refuses what it does not know, as OpenAI does."""

    def answer(asked: Asked) -> Sent | str:
        odd = sorted(asked.body.keys() - set(known))
        if odd:
            message = f"Unrecognized request arguments supplied: {', '.join(odd)}"
            return Sent({"error": {"message": message, "param": None}}, 400)
        return Sent(completion("Hi", logprobs=[-1.0] if asked.body.get("logprobs") else None))

    return answer


CORE = ("model", "messages", "temperature", "top_p", "max_tokens", "seed", "stream")


def test_a_server_that_refuses_fields_is_asked_without_them_and_only_once(serve: Serve) -> None:
    server = serve(strict(*CORE, "logprobs"))
    speaker = endpoint(server)
    evidence = [ask(speaker).sampled for _ in range(3)]
    assert [e and e.logprobs for e in evidence] == [(-1.0,)] * 3
    assert len(server.asked) == 4
    assert (speaker.usage.requests, speaker.usage.retries) == (4, 0)


def test_pain_40_settings_that_could_not_be_sent_are_told_once(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    """Such a server may apply a checkpoint's own defaults, which the log would not show."""
    speaker = endpoint(serve(strict(*CORE)))
    ask(speaker)
    ask(speaker)
    told = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert len(told) == 1
    assert "takes no min_p, repetition_penalty, top_k" in told[0]


def test_a_server_without_log_probs_is_asked_without(serve: Serve) -> None:
    evidence = ask(endpoint(serve(strict(*CORE)))).sampled
    assert evidence is not None
    assert (evidence.token_ids, evidence.logprobs) == (None, None)


def test_a_refusal_that_names_nothing_is_understood_too(serve: Serve) -> None:
    plain = strict(*CORE)

    def answer(asked: Asked) -> Sent | str:
        sent = plain(asked)
        return Sent("Bad Request", 422) if isinstance(sent, Sent) and sent.status == 400 else sent

    assert ask(endpoint(serve(answer))).text == "Hi"


def test_the_newer_name_of_the_token_limit(serve: Serve) -> None:
    def answer(asked: Asked) -> Sent | str:
        if "max_tokens" in asked.body:
            return Sent({"error": {"message": "Use 'max_completion_tokens' instead."}}, 400)
        return f"at most {asked.body['max_completion_tokens']}"

    assert ask(endpoint(serve(answer))).text == "at most 64"


def test_pain_40_a_setting_that_the_server_does_not_know_is_an_error(serve: Serve) -> None:
    """Left out, the log would claim a top_k that was never applied."""
    server = serve(strict(*CORE))
    with pytest.raises(EndpointError, match="top_k"):
        ask(endpoint(server, Sampling(top_k=20)))


def test_a_later_refusal_costs_no_evidence(serve: Serve) -> None:
    """Once fields were taken, a 400 is about the message (a prompt too long, say)."""
    too_long = Sent({"error": {"message": "maximum context length; logprobs"}}, 400)
    good = Sent(completion("Hi", token_ids=[1], logprobs=[-1.0]))
    server = serve(script_of(good, too_long, good))
    speaker = endpoint(server)
    ask(speaker)
    with pytest.raises(EndpointError, match="maximum context length"):
        ask(speaker)
    evidence = ask(speaker).sampled
    assert evidence is not None
    assert evidence.logprobs == (-1.0,)
    assert len(server.asked) == 3


# -- trouble ------------------------------------------------------------------------------------

PASSING = {
    "429": Sent("slow down", 429),
    "429 with Retry-After": Sent("slow down", 429, {"Retry-After": "0.05"}),
    "408": Sent("", 408),
    "409": Sent("", 409),
    "500": Sent("oops", 500),
    "502 with an error page": Sent("<html>Bad gateway</html>", 502),
    "503": Sent({"error": "loading the model"}, 503),
    "cut body": Sent(completion("Hello there"), cut_at=20),
    "cut before the first byte": Sent(completion("Hello there"), cut_at=0),
    "malformed JSON": Sent('{"choices": [}'),
    "no choices": Sent({"choices": []}),
    "wrong types": Sent({"choices": {"message": []}}),
    "error inside 200": Sent({"error": {"message": "busy"}}),
    "empty reply": Sent(completion("")),
    "null reply": Sent(completion(None)),
    "broken compression": Sent("no gzip", headers={"Content-Encoding": "gzip"}),
}


@pytest.mark.parametrize("trouble", PASSING.values(), ids=PASSING)
def test_passing_trouble_is_survived(serve: Serve, trouble: Sent) -> None:
    server = serve(script_of(trouble, "Hi"))
    speaker = endpoint(server)
    assert ask(speaker).text == "Hi"
    usage = speaker.usage
    assert (usage.requests, usage.retries, usage.failures) == (2, 1, 0)


@pytest.mark.parametrize("trouble", PASSING.values(), ids=PASSING)
def test_lasting_trouble_ends_in_an_error_that_names_the_server(
    serve: Serve, trouble: Sent
) -> None:
    server = serve(script_of(trouble))
    speaker = endpoint(server, retries=1)
    with pytest.raises(EndpointError, match="Given up after 2 tries") as caught:
        ask(speaker)
    assert server.base_url in str(caught.value)
    assert len(str(caught.value)) < 500
    assert len(server.asked) == 2
    assert speaker.usage.failures == 1


LASTING = {
    "401": (Sent({"error": {"message": "Incorrect key"}}, 401), "environment variable MY_KEY"),
    "403": (Sent("no", 403), "environment variable MY_KEY"),
    "404": (Sent({"error": {"message": "no such model"}}, 404), "no such model.*ends in /v1"),
    "redirect": (Sent("", 307, {"Location": "http://other.org/v1"}), "redirects to"),
    "refusal": (Sent(completion(None, refusal="I won't")), "I won't"),
    "tool call": (Sent(completion(None, tool_calls=[{"id": 1}])), "tool call"),
    "no text within the limit": (Sent(completion("", finish="length")), "max_new_tokens"),
    "huge body": (Sent(b"x" * (9 * 2**20)), "more than 8 MiB"),
}


@pytest.mark.parametrize(("trouble", "text"), LASTING.values(), ids=LASTING)
def test_what_would_only_repeat_itself_is_not_asked_again(
    serve: Serve, trouble: Sent, text: str
) -> None:
    server = serve(script_of(trouble))
    with pytest.raises(EndpointError, match=text):
        ask(endpoint(server, api_key_env="MY_KEY"))
    assert len(server.asked) == 1


def test_422_for_what_can_t_be_left_out(serve: Serve) -> None:
    server = serve(script_of(Sent({"detail": [{"loc": ["seed"], "msg": "odd"}]}, 422)))
    with pytest.raises(EndpointError, match=r"HTTP 422.*seed.*extra_body"):
        ask(endpoint(server, logprobs=False))
    assert len(server.asked) == 2  # with and without the fields that can be spared


def test_nobody_listens() -> None:
    with socket.socket() as taken:  # bound, but not listening: connections are refused
        taken.bind(("127.0.0.1", 0))
        base_url = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
        speaker = endpoint(base_url, retries=2)
        with pytest.raises(EndpointError, match=r"ConnectError.*Given up after 3 tries"):
            ask(speaker)
    assert speaker.usage.retries == 2


def test_pain_72_after_an_empty_reply_another_seed_is_tried_once(serve: Serve) -> None:
    server = serve(script_of(Sent(completion(" "))))
    with pytest.raises(EndpointError, match="empty reply"):
        ask(endpoint(server))
    first, second = (a.body["seed"] for a in server.asked)
    assert first != second


def test_other_trouble_is_answered_with_the_same_request(serve: Serve) -> None:
    server = serve(script_of(Sent("", 500), Sent(completion("x"), cut_at=5), "Hi"))
    ask(endpoint(server))
    assert server.asked[0].body == server.asked[1].body == server.asked[2].body


def test_retry_after_is_kept_within_bounds(serve: Serve) -> None:
    server = serve(script_of(Sent("", 429, {"Retry-After": "0.2"}), "Hi"))
    started = time.monotonic()
    ask(endpoint(server))
    assert time.monotonic() - started >= 0.2
    server = serve(script_of(Sent("", 429, {"Retry-After": "3600"}), "Hi"))
    ask(endpoint(server, call_timeout_s=0.3))  # the bound of any wait


# -- deadlines ----------------------------------------------------------------------------------


def test_pain_73_a_silent_server_costs_one_deadline_a_try(serve: Serve) -> None:
    server = serve(script_of(Sent(completion("late"), delay_s=30), "Hi"))
    assert ask(endpoint(server, call_timeout_s=0.15)).text == "Hi"
    assert len(server.asked) == 2


def test_pain_73_a_conversation_ends_by_its_deadline(serve: Serve) -> None:
    server = serve(script_of(Sent(completion("late"), delay_s=30)))
    started = time.monotonic()
    with pytest.raises(EndpointError, match=r"conversation_timeout_s \(0\.3\)"):
        ask(endpoint(server, call_timeout_s=0.2, conversation_timeout_s=0.3, retries=100))
    assert time.monotonic() - started < 2
    assert len(server.asked) == 2


def test_no_wait_begins_that_the_deadline_would_cut(serve: Serve) -> None:
    server = serve(script_of(Sent("", 503, {"Retry-After": "60"})))
    started = time.monotonic()
    with pytest.raises(EndpointError, match=r"HTTP 503.*conversation_timeout_s"):
        ask(endpoint(server, call_timeout_s=100, conversation_timeout_s=30))
    assert time.monotonic() - started < 2


def test_the_deadline_counts_this_side_only(serve: Serve) -> None:
    """Not the other side's thinking, and not the wait for a place."""
    server = serve(lambda _: Sent(completion("Hi"), delay_s=0.1))
    speaker = endpoint(server, concurrency=1, conversation_timeout_s=0.35)

    async def talk(seed: int) -> None:
        agent = speaker(a_seat(seed=seed))
        await agent.reply(opening())
        await asyncio.sleep(0.2)
        await agent.reply(opening())

    async def together() -> None:
        await asyncio.gather(*(talk(seed) for seed in range(3)))

    asyncio.run(together())
    assert len(server.asked) == 6
    assert speaker.usage.failures == 0


def test_a_cancelled_conversation_frees_its_place(serve: Serve) -> None:
    server = serve(script_of(Sent(completion("late"), delay_s=30), "Hi"))
    speaker = endpoint(server, concurrency=1)

    async def impatient() -> str:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(speaker(a_seat()).reply(opening()), 0.1)
        return (await speaker(a_seat()).reply(opening())).text

    assert asyncio.run(impatient()) == "Hi"


# -- event loops --------------------------------------------------------------------------------


def wait_until(true: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 2
    while not true() and time.monotonic() < deadline:
        time.sleep(0.005)
    return true()


@pytest.mark.filterwarnings("error::ResourceWarning")
def test_connections_end_with_their_event_loop(serve: Serve) -> None:
    server = serve(script_of("Hi"))
    speaker = endpoint(server)
    for _ in range(3):
        assert ask(speaker).text == "Hi"
        assert wait_until(lambda: server.connections == 0)
    del speaker
    gc.collect()


def test_connections_end_also_after_an_error(serve: Serve) -> None:
    server = serve(script_of("Hi"))
    speaker = endpoint(server)

    async def fail() -> None:
        await speaker(a_seat()).reply(opening())
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(fail())
    assert wait_until(lambda: server.connections == 0)


def test_connections_can_be_closed_early_and_open_again(serve: Serve) -> None:
    server = serve(script_of("Hi"))
    speaker = endpoint(server)

    async def go() -> None:
        await speaker.aclose()  # nothing is open yet
        for _ in range(2):
            await speaker(a_seat()).reply(opening())
            assert server.connections == 1
            await speaker.aclose()
            assert await asyncio.to_thread(wait_until, lambda: server.connections == 0)

    asyncio.run(go())


# -- batches ------------------------------------------------------------------------------------


def bargainer(asked: Asked) -> Sent:
    """Offers or refuses, by a hash of what it reads and of its seed."""
    draw = derive(json.dumps(asked.body["messages"]), asked.body["seed"])
    text = f"How about \\boxed{{AGREED: split=${40 + draw % 21}}}" if draw % 3 else "Hm, more."
    return Sent(completion(text, token_ids=[draw % 97, 2], logprobs=[-0.5, -0.25]))


def play(server: ChatServer, **config: Any) -> tuple[Conversation, ...]:
    table = Table(GAME, endpoint(server, **config), endpoint(server, **config))
    return collect(table, seats(KERNELS, 4, round=0, seed=3), concurrency=12, attempts=1)


def lines(conversations: tuple[Conversation, ...]) -> str:
    return "".join(map(to_line, conversations))


def test_both_seats_of_a_batch_and_the_same_log_again(serve: Serve) -> None:
    server = serve(bargainer)
    first = play(server)
    assert {c.outcome.ending for c in first} <= {Ending.AGREED, Ending.TURN_LIMIT, Ending.REFUSED}
    assert all(t.sampled for c in first for t in c.turns if not t.scripted)
    assert lines(first) == lines(play(server, concurrency=1))


def test_no_more_requests_at_once_than_allowed(serve: Serve) -> None:
    server = serve(lambda _: Sent(completion("Hm."), delay_s=0.005))
    speaker = endpoint(server, concurrency=3)
    table = Table(GAME, speaker, ScriptedPartner(GAME))
    collect(table, seats(KERNELS, 4, round=0, seed=3), concurrency=24)
    assert server.most_at_once == 3


def test_pain_35_failing_conversations_are_records_and_leave_the_others_alone(
    serve: Serve,
) -> None:
    """The same batch with and without a scenario for which the server always breaks."""
    clean = play(serve(bargainer))
    doomed = GAME.view(KERNELS[2], Role.PARTNER, [GAME.opening(KERNELS[2])]).system
    broken: list[Sent] = [
        Sent("oops", 500),
        Sent(completion("x"), cut_at=9),
        Sent(""),
        Sent("", 401),
    ]

    def answer(asked: Asked) -> Sent:
        if asked.body["messages"][0]["content"] == doomed:
            return broken[int(asked.body["seed"]) % len(broken)]
        return bargainer(asked)

    played = play(serve(answer), retries=1)
    for good, other in zip(clean, played, strict=True):
        if other.kernel_id != KERNELS[2].kernel_id:
            assert other == good
            continue
        assert other.outcome.ending is Ending.INFRASTRUCTURE_FAILURE
        assert other.outcome.reward is None
        assert "EndpointError: http://127.0.0.1" in other.outcome.detail
        assert other.turns == good.turns[: len(other.turns)]


def test_a_second_attempt_of_the_batch_plays_what_failed(serve: Serve) -> None:
    calls: list[int] = []

    def answer(asked: Asked) -> Sent:
        calls.append(asked.number)
        return Sent("", 503) if len(calls) <= 3 else bargainer(asked)

    table = Table(GAME, endpoint(serve(answer), retries=0), ScriptedPartner(GAME))
    played = collect(table, seats(KERNELS, 1, round=0, seed=3), attempts=2)
    assert not [c for c in played if not c.outcome.ending.scored]


# -- the key ------------------------------------------------------------------------------------


def tattle(asked: Asked) -> Sent:
    """Repeats the key in every way that a server has."""
    key = asked.headers["authorization"].removeprefix("Bearer ")
    escaped = "".join(f"\\u{ord(c):04x}" for c in key)
    said = [
        Sent({"error": {"message": f"Incorrect API key provided: {key}"}}, 401),
        Sent(f"x{key}" * 50, 500),
        Sent("", 302, {"Location": f"http://{key}.org/{key}"}),
        Sent({"detail": f"bad header {key}"}, 422),
        Sent(completion(f"my key is {key}")),
        Sent(f"<html>{key}"),
        Sent(json.dumps(completion("KEY")).replace("KEY", escaped)),
        Sent(key, cut_at=len(key) // 2),
    ]
    return said[asked.number % len(said)]


def test_the_key_is_in_nothing_that_is_produced(
    serve: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: Any
) -> None:
    caplog.set_level(logging.DEBUG)
    server = serve(tattle)
    speaker = endpoint(server, retries=0, logprobs=False)
    table = Table(GAME, speaker, ScriptedPartner(GAME))
    played = collect_into(tmp_path, table, seats(KERNELS, 3, round=0, seed=3), attempts=1)
    assert len(server.asked) > 16
    assert all(CANARY in a.headers["authorization"] for a in server.asked)
    assert {c.outcome.ending for c in played} == {Ending.INFRASTRUCTURE_FAILURE}
    produced = [p.read_text() for p in tmp_path.rglob("*") if p.is_file()]
    produced += [r.getMessage() for r in caplog.records]
    produced += [*capfd.readouterr(), repr(speaker.config), repr(vars(speaker))]
    errors = []
    for _ in range(8):
        with pytest.raises(EndpointError) as caught:
            ask(speaker)
        errors.append("".join(traceback.format_exception(caught.value)))
    produced += errors
    assert caplog.records, "the HTTP client logs at DEBUG; without records nothing was looked at"
    assert not [text[:300] for text in produced if CANARY in text]
    assert not [text[:300] for text in errors if CANARY[:14] in text.replace("(hidden)", "")]


def test_a_placeholder_key_may_be_an_ordinary_word(serve: Serve) -> None:
    server = serve(script_of("My pockets are EMPTY."))
    assert ask(endpoint(server, key="EMPTY")).text == "My pockets are EMPTY."


def test_proxies_of_the_environment_are_not_used(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert ask(endpoint(serve(script_of("Hi")))).text == "Hi"


# -- configuration ------------------------------------------------------------------------------

URL = "http://localhost:8000/v1"
MISTAKES = [
    ("no scheme", {"base_url": "localhost:8000"}, "base_url: .*http or https"),
    ("another scheme", {"base_url": "ftp://h/v1"}, "base_url: .*http or https"),
    ("no host", {"base_url": "http:///v1"}, "base_url: .*http or https"),
    ("odd port", {"base_url": "http://h:99999/v1"}, "base_url: is no address"),
    ("empty", {"base_url": ""}, "base_url: .*http or https"),
    ("a password", {"base_url": f"https://me:{CANARY}@h/v1"}, "base_url: .*api_key_env"),
    ("a password without host", {"base_url": f"http:///{CANARY}@h"}, "base_url: .*api_key_env"),
    ("a blank", {"base_url": "http://ho st/v1"}, "base_url: holds a blank"),
    ("a line end", {"base_url": URL + "\n"}, "base_url: holds a blank"),
    ("a mark that turns text around", {"base_url": "http://ho\u202est/v1"}, "base_url: holds"),
    ("no name of a machine", {"base_url": "http://a,b/v1"}, "base_url: .*http or https"),
    ("a query", {"base_url": f"https://h/v1?key={CANARY}"}, r"base_url: .*'\?'"),
    ("the whole path", {"base_url": URL + "/chat/completions"}, "base_url: .*leave out"),
    ("proxy with a password", {"proxy": f"http://me:{CANARY}@h:3128"}, "proxy: "),
    ("no model", {"model": " "}, "model: is empty"),
    ("no concurrency", {"concurrency": 0}, "concurrency: 0; accepted: 1 or more"),
    ("retries", {"retries": -1}, "retries: -1; accepted: 0 or more"),
    ("no time", {"call_timeout_s": 0.0}, "call_timeout_s: 0.0"),
    ("no end", {"conversation_timeout_s": float("inf")}, "conversation_timeout_s: inf"),
    ("a setting in extra_body", {"extra_body": {"temperature": 1}}, "extra_body.temperature"),
    ("one seed for all", {"extra_body": {"seed": 1}}, "extra_body.seed"),
    ("no JSON", {"extra_body": {"x": {1, 2}}}, "extra_body: .*JSON"),
]


@pytest.mark.parametrize(
    ("change", "text"), [row[1:] for row in MISTAKES], ids=[row[0] for row in MISTAKES]
)
def test_a_mistake_is_named(change: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text) as caught:
        EndpointConfig(**{"base_url": URL, "model": "m", **change})
    assert CANARY not in str(caught.value)


def test_all_mistakes_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        EndpointConfig("h", "", concurrency=0)
    assert [line.split(":")[0] for line in str(caught.value).splitlines()] == [
        "base_url",
        "model",
        "concurrency",
    ]


def test_a_plan_can_hold_the_configuration() -> None:
    given = {"base_url": URL, "model": "m", "extra_body": {"seed": None, "x": {"y": 1}}}
    config = parse(EndpointConfig, given, "here")
    assert parse(EndpointConfig, dump(config), "again") == config
    with pytest.raises(ConfigError, match="base_url"):
        parse(EndpointConfig, {"base_url": "h", "model": "m"}, "here")


def test_an_endpoint_can_be_made_where_no_loop_runs_and_told_apart_by_policy(serve: Serve) -> None:
    server = serve(script_of("Hi"))
    speaker = Endpoint(EndpointConfig(server.base_url, "m"), NEUTRAL, policy="r3-01234567")
    evidence = ask(speaker).sampled
    assert evidence is not None
    assert evidence.policy == "r3-01234567"


def test_seeds_differ_by_message_and_conversation(serve: Serve) -> None:
    server = serve(script_of("Hi"))
    speaker = endpoint(server)
    ask(speaker, seed=1)
    ask(speaker, seed=2)

    async def later() -> None:
        turns = (*opening().turns, Turn(Role.PARTNER, "x"), Turn(Role.AGENT, "y"))
        await speaker(a_seat(seed=1)).reply(GAME.view(KERNELS[0], Role.PARTNER, turns))

    asyncio.run(later())
    assert len({a.body["seed"] for a in server.asked}) == 3
