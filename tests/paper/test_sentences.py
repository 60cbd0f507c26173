"""Checkable sentences of the paper (arXiv 2511.21638v3), each a test named after it.

The sentences on boxes and verdicts are in ``tests/environments``, those on the tables in
``tests/experiments/test_plan.py``, ST-GRPO = IterPO at gamma 0 in ``tests/methods``.
"""

from __future__ import annotations

import ast
import inspect
import textwrap

import pytest

from iterpo import environments
from iterpo.domain import Conversation, Ending, Outcome, Role, Split, Turn, decisions
from iterpo.domain.decision import discounted_return
from iterpo.environments.deal_or_no_deal import DealOrNoDeal
from iterpo.environments.sources import Division

BOX = "\\boxed{{AGREED: MINE: book={} hat={} ball={}; THEIRS: book={} hat={} ball={}}}"


def test_section_2_1_the_sparse_reward_is_only_nonzero_at_the_terminal_turn() -> None:
    turns = [Turn(Role.AGENT, "o", scripted=True)]
    turns += [Turn(Role.PARTNER if i % 2 else Role.AGENT, str(i)) for i in range(1, 8)]
    c = Conversation("c", "k", "toy", tuple(turns), Outcome(Ending.AGREED, 1.0), "s")
    assert [d.ret for d in decisions(c, 0.0)] == [0.0, 0.0, 1.0]


def test_section_4_3_j_discounts_by_tau_minus_1() -> None:
    turns = [Turn(Role.AGENT, "o", scripted=True)]
    turns += [Turn(Role.PARTNER if i % 2 else Role.AGENT, str(i)) for i in range(1, 8)]
    c = Conversation("c", "k", "toy", tuple(turns), Outcome(Ending.AGREED, 0.8), "s")
    assert discounted_return(c, 0.9, "agent_turn") == pytest.approx(0.9**2 * 0.8)


def test_section_3_2_one_round_is_two_statements() -> None:
    """Algorithm 1's body: fit Q, then improve with Q as the reward; nothing else."""
    from iterpo.methods.iterpo import IterPO

    tree = ast.parse(textwrap.dedent(inspect.getsource(IterPO.update)))
    body = tree.body[0].body[1:]  # type: ignore[attr-defined]  # the docstring left out
    assert len(body) == 2


def test_appendix_d2_pool_sizes_and_rounds() -> None:
    scenarios = [
        s
        for split in Split
        for s in environments.make("ultimatum").scenarios(split, 12 if split is Split.TRAIN else 3)
    ]
    pairs = {(s.facts["pool"], s.facts["rounds"]) for s in scenarios}
    assert pairs == {(p, r) for p in (100, 500, 1000, 5000, 10000) for r in (4, 6, 8)}


def test_appendix_d3_the_scenario_of_the_logrolling_example_is_worth_8_to_both() -> None:
    """3 books and 1 ball at (2, 0, 2), the rest at (0, 6, 2): 8 points each, reward 8 / 5."""
    env = environments.make("deal_or_no_deal")
    assert isinstance(env, DealOrNoDeal)
    scenario = env.scenario(Division((3, 1, 2), (2, 0, 2), (0, 6, 2)), Split.TRAIN)
    opening = env.opening(scenario)
    turns = [
        opening,
        Turn(Role.PARTNER, "The hat matters most to me."),
        Turn(Role.AGENT, BOX.format(3, 0, 1, 0, 1, 1)),
        Turn(Role.PARTNER, "\\boxed{ACCEPT}"),
    ]
    outcome = env.read(scenario, turns)
    assert outcome is not None
    assert outcome.reward == pytest.approx(1.6)
    assert outcome.ending is Ending.AGREED
