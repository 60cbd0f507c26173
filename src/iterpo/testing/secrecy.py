"""Secrecy: what is private to one side never changes what the other side sees."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from iterpo.domain import Role, Scenario
from iterpo.environments.base import Environment
from iterpo.testing.plays import Play
from iterpo.testing.report import Findings

__all__ = ["Private", "check_secrecy", "private_by_name"]

Private = Callable[[Scenario], Mapping[Role, Collection[str]]]
"""Keys of the facts that only one side may know, by that side."""

_OTHERS = 6


def private_by_name(scenario: Scenario) -> Mapping[Role, Collection[str]]:
    """Facts named ``agent``, ``agent_…``, ``partner`` or ``partner_…`` belong to that side.

    >>> from iterpo.domain import Split
    >>> facts = {"pool": 9, "agent_values": [1], "partner_values": [2]}
    >>> private_by_name(Scenario("k", "game", Split.TRAIN, facts))[Role.PARTNER]
    ['partner_values']
    """
    return {
        role: [k for k in scenario.facts if k == role.value or k.startswith(f"{role.value}_")]
        for role in Role
    }


def check_secrecy(
    env: Environment,
    scenarios: Sequence[Scenario],
    plays: Sequence[Play],
    private: Private | None,
    findings: Findings,
) -> None:
    """Exchange one side's private facts: the opening and the other side's view must stay.

    The values come from other scenarios, and from disturbing those that are there.
    """
    named = private or private_by_name
    tried: dict[tuple[Role, str], int] = {}
    for scenario in scenarios:
        seen = [p for p in plays if p.seat.scenario.kernel_id == scenario.kernel_id][:4]
        for role, keys in named(scenario).items():
            for key in keys:
                tried.setdefault((role, key), 0)
            for changed, variant in _variants(scenario, keys, scenarios):
                if _compare(env, scenario, variant, role, changed, seen, findings):
                    for key in changed:
                        tried[role, key] += 1
    for (role, key), n in tried.items():
        if not n:
            why = "no other value was accepted; give scenarios that differ in it"
            findings.unchecked(f"secrecy: {role.value}'s {key}", why)
    if not tried:
        findings.unchecked(
            "secrecy",
            "no private facts are known; name them agent_… and partner_…, or pass "
            "private=lambda scenario: {Role.AGENT: [...], Role.PARTNER: [...]}",
        )


def _variants(
    scenario: Scenario, keys: Collection[str], scenarios: Sequence[Scenario]
) -> Iterator[tuple[tuple[str, ...], Scenario]]:
    facts = scenario.facts
    others = [s.facts for s in scenarios if s is not scenario][:_OTHERS]
    for other in others:
        new = {k: other[k] for k in keys if k in other and other[k] != facts.get(k)}
        if new:
            yield tuple(new), replace(scenario, facts={**facts, **new})
    for key in keys:
        disturbed = islice(_disturbed(facts.get(key)), _OTHERS)
        values = [*(o[key] for o in others if key in o), *disturbed]
        for value in values:
            if value != facts.get(key):
                yield (key,), replace(scenario, facts={**facts, key: value})


def _disturbed(value: Any) -> Iterator[Any]:
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, (int, float)):
        yield from (value + 1, value - 1, value * 2)
    elif isinstance(value, str):
        yield from (value[::-1], f"{value} indeed")
    elif isinstance(value, list):
        yield from (value[::-1], value[1:] + value[:1])
    elif isinstance(value, Mapping):
        keys = list(value)
        yield dict(zip(keys, [value[k] for k in keys[1:] + keys[:1]], strict=True))
        for key in keys:
            for inner in _disturbed(value[key]):
                yield {**value, key: inner}


def _compare(
    env: Environment,
    scenario: Scenario,
    variant: Scenario,
    owner: Role,
    changed: tuple[str, ...],
    plays: Sequence[Play],
    findings: Findings,
) -> bool:
    viewer = owner.other
    opening = (env.opening(scenario),)
    transcripts = [opening, *(p.turns[:n] for p in plays for n in (2, 3, len(p.turns)))]
    try:
        said = env.opening(variant)
        after = [env.view(variant, viewer, turns) for turns in transcripts]
    except Exception:
        return False  # the game refuses such facts; other values are tried
    what = f"kernel {scenario.kernel_id} with another {owner.value}'s {', '.join(changed)}:"
    findings.expect(
        "secrecy: the opening tells nobody's private facts", said == opening[0], what, said.text
    )
    for turns, new in zip(transcripts, after, strict=True):
        old = env.view(scenario, viewer, turns)
        findings.expect(
            f"secrecy: the {viewer.value} sees no private facts of the {owner.value}",
            (old.system, old.reminder) == (new.system, new.reminder),
            what,
            _difference(f"{old.system}\n{old.reminder}", f"{new.system}\n{new.reminder}"),
        )
    return True


def _difference(old: str, new: str) -> str:
    at = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), 0)
    start = max(0, at - 20)
    return f"the {old[start : at + 40]!r} became {new[start : at + 40]!r}"
