"""fit_q: what it learns, what it refuses, and that it does so the same way every time."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch

from iterpo.domain import Ending, Exploration, Outcome, decisions
from iterpo.errors import BatchError, TrainingError
from iterpo.policy_evaluation.base import QConfig
from iterpo.policy_evaluation.features import features
from iterpo.policy_evaluation.fit import fit_q
from iterpo.policy_evaluation.monte_carlo import training_rows
from iterpo.policy_evaluation.regression import regress

QUICK = QConfig(hidden=16, learning_rate=3e-3, epochs=4)


@pytest.fixture
def batch(talk):
    return [talk(i, 1 + i % 3, reward=(0.0, 0.5, 1.0)[i % 3]) for i in range(12)]


def test_pain_56_three_turns_with_gamma_09_give_081_09_1(talk):
    rows = training_rows([talk(0, 3, 1.0), talk(1, 1, 0.0)], QConfig())
    assert [d.ret for d in rows.decisions[:3]] == pytest.approx([0.81, 0.9, 1.0])


def test_gamma_0_keeps_the_last_turns_reward(talk):
    rows = training_rows([talk(0, 3, 1.0)], QConfig(gamma=0.0))
    assert [d.ret for d in rows.decisions] == [0.0, 0.0, 1.0]


def planted(seed: int, n: int = 600, width: int = 12):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, width, generator=generator)
    weights = torch.randn(width, generator=torch.Generator().manual_seed(7))
    return x, x @ weights / 4 + 0.3


def r2(head, x, g):
    with torch.no_grad():
        return 1 - float((head(x) - g).square().mean() / g.var())


def test_pain_26_a_planted_linear_return_is_recovered():
    config = QConfig(hidden=64, batch_size=32, learning_rate=3e-3, epochs=30, dropout=0.0)
    head = regress(*planted(0), config)
    assert r2(head, *planted(1)) > 0.95
    shuffled = regress(*planted(0), dataclasses.replace(config, shuffle_returns=True))
    assert r2(shuffled, *planted(1)) < 0.1


@pytest.mark.parametrize("factor", [1000.0, 1e-3])
def test_pain_27_scaled_returns_converge_and_predictions_rescale(factor):
    config = QConfig(hidden=64, batch_size=32, learning_rate=3e-3, epochs=30, dropout=0.0)
    x, g = planted(0)
    plain, scaled = regress(x, g, config), regress(x, g * factor, config)
    assert r2(scaled, planted(1)[0], planted(1)[1] * factor) > 0.95
    with torch.no_grad():
        # Scaling by a number that is no power of two rounds; 30 epochs carry that on.
        torch.testing.assert_close(scaled(x) / factor, plain(x), atol=1e-2, rtol=0.0)


def test_eight_heads_are_trained_as_if_alone_and_averaged():
    config = QConfig(
        hidden=32, heads=8, batch_size=32, learning_rate=3e-3, epochs=30, standardise=True
    )
    head = regress(*planted(0), config)
    assert r2(head, *planted(1)) > 0.9
    each = head.normalised(planted(1)[0])
    assert each.shape == (600, 8)
    assert each.std(dim=1).mean() > 1e-3


def test_clamp_keeps_scores_within_the_fitted_returns():
    x, g = planted(0)
    config = QConfig(hidden=64, batch_size=32, learning_rate=3e-3, epochs=15, clamp=True)
    head = regress(x, g, config)
    with torch.no_grad():
        assert float(head(x * 50).max()) == float(g.max())
    free = regress(x, g, dataclasses.replace(config, clamp=False))
    with torch.no_grad():
        assert float(free(x * 50).max()) > float(g.max())


def test_it_learns_which_words_pay(backbone, talk):
    """A word that decides the outcome is found in conversations that were not fitted on."""
    talks = [
        talk(i, 1, float(i % 2), words=["zzzzzz" if i % 2 else "aaaaaa"], kernel_id=f"k{i}")
        for i in range(60)
    ]
    config = QConfig(hidden=64, learning_rate=3e-3, epochs=20, dropout=0.0)
    q, report = fit_q(backbone, talks, config)
    assert report.heldout.conversations == 12
    assert report.fit.pearson is not None
    assert report.fit.pearson > 0.9
    assert report.fit.r2 > 0.7
    assert report.concerns() == ()
    rows = [d for c in talks[:2] for d in decisions(c, 0.9)]
    low, high = q([r.state for r in rows], [r.response for r in rows])
    assert low < 0.3 < 0.7 < high


def test_shuffled_returns_teach_nothing(backbone, talk):
    talks = [
        talk(i, 1, float(i % 2), words=["zzzzzz" if i % 2 else "aaaaaa"], kernel_id=f"k{i}")
        for i in range(60)
    ]
    config = QConfig(hidden=64, learning_rate=3e-3, epochs=20, dropout=0.0, shuffle_returns=True)
    _, report = fit_q(backbone, talks, config)
    assert report.fit.r2 < 0.2
    assert "shuffled" in report.concerns()[0]


def test_the_same_seed_gives_the_same_bytes(backbone, batch, tmp_path):
    torch.manual_seed(1)
    fit_q(backbone, batch, QUICK).q.save(tmp_path / "a")
    torch.manual_seed(2)
    torch.rand(5)
    fit_q(backbone, batch, QUICK).q.save(tmp_path / "b")
    fit_q(backbone, batch, dataclasses.replace(QUICK, seed=43)).q.save(tmp_path / "c")
    one, two, other = (
        {p.name: p.read_bytes() for p in (tmp_path / name).iterdir()} for name in "abc"
    )
    assert one == two
    assert one["head.safetensors"] != other["head.safetensors"]


def test_the_callers_random_stream_is_left_alone(backbone, batch):
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    fit_q(backbone, batch, QUICK)
    assert torch.equal(torch.rand(4), expected)


def test_pain_62_text_only_logs_train_q(backbone, talk):
    talks = [talk(i, 2, float(i % 2), text_only=True) for i in range(8)]
    q, report = fit_q(backbone, talks, QUICK)
    assert report.rows == 16
    row = decisions(talks[0], 0.9)[0]
    assert q([row.state], [row.response])[0] is not None


def test_the_report_counts_and_is_json(backbone, batch, talk):
    lost = talk(50, 2, None, outcome=Outcome(Ending.INFRASTRUCTURE_FAILURE, detail="timeout"))
    silent = talk(51, 0, 0.0)
    seen = []
    q, report = fit_q(
        backbone, [*batch, lost, silent], QUICK, lambda e, v: seen.append((e, dict(v)))
    )
    assert report.left_out == {
        "infrastructure_failure": 1,
        "without_action": 1,
        "rows_without_features": 0,
    }
    assert report.rows == report.train.rows + report.heldout.rows == 24
    assert report.train.conversations + report.heldout.conversations == 12
    assert (report.forwards, report.forwards_saved) == (12, 12)
    assert report.dtypes == {"hidden": "float32", "features": "float32", "head": "float32"}
    assert [t.t for t in report.train_fit.turns] == [1, 2, 3]
    assert report.refit_on_all
    json.dumps(report.to_dict(), allow_nan=False)
    assert [e for e, _ in seen] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert set(seen[0][1]) == {"report/mse", "report/heldout_mse"}
    assert set(seen[-1][1]) == {"final/mse"}
    assert not q.head.training


def test_refit_on_all_uses_the_held_out_rows_too(backbone, batch):
    heads = [
        fit_q(backbone, batch, dataclasses.replace(QUICK, refit_on_all=flag)) for flag in (0, 1)
    ]
    assert heads[0].report.fit == heads[1].report.fit
    assert not torch.equal(heads[0].q.head.outer, heads[1].q.head.outer)
    # A mean over different rows.
    assert heads[0].q.head.return_mean != heads[1].q.head.return_mean


def test_nothing_held_out_is_fitted_and_said(backbone, talk):
    _, report = fit_q(backbone, [talk(0, 3)], QUICK)
    assert report.heldout.rows == 0
    assert report.fit.pearson is None
    assert not report.refit_on_all
    assert "nothing was held out" in report.concerns()[0]


def test_rows_without_tokens_are_left_out_and_counted(backbone, batch, talk):
    mute = talk(60, 1, 1.0)
    turn = mute.turns[2]
    empty = dataclasses.replace(turn.sampled, token_ids=(), logprobs=())
    mute = dataclasses.replace(
        mute, turns=(*mute.turns[:2], dataclasses.replace(turn, text="", sampled=empty))
    )
    _, report = fit_q(backbone, [*batch, mute], QUICK)
    assert report.left_out["rows_without_features"] == 1
    assert report.rows == 24


def test_an_empty_batch_is_refused(backbone):
    with pytest.raises(BatchError, match="no conversations were given"):
        fit_q(backbone, [])


def test_failures_only_are_refused(backbone, talk):
    lost = talk(0, 2, None, outcome=Outcome(Ending.INFRASTRUCTURE_FAILURE))
    with pytest.raises(BatchError, match="none of the 1 conversations has a reward"):
        fit_q(backbone, [lost])


def test_no_action_is_refused(backbone, talk):
    with pytest.raises(BatchError, match="no agent action"):
        fit_q(backbone, [talk(0, 0, 0.0), talk(1, 0, 1.0)])


def test_one_outcome_only_is_refused(backbone, talk):
    with pytest.raises(BatchError, match=r"all 6 returns are 0: with one outcome only"):
        fit_q(backbone, [talk(i, 3, 0.0) for i in range(2)])


@pytest.mark.parametrize("reward", [None, float("nan")])
def test_a_missing_reward_is_refused_by_name(backbone, talk, reward):
    bad = talk(0, 2, reward, outcome=Outcome(Ending.AGREED, reward))
    with pytest.raises(BatchError, match="conversation 'c0' ended with 'agreed' but its reward"):
        fit_q(backbone, [bad, talk(1)])


def marked(conversation, *actions, drawn=None):
    turns = list(conversation.turns)
    for t in actions:
        turns[2 * t] = dataclasses.replace(turns[2 * t], off_policy=True)
    return dataclasses.replace(conversation, turns=tuple(turns), exploration=drawn)


def test_off_policy_turns_are_refused_with_what_to_do(backbone, talk):
    with pytest.raises(BatchError, match=r"1 of 2 conversations .* off-policy .*'c0'") as caught:
        fit_q(backbone, [marked(talk(0, 2), 2), talk(1)])
    assert "Set off_policy to drop" in str(caught.value)


def test_a_draw_is_refused_where_it_was_never_reached(talk):
    drawn = Exploration({"tone": "warm"}, 0.1, action=5)
    with pytest.raises(BatchError, match="1 of 2 conversations"):
        training_rows([marked(talk(0, 2), drawn=drawn), talk(1)], QConfig())


def test_a_plain_draw_is_the_policys_own(talk):
    talks = [marked(talk(i, 2, float(i)), drawn=Exploration({}, 0.75)) for i in range(2)]
    assert len(training_rows(talks, QConfig()).decisions) == 4


def test_dropping_keeps_the_policys_own_returns_and_counts_the_rest(backbone, batch, talk):
    warm = {"tone": "warm"}
    strange = [
        marked(talk(20, 3), 1, 2, 3, drawn=Exploration(warm, 0.1)),  # no row
        marked(talk(21, 3), 2, drawn=Exploration(warm, 0.1, action=2)),  # rows 2 and 3
        marked(talk(22, 2), drawn=Exploration(warm, 0.1, action=3)),  # no row: never reached
        marked(talk(23, 3), 1),  # all rows, but no record of the draw
        marked(talk(24, 0, 0.0), drawn=Exploration(warm, 0.1)),  # without action anyway
    ]
    config = dataclasses.replace(QUICK, off_policy="drop")
    rows = training_rows([*strange, *batch], config)
    assert rows.left_out == {"without_action": 1, "explored": 2, "explored_rows": 6}
    assert [(d.state.conversation_id, d.state.t) for d in rows.decisions[:5]] == [
        ("c21", 2), ("c21", 3), ("c23", 1), ("c23", 2), ("c23", 3)
    ]  # fmt: skip
    assert rows.decisions[0].turn.off_policy
    report = fit_q(backbone, [*strange, *batch], config).report
    assert report.rows == 24 + 5
    assert report.train.conversations + report.heldout.conversations == 12 + 2
    assert report.left_out["explored_rows"] == 6
    assert report.unrecorded == 1
    assert any("no record of the draw" in text for text in report.concerns())
    json.dumps(report.to_dict(), allow_nan=False)


def test_dropping_nothing_changes_nothing(backbone, batch):
    dropping = dataclasses.replace(QUICK, off_policy="drop")
    plain, same = fit_q(backbone, batch, QUICK), fit_q(backbone, batch, dropping)
    assert plain.report == same.report
    assert torch.equal(plain.q.head.inner.weight, same.q.head.inner.weight)


def test_at_gamma_0_an_explored_return_is_as_good_as_any(talk):
    talks = [marked(talk(i, 2, float(i)), 1, 2, drawn=Exploration({"a": "b"}, 0.1)) for i in (0, 1)]
    rows = training_rows(talks, QConfig(gamma=0.0, off_policy="drop"))
    assert len(rows.decisions) == 4
    assert rows.left_out["explored_rows"] == 0


def test_nothing_but_explored_conversations_is_refused(talk):
    talks = [marked(talk(i, 2, float(i)), 1, 2, drawn=Exploration({"a": "b"}, 0.1)) for i in (0, 1)]
    with pytest.raises(BatchError, match=r"all 4 agent turns were explored.*scope action"):
        training_rows(talks, QConfig(off_policy="drop"))


def test_a_diverging_loss_is_an_error():
    x, g = planted(0, n=16)
    x[3, 3] = float("inf")
    with pytest.raises(TrainingError, match="diverged in epoch 1"):
        regress(x, g, QUICK)


def test_features_are_computed_once(backbone, batch, monkeypatch):
    calls = []
    inner = backbone.model.model.forward
    monkeypatch.setattr(
        backbone.model.model, "forward", lambda *a, **k: calls.append(1) or inner(*a, **k)
    )
    fit_q(backbone, batch, dataclasses.replace(QUICK, epochs=7))
    assert len(calls) == 1
    rows = [d for c in batch for d in decisions(c, 0.9)]
    assert len(features(backbone, [r.state for r in rows], [r.response for r in rows])) == 24


def test_ids_that_another_model_sampled_are_refused(backbone, talk):
    foreign = talk(0, 2)
    last = foreign.turns[-1]
    sampled = dataclasses.replace(last.sampled, token_ids=(96,), logprobs=(-1.0,))
    turns = (*foreign.turns[:-1], dataclasses.replace(last, sampled=sampled))
    with pytest.raises(BatchError, match="token id 96, but this model knows ids below 96"):
        fit_q(backbone, [dataclasses.replace(foreign, turns=turns), talk(1)])
