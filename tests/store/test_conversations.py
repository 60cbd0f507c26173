"""The conversation log gives back what was put in, and names every fault."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iterpo.artifacts import seal
from iterpo.domain import (
    Conversation,
    Ending,
    Exploration,
    Outcome,
    Role,
    Sampled,
    Sampling,
    Turn,
)
from iterpo.errors import ArtifactError, DataError, MissingDataError
from iterpo.store import CONVERSATIONS, from_line, read_conversations, to_line, write_conversations

SAMPLED = Sampled(
    token_ids=(5, 7, 2),
    logprobs=(-0.25, -1.5, -0.125),
    sampling=Sampling(0.7, 0.9, max_new_tokens=8),
    prompt_sha256="ab" * 32,
    n_prompt_tokens=11,
    policy="r0-1",
    finish="stop",
)
CONVERSATION = Conversation(
    id="0/k/1",
    kernel_id="k",
    environment="toy",
    turns=(
        Turn(Role.AGENT, "Hello", scripted=True),
        Turn(Role.PARTNER, 'Ünïcode \\boxed{AGREED: $5}\n"quoted"\u2028'),
        Turn(Role.AGENT, "ok", sampled=SAMPLED),
    ),
    outcome=Outcome(Ending.AGREED, 0.5, {"price": 5}, "match", 2, ("above_list",)),
    system="sell",
    reminder="[R]",
    policy="r0-1",
    round=2,
    replica=1,
    seed=2**63 - 1,
    j_star={"agent_turn": 0.9},
)


def test_round_trip_is_exact() -> None:
    assert from_line(to_line(CONVERSATION), "here") == CONVERSATION


@pytest.mark.parametrize(
    "drawn",
    [
        None,
        Exploration({}, 0.75),
        Exploration({"tone": "warm", "pace": "late"}, 0.1 / 3),
        Exploration({"tone": "warm"}, 5e-324, action=2),
    ],
    ids=["none", "plain", "conversation", "action"],
)
def test_exploration_and_its_marks_come_back_exactly(drawn: Exploration | None) -> None:
    turns = (*CONVERSATION.turns[:2], replace(CONVERSATION.turns[2], off_policy=bool(drawn)))
    c = replace(CONVERSATION, exploration=drawn, turns=turns)
    assert from_line(to_line(c), "here") == c


def test_a_record_of_before_exploration_is_read() -> None:
    old = _edited(lambda r: r.pop("exploration"))
    assert from_line(old, "here") == CONVERSATION


@given(texts=st.lists(st.text(st.characters(exclude_categories=("Cs",))), max_size=6))
def test_pain_61_turns_in_equal_turns_out(texts: list[str]) -> None:
    turns = tuple(Turn(Role.PARTNER if i % 2 else Role.AGENT, t) for i, t in enumerate(texts))
    c = replace(CONVERSATION, turns=turns)
    line = to_line(c)
    assert line.count("\n") == 1
    assert from_line(line, "here") == c


def test_a_file_reads_back_and_is_stable(tmp_path: Path) -> None:
    two = (CONVERSATION, replace(CONVERSATION, id="0/k/2", outcome=Outcome(Ending.ABANDONED)))
    write_conversations(tmp_path / "a.jsonl", two)
    write_conversations(tmp_path / "b.jsonl", two)
    assert read_conversations(tmp_path / "a.jsonl") == two
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()


def test_a_bad_line_is_named_by_number(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(to_line(CONVERSATION) + '{"v": 1, "id": "x"}\n')
    with pytest.raises(DataError, match=r"log\.jsonl line 2.*incomplete"):
        read_conversations(path)
    path.write_text(to_line(CONVERSATION) + '{"v": 99}\n')
    with pytest.raises(DataError, match="found 99"):
        read_conversations(path)


def test_a_truncated_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text((to_line(CONVERSATION) * 2)[:-20])
    with pytest.raises(ArtifactError, match="in the middle of line 2"):
        read_conversations(path)


def test_a_sealed_folder_is_verified(tmp_path: Path) -> None:
    path = tmp_path / CONVERSATIONS
    write_conversations(path, [CONVERSATION])
    seal(tmp_path, "conversations", {})
    assert read_conversations(tmp_path) == (CONVERSATION,)
    path.write_text(path.read_text().replace("Hello", "Hallo"))
    with pytest.raises(ArtifactError, match="checksum"):
        read_conversations(tmp_path)


def test_an_absent_log_says_what_is_needed(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match="iterpo collect"):
        read_conversations(tmp_path / "nowhere.jsonl")


@given(number=st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_come_back_to_the_last_bit(number: float) -> None:
    """Else a resumed run, which reads what an undisturbed one still knows, ends elsewhere."""
    sampled = replace(SAMPLED, logprobs=(number, -1e-12, 0.0))
    turns = (*CONVERSATION.turns[:2], replace(CONVERSATION.turns[2], sampled=sampled))
    outcome = replace(CONVERSATION.outcome, reward=number, terms={"price": number})
    c = replace(CONVERSATION, turns=turns, outcome=outcome, j_star={"message": number})
    assert from_line(to_line(c), "here") == c


@pytest.mark.parametrize("ids", [SAMPLED.token_ids, None])
@pytest.mark.parametrize("logprobs", [SAMPLED.logprobs, None])
def test_what_a_server_kept_back_stays_unknown(
    ids: tuple[int, ...] | None, logprobs: tuple[float, ...] | None
) -> None:
    """An empty tuple would be a response without a token."""
    sampled = replace(SAMPLED, token_ids=ids, logprobs=logprobs, logprobs_mode="raw")
    turns = (*CONVERSATION.turns[:2], replace(CONVERSATION.turns[2], sampled=sampled))
    c = replace(CONVERSATION, turns=turns)
    assert from_line(to_line(c), "here") == c
    assert c.agent_view(3).messages()[-1].token_ids == ids


def test_log_probs_of_older_logs_are_those_of_the_draw() -> None:
    line = _edited(lambda r: r["turns"][2]["sampled"].pop("logprobs_mode"))
    assert from_line(line, "here") == CONVERSATION


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_what_json_cannot_say_is_refused_by_name(number: float) -> None:
    broken = replace(CONVERSATION, outcome=replace(CONVERSATION.outcome, reward=number))
    with pytest.raises(DataError, match=r"'0/k/1' holds NaN or infinity"):
        to_line(broken)


def _drawn(**change: Any) -> dict[str, Any]:
    return {"traits": {"tone": "warm"}, "propensity": 0.5, **change}


def _edited(change: Callable[[dict[str, Any]], object]) -> str:
    record = json.loads(to_line(CONVERSATION))
    change(record)
    return json.dumps(record)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda r: r.update(id=5), "id is 5; expected text"),
        (lambda r: r["turns"][1].update(text=None), "text is None; expected text"),
        (lambda r: r["outcome"].update(reward="0.5"), "reward is '0.5'; expected a whole number"),
        (lambda r: r["outcome"].update(reward=True), "reward is True; expected a whole number"),
        (lambda r: r["outcome"].update(reward=float("nan")), "NaN is no JSON number"),
        (lambda r: r["outcome"].update(flags="abc"), "flags is 'abc'; expected a list"),
        (lambda r: r.update(j_star={"message": "x"}), "j_star.*'x'; expected a number"),
        (lambda r: r["turns"][2]["sampled"].update(token_ids=[1, 2, -1]), "0 or more"),
        (lambda r: r["turns"][2]["sampled"].update(token_ids=["a", 2, 3]), "whole numbers"),
        (lambda r: r["turns"][2]["sampled"].update(token_ids=[1]), "1 token_ids, but 3 logprobs"),
        (lambda r: r["turns"][2]["sampled"].update(logprobs=[None] * 3), "expected a number"),
        (lambda r: r["turns"][2]["sampled"].update(logprobs_mode="x"), "expected processed or raw"),
        (lambda r: r.update(exploration="warm"), "exploration is 'warm'; expected an object or"),
        (lambda r: r.update(exploration=_drawn(propensity=0)), "propensity is 0; expected above 0"),
        (lambda r: r.update(exploration=_drawn(propensity=1.5)), "propensity is 1.5; expected"),
        (lambda r: r.update(exploration=_drawn(propensity=math.nan)), "NaN is no JSON number"),
        (lambda r: r.update(exploration=_drawn(propensity="1")), "propensity is '1'; expected a"),
        (lambda r: r.update(exploration={"traits": {}}), "KeyError.*propensity"),
        (lambda r: r.update(exploration=_drawn(traits={"tone": 1})), "tone.* is 1; expected text"),
        (lambda r: r.update(exploration=_drawn(traits=["warm"])), "traits is .*expected an object"),
        (lambda r: r.update(exploration=_drawn(action=0)), "action is 0; expected null, or 1 or"),
        (lambda r: r.update(exploration=_drawn(mood="x")), "mood"),
        (lambda r: r["turns"].append(3), "expected an object, found 3"),
        (lambda r: r["turns"][1].update(text="\ud800"), "lone surrogate"),
    ],
)
def test_a_mistyped_value_is_named_before_it_reaches_a_model(
    change: Callable[[dict[str, Any]], object], named: str
) -> None:
    with pytest.raises(DataError, match=f"line 4: .*{named}"):
        from_line(_edited(change), "log line 4")


def test_whole_emoji_that_json_spells_as_two_escapes_are_read() -> None:
    c = from_line(_edited(lambda r: r["turns"][1].update(text="\U0001f600")), "here")
    assert c.turns[1].text == "\U0001f600"


def test_bottomless_nesting_is_a_bad_line() -> None:
    with pytest.raises(DataError, match="line 1: not valid JSON"):
        from_line("[" * 100_000, "log line 1")


def test_files_of_other_systems_are_read_or_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + to_line(CONVERSATION).replace("\n", "\r\n").encode())
    assert read_conversations(path) == (CONVERSATION,)
    path.write_bytes(to_line(CONVERSATION).encode("utf-16"))
    with pytest.raises(DataError, match=r"log\.jsonl is not UTF-8 text \(byte 0"):
        read_conversations(path)
