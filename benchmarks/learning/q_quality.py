"""How well a fitted Q ranks the responses of one state, against their values by simulation.

    python benchmarks/learning/q_quality.py --games ultimatum deal_or_no_deal

For each game nano plays, and at 96 held-out states it answers 8 times; each answer is worth the
mean return of 4 continuations with nano and the scripted partner. Every way of fitting Q then
scores the same answers: `within` is the correlation with those values inside a state, `gain` the
share of what choosing the best answer is worth that choosing Q's favourite keeps (the best answer
is chosen on two continuations and valued on the other two, both ways, so it isn't flattered).
Finished games are kept in the file of results and not redone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from cells import GAMES, ROOT, cell_plan, versions, write_records

from iterpo import environments
from iterpo.agents.base import Seat
from iterpo.agents.local import LocalPolicy
from iterpo.agents.scripted import Bargaining, ScriptedPartner
from iterpo.collect import Table, collect, play, seats
from iterpo.domain import (
    Conversation,
    Response,
    Role,
    Split,
    State,
    Turn,
    action_indices,
    decisions,
    derive,
)
from iterpo.experiments.plan import Plan
from iterpo.experiments.rollout import draw_scenarios
from iterpo.models.backbone import Backbone, load
from iterpo.models.checkpoints import load_policy
from iterpo.models.generation import generate
from iterpo.policy_evaluation.base import TuneConfig
from iterpo.policy_evaluation.monte_carlo import fit_q

PLAN = Path(__file__).with_name("improvement.yaml")
STATES, ANSWERS, CONTINUATIONS, CONVERSATIONS = 96, 8, 4, 1600
PAPER = {
    "pooling": "final",
    "heads": 1,
    "standardise": False,
    "clamp": False,
    "learning_rate": 1e-4,
    "epochs": 3,
    "batch_size": 8,
}
WAYS: dict[str, tuple[int, dict[str, Any]]] = {
    "recipe": (1000, {}),
    "recipe, 400 conversations": (400, {}),
    "recipe, 1600 conversations": (1600, {}),
    "paper": (1000, PAPER),
    "final token only": (1000, {"pooling": "final"}),
    "one head": (1000, {"heads": 1}),
    "not standardised": (1000, {"standardise": False}),
    "pessimism 1": (1000, {"pessimism": 1.0}),
    "dropout 0.4": (1000, {"dropout": 0.4}),
    "shuffled returns": (1000, {"shuffle_returns": True}),
}
SLOW = {"tuned critic": (1000, {"tune": TuneConfig(learning_rate=1e-3)})}
"""Takes about 25 times as long as the others together."""


@dataclass
class Judged:
    """Answers with their values."""

    log: list[Conversation]
    """What Q is fitted on; other kernels than those of the states."""
    states: list[State]
    """(n,)"""
    answers: list[Response]
    """(n * ANSWERS,)"""
    returns: torch.Tensor
    """(n, ANSWERS, CONTINUATIONS)"""


def judged(plan: Plan, backbone: Backbone) -> Judged:
    """Play, answer, and play on behind every answer."""
    env = environments.make(plan.environment.name, **plan.environment.options)
    partner = ScriptedPartner(cast(Bargaining, env), plan.partner.seed)
    table = Table(env, LocalPolicy(backbone, plan.collect.sampling), partner)
    per = plan.collect.per_scenario
    log = collect(table, seats(draw_scenarios(env, plan, Split.TRAIN, 0), per, round=0, seed=0))
    kernels = draw_scenarios(env, plan, Split.HELDOUT, 0)
    found = collect(table, seats(kernels, 1, round=0, seed=1))
    places = [(c, d.state) for c in found for d in decisions(c, plan.q.gamma)]
    random.Random(0).shuffle(places)
    places = places[:STATES]
    prompts = [backbone.chat.prompt_ids(s.messages) for _, s in places for _ in range(ANSWERS)]
    seeds = [derive(0, "answer", n) for n in range(len(prompts))]
    said = generate(backbone, prompts, plan.collect.sampling, seeds)
    answers = [Response(backbone.chat.decode(g.token_ids), g.token_ids) for g in said]
    scenario = {s.kernel_id: s for s in kernels}

    async def all_of_them() -> list[Conversation]:
        jobs = []
        for n, answer in enumerate(answers):
            log_of, state = places[n // ANSWERS]
            begun = log_of.turns[: action_indices(log_of.turns)[state.t - 1]]
            for k in range(CONTINUATIONS):
                # The answers of one state meet the same draws: their differences are less noisy.
                seed = derive(0, "continue", state.conversation_id, state.t, k)
                number = 10_000 + n * CONTINUATIONS + k
                seat = Seat(scenario[state.kernel_id], Role.AGENT, number, log_of.replica, seed)
                jobs.append(play(table, seat, (*begun, Turn(Role.AGENT, answer.text))))
        return list(await asyncio.gather(*jobs))

    returns = []
    for n, conversation in enumerate(asyncio.run(all_of_them())):
        t = places[n // (ANSWERS * CONTINUATIONS)][1].t
        returns.append(decisions(conversation, plan.q.gamma)[t - 1].ret)
    values = torch.tensor(returns).view(len(places), ANSWERS, CONTINUATIONS)
    return Judged(list(log), [s for _, s in places], answers, values)


def within(scores: torch.Tensor, values: torch.Tensor) -> float:
    """Correlation (n, ANSWERS) of what is left when each state's mean is taken off."""
    a, b = (x - x.mean(1, keepdim=True) for x in (scores, values))
    return float((a * b).sum() / (a.norm() * b.norm()).clamp(min=1e-12))


