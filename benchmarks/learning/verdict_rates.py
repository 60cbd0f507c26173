"""How often a verdict says `improved` of a policy that is not better, where the truth is known.

    python benchmarks/learning/verdict_rates.py

A conversation is some turns with states z and responses u around the policy's mean; all that a
judge sees are features of both, and the return, which both may have a share in. The new policy
moves every response by one standard deviation (0.5 nats) in one direction. The real judge, its
refits, the off-policy estimates and the real decision are asked about it; no model is.
`text_only` is a log without log-probs, where the judge alone has the whole 95%. `before` is the
rule that 0024 began with: any correlation above 0, the spread over states alone.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from iterpo.artifacts import write_atomic
from iterpo.domain import Decision, Response, Role, State, Turn
from iterpo.measure.off_policy import Reweighed, first_order_gain, value_gain
from iterpo.methods.judge import Judge, fit_heads, mean_gain
from iterpo.methods.verdict import Evidence, VerdictConfig, confidence_of_each, decide
from iterpo.policy_evaluation.base import QConfig
from iterpo.policy_evaluation.qfunction import QFunction

Array = NDArray[np.float64]
OUT = Path(__file__).parents[1] / "results" / "verdict-rates.json"


@dataclass(frozen=True)
class World:
    """What returns depend on, and how policies move."""

    worth: float = 0.0
    """Share of the return that the conversation's own circumstances decide."""
    effect: float = 0.0
    """Share that the responses decide, by their place along one direction."""
    follows: bool = False
    """Whether the policy speaks differently in states that are worth more."""
    along: tuple[float, float] | None = None
    """How far a new policy goes along that direction, and across it; None: anywhere."""


WORLDS = {
    "returns are noise": World(),
    "responses do nothing": World(worth=1.0),
    "responses do nothing but tell the state": World(worth=1.0, follows=True),
    "across what helps": World(0.7, 0.7, False, (0.0, 1.0)),
    "across what helps, responses tell the state": World(0.7, 0.7, True, (0.0, 1.0)),
    "a little worse": World(0.7, 0.7, False, (-0.3, 0.95)),
    "better": World(0.7, 0.7, False, (0.87, 0.5)),
}


@dataclass(frozen=True)
class Size:
    """How much of everything."""

    kernels: int = 60
    """Conversations set aside, one a kernel; as many are Q's own."""
    turns: int = 4
    states: int = 64
    wide: int = 6
    """Numbers in a state, and in a response."""
    features: int = 32
    q: QConfig = field(default_factory=lambda: QConfig(hidden=32, heads=4))


@dataclass
class Log:
    """Conversations: (kernels, turns, wide) states, noise and responses, (kernels,) returns."""

    z: Array
    e: Array
    u: Array
    returns: Array


