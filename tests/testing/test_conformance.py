"""Every promise of an environment is checked: for each there is a twin that breaks it."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib
import itertools
import math
import random
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import invented
from iterpo import environments
from iterpo.agents.base import Reply, Seat
from iterpo.domain import Ending, Outcome, Role, Scenario, Split, Turn, View, derive
from iterpo.environments import NoOptions, boxed
from iterpo.environments.sources import Division
from iterpo.environments.ultimatum import Ultimatum
from iterpo.errors import ConfigError, ConformanceError, MissingDataError
from iterpo.testing import Report, check_environment, hostile
from iterpo.testing.bargains import check_bargain
from iterpo.testing.plays import play_all
from iterpo.testing.report import Findings

LIMIT = 6


class Haggle:
    """A price between 1 and 99; the partner's worth and the agent's cost are private."""

    name = "haggle"
    options: Any = NoOptions()

    def scenarios(self, split: Split, n: int, data_seed: int = 42) -> tuple[Scenario, ...]:
        out = []
        for i in range(n):
            rng = random.Random(derive(data_seed, split.value, i))
            facts = {
                "goods": rng.choice(["a lamp", "a rug", "a bike"]),
                "agent_cost": rng.randint(1, 10_000),
                "partner_worth": rng.randint(1, 10_000),
            }
            out.append(Scenario(f"haggle-{data_seed}-{split}-{i}", self.name, split, facts))
        return tuple(out)

    def opening(self, scenario: Scenario) -> Turn:
        return Turn(Role.AGENT, f"I sell {scenario.facts['goods']}. What is your offer?", True)

    def view(self, scenario: Scenario, role: Role, turns: Any) -> View:
        key = "agent_cost" if role is Role.AGENT else "partner_worth"
        note = f"[{key}: {scenario.facts[key]}]"
        return View(role, f"Haggle: \\boxed{{AGREED: $40}}. {note}", tuple(turns), note)

    def read(self, scenario: Scenario, turns: Any) -> Outcome | None:
        talk = boxed.matching_boxes(turns, _act, LIMIT)
        if talk.ending is None:
            return None
        if talk.ending is not Ending.AGREED:
            return Outcome(talk.ending, 0.0, closing_message=talk.message)
        price = talk.terms or 0
        terms = {"price": price}
        return Outcome(talk.ending, price / 9900, terms, talk.closed_by, talk.message)


def _price(body: str) -> int | None:
    cents = boxed.amount_cents(body)
    return cents if cents is not None and 100 <= cents <= 9900 else None


def _act(text: str) -> boxed.Act[int]:
    return boxed.act(text, _price, boxed.MATCHING_TOKENS)


class Haggler:
    """Boxes the same few prices again and again, so that deals close."""

    def __init__(self, seat: Seat) -> None:
        self._seed = derive(seat.seed, seat.role.value)

    async def reply(self, view: View) -> Reply:
        rng = random.Random(derive(self._seed, len(view.turns)))
        return Reply(f"What about {boxed.agreed(f'${rng.choice([20, 30])}')}?")

    def close(self) -> None:
        pass


def check(env: Any, **more: Any) -> Report:
    given: dict[str, Any] = {"scenarios": 4, "plays": 10, "speaker": Haggler}
    return check_environment(env, **(given | {"reward_range": (0, 1)} | more))


def test_a_game_that_keeps_its_promises_passes() -> None:
    report = check(Haggle())
    assert report.ok
    assert not {k: v for k, v in report.unchecked.items() if not k.startswith(("partner", "det"))}
    assert min(report.checked.values()) > 0
    assert {"agreed", "turn_limit"} <= set(report.endings)
    assert set(report.checked) == {
        *("options", "scenarios", "opening", "view", "purity", "secrecy", "outcome", "reward"),
        *("termination", "after the end", "determinism", "robustness"),
    }


def test_what_could_not_be_checked_is_said() -> None:
    report = check_environment(Haggle(), scenarios=3, plays=6)
    assert "pass reward_range" in report.unchecked["reward: bounds"]
    assert "no bargain()" in report.unchecked["partner"]
    text = str(report)
    assert "haggle keeps what an environment promises" in text
    assert "not checked: reward: bounds" in text
    bare = type("Bare", (Ultimatum,), {"bargain": None})()
    said = check_environment(bare, plays=4).unchecked
    assert "pass private=" in said["secrecy"]
    silent = type("Silent", (Haggle,), {"view": _view_that(lambda v, s: _but(v, system="Talk."))})()
    assert "pass speaker=" in check_environment(silent, plays=3).unchecked["reward: agreements"]


# --- twins ------------------------------------------------------------------------------------

_but = dataclasses.replace
GOOD = Haggle()
COUNTER = itertools.count()


def _opening(text: str, role: Role = Role.AGENT, scripted: bool = True) -> Any:
    return lambda self, s: Turn(role, text, scripted)


def _view_that(change: Callable[[View, Scenario], Any], only: Role | None = None) -> Any:
    def view(self: Any, scenario: Scenario, role: Role, turns: Any) -> Any:
        seen = GOOD.view(scenario, role, turns)
        return seen if only and role is not only else change(seen, scenario)

    return view


def _read_that(change: Callable[[Outcome, Any], Any]) -> Any:
    def read(self: Any, scenario: Scenario, turns: Any) -> Any:
        outcome = GOOD.read(scenario, turns)
        return outcome and change(outcome, turns)

    return read


def _kernels(change: Callable[[tuple[Scenario, ...]], Any]) -> Any:
    return lambda self, split, n, data_seed=42: change(GOOD.scenarios(split, n, data_seed))


def _facts(**new: Any) -> Any:
    return _kernels(lambda found: tuple(_but(s, facts={**s.facts, **new}) for s in found))


def _lasting(self: Any, scenario: Scenario, turns: Any) -> Any:
    talk = boxed.matching_boxes(turns, _act, 10**6)
    return GOOD.read(scenario, turns) if talk.ending is Ending.AGREED else None


def _dealt(change: dict[str, Any]) -> Any:
    return _read_that(lambda o, _: _but(o, **change) if o.ending is Ending.AGREED else o)


def _remembering(self: Any, scenario: Scenario, turns: Any) -> Any:
    """Counts what it was asked before."""
    self.asked = getattr(self, "asked", 0) + 1
    outcome = GOOD.read(scenario, turns)
    return outcome and _but(outcome, flags=("late",) * (self.asked % 5 == 0))


def _of_this_instance(self: Any, scenario: Scenario, turns: Any) -> Any:
    self.mark = getattr(self, "mark", None) or str(next(COUNTER))
    outcome = GOOD.read(scenario, turns)
    return outcome and _but(outcome, detail=self.mark)


def _by_identity(self: Any, scenario: Scenario, turns: Any) -> Any:
    """A cache by identity, as if a scenario were never read from a file."""
    self.seen = getattr(self, "seen", {})
    first = self.seen.setdefault(scenario.kernel_id, scenario)
    seen = GOOD.view(scenario, Role.AGENT, turns)
    return seen if first is scenario else _but(seen, system="What game?")


def _spoiling_facts(self: Any, scenario: Scenario, turns: Any) -> Any:
    scenario.facts["n"] = len(turns)  # type: ignore[index]
    return GOOD.read(scenario, turns)


def _spoiling_turns(self: Any, scenario: Scenario, turns: Any) -> Any:
    if isinstance(turns, list):
        turns.append(turns[-1])
    return GOOD.read(scenario, tuple(turns))


def _sampled_counts(self: Any, scenario: Scenario, turns: Any) -> Any:
    return None if any(t.sampled for t in turns) else GOOD.read(scenario, turns)


def _off_policy_counts(self: Any, scenario: Scenario, turns: Any) -> Any:
    return None if any(t.off_policy for t in turns) else GOOD.read(scenario, turns)


def _with_dice(self: Any, scenario: Scenario, turns: Any) -> Any:
    random.random()
    return GOOD.read(scenario, turns)


def _reopening(self: Any, scenario: Scenario, turns: Any) -> Any:
    talk = boxed.matching_boxes(turns[-3:], _act, LIMIT)  # the latest messages only
    if talk.ending is None:
        return GOOD.read(scenario, turns) if len(turns) > LIMIT else None
    return Outcome(talk.ending, 0.0, closing_message=len(turns) - 1)


def _raising(when: Callable[[str], object]) -> Any:
    def read(self: Any, scenario: Scenario, turns: Any) -> Any:
        if any(when(t.text) for t in turns):
            raise ValueError("what is this?")
        return GOOD.read(scenario, turns)

    return read


def _quadratic(self: Any, scenario: Scenario, turns: Any) -> Any:
    end = time.process_time() + sum(len(t.text) ** 2 for t in turns) * 1e-9
    while time.process_time() < end:
        pass
    return GOOD.read(scenario, turns)


def _growing_note(self: Any, scenario: Scenario, role: Role, turns: Any) -> Any:
    return _but(GOOD.view(scenario, role, turns), reminder=f"[message {len(turns)}]")


def _stored_note(view: View, scenario: Scenario) -> View:
    last = view.turns[-1]
    noted = _but(last, text=f"{view.reminder} {last.text}")
    return _but(view, turns=(*view.turns[:-1], noted))


def _partner_told(view: View, scenario: Scenario) -> View:
    return _but(view, system=f"{view.system} They would take ${scenario.facts['agent_cost']}.")


def _agent_told(view: View, scenario: Scenario) -> View:
    return _but(view, reminder=f"{view.reminder} of {scenario.facts['partner_worth']}")


@dataclasses.dataclass
class Soft:
    """Options that can be changed."""


Twin = tuple[str, dict[str, Any]]

FORMS: dict[str, Twin] = {
    "no name": ("options: name", {"name": ""}),
    "options can be changed": ("options: a frozen dataclass", {"options": Soft()}),
    "options are a dict": ("options: a frozen dataclass", {"options": {}}),
    "options of another type": ("options: an instance", {"options_type": Soft}),
    "no second instance": (
        "robustness: making another instance",
        {"options_type": NoOptions},  # a class that then takes an argument, which it does not
    ),
    "a list of kernels": ("scenarios: a tuple", {"scenarios": _kernels(list)}),
    "no kernels": ("scenarios: there are some", {"scenarios": _kernels(lambda found: ())}),
    "an id twice": (
        "scenarios: kernel ids are unique",
        {"scenarios": _kernels(lambda found: tuple(_but(s, kernel_id="k") for s in found))},
    ),
    "another game's name": (
        "scenarios: kernel_id is a text",
        {"scenarios": _kernels(lambda f: tuple(_but(s, environment="go") for s in f))},
    ),
    "the wrong split": (
        "scenarios: kernel_id is a text",
        {"scenarios": _kernels(lambda f: tuple(_but(s, split=Split.TRAIN) for s in f))},
    ),
    "facts with a tuple": ("scenarios: facts hold JSON", {"scenarios": _facts(pair=(1, 2))}),
    "facts with number keys": ("scenarios: facts hold JSON", {"scenarios": _facts(by={1: 2})}),
    "facts without a number": ("scenarios: facts hold JSON", {"scenarios": _facts(x=math.nan)}),
    "facts with an object": ("scenarios: facts hold JSON", {"scenarios": _facts(x=Role)}),
    "the first k depend on n": (
        "scenarios: the first k are the first k",
        {"scenarios": _kernels(lambda found: found[::-1])},
    ),
    "new kernels every time": (
        "scenarios: the same every time",
        {"scenarios": lambda self, split, n, data_seed=42: GOOD.scenarios(split, n, next(COUNTER))},
    ),
    "an id for several scenarios": (
        "scenarios: a kernel id stands for one",
        {
            "scenarios": _kernels(
                lambda f: tuple(_but(s, kernel_id=f"{s.split}-{i}") for i, s in enumerate(f))
            )
        },
    ),
    "a kernel in two splits": (
        "scenarios: no kernel in two splits",
        {
            "scenarios": lambda self, split, n, data_seed=42: tuple(
                _but(s, split=split) for s in GOOD.scenarios(Split.TRAIN, n, data_seed)
            )
        },
    ),
    "facts in two splits": (
        "scenarios: no facts in two splits",
        {
            "scenarios": lambda self, split, n, data_seed=42: tuple(
                _but(s, split=split, kernel_id=f"{s.kernel_id}-{split}")
                for s in GOOD.scenarios(Split.TRAIN, n, data_seed)
            )
        },
    ),
    "scenarios raise": (
        "robustness: scenarios does not raise",
        {"scenarios": lambda self, split, n, data_seed=42: 1 // 0},
    ),
    "the partner opens": (
        "opening: a Turn by the agent",
        {"opening": _opening("Hi", Role.PARTNER)},
    ),
    "an opening that was sampled": (
        "opening: a Turn by the agent",
        {"opening": _opening("Hi", scripted=False)},
    ),
    "an opening of text only": ("opening: a Turn by the agent", {"opening": lambda self, s: "Hi"}),
    "a silent opening": ("opening: it says something", {"opening": _opening(" ")}),
    "over before it began": (
        "opening: the game is open",
        {"read": lambda self, s, turns: Outcome(Ending.REFUSED, 0.0, closing_message=0)},
    ),
    "an opening with a reminder": (
        "opening: it holds nobody's reminder",
        {
            "opening": lambda self, s: Turn(
                Role.AGENT, f"Hi [agent_cost: {s.facts['agent_cost']}]", True
            )
        },
    ),
    "the other role's view": (
        "view: a View of the role",
        {"view": _view_that(lambda v, _: _but(v, role=v.role.other))},
    ),
    "no system prompt": (
        "view: a View of the role",
        {"view": _view_that(lambda v, _: _but(v, system=" "))},
    ),
    "a view that can't be hashed": (
        "view: a View of the role",
        {"view": _view_that(lambda v, _: _but(v, turns=list(v.turns)))},
    ),
    "a reminder stored in the transcript": (
        "view: turns are the transcript",
        {"view": _view_that(_stored_note, Role.PARTNER)},
    ),
    "a view without the first message": (
        "view: turns are the transcript",
        {"view": _view_that(lambda v, _: _but(v, turns=v.turns[1:]))},
    ),
    "a reminder that counts": (
        "view: the agent's system prompt and reminder are the same",
        {"view": _growing_note},
    ),
}

PLAYED: dict[str, Twin] = {
    "it remembers what it was asked": ("purity: .* another order", {"read": _remembering}),
    "every instance its own": ("purity: .* another instance", {"read": _of_this_instance}),
    "scenarios by identity": (
        "purity: .* read back from a file",
        {"view": lambda self, s, role, turns: _but(_by_identity(self, s, turns), role=role)},
    ),
    "facts are changed": ("purity: facts are left", {"read": _spoiling_facts}),
    "the transcript is changed": ("purity: the transcript is left", {"read": _spoiling_turns}),
    "sampled turns count": ("purity: how a message was sampled", {"read": _sampled_counts}),
    "explored turns count": ("purity: how a message was sampled", {"read": _off_policy_counts}),
    "it throws the dice": ("purity: the random module", {"read": _with_dice}),
    "the partner reads the agent's cost": (
        "secrecy: the partner sees no private facts of the agent",
        {"view": _view_that(_partner_told, Role.PARTNER)},
    ),
    "the agent is reminded of the partner's worth": (
        "secrecy: the agent sees no private facts of the partner",
        {"view": _view_that(_agent_told, Role.AGENT)},
    ),
    "the opening tells the agent's cost": (
        "secrecy: the opening tells",
        {"opening": lambda self, s: Turn(Role.AGENT, f"Not below {s.facts['agent_cost']}!", True)},
    ),
    "the opening tells the partner's worth": (
        "secrecy: the opening tells",
        {"opening": lambda self, s: Turn(Role.AGENT, f"{s.facts['partner_worth']}, ok?", True)},
    ),
    "an outcome of text": (
        "outcome: read gives an Outcome",
        {"read": _read_that(lambda o, _: "deal")},
    ),
    "an ending of text": ("outcome: read gives an Outcome", {"read": _dealt({"ending": "agreed"})}),
    "a failure of its own": (
        "outcome: read gives an Outcome",
        {"read": _dealt({"ending": Ending.INFRASTRUCTURE_FAILURE, "reward": None})},
    ),
    "nested terms": ("outcome: terms are named", {"read": _dealt({"terms": {"a": {"b": 1}}})}),
    "terms without a number": (
        "outcome: terms are named",
        {"read": _dealt({"terms": {"price": math.inf}})},
    ),
    "no closing message": ("outcome: closing_message", {"read": _dealt({"closing_message": -1})}),
    "a list of flags": ("outcome: flags are a tuple", {"read": _dealt({"flags": ["cheap"]})}),
    "no reward at a deal": ("reward: a finite number", {"read": _dealt({"reward": None})}),
    "a reward that is no number": (
        "reward: a finite number",
        {"read": _dealt({"reward": math.nan})},
    ),
    "a reward of yes": ("reward: a finite number", {"read": _dealt({"reward": True})}),
    "a reward out of bounds": (r"reward: within \[0, 1\]", {"read": _dealt({"reward": 1.5})}),
    "a reward below the bounds": (r"reward: within \[0, 1\]", {"read": _dealt({"reward": -0.1})}),
    "a reward where none exists": (
        "reward: none where the ending is not scored",
        {"read": _dealt({"ending": Ending.ABANDONED})},
    ),
    "no end for the silent": ("termination: a conversation ends", {"read": _lasting}),
    "the end is forgotten": ("after the end: further messages", {"read": _reopening}),
    "unclosed braces": (
        "robustness: .*does not raise",
        {"read": _raising(lambda text: text.count("{") > text.count("}"))},
    ),
    "digits that are no numbers": (
        "robustness: .*does not raise",
        {"read": _raising(lambda text: text.isdigit() and int(text) < 0)},
    ),
    "an empty message": ("robustness: .*does not raise", {"read": _raising(lambda text: not text)}),
}

LONG: dict[str, Twin] = {
    "a long message": (
        "robustness: .*does not raise",
        {"read": _raising(lambda text: len(text) > 50_000)},
    ),
    "quadratic time": ("robustness: 100 kB are read in linear time", {"read": _quadratic}),
}


def _twin(methods: Mapping[str, Any]) -> Any:
    return type("Twin", (Haggle,), dict(methods))()


@pytest.mark.parametrize(("rule", "methods"), FORMS.values(), ids=FORMS)
def test_a_broken_form_is_found(
    rule: str, methods: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hostile, "_LONG", 1000)  # the long messages take most of the time
    _breaks(rule, _twin(methods), plays=3)


@pytest.mark.parametrize(("rule", "methods"), PLAYED.values(), ids=PLAYED)
def test_a_broken_rule_is_found(
    rule: str, methods: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hostile, "_LONG", 1000)
    _breaks(rule, _twin(methods))


@pytest.mark.parametrize(("rule", "methods"), LONG.values(), ids=LONG)
def test_what_breaks_on_long_messages_is_found(rule: str, methods: dict[str, Any]) -> None:
    _breaks(rule, _twin(methods))


def _breaks(rule: str, env: Any, **more: Any) -> str:
    with pytest.raises(ConformanceError) as raised:
        check(env, **more)
    message = str(raised.value)
    assert re.search(rf"^  WRONG {rule}.*\n        \S", message, re.M), message
    return message


# --- another process, private facts by argument, the scripted partner, our own games -----------

SALTED = """
from iterpo.domain import Role, Scenario, Turn, View
from iterpo.environments import NoOptions


