"""Conversations as versioned JSON lines: the native log format.

One conversation a line, keys sorted, no time stamps: the same conversation gives the same bytes.
Numbers are written in full, so what is read back equals what was played, to the last bit.
Token ids and log-probabilities are stored with every sampled turn; a turn without them is
text-only and says so by their absence.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from iterpo.domain import Conversation, Ending, Outcome, Role, Sampled, Sampling, Turn
from iterpo.errors import DataError

__all__ = ["VERSION", "from_line", "to_line"]

VERSION = 1
"""Version of the record layout; a reader refuses newer ones."""


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
        record = json.loads(line)
    except ValueError as error:
        raise DataError(
            f"{where}: not valid JSON ({error}). One conversation a line is expected; "
            "a line that stops in the middle means the file was cut off."
        ) from error
    if not isinstance(record, dict) or record.get("v") != VERSION:
        found = record.get("v") if isinstance(record, dict) else type(record).__name__
        raise DataError(
            f'{where}: expected a conversation record with "v": {VERSION}, found {found!r}.'
        )
    try:
        return _conversation(record)
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{where}: incomplete or mistyped conversation record: {error!r}"
        ) from error


def _conversation(record: dict[str, Any]) -> Conversation:
    fields = {k: v for k, v in record.items() if k != "v"}
    outcome = dict(fields.pop("outcome"))
    outcome["ending"] = Ending(outcome["ending"])
    outcome["flags"] = tuple(outcome.get("flags", ()))
    turns = tuple(_turn(t) for t in fields.pop("turns"))
    return Conversation(turns=turns, outcome=Outcome(**outcome), **fields)


def _turn(record: Mapping[str, Any]) -> Turn:
    sampled = record.get("sampled")
    return Turn(
        role=Role(record["role"]),
        text=record["text"],
        scripted=record.get("scripted", False),
        off_policy=record.get("off_policy", False),
        sampled=_sampled(sampled) if sampled else None,
    )


def _sampled(record: Mapping[str, Any]) -> Sampled:
    return Sampled(
        **{
            **record,
            "token_ids": tuple(record["token_ids"]),
            "logprobs": tuple(record["logprobs"]),
            "sampling": Sampling(**record["sampling"]),
        }
    )


def _plain(value: Any) -> Any:
    """JSON types only: mappings of any kind as objects, tuples as lists."""
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value
