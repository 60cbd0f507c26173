"""Which logged returns are samples of Q^pi, on a game small enough to enumerate.

The agent says 0 or 1 up to three times; after each the partner closes with a probability that
depends on what was said. What a deal is worth depends on everything that was said. So explored
turns change both the returns and how long a conversation lasts, which is what a wrong rule
stumbles over.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator

import pytest

from iterpo.agents.optimist import CHOICE
from iterpo.domain import Conversation, Ending, Exploration, Outcome, Role, Turn, decisions
from iterpo.policy_evaluation.continuation import first_own_return

GAMMA = 0.9
LONGEST = 3
PLAIN = {0: 0.8, 1: 0.2}
PERSONA = {0: 0.1, 1: 0.9}
BEST_OF_2 = {0: 0.8**2, 1: 1 - 0.8**2}
"""The draft that a score finds best, of two that the policy draws, where the score prefers 1."""
CLOSES = {0: 0.3, 1: 0.7}

Said = tuple[int, ...]
Rule = Callable[[Conversation], int]


def worth(said: Said) -> float:
    return 1.0 + sum(said) - 0.25 * len(said) + 0.5 * said[-1]


def q(said: Said) -> float:
    """Q^pi(s, a) by the Bellman equation; ``said`` is the state with the action at its end."""
    closes = CLOSES[said[-1]] if len(said) < LONGEST else 1.0
    ahead = sum(PLAIN[a] * q((*said, a)) for a in PLAIN) if closes < 1 else 0.0
    return closes * worth(said) + (1 - closes) * GAMMA * ahead


def talk(said: Said, marks: tuple[bool, ...], drawn: Exploration | None) -> Conversation:
    turns = [Turn(Role.AGENT, "open", scripted=True)]
    for a, mark in zip(said, marks, strict=True):
        turns += [Turn(Role.PARTNER, "?"), Turn(Role.AGENT, str(a), off_policy=mark)]
    turns.append(Turn(Role.PARTNER, "deal"))
    outcome = Outcome(Ending.AGREED, worth(said), closing_message=len(turns) - 1)
    return Conversation("c", "k", "toy", tuple(turns), outcome, "", exploration=drawn)


def log(
    drawn: Exploration | None, explores: Callable[[int], float], other: dict[int, float] = PERSONA
) -> Iterator[tuple[float, Conversation]]:
    """Every conversation with its probability, if action t is drawn from ``other`` by chance
    ``explores(t)``."""

    def go(p: float, said: Said, marks: tuple[bool, ...]) -> Iterator[tuple[float, Conversation]]:
        t = len(said) + 1
        for mark, share in ((True, explores(t)), (False, 1 - explores(t))):
            for a, chance in (other if mark else PLAIN).items():
                now, marked, at = (*said, a), (*marks, mark), p * share * chance
                if at == 0:
                    continue
                closes = CLOSES[a] if t < LONGEST else 1.0
                yield at * closes, talk(now, marked, drawn)
                if closes < 1:
                    yield from go(at * (1 - closes), now, marked)

    return go(1.0, (), ())


def throughout() -> Iterator[tuple[float, Conversation]]:
    """Half of the conversations are explored throughout."""
    plain, persona = Exploration({}, 0.5), Exploration({"tone": "warm"}, 0.5)
    yield from ((p / 2, c) for p, c in log(plain, lambda _: 0.0))
    yield from ((p / 2, c) for p, c in log(persona, lambda _: 1.0))


def one_action() -> Iterator[tuple[float, Conversation]]:
    """A quarter each: plain, and one of the three actions explored."""
    yield from ((p / 4, c) for p, c in log(Exploration({}, 0.25), lambda _: 0.0))
    for m in range(1, LONGEST + 1):
        drawn = Exploration({"tone": "warm"}, 0.25, action=m)
        yield from ((p / 4, c) for p, c in log(drawn, lambda t, m=m: float(t == m)))  # type: ignore[misc]


def one_optimistic() -> Iterator[tuple[float, Conversation]]:
    """The same with the best of two drafts of the policy in the persona's place."""
    yield from ((p / 4, c) for p, c in log(Exploration({}, 0.25), lambda _: 0.0))
    for m in range(1, LONGEST + 1):
        drawn = Exploration(CHOICE, 0.25, action=m)
        told = log(drawn, lambda t, m=m: float(t == m), BEST_OF_2)  # type: ignore[misc]
        yield from ((p / 4, c) for p, c in told)


def first_action_unrecorded() -> Iterator[tuple[float, Conversation]]:
    """The first action is always explored, and only marks say so."""
    return log(None, lambda t: float(t == 1))


