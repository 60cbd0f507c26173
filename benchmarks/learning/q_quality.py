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
import json
import random
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import torch
from ablations import GUARDS_OFF, OPTIONS_ON, PAPER
from cells import GAMES, ROOT, cell_plan, versions, write_records
from continuations import returns_behind, table_of

from iterpo.collect import collect, seats
from iterpo.domain import (
    Conversation,
    Response,
    Split,
    State,
    decisions,
    derive,
)
from iterpo.experiments.kernels import draw_scenarios
from iterpo.experiments.plan import Plan
from iterpo.models.backbone import Backbone, load
from iterpo.models.checkpoints import load_policy
from iterpo.models.generation import generate
from iterpo.policy_evaluation.fit import fit_q

PLAN = Path(__file__).with_name("improvement.yaml")
STATES, ANSWERS, CONTINUATIONS, CONVERSATIONS = 96, 8, 4, 1600
Way = tuple[int, list[str]]
"""Conversations that Q is fitted on, and settings on top of the recipe's."""
WAYS: dict[str, Way] = {
    "recipe": (1000, []),
    "recipe, 400 conversations": (400, []),
    "recipe, 1600 conversations": (1600, []),
    "paper": (1000, PAPER),
    "final token only": (1000, GUARDS_OFF["final-token"]),
    "one head": (1000, GUARDS_OFF["one-head"]),
    "not standardised": (1000, GUARDS_OFF["not-standardised"]),
    "pessimism 1": (1000, OPTIONS_ON["pessimism-1"]),
    "dropout 0.4": (1000, ["q.dropout=0.4"]),
    "shuffled returns": (1000, ["q.shuffle_returns=true"]),
}
SLOW = {"tuned critic": (1000, OPTIONS_ON["tuned-critic"])}
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
    table = table_of(plan, backbone)
    per = plan.collect.per_scenario
    log = collect(
        table, seats(draw_scenarios(table.environment, plan, Split.TRAIN, 0), per, round=0, seed=0)
    )
    kernels = draw_scenarios(table.environment, plan, Split.HELDOUT, 0)
    found = collect(table, seats(kernels, 1, round=0, seed=1))
    places = [(c, d.state) for c in found for d in decisions(c, plan.q.gamma)]
    random.Random(0).shuffle(places)
    places = places[:STATES]
    prompts = [backbone.chat.prompt_ids(s.messages) for _, s in places for _ in range(ANSWERS)]
    seeds = [derive(0, "answer", n) for n in range(len(prompts))]
    said = generate(backbone, prompts, plan.collect.sampling, seeds)
    answers = [Response(backbone.chat.decode(g.token_ids), g.token_ids) for g in said]
    scenario = {s.kernel_id: s for s in kernels}

    spots = [(scenario[s.kernel_id], c, s.t) for c, s in places for _ in range(ANSWERS)]
    texts = [answer.text for answer in answers]
    returns = returns_behind(table, plan, spots, texts, CONTINUATIONS)
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


def rows_of_game(game: str, ways: dict[str, Way]) -> list[dict[str, Any]]:
    """Every way's quality in one game."""
    wanted = [f"collect.scenarios={CONVERSATIONS // 4}", "heldout.scenarios=100"]
    plan = cell_plan(PLAN, game, wanted, 0)
    backbone = load(load_policy(plan.policy.model), dtype=plan.policy.dtype, device="cpu")
    facts = judged(plan, backbone)
    values, best = facts.returns.mean(-1), best_is_worth(facts.returns)
    rows = []
    for way, (count, settings) in ways.items():
        begun = time.process_time()
        fitted = fit_q(
            backbone, facts.log[:count], cell_plan(PLAN, game, [*wanted, *settings], 0).q
        )
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
