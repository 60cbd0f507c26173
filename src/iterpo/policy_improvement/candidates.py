"""Candidate responses of a batch: exact prompt ids in, exact sampled ids and their scores out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from iterpo.domain import Response, derive
from iterpo.errors import TrainingError
from iterpo.models.generation import Generated, generate
from iterpo.models.kept_states import KeptStates
from iterpo.models.padding import pad
from iterpo.policy_improvement.drift import Responses
from iterpo.policy_improvement.job import Job
from iterpo.policy_improvement.monitors import text_monitors
from iterpo.policy_improvement.tempering import temperatures_of

__all__ = ["Batch", "candidate_temperatures", "draw_candidates", "planned_states"]


@dataclass(slots=True)
class Batch:
    """Candidates as they were drawn, G consecutive ones for each state."""

    indices: Sequence[int]
    """The state (N,) of each."""
    responses: Sequence[Response]
    """(N,)."""
    own: torch.Tensor
    """(N,) bool: drawn at the policy's own temperature, the one that it is sampled at."""

    @classmethod
    def of(
        cls,
        job: Job,
        indices: Sequence[int],
        ids: Sequence[Sequence[int]],
        temperatures: Sequence[float],
    ) -> Batch:
        """From the sampled ids of each candidate and the temperature that it was drawn at."""
        chat = job.backbone.chat
        responses = [Response(chat.decode(list(i)), tuple(i)) for i in ids]
        own = torch.tensor([t == job.config.sampling.temperature for t in temperatures])
        return cls(indices, responses, own)

    def lengths(self) -> torch.Tensor:
        """Tokens (N,) of each candidate."""
        return torch.tensor([len(r.token_ids or ()) for r in self.responses])

    def monitors(self, job: Job) -> dict[str, float]:
        """Text monitors of the candidates at the policy's own temperature."""
        own = [n for n, yes in enumerate(self.own.tolist()) if yes]
        states = [job.prompts.states[self.indices[n]] for n in own]
        return text_monitors(states, [self.responses[n] for n in own])

    def padded(self, job: Job, rows: Sequence[int]) -> Responses:
        """Some candidates beside their prompts."""
        fill = job.backbone.chat.stop_ids[0]
        prompts = pad([job.prompts.ids[self.indices[n]] for n in rows], "left", fill)
        said = pad([self.responses[n].token_ids or () for n in rows], "right", fill)
        device = job.backbone.device
        ids, mask = (torch.cat(both, 1).to(device) for both in zip(prompts, said, strict=True))
        return Responses(ids, mask, said[0].size(1))

    def kept(
        self, job: Job, found: KeptStates, width: int
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Which candidates' states were kept (N,), and those states, padded to (n, width, d)."""
        prompts = [job.prompts.ids[i] for i in self.indices]
        said = [r.token_ids or () for r in self.responses]
        states = [found.of(p, r) for p, r in zip(prompts, said, strict=True)]
        known = [s for s in states if s is not None]
        blank = torch.zeros(width, known[0].size(1)) if known else torch.empty(0)
        together = [*known, blank.to(known[0])] if known else []
        whole = torch.nn.utils.rnn.pad_sequence(together, batch_first=True)[:-1] if known else None
        return torch.tensor([s is not None for s in states]), whole

    def score(self, job: Job) -> torch.Tensor:
        """Rewards (N,), float64; NaN where there is none.

        Raises:
            TrainingError: if the reward does not give a number or None for each response.
        """
        given = job.reward([job.prompts.states[i] for i in self.indices], self.responses)
        try:
            scores = [float("nan") if s is None else float(s) for s in given]
        except (TypeError, ValueError) as error:
            raise TrainingError(
                f"the reward returned {given!r:.80}; it must return a number per response, in a "
                f"sequence, and None where it has none ({error})"
            ) from error
        if len(scores) != len(self.responses):
            raise TrainingError(
                f"the reward returned {len(scores)} scores for {len(self.responses)} responses; it "
                "must return one per response, None where it has none"
            )
        values = torch.tensor(scores, dtype=torch.float64)
        return values.masked_fill(~values.isfinite(), float("nan"))


def planned_states(job: Job, rows: Sequence[str], batch: int) -> list[int]:
    """The state of each candidate, from the rows of a trainer's data set.

    Raises:
        TrainingError: if they are not those that the plan has for this batch.
    """
    indices = [int(row) for row in rows]
    if indices[:: job.config.group_size] != list(job.order[batch]):
        raise TrainingError(
            f"batch {batch} holds other states than planned; the resumed data position is wrong. "
            f"Delete {job.workdir} and run again."
        )
    return indices


def candidate_temperatures(job: Job, batch: int) -> list[float]:
    """The temperature of each candidate of a batch."""
    config, states = job.config, job.order[batch]
    given = config.candidate_temperatures or (config.sampling.temperature,)
    names = [job.names[i] for i in states]
    return temperatures_of(given, names, config.group_size, batch, config.seed)


def draw_candidates(
    job: Job, model: Any, indices: Sequence[int], batch: int | str, temperatures: Sequence[float]
) -> list[Generated]:
    """Draw a candidate for each state index, ``group_size`` consecutive ones per state.

    Seeds go by batch, state and number, so a restart draws the same ones.
    """
    config = job.config
    seeds = [
        derive(config.seed, "improve", batch, job.names[i], n % config.group_size)
        for n, i in enumerate(indices)
    ]
    backbone = replace(job.backbone, model=model)
    drawn: dict[int, Generated] = {}
    for temperature in dict.fromkeys(temperatures):
        rows = [n for n, t in enumerate(temperatures) if t == temperature]
        sampling = replace(config.sampling, temperature=temperature)
        prompts = [job.prompts.ids[indices[n]] for n in rows]
        found = generate(backbone, prompts, sampling, [seeds[n] for n in rows])
        drawn.update(zip(rows, found, strict=True))
    return [drawn[n] for n in range(len(indices))]
