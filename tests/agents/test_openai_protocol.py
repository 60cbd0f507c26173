"""What is asked of a chat-completions server, and what is made of its answers."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from iterpo.agents.openai_protocol import fewer_fields, read_answer, request_body
from iterpo.agents.reply_faults import Again, ReplyError, excerpt, status_fault
from iterpo.domain import Role, Sampling, Turn, View
from iterpo.testing.chat_server import completion

VIEW = View(Role.PARTNER, "Be kind.", (Turn(Role.AGENT, "Hi!", scripted=True),), reminder="[NOTE]")


def raw(body: Any) -> bytes:
    return json.dumps(body).encode()


# -- the request --------------------------------------------------------------------------------


def test_the_messages_are_those_of_the_view() -> None:
    assert request_body("m", VIEW, Sampling(), 1)["messages"] == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "[NOTE]\nHi!"},
    ]


def test_pain_40_every_setting_is_sent_neutral_ones_too() -> None:
    """A server that fills gaps from a checkpoint's generation_config finds no gap."""
    body = request_body("m", VIEW, Sampling(0.7, 0.9, max_new_tokens=8), 2**63 - 1)
    assert {k: v for k, v in body.items() if k != "messages"} == {
        "model": "m",
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": -1,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "max_tokens": 8,
        "seed": 2**31 - 1,
        "stream": False,
        "logprobs": True,
        "return_token_ids": True,
    }


def test_further_fields_are_added_and_null_ones_left_out() -> None:
    body = request_body(
        "m", VIEW, Sampling(top_k=5), 1, evidence=False, extra={"a": 1, "seed": None}
    )
    assert body["a"] == 1
    assert body["top_k"] == 5
    assert not {"seed", "logprobs", "return_token_ids"} & body.keys()


EXTENDED = {"top_k", "min_p", "repetition_penalty"}
REFUSALS = [
    (
        "named",
        Sampling(),
        "Unrecognized request arguments supplied: min_p, top_k",
        {"min_p", "top_k"},
    ),
    ("logprobs named", Sampling(), "logprobs is not supported", {"logprobs"}),
    ("top_logprobs is another field", Sampling(), "top_logprobs: ?", {"return_token_ids"}),
    ("nothing named", Sampling(), "Bad Request", {"return_token_ids"}),
    (
        "max_tokens of another name",
        Sampling(),
        "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.",
        {"max_tokens"},
    ),
    ("a setting that matters stays", Sampling(top_k=5), "what is top_k?", {"return_token_ids"}),
]


@pytest.mark.parametrize(
    ("sampling", "said", "left_out"), [r[1:] for r in REFUSALS], ids=[r[0] for r in REFUSALS]
)
def test_what_a_refused_request_leaves_out(
    sampling: Sampling, said: str, left_out: set[str]
) -> None:
    assert fewer_fields(request_body("m", VIEW, sampling, 1), said) == left_out


def test_an_unexplained_refusal_leaves_out_one_group_after_the_other() -> None:
    left_out: frozenset[str] = frozenset()
    steps = []
    while more := fewer_fields(request_body("m", VIEW, Sampling(), 1, left_out=left_out), ""):
        steps.append(set(more))
        left_out |= more
    assert steps == [{"return_token_ids"}, EXTENDED, {"logprobs"}]


def test_the_other_name_of_max_tokens() -> None:
    body = request_body("m", VIEW, Sampling(), 1, left_out=frozenset({"max_tokens"}))
    assert body["max_completion_tokens"] == 64
    assert "max_tokens" not in body


# -- the answer ---------------------------------------------------------------------------------


def test_an_answer_with_all_evidence() -> None:
    body = completion(
        " Hi\n", token_ids=[5, 2], logprobs=[-0.25, -1], prompt_token_ids=[1, 2, 3], finish="length"
    )
    answer = read_answer(raw(body))
    assert answer.text == " Hi\n"
    assert answer.finish == "length"
    assert answer.token_ids == (5, 2)
    assert answer.logprobs == (-0.25, -1.0)
    assert answer.prompt_ids == (1, 2, 3)
    assert (answer.prompt_tokens, answer.completion_tokens) == (3, 2)


