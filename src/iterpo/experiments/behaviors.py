"""behaviour_shifts: what the agent of runs did differently at its best round (appendix J)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Any

from iterpo import environments
from iterpo.domain import Conversation, Split, derive
from iterpo.errors import ConfigError, DataError
from iterpo.experiments.codebooks import codebooks
from iterpo.experiments.judged import JudgeDesk, judged
from iterpo.experiments.kernels import draw_scenarios
from iterpo.experiments.results import RunFacts
from iterpo.measure.behavior import BEHAVIOURS, Codebook, Coder, Codes, code, coders
from iterpo.measure.returns import scored
from iterpo.measure.shifts import Coded, Shift, cohens_kappa, shared_kernels, shift
from iterpo.store import read_conversations

__all__ = ["behaviour_shifts"]

_EXAMPLES = 2
_SAID_BY = {
    (True, True): "both",
    (True, False): "rule_only",
    (False, True): "judge_only",
    (False, False): "neither",
}


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
    kernels: int | None = None,
) -> dict[str, Any]:
    """Code round 0 and the best round of runs of one game, and compare them kernel by kernel.

    Args:
        runs: Finished runs, such as one plan with several seeds; they are pooled.
        split: Whose conversations.
        round_: The later round; None takes the best one of each run.
        desk: A judge for what no rule can say; None leaves those behaviours out.
        kernels: Compare a sample of so many kernels, which is a part of every larger one; None
            takes all that both rounds have played.

    Returns:
        JSON values: ``rows`` (a ``Shift`` for each behaviour and coder), ``coding`` (who codes what
        in this game), ``needs_judge`` (what has no row of a judge that could code it), ``examples``
        of the rows in their order, ``judge`` (as ``judged`` tells) and counts.

    Raises:
        ConfigError: if the runs are of different games, or a round is not there.
        BatchError: if the rounds share no kernel.
        ArtifactError, ResumeError, StorageFullError: as ``asking.ask``.
    """
    game = _game(runs)
    rounds = [_later_round(run, round_) for run in runs]
    logged = list(_talks(runs, rounds, split))
    kept = set(map(id, scored([t.conversation for t in logged])))
    usable = [t for t in logged if id(t.conversation) in kept]
    shared = _drawn(usable)
    chosen = shared[:kernels]
    talks = [t for t in usable if t.conversation.kernel_id in set(chosen)]
    book = talks[0].codebook
    by_rule: list[Codes | None] = [dict(code(t.conversation, t.codebook)) for t in talks]
    by_judge: list[Codes | None] = [None] * len(talks)
    told = None
    if desk:
        asked = [(t.conversation, t.codebook) for t in talks]
        by_judge, told = judged(asked, desk, _in_pairs(talks, chosen))
    who = {b.name: coders(b, book) for b in BEHAVIOURS}
    rows = list(_rows(talks, who, by_rule, by_judge))
    return {
        "environment": game,
        "runs": [str(run.folder) for run in runs],
        "split": split.value,
        "rounds": rounds,
        "conversations": [sum(t.after is after for t in talks) for after in (False, True)],
        "kernels": {"compared": len(chosen), "shared": len(shared)},
        "left_out": len(logged) - len(usable),
        "coding": {name: list(by) for name, by in who.items()},
        "needs_judge": _waiting(who, rows, asked=desk is not None),
        "judge": told,
        "rows": rows,
        "examples": _examples(talks, by_rule, by_judge),
    }


def _game(runs: Sequence[RunFacts]) -> str:
    games = {run.plan.environment.name for run in runs}
    if len(games) != 1:
        raise ConfigError(f"the runs are of {', '.join(sorted(games)) or 'no game'}; give one game")
    return games.pop()


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


def _drawn(talks: Sequence[_Talk]) -> list[str]:
    """Kernels that both rounds have played, in an order that has to do with nothing else."""
    sides = ([t.conversation for t in talks if t.after is side] for side in (False, True))
    return sorted(shared_kernels(*sides), key=lambda kernel: derive("behaviour", kernel))


def _in_pairs(talks: Sequence[_Talk], kernels: Sequence[str]) -> list[int]:
    """Indices kernel by kernel, both rounds in turn: whoever stops early has pairs to compare."""
    at: dict[tuple[str, bool], list[int]] = {(k, s): [] for k in kernels for s in (False, True)}
    for i, t in enumerate(talks):
        at[t.conversation.kernel_id, t.after].append(i)
    turns = (chain(*zip_longest(at[k, False], at[k, True])) for k in kernels)
    return [i for i in chain(*turns) if i is not None]


def _rows(
    talks: Sequence[_Talk],
    who: Mapping[str, tuple[Coder, ...]],
    by_rule: Sequence[Codes | None],
    by_judge: Sequence[Codes | None],
) -> Iterator[dict[str, Any]]:
    """A row for each behaviour and coder; a judge's tells how far a rule agrees."""
    for name, named in who.items():
        if "rule" in named and (row := _row(name, "rule", talks, by_rule)):
            yield row
        if "judge" in named and (row := _row(name, "judge", talks, by_judge)):
            both = {"kappa": _kappa(name, by_rule, by_judge)} if "rule" in named else {}
            yield {**row, **both}


def _waiting(
    who: Mapping[str, Sequence[Coder]], rows: Sequence[Mapping[str, Any]], *, asked: bool
) -> list[str]:
    """What has no row of a judge: all that it could code, or, unasked, what nobody else can."""
    had = {row["behaviour"] for row in rows if row["by"] == "judge"}
    missing = [name for name, by in who.items() if "judge" in by and name not in had]
    return [name for name in missing if asked or "rule" not in who[name]]


def _row(
    name: str, coder: Coder, talks: Sequence[_Talk], codes: Sequence[Codes | None]
) -> dict[str, Any] | None:
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
    by_run = [s.difference.mean if s else None for s in each]
    return {"by": coder, **pooled.to_dict(), "by_run": by_run}


def _kappa(
    name: str, by_rule: Sequence[Codes | None], by_judge: Sequence[Codes | None]
) -> dict[str, Any]:
    """How far rule and judge agree on which conversations show a behaviour."""
    pairs = [
        (bool(r[name]), bool(j[name]))
        for r, j in zip(by_rule, by_judge, strict=True)
        if r is not None and j is not None
    ]
    value = cohens_kappa([r for r, _ in pairs], [j for _, j in pairs])
    counts = Counter(_SAID_BY[pair] for pair in pairs)
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
