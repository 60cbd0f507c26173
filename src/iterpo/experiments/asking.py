"""ask: put questions to a judge on a server; every answer is kept, and none is asked for twice.

Answers are appended to a file as they come, each with the question, the model, the settings and
the raw text. They are found again by a hash of all that could change them: whoever was killed goes
on with what is missing, and another question, model or setting is asked anew.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from iterpo.agents.base import AgentFactory, Seat
from iterpo.artifacts import naming_full_disk, write_atomic
from iterpo.collect.play import wait_for
from iterpo.domain import Role, Scenario, Split, Turn, View, derive
from iterpo.errors import ArtifactError, EndpointError
from iterpo.experiments.speakers import Served, served
from iterpo.measure.judging import Question

__all__ = ["ANSWERS", "Answers", "Progress", "ask", "question_key"]

ANSWERS = "judge.jsonl"
"""Name of the file of answers in a folder."""

Progress = Callable[[int, int, int], None]
"""Receives how many questions are answered, out of how many, and how many failed."""


@dataclass(frozen=True, slots=True)
class Answers:
    """What a judge has said so far."""

    raw: Mapping[str, str] = field(default_factory=dict)
    """Raw answers by the key of their question."""
    asked: int = 0
    """Questions that were sent this time; the others had been answered before."""
    failed: int = 0
    """Questions that got no answer: left out and counted; the next call asks them again."""
    why: str = ""
    """What the first of those failures was."""


def question_key(question: Question, judge: Served) -> str:
    """SHA-256 over the question, the model and its settings: what an answer is found by."""
    told = [question.system, question.prompt, *_settings(judge)]
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def ask(
    path: Path,
    questions: Iterable[Question],
    judge: Served,
    progress: Progress | None = None,
) -> Answers:
    """Ask whatever ``path`` holds no answer to; the same question is asked once.

    Args:
        path: JSON lines of answers; made if absent, and added to.
        questions: What to ask.
        judge: Who is asked. Its endpoint bounds how many requests are in flight and how patiently
            a failing server is asked.
        progress: Called before the first question and after each.

    Raises:
        EndpointError: if the server answered none of the first questions.
        ArtifactError: if ``path`` holds something else.
        StorageFullError: if the disk is full; answers so far are kept.
    """
    wanted = {question_key(q, judge): q for q in questions}
    known = {key: text for key, text in _read(path).items() if key in wanted}
    missing = [key for key in wanted if key not in known]
    if not missing:
        return Answers(known)
    found, failures = dict(known), list[str]()
    agents = served(judge)
    patience = judge.endpoint.concurrency

    def told() -> None:
        if progress:
            progress(len(found), len(wanted), len(failures))

    async def one(key: str) -> None:
        if len(failures) >= patience and len(found) == len(known):
            return  # nobody is there; the others need not find out one by one
        try:
            text = await _answer(agents, key, wanted[key])
        except EndpointError as error:
            failures.append(str(error))
        else:
            _append(path, _record(key, wanted[key], judge, text))
            found[key] = text
        told()

    async def together() -> None:
        # As many at once as the server is asked: whoever gives up early spares the others.
        free = asyncio.Semaphore(patience)

        async def in_turn(key: str) -> None:
            async with free:
                await one(key)

        await asyncio.gather(*map(in_turn, missing))

    told()
    wait_for(together)
    if failures and len(found) == len(known):
        raise EndpointError(f"the judge answered none of {len(failures)} questions: {failures[0]}")
    return Answers(found, len(missing), len(failures), failures[0] if failures else "")


async def _answer(agents: AgentFactory, key: str, question: Question) -> str:
    """The judge speaks once, as the other side of a conversation of one message."""
    scenario = Scenario(key, "judge", Split.HELDOUT, {})
    agent = agents(Seat(scenario, Role.AGENT, 0, 0, derive("judge", key)))
    try:
        asked = Turn(Role.PARTNER, question.prompt)
        return (await agent.reply(View(Role.AGENT, question.system, (asked,)))).text
    finally:
        agent.close()


def _settings(judge: Served) -> Sequence[Any]:
    return judge.endpoint.model, asdict(judge.sampling), dict(judge.endpoint.extra_body)


def _record(key: str, question: Question, judge: Served, text: str) -> dict[str, Any]:
    model, sampling, extra = _settings(judge)
    return {
        "key": key,
        "model": model,
        "sampling": sampling,
        "extra_body": extra,
        "system": question.system,
        "prompt": question.prompt,
        "answer": text,
    }


def _append(path: Path, record: Mapping[str, Any]) -> None:
    with naming_full_disk(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(record) + "\n")


def _read(path: Path) -> dict[str, str]:
    """Answers by key; a last line that a kill cut off goes, before anything is added to it."""
    if not path.is_file():
        return {}
    whole, _, cut = path.read_text(encoding="utf-8").rpartition("\n")
    if cut:
        write_atomic(path, whole + "\n" if whole else "")
    out = {}
    for n, line in enumerate(whole.split("\n") if whole else (), start=1):
        try:
            record = json.loads(line)
            out[str(record["key"])] = str(record["answer"])
        except (ValueError, KeyError, TypeError) as error:
            raise ArtifactError(
                f"{path} line {n} is no answer of a judge ({error}); delete that line, or name "
                "another folder with --out."
            ) from error
    return out
