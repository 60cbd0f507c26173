"""ask: put questions to a judge on a server; every answer is kept, and none is asked for twice.

Answers are appended to a file as they come, each with the question, the server, the model, the
settings and the raw text. They are found again by a hash of all that could change them: whoever was
killed goes on with what is missing, and another question, server, model or setting is asked anew.
How long an answer may be changes nothing in one that came to its end: only those that were cut off
are asked for again under a larger limit.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from iterpo.agents.base import AgentFactory, Reply, Seat
from iterpo.artifacts import naming_full_disk, write_atomic
from iterpo.collect.play import wait_for
from iterpo.domain import Role, Scenario, Split, Turn, View, derive
from iterpo.errors import ArtifactError, EndpointError
from iterpo.experiments.ledger import hold
from iterpo.experiments.speakers import Served, served
from iterpo.measure.judging import Question

__all__ = ["ANSWERS", "PATIENCE", "Answers", "Given", "Progress", "ask", "question_key", "stored"]

ANSWERS = "judge.jsonl"
"""Name of the file of answers in a folder."""
PATIENCE = 8
"""Questions in a row without an answer after which a server is taken for gone."""
_LOCK = ".judge.lock"

Progress = Callable[[int, int, int], None]
"""Receives how many questions are answered, out of how many, and how many failed."""


@dataclass(frozen=True, slots=True)
class Given:
    """One answer, as it was kept."""

    text: str
    """Raw text."""
    cut: bool
    """Whether it was cut off at the limit of tokens."""
    model: str
    """Name that the server gave its model; empty if it gave none."""


@dataclass(frozen=True, slots=True)
class Answers:
    """What a judge has said so far."""

    given: Mapping[str, Given] = field(default_factory=dict)
    """Answers by the key of their question."""
    asked: int = 0
    """Questions that were sent this time; others were answered before, or not reached."""
    failed: int = 0
    """Those of them that got no answer: left out and counted; the next call asks them again."""
    why: str = ""
    """What the first of those failures was."""
    stopped: bool = False
    """Whether so many failed in a row that the rest was not asked."""


def question_key(question: Question, judge: Served) -> str:
    """SHA-256 over the question, the server, the model and its settings but for the limit."""
    told = [question.system, question.prompt, *_identity(judge)]
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def ask(
    path: Path,
    questions: Iterable[Question],
    judge: Served,
    progress: Progress | None = None,
    patience: int = PATIENCE,
) -> Answers:
    """Ask whatever ``path`` holds no answer to, in order; the same question is asked once.

    A server that fails is no error here: whoever calls has other things to tell, too.

    Args:
        path: JSON lines of answers; made if absent, and added to. Its folder is locked meanwhile,
            so that no other process asks the same.
        questions: What to ask.
        judge: Who is asked. Its endpoint bounds how many requests are in flight and how patiently
            each is repeated.
        progress: Called before the first question and after each.
        patience: Failures in a row after which no more is asked.

    Raises:
        ArtifactError: if ``path`` holds something else.
        ResumeError: if another process asks, and goes on asking.
        StorageFullError: if the disk is full; answers so far are kept.
    """
    wanted = {question_key(q, judge): q for q in questions}
    with hold(path.parent, _LOCK):
        found = _known(path, wanted, judge, mend=True)
        missing = [key for key in wanted if key not in found]
        if not missing:
            return Answers(found)
        return _Asking(path, wanted, judge, progress, patience, found).all(missing)


def stored(path: Path, questions: Iterable[Question], judge: Served) -> Answers:
    """The answers that ``path`` holds; nobody is asked.

    Raises:
        ArtifactError: if ``path`` holds something else.
    """
    return Answers(_known(path, {question_key(q, judge): q for q in questions}, judge))


@dataclass(slots=True)
class _Asking:
    """One call of ``ask`` at work."""

    path: Path
    wanted: Mapping[str, Question]
    judge: Served
    progress: Progress | None
    patience: int
    found: dict[str, Given]
    failures: list[str] = field(default_factory=list)
    sent: int = 0
    in_a_row: int = 0
    stopped: bool = False

    def all(self, missing: Sequence[str]) -> Answers:
        agents = served(self.judge)

        async def together() -> None:
            # As many at once as the server is asked, so that they are sent in order.
            free = asyncio.Semaphore(self.judge.endpoint.concurrency)

            async def in_turn(key: str) -> None:
                async with free:
                    if not self.stopped:
                        await self._one(agents, key)

            await asyncio.gather(*map(in_turn, missing))

        self._tell()
        wait_for(together)
        why = self.failures[0] if self.failures else ""
        return Answers(self.found, self.sent, len(self.failures), why, self.stopped)

    async def _one(self, agents: AgentFactory, key: str) -> None:
        self.sent += 1
        try:
            reply = await _answer(agents, key, self.wanted[key])
        except EndpointError as error:
            self.failures.append(str(error))
            self.in_a_row += 1
            self.stopped = self.stopped or self.in_a_row >= self.patience
        else:
            self.in_a_row = 0
            record = _record(key, self.wanted[key], self.judge, reply)
            _append(self.path, record)
            self.found[key] = _given(record)
        self._tell()

    def _tell(self) -> None:
        if self.progress:
            self.progress(len(self.found), len(self.wanted), len(self.failures))


async def _answer(agents: AgentFactory, key: str, question: Question) -> Reply:
    """The judge speaks once, as the other side of a conversation of one message."""
    scenario = Scenario(key, "judge", Split.HELDOUT, {})
    agent = agents(Seat(scenario, Role.AGENT, 0, 0, derive("judge", key)))
    try:
        asked = Turn(Role.PARTNER, question.prompt)
        return await agent.reply(View(Role.AGENT, question.system, (asked,)))
    finally:
        agent.close()


def _identity(judge: Served) -> Sequence[Any]:
    sampling = {k: v for k, v in asdict(judge.sampling).items() if k != "max_new_tokens"}
    endpoint = judge.endpoint
    return endpoint.base_url.rstrip("/"), endpoint.model, sampling, dict(endpoint.extra_body)


def _record(key: str, question: Question, judge: Served, reply: Reply) -> dict[str, Any]:
    """One line of the file; an address with a password is no ``EndpointConfig``."""
    finish, prompt_tokens = "", 0
    if reply.sampled is not None:
        finish, prompt_tokens = reply.sampled.finish, reply.sampled.n_prompt_tokens
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": reply.n_tokens}
    return {
        "key": key,
        "url": judge.endpoint.base_url,
        "model": judge.endpoint.model,
        "served_model": reply.model,
        "sampling": asdict(judge.sampling),
        "extra_body": dict(judge.endpoint.extra_body),
        "system": question.system,
        "prompt": question.prompt,
        "answer": reply.text,
        "finish_reason": finish,
        "usage": {name: n for name, n in usage.items() if n},
    }


def _given(record: Mapping[str, Any]) -> Given:
    return Given(
        str(record["answer"]), record["finish_reason"] == "length", str(record["served_model"])
    )


def _append(path: Path, record: Mapping[str, Any]) -> None:
    with naming_full_disk(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(record) + "\n")


def _known(
    path: Path, wanted: Mapping[str, Question], judge: Served, *, mend: bool = False
) -> dict[str, Given]:
    """Kept answers to what is wanted, without those that could be longer now."""
    limit = judge.sampling.max_new_tokens
    return {
        key: given
        for key, (given, had) in _read(path, mend=mend).items()
        if key in wanted and not (given.cut and had < limit)
    }


def _read(path: Path, *, mend: bool) -> dict[str, tuple[Given, int]]:
    """The last answer to each key, and its limit of tokens.

    A last line that a kill cut off is none; ``mend`` removes it, before anything is added to it.
    """
    if not path.is_file():
        return {}
    whole, _, cut = path.read_text(encoding="utf-8").rpartition("\n")
    if cut and mend:
        write_atomic(path, whole + "\n" if whole else "")
    out = {}
    for n, line in enumerate(whole.split("\n") if whole else (), start=1):
        try:
            record = json.loads(line)
            key, _ = str(record["key"]), record["answer"]
            if "url" in record:  # else kept by a version that did not say which server answered
                out[key] = _given(record), int(record["sampling"]["max_new_tokens"])
        except (ValueError, KeyError, TypeError) as error:
            raise ArtifactError(
                f"{path} line {n} is no answer of a judge ({error}); delete that line, or name "
                "another folder with --out."
            ) from error
    return out