class Drawn:
    """One world with its numbers drawn."""

    def __init__(self, world: World, size: Size, seed: int) -> None:
        self.world, self.size, self.rng = world, size, np.random.default_rng(seed)
        n = size.wide
        self.mix = self.rng.normal(size=(2, 2 * n, size.features // 2))
        self.mean = self.rng.normal(size=(n, n)) * 0.7 / math.sqrt(n) * world.follows
        self.good, self.state = self.direction(), self.direction()

    def direction(self) -> Array:
        found = self.rng.normal(size=self.size.wide)
        return np.asarray(found / np.linalg.norm(found))

    def move(self) -> Array:
        """Where a new policy goes; of length 1."""
        free = self.direction()
        if self.world.along is None:
            return free
        across = free - free @ self.good * self.good
        along = self.world.along
        return np.asarray(along[0] * self.good + along[1] * across / np.linalg.norm(across))

    def log(self) -> Log:
        shape = (self.size.kernels, self.size.turns, self.size.wide)
        kernel = self.rng.normal(size=(shape[0], 1, shape[2])) * 0.7
        z, e = kernel + 0.7 * self.rng.normal(size=shape), self.rng.normal(size=shape)
        u = z @ self.mean + e
        said = (u @ self.good).sum(axis=1) / math.sqrt(shape[1])
        circumstances = kernel[:, 0] @ self.state
        noise = self.rng.normal(size=shape[0])
        returns = self.world.effect * said + self.world.worth * circumstances + noise
        return Log(z, e, u, returns)

    def read(self, z: Array, u: Array) -> torch.Tensor:
        both = np.concatenate([z, u], axis=-1).reshape(-1, 2 * self.size.wide)
        shown = np.concatenate([both @ self.mix[0], np.tanh(both @ self.mix[1] / 2)], axis=1)
        noisy = shown + 0.05 * self.rng.normal(size=shown.shape)
        return torch.tensor(noisy, dtype=torch.float32)


def rows_of(log: Log) -> list[Decision]:
    """Rows as the judge's correlation takes them."""
    turn = Turn(Role.AGENT, "")
    return [
        Decision(State(f"c{k}", f"k{k}", t, ()), Response(""), float(g), turn)
        for k, g in enumerate(log.returns)
        for t in range(log.z.shape[1])
    ]


def judge_of(drawn: Drawn, log: Log, seed: int) -> Judge:
    """The real fit and its refits."""
    config = replace(drawn.size.q, judge_fraction=0.0, holdout_fraction=0.0, seed=seed)
    rows = rows_of(log)
    kernels = [d.state.kernel_id for d in rows]
    returns = torch.tensor([d.ret for d in rows], dtype=torch.float32)
    heads = fit_heads(drawn.read(log.z, log.u), returns, kernels, config)
    q, *refits = (QFunction(cast(Any, None), head, config) for head in heads)
    return Judge(q, tuple(refits), len(log.returns))


def trials(world: World, size: Size, seed: int, moves: int) -> list[dict[str, Any]]:
    """Several new policies before one judge and one log."""
    drawn = Drawn(world, size, seed)
    aside, own = drawn.log(), drawn.log()
    judge = judge_of(drawn, aside, seed)
    each = confidence_of_each(VerdictConfig().confidence, 3)
    rows = rows_of(own)
    seen, whole = drawn.read(own.z, own.u), VerdictConfig().confidence
    known, surely = (judge.correlation(rows, seen, level) for level in (each, whole))
    some = drawn.rng.permutation(len(rows))[: size.states]
    z = own.z.reshape(-1, size.wide)[some].repeat(2, axis=0)
    states = [rows[i].state for i in some for _ in range(2)]
    out = []
    for _ in range(moves):
        way = drawn.move()
        said = z @ drawn.mean + drawn.rng.normal(size=z.shape)
        read = drawn.read(z, said + way), drawn.read(z, said)
        ratios = aside.e @ way - 0.5
        weighed = [
            Reweighed(f"k{k}", tuple(r), (*[0.0] * (size.turns - 1), float(g)))
            for k, (r, g) in enumerate(zip(ratios.tolist(), aside.returns, strict=True))
        ]
        evidence = Evidence(
            judge_gain=judge.gain(states, read, each),
            judge_correlation=known,
            first_order=first_order_gain(weighed, confidence=each),
            off_policy=value_gain(weighed, confidence=each),
            independent=True,
        )
        alone = mean_gain(judge.q, states, read, each)
        text_only = Evidence(
            judge_gain=judge.gain(states, read, whole), judge_correlation=surely, independent=True
        )
        told = _told(evidence, alone.low if alone else -math.inf, world, way @ drawn.good)
        out.append({**told, "text_only": decide(text_only, VerdictConfig()).verdict})
    return out


def _told(evidence: Evidence, low: float, world: World, along: float) -> dict[str, Any]:
    config, known = VerdictConfig(), evidence.judge_correlation
    silent = replace(evidence, judge_gain=None)
    only = replace(evidence, first_order=None, off_policy=None)
    return {
        "better": world.effect * along > 1e-9,
        "verdict": decide(evidence, config).verdict,
        "judge": decide(only, config).verdict,
        "off_policy": decide(silent, config).verdict,
        "before": "improved" if known and known.mean > 0 and low > 0 else "",
    }


def rates(world: World, size: Size, worlds: int, moves: int, first: int = 0) -> dict[str, Any]:
    """Shares of the trials; with a spread over the worlds, since one judge tells of many moves."""
    found = [trials(world, size, first + k, moves) for k in range(worlds)]
    out: dict[str, Any] = {"worlds": worlds, "trials": worlds * moves}
    for name in ("verdict", "judge", "off_policy", "text_only", "before"):
        shares = [_share(trial, name, "improved") for trial in found]
        spread = float(np.std(shares, ddof=1)) / math.sqrt(worlds) if worlds > 1 else None
        out[name] = {"improved": float(np.mean(shares)), "se": spread}
    out["refused"] = float(np.mean([_share(trial, "verdict", "refused") for trial in found]))
    return out


def _share(found: Sequence[dict[str, Any]], name: str, word: str) -> float:
    return sum(trial[name] == word for trial in found) / len(found)


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--worlds", type=int, default=40)
    parser.add_argument("--moves", type=int, default=25)
    parser.add_argument("--only", nargs="+", choices=WORLDS, default=list(WORLDS))
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = {}
    for name in options.only:
        found[name] = rates(WORLDS[name], Size(), options.worlds, options.moves)
        told = {k: v["improved"] for k, v in found[name].items() if isinstance(v, dict)}
        print(name, {k: round(v, 3) for k, v in told.items()}, flush=True)
        write_atomic(options.out, json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
