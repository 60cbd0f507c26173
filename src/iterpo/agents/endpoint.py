"""Any OpenAI-compatible chat-completions server speaks, in either seat."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import random
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit

from iterpo.agents.base import Reply, Seat
from iterpo.agents.lines import Lines, Wire
from iterpo.agents.openai_protocol import (
    RESERVED,
    SETTINGS,
    Answer,
    fewer_fields,
    read_answer,
    request_body,
)
from iterpo.agents.reply_faults import Again, ReplyError
from iterpo.config.secrets import Secret
from iterpo.domain import Sampled, Sampling, View, derive
from iterpo.errors import ConfigError, EndpointError
from iterpo.models.chat import prompt_sha256

__all__ = ["Endpoint", "EndpointConfig", "Usage"]

_log = logging.getLogger(__name__)

_REDRAWS = 1
"""Further draws after an empty reply (pain 72)."""


@dataclass(frozen=True, slots=True)
class EndpointConfig:
    """Where a model is served, and how patiently it is asked."""

    base_url: str
    """Address of the API up to its version, e.g. `http://localhost:8000/v1`; no key in it."""
    model: str
    """Name that the server knows the model by (`GET /v1/models` lists them)."""
    api_key_env: str = "OPENAI_API_KEY"
    """Name of the environment variable that holds the key; a local server may need none."""
    concurrency: int = 16
    """Requests in flight at once, over all conversations."""
    call_timeout_s: float = 60.0
    """Longest time for one request, from sending it to the last byte of its answer."""
    conversation_timeout_s: float = 600.0
    """Longest time that this side of a conversation may take: requests and waits between tries;
    the other side's thinking and waiting for a free place among `concurrency` do not count."""
    retries: int = 4
    """Further tries of a request: on connection errors, timeouts, 408, 409, 429 and 5xx, and on
    answers that are cut or malformed."""
    backoff_s: float = 0.5
    """Bound of the first wait, doubled with each try; the wait is drawn below the bound. What a
    server's Retry-After asks for comes on top. No wait is longer than `call_timeout_s`."""
    logprobs: bool = True
    """Ask for log-probabilities and token ids; a server that refuses is asked without."""
    logprobs_mode: Literal["raw", "processed"] = "raw"
    """What the server's log-probabilities are: `raw`, before temperature and nucleus (vLLM's
    default), or `processed`, after (vLLM with `--logprobs-mode processed_logprobs`)."""
    proxy: str = ""
    """Address of an HTTP proxy, without a password; proxy variables of the environment are not
    read."""
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the request; one that is null is left out (`seed: null`)."""

    def __post_init__(self) -> None:
        """Refuse what can't work, all at once."""
        mistakes = [
            f"{name}: {wrong}"
            for name in ("base_url", "proxy")
            if (wrong := _wrong_with(getattr(self, name))) and (name, self.proxy) != ("proxy", "")
        ]
        for name in ("model", "api_key_env"):
            if not getattr(self, name).strip():
                mistakes.append(f"{name}: is empty; accepted: text")
        for name, least in (("concurrency", 1), ("retries", 0)):
            if getattr(self, name) < least:
                mistakes.append(f"{name}: {getattr(self, name)}; accepted: {least} or more")
        for name in ("call_timeout_s", "conversation_timeout_s", "backoff_s"):
            value = getattr(self, name)
            if not (math.isfinite(value) and (value > 0 or (name == "backoff_s" and value == 0))):
                mistakes.append(f"{name}: {value}; accepted: a number of seconds above 0")
        for name in sorted(RESERVED & self.extra_body.keys()):
            mistakes.append(
                f"extra_body.{name}: iterpo sets it itself, or could not record it with the replies"
            )
        if self.extra_body.get("seed") is not None:
            mistakes.append("extra_body.seed: every message has its own; accepted: null (no seed)")
        try:
            json.dumps(dict(self.extra_body), allow_nan=False)
        except (TypeError, ValueError):
            mistakes.append("extra_body: holds what JSON can't express; accepted: plain values")
        if mistakes:
            raise ConfigError("\n".join(mistakes))


