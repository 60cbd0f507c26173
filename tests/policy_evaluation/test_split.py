"""The held-out split: nothing straddles it."""

from __future__ import annotations

import dataclasses

import pytest

from iterpo.domain import Ending, Outcome
from iterpo.policy_evaluation.base import QConfig
from iterpo.policy_evaluation.split import (
    content_sha256,
    hold_out,
    log_sha256,
    set_aside,
    why_none_aside,
)


def test_pain_29_a_copy_under_a_new_id_cannot_straddle(talk):
    originals = [talk(i, 1 + i % 3) for i in range(20)]
    copies = [
        dataclasses.replace(c, id=f"copy-{c.id}", kernel_id=f"copy-{c.kernel_id}", round=3)
        for c in originals
    ]
    both = originals + copies
    for seed in range(20):
        held = hold_out(both, 0.3, "conversation", seed)
        sides = [{content_sha256(both[i]) for i in range(40) if (i in held) is s} for s in (0, 1)]
        assert not sides[0] & sides[1]
        assert {i % 20 for i in held} == {i for i in held if i < 20}
        assert len(held) == 12


def test_pain_29_a_split_by_kernel_keeps_kernels_whole_and_copies_too(talk):
    talks = [talk(i, 2) for i in range(20)]  # kernels k0 .. k9, two conversations each
    bridge = dataclasses.replace(talks[0], id="bridge", kernel_id="k9")  # joins k0 and k9
    for seed in range(20):
        held = hold_out([*talks, bridge], 0.3, "kernel", seed)
        everything = [*talks, bridge]
        kernels = {everything[i].kernel_id for i in held}
        rest = {c.kernel_id for i, c in enumerate(everything) if i not in held}
        assert not kernels & rest
        assert ("k0" in kernels) == ("k9" in kernels)


def test_a_split_by_conversation_may_share_a_kernel(talk):
    talks = [talk(i, 2) for i in range(20)]
    held = hold_out(talks, 0.3, "conversation", 0)
    assert {talks[i].kernel_id for i in held} & {
        c.kernel_id for i, c in enumerate(talks) if i not in held
    }


def test_order_and_ids_do_not_matter_but_the_seed_does(talk):
    talks = [talk(i, 2) for i in range(20)]
    held = {talks[i].id for i in hold_out(talks, 0.25, "conversation", 5)}
    back = talks[::-1]
    assert {back[i].id for i in hold_out(back, 0.25, "conversation", 5)} == held
    assert {talks[i].id for i in hold_out(talks, 0.25, "conversation", 6)} != held


@pytest.mark.parametrize(
    ("n", "fraction", "expected"),
    [(1, 0.2, 0), (2, 0.2, 1), (2, 0.9, 1), (10, 0.0, 0), (0, 0.2, 0)],
)
def test_tiny_batches(talk, n, fraction, expected):
    assert len(hold_out([talk(i, 1) for i in range(n)], fraction, "conversation", 0)) == expected


def test_what_is_set_aside_for_the_judge_is_the_same_whatever_the_seed(talk):
    talks = [talk(i, 2) for i in range(40)]
    own, judges = set_aside(talks, QConfig(judge_fraction=0.3, seed=1))
    assert (len(own), len(judges)) == (28, 12)
    assert why_none_aside(talks, QConfig(judge_fraction=0.3)) == ""
    assert sorted(c.id for c in own + judges) == sorted(c.id for c in talks)
    assert set_aside(talks, QConfig(judge_fraction=0.3, seed=2)) == (own, judges)
    assert {c.id for c in set_aside(talks[::-1], QConfig(judge_fraction=0.3))[1]} == {
        c.id for c in judges
    }
    assert set_aside(talks, QConfig(judge_fraction=0.0)) == (tuple(talks), ())
    assert why_none_aside(talks, QConfig(judge_fraction=0.0)) == "", "nobody asked for one"


def test_pain_29_judge_and_q_share_no_kernel_where_the_split_is_by_kernel(talk):
    talks = [talk(i, 2) for i in range(40)]
    own, judges = set_aside(talks, QConfig(judge_fraction=0.3, split_by="kernel"))
    assert judges
    assert not {c.kernel_id for c in own} & {c.kernel_id for c in judges}


@pytest.mark.parametrize(("n", "expected"), [(1, 0), (12, 0), (28, 0), (32, 8), (100, 25)])
def test_a_small_log_is_all_for_q_and_says_so(talk, n, expected):
    """A quarter by default, but never fewer than 8 for the judge."""
    talks = [talk(i, 2, float(i % 2)) for i in range(n)]
    own, judges = set_aside(talks, QConfig())
    assert (len(own), len(judges)) == (n - expected, expected)
    assert bool(why_none_aside(talks, QConfig())) == (expected == 0)


def test_conversations_without_a_reward_do_not_count_for_the_judge(talk):
    talks = [talk(i, 2, float(i % 2)) for i in range(40)]
    _, judges = set_aside(talks, QConfig())
    failed = Outcome(Ending.INFRASTRUCTURE_FAILURE, None)
    left = {c.id for c in judges[:3]}  # of ten
    spoiled = [dataclasses.replace(c, outcome=failed) if c.id in left else c for c in talks]
    assert set_aside(spoiled, QConfig()) == (tuple(spoiled), ())
    assert "0.25 sets 7 of 37 aside, and 8 or more are needed" in why_none_aside(spoiled, QConfig())


def test_the_only_success_of_a_log_is_not_taken_from_q(talk):
    """What Q could be fitted to with all of a log must not fail for want of the judge's share."""
    plain = [talk(i, 2, 0.0) for i in range(40)]
    _, judges = set_aside(plain, QConfig())
    assert len(judges) == 10, "with one outcome everywhere Q fails either way, and says why itself"
    lucky = judges[0].id
    talks = [talk(i, 2, float(f"c{i}" == lucky)) for i in range(40)]
    assert set_aside(talks, QConfig()) == (tuple(talks), ())
    assert "30 others all have one outcome" in why_none_aside(talks, QConfig())


def test_a_log_of_copies_has_no_judge(talk):
    talks = [dataclasses.replace(talk(0, 2), id=f"c{i}") for i in range(40)]
    assert set_aside(talks, QConfig()) == (tuple(talks), ())
    assert "copies or of one kernel" in why_none_aside(talks, QConfig())


def test_a_log_is_known_again_by_all_that_the_split_looks_at(talk):
    talks = [talk(i, 2, float(i % 2)) for i in range(6)]
    known = log_sha256(talks)
    renamed = [dataclasses.replace(c, id=f"x{i}") for i, c in enumerate(talks)]
    assert log_sha256(renamed[::-1]) == known
    whole = dataclasses.replace(talks[1].outcome, reward=1)
    assert log_sha256([talks[0], dataclasses.replace(talks[1], outcome=whole), *talks[2:]]) == known
    other = dataclasses.replace(talks[1].outcome, reward=0.5)
    for changed in (
        [*talks, talk(7, 2, 0.0)],
        [*talks, talks[0]],
        talks[1:],
        [dataclasses.replace(talks[0], kernel_id="other"), *talks[1:]],
        [talks[0], dataclasses.replace(talks[1], outcome=other), *talks[2:]],
    ):
        assert log_sha256(changed) != known