def with_choice(**fields: Any) -> dict[str, Any]:
    body = completion("Hi", token_ids=[5, 2], logprobs=[-0.25, -1])
    body["choices"][0].update(fields)
    return body


EVIDENCE = [
    # row, body, ids known, log-probs known
    ("neither", completion("Hi"), False, False),
    ("log-probs only", completion("Hi", logprobs=[-1.0]), False, True),
    ("ids only", completion("Hi", token_ids=[1]), True, False),
    ("lengths differ", completion("Hi", token_ids=[1, 2], logprobs=[-1.0]), True, False),
    ("empty lists", completion("Hi", token_ids=[], logprobs=[]), False, False),
    ("null", with_choice(token_ids=None, logprobs=None), False, False),
    ("ids as text", with_choice(token_ids=["5", "2"]), False, True),
    ("true is no id", with_choice(token_ids=[True, 2]), False, True),
    ("an id below 0", with_choice(token_ids=[-1, 2]), False, True),
    ("an absurd id", with_choice(token_ids=[10**400, 2]), False, True),
    ("log-probs as a list", with_choice(logprobs=[-1.0, -2.0]), True, False),
    ("entries without a number", with_choice(logprobs={"content": [{}, "x"]}), True, False),
    (
        "minus infinity",
        with_choice(logprobs={"content": [{"logprob": -float("inf")}] * 2}),
        True,
        False,
    ),
    (
        "not a number",
        with_choice(logprobs={"content": [{"logprob": float("nan")}] * 2}),
        True,
        False,
    ),
    (
        "an absurd number",
        with_choice(logprobs={"content": [{"logprob": -(10**400)}] * 2}),
        True,
        False,
    ),
    ("a probability", with_choice(logprobs={"content": [{"logprob": 0.5}] * 2}), True, False),
    (
        "hidden reasoning",
        completion("Hi", token_ids=[1], logprobs=[-1.0], reasoning_content="hm"),
        False,
        False,
    ),
]


@pytest.mark.parametrize(
    ("body", "ids", "logprobs"), [r[1:] for r in EVIDENCE], ids=[r[0] for r in EVIDENCE]
)
def test_evidence_is_kept_where_it_is_sound_and_absent_where_not(
    body: Any, ids: bool, logprobs: bool
) -> None:
    answer = read_answer(raw(body))
    assert answer.text == "Hi"
    assert (answer.token_ids is not None, answer.logprobs is not None) == (ids, logprobs)


@pytest.mark.parametrize(
    "usage", [None, [], {"prompt_tokens": "7"}, {"prompt_tokens": -1}, {"prompt_tokens": True}]
)
def test_a_usage_that_says_nothing_counts_nothing(usage: Any) -> None:
    answer = read_answer(raw(completion("Hi") | {"usage": usage}))
    assert (answer.prompt_tokens, answer.completion_tokens) == (0, 0)


def saying(content: Any) -> dict[str, Any]:
    return {"choices": [{"message": {"content": content}}]}