def best_is_worth(returns: torch.Tensor) -> float:
    """Mean gain of the best answer over a state's mean answer, without flattery."""
    half = CONTINUATIONS // 2
    one, other = returns[..., :half].mean(-1), returns[..., half:].mean(-1)
    chosen = [
        b.gather(1, a.argmax(1, keepdim=True)).mean() for a, b in ((one, other), (other, one))
    ]
    return float(sum(chosen) / 2 - returns.mean())


def rows_of_game(game: str, ways: dict[str, tuple[int, dict[str, Any]]]) -> list[dict[str, Any]]:
    """Every way's quality in one game."""
    wanted = [f"collect.scenarios={CONVERSATIONS // 4}", "heldout.scenarios=100"]
    plan = cell_plan(PLAN, game, wanted, 0)
    backbone = load(load_policy(plan.policy.model), dtype=plan.policy.dtype, device="cpu")
    facts = judged(plan, backbone)
    values, best = facts.returns.mean(-1), best_is_worth(facts.returns)
    rows = []
    for way, (count, settings) in ways.items():
        begun = time.process_time()
        fitted = fit_q(backbone, facts.log[:count], replace(plan.q, **settings))
        seconds = time.process_time() - begun
        at = [s for s in facts.states for _ in range(ANSWERS)]
        given = cast(Sequence[float], fitted.q(at, facts.answers))
        scores = torch.tensor(given).view(values.shape)
        gain = float(values.gather(1, scores.argmax(1, keepdim=True)).mean() - values.mean())
        row = {"game": game, "way": way, "conversations": count}
        row |= {"within": round(within(scores, values), 3), "gain": round(gain / best, 3)}
        row |= {"best_is_worth": round(best, 3), "mean_return": round(float(values.mean()), 3)}
        rows.append({**row, "heldout_r": fitted.report.fit.pearson, "cpu_s": round(seconds, 1)})
        print(f"{game:16} {way:28} within {row['within']:.2f}  gain {row['gain']:.0%}", flush=True)
    return rows


def main() -> None:
    """Measure what is missing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--games", nargs="+", default=list(GAMES), choices=list(GAMES))
    parser.add_argument("--slow", action="store_true", help="the tuned critic too")
    results = ROOT / "benchmarks" / "results" / "q-quality-nano.json"
    parser.add_argument("--results", type=Path, default=results)
    options = parser.parse_args()
    torch.set_num_threads(1)
    ways = WAYS | (SLOW if options.slow else {})
    found = json.loads(options.results.read_text())["records"] if options.results.exists() else []
    for game in options.games:
        done = {r["way"] for r in found if r["game"] == game}
        if missing := {w: v for w, v in ways.items() if w not in done}:
            found += rows_of_game(game, missing)
            meta = {"versions": versions(), "q": asdict(cell_plan(PLAN, game, [], 0).q)}
            meta |= {"states": STATES, "answers": ANSWERS, "continuations": CONTINUATIONS}
            write_records(options.results, meta, found)


if __name__ == "__main__":
    main()
