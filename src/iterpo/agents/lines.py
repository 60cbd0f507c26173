"""Connections to one model server: a bounded number, none of which outlives its event loop."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from iterpo.agents.reply_faults import Again, ReplyError, status_fault
from iterpo.config.secrets import Secret

if TYPE_CHECKING:
    import httpx2

__all__ = ["Line", "Lines", "Wire"]

_MAX_BODY = 8 * 2**20
"""Bytes of a response that are read; a chat message with its evidence takes a few kilobytes."""
_LOGGERS = ("httpcore2.connection", "httpcore2.http11", "httpcore2.proxy", "httpx2")
"""Loggers of the HTTP client, which tell what a server's headers say."""
_KEY_LENGTH = 8
"""Shorter keys are placeholders such as EMPTY, and ordinary words; they are not looked for."""


@dataclass(frozen=True, slots=True)
class Wire:
    """What a connection needs to know."""

    base_url: str
    """Address of the API."""
    concurrency: int
    """Requests in flight at once."""
    proxy: str
    """Address of an HTTP proxy; empty for none."""
    key: Secret | None
    """Key of the server."""
    key_env: str
    """Environment variable that holds the key, for advice."""

    def without_key(self, text: str) -> str:
        """A text in which the key, should it occur, is hidden."""
        key = self.key.reveal() if self.key else ""
        return text.replace(key, "(hidden)") if len(key) >= _KEY_LENGTH else text


@dataclass(frozen=True, slots=True, eq=False)
class Line:
    """The connections of one event loop."""

    wire: Wire
    """Where they lead."""
    client: httpx2.AsyncClient
    """Their pool."""
    free: asyncio.Semaphore
    """Places for requests; whoever sends one holds a place."""
    life: AsyncGenerator[None, None]
    """Closes the pool at its end."""

    async def post(self, path: str, body: Mapping[str, Any], limit_s: float) -> bytes:
        """Body of a successful response.

        Args:
            path: Path below the base address.
            body: What is sent, as JSON.
            limit_s: Longest time, from sending to the last byte.

        Raises:
            ReplyError: for every other response, and for none; the key is in no message.
        """
        import httpx2

        try:
            async with asyncio.timeout(limit_s):
                return await self._post(path, body)
        except TimeoutError:
            raise ReplyError(f"no answer within {limit_s:.3g} s", Again.SAME) from None
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            what = self.wire.without_key(f"{type(error).__name__}: {error}")[:200]
            raise ReplyError(what, Again.SAME) from None

    async def _post(self, path: str, body: Mapping[str, Any]) -> bytes:
        raw = bytearray()
        content = json.dumps(body).encode()
        async with self.client.stream("POST", path, content=content) as response:
            async for piece in response.aiter_bytes():
                raw += piece
                if len(raw) > _MAX_BODY:
                    raise ReplyError(
                        f"more than {_MAX_BODY >> 20} MiB came back; is it a chat-completions "
                        "server?",
                        Again.NEVER,
                    )
        text = raw.decode(errors="replace")
        clean = self.wire.without_key(text)
        if not response.is_success:
            headers = {k: self.wire.without_key(v) for k, v in response.headers.items()}
            raise status_fault(response.status_code, headers, clean.encode(), self.wire.key_env)
        if clean != text:
            raise ReplyError("the answer repeats the key, so it is not kept", Again.NEVER)
        return bytes(raw)


class Lines:
    """One ``Line`` per event loop, since neither sockets nor locks can change loops.

    A batch of conversations runs under ``asyncio.run``, which ends its loop by closing the
    asynchronous generators that began in it. Each line is kept alive by such a generator, so its
    sockets close with the loop, also after an error or Ctrl-C.
    """

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._open: dict[asyncio.AbstractEventLoop, Line] = {}

    async def here(self) -> Line:
        """The line of the running loop, opened when it is first asked for."""
        loop = asyncio.get_running_loop()
        line = self._open.get(loop)
        if line is None:
            for ended in [other for other in self._open if other.is_closed()]:
                del self._open[ended]  # a loop that was closed without ceremony
            client = _client(self._wire)
            places = asyncio.Semaphore(self._wire.concurrency)
            line = Line(self._wire, client, places, self._live(loop, client))
            self._open[loop] = line
            await anext(line.life)  # from here on the loop knows it
        return line

    async def aclose(self) -> None:
        """Close the line of the running loop, if there is one."""
        line = self._open.get(asyncio.get_running_loop())
        if line is not None:
            await line.life.aclose()

    async def _live(
        self, loop: asyncio.AbstractEventLoop, client: httpx2.AsyncClient
    ) -> AsyncGenerator[None, None]:
        def hide(record: logging.LogRecord) -> bool:
            record.msg, record.args = self._wire.without_key(record.getMessage()), ()
            return True

        # A server may repeat the key in a header, and the client logs headers at DEBUG.
        loggers = [logging.getLogger(name) for name in _LOGGERS]
        for logger in loggers:
            logger.addFilter(hide)
        try:
            yield
        finally:
            self._open.pop(loop, None)
            await client.aclose()
            for logger in loggers:
                logger.removeFilter(hide)


def _client(wire: Wire) -> httpx2.AsyncClient:
    import httpx2

    headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
    if wire.key is not None:
        headers["Authorization"] = f"Bearer {wire.key.reveal()}"
    return httpx2.AsyncClient(
        base_url=wire.base_url,
        headers=headers,
        proxy=wire.proxy or None,
        timeout=None,  # each request has its deadline
        limits=httpx2.Limits(max_connections=wire.concurrency),
        follow_redirects=False,
        trust_env=False,
    )
