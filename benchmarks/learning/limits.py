"""What one round can gain at most: the best of eight answers at every turn, by Q and by simulation.

    python benchmarks/learning/limits.py --games casino job_interview

nano plays held-out kernels, and at each turn draws eight answers. `first` says the first of them,
which is the policy as it is. `q` says the one that a fitted Q likes best, `q-figures` the one that
a Q with the figures of the text (`q.numbers`) likes best, `simulation` the one with the highest
mean return of four plays behind it: the improvement step with an exact argmax, and with an exact Q
too, of a policy that can represent any choice. Simulation plays on with the very partner, so it
knows what that one will take, as nobody can who only reads the conversation. In `belief` each play
meets another partner, of those that would have said the same so far. Beside them stands the policy
that one round of training made, from the records of improvement.py. So what is missing between

    J(trained) and J(q):            steps, distance, or what the policy can represent
    J(q) and J(belief):             Q, and that belief knows what deals are worth to the partner
    J(belief) and J(simulation):    the partner's draw, which is nobody's to know
    J(simulation) and J*:           answers that are never drawn, and that a single round improves
                                    each turn for a policy that goes on as before

What is found is kept in the file of results and not redone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn, cast

import torch
from cells import GAMES, ROOT, cell_plan, measured, versions, write_records
from continuations import FIRST_ROUND, Place, returns_behind, table_of

from iterpo.agents.base import Agent, AgentFactory, Seat
from iterpo.agents.optimist import best
from iterpo.agents.scripted import Bargain, Bargaining, ScriptedPartner, decide
from iterpo.collect import Table, collect, play, seats
from iterpo.domain import (
    Conversation,
    Response,
    Role,
    Split,
    State,
    Turn,
    View,
    action_indices,
    derive,
)
from iterpo.experiments.kernels import draw_scenarios
from iterpo.experiments.plan import Plan
from iterpo.measure import measure
from iterpo.measure.compare import compare
from iterpo.models.backbone import Backbone, load
from iterpo.models.checkpoints import load_policy
from iterpo.models.generation import generate
from iterpo.policy_evaluation.base import QConfig
from iterpo.policy_evaluation.fit import fit_q

PLAN = Path(__file__).with_name("improvement.yaml")
ANSWERS, CONTINUATIONS, SEED = 8, 4, 3
KERNELS = "collect.data_seed=44"  # `q.numbers` was tried out on those of improvement.yaml
PARTNERS = range(1_000, 1_400)
"""Seeds of the partners among whom `belief` looks; none plays anywhere else."""
Choose = Callable[[Sequence[Conversation], Sequence[Sequence[Response]]], list[int]]
"""Open conversations and the answers drawn in each, to the place of what is said."""


_WAITS = "the agent waits"


@dataclass
class Others:
    """Partners with other draws that would have said what this one said."""

    game: Bargaining
    known: dict[tuple[str, int], Bargain] = field(default_factory=dict)

    def like(self, scenario: Any, partner_seed: int, turns: Sequence[Turn]) -> list[int]:
        """Seeds of so many as there are plays.

        First come those that fit in every message, in no order that the draw could have a say in.
        Where amounts are too fine for that, those follow that asked for about as much each time.
        """
        heard = [i for i, turn in enumerate(turns) if turn.role is Role.PARTNER]
        truth = self._bargain(scenario, partner_seed)
        said = [decide(truth, turns[:i]) for i in heard]

        def misfit(seed: int) -> tuple[bool, float]:
            other = self._bargain(scenario, seed)
            if [decide(other, turns[:i]) for i in heard] == said:
                return False, 0.0
            asked = zip(other.aspirations, truth.aspirations[: len(heard)], strict=False)
            return True, sum(abs(a - b) for a, b in asked)

        return sorted(PARTNERS, key=misfit)[:CONTINUATIONS]

    def _bargain(self, scenario: Any, seed: int) -> Bargain:
        key = (scenario.kernel_id, seed)
        if key not in self.known:
            self.known[key] = self.game.bargain(scenario, seed)
        return self.known[key]


@dataclass(frozen=True)
class _Redrawn:
    """Seats another partner in every play of ``returns_behind``."""

    game: Bargaining
    seeds: Sequence[int]

    def __call__(self, seat: Seat) -> Agent:
        return ScriptedPartner(self.game, self.seeds[seat.round - FIRST_ROUND])(seat)


class _Waiting:
    """An agent that stops a play where it would speak."""

    def __call__(self, seat: Seat) -> _Waiting:
        del seat
        return self

    async def reply(self, view: View) -> NoReturn:
        raise RuntimeError(f"{_WAITS} at message {len(view.turns)}")

    def close(self) -> None:
        """Nothing to release."""


@dataclass
class Bench:
    """One game, its policy and its held-out kernels."""

    plan: Plan
    backbone: Backbone
    table: Table
    scenarios: dict[str, Any]

    @classmethod
    def of(cls, game: str, kernels: int) -> Bench:
        """At the settings of improvement.py, seed 3."""
        plan = cell_plan(PLAN, game, [KERNELS, f"heldout.scenarios={kernels}"], SEED)
        backbone = load(load_policy(plan.policy.model), dtype=plan.policy.dtype, device="cpu")
        table = table_of(plan, backbone)
        drawn = draw_scenarios(table.environment, plan, Split.HELDOUT, 0)
        return cls(plan, backbone, table, {s.kernel_id: s for s in drawn})

    def play(self, choose: Choose) -> list[Conversation]:
        """Every kernel once; all conversations that are open are answered at the same time."""
        waiting = replace(self.table, agent=_Waiting())
        scenarios = list(self.scenarios.values())
        chairs = {
            s.scenario.kernel_id: s for s in seats(scenarios, 1, round=0, seed=self.plan.seed)
        }
        open_: dict[str, tuple[Turn, ...]] = dict.fromkeys(chairs, ())
        done: dict[str, Conversation] = {}

        async def go_on() -> list[Conversation]:
            jobs = (play(waiting, chairs[name], begun) for name, begun in open_.items())
            return list(await asyncio.gather(*jobs))

        while True:
            found = asyncio.run(go_on())
            talks = [c for c in found if _WAITS in c.outcome.detail]
            done |= {c.kernel_id: c for c in found if _WAITS not in c.outcome.detail}
            if not talks:
                break
            answers = self.answers(talks)
            said = choose(talks, answers)
            open_ = {
                c.kernel_id: (*c.turns, Turn(Role.AGENT, drawn[k].text))
                for c, drawn, k in zip(talks, answers, said, strict=True)
            }
        partner, gamma = cast(ScriptedPartner, self.table.partner), self.plan.q.gamma
        return [
            replace(done[name], j_star=partner.j_star(scenario, gamma))
            for name, scenario in self.scenarios.items()
        ]

    def answers(self, talks: Sequence[Conversation]) -> list[list[Response]]:
        """Eight of each; the same ones wherever a conversation has gone the same way."""
        states = [self.state(c) for c in talks]
        prompts = [self.backbone.chat.prompt_ids(s.messages) for s in states]
        seeds = [
            derive(SEED, "limits", s.kernel_id, s.t, k) for s in states for k in range(ANSWERS)
        ]
        rows = [prompt for prompt in prompts for _ in range(ANSWERS)]
        drawn = generate(self.backbone, rows, self.plan.collect.sampling, seeds)
        said = [Response(self.backbone.chat.decode(g.token_ids), g.token_ids) for g in drawn]
        return [said[i : i + ANSWERS] for i in range(0, len(said), ANSWERS)]

    def state(self, talk: Conversation) -> State:
        """What the agent sees before it speaks."""
        scenario = self.scenarios[talk.kernel_id]
        view = self.table.environment.view(scenario, Role.AGENT, talk.turns)
        t = len(action_indices(talk.turns)) + 1
        return State(talk.id, talk.kernel_id, t, view.messages())

    def by_q(self, config: QConfig) -> Choose:
        """Q fitted on a round of the game's training kernels."""
        kernels = draw_scenarios(self.table.environment, self.plan, Split.TRAIN, 0)
        per = self.plan.collect.per_scenario
        log = collect(self.table, seats(kernels, per, round=0, seed=self.plan.seed))
        q = fit_q(self.backbone, log, config).q

        def choose(
            talks: Sequence[Conversation], answers: Sequence[Sequence[Response]]
        ) -> list[int]:
            states = [s for s in map(self.state, talks) for _ in range(ANSWERS)]
            scores = cast("list[float]", q(states, [a for drawn in answers for a in drawn]))
            return _favourites(scores)

        return choose

    def by_simulation(
        self, talks: Sequence[Conversation], answers: Sequence[Sequence[Response]]
    ) -> list[int]:
        """Mean return of some plays behind each answer, with the policy as it is."""
        return self._by_plays(talks, answers, self.table.partner)

    def by_belief(self) -> Choose:
        """The same, but the partners are others that explain the conversation so far."""
        partner = cast(ScriptedPartner, self.table.partner)
        others = Others(partner.game)

        def choose(
            talks: Sequence[Conversation], answers: Sequence[Sequence[Response]]
        ) -> list[int]:
            seeds: list[int] = []
            for talk in talks:
                scenario = self.scenarios[talk.kernel_id]
                seeds += others.like(scenario, partner.partner_seed, talk.turns) * ANSWERS
            return self._by_plays(talks, answers, _Redrawn(partner.game, seeds))

        return choose

    def _by_plays(
        self,
        talks: Sequence[Conversation],
        answers: Sequence[Sequence[Response]],
        partner: AgentFactory,
    ) -> list[int]:
        spoken = Turn(Role.AGENT, "")
        places: list[Place] = [
            (
                self.scenarios[c.kernel_id],
                replace(c, turns=(*c.turns, spoken)),
                len(action_indices(c.turns)) + 1,
            )
            for c in talks
            for _ in range(ANSWERS)
        ]
        texts = [a.text for drawn in answers for a in drawn]
        table = replace(self.table, partner=partner)
        returns = returns_behind(table, self.plan, places, texts, CONTINUATIONS)
        return _favourites([sum(found) / len(found) if found else None for found in returns])


