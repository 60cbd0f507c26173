"""behaviour_shifts: what the agent of runs did differently at its best round (appendix J)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from iterpo import environments
from iterpo.domain import Conversation, Split
from iterpo.errors import ConfigError, DataError
from iterpo.experiments.asking import ANSWERS, Progress, ask, question_key
from iterpo.experiments.codebooks import codebooks
from iterpo.experiments.kernels import draw_scenarios
from iterpo.experiments.results import RunFacts
from iterpo.experiments.speakers import Served
from iterpo.measure.behavior import BEHAVIOURS, Codebook, Coder, Codes, code, coders
from iterpo.measure.judging import question, read_answer
from iterpo.measure.returns import scored
from iterpo.measure.shifts import Coded, Shift, cohens_kappa, shared_kernels, shift
from iterpo.store import read_conversations

__all__ = ["JudgeDesk", "behaviour_shifts"]

_EXAMPLES = 2


@dataclass(frozen=True, slots=True)
class JudgeDesk:
    """Who is asked what no rule can say, and where the answers lie."""

    judge: Served
    """A served model."""
    folder: Path
    """Where questions and raw answers are kept; a later call finds them there."""
    progress: Progress | None = None
    """Told after each answer."""


@dataclass(frozen=True, slots=True)
class _Talk:
    """One conversation of the comparison."""

    run: int
    after: bool
    conversation: Conversation
    codebook: Codebook | None


def behaviour_shifts(
    runs: Sequence[RunFacts],
    split: Split = Split.HELDOUT,
    round_: int | None = None,
    desk: JudgeDesk | None = None,
) -> dict[str, Any]:
    """Code round 0 and the best round of runs of one game, and compare them kernel by kernel.

    Args:
        runs: Finished runs, such as one plan with several seeds; they are pooled.
        split: Whose conversations.
        round_: The later round; None takes the best one of each run.
        desk: A judge for what no rule can say; None leaves those behaviours out.

    Returns:
        JSON values: ``rows`` (a ``Shift`` for each behaviour and coder), ``coding`` (who codes what
        in this game), ``examples``, ``judge`` and counts.

    Raises:
        ConfigError: if the runs are of different games, or a round is not there.
        BatchError: if the rounds share no kernel.
        EndpointError: if the judge can't be reached.
    """
    games = {run.plan.environment.name for run in runs}
    if len(games) != 1:
        raise ConfigError(f"the runs are of {', '.join(sorted(games)) or 'no game'}; give one game")
    rounds = [_later_round(run, round_) for run in runs]
    logged = list(_talks(runs, rounds, split))
    kept = set(map(id, scored([t.conversation for t in logged])))
    talks = [t for t in logged if id(t.conversation) in kept]
    book = talks[0].codebook
    shared_kernels(*([t.conversation for t in talks if t.after is s] for s in (False, True)))
    by_rule = [dict(code(t.conversation, t.codebook)) for t in talks]
    by_judge, told = _judged(talks, desk) if desk else ([None] * len(talks), None)
    rows = []
    for behaviour in BEHAVIOURS:
        who: tuple[Coder, ...] = coders(behaviour, book)
        for coder, codes in (("rule", by_rule), ("judge", by_judge)):
            if coder in who and (row := _row(behaviour.name, talks, codes)):
                rows.append({"by": coder, **row})
        if len(who) == 2 and desk:
            rows[-1]["kappa"] = _kappa(behaviour.name, by_rule, by_judge)
    return {
        "environment": games.pop(),
        "runs": [str(run.folder) for run in runs],
        "split": split.value,
        "rounds": rounds,
        "conversations": [sum(t.after is after for t in talks) for after in (False, True)],
        "left_out": len(logged) - len(talks),
        "coding": {b.name: list(coders(b, book)) for b in BEHAVIOURS},
        "judge": told,
        "rows": rows,
        "examples": _examples(talks, by_rule, by_judge),
    }


def _later_round(run: RunFacts, round_: int | None) -> int:
    if round_ is None and run.best_round is None:
        raise ConfigError(
            f"{run.folder} has not ended, so it has no best round yet; give --round, one of "
            f"{[r.round for r in run.rounds]}"
        )
    chosen = run.best_round if round_ is None else round_
    if chosen not in [r.round for r in run.rounds]:
        raise ConfigError(
            f"{run.folder} has no finished round {chosen}; there are "
            f"{[r.round for r in run.rounds]}"
        )
    return int(chosen or 0)


def _talks(runs: Sequence[RunFacts], rounds: Sequence[int], split: Split) -> Iterator[_Talk]:
    for k, (run, later) in enumerate(zip(runs, rounds, strict=True)):
        plan = run.plan
        game = environments.make(plan.environment.name, **plan.environment.options)
        for after, i in ((False, 0), (True, later)):
            books = codebooks(game, draw_scenarios(game, plan, split, i))
            for c in read_conversations(run.folder / f"round-{i}" / "deploy" / split.value):
                if c.kernel_id not in books:
                    raise DataError(
                        f"{run.folder}, round {i}: kernel {c.kernel_id!r} is none of those that "
                        "the plan draws, so what it is about is not known; the data set or the "
                        "plan has changed since: restore it"
                    )
                yield _Talk(k, after, c, books[c.kernel_id])


def _judged(talks: Sequence[_Talk], desk: JudgeDesk) -> tuple[list[Codes | None], dict[str, Any]]:
    """Codes of a judge, None where its answer is missing or unreadable, and what was asked."""
    questions = [question(t.conversation, t.codebook) for t in talks]
    path = desk.folder / ANSWERS
    answers = ask(path, [q for q in questions if q.messages], desk.judge, desk.progress)
    out: list[Codes | None] = []
    unreadable: list[str] = []
    for asked in questions:
        if not asked.messages:  # the agent never spoke: there is nothing to ask about
            out.append(dict.fromkeys(asked.behaviours, ()))
            continue
        text = answers.raw.get(question_key(asked, desk.judge))
        try:
            out.append(None if text is None else read_answer(text, asked))
        except DataError as error:
            unreadable.append(str(error))
            out.append(None)
    return out, {
        "model": desk.judge.endpoint.model,
        "sampling": asdict(desk.judge.sampling),
        "answers": str(path),
        "conversations": len(out),
        "coded": sum(c is not None for c in out),
        "unreadable": len(unreadable),
        "first_unreadable": unreadable[0] if unreadable else "",
        "asked_now": answers.asked,
        "failed": answers.failed,
        "first_failure": answers.why,
    }


def _row(name: str, talks: Sequence[_Talk], codes: Sequence[Codes | None]) -> dict[str, Any] | None:
    """The shift of a behaviour over all runs, and in each of them; None if no kernel is coded."""

    def over(run: int | None) -> Shift | None:
        coded = [
            (t.after, Coded(t.conversation, c))
            for t, c in zip(talks, codes, strict=True)
            if c is not None and run in (None, t.run)
        ]
        before, after = ([c for late, c in coded if late is side] for side in (False, True))
        kernels = [{c.conversation.kernel_id for c in side} for side in (before, after)]
        return shift(name, before, after) if kernels[0] & kernels[1] else None

    pooled = over(None)
    if pooled is None:
        return None
    each = [over(k) for k in sorted({t.run for t in talks})]
    return {**pooled.to_dict(), "by_run": [s.difference.mean if s else None for s in each]}


def _kappa(name: str, by_rule: Sequence[Codes], by_judge: Sequence[Codes | None]) -> dict[str, Any]:
    """How far rule and judge agree on which conversations show a behaviour."""
    pairs = [
        (bool(r[name]), bool(j[name]))
        for r, j in zip(by_rule, by_judge, strict=True)
        if j is not None
    ]
    value = cohens_kappa([r for r, _ in pairs], [j for _, j in pairs])
    counts = Counter(("rule" if r else "") + ("judge" if j else "") or "neither" for r, j in pairs)
    return {"kappa": value, "conversations": len(pairs), "said_by": dict(sorted(counts.items()))}


def _examples(
    talks: Sequence[_Talk], *coded: Sequence[Codes | None]
) -> dict[str, list[dict[str, Any]]]:
    """A few messages for each behaviour, of different kernels, both rounds alike."""
    out: dict[str, list[dict[str, Any]]] = {}
    for behaviour in BEHAVIOURS:
        shown = []
        for coder, codes in zip(("rule", "judge"), coded, strict=True):
            for after in (False, True):
                shown += _shown(behaviour.name, coder, after, zip(talks, codes, strict=True))
        if shown:
            out[behaviour.name] = shown
    return out


def _shown(
    name: str, coder: str, after: bool, coded: Iterable[tuple[_Talk, Codes | None]]
) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for talk, codes in coded:
        c = talk.conversation
        if talk.after is after and codes and codes.get(name) and c.kernel_id not in found:
            i = codes[name][0]
            where = {"conversation": c.id, "kernel_id": c.kernel_id, "message": i}
            found[c.kernel_id] = {"by": coder, "after": after, **where, "text": c.turns[i].text}
            if len(found) == _EXAMPLES:
                break
    return list(found.values())
