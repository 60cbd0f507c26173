"""The chat-completions protocol: what is asked of a server, and what its answer means."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from iterpo.agents.reply_faults import Again, ReplyError, excerpt
from iterpo.domain import Sampling, View

__all__ = ["RESERVED", "SETTINGS", "Answer", "fewer_fields", "read_answer", "request_body"]

SETTINGS = frozenset({"top_k", "min_p", "repetition_penalty"})
"""Sampling settings that the protocol of OpenAI itself lacks."""

_OPTIONAL = (frozenset({"return_token_ids"}), SETTINGS, frozenset({"logprobs"}))
"""Fields that a server may refuse, least missed first."""

RESERVED = frozenset(
    {
        *("model", "messages", "temperature", "top_p", *SETTINGS),
        *("max_tokens", "max_completion_tokens", "n", "stream", "logprobs", "return_token_ids"),
        *("tools", "frequency_penalty", "presence_penalty", "logit_bias"),
    }
)
"""Fields of the request that iterpo alone sets, or could not record with the reply."""

_LOWEST, _HIGHEST = -1e9, 1e-3
"""Range of a log-probability; rounding may leave one a little above 0."""

_FINISH = {"stop": "stop", "eos": "stop", "eos_token": "stop", "length": "length"}


@dataclass(frozen=True, slots=True)
class Answer:
    """A usable reply."""

    text: str
    """The message, verbatim."""
    finish: str
    """``stop`` or ``length``."""
    token_ids: tuple[int, ...] | None
    """Sampled ids of exactly this text, where the server gave them."""
    logprobs: tuple[float, ...] | None
    """Log-probability of each token, where the server gave finite ones."""
    prompt_ids: tuple[int, ...] | None
    """Ids of the rendered prompt, where the server gave them."""
    prompt_tokens: int
    """Length of the prompt in tokens; 0 if the server does not say."""
    completion_tokens: int
    """Length of the response in tokens; 0 if the server does not say."""
    model: str = ""
    """Name that the server gives the model; empty if it gives none."""


def request_body(
    model: str,
    view: View,
    sampling: Sampling,
    seed: int,
    *,
    evidence: bool = True,
    extra: Mapping[str, Any] | None = None,
    left_out: frozenset[str] = frozenset(),
) -> dict[str, Any]:
    """The request for one message, with every effective sampling setting in it.

    Neutral settings are sent too, since some servers fill gaps with a checkpoint's own defaults.

    Args:
        model: Name that the server knows the model by.
        view: What the speaker sees.
        sampling: Settings.
        seed: Seed of this message; its lowest 31 bits are sent, which every server takes.
        evidence: Whether to ask for log-probabilities and token ids.
        extra: Further fields; one that is None is left out.
        left_out: Fields that the server refused.
    """
    body: dict[str, Any] = {
        "model": model,
        "messages": [m.as_dict() for m in view.messages()],
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k or -1,  # -1 is off everywhere, 0 is not
        "min_p": 0.0,
        "repetition_penalty": sampling.repetition_penalty,
        "max_tokens": sampling.max_new_tokens,
        "seed": seed % 2**31,
        "stream": False,
    }
    if evidence:
        body |= {"logprobs": True, "return_token_ids": True}
    if "max_tokens" in left_out:
        body["max_completion_tokens"] = sampling.max_new_tokens
    body = {k: v for k, v in body.items() if k not in left_out} | dict(extra or {})
    return {k: v for k, v in body.items() if v is not None}


def fewer_fields(body: Mapping[str, Any], said: str) -> frozenset[str]:
    """Which fields of a refused request to leave out; none if nothing can be spared.

    Fields that the server names go, else the least missed ones that were sent. A sampling setting
    that is not neutral can't be spared: the record would no longer be true.
    """
    if "max_tokens" in body and "max_completion_tokens" in said:
        return frozenset({"max_tokens"})
    needed = {
        name
        for name, neutral in (("top_k", -1), ("repetition_penalty", 1.0))
        if body.get(name, neutral) != neutral
    }
    groups = [{f for f in group if f in body} - needed for group in _OPTIONAL]
    named = {f for group in groups for f in group if re.search(rf"\b{f}\b", said)}
    return frozenset(named or next((group for group in groups if group), set()))


def read_answer(raw: bytes) -> Answer:
    """Make sense of the body of a successful response.

    Raises:
        ReplyError: if it holds no usable message; it says what came back instead.
    """
    try:
        data = json.loads(raw)
    except (ValueError, RecursionError):
        raise ReplyError(f"no JSON came back, but {excerpt(raw)}", Again.SAME) from None
    if isinstance(data, dict) and data.get("error"):
        raise ReplyError(f"an error instead of a reply: {excerpt(raw)}", Again.SAME)
    choices = data.get("choices") if isinstance(data, dict) else None
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(choice, dict) or not isinstance(message, dict):
        raise ReplyError(f"no choices[0].message came back, but {excerpt(raw)}", Again.SAME)
    finish = _FINISH.get(str(choice.get("finish_reason")), "")
    text = _text(message, choice, raw)
    if not finish:
        reason = f"finish_reason is {choice.get('finish_reason')!r:.60}; expected stop or length"
        raise ReplyError(reason, Again.SAME)
    # Ids and log-probabilities of hidden reasoning are not those of the message.
    pure = not (message.get("reasoning_content") or message.get("reasoning"))
    token_ids = _ids(choice.get("token_ids")) if pure else None
    logprobs = _logprobs(choice.get("logprobs")) if pure else None
    if token_ids is not None and logprobs is not None and len(token_ids) != len(logprobs):
        logprobs = None  # no telling which belongs to which
    prompt_ids = _ids(data.get("prompt_token_ids"))
    usage = data.get("usage") if isinstance(data.get("usage"), dict) else {}
    return Answer(
        text=text,
        finish=finish,
        token_ids=token_ids,
        logprobs=logprobs,
        prompt_ids=prompt_ids,
        prompt_tokens=len(prompt_ids or ()) or _count(usage.get("prompt_tokens")),
        completion_tokens=len(token_ids or ()) or _count(usage.get("completion_tokens")),
        model=data["model"] if isinstance(data.get("model"), str) else "",
    )


def _text(message: Mapping[str, Any], choice: Mapping[str, Any], raw: bytes) -> str:
    reason = choice.get("finish_reason")
    if message.get("refusal") or reason == "content_filter":
        raise ReplyError(
            f"the server refused to answer ({excerpt(str(message.get('refusal') or reason))}); "
            "reword the environment's prompts or take another model",
            Again.NEVER,
        )
    if message.get("tool_calls") or message.get("function_call"):
        raise ReplyError(
            "a tool call came back instead of text; serve the model without tools", Again.NEVER
        )
    text = message.get("content")
    if text is None or (isinstance(text, str) and not text.strip()):
        if reason == "length":
            raise ReplyError(
                "all of max_new_tokens went by without any text (a reasoning model?); raise "
                "max_new_tokens, or switch the reasoning off",
                Again.NEVER,
            )
        raise ReplyError(f"an empty reply (finish_reason {reason!r:.60})", Again.ANEW)
    if not isinstance(text, str):
        raise ReplyError(f"the reply is no text: {excerpt(raw)}", Again.SAME)
    return text


def _ids(value: Any) -> tuple[int, ...] | None:
    good = (
        isinstance(value, list) and value and all(type(i) is int and 0 <= i < 2**31 for i in value)
    )
    return tuple(value) if good else None


def _logprobs(value: Any) -> tuple[float, ...] | None:
    content = value.get("content") if isinstance(value, dict) else None
    if not isinstance(content, list) or not content:
        return None
    numbers: list[Any] = [e.get("logprob") if isinstance(e, dict) else None for e in content]
    if not all(type(n) in (int, float) and _LOWEST <= n <= _HIGHEST for n in numbers):
        return None
    return tuple(float(n) for n in numbers)


def _count(value: Any) -> int:
    return value if type(value) is int and value > 0 else 0
