"""Stage 1: deploy pi_i and log D_i: many conversations, concurrent, seeded, resumable.

Conversations are played in fixed blocks. All conversations of a block advance together, so a
local policy answers them with one generate call, and its batches, hence its numbers, are the same
in every run. A finished block is written at once; resuming plays only the missing blocks.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from iterpo.agents.base import Seat
from iterpo.artifacts import is_sealed, seal
from iterpo.collect.play import Table, play, wait_for
from iterpo.domain import Conversation, Ending, Role, Sampled, Scenario, derive
from iterpo.errors import BatchError
from iterpo.store import CONVERSATIONS, read_conversations, write_conversations

__all__ = ["JStar", "Pace", "Tally", "collect", "collect_into", "seats"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Tally:
    """What has been played so far."""

    done: int
    """Finished conversations."""
    total: int
    """Planned conversations."""
    agreed: int
    """Conversations that ended in a deal."""
    failed: int
    """Infrastructure failures: left out of every mean, and counted."""
    tokens: int
    """Tokens that the policy sampled."""

    def facts(self) -> dict[str, float]:
        """Numbers for a progress bar."""
        scored = self.done - self.failed
        agreement = self.agreed / scored if scored else 0.0
        return {"agreement": agreement, "failed": float(self.failed), "tokens": float(self.tokens)}


class Pace:
    """Numbers of a progress bar: those of a tally, and how fast it grows."""

    def __init__(self) -> None:
        """The clock starts here."""
        self._started = time.monotonic()
        self._first: Tally | None = None

    def facts(self, tally: Tally) -> dict[str, float]:
        """Facts of the tally with rates; what an earlier attempt had done does not count."""
        first = self._first = self._first or tally
        seconds = max(time.monotonic() - self._started, 1e-9)
        return tally.facts() | {
            "conversations_per_s": (tally.done - first.done + 1) / seconds,
            "tokens_per_s": (tally.tokens - first.tokens) / seconds,
        }


JStar = Callable[[Scenario], Mapping[str, float]]
Progress = Callable[[Tally], None]


def seats(
    scenarios: Sequence[Scenario],
    per_scenario: int,
    *,
    round: int,  # noqa: A002 - the paper's word
    seed: int,
) -> tuple[Seat, ...]:
    """Every conversation of a batch, each with a seed of its own (pain 52)."""
    return tuple(
        Seat(
            scenario,
            Role.AGENT,
            round,
            replica,
            derive(seed, "round", round, scenario.split.value, scenario.kernel_id, replica),
        )
        for scenario in scenarios
        for replica in range(per_scenario)
    )


def collect(
    table: Table,
    places: Sequence[Seat],
    *,
    concurrency: int = 128,
    attempts: int = 2,
    j_star: JStar | None = None,
    progress: Progress | None = None,
) -> tuple[Conversation, ...]:
    """Play a batch in memory.

    Args:
        table: Environment and agents.
        places: One seat per conversation (``seats``).
        concurrency: Conversations of a block; they advance together and share generate calls.
        attempts: Tries of a conversation that fails for reasons outside it (a server, a model).
        j_star: Best attainable return of a scenario by discount unit, where it is known.
        progress: Called after every conversation.
    """
    played: list[Conversation] = []
    for block in _blocks(places, concurrency):
        meter = _Meter(played, len(places), progress)
        played.extend(_play_block(table, block, attempts, j_star, meter))
    return tuple(played)


def collect_into(
    folder: Path,
    table: Table,
    places: Sequence[Seat],
    *,
    concurrency: int = 128,
    attempts: int = 2,
    max_failed: float = 1.0,
    j_star: JStar | None = None,
    progress: Progress | None = None,
) -> tuple[Conversation, ...]:
    """Play a batch into ``folder``; a second call continues where the first one stopped.

    Args:
        folder: Where the log goes; sealed at the end.
        table: Environment and agents.
        places: One seat per conversation (``seats``).
        concurrency: Conversations of a block, as in ``collect``.
        attempts: Tries of a conversation that fails for reasons outside it.
        max_failed: Largest share of conversations that may fail for reasons outside them; with more
            the batch is not finished, and a second call plays the blocks with failures again.
        j_star: Best attainable return of a scenario by discount unit, where it is known.
        progress: Called after every conversation.

    Raises:
        BatchError: if more than ``max_failed`` of the conversations failed.
        ArtifactError: if stored conversations are truncated or changed.
        StorageFullError: if the disk is full; finished blocks are kept.
    """
    if is_sealed(folder):
        return read_conversations(folder)
    parts = folder / "parts"
    played: list[Conversation] = []
    for number, block in enumerate(_blocks(places, concurrency)):
        part = parts / f"{number:05d}.jsonl"
        if part.exists():
            played.extend(read_conversations(part))
            continue
        meter = _Meter(played, len(places), progress)
        fresh = _play_block(table, block, attempts, j_star, meter)
        write_conversations(part, fresh)
        played.extend(fresh)
    _refuse_failures(parts, played, concurrency, max_failed)
    write_conversations(folder / CONVERSATIONS, played)
    shutil.rmtree(parts)
    counts = {ending.value: sum(c.outcome.ending is ending for c in played) for ending in Ending}
    facts = {"conversations": len(played), "endings": {k: n for k, n in counts.items() if n}}
    seal(folder, "conversations", facts)
    return tuple(played)


def _refuse_failures(
    parts: Path, played: Sequence[Conversation], concurrency: int, max_failed: float
) -> None:
    """Forget the blocks with failures if there are too many of them, and say so."""
    failed = [c for c in played if c.outcome.ending is Ending.INFRASTRUCTURE_FAILURE]
    if len(failed) <= max_failed * len(played):
        return
    for number, block in enumerate(_blocks(played, concurrency)):
        if any(c.outcome.ending is Ending.INFRASTRUCTURE_FAILURE for c in block):
            (parts / f"{number:05d}.jsonl").unlink()
    raise BatchError(
        f"{len(failed)} of {len(played)} conversations failed for reasons outside them, more than "
        f"the share of {max_failed:g} that is allowed; the first: {failed[0].outcome.detail}. What "
        "is left would be a biased sample. Once the cause is gone, resume: blocks without a "
        "failure are kept, the others are played again."
    )


class _Meter:
    """Counts finished conversations and tells the progress callback."""

    def __init__(
        self, played: Sequence[Conversation], total: int, progress: Progress | None
    ) -> None:
        self._tally = Tally(0, total, 0, 0, 0)
        self._progress = progress
        for conversation in played:
            self._count(conversation)

    def __call__(self, conversation: Conversation) -> None:
        self._count(conversation)
        if self._progress:
            self._progress(self._tally)

    def _count(self, conversation: Conversation) -> None:
        old, ending = self._tally, conversation.outcome.ending
        self._tally = replace(
            old,
            done=old.done + 1,
            agreed=old.agreed + (ending is Ending.AGREED),
            failed=old.failed + (not ending.scored),
            tokens=old.tokens
            + sum(
                _length(t.sampled) for t in conversation.turns if t.sampled and t.role is Role.AGENT
            ),
        )


def _length(sampled: Sampled) -> int:
    """Tokens of a turn as far as they are known: a server may keep back ids, log-probs or both."""
    return len(sampled.token_ids or sampled.logprobs or ())


def _blocks(places: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (places[i : i + size] for i in range(0, len(places), size))


def _play_block(
    table: Table,
    block: Sequence[Seat],
    attempts: int,
    j_star: JStar | None,
    meter: _Meter,
) -> list[Conversation]:
    results: dict[int, Conversation] = {}
    for attempt in range(attempts):
        open_places = [
            i
            for i in range(len(block))
            if i not in results or results[i].outcome.ending is Ending.INFRASTRUCTURE_FAILURE
        ]
        if not open_places:
            break
        last = attempt == attempts - 1

        async def one(i: int, *, last: bool = last) -> None:
            results[i] = await play(table, block[i])
            if last or results[i].outcome.ending is not Ending.INFRASTRUCTURE_FAILURE:
                meter(results[i])

        async def together(places: Sequence[int] = tuple(open_places)) -> None:
            await asyncio.gather(*(one(i) for i in places))

        wait_for(together)
    played = [results[i] for i in range(len(block))]
    if j_star is None:
        return played
    return [
        replace(c, j_star=dict(j_star(seat.scenario)))
        for c, seat in zip(played, block, strict=True)
    ]