@dataclass(slots=True)
class Usage:
    """What was asked of a server so far."""

    requests: int = 0
    """Requests sent, retries included."""
    retries: int = 0
    """Requests that repeat a failed one."""
    failures: int = 0
    """Messages that could not be had."""
    prompt_tokens: int = 0
    """Tokens of the prompts that were answered, as the server counts them."""
    completion_tokens: int = 0
    """Tokens of the replies, as the server counts them."""


class _Clock:
    """Time that one conversation has left."""

    def __init__(self, limit_s: float) -> None:
        self.left_s = limit_s

    @contextmanager
    def runs(self) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self.left_s -= time.monotonic() - started


class Endpoint:
    """An ``AgentFactory``: gives every conversation a seat at one served model.

    Args:
        config: Where and how to ask.
        sampling: Effective settings; all are sent, neutral ones too.
        api_key: Key of the server; None sends none.
        policy: ``PolicyRef.id`` of the served policy; empty notes the model's name.

    Connections belong to an event loop and are closed when it ends (``asyncio.run`` sees to that),
    so one endpoint serves any number of batches; ``aclose`` closes them earlier.
    """

    def __init__(
        self,
        config: EndpointConfig,
        sampling: Sampling,
        api_key: Secret | None = None,
        policy: str = "",
    ) -> None:
        self.config = config
        self.sampling = sampling
        self.usage = Usage()
        self.policy = policy or config.model
        self._wire = Wire(
            config.base_url, config.concurrency, config.proxy, api_key, config.api_key_env
        )
        self._lines = Lines(self._wire)
        self._left_out: frozenset[str] | None = None
        """Fields that this server refuses; None until it has answered a request."""

    def __call__(self, seat: Seat) -> _Speaker:
        """An agent for one seat."""
        return _Speaker(self, seat)

    async def aclose(self) -> None:
        """Close the connections of the running event loop."""
        await self._lines.aclose()

    async def speak(self, seat: Seat, view: View, clock: _Clock) -> Reply:
        """One message, asked for as often as the configuration allows.

        Raises:
            EndpointError: if no usable reply was had; it names the server and what came back.
        """
        retries = redraws = 0
        left_out = self._left_out or frozenset()
        while True:
            body = self._body(seat, view, redraws, left_out)
            try:
                answer = await self._ask(body, clock)
            except ReplyError as fault:
                if fault.again is Again.LESS and (fewer := self._fewer(body, fault, left_out)):
                    left_out = fewer
                    continue
                if fault.again is Again.ANEW and redraws < min(_REDRAWS, self.config.retries):
                    redraws += 1
                    self.usage.retries += 1
                    continue
                wait_s = self._wait_s(seat, view, retries, fault)
                if fault.again is not Again.SAME or not self._may_wait(wait_s, retries, clock):
                    self.usage.failures += 1
                    raise self._error(fault, retries + redraws, wait_s, clock) from fault
            else:
                self._understand(left_out)
                return self._reply(answer)
            retries += 1
            self.usage.retries += 1
            with clock.runs():
                await asyncio.sleep(wait_s)

    def _body(
        self, seat: Seat, view: View, redraws: int, left_out: frozenset[str]
    ) -> dict[str, Any]:
        anew = (redraws,) if redraws else ()
        return request_body(
            self.config.model,
            view,
            self.sampling,
            derive(seat.seed, len(view.turns), *anew),
            evidence=self.config.logprobs,
            extra=self.config.extra_body,
            left_out=left_out,
        )

    def _fewer(
        self, body: Mapping[str, Any], fault: ReplyError, left_out: frozenset[str]
    ) -> frozenset[str]:
        """What to leave out of a refused request; nothing if the fault lies elsewhere."""
        if self._left_out is not None:  # answered before: only what another request learned helps
            return self._left_out if self._left_out != left_out else frozenset()
        spared = fewer_fields(body, fault.said)
        return left_out | spared if spared else frozenset()

    def _understand(self, left_out: frozenset[str]) -> None:
        """Remember what a request had to leave out to be answered."""
        if self._left_out is not None:
            return
        self._left_out = left_out
        if settings := sorted(left_out & SETTINGS):
            _log.warning(
                "%s takes no %s, so they were left out; neutral values are recorded. Make sure "
                "that the server has no defaults of its own for them.",
                self.config.base_url,
                ", ".join(settings),
            )

    async def _ask(self, body: Mapping[str, Any], clock: _Clock) -> Answer:
        """Send one request when a place is free."""
        line = await self._lines.here()
        async with line.free:
            self.usage.requests += 1
            with clock.runs():
                limit_s = min(self.config.call_timeout_s, clock.left_s)
                raw = await line.post("chat/completions", body, limit_s)
        answer = read_answer(raw)
        if self._wire.without_key(answer.text) != answer.text:  # spelt with JSON escapes
            raise ReplyError("the answer repeats the key, so it is not kept", Again.NEVER)
        return answer

    def _reply(self, answer: Answer) -> Reply:
        self.usage.prompt_tokens += answer.prompt_tokens
        self.usage.completion_tokens += answer.completion_tokens
        s = self.sampling
        neutral = s.temperature == 1 and not s.reshaped
        evidence = Sampled(
            token_ids=answer.token_ids,
            logprobs=answer.logprobs,
            sampling=s,
            prompt_sha256=prompt_sha256(answer.prompt_ids) if answer.prompt_ids else "",
            n_prompt_tokens=answer.prompt_tokens,
            policy=self.policy,
            finish=answer.finish,
            logprobs_mode="processed" if neutral else self.config.logprobs_mode,
        )
        return Reply(answer.text, evidence, model=answer.model, n_tokens=answer.completion_tokens)

    def _wait_s(self, seat: Seat, view: View, tries: int, fault: ReplyError) -> float:
        """Full jitter below a doubling bound, after what the server asked for."""
        share = random.Random(derive(seat.seed, len(view.turns), "wait", tries)).random()
        wait_s: float = share * self.config.backoff_s * 2.0 ** min(tries, 16)
        # Jitter on top, so that all who were told the same do not come back together.
        return min(wait_s + fault.wait_s, self.config.call_timeout_s)

    def _may_wait(self, wait_s: float, retries: int, clock: _Clock) -> bool:
        return retries < self.config.retries and wait_s < clock.left_s

    def _error(self, fault: ReplyError, tries: int, wait_s: float, clock: _Clock) -> EndpointError:
        text = f"{self.config.base_url} (model {self.config.model!r}): {fault}"
        if fault.again is Again.SAME and wait_s >= clock.left_s:
            text += (
                f". Given up after {tries + 1} tries, since conversation_timeout_s "
                f"({self.config.conversation_timeout_s:g}) is used up"
            )
        elif fault.again in (Again.SAME, Again.ANEW):
            text += f". Given up after {tries + 1} tries; look at the server, or raise retries"
        return EndpointError(self._wire.without_key(text))


