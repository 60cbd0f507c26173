"""Personas: what is drawn, how probable that was, and that nothing else changes."""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from iterpo.agents.base import Agent, Explorer, Reply, Seat
from iterpo.agents.persona import Exploring, PersonaConfig, draw_persona, every_draw, longest
from iterpo.agents.traits import TRAITS, instruction
from iterpo.collect import Table, collect, seats
from iterpo.domain import (
    Conversation,
    Ending,
    Exploration,
    Outcome,
    Role,
    Scenario,
    Split,
    Turn,
    View,
)
from iterpo.errors import ConfigError
from iterpo.store import from_line, to_line

SMALL = PersonaConfig(
    share=0.4, traits={"tone": {"warm": 1, "blunt": 3}, "brevity": {"short": 2, "long": 1}}
)
ONE_ACTION = dataclasses.replace(SMALL, scope="action", within=2)
BOTH = pytest.mark.parametrize("config", [SMALL, ONE_ACTION], ids=["conversation", "action"])


def key(drawn: Exploration) -> tuple[Any, ...]:
    return (*sorted(drawn.traits.items()), drawn.action)


@BOTH
def test_propensities_sum_to_1_over_all_draws(config: PersonaConfig) -> None:
    space = list(every_draw(config))
    assert len(space) == len({key(d) for d in space}) == (5 if config is SMALL else 9)
    assert math.fsum(d.propensity for d in space) == pytest.approx(1.0, abs=1e-15)
    assert space[0] == Exploration({}, 0.6)
    warm_short = next(d for d in space if dict(d.traits) == {"tone": "warm", "brevity": "short"})
    # 0.4 x 1/4 x 2/3, and one of two actions
    assert warm_short.propensity == pytest.approx(1 / 15 / (1 if config is SMALL else 2))


def test_the_default_space_holds_every_value_of_every_trait() -> None:
    config = PersonaConfig()
    space = list(every_draw(config))
    assert len(space) == 1 + math.prod(len(values) for values in TRAITS.values())
    assert math.fsum(d.propensity for d in space) == pytest.approx(1.0, abs=1e-12)


@BOTH
def test_draws_are_as_frequent_as_their_propensities_say(config: PersonaConfig) -> None:
    expected = {key(d): d.propensity for d in every_draw(config)}
    n = 20_000
    drawn = [draw_persona(config, seed) for seed in range(n)]
    counts = Counter(key(d) for d in drawn)
    assert counts.keys() == expected.keys()
    chi_square = sum((counts[k] - n * p) ** 2 / (n * p) for k, p in expected.items())
    # Seeds are fixed, so this either holds or not: 99.9% quantiles at 4 and 8 degrees of freedom.
    assert chi_square < {5: 18.5, 9: 26.1}[len(expected)]
    assert all(d.propensity == pytest.approx(expected[key(d)]) for d in drawn[:500])


def test_a_draw_follows_from_the_seed_and_not_from_the_order_of_the_settings() -> None:
    turned = dataclasses.replace(
        SMALL,
        traits={t: dict(reversed(v.items())) for t, v in reversed(SMALL.traits.items())},  # type: ignore[call-overload]
    )
    for seed in range(200):
        assert draw_persona(SMALL, seed) == draw_persona(SMALL, seed) == draw_persona(turned, seed)


def test_a_further_trait_or_value_leaves_the_other_traits_draws_as_they_were() -> None:
    more = dataclasses.replace(
        SMALL,
        traits={
            **SMALL.traits,
            "emoji": {"plain": 1},
            "tone": {"warm": 1, "blunt": 3, "formal": 9},
        },
    )
    for seed in range(300):
        before, after = draw_persona(SMALL, seed), draw_persona(more, seed)
        assert before.off_policy == after.off_policy
        assert before.traits.get("brevity") == after.traits.get("brevity")


