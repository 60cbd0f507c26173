"""Conversations as versioned JSON lines: the native log format.

One conversation a line, keys sorted, no time stamps: the same conversation gives the same bytes.
Numbers are written in full, so what is read back equals what was played, to the last bit.
Token ids and log-probabilities are stored with every sampled turn, null where a server kept them
back; a turn without any evidence is text-only and says so by its absence.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

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
from iterpo.errors import DataError

__all__ = ["VERSION", "from_line", "to_line"]

VERSION = 1
"""Version of the record layout; a reader refuses newer ones."""

_NONE = type(None)
_JSON_NAMES = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "an object",
    _NONE: "null",
}
_CONVERSATION: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("id", "kernel_id", "environment", "system", "policy"), (str,)),
    **dict.fromkeys(("round", "replica", "seed"), (int,)),
    "reminder": (str, _NONE),
    "turns": (list,),
    "outcome": (dict,),
    "j_star": (dict,),
    "exploration": (dict, _NONE),
}
_OUTCOME: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("ending", "closed_by", "detail"), (str,)),
    "reward": (int, float, _NONE),
    "terms": (dict,),
    "closing_message": (int,),
    "flags": (list,),
}
_TURN: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("role", "text"), (str,)),
    **dict.fromkeys(("scripted", "off_policy"), (bool,)),
    "sampled": (dict, _NONE),
}
_EXPLORATION: dict[str, tuple[type, ...]] = {
    "traits": (dict,),
    "propensity": (int, float),
    "action": (int, _NONE),
}
_SAMPLED: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("token_ids", "logprobs"), (list, _NONE)),
    **dict.fromkeys(("prompt_sha256", "policy", "finish", "logprobs_mode"), (str,)),
    "sampling": (dict,),
    "n_prompt_tokens": (int,),
}


def to_line(conversation: Conversation) -> str:
    """A conversation as one line of JSON, line feed included.

    Raises:
        DataError: if it holds a number that is not finite, which JSON can't express.
    """
    record = {"v": VERSION, **_plain(asdict(conversation))}
    try:
        text = json.dumps(
            record, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False
        )
    except ValueError as error:
        raise DataError(
            f"conversation {conversation.id!r} holds NaN or infinity, which a log can't store; "
            "rewards and log-probabilities must be finite, or None where there is none."
        ) from error
    return text + "\n"


def from_line(line: str, where: str) -> Conversation:
    """Read one line back.

    Args:
        line: JSON text.
        where: What to call the place in an error, e.g. ``logs.jsonl line 7``.

    Raises:
        DataError: if the line is not a conversation of a known version.
    """
    try:
        record = json.loads(line, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{where}: not valid JSON ({error}). One conversation a line is expected; "
            "a line that stops in the middle means the file was cut off."
        ) from error
    if not isinstance(record, dict) or record.get("v") != VERSION:
        found = record.get("v") if isinstance(record, dict) else type(record).__name__
        raise DataError(
            f'{where}: expected a conversation record with "v": {VERSION}, found {found!r}.'
        )
    if "\\ud" in line.lower():  # only an escape can bring half a character into JSON text
        _check_characters(record, where)
    try:
        return _conversation(record)
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{where}: incomplete or mistyped conversation record: {error!r}"
        ) from error


def _conversation(record: dict[str, Any]) -> Conversation:
    fields = {k: v for k, v in record.items() if k != "v"}
    _check_types(fields, _CONVERSATION)
    _check_numbers(fields.get("j_star", {}), "j_star")
    outcome = dict(fields.pop("outcome"))
    _check_types(outcome, _OUTCOME)
    outcome["ending"] = Ending(outcome["ending"])
    outcome["flags"] = tuple(outcome.get("flags", ()))
    turns = tuple(_turn(t) for t in fields.pop("turns"))
    drawn = fields.pop("exploration", None)
    exploration = None if drawn is None else _exploration(drawn)
    return Conversation(turns=turns, outcome=Outcome(**outcome), exploration=exploration, **fields)


def _turn(record: Mapping[str, Any]) -> Turn:
    _check_types(record, _TURN)
    sampled = record.get("sampled")
    return Turn(
        role=Role(record["role"]),
        text=record["text"],
        scripted=record.get("scripted", False),
        off_policy=record.get("off_policy", False),
        sampled=_sampled(sampled) if sampled else None,
    )


def _sampled(record: Mapping[str, Any]) -> Sampled:
    _check_types(record, _SAMPLED)
    ids, logprobs = record["token_ids"], record["logprobs"]
    if ids is not None and not all(type(i) is int and i >= 0 for i in ids):
        raise TypeError("token_ids must be whole numbers, 0 or more")
    if ids is not None and logprobs is not None and len(ids) != len(logprobs):
        raise ValueError(f"{len(ids)} token_ids, but {len(logprobs)} logprobs")
    _check_numbers(dict(enumerate(logprobs or ())), "logprobs")
    if record.get("logprobs_mode", "processed") not in ("processed", "raw"):
        raise ValueError(f"logprobs_mode is {record['logprobs_mode']!r}; expected processed or raw")
    return Sampled(
        **{
            **record,
            "token_ids": None if ids is None else tuple(ids),
            "logprobs": None if logprobs is None else tuple(logprobs),
            "sampling": Sampling(**record["sampling"]),
        }
    )


def _exploration(record: Mapping[str, Any]) -> Exploration:
    _check_types(record, _EXPLORATION)
    drawn = Exploration(**record)
    for trait, value in drawn.traits.items():
        if type(value) is not str:
            raise TypeError(f"exploration.traits[{trait!r}] is {value!r:.60}; expected text")
    if not 0 < record["propensity"] <= 1:  # a default would make a lost number look certain
        raise ValueError(
            f"exploration.propensity is {drawn.propensity!r}; expected above 0, at most 1"
        )
    if drawn.action is not None and drawn.action < 1:
        raise ValueError(f"exploration.action is {drawn.action}; expected null, or 1 or more")
    return drawn


def _check_types(record: Mapping[str, Any], expected: Mapping[str, tuple[type, ...]]) -> None:
    if not isinstance(record, dict):
        raise TypeError(f"expected an object, found {record!r:.60}")
    for key, kinds in expected.items():
        # By exact type: true is no reward of 1.
        if key in record and type(record[key]) not in kinds:
            names = " or ".join(_JSON_NAMES[kind] for kind in kinds)
            raise TypeError(f"{key} is {record[key]!r:.60}; expected {names}")


def _check_numbers(values: Mapping[Any, Any], name: str) -> None:
    for key, value in values.items():
        if type(value) not in (int, float):
            raise TypeError(f"{name}[{key!r}] is {value!r:.60}; expected a number")


def _check_characters(record: Any, where: str) -> None:
    try:
        json.dumps(record, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{where}: half a character ({error.object[error.start]!r}, a lone surrogate), which "
            "no tokenizer can read; the text was cut in the middle of a character: repair it"
        ) from error


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number; give a finite number, or null where there is none")


def _plain(value: Any) -> Any:
    """JSON types only: mappings of any kind as objects, tuples as lists."""
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value