def coins_unrecorded() -> Iterator[tuple[float, Conversation]]:
    """A coin decides at every action, and only marks say how it fell."""
    return log(None, lambda _: 0.5)


def estimates(batch: Iterator[tuple[float, Conversation]], rule: Rule) -> dict[Said, float]:
    """What regression on the kept rows converges to, by state and action."""
    sums: dict[Said, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for p, c in batch:
        said = tuple(int(t.text) for t in c.turns if t.role is Role.AGENT and not t.scripted)
        for row in decisions(c, GAMMA)[rule(c) - 1 :]:
            entry = sums[said[: row.state.t]]
            entry[0] += p * row.ret
            entry[1] += p
    return {key: total / weight for key, (total, weight) in sums.items()}


def bias(batch: Iterator[tuple[float, Conversation]], rule: Rule) -> float:
    return max(abs(found - q(key)) for key, found in estimates(batch, rule).items())


def ours(c: Conversation) -> int:
    return first_own_return(c, GAMMA)


def by_marks(c: Conversation) -> int:
    """Wrong on purpose: rows after which, as it happened, nothing was explored."""
    actions = [t for t in c.turns if t.role is Role.AGENT and not t.scripted]
    return max((t for t, turn in enumerate(actions, start=1) if turn.off_policy), default=1)


def unmarked_only(c: Conversation) -> int:
    """Wrong on purpose: conversations in which nothing was explored, as it happened."""
    return 99 if any(t.off_policy for t in c.turns) else 1


def everything(c: Conversation) -> int:
    return 1


@pytest.mark.parametrize("batch", [throughout, one_action, one_optimistic, first_action_unrecorded])
def test_what_is_kept_is_q_of_the_policy(
    batch: Callable[[], Iterator[tuple[float, Conversation]]],
) -> None:
    assert sum(p for p, _ in batch()) == pytest.approx(1.0)
    assert bias(batch(), ours) < 1e-12


def test_an_explored_action_with_a_plain_continuation_is_kept() -> None:
    """It is what exploration is for: rows at actions that the policy seldom takes."""
    kept = [c for p, c in one_action() if c.explored and ours(c) <= len(decisions(c, GAMMA))]
    assert kept
    assert all(decisions(c, GAMMA)[ours(c) - 1].turn.off_policy for c in kept)


def test_an_explored_conversation_gives_no_row_not_even_its_last() -> None:
    """The last action is only known to be the last because the partner closed."""
    assert all(
        ours(c) > len(decisions(c, GAMMA)) for _, c in throughout() if c.explored
    )  # fmt: skip
    assert bias(throughout(), by_marks) > 0.1


@pytest.mark.parametrize(
    ("batch", "rule"),
    [
        (throughout, everything),
        (one_action, everything),
        (one_action, by_marks),
        (one_action, unmarked_only),
        (one_optimistic, everything),
        (one_optimistic, unmarked_only),
        (coins_unrecorded, by_marks),
        (coins_unrecorded, unmarked_only),
    ],
    ids=lambda f: f.__name__,
)
def test_rules_that_look_at_what_happened_are_biased(
    batch: Callable[[], Iterator[tuple[float, Conversation]]], rule: Rule
) -> None:
    assert bias(batch(), rule) > 0.04


def test_at_gamma_0_no_later_turn_enters_the_return() -> None:
    for _, c in throughout():
        assert first_own_return(c, 0.0) == 1


@pytest.mark.parametrize(
    ("marks", "drawn", "first"),
    [
        ("...", None, 1),
        ("...", Exploration({}, 0.5), 1),
        ("x..", None, 1),
        (".x.", None, 2),
        ("x.x", None, 3),
        ("..x", None, 3),
        (".x.", Exploration({"tone": "warm"}, 0.1, action=2), 2),
        (".", Exploration({"tone": "warm"}, 0.1, action=3), 3),
        ("xxx", Exploration({"tone": "warm"}, 0.1), 4),
        ("", Exploration({"tone": "warm"}, 0.1), 1),
        ("..x", Exploration({"tone": "warm"}, 0.1, action=1), 3),
        ("..x", Exploration({}, 0.5), 3),
    ],
)
def test_first_own_return_by_hand(marks: str, drawn: Exploration | None, first: int) -> None:
    c = talk((0,) * len(marks) or (0,), tuple(m == "x" for m in marks) or (False,), drawn)
    if not marks:
        c = Conversation("c", "k", "toy", c.turns[:2], Outcome(Ending.REFUSED, 0.0), "",
                         exploration=drawn)  # fmt: skip
    assert first_own_return(c, GAMMA) == first
