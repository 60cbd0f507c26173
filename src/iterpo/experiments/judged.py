"""judged: what a judge says about conversations, and how far that goes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from iterpo.agents.endpoint import EndpointConfig
from iterpo.domain import Conversation, Sampling
from iterpo.errors import DataError
from iterpo.experiments.asking import ANSWERS, Answers, Given, Progress, ask, question_key, stored
from iterpo.experiments.speakers import Served
from iterpo.measure.behavior import Codebook, Codes
from iterpo.measure.judging import Question, question, read_answer

__all__ = ["JudgeDesk", "judge_of", "judged"]

_ALIKE = 8
"""Equal answers to so many questions, and no other ones, look like no reading."""


@dataclass(frozen=True, slots=True)
class JudgeDesk:
    """Who is asked what no rule can say, and where the answers lie."""

    judge: Served
    """A served model."""
    folder: Path
    """Where questions and raw answers are kept; a later call finds them there."""
    progress: Progress | None = None
    """Told after each answer."""
    asks: bool = True
    """False reads the stored answers only, and asks nobody."""


def judged(
    talks: Sequence[tuple[Conversation, Codebook | None]],
    desk: JudgeDesk,
    order: Sequence[int] | None = None,
) -> tuple[list[Codes | None], dict[str, Any]]:
    """Codes of a judge for conversations, and what was had.

    Args:
        talks: Conversations and their codebooks.
        desk: Who is asked, and where the answers lie.
        order: Indices of ``talks`` in the order of asking; None: as they come.

    Returns:
        Codes, None where there is no readable answer; and JSON values: who answered, and of all
        conversations how many were coded, unreadable and not had, which is all of them. ``silent``
        of the coded ones were not asked about, as the agent says nothing there; ``cut`` of the
        unreadable ones were cut off at the limit of tokens. ``identical`` counts the answers to
        different questions where all of them are one text, else it is 0; ``read_again``: nobody
        was asked.

    Raises:
        ArtifactError, ResumeError, StorageFullError: as ``ask``.
    """
    questions = [question(*talk) for talk in talks]
    queue = [questions[i] for i in order or range(len(questions)) if questions[i].messages]
    path = desk.folder / ANSWERS
    answers = (
        ask(path, queue, desk.judge, desk.progress)
        if desk.asks
        else stored(path, queue, desk.judge)
    )
    codes, counted = _read(questions, answers, desk.judge)
    return codes, {
        **_who(desk.judge, answers),
        "answers": str(path),
        **counted,
        "identical": _identical(list(answers.given.values())),
        "asked_now": answers.asked,
        "failed_now": answers.failed,
        "first_failure": answers.why,
        "stopped": answers.stopped,
        "read_again": not desk.asks,
    }


def judge_of(told: Mapping[str, Any]) -> Served | None:
    """The judge that an earlier result tells of; None where it does not tell enough."""
    try:
        endpoint = EndpointConfig(
            str(told["url"]), str(told["model"]), logprobs=False, extra_body=told["extra_body"]
        )
        return Served(endpoint, Sampling(**told["sampling"]))
    except (LookupError, TypeError, ValueError):
        return None


def _read(
    questions: Sequence[Question], answers: Answers, judge: Served
) -> tuple[list[Codes | None], dict[str, Any]]:
    """What each conversation is coded as, and how many were."""
    out: list[Codes | None] = []
    counts, unreadable = Counter[str](), ""
    for asked in questions:
        given = answers.given.get(question_key(asked, judge))
        codes: Codes | None = None
        if not asked.messages:  # the agent never spoke: there is nothing to ask about
            counts["silent"] += 1
            codes = dict.fromkeys(asked.behaviours, ())
        elif given is None:
            counts["not_had"] += 1
        else:
            try:
                codes = _codes(given, asked, judge.sampling.max_new_tokens)
            except DataError as error:
                unreadable = unreadable or str(error)
                counts["unreadable"] += 1
                counts["cut"] += given.cut
        out.append(codes)
    return out, {
        "conversations": len(out),
        "coded": sum(c is not None for c in out),
        **{kind: counts[kind] for kind in ("silent", "unreadable", "cut", "not_had")},
        "first_unreadable": unreadable,
    }


def _codes(given: Given, asked: Question, limit: int) -> Codes:
    if given.cut:
        raise DataError(f"cut off at the limit of {limit} tokens")
    return read_answer(given.text, asked)


def _who(judge: Served, answers: Answers) -> dict[str, Any]:
    return {
        "model": judge.endpoint.model,
        "url": judge.endpoint.base_url,
        "served_models": sorted({g.model for g in answers.given.values() if g.model}),
        "sampling": asdict(judge.sampling),
        "extra_body": dict(judge.endpoint.extra_body),
    }


def _identical(given: Sequence[Given]) -> int:
    return len(given) if len(given) >= _ALIKE and len({g.text.strip() for g in given}) == 1 else 0
