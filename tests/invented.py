"""Invented records in the native layouts of the data sets, so that every game can be played."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from itertools import product
from operator import mul
from pathlib import Path
from typing import Any

from iterpo.domain import derive
from iterpo.environments import make

__all__ = ["deal_values", "game", "write_campsites", "write_deals", "write_listings"]

_THINGS = ("Road bike", "Oak desk", "Phone", "Sofa bed", "Café table", "Old van", "Guitar", "Lamp")
_SUPPLIES = ("Food", "Water", "Firewood")


def _draw(n: int, *what: int | str) -> int:
    return derive("invented", *what) % n


def deal_values() -> dict[tuple[int, ...], list[tuple[int, ...]]]:
    """Deal or No Deal: by the counts of a pool, all values of its items with a total of 10."""
    return {
        counts: [v for v in product(range(11), repeat=3) if sum(map(mul, counts, v)) == 10]
        for counts in product((1, 2, 3, 4), repeat=3)
        if 5 <= sum(counts) <= 7
    }


def write_deals(folder: Path, n: int) -> None:
    """Deal or No Deal: ``n`` training rows and as many held-out ones, each side's total 10."""
    sides = deal_values()
    pools = sorted(sides)

    def row(name: str, i: int) -> str:
        # Every second pool for training, the others held out: no scenario can be shared.
        counts = pools[2 * _draw(len(pools) // 2, name, i) + (name == "train")]
        you, them = (sides[counts][_draw(len(sides[counts]), name, who, i)] for who in ("y", "t"))
        inputs = [
            " ".join(f"{c} {v}" for c, v in zip(counts, side, strict=True)) for side in (you, them)
        ]
        return (
            f"<input> {inputs[0]} </input> <dialogue> YOU: hello <eos> THEM: hi <eos> YOU: "
            "<selection> </dialogue> <output> item0=1 item1=0 item2=1 item0=0 item1=1 item2=0 "
            f"</output> <partner_input> {inputs[1]} </partner_input>\n"
        )

    for name in ("train", "test", "val"):
        (folder / f"{name}.txt").write_text("".join(row(name, i) for i in range(n)))


def write_listings(folder: Path, n: int) -> None:
    """Craigslist: a training CSV and native JSON for test and dev."""
    head = (
        "scenario_id,split_type,category,list_price,buyer_target,seller_target,title,description\n"
    )
    rows = []
    for i in range(n):
        price = (12, 40, 265, 1250, 56500)[_draw(5, "price", i)] + i
        target = round(price * (0.5, 0.6, 0.7, 0.76, 0.9, 0.92)[_draw(6, "target", i)], 1)
        title = f"{_THINGS[_draw(len(_THINGS), 'title', i)]} {i}"
        rows.append(
            f"train_{i:05d},train,furniture,{price}.0,{target},{price}.0,"
            f'"{title}","As new, $5 off"\n'
        )
    (folder / "train.csv").write_text(head + "".join(rows))
    for name in ("test", "dev"):
        (folder / f"{name}.json").write_text(json.dumps([_chat(name, i) for i in range(n)]))


def _chat(name: str, i: int) -> dict[str, Any]:
    price = 20 + 7 * i + (name == "dev")
    item = {
        "Category": "bike",
        "Title": f"{_THINGS[_draw(len(_THINGS), name, i)]} no {i}",
        "Price": price,
        "Description": ["Light frame.", "New tyres."],
        "Images": [],
    }
    buyer = {"Role": "buyer", "Target": int(price * 0.7), "Bottomline": None}
    seller = {"Role": "seller", "Target": price, "Bottomline": None}
    kbs = [{"personal": buyer, "item": item}, {"personal": seller, "item": item}]
    inner = {"uuid": f"S_{name}{i}", "post_id": f"{name}{i}", "category": "bike", "kbs": kbs}
    return {
        "uuid": f"C_{name}{i}",
        "scenario_uuid": f"S_{name}{i}",
        "scenario": inner,
        "agents": {"0": "human", "1": "human"},
        "outcome": {"reward": 1, "offer": {"price": 1.0, "sides": ""}},
        "events": [],
    }


def write_campsites(folder: Path, n: int = 1030) -> None:
    """CaSiNo: as many dialogues as the real file has, since its split is by their number."""
    records = []
    for i in range(n):
        people = {}
        for who in ("mturk_agent_1", "mturk_agent_2"):
            order = sorted(_SUPPLIES, key=partial(derive, who, i))
            people[who] = {
                "value2issue": dict(zip(("Low", "High", "Medium"), order, strict=True)),
                "value2reason": {
                    "High": f" we are {2 + i} people. ",
                    "Medium": "the nights are cold",
                    "Low": "there’s a river nearby.",
                },
                "outcomes": {},
                "demographics": {"age": "canary-age"},
                "personality": {"svo": "canary-svo"},
            }
        records.append(
            {"dialogue_id": i, "chat_logs": [], "participant_info": people, "annotations": []}
        )
    (folder / "casino.json").write_text(json.dumps(records))


_WRITERS: dict[str, Callable[[Path], None]] = {
    "deal_or_no_deal": partial(write_deals, n=400),
    "craigslist": partial(write_listings, n=400),
    "casino": write_campsites,
}


def game(name: str, folder: Path, **options: object) -> Any:
    """A game by name; one that reads a data set reads an invented one, written to ``folder``."""
    if hasattr(make(name).options, "data_dir"):
        place = folder / name
        if not place.exists():
            place.mkdir(parents=True)
            _WRITERS[name](place)
        options["data_dir"] = str(place)
    return make(name, **options)
