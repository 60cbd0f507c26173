"""A chat-completions server in this process that answers, and misbehaves, as it is told."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self, TypeAlias

__all__ = ["Asked", "ChatServer", "Script", "Sent", "completion"]


@dataclass(frozen=True, slots=True)
class Asked:
    """One request that arrived."""

    number: int
    """Count of the requests before it."""
    path: str
    """Path that was asked for."""
    headers: Mapping[str, str]
    """Headers by lower-case name."""
    body: Mapping[str, Any]
    """The request's JSON."""


@dataclass(frozen=True, slots=True)
class Sent:
    """What goes back, and how badly."""

    body: bytes | str | Mapping[str, Any] = b""
    """Body of the response; a mapping is sent as JSON."""
    status: int = 200
    """HTTP status."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Further headers, such as Retry-After."""
    delay_s: float = 0.0
    """Silence before the response."""
    cut_at: int | None = None
    """Bytes of the body after which the connection is closed, although all were announced."""


Script: TypeAlias = Callable[[Asked], Sent | str]
"""What to send back for a request; a text stands for an ordinary reply that says it."""


def completion(
    text: str | None,
    *,
    finish: str | None = "stop",
    token_ids: Sequence[int] | None = None,
    logprobs: Sequence[float] | None = None,
    prompt_token_ids: Sequence[int] | None = None,
    **message: Any,
) -> dict[str, Any]:
    """Body of an ordinary response, with the evidence of sampling that vLLM adds on request.

    Args:
        text: What the model says.
        finish: Why it stopped.
        token_ids: Sampled ids.
        logprobs: Log-probability of each token.
        prompt_token_ids: Ids of the rendered prompt.
        message: Further fields of the message, such as ``refusal``.
    """
    choice: dict[str, Any] = {
        "index": 0,
        "message": {"role": "assistant", "content": text, **message},
        "finish_reason": finish,
    }
    if logprobs is not None:
        choice["logprobs"] = {"content": [{"token": "?", "logprob": n} for n in logprobs]}
    if token_ids is not None:
        choice["token_ids"] = list(token_ids)
    body: dict[str, Any] = {
        "object": "chat.completion",
        "choices": [choice],
        "usage": {"prompt_tokens": 11, "completion_tokens": len(token_ids or logprobs or "xyz")},
    }
    if prompt_token_ids is not None:
        body["prompt_token_ids"] = list(prompt_token_ids)
    return body


class ChatServer:
    """Listens on a free port of this machine while its ``with`` block runs.

    Args:
        script: What to send back; called from several threads.

    >>> with ChatServer(lambda asked: "Hello!") as server:
    ...     server.base_url.startswith("http://127.0.0.1:")
    True
    """

    def __init__(self, script: Script) -> None:
        self.script = script
        self.asked: list[Asked] = []
        self.most_at_once = 0
        self.connections = 0
        self._at_once = 0
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._http = _Listener(("127.0.0.1", 0), type("Handler", (_Handler,), {"server_": self}))

    @property
    def base_url(self) -> str:
        """Address for ``EndpointConfig``."""
        return f"http://127.0.0.1:{self._http.server_address[1]}/v1"

    def __enter__(self) -> Self:
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        self._http.shutdown()
        self._http.server_close()

    def answer(self, path: str, headers: Mapping[str, str], raw: bytes) -> Sent:
        """Note a request and say what to send back."""
        with self._lock:
            asked = Asked(len(self.asked), path, headers, json.loads(raw))
            self.asked.append(asked)
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            sent = self.script(asked)
            sent = Sent(completion(sent)) if isinstance(sent, str) else sent
            self._ended.wait(sent.delay_s)
        except Exception as error:
            sent = Sent(f"the script of this server raised {error!r}", 500)
        finally:
            with self._lock:
                self._at_once -= 1  # before the response: its reader may ask again at once
        return sent

    def count(self, change: int) -> None:
        """Note that a connection was opened (1) or closed (-1)."""
        with self._lock:
            self.connections += change


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is part of the game."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server_: ChatServer

    def setup(self) -> None:
        self.server_.count(1)
        super().setup()

    def finish(self) -> None:
        try:
            super().finish()
        finally:
            self.server_.count(-1)

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        headers = {k.lower(): v for k, v in self.headers.items()}
        if self.path == "/v1/chat/completions":
            sent = self.server_.answer(self.path, headers, raw)
        else:
            sent = Sent({"error": {"message": f"there is no {self.path} here"}}, 404)
        body = sent.body
        if isinstance(body, Mapping):
            body = json.dumps(dict(body))
        body = body.encode() if isinstance(body, str) else body
        self.send_response(sent.status)
        for name, value in sent.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: sent.cut_at])
        if sent.cut_at is not None:
            self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - named by http.server
        """Say nothing."""