FAULTS = [
    ("no bytes", b"", Again.SAME, "an empty body"),
    ("half a JSON", b'{"choices": [{"mess', Again.SAME, "no JSON came back"),
    ("an error page", b"<html><title>502 Bad Gateway", Again.SAME, "<html><title>502 Bad Gateway"),
    ("no UTF-8", b"\xff\xfe\x00", Again.SAME, "no JSON came back"),
    ("deeply nested", b"[" * 100_000, Again.SAME, "no JSON came back"),
    ("an absurd number", b'{"choices": ' + b"9" * 5000 + b"}", Again.SAME, "no JSON came back"),
    ("a list", b"[]", Again.SAME, "no choices"),
    ("null", b"null", Again.SAME, "no choices"),
    ("no choices", b'{"id": 1}', Again.SAME, "no choices"),
    ("choices are empty", b'{"choices": []}', Again.SAME, "no choices"),
    ("choices are a number", b'{"choices": 3}', Again.SAME, "no choices"),
    ("a choice is text", b'{"choices": ["Hi"]}', Again.SAME, "no choices"),
    ("no message", b'{"choices": [{}]}', Again.SAME, "no choices"),
    ("message is text", b'{"choices": [{"message": "Hi"}]}', Again.SAME, "no choices"),
    ("an error with status 200", b'{"error": {"message": "overloaded"}}', Again.SAME, "overloaded"),
    ("content is a number", raw(saying(3)), Again.SAME, "no text"),
    ("content is a list", raw(saying(["Hi"])), Again.SAME, "no text"),
    ("empty", raw(completion("")), Again.ANEW, "an empty reply"),
    ("blank", raw(completion(" \n\t")), Again.ANEW, "an empty reply"),
    ("null content", raw(completion(None)), Again.ANEW, "an empty reply"),
    ("cut before any text", raw(completion(None, finish="length")), Again.NEVER, "max_new_tokens"),
    ("refusal", raw(completion(None, refusal="I can't")), Again.NEVER, "refused to answer"),
    ("filtered", raw(completion("Hi", finish="content_filter")), Again.NEVER, "refused to answer"),
    ("tool call", raw(completion(None, finish="tool_calls", tool_calls=[{}])), Again.NEVER, "tool"),
    ("unknown finish", raw(completion("Hi", finish="abort")), Again.SAME, "'abort'"),
    ("no finish", raw(completion("Hi", finish=None)), Again.SAME, "finish_reason is None"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("body", "again", "text"), [r[1:] for r in FAULTS], ids=[r[0] for r in FAULTS]
)
def test_what_is_no_reply(body: bytes, again: Again, text: str) -> None:
    with pytest.raises(ReplyError) as caught:
        read_answer(body)
    assert caught.value.again is again
    assert text in str(caught.value)
    assert len(str(caught.value)) < 400


STATUSES = [
    (301, Again.NEVER, "redirects to 'https://other.org'"),
    (308, Again.NEVER, "final address"),
    (400, Again.LESS, "extra_body"),
    (401, Again.NEVER, "MY_KEY"),
    (403, Again.NEVER, "MY_KEY"),
    (404, Again.NEVER, "/v1"),
    (408, Again.SAME, "HTTP 408: 'a b'"),
    (409, Again.SAME, "HTTP 409"),
    (413, Again.NEVER, "HTTP 413"),
    (422, Again.LESS, "extra_body"),
    (429, Again.SAME, "HTTP 429"),
    (500, Again.SAME, "HTTP 500"),
    (529, Again.SAME, "HTTP 529"),
]


@pytest.mark.parametrize(("status", "again", "text"), STATUSES, ids=[str(r[0]) for r in STATUSES])
def test_what_a_status_means(status: int, again: Again, text: str) -> None:
    headers = {"location": "https://name:word@other.org/x?key=1"}
    fault = status_fault(status, headers, raw({"error": {"message": "a\n\tb"}}), "MY_KEY")
    assert fault.again is again
    assert text in str(fault)
    assert "word" not in str(fault)


def test_an_empty_account_is_not_asked_again() -> None:
    error = {"error": {"message": "You exceeded your quota", "code": "insufficient_quota"}}
    assert status_fault(429, {}, raw(error), "K").again is Again.NEVER


def test_how_long_a_server_wants_to_be_left_alone() -> None:
    def wait_s(value: str) -> float:
        return status_fault(429, {"retry-after": value}, b"", "K").wait_s

    assert wait_s("2") == 2
    assert wait_s("0.25") == 0.25
    assert (
        25 < wait_s(format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True)) <= 30
    )
    nothing = ("", "-3", "soon", "nan", "inf", "Mon, 01 Jan 2001 00:00:00 GMT")
    assert [wait_s(value) for value in nothing] == [0] * len(nothing)


def test_excerpts_are_short_single_lines_of_printable_text() -> None:
    text = excerpt("a\x00\x1b[31mb\n" * 10_000)
    assert text.isprintable()
    assert len(text) < 1000
