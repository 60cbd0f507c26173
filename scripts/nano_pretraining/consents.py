"""Boxes that consent to what the other side offered: the part of a reply that must be copied.

Only the box is learnt, after words of consent that are given: how often to consent is no lesson
here, but whoever consents boxes what was offered, whatever was said before.
"""

from __future__ import annotations

import random

from iterpo.domain import Message, Role
from nano_pretraining import phrasings
from nano_pretraining.corpus import Dialogue, Lesson
from nano_pretraining.position import position
from nano_pretraining.words import in_words, taste

__all__ = ["consents"]


def consents(dialogue: Dialogue, n: int, rng: random.Random) -> list[Lesson]:
    """Up to ``n`` lessons, each after another message of the partner.

    Empty in games that accept by a keyword.
    """
    turns = dialogue.conversation.turns
    seat = position(dialogue.environment, dialogue.scenario, Role.AGENT)
    if seat.table.rejection:
        return []
    says = phrasings.of_game(dialogue.environment.name).accept
    heard = [i for i, turn in enumerate(turns) if turn.role is Role.PARTNER]
    out = []
    for i in rng.sample(heard, min(n, len(heard))):
        theirs = seat.table.standing(turns[: i + 1], Role.PARTNER)
        box = "" if theirs is None else seat.table.acceptance(theirs, Role.AGENT)
        if not box or box not in turns[i].text:  # words only, or the end: the partner consents
            continue
        view = dialogue.environment.view(dialogue.scenario, Role.AGENT, turns[: i + 1])
        fields = {**in_words(seat, theirs, rng), **taste(seat)}
        text = rng.choice(says).format(box=box, **fields)
        messages = (*view.messages(), Message("assistant", text))
        out.append(Lesson(messages, len(messages) - 1, box_only=True))
    return out
