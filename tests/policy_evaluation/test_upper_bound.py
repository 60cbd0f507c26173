"""UpperBound: mean and spread of the heads, by hand, and without the bounds of the Q."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from iterpo.domain import Response, decisions
from iterpo.errors import ConfigError
from iterpo.policy_evaluation.base import QConfig
from iterpo.policy_evaluation.features import features
from iterpo.policy_evaluation.fit import fit_q
from iterpo.policy_evaluation.qfunction import QFunction, ValueHead
from iterpo.policy_evaluation.upper_bound import UpperBound


@pytest.fixture
def rows(talk):
    found = [d for i in range(4) for d in decisions(talk(i, 3), 0.9)]
    return [d.state for d in found], [d.response for d in found]


def fitted(backbone, talk, **settings):
    talks = [talk(i, 3, float(i % 2)) for i in range(6)]
    plain = {"pooling": "final", "clamp": False, "standardise": False}
    plain |= {"epochs": 3, "batch_size": 8}
    config = QConfig(hidden=8, learning_rate=1e-2, heads=3, **{**plain, **settings})
    return fit_q(backbone, talks, config).q


def test_by_hand(backbone, rows):
    """Two heads that say 1 and 3 whatever they read, for returns of mean 10 and scale 2."""
    head = ValueHead(32, 4, 2, 0.0).eval()
    with torch.no_grad():
        head.outer.zero_()
        head.bias.copy_(torch.tensor([1.0, 3.0]))
    head.return_mean, head.return_scale = torch.tensor(10.0), torch.tensor(2.0)
    q = QFunction(backbone, head, QConfig(hidden=4, heads=2, pooling="final"))
    # mean 2, standard deviation sqrt(2): 10 + 2 (2 + 1.5 sqrt(2)) = 18.2426…
    assert UpperBound(q, 1.5)(*rows)[0] == pytest.approx(18.242640, abs=1e-5)
    assert UpperBound(q, 0.0)(*rows)[0] == pytest.approx(14.0)


def test_it_is_the_mirror_of_the_lower_bound(backbone, talk, rows):
    """Mean - Q with pessimism s = upper bound of scale s - mean, head by head the same fit."""
    plain, low = fitted(backbone, talk), fitted(backbone, talk, pessimism=1.5)
    mean, below, above = (torch.tensor(q(*rows)) for q in (plain, low, UpperBound(low, 1.5)))
    assert torch.allclose(above - mean, mean - below, atol=1e-6)
    assert (above - mean).min() > 1e-4


def test_the_range_of_the_returns_does_not_hide_what_is_more_promising(backbone, talk, rows):
    clamped = fitted(backbone, talk, clamp=True, standardise=True)
    scores = UpperBound(clamped, 50.0)(*rows)
    assert min(scores) > 1.0, "beyond the best return"
    assert len(set(scores)) > 6


def test_it_reads_what_q_was_fitted_on(backbone, talk, rows):
    q = fitted(backbone, talk, pooling="final_and_mean", numbers=3)
    found = features(backbone, *rows, pooling="final_and_mean", numbers=3)
    assert UpperBound(q, 0.0)(*rows) == pytest.approx(q.scores(found).tolist(), abs=1e-6)


def test_a_response_without_a_token_has_no_score(backbone, talk, rows):
    q = fitted(backbone, talk)
    silent = Response("", ())
    told = UpperBound(q, 1.0)([rows[0][0]] * 2, [rows[1][0], silent])
    assert told[0] is not None
    assert told[1] is None
    assert UpperBound(q, 1.0)([rows[0][0]], [silent]) == [None]
    assert UpperBound(q, 1.0)([], []) == []


def test_one_head_has_no_spread(backbone, talk):
    q = fitted(backbone, talk)
    one = dataclasses.replace(q, config=dataclasses.replace(q.config, heads=1))
    with pytest.raises(ConfigError, match=r"given 1\.0 with a Q of 1 heads; accepted: 0, or"):
        UpperBound(one, 1.0)
    with pytest.raises(ConfigError, match="given -1"):
        UpperBound(q, -1.0)
    UpperBound(one, 0.0)
