"""The form of what an environment gives: options, scenarios, opening and views."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import combinations
from typing import Any

from iterpo.domain import Role, Scenario, Split, Turn, View
from iterpo.environments.base import Environment
from iterpo.errors import ConfigError
from iterpo.testing.plays import Play
from iterpo.testing.report import Findings

__all__ = ["check_opening", "check_options", "check_scenarios", "check_views", "draw", "instance"]


def instance(cls: Any, options: object) -> Environment:
    """A game of that class with these options, made as ``environments.make`` does."""
    made: Environment = cls(options) if hasattr(cls, "options_type") else cls()
    return made


def check_options(env: Environment, findings: Findings) -> None:
    """Options are a frozen dataclass of the declared type, and a name is there."""
    findings.expect("options: name is a text", isinstance(env.name, str) and env.name, [env.name])
    options: Any = env.options
    parameters = getattr(options, "__dataclass_params__", None)
    findings.expect(
        "options: a frozen dataclass (NoOptions if there are none)",
        not isinstance(options, type) and parameters is not None and parameters.frozen,
        options,
    )
    declared = getattr(type(env), "options_type", None)
    if declared is not None:
        findings.expect(
            "options: an instance of options_type", isinstance(options, declared), options, declared
        )


def draw(env: Environment, split: Split, n: int) -> tuple[Scenario, ...]:
    """The first ``n`` kernels, or as many as there are down to one."""
    while True:
        try:
            return env.scenarios(split, n)
        except ConfigError:
            if n <= 1:
                raise
            n //= 2


def check_scenarios(env: Environment, other: Environment, n: int, findings: Findings) -> None:
    """Kernels: their form, stable names, a fixed order, and no kernel in two splits."""
    drawn: dict[Split, tuple[Scenario, ...]] = {}
    for split in Split:
        with findings.calling("scenarios", split.value):
            drawn[split] = found = draw(env, split, n)
            _check_kernels(env, split, found, findings)
            for k in sorted({0, 1, len(found) // 2}):
                findings.expect(
                    "scenarios: the first k are the first k of more",
                    env.scenarios(split, k) == found[:k],
                    f"scenarios({split.value}, {k}) against scenarios({split.value}, {len(found)})",
                )
            for what, again in (("once more", env), ("on another instance", other)):
                findings.expect(
                    "scenarios: the same every time",
                    again.scenarios(split, len(found)) == found,
                    f"scenarios({split.value}, {len(found)})",
                    what,
                )
            later = env.scenarios(split, len(found), 43)
            _check_names((*found, *later), findings)
    for one, two in combinations(drawn, 2):
        _check_apart(drawn[one], drawn[two], findings)


def _check_kernels(
    env: Environment, split: Split, found: tuple[Scenario, ...], findings: Findings
) -> None:
    kinds = isinstance(found, tuple) and all(isinstance(s, Scenario) for s in found)
    if not findings.expect("scenarios: a tuple of Scenario", kinds, found) or not found:
        findings.expect("scenarios: there are some", found, split.value)
        return
    ids = [s.kernel_id for s in found]
    twice = [name for name in ids if ids.count(name) > 1]
    findings.expect("scenarios: kernel ids are unique", not twice, twice[:1])
    for scenario in found:
        findings.expect(
            "scenarios: kernel_id is a text, environment the game's name, split the one asked for",
            isinstance(scenario.kernel_id, str)
            and scenario.environment == env.name
            and scenario.split is split,
            scenario,
        )
        findings.expect(
            "scenarios: facts hold JSON types only (lists, no tuples; text keys; finite numbers)",
            _is_json(scenario),
            scenario,
        )


def _is_json(scenario: Scenario) -> bool:
    try:
        facts = dict(scenario.facts)
        return bool(json.loads(json.dumps(facts, allow_nan=False)) == facts)
    except (TypeError, ValueError):
        return False


def _check_names(found: Sequence[Scenario], findings: Findings) -> None:
    named: dict[str, Scenario] = {}
    for scenario in found:
        first = named.setdefault(scenario.kernel_id, scenario)
        findings.expect(
            "scenarios: a kernel id stands for one scenario, whatever the data_seed",
            first.facts == scenario.facts,
            first,
            "and",
            scenario,
        )


def _check_apart(one: Sequence[Scenario], two: Sequence[Scenario], findings: Findings) -> None:
    ids = {s.kernel_id for s in one} & {s.kernel_id for s in two}
    findings.expect("scenarios: no kernel in two splits", not ids, sorted(ids)[:1])
    same = [(a, b) for a in one for b in two if a.facts == b.facts]
    findings.expect("scenarios: no facts in two splits", not same, *same[:1])


def check_opening(env: Environment, scenario: Scenario, findings: Findings) -> bool:
    """Message 0 is a template spoken by the agent, after which the game is open.

    Returns:
        Whether the game can be played on from it.
    """
    going = False
    with findings.calling("opening", scenario):
        turn = env.opening(scenario)
        going = findings.expect(
            "opening: a Turn by the agent, scripted=True, never sampled",
            isinstance(turn, Turn) and turn == Turn(Role.AGENT, str(turn.text), scripted=True),
            turn,
        )
        if not going:
            return False
        findings.expect("opening: it says something", turn.text.strip(), turn)
        for form in ((turn,), [turn]):
            outcome = env.read(scenario, form)
            going &= findings.expect(
                "opening: the game is open after it",
                outcome is None,
                f"read(opening) of kernel {scenario.kernel_id} gave",
                outcome,
            )
        for role in Role:
            note = env.view(scenario, role, (turn,)).reminder
            findings.expect(
                "opening: it holds nobody's reminder", not note or note not in turn.text, note
            )
    return going


def check_views(env: Environment, plays: Sequence[Play], findings: Findings) -> None:
    """A view shows the transcript as it is, and the agent's instructions never change."""
    for play in plays:
        first: View | None = None
        for n in range(1, len(play.turns) + 1):
            for role in Role:
                with findings.calling("view", role.value, play, f"after {n} messages"):
                    view = env.view(play.seat.scenario, role, play.turns[:n])
                    if not _check_view(view, role, play.turns[:n], findings):
                        continue
                    if role is Role.AGENT:
                        first = first or view
                        findings.expect(
                            "view: the agent's system prompt and reminder are the same throughout",
                            (view.system, view.reminder) == (first.system, first.reminder),
                            play,
                            f"after {n} messages",
                            view.reminder or view.system,
                        )


def _check_view(view: View, role: Role, turns: tuple[Turn, ...], findings: Findings) -> bool:
    if not findings.expect("view: a View of the role asked for", _is_view(view, role), view):
        return False
    findings.expect(
        "view: turns are the transcript as it is, as a tuple (no reminder stored in it)",
        view.turns == turns,
        f"after {len(turns)} messages the {role.value} sees",
        view.turns[-1:],
    )
    return True


def _is_view(view: Any, role: Role) -> bool:
    if not isinstance(view, View) or view.role is not role:
        return False
    texts = isinstance(view.system, str) and isinstance(view.reminder, str | None)
    try:
        hash(view)
    except TypeError:
        return False
    return texts and bool(view.system.strip())
