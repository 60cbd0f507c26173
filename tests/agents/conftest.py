"""A tiny player, and the scenarios to play."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from itertools import permutations, product
from pathlib import Path
from typing import Any

import pytest

from invented import deal_values
from iterpo.agents.base import AgentFactory, Seat
from iterpo.domain import Conversation, Outcome, Role, Scenario, Split, Turn, derive
from iterpo.environments import make
from iterpo.environments.casino import Casino
from iterpo.environments.craigslist import Craigslist
from iterpo.environments.deal_or_no_deal import DealOrNoDeal
from iterpo.environments.sources import Camper, Campsite, Division, Listing

DATA = Path(__file__).parents[2] / ".." / "shared" / "data"

NO_DATA = [
    "ultimatum",
    "invented deals",
    "campsites",
    "listings",
    "job_interview",
    "alliance",
    "opposed alliance",
]
"""Games for the fixture ``game`` that need no data set."""

Player = Callable[..., Conversation]


def now(reply: Coroutine[Any, Any, Any]) -> Any:
    """Result of a coroutine that never waits."""
    try:
        reply.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("a scripted speaker waited")


def _play(
    env: Any, scenario: Scenario, agent: AgentFactory, partner: AgentFactory, replica: int = 0
) -> Conversation:
    seed = derive(scenario.kernel_id, replica)
    speakers = {
        role: factory(Seat(scenario, role, 0, replica, seed))
        for role, factory in ((Role.AGENT, agent), (Role.PARTNER, partner))
    }
    turns: list[Turn] = [env.opening(scenario)]
    outcome: Outcome | None = None
    while outcome is None:
        role = Role.PARTNER if len(turns) % 2 else Role.AGENT
        turns.append(now(speakers[role].reply(env.view(scenario, role, turns))).turn(role))
        outcome = env.read(scenario, turns)
        assert len(turns) <= 11
    return Conversation("c", scenario.kernel_id, env.name, tuple(turns), outcome, "")


@pytest.fixture(scope="session")
def play() -> Player:
    """Plays one conversation to its end."""
    return _play


def _invented(n: int) -> tuple[Scenario, ...]:
    """Deal or No Deal kernels whose sides' totals are 10, none taken from a data set."""
    pools = deal_values()
    order = sorted(pools)
    out = []
    for i in range(n):
        counts = order[derive("counts", i) % len(order)]
        sides = pools[counts]
        you, them = (sides[derive(who, i) % len(sides)] for who in ("you", "them"))
        out.append(DealOrNoDeal().scenario(Division(counts, you, them), Split.TRAIN))
    return tuple(out)


def _campsites(n: int) -> tuple[Scenario, ...]:
    """CaSiNo kernels with every pair of orders, none taken from a data set."""
    orders = list(permutations(("Food", "Water", "Firewood")))
    pairs = list(product(orders, orders))
    out = []
    for i in range(n):
        agent, partner = (Camper(order, ("a", "b", "c")) for order in pairs[i % len(pairs)])
        out.append(Casino().scenario(Campsite(i, (agent, partner)), Split.TRAIN))
    return tuple(out)


def _listings(n: int) -> tuple[Scenario, ...]:
    """Craigslist kernels, cheap and dear, with every share of the price as a target."""
    out = []
    for i in range(n):
        price = (2, 19.99, 20, 265, 56500)[i % 5] + derive("price", i) % 7
        target = max(1, round(price * (0.5, 0.6, 0.7, 0.76, 0.9, 0.92, 1)[i % 7], 2))
        listing = Listing(f"cl-S_{i}", f"Bike {i}", "bike", price, target, "", "", "")
        out.append(Craigslist().scenario(listing, Split.TRAIN))
    return tuple(out)


def _game(name: str, style: str, n: int) -> tuple[Any, tuple[Scenario, ...]]:
    if name == "real deals":
        if not DATA.is_dir():
            pytest.skip("../shared/data is absent")
        env: Any = make("deal_or_no_deal", data_dir=str(DATA), prompt_style=style)
        return env, env.scenarios(Split.TRAIN, n)
    if name == "invented deals":
        return make("deal_or_no_deal", prompt_style=style), _invented(n)
    if name == "campsites":
        return make("casino", prompt_style=style), _campsites(n)
    if name == "listings":
        return make("craigslist", prompt_style=style), _listings(n)
    if name == "opposed alliance":
        env = make("alliance", preferences="opposed", prompt_style=style)
    else:
        env = make(name, prompt_style=style)
    return env, env.scenarios(Split.TRAIN, n)


@pytest.fixture(scope="session")
def game() -> Callable[[str, str, int], tuple[Any, tuple[Scenario, ...]]]:
    """(environment, n scenarios) of a game by name and prompt style."""
    return _game