class Salted:
    name = "salted"
    options = NoOptions()

    def scenarios(self, split, n, data_seed=42):
        things = {GOODS}
        return tuple(
            Scenario(f"{data_seed}-{split}-{i}", self.name, split, {"n": i, "split": split.value,
            "goods": [f"{t} {i}" for t in things]}) for i in range(n)
        )

    def opening(self, scenario):
        return Turn(Role.AGENT, "Hi", scripted=True)

    def view(self, scenario, role, turns):
        return View(role, f"Share {scenario.facts['goods']}", tuple(turns))

    def read(self, scenario, turns):
        return None
"""


@pytest.mark.parametrize(
    ("goods", "salted"),
    [("set('abcdefghij')", True), ("sorted(set('abcdefghij'))", False)],
    ids=["order of a set", "sorted"],
)
def test_another_process_must_see_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, goods: str, salted: bool
) -> None:
    """Only with another salt of the hashes does the order of a set show."""
    module = f"salted_{salted}".lower()
    (tmp_path / f"{module}.py").write_text(SALTED.replace("{GOODS}", goods))
    monkeypatch.syspath_prepend(tmp_path)
    env = importlib.import_module(module).Salted()
    with pytest.raises(ConformanceError) as raised:  # it never ends, whatever the order is
        check(env, plays=1, max_messages=4)
    found = "WRONG determinism: another process gives the same" in str(raised.value)
    assert found is salted
    assert "termination" in str(raised.value)
    assert "not checked: determinism" not in str(raised.value)


def _named(names: Mapping[str, str]) -> dict[str, Any]:
    """The haggling game with its facts under other names."""

    def back(s: Scenario) -> Scenario:
        return _but(s, facts={old: s.facts[new] for old, new in names.items()})

    def renamed(self: Any, split: Split, n: int, data_seed: int = 42) -> tuple[Scenario, ...]:
        kernels = GOOD.scenarios(split, n, data_seed)
        return tuple(
            _but(s, facts={new: s.facts[old] for old, new in names.items()}) for s in kernels
        )

    return {
        "scenarios": renamed,
        "opening": lambda self, s: GOOD.opening(back(s)),
        "view": lambda self, s, role, turns: _partner_told(
            GOOD.view(back(s), role, turns), back(s)
        ),
        "read": lambda self, s, turns: GOOD.read(back(s), turns),
    }


def test_private_facts_of_any_name_can_be_told() -> None:
    env = _twin(_named({"goods": "goods", "agent_cost": "cost", "partner_worth": "worth"}))
    assert "secrecy" in check(env).unchecked
    private = {Role.AGENT: ["cost"], Role.PARTNER: ["worth"]}
    _breaks("secrecy: the partner sees no private facts", env, private=lambda scenario: private)
    worth_only = check(env, private=lambda scenario: {Role.PARTNER: ["worth"]})
    assert worth_only.checked["secrecy"] > 0


def test_a_private_fact_that_no_other_value_can_replace_is_reported() -> None:
    def view(self: Any, scenario: Scenario, role: Role, turns: Any) -> View:
        known = {s.facts["agent_cost"] for s in GOOD.scenarios(scenario.split, 1)}
        if scenario.facts["agent_cost"] not in known:
            raise ValueError("no such cost")
        return GOOD.view(scenario, role, turns)

    said = check(_twin({"view": view}), scenarios=1).unchecked
    assert "no other value was accepted" in said["secrecy: agent's agent_cost"]


class Misjudged:
    """A bargain with something wrong."""

    def __init__(self, bargain: Any, **wrong: Any) -> None:
        self._bargain, self._wrong = bargain, wrong

    def __getattr__(self, name: str) -> Any:
        return self._wrong.get(name, getattr(self._bargain, name))


def _misjudging(change: Callable[[Any], dict[str, Any]]) -> Any:
    class Misjudging(Ultimatum):
        def bargain(self, scenario: Scenario, partner_seed: int = 0) -> Any:
            right = super().bargain(scenario, partner_seed)
            return Misjudged(right, **change(right))

    return Misjudging()


PARTNERS: dict[str, tuple[str, Callable[[Any], dict[str, Any]]]] = {
    "it writes other terms than it means": (
        "partner: each scripted message is read as the one act",
        lambda b: {"box": lambda terms, role: b.box(max(terms - 100, 0), role)},
    ),
    "its boxes can't be read": (
        "partner: each scripted message is read as the one act",
        lambda b: {"box": lambda terms, role: f"{terms} cents"},
    ),
    "its acceptance closes nothing": (
        "partner: each scripted message is read as the one act",
        lambda b: {"acceptance": lambda terms, role: "\\boxed{ACCEPT}"},
    ),
    "its words offer terms": (
        "partner: each scripted message is read as the one act",
        lambda b: {"talks_first": True, "preference": b.box(100 * b.pool, Role.PARTNER)},
    ),
    "J* is too low": (
        r"partner: no play is worth more than J\* \(agent_turn\)",
        lambda b: {"j_star": lambda gamma: {"agent_turn": 0.01, "message": 2}},
    ),
    "J* per message is too low": (
        r"partner: no play is worth more than J\* \(message\)",
        lambda b: {"j_star": lambda gamma: {**b.j_star(gamma), "message": 0.01}},
    ),
    "J* is out of reach": (
        r"partner: the oracle attains J\*",
        lambda b: {"j_star": lambda gamma: {"agent_turn": 2, "message": 2}},
    ),
    "its reading raises": (
        "robustness: a play does not raise",
        lambda b: {"plain_offer": lambda text, turns=(): 1 // 0},
    ),
}


@pytest.mark.parametrize(("rule", "change"), PARTNERS.values(), ids=PARTNERS)
def test_a_misjudged_partner_is_found(rule: str, change: Callable[[Any], dict[str, Any]]) -> None:
    report = _partner_report(_misjudging(change))
    assert any(re.match(rule, found) for found in report.violations), report


def test_the_unchanged_partner_is_right() -> None:
    """Else the twins above could be found for what the wrapper does."""
    report = _partner_report(_misjudging(lambda b: {}))
    assert report.ok, report
    assert report.checked["partner"] > 30


def _partner_report(env: Any) -> Report:
    """The checks of the partner alone; the whole takes seconds a twin."""
    findings = Findings()
    kernels = env.scenarios(Split.TRAIN, 4)
    plays = play_all(env, kernels, 21, 0, 30, None, findings)
    check_bargain(env, plays, findings)
    return findings.report(env.name)


PRIVATE = {"craigslist": lambda scenario: {Role.PARTNER: ["target"]}}


@pytest.mark.parametrize("name", environments.names())
@pytest.mark.parametrize("style", ["full", "compact"])
def test_our_games_keep_their_promises(tmp_path: Path, name: str, style: str) -> None:
    env = invented.game(name, tmp_path, prompt_style=style)
    most = 10.0 if name == "craigslist" else 2.0  # a price may lie above the list price
    report = check_environment(
        env, scenarios=6, plays=21, private=PRIVATE.get(name), reward_range=(0, most)
    )
    expected = {"secrecy"} if name == "ultimatum" else set()
    assert set(report.unchecked) == expected
    assert report.endings["agreed"] > 0


def test_absent_data_are_told_as_such() -> None:
    env = environments.make("deal_or_no_deal", data_dir="/nowhere")
    with pytest.raises(MissingDataError):
        check_environment(env)


def test_kernels_can_be_given() -> None:
    data: Any = environments.make("deal_or_no_deal", data_dir="/nowhere")
    kernel = data.scenario(Division((2, 1, 2), (1, 4, 2), (2, 0, 3)), Split.TRAIN)
    report = check_environment(data, scenarios=[kernel], plays=14)
    assert "nowhere" in report.unchecked["scenarios"]
    assert report.checked["secrecy"] > 0
    assert check(Haggle(), scenarios=GOOD.scenarios(Split.HELDOUT, 3)).ok


def test_a_game_with_fewer_kernels_than_asked_for() -> None:
    def few(self: Any, split: Split, n: int, data_seed: int = 42) -> tuple[Scenario, ...]:
        if n > 3:
            raise ConfigError("there are 3")
        return GOOD.scenarios(split, n, data_seed)

    assert check(_twin({"scenarios": few}), scenarios=8).ok


def test_every_breach_is_told_at_once() -> None:
    both = FORMS["a silent opening"][1] | PLAYED["no reward at a deal"][1]
    message = _breaks("opening: it says something", _twin(both))
    assert "WRONG reward: a finite number" in message
    assert "two parrots on kernel haggle-42-train-" in message, message


def test_it_works_inside_a_running_event_loop() -> None:
    async def notebook() -> Report:
        return check(Haggle())

    assert asyncio.run(notebook()).ok
