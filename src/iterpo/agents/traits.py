"""TRAITS: the ways in which an agent may be told to come across, each value with its instruction.

No instruction holds a number, a box, an offer or a fact of any game: it may change how the policy
speaks and bargains, never what is true or allowed.
"""

from __future__ import annotations

from collections.abc import Mapping

from iterpo.agents.wording import Style

__all__ = ["TRAITS", "instruction"]

TRAITS: Mapping[str, Mapping[str, str]] = {
    "tone": {
        "warm": "Sound friendly and show that you care how the other side feels about the outcome.",
        "formal": "Sound polite, correct and businesslike.",
        "playful": "Keep it light and allow yourself a joke.",
        "blunt": "Come straight to the point and leave out pleasantries.",
    },
    "brevity": {
        "short": "Say what you have to say in one short sentence.",
        "long": "Take a few sentences and explain your reasons.",
    },
    "emoji": {
        "plain": "Write without emoji.",
        "emojis": "Let an emoji or two show your mood.",
    },
    "opening": {
        "ambitious": "Start by asking for clearly more than you expect to get.",
        "fair": "Start with a proposal that you would call fair to both sides.",
        "inviting": "Start by asking what the other side has in mind.",
    },
    "firmness": {
        "yielding": "Give way readily when the other side pushes.",
        "steady": "Hold your position unless you hear a good reason to move.",
        "hard": "Hardly move, and make plain that you can live without a deal.",
    },
    "disclosure": {
        "open": "As far as the rules let you, say freely what matters to you and why.",
        "guarded": "Keep your own wishes and limits to yourself.",
    },
    "pace": {
        "early": "Make your concessions early, so that a deal comes soon.",
        "gradual": "Make small concessions of similar size, one after another.",
        "late": "Keep your concessions for the end.",
    },
}
"""Instruction by trait and value. In the compact style a value's name is all that is said; no two
values share one."""


def instruction(traits: Mapping[str, str], style: Style = "full") -> str:
    r"""What is put after the system prompt to ask for these values; empty for none.

    Args:
        traits: Value by trait.
        style: Prose, or the bare names for small models.

    >>> instruction({"tone": "blunt", "brevity": "short"}, "compact")
    ' blunt short'
    >>> instruction({"emoji": "plain"})
    '\n\nHow to come across:\n- Write without emoji.'
    """
    # In the table's order: a log gives traits back in another one than they were drawn in.
    ordered = [(trait, traits[trait]) for trait in TRAITS if trait in traits]
    if style == "compact":
        return "".join(f" {value}" for _, value in ordered)
    lines = "".join(f"\n- {TRAITS[trait][value]}" for trait, value in ordered)
    return f"\n\nHow to come across:{lines}" if lines else ""
