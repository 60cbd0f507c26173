r"""What a message commits to: ``\boxed{...}`` markers, and the two closing rules as folds.

One scanner serves simulations, stored logs and live chats, so that training and measuring can't
disagree about a message. It runs in linear time and never raises. The closing rules know no game:
they are generic over the parsed terms ``T``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Generic, Literal, TypeVar

from iterpo.domain import Ending, Outcome, Role, Turn
from iterpo.environments.remembered import remembered

__all__ = [
    "MATCHING_TOKENS",
    "PROPOSAL_TOKENS",
    "Act",
    "ActKind",
    "Closing",
    "Echo",
    "Talk",
    "act",
    "agreed",
    "amount_cents",
    "boxes",
    "matching_boxes",
    "money",
    "money_text",
    "outside",
    "partition",
    "propose_accept",
    "spans",
]

T = TypeVar("T")

ActKind = Literal["none", "agreed", "accept", "reject", "no_deal"]
Closing = Literal["bilateral", "unilateral"]
"""Rule A: both sides box the same terms, or (exploitable, for comparison) the first box closes."""
Echo = Literal["both", "verbatim", "mirror", "none"]
"""Rule B: which copies of the standing proposal count as consent."""

MATCHING_TOKENS = frozenset({"agreed", "no_deal"})
"""Keywords of rule A; ACCEPT and REJECT are ordinary dialogue there."""
PROPOSAL_TOKENS = frozenset({"agreed", "accept", "reject", "no_deal"})
"""Keywords of rule B."""

_OPEN = re.compile(r"\\boxed\s*\{")
_WRAPPER = re.compile(r"\\(?:textbf|textit|text|mathrm|mathbf|boxed)\s*\{|[{}]")
_KEYWORD = re.compile(r"(agreed|accept|reject|no[ -]?deal)", re.IGNORECASE | re.ASCII)
_AMOUNT = re.compile(
    r"(?:\$|USD)? ?(?P<angle><)? ?(?P<whole>[0-9]{1,3}(?:,[0-9]{3}){1,4}|[0-9]{1,15})"
    r"(?:\.(?P<cents>[0-9]{1,2}))? ?(?(angle)>) ?(?:USD|dollars)?\.?",
    re.IGNORECASE | re.ASCII,
)


def boxes(text: str) -> tuple[str, ...]:
    r"""Bodies of the complete boxes of a message, unwrapped, left to right.

    >>> boxes(r"so \boxed{\text{AGREED: \$200}}, not \boxed{AGREED: $2 or \boxed{17}")
    ('AGREED: $200', '17')
    """
    return tuple(_unwrapped(text[start:end]) for _, start, end in spans(text))


def outside(text: str) -> str:
    r"""The message with its complete boxes cut out.

    >>> outside(r"Fine. \boxed{ACCEPT} Thanks!")
    'Fine.   Thanks!'
    """
    out, at = [], 0
    for begin, _, end in spans(text):
        out.append(text[at:begin])
        at = end + 1
    return " ".join([*out, text[at:]])


def spans(text: str) -> tuple[tuple[int, int, int], ...]:
    """Start of the marker, start of the body and index of the closing brace of each outer box."""
    if "\\boxed" not in text:
        return ()
    closing: dict[int, int] = {}
    stack: list[int] = []
    for brace in re.finditer(r"[{}]", text):
        if brace.group() == "{":
            stack.append(brace.start())
        elif stack:
            closing[stack.pop()] = brace.start()
    found, at = [], 0
    while marker := _OPEN.search(text, at):
        at = marker.end()
        end = closing.get(at - 1)
        if end is not None:
            found.append((marker.start(), at, end))
            at = end + 1
    return tuple(found)


def _unwrapped(body: str) -> str:
    # A body is balanced, so that dropping its wrappers and braces leaves exactly the contents.
    return " ".join(_WRAPPER.sub("", body).replace("\\$", "$").split())


@remembered
def _keyword_boxes(text: str) -> tuple[tuple[str, str | None], ...]:
    """(keyword, rest) of each box that starts with a keyword; rest None if it is malformed."""
    out: list[tuple[str, str | None]] = []
    for body in boxes(text):
        found = _KEYWORD.match(body)
        if not found:
            continue
        word = found.group().lower()
        keyword = "no_deal" if word.startswith("no") else word
        rest = body[found.end() :]
        if keyword == "agreed":
            glued = rest[:1].isalnum() or rest[:1] == "_"
            out.append((keyword, None if glued else rest.strip().removeprefix(":").strip()))
        else:
            out.append((keyword, "" if rest.strip() in ("", ".", "!") else None))
    return tuple(out)


@dataclass(frozen=True, slots=True)
class Act(Generic[T]):
    """What one message does."""

    kind: ActKind = "none"
    """``none`` for ordinary dialogue and for an invalid box."""
    terms: T | None = None
    """Parsed terms of ``agreed``."""
    rejects: bool = False
    """Whether a REJECT box stands anywhere in the message (it is then never an echo)."""
    invalid: bool = False
    """Whether the deciding box was malformed, so that the message does nothing."""


def act(text: str, parse: Callable[[str], T | None], tokens: frozenset[str]) -> Act[T]:
    r"""The action of a message: that of its last keyword box, and none if that box is invalid.

    Args:
        text: Message.
        parse: Reads what follows AGREED; None if these are no valid terms.
        tokens: Keywords of the game; boxes with others are ordinary dialogue.

    >>> act(r"\boxed{AGREED: $5} or \boxed{AGREED: $7}", amount_cents, MATCHING_TOKENS).terms
    700
    """
    found = [box for box in _keyword_boxes(text) if box[0] in tokens]
    if not found:
        return Act()
    rejects = any(keyword == "reject" and rest is not None for keyword, rest in found)
    keyword, rest = found[-1]
    if rest is None:
        return Act(rejects=rejects, invalid=True)
    if keyword == "agreed":
        terms = parse(rest)
        if terms is None:
            return Act(rejects=rejects, invalid=True)
        return Act("agreed", terms, rejects)
    if keyword == "accept":
        return Act("accept", rejects=rejects)
    return Act("reject" if keyword == "reject" else "no_deal", rejects=rejects)


def amount_cents(text: str) -> int | None:
    """Cents of a dollar amount as people write it, or None.

    >>> [amount_cents(t) for t in ("$1,250", "1250.00 USD", "$<40>.", "$1,25", "$-5", "$4.5k")]
    [125000, 125000, 4000, None, None, None]
    """
    found = _AMOUNT.fullmatch(text.strip())
    if not found:
        return None
    return 100 * int(found["whole"].replace(",", "")) + int((found["cents"] or "0").ljust(2, "0"))


def money(cents: int) -> int | float:
    """Dollars, as a whole number where they are whole."""
    return cents // 100 if cents % 100 == 0 else cents / 100


def money_text(cents: int) -> str:
    """Dollars as boxes and prompts have them.

    >>> money_text(6000), money_text(3350)
    ('60', '33.50')
    """
    return str(cents // 100) if cents % 100 == 0 else f"{cents / 100:.2f}"


def agreed(body: str) -> str:
    r"""The box that proposes, or consents to, terms.

    >>> print(agreed("split=$60"))
    \boxed{AGREED: split=$60}
    """
    return f"\\boxed{{AGREED: {body}}}"


@lru_cache(maxsize=64)
def _partition_grammar(items: tuple[str, ...]) -> tuple[re.Pattern[str], re.Pattern[str]]:
    name = "|".join(map(re.escape, items))
    item = rf"(?:{name}) ?= ?[0-9]{{1,4}}"
    counts = rf"{item}(?:(?: ?, ?| ){item}){{{len(items) - 1}}}"
    body = rf"(MINE|THEIRS) ?:? ?({counts})(?: ?[;,] ?| )(MINE|THEIRS) ?:? ?({counts})"
    pair = rf"({name}) ?= ?([0-9]+)"
    return re.compile(body, re.IGNORECASE | re.ASCII), re.compile(pair, re.IGNORECASE)


def partition(
    body: str, items: tuple[str, ...], pool: tuple[int, ...], strict_order: bool = False
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """(mine, theirs) of a MINE/THEIRS body in the order of ``items``, or None if it is invalid.

    Valid means: every item once on both sides, whole numbers, and both sides sum to the pool.

    >>> partition("MINE: hat=1 book=0; THEIRS: book=2 hat=0", ("book", "hat"), (2, 1))
    ((0, 1), (2, 0))
    """
    grammar, pair = _partition_grammar(items)
    found = grammar.fullmatch(body)
    if not found or found[1].lower() == found[3].lower():
        return None
    sides: dict[str, tuple[int, ...]] = {}
    for label, text in ((found[1], found[2]), (found[3], found[4])):
        counts = [(name.lower(), int(n)) for name, n in pair.findall(text)]
        order = [name for name, _ in counts]
        wanted = [name.lower() for name in items]
        if sorted(order) != sorted(wanted) or (strict_order and order != wanted):
            return None
        by_name = dict(counts)
        sides[label.lower()] = tuple(by_name[name] for name in wanted)
    mine, theirs = sides["mine"], sides["theirs"]
    if any(m + t != c for m, t, c in zip(mine, theirs, pool, strict=True)):
        return None
    return mine, theirs


@dataclass(frozen=True, slots=True)
class Talk(Generic[T]):
    """Where a conversation stands after folding its messages."""

    ending: Ending | None = None
    """AGREED, REFUSED or TURN_LIMIT; None while it goes on."""
    terms: T | None = None
    """Terms of the deal, as written by ``proposer``."""
    proposer: Role | None = None
    """Who wrote the agreed terms first."""
    by: Role | None = None
    """Who wrote the closing message."""
    closed_by: str = ""
    """``match``, ``box``, ``accept``, ``echo_verbatim`` or ``echo_mirror``."""
    message: int = -1
    """Index of the last message that counts."""
    offers: Mapping[Role, T] = field(default_factory=dict)
    """Live boxed offers, as written by their owners."""

    def without_deal(self, flags: tuple[str, ...] = ()) -> Outcome:
        """The outcome of a conversation that ended without a deal: reward 0, and who refused.

        Raises:
            ValueError: if it still goes on.
        """
        if self.ending is None:
            raise ValueError("the conversation has not ended")
        detail = f"refused by the {self.by.value}" if self.by else ""
        return Outcome(self.ending, 0.0, closing_message=self.message, flags=flags, detail=detail)


def matching_boxes(
    turns: Sequence[Turn],
    act_of: Callable[[str], Act[T]],
    limit: int,
    closing: Closing = "bilateral",
    final_is_answer: bool = False,
) -> Talk[T]:
    """Rule A: each side has a slot, its latest valid box; boxing what stands in the other's closes.

    Args:
        turns: Transcript, opening first; the opening is no offer.
        act_of: Action of a message.
        limit: Messages after the opening.
        closing: Whether one box is enough.
        final_is_answer: Whether a new offer in a side's own last message is ignored.
    """
    slots: dict[Role, T] = {}
    last = min(len(turns) - 1, limit)
    for i in range(1, last + 1):
        role = turns[i].role
        move = act_of(turns[i].text)
        if move.kind == "no_deal":
            return Talk(Ending.REFUSED, by=role, message=i, offers=slots)
        if move.kind != "agreed" or move.terms is None:
            continue
        if slots.get(role.other) == move.terms:
            return Talk(Ending.AGREED, move.terms, role.other, role, "match", i, slots)
        if final_is_answer and i >= limit - 1:
            continue
        if closing == "unilateral":
            return Talk(Ending.AGREED, move.terms, role, role, "box", i, slots)
        slots[role] = move.terms
    if last >= limit:
        return Talk(Ending.TURN_LIMIT, message=last, offers=slots)
    return Talk(message=last, offers=slots)


def propose_accept(
    turns: Sequence[Turn],
    act_of: Callable[[str], Act[T]],
    mirror: Callable[[T], T],
    limit: int,
    echo: Echo = "both",
) -> Talk[T]:
    """Rule B: one standing proposal, closed by the other side's ACCEPT or by an echo of it.

    Args:
        turns: Transcript, opening first; the opening proposes nothing.
        act_of: Action of a message.
        mirror: The same allocation as the other side would write it.
        limit: Messages after the opening.
        echo: Which copies of the standing proposal close it.
    """
    standing: dict[Role, T] = {}
    last = min(len(turns) - 1, limit)
    for i in range(1, last + 1):
        role = turns[i].role
        move = act_of(turns[i].text)
        if move.kind == "none":
            continue
        if move.kind == "no_deal":
            return Talk(Ending.REFUSED, by=role, message=i, offers=standing)
        theirs = standing.get(role.other)
        if move.kind == "reject":
            standing = {}
        elif move.kind == "accept":
            if theirs is not None:
                return Talk(Ending.AGREED, theirs, role.other, role, "accept", i, standing)
        elif move.terms is not None:
            if theirs is not None and not move.rejects:
                how = _echoes(move.terms, theirs, mirror, echo)
                if how:
                    return Talk(Ending.AGREED, theirs, role.other, role, how, i, standing)
            standing = {role: move.terms}
    if last >= limit:
        return Talk(Ending.TURN_LIMIT, message=last, offers=standing)
    return Talk(message=last, offers=standing)


def _echoes(terms: T, standing: T, mirror: Callable[[T], T], echo: Echo) -> str:
    if echo in ("both", "verbatim") and terms == standing:
        return "echo_verbatim"
    if echo in ("both", "mirror") and terms == mirror(standing):
        return "echo_mirror"
    return ""
