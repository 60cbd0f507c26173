"""Roll-back: surely worse than the best earlier policy, by numbers worked by hand."""

from __future__ import annotations

import math

import pytest

from iterpo.domain import Conversation, Ending, Outcome, Role, Turn
from iterpo.errors import ConfigError
from iterpo.experiments.roll_back import RollBackPlan, fall
from iterpo.measure.intervals import t_quantile

ON = RollBackPlan(enabled=True)


def log(*rewards: float, kernel: str = "k") -> list[Conversation]:
    """One conversation of one agent action for each kernel, so that J is the mean reward."""
    out = []
    for i, reward in enumerate(rewards):
        turns = (
            Turn(Role.AGENT, "hi", scripted=True),
            Turn(Role.PARTNER, "?"),
            Turn(Role.AGENT, "x"),
        )
        ending = Outcome(Ending.AGREED, reward, closing_message=2)
        out.append(Conversation(f"{kernel}{i}", f"{kernel}{i}", "toy", turns, ending, "play"))
    return out


BEST = log(0.9, 0.5, 0.7, 0.8)


def test_the_latest_is_compared_with_the_best_pairwise() -> None:
    """Gaps -0.3, -0.1, -0.2, -0.2: mean -0.2, variance 0.02 / 3, error its root over 2."""
    found = fall([log(0.1, 0.1, 0.1, 0.1), BEST, log(0.6, 0.4, 0.5, 0.6)], ON, 0.9, "agent_turn")
    assert found is not None
    assert found.best == 1
    assert found.difference.mean == pytest.approx(-0.2)
    se = math.sqrt(0.02 / 3 / 4)
    assert found.difference.se == pytest.approx(se)
    # One-sided 95% with 3 degrees of freedom: 2.353 standard errors.
    assert found.difference.high == pytest.approx(-0.2 + t_quantile(0.95, 3) * se)
    assert t_quantile(0.95, 3) == pytest.approx(2.3534, abs=1e-4)
    assert found.rolls_back


@pytest.mark.parametrize(
    ("latest", "plan", "expected"),
    [
        pytest.param((0.6, 0.4, 0.5, 0.6), RollBackPlan(True, margin=0.1), True, id="margin 0.10"),
        pytest.param((0.6, 0.4, 0.5, 0.6), RollBackPlan(True, margin=0.11), False, id="margin .11"),
        pytest.param((0.1, 0.9, 0.6, 0.7), ON, False, id="worse, but not surely"),
        pytest.param((0.9, 0.5, 0.7, 0.8), ON, False, id="equal"),
        pytest.param((1.0, 0.6, 0.8, 0.9), ON, False, id="better"),
    ],
)
def test_it_rolls_back_only_when_surely_worse_by_the_margin(
    latest: tuple[float, ...], plan: RollBackPlan, expected: bool
) -> None:
    found = fall([BEST, log(*latest)], plan, 0.9, "agent_turn")
    assert found is not None
    assert found.rolls_back is expected


def test_pairing_matters_a_twin_without_it_sees_nothing() -> None:
    """On other kernels the spread between kernels is in the way."""
    latest = (0.6, 0.4, 0.5, 0.6)
    found = fall([BEST, log(*latest, kernel="other")], ON, 0.9, "agent_turn")
    assert found is not None
    assert found.difference.mean == pytest.approx(-0.2)
    # Variances 0.0875 / 3 and 0.0275 / 3 of four kernels each.
    assert found.difference.se == pytest.approx(math.sqrt((0.0875 + 0.0275) / 3 / 4))
    assert not fall(
        [BEST, log(0.75, 0.35, 0.55, 0.65, kernel="o")], ON, 0.9, "agent_turn"
    ).rolls_back  # type: ignore[union-attr]
    assert fall([BEST, log(0.75, 0.35, 0.55, 0.65)], ON, 0.9, "agent_turn").rolls_back  # type: ignore[union-attr]


def test_the_first_policy_has_nothing_to_fall_from() -> None:
    assert fall([BEST], ON, 0.9, "agent_turn") is None


def test_ties_go_to_the_earlier_policy() -> None:
    found = fall([BEST, BEST, log(0.1, 0.1, 0.1, 0.2)], ON, 0.9, "agent_turn")
    assert found is not None
    assert found.best == 0


def test_all_mistakes_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        RollBackPlan(margin=-0.1, confidence=0.5, step_factor=0.0)
    assert str(caught.value).count("accepted:") == 3
