"""Purity: equal questions get equal answers, whoever is asked, when, and after what."""

from __future__ import annotations

import copy
import json
import pickle
import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from iterpo.domain import Role, Sampled, Sampling, Scenario, Split, Turn, derive
from iterpo.environments.base import Environment
from iterpo.testing.plays import Play
from iterpo.testing.promises import instance
from iterpo.testing.report import Findings

__all__ = ["answer", "check_another_process", "check_purity"]

_EVIDENCE = Sampled((1, 2), (-0.5, -0.1), Sampling(), "0" * 64, 7, "r0-00000000", "stop")
_CHILD = (
    "import pickle, sys\n"
    "paths, asked = pickle.load(sys.stdin.buffer)\n"
    "sys.path[:] = paths\n"
    "from iterpo.testing.purity import answer\n"
    "sys.stdout.buffer.write(pickle.dumps(answer(*pickle.loads(asked))))\n"
)
_PATIENCE_S = 120


@dataclass(frozen=True)
class _Question:
    what: str
    scenario: Scenario
    turns: tuple[Turn, ...]

    def put(self, env: Environment, *, marked: bool = False, as_list: bool = False) -> Any:
        """The answer, as a value that can be compared."""
        turns: Any = self.turns
        if marked:
            turns = tuple(replace(t, sampled=_EVIDENCE, off_policy=True) for t in turns)
        if as_list:
            turns = list(turns)
        if self.what == "opening":
            return env.opening(self.scenario)
        if self.what == "read":
            return env.read(self.scenario, turns)
        view = env.view(self.scenario, Role(self.what), turns)
        return (view.system, view.reminder) if marked else view

    def __repr__(self) -> str:
        call = self.what if self.what in ("opening", "read") else f"view of the {self.what}"
        last = f", the last {self.turns[-1].text[:60]!r}" if self.turns else ""
        return f"{call} of kernel {self.scenario.kernel_id}, {len(self.turns)} messages{last}"


def check_purity(
    env: Environment, other: Environment, plays: Sequence[Play], seed: int, findings: Findings
) -> None:
    """``opening``, ``view`` and ``read`` depend on scenario and transcript, on nothing else."""
    questions = [q for play in plays for q in _questions(play)]
    if not questions:
        return
    with findings.calling("a question", "the first time"):
        base = [q.put(env) for q in questions]
        order = list(range(len(questions)))
        random.Random(derive(seed, "order")).shuffle(order)
        _check_same(questions, base, env, order, "asked again in another order", findings)
        _check_same(questions, base, other, order[::-1], "asked of another instance", findings)
        for q, first in zip(questions, base, strict=True):
            _check_inputs(q, env, findings)
            _check_marks(q, first, env, findings)


def _questions(play: Play) -> list[_Question]:
    scenario, n = play.seat.scenario, len(play.turns)
    lengths = sorted({1, 2, 3, n // 2, n - 1, n} & set(range(1, n + 1)))
    asked = [_Question("opening", scenario, ())]
    for k in lengths:
        whats = ("read", *(role.value for role in Role))
        asked += [_Question(what, scenario, play.turns[:k]) for what in whats]
    return asked


def _check_same(
    questions: Sequence[_Question],
    base: Sequence[Any],
    env: Environment,
    order: Sequence[int],
    how: str,
    findings: Findings,
) -> None:
    for i in order:
        q = questions[i]
        stored = replace(q.scenario, facts=json.loads(json.dumps(dict(q.scenario.facts))))
        got = replace(q, scenario=stored).put(env, as_list=True)
        rule = f"purity: the same answer when {how}, with the scenario read back from a file"
        findings.expect(rule, got == base[i], q, "gave", base[i], "and then", got)


def _check_inputs(q: _Question, env: Environment, findings: Findings) -> None:
    facts, turns = copy.deepcopy(dict(q.scenario.facts)), list(q.turns)
    dice = random.getstate()
    replace(q, turns=turns).put(env)  # type: ignore[arg-type]
    findings.expect("purity: facts are left as they are", q.scenario.facts == facts, q)
    findings.expect("purity: the transcript is left as it is", tuple(turns) == q.turns, q)
    findings.expect(
        "purity: the random module's state is left as it is", random.getstate() == dice, q
    )


def _check_marks(q: _Question, first: Any, env: Environment, findings: Findings) -> None:
    if q.what == "opening":
        return
    plain = first if q.what == "read" else (first.system, first.reminder)
    marked = q.put(env, marked=True)
    findings.expect(
        "purity: how a message was sampled changes nothing",
        marked == plain,
        q,
        "gave",
        plain,
        "and with sampling evidence",
        marked,
    )


def answer(cls: Any, options: Any, n: int) -> list[str]:
    """What the first ``n`` kernels, their openings and first views look like in this process."""
    env = instance(cls, options)
    out = []
    for scenario in env.scenarios(Split.TRAIN, n):
        turn = env.opening(scenario)
        views = [env.view(scenario, role, (turn,)) for role in Role]
        facts = json.dumps(dict(scenario.facts), sort_keys=True)
        out.append(f"{scenario.kernel_id} {facts}")
        out += [turn.text, *(f"{v.system}\n{v.reminder}" for v in views)]
    return out


def check_another_process(env: Environment, n: int, findings: Findings) -> None:
    """Another process, whose hashes have another salt, draws and shows the same."""
    rule = "determinism: another process gives the same scenarios, openings and views"
    try:
        asked = pickle.dumps((type(env), env.options, n))
        pickle.loads(asked)  # noqa: S301 - what was just written
    except Exception as error:
        findings.unchecked(rule, f"the class can't be imported by its name ({error})")
        return
    with findings.calling("a question", "in another process"):
        here = answer(type(env), env.options, n)
        done = subprocess.run(  # noqa: S603 - this very interpreter
            [sys.executable, "-R", "-c", _CHILD],
            input=pickle.dumps((sys.path, asked)),
            capture_output=True,
            timeout=_PATIENCE_S,
            check=False,
        )
        if done.returncode:
            why = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
            findings.unchecked(rule, f"the class can't be used in another process: {why}")
            return
        there = pickle.loads(done.stdout)  # noqa: S301 - written by our own child
        for mine, yours in zip(here, there, strict=True):
            findings.expect(rule, mine == yours, mine, "became", yours)