def test_a_weight_of_0_is_never_drawn() -> None:
    config = PersonaConfig(share=1.0, traits={"tone": {"warm": 0, "blunt": 1}})
    assert {draw_persona(config, s).traits["tone"] for s in range(50)} == {"blunt"}
    assert [d.propensity for d in every_draw(config)] == [1.0]


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"share": 0.0}, r"share: given 0\.0; accepted: above 0, at most 1"),
        ({"share": 1.5}, "share: given 1.5"),
        ({"share": math.nan}, "share: given nan"),
        ({"within": 0}, "within: given 0; accepted: 1 or more"),
        ({"scope": "turn"}, "scope: given 'turn'; accepted: conversation, action"),
        ({"traits": {}}, "traits: given none; accepted: tone, brevity"),
        ({"traits": {"mood": {"warm": 1}}}, "traits: given 'mood'; accepted: tone, brevity"),
        ({"traits": {"tone": {"loud": 1}}}, r"given tone\.loud; accepted of tone: warm, formal"),
        ({"traits": {"tone": {"warm": -1}}}, r"weight -1 for tone\.warm; accepted: 0 to 1e\+09"),
        ({"traits": {"tone": {"warm": 1e308, "blunt": 1e308}}}, r"weight 1e\+308 for tone\.warm"),
        ({"traits": {"tone": {"warm": 0}}}, "given no value of tone to draw; accepted: a weight"),
        ({"traits": {"tone": {}}}, "given no value of tone to draw"),
    ],
)
def test_impossible_settings_are_refused(given: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        PersonaConfig(**given)


def test_all_mistakes_come_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        PersonaConfig(share=2, within=0, traits={"mood": {}})
    assert len(str(caught.value).splitlines()) == 3


def test_instructions_hold_nothing_that_a_game_could_read() -> None:
    told = [text for values in TRAITS.values() for text in values.values()]
    assert len(set(told)) == len(told) >= 15
    for text in told:
        assert not re.search(r"[0-9$%\\{}\[\]]|accept|reject", text, re.IGNORECASE), text
        assert text.endswith("."), text
    names = [value for values in TRAITS.values() for value in values]
    assert all(re.fullmatch("[a-z]+", name) for name in names)
    assert len(set(names)) == len(names), "alone they must still say which trait is meant"


def test_the_prompt_can_be_rendered_again_from_the_log() -> None:
    """A log sorts its keys."""
    for seed in range(20):
        drawn = draw_persona(PersonaConfig(share=1.0), seed)
        c = Conversation("c", "k", "toy", (Turn(Role.AGENT, "open", scripted=True),),
                         Outcome(Ending.REFUSED, 0.0), "", exploration=drawn)  # fmt: skip
        stored = from_line(to_line(c), "here").exploration
        assert stored is not None
        assert list(stored.traits) != list(drawn.traits)
        for style in ("full", "compact"):
            told = [instruction(d.traits, style) for d in (stored, drawn)]  # type: ignore[arg-type]
            assert told[0] == told[1] != ""


def test_the_longest_instruction_is_longest() -> None:
    for style in ("full", "compact"):
        worst = longest(SMALL, style)  # type: ignore[arg-type]
        each = [instruction(d.traits, style) for d in every_draw(SMALL)]  # type: ignore[arg-type]
        assert worst in each
        assert len(worst) == max(map(len, each))


class Toy:
    """Ends when message 7 has been said, or at once where the partner says "bye"."""

    name = "toy"
    options = None

    def scenarios(self, split: Split, n: int, data_seed: int = 42) -> tuple[Scenario, ...]:
        return tuple(Scenario(f"toy-{i}", "toy", split, {}) for i in range(n))

    def opening(self, scenario: Scenario) -> Turn:
        return Turn(Role.AGENT, "open", scripted=True)

    def view(self, scenario: Scenario, role: Role, turns: Sequence[Turn]) -> View:
        return View(role, f"{role} of {scenario.kernel_id}", tuple(turns), "[note]")

    def read(self, scenario: Scenario, turns: Sequence[Turn]) -> Outcome | None:
        if turns[-1].text == "bye":
            return Outcome(Ending.REFUSED, 0.0, closing_message=len(turns) - 1)
        return Outcome(Ending.AGREED, 1.0, closing_message=6) if len(turns) == 7 else None


@dataclasses.dataclass
class Echo:
    """Says the system prompt that it was given and its seed; notes the views; may leave."""

    leaves: bool = False
    views: list[View] = dataclasses.field(default_factory=list)
    closed: int = 0

    def __call__(self, seat: Seat) -> Agent:
        return _Seated(self, seat)


@dataclasses.dataclass
class _Seated:
    echo: Echo
    seat: Seat

    async def reply(self, view: View) -> Reply:
        self.echo.views.append(view)
        return Reply("bye" if self.echo.leaves else f"{view.system} {self.seat.seed}")

    def close(self) -> None:
        self.echo.closed += 1


def converse(
    config: PersonaConfig | None, agent: Echo | None = None, leaves: bool = False
) -> tuple[Conversation, ...]:
    voice = agent or Echo()
    factory = voice if config is None else Exploring(voice, config, "compact")
    places = seats(Toy().scenarios(Split.TRAIN, 20), 2, round=0, seed=3)
    return collect(Table(Toy(), factory, Echo(leaves), "r0-x"), places)


def test_the_persona_is_told_to_the_agent_alone_and_marked() -> None:
    agent = Echo()
    played = converse(SMALL, agent)
    explored = [c for c in played if c.explored]
    assert 0 < len(explored) < len(played)
    for c in played:
        assert c.exploration == draw_persona(SMALL, c.seed)
        assert c.system == f"agent of {c.kernel_id}", "training sees the plain state"
        told = instruction(c.exploration.traits, "compact")
        for turn in c.turns[1:]:
            assert turn.off_policy == (turn.role is Role.AGENT and bool(told))
            plain = f"{turn.role} of {c.kernel_id}"
            assert turn.text == plain + (told if turn.off_policy else "") + f" {c.seed}"
    assert all(view.reminder == "[note]" for view in agent.views)
    assert agent.closed == len(played)


def test_one_action_is_explored_where_it_is_reached() -> None:
    config = dataclasses.replace(SMALL, scope="action", within=5)
    played = converse(config)
    reached = 0
    for c in played:
        assert c.exploration is not None
        marked = [t for t, m in enumerate((2, 4, 6), start=1) if c.turns[m].off_policy]
        action = c.exploration.action
        assert marked == ([action] if action is not None and action <= 3 else [])
        assert c.explored == c.exploration.off_policy == (action is not None)
        reached += bool(marked)
    assert 0 < reached < sum(c.explored for c in played), "some are drawn beyond the end"


def test_the_plain_share_is_untouched_to_the_byte() -> None:
    with_personas, without = converse(SMALL), converse(None)
    plain = [(a, b) for a, b in zip(with_personas, without, strict=True) if not a.explored]
    assert plain
    for a, b in plain:
        assert a.exploration == Exploration({}, 0.6)
        assert to_line(dataclasses.replace(a, exploration=None)) == to_line(b)


def test_the_draw_is_noted_where_the_agent_never_gets_to_speak() -> None:
    """Else the conversations that end at once would all count as the policy's own."""
    played = converse(SMALL, leaves=True)
    assert all(len(c.turns) == 2 for c in played)
    assert [c.exploration for c in played] == [draw_persona(SMALL, c.seed) for c in played]
    assert any(c.explored for c in played)


def test_a_draw_is_the_same_in_every_attempt_and_survives_the_store() -> None:
    first, second = converse(ONE_ACTION), converse(ONE_ACTION)
    assert first == second
    assert tuple(from_line(to_line(c), "here") for c in first) == first


def test_agents_without_personas_note_nothing() -> None:
    assert {c.exploration for c in converse(None)} == {None}
    assert not isinstance(Echo()(Seat(Scenario("k", "toy", Split.TRAIN, {}), Role.AGENT, 0, 0, 0)),
                          Explorer)  # fmt: skip


def test_the_partners_seat_is_refused() -> None:
    place = Seat(Scenario("k", "toy", Split.TRAIN, {}), Role.PARTNER, 0, 0, 0)
    with pytest.raises(ConfigError, match="agent's seat, not for the 'partner'"):
        Exploring(Echo(), SMALL)(place)


def test_a_model_is_prompted_with_the_persona_and_its_hash_says_so(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from iterpo.agents.local import LocalPolicy
    from iterpo.domain import Sampling
    from iterpo.models import hub
    from iterpo.models.backbone import load
    from iterpo.models.chat import prompt_sha256
    from iterpo.testing.tiny_model import tiny_model

    backbone = load(hub.base_policy(str(tiny_model(tmp_path / "tiny"))), device="cpu")
    places = seats(Toy().scenarios(Split.TRAIN, 6), 1, round=0, seed=3)
    policy = LocalPolicy(backbone, Sampling(max_new_tokens=4))

    def deploy(agent: Any) -> tuple[Conversation, ...]:
        return collect(Table(Toy(), agent, Echo(), "r0-x"), places, concurrency=1)

    config = PersonaConfig(share=0.5, traits={"tone": {"blunt": 1}})
    explored, plain = deploy(Exploring(policy, config, "compact")), deploy(policy)
    assert {c.explored for c in explored} == {True, False}
    for a, b in zip(explored, plain, strict=True):
        assert a.outcome.ending is Ending.AGREED
        if not a.explored:
            assert a.turns == b.turns, "a generate call of its own: not even rounding differs"
            continue
        for m in (2, 4, 6):
            sampled = a.turns[m].sampled
            state = a.agent_view(m)
            told = dataclasses.replace(state, system=state.system + " blunt")
            prompts = [backbone.chat.prompt_ids(view.messages()) for view in (state, told)]
            assert sampled is not None
            assert sampled.prompt_sha256 == prompt_sha256(prompts[1]) != prompt_sha256(prompts[0])
