"""The deploy phase: pi_i plays the training kernels (D_i) and the held-out kernels."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from iterpo import environments
from iterpo.artifacts import seal
from iterpo.collect import Pace, Tally, collect_into, seats
from iterpo.domain import Split
from iterpo.experiments.events import Event, Report
from iterpo.experiments.explorers import explorers
from iterpo.experiments.kernels import draw_scenarios
from iterpo.experiments.lineage import policy_of_round, round_of
from iterpo.experiments.plan import Plan
from iterpo.experiments.speakers import Local, partner_of, seat, speaker_name
from iterpo.measure import measure

__all__ = ["deploy"]


def deploy(folder: Path, plan: Plan, key: str, report: Report) -> None:
    """Log both batches of a round and measure them; the phase folder is sealed at the end."""
    with ExitStack() as engines:
        _deploy(engines, folder, plan, key, report)


def _deploy(engines: ExitStack, folder: Path, plan: Plan, key: str, report: Report) -> None:
    i = round_of(key)
    env = environments.make(plan.environment.name, **plan.environment.options)
    ref = policy_of_round(folder, plan, i)
    at = plan.policy
    agent = Local(ref, plan.collect.sampling, at.dtype, at.device, at.sampler, at.vllm)
    partner = partner_of(plan.partner)
    seating = seat(env, agent, partner, gamma=plan.q.gamma)
    engines.callback(seating.close)
    exploring = explorers(seating.table, plan, folder, i)
    facts: dict[str, object] = {"policy": ref.id, "partner": speaker_name(partner), "round": i}
    facts["sampler"] = seating.sampler
    for split, per_scenario in (
        (Split.TRAIN, plan.collect.per_scenario),
        (Split.HELDOUT, plan.heldout.per_scenario),
    ):
        scenarios = draw_scenarios(env, plan, split, i)
        conversations = collect_into(
            folder / key / split.value,
            exploring.table if split is Split.TRAIN else seating.table,
            seats(scenarios, per_scenario, round=i, seed=plan.seed),
            concurrency=plan.collect.concurrency,
            attempts=plan.collect.attempts,
            max_failed=plan.collect.max_failed,
            j_star=seating.j_star,
            progress=_progress(key, split.value, report),
        )
        facts[split.value] = measure(conversations, plan.q.gamma).to_dict()
        if split is Split.TRAIN and plan.collect.optimism is not None:
            facts["optimism"] = exploring.facts(conversations)
    seal(folder / key, "deploy", facts)


def _progress(key: str, stage: str, report: Report) -> Callable[[Tally], None]:
    """Turns tallies into progress events."""
    pace = Pace()
    return lambda t: report(Event("progress", key, stage, t.done, t.total, pace.facts(t)))
