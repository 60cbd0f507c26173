"""How much of J* an agent can get that doesn't know the partner's private draw.

    python benchmarks/learning/attainable.py

J* is the best return of somebody who reads the partner's limit. A policy never can: it learns of it
from the partner's counters. The number here is the best return of an agent that knows what every
deal is worth to the partner and how its limit and its way of conceding are drawn, but not the draw,
and that reads its aspiration off every counter exactly, and everything off the third. No policy can
do better in the mean, so what lies between it and J* is nobody's to gain; how much of it a policy
can have is another question. `simple` is what is certainly to be had by who knows what deals are
worth to the partner: the best first demand, then what the first counter shows to be acceptable.
Held-out kernels, unit `agent_turn`.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import numpy as np
from cells import GAMES, cell_plan, versions, write_records
from numpy.typing import NDArray

from iterpo import environments
from iterpo.agents.scripted import Bargaining
from iterpo.domain import Split
from iterpo.experiments.kernels import draw_scenarios

PLAN = Path(__file__).with_name("improvement.yaml")
OUT = Path(__file__).parents[1] / "results" / "attainable.json"
GROUPS = 20
"""Most values of an aspiration that are told apart after the first counter."""
Table = NDArray[np.float64]


def best_without_the_draw(reach: Table, gamma: float, opens_with_a_box: bool) -> float:
    """Best mean return over a partner's draws, for somebody who sees them only in its counters.

    An offer worth a to the partner is taken at its turn k iff a >= alpha_k, and is worth M(a) to
    the agent; M falls in a, so aspirations are told by reach[., k] = M(alpha_k) alone: an offer of
    reward m at agent action t is taken iff m <= reach[., t] (columns from 0).

    Args:
        reach: (draws, K) M(alpha_k) of the partner's turns k = 1..K; the first is the same in all.
        gamma: Discount per agent action.
        opens_with_a_box: Whether the counter of turn 1 can be accepted.

    >>> one = np.array([[0.0, 1.0, 1.0], [0.0, 0.0, 0.0]])  # takes 1 from turn 2 on, or nothing
    >>> best_without_the_draw(one, 0.9, False)
    0.5
    """
    turns = reach.shape[1]
    if turns == 1:
        return float(reach[:, 0].mean()) if opens_with_a_box else 0.0
    groups = _groups(reach[:, 1])
    later = np.empty(len(reach))  # worth of going on after the first answer was a counter
    for members in groups:
        later[members] = _after_a_counter(reach[members], gamma)
    options = [later.mean()]  # only talks
    if opens_with_a_box:
        options.append(reach[:, 0].mean())
    for demand in {float(reach[members, 1].min()) for members in groups}:
        options.append(float(np.where(reach[:, 1] >= demand, demand, later).mean()))
    return float(max(options))


def simple_plan(reach: Table, gamma: float) -> float:
    """Best mean return of one demand for all draws, then of what the first counter was worth.

    >>> simple_plan(np.array([[0.0, 1.0], [0.0, 0.5]]), 0.9)
    0.725
    """
    answer = reach[:, 1] if reach.shape[1] > 1 else np.zeros(len(reach))
    demands = np.unique(answer)
    return float(max(np.where(answer >= m, m, gamma * answer).mean() for m in demands))


def _after_a_counter(reach: Table, gamma: float) -> float:
    """Mean worth at action 2, of draws whose second counter looked alike: (draws, K)."""
    turns = reach.shape[1]
    known = np.zeros(len(reach))  # the third counter gives the rest away
    for k in range(2, turns):  # action k + 1: accepts counter k + 1, or offers what k + 2 takes
        known = np.maximum(known, gamma**k * reach[:, k])
        if k + 1 < turns:
            known = np.maximum(known, gamma**k * reach[:, k + 1])
    options = [gamma * float(reach[:, 1].mean()), float(known.mean())]
    if turns > 2:
        for demand in np.unique(reach[:, 2]):
            taken = reach[:, 2] >= demand
            options.append(float(np.where(taken, gamma * demand, known).mean()))
    return max(options)


def _groups(values: Table) -> list[NDArray[np.intp]]:
    """Indices of equal values, of neighbouring ones where there are too many."""
    order = np.argsort(values, kind="stable")
    distinct = np.unique(values)
    if len(distinct) <= GROUPS:
        return [np.flatnonzero(values == value) for value in distinct]
    return [part for part in np.array_split(order, GROUPS) if len(part)]


def attainable(game: str, draws: int, kernels: int) -> dict[str, object]:
    """Means over held-out kernels."""
    plan = cell_plan(PLAN, game, [], 0)
    env = environments.make(game, **plan.environment.options)
    scenarios = draw_scenarios(env, plan, Split.HELDOUT, 0)[:kernels]
    blind, simple, seeing = [], [], []
    for scenario in scenarios:
        bargains = [cast(Bargaining, env).bargain(scenario, seed) for seed in range(draws)]
        reach = np.array([[b.reach(a) for a in b.aspirations] for b in bargains])
        blind.append(best_without_the_draw(reach, plan.q.gamma, not bargains[0].talks_first))
        simple.append(simple_plan(reach, plan.q.gamma))
        seeing.append(statistics.fmean(b.j_star(plan.q.gamma)["agent_turn"] for b in bargains))
    return {
        "game": game,
        "kernels": len(scenarios),
        "draws": draws,
        "simple": round(statistics.fmean(simple), 4),
        "attainable": round(statistics.fmean(blind), 4),
        "J_star": round(statistics.fmean(seeing), 4),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Count, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--games", nargs="+", default=GAMES, choices=GAMES)
    parser.add_argument("--draws", type=int, default=600, help="partners drawn for each kernel")
    parser.add_argument("--kernels", type=int, default=100)
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args(arguments)
    rows = []
    for game in options.games:
        rows.append(attainable(game, options.draws, options.kernels))
        print(rows[-1], flush=True)
        write_records(options.out, versions(), rows)


if __name__ == "__main__":
    main()