class _Speaker:
    """One seat at an ``Endpoint``."""

    def __init__(self, endpoint: Endpoint, seat: Seat) -> None:
        self._endpoint = endpoint
        self._seat = seat
        self._clock = _Clock(endpoint.config.conversation_timeout_s)

    async def reply(self, view: View) -> Reply:
        """The next message, given what this party sees."""
        return await self._endpoint.speak(self._seat, view, self._clock)

    def close(self) -> None:
        """The conversation is over; the connections serve the others."""


def _wrong_with(url: str) -> str:
    """What is wrong with an address; passwords are never shown."""
    try:
        parts = urlsplit(url)
        port_is_fine = parts.port is None or parts.port > 0
    except ValueError:
        return "is no address; accepted: e.g. http://localhost:8000/v1"
    if "@" in url:
        return (
            "holds a user name or password; leave it out and put the key into the environment "
            "variable that api_key_env names"
        )
    if not all("!" <= c <= "~" for c in url):
        return (
            "holds a blank or a character outside ASCII; write it as xn--... in the name of the "
            "machine, as %.. after it"
        )
    host = re.fullmatch(r"[0-9a-z._:%-]+", parts.hostname or "")
    if parts.scheme not in ("http", "https") or not host or not port_is_fine:
        return f"{url!r:.80}; accepted: an http or https address, e.g. http://localhost:8000/v1"
    if parts.query or parts.fragment:
        return "has a part after '?' or '#'; accepted: an address without (no key belongs there)"
    if parts.path.rstrip("/").endswith("/chat/completions"):
        return f"{url!r:.80}; leave out /chat/completions, which iterpo adds"
    return ""
