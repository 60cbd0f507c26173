"""What can be wrong with a server's response, and whether asking again can help."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import StrEnum
from urllib.parse import urlsplit

from iterpo.errors import EndpointError

__all__ = ["Again", "ReplyError", "excerpt", "status_fault"]


class Again(StrEnum):
    """Whether asking once more can help."""

    NEVER = "never"
    """The same comes back."""
    SAME = "same"
    """A passing trouble: the same request, after a wait."""
    ANEW = "anew"
    """The draw was no message: another seed."""
    LESS = "less"
    """The request was refused: perhaps for a field that can be left out."""


class ReplyError(EndpointError):
    """One request without a usable reply, and whether another one can help."""

    def __init__(self, what: str, again: Again, *, wait_s: float = 0.0, said: str = "") -> None:
        super().__init__(what)
        self.again = again
        self.wait_s = wait_s
        self.said = said


def status_fault(status: int, headers: Mapping[str, str], raw: bytes, key_env: str) -> ReplyError:
    """What a response other than 200 means.

    Args:
        status: HTTP status.
        headers: Headers by lower-case name.
        raw: Body.
        key_env: Name of the environment variable with the key, for the advice.
    """
    said = _said(raw)
    what = f"HTTP {status}: {excerpt(said)}"
    if status in (401, 403):
        advice = f"the server wants another key: set the environment variable {key_env}"
        return ReplyError(f"{what}; {advice}", Again.NEVER)
    if status == 404:
        advice = "check base_url (it usually ends in /v1) and the model's name (GET /v1/models)"
        return ReplyError(f"{what}; {advice}", Again.NEVER)
    if status in (400, 422):
        advice = "correct the setting that it names (extra_body can add fields or leave out seed)"
        return ReplyError(f"{what}; {advice}", Again.LESS, said=raw.decode(errors="replace"))
    if 300 <= status < 400:
        to = _host(headers.get("location", ""))
        return ReplyError(
            f"HTTP {status}: it redirects{to}, and redirects are not followed, so that the key "
            "goes nowhere else; give the final address as base_url",
            Again.NEVER,
        )
    if status in (408, 409, 429) or status >= 500:
        if b"insufficient_quota" in raw:
            return ReplyError(f"{what}; the account has no quota left", Again.NEVER)
        return ReplyError(what, Again.SAME, wait_s=_retry_after(headers.get("retry-after", "")))
    return ReplyError(what, Again.NEVER)


def excerpt(text: str | bytes, limit: int = 200) -> str:
    r"""A short single line of printable characters from whatever a server sent.

    >>> excerpt(b"<html>  <b>Bad\ngateway</b>")
    "'<html> <b>Bad gateway</b>'"
    >>> excerpt("")
    'an empty body'
    """
    if isinstance(text, bytes):
        text = text[: 8 * limit].decode(errors="replace")
    line = " ".join(text[: 8 * limit].split())
    if not line:
        return "an empty body"
    return repr(line if len(line) <= limit else line[:limit] + "...")


def _said(raw: bytes) -> str:
    """The message in an error's body, else the body."""
    try:
        data = json.loads(raw)
    except (ValueError, RecursionError):
        return raw.decode(errors="replace")
    for key in ("error", "message", "detail"):
        if isinstance(data, dict) and data.get(key):
            data = data[key]
    return data if isinstance(data, str) else json.dumps(data)


def _host(location: str) -> str:
    try:
        parts = urlsplit(location)
        return f" to {excerpt(f'{parts.scheme}://{parts.hostname}')}" if parts.hostname else ""
    except ValueError:
        return ""


def _retry_after(value: str) -> float:
    """Seconds of a Retry-After header, given as seconds or as a date; 0 if it is neither."""
    try:
        seconds = float(value)
    except ValueError:
        try:
            when = parsedate_to_datetime(value)
        except ValueError:
            return 0.0
        seconds = (when.astimezone(UTC) - datetime.now(UTC)).total_seconds()
    return max(seconds, 0.0) if math.isfinite(seconds) else 0.0
