"""Invented items for sale: titles as untidy as people write them, and odd prices."""

from __future__ import annotations

import random

__all__ = ["invented_listing"]

_FIRST = (
    "vintage", "used", "Brand New", "Old", "solid", "Large", "small", "RARE", "custom", "Antique",
    "like new", "Modern", "heavy duty", "Portable", "2 in 1", "Red", "blue", "Black", "White",
    "cozy", "Spacious", "sunny", "Barely Used", "beautiful", "folding", "Wooden", "metal", "Kids",
    "Mens", "womens", "electric", "Cordless", "3 piece", "extra", "classic", "wireless", "Mini",
    "14k", "*NEW*", "!!Great!!", "CLEAN", "outdoor", "Retro", "refurbished", "quiet", "leather",
)  # fmt: skip
_NAME = (
    "bike", "Sofa", "desk", "LAMP", "phone", "guitar", "Car", "truck", "Apartment", "studio",
    "1 bedroom", "2BR house", "table", "Chair", "dresser", "mirror", "TV", "monitor", "Laptop",
    "keyboard", "camera", "lens", "drum set", "Piano", "rug", "couch", "bed frame", "Mattress",
    "bookcase", "Shelf", "washer", "Dryer", "fridge", "microwave", "grill", "tent", "kayak",
    "Scooter", "helmet", "wheels", "tires", "Speakers", "headphones", "turntable", "console",
    "video game", "charger", "battery", "stroller", "Crib", "watch", "ring", "jacket", "boots",
    "sewing machine", "Tool box", "saw", "drill", "ladder", "mower", "plants", "aquarium",
    "Cabinet", "stool", "futon", "Heater", "fan", "printer", "router", "tablet", "skis",
)  # fmt: skip
_LAST = (
    "with box", "- great condition", "(must go)", "obo", "w/ extras", "for sale", "& more",
    "- must see!", "in excellent shape", "near downtown", "+ free delivery", "*price drop*",
    "size 10", "32\"", "64GB", "low miles", "set of 4", "6ft", "by owner", "no pets", "!!!",
    "parts or repair", "great deal", "90s", "no. 7", "~ moving sale", "(2015)", "100% cotton",
    "never used", "- $20 off", "#1", "w/d included", "5'10\" x 3'", "…", "é", "w/ garage",
)  # fmt: skip
_SOUNDS = ("ba", "ko", "ri", "ten", "Lo", "vex", "mar", "du", "shi", "Qua", "zo", "fen", "pel", "X")


def invented_listing(rng: random.Random) -> tuple[str, float, float]:
    """Title, list price and the buyer's target, in dollars."""
    price = _price(rng)
    share = rng.choice((0.5, 0.6, 0.7, 0.76, 0.8, 0.9, 0.92, rng.uniform(0.4, 0.97)))
    target = price * share
    target = round(target) if price >= 20 and rng.random() < 0.8 else round(target, 2)
    return _title(rng), price, max(target, 0.5)


def _title(rng: random.Random) -> str:
    words = [rng.choice(_NAME)]
    if rng.random() < 0.5:
        words.insert(0, "".join(rng.choices(_SOUNDS, k=rng.randint(1, 4))).capitalize())
    if rng.random() < 0.5:
        words.insert(0, rng.choice(_FIRST))
    if rng.random() < 0.2:
        words.insert(0, str(rng.randint(1950, 2024)))
    if rng.random() < 0.2:
        words.append(f"{rng.choice('ABCDGKMPRSTXZ')}{rng.randint(1, 999)}")
    if rng.random() < 0.5:
        words.append(rng.choice(_LAST))
    if rng.random() < 0.25:
        words.append(rng.choice(_NAME))
    title = " ".join(words)
    style = rng.random()
    if style < 0.1:
        return title.upper()
    return title.title() if style < 0.3 else title


def _price(rng: random.Random) -> float:
    size = 10 ** rng.choice((rng.uniform(0.7, 4.8), rng.uniform(1.3, 3.5), rng.uniform(1.3, 3.5)))
    kind = rng.random()
    if size < 20 and kind < 0.3:
        return max(1.0, round(size * 2) / 2)
    if kind < 0.5:
        step = 10 ** (len(str(int(size))) - 2) * rng.choice((1, 5)) if size >= 10 else 1
        return float(max(1, round(size / step) * step))
    if kind < 0.65 and size >= 20:
        return float(int(size) // 10 * 10 + rng.choice((9, 5, 8)))
    return float(max(1, round(size)))