def _favourites(scores: Sequence[float | None]) -> list[int]:
    return [best(scores[i : i + ANSWERS]) for i in range(0, len(scores), ANSWERS)]


def _the_first(talks: Sequence[Conversation], _: Sequence[Sequence[Response]]) -> list[int]:
    return [0] * len(talks)


WAYS: dict[str, Callable[[Bench], Choose]] = {
    "first": lambda _: _the_first,
    "q": lambda bench: bench.by_q(bench.plan.q),
    "q-figures": lambda bench: bench.by_q(replace(bench.plan.q, numbers=8)),
    "belief": lambda bench: bench.by_belief(),
    "simulation": lambda bench: bench.by_simulation,
}
"""All ways to choose; the first one is what the others are compared with."""


def rows_of_game(game: str, kernels: int, known: set[str]) -> list[dict[str, Any]]:
    """J of every way to choose that is not known, and its gain over the first, paired by kernel."""
    bench = Bench.of(game, kernels)
    gamma = bench.plan.q.gamma
    rows: list[dict[str, Any]] = []
    first: list[Conversation] = []
    for way, make in WAYS.items():
        if way in known and first:  # the first one is played again, to compare with
            continue
        begun = time.process_time()
        played = bench.play(make(bench))
        first = first or played
        row = {"game": game, "way": way, "conversations": len(played)}
        row |= measured(measure(played, gamma).to_dict())
        if way != "first":
            gain = compare(played, first, gamma).J_agent_turn
            row |= {"gain": round(gain.mean, 4), "gain_se": round(gain.se, 4)}
        rows.append(row | {"cpu_s": round(time.process_time() - begun, 1)})
        print(rows[-1], flush=True)
    return [row for row in rows if row["way"] not in known]


def main() -> None:
    """Measure what is missing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--games", nargs="+", default=list(GAMES), choices=list(GAMES))
    parser.add_argument("--kernels", type=int, default=100, help="held-out ones, each played once")
    results = ROOT / "benchmarks" / "results" / "limits-nano.json"
    parser.add_argument("--results", type=Path, default=results)
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = json.loads(options.results.read_text())["records"] if options.results.exists() else []
    for game in options.games:
        known = {r["way"] for r in found if r["game"] == game}
        if known != WAYS.keys():
            found += rows_of_game(game, options.kernels, known)
            meta = {"versions": versions(), "answers": ANSWERS, "continuations": CONTINUATIONS}
            write_records(options.results, {**meta, "seed": SEED}, found)


if __name__ == "__main__":
    main()
