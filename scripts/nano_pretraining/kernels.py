"""Scenarios to learn and to measure on: drawn or invented; no data set is read."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from iterpo.domain import Scenario, Split, derive
from iterpo.environments import make
from iterpo.environments.base import Environment
from iterpo.environments.casino import ITEMS as PACKAGES
from nano_pretraining.titles import invented_listing

__all__ = ["GAMES", "WITH_DATA", "game", "invented", "kernels"]

GAMES = ("ultimatum", "deal_or_no_deal", "craigslist", "casino", "job_interview", "alliance")


def game(name: str, **options: object) -> Environment:
    """A game in the compact prompt style."""
    return make(name, prompt_style="compact", **options)


def kernels(name: str, n: int, seed: int, split: Split = Split.TRAIN) -> tuple[Scenario, ...]:
    """``n`` scenarios of a game, in its split; train kernels are not those of the data seed 42.

    Games with a data set get invented scenarios in its layout, Ultimatum its pairs of the split.
    """
    if name in _INVENTORS:
        return invented(name, n, derive(seed, split.value))
    data_seed = 42 if split is Split.HELDOUT else 1000 + derive(seed, "data") % 1_000_000
    return game(name).scenarios(split, n, data_seed=data_seed)


def invented(name: str, n: int, seed: int) -> tuple[Scenario, ...]:
    """Invented kernels in the layout of a data set."""
    invent = _INVENTORS[name]
    out = []
    for i in range(n):
        rng = random.Random(derive(seed, name, i))
        out.append(Scenario(f"{name}-invented-{seed}-{i}", name, Split.TRAIN, invent(rng)))
    return tuple(out)


def _division(rng: random.Random) -> dict[str, Any]:
    """Deal or No Deal: 5 to 7 items, 10 points each side."""
    while True:
        counts = tuple(rng.choice((1, 1, 1, 2, 2, 3, 4)) for _ in range(3))
        if 5 <= sum(counts) <= 7:
            break
    agent, partner = (rng.choice(_valuations(counts)) for _ in range(2))
    return {"counts": list(counts), "agent_values": list(agent), "partner_values": list(partner)}


@lru_cache(maxsize=256)
def _valuations(counts: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """All values per item that make the whole pool worth 10 points."""
    return tuple(
        values
        for values in itertools.product(range(11), repeat=3)
        if sum(c * v for c, v in zip(counts, values, strict=True)) == 10
    )


def _campsite(rng: random.Random) -> dict[str, Any]:
    """CaSiNo: an order of the packages on each side; compact prompts show no reasons."""
    agent, partner = (rng.sample(PACKAGES, 3) for _ in range(2))
    return {
        "agent_order": agent,
        "agent_reasons": ["", "", ""],
        "partner_order": partner,
        "partner_reasons": ["", "", ""],
    }


def _listing(rng: random.Random) -> dict[str, Any]:
    """Craigslist: an item, its price, the buyer's target."""
    title, price, target = invented_listing(rng)
    return {"title": title, "list_price": price, "target": target}


_INVENTORS: Mapping[str, Callable[[random.Random], dict[str, Any]]] = {
    "deal_or_no_deal": _division,
    "casino": _campsite,
    "craigslist": _listing,
}
WITH_DATA = tuple(_INVENTORS)
"""Games with a data set."""
