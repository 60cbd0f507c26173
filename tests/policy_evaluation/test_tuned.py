"""The tuned critic: starts as the frozen Q, learns what that can't, and leaves the policy alone."""

from __future__ import annotations

import dataclasses
import json
import warnings
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model

from iterpo import artifacts
from iterpo.domain import decisions
from iterpo.errors import ArtifactError, ConfigError, ModelError, TrainingError
from iterpo.models.backbone import CRITIC, FROZEN
from iterpo.models.critic import attach_critic, critic_weights, learning, load_critic
from iterpo.models.lora import LoraSpec
from iterpo.policy_evaluation.base import QConfig, TuneConfig
from iterpo.policy_evaluation.features import features, token_rows
from iterpo.policy_evaluation.fit import fit_q
from iterpo.policy_evaluation.numbers import numbers
from iterpo.policy_evaluation.qfunction import QFunction
from iterpo.policy_evaluation.regression import regress
from iterpo.policy_evaluation.tuned import read_with_gradients, tune
from iterpo.policy_evaluation.upper_bound import UpperBound

SPEC = LoraSpec(r=4, alpha=8)
HEAD = QConfig(
    pooling="final",
    standardise=False,
    clamp=False,
    hidden=16,
    heads=2,
    learning_rate=1e-2,
    epochs=3,
    batch_size=4,
    dropout=0.0,
    holdout_fraction=0.0,
)
TUNED = dataclasses.replace(HEAD, tune=TuneConfig(r=4, alpha=8, learning_rate=5e-3, epochs=16))


@pytest.fixture
def rows(talk):
    found = [d for i in range(4) for d in decisions(talk(i, 3), 0.9)]
    return [d.state for d in found], [d.response for d in found]


@pytest.fixture
def talks(talk):
    """Worth 1 after "yes" and 0 after "no", which are not at the end of the response."""
    made = []
    for i in range(16):
        word = ("yes", "no")[i % 2]
        words = [f"{word} ok"]
        made.append(talk(i, 1, float(i % 2 == 0), words=words))
    return made


@pytest.fixture
def deaf(make_backbone):
    """Without attention, the last token's state says nothing of what came before."""
    backbone = make_backbone()
    with torch.no_grad():
        for layer in backbone.model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
    return backbone


def adapted(backbone):
    """The same policy with an adapter that changes its outputs, as ``models.backbone`` loads it."""
    config = LoraConfig(r=2, lora_alpha=2, target_modules="all-linear", task_type="CAUSAL_LM")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="`is_gradient_checkpointing` is deprecated")
        model = get_peft_model(backbone.model, config, adapter_name=FROZEN)
    jolt(model, FROZEN, 5)
    model.requires_grad_(False)
    policy = dataclasses.replace(backbone.policy, adapter=Path("a"), adapter_sha256="0" * 64)
    return dataclasses.replace(backbone, model=model, policy=policy)


def jolt(model, name, seed):
    generator = torch.Generator().manual_seed(seed)
    for key, parameter in model.named_parameters():
        if f".{name}." in key:  # both factors
            parameter.data.copy_(0.3 * torch.randn(parameter.shape, generator=generator))


def everything(backbone):
    return {
        "weights": {k: v.clone() for k, v in backbone.model.state_dict().items()},
        "flags": [p.requires_grad for p in backbone.model.parameters()],
        "training": [m.training for m in backbone.model.modules()],
    }


def same(a, b):
    return (
        a["flags"] == b["flags"]
        and a["training"] == b["training"]
        and a["weights"].keys() == b["weights"].keys()
        and all(torch.equal(v, b["weights"][k]) for k, v in a["weights"].items())
    )


@pytest.mark.parametrize("pooling", ["final", "final_and_mean"])
@pytest.mark.parametrize("with_adapter", [False, True])
def test_a_fresh_critic_reads_what_the_policy_reads(backbone, rows, pooling, with_adapter):
    if with_adapter:
        plain = features(backbone, *rows)
        backbone = adapted(backbone)
        assert not torch.allclose(features(backbone, *rows), plain, atol=1e-2)
    critic = attach_critic(backbone, SPEC, seed=1)
    frozen = features(backbone, *rows, pooling=pooling)
    assert torch.allclose(features(critic, *rows, pooling=pooling), frozen, atol=1e-5)
    jolt(critic.model, CRITIC, 7)
    moved = features(critic, *rows, pooling=pooling)
    assert not torch.allclose(moved, frozen, atol=1e-2), "its adapter is at work when scoring"
    with learning(critic) as own:
        learnt = read_with_gradients(critic, token_rows(critic, *rows), pooling)
        assert torch.allclose(learnt.detach(), moved, atol=1e-5), "one row at a time, and shared"
        torch.autograd.backward(learnt.square().sum())
        assert all(p.grad is not None for p in own)
        assert sum(p.numel() for p in own) == sum(
            t.numel() for t in critic_weights(critic).values()
        )
    given = [k for k, p in critic.model.named_parameters() if p.grad is not None]
    assert given
    assert all(f".{CRITIC}." in k for k in given), "the policy's own adapter gets no gradient"
    assert not any(p.requires_grad for p in critic.model.parameters())


def test_it_learns_what_the_frozen_features_do_not_hold(deaf, talks):
    """The control: the same head on frozen features is left with the variance of the returns."""
    frozen, tuned = (fit_q(deaf, talks, config) for config in (HEAD, TUNED))
    assert frozen.report.train_fit.variance == pytest.approx(0.25)
    assert frozen.report.train_fit.mse > 0.24
    assert tuned.report.train_fit.mse < 0.01
    told = [decisions(c, 0.9)[0] for c in talks]
    scores = tuned.q([d.state for d in told], [d.response for d in told])
    assert scores == pytest.approx([d.ret for d in told], abs=0.2)


def test_shuffled_returns_teach_it_nothing_true(deaf, talks):
    control = fit_q(deaf, talks, dataclasses.replace(TUNED, shuffle_returns=True))
    assert control.report.train_fit.mse > 0.2
    assert control.report.shuffled


@pytest.mark.parametrize("with_adapter", [False, True])
def test_the_policy_is_untouched(backbone, talks, rows, with_adapter):
    backbone = adapted(backbone) if with_adapter else backbone
    before, read = everything(backbone), features(backbone, *rows)
    q = fit_q(backbone, talks, TUNED).q
    q(*rows)
    assert same(everything(backbone), before)
    assert torch.equal(features(backbone, *rows), read)
    assert not torch.allclose(features(q.backbone, *rows), read, atol=1e-3)
    jolted = everything(backbone)
    jolted["weights"][next(iter(jolted["weights"]))] += 1e-6
    assert not same(everything(backbone), jolted), "the comparison can fail"


@pytest.mark.parametrize("with_adapter", [False, True])
def test_saving_and_loading_keeps_every_score(make_backbone, talks, rows, tmp_path, with_adapter):
    def fresh():
        return adapted(make_backbone()) if with_adapter else make_backbone()

    q = fit_q(fresh(), talks, dataclasses.replace(TUNED, clamp=True, standardise=True)).q
    q.save(tmp_path / "q")
    again = QFunction.load(tmp_path / "q", fresh())
    assert again.id == q.id
    assert again.config == q.config
    assert again(*rows) == q(*rows)
    assert len(set(q(*rows))) > 4
    assert UpperBound(again, 1.0)(*rows) == UpperBound(q, 1.0)(*rows)
    assert fit_q(fresh(), talks, q.config).q.id == q.id, "equal seeds and rows give equal bytes"
    frozen = dataclasses.replace(q, backbone=fresh())
    assert frozen.id != q.id, "the adapter is part of the reward"
    assert frozen(*rows) != q(*rows)


def test_a_missing_or_foreign_adapter_is_refused(backbone, make_backbone, talks, tmp_path):
    q = fit_q(backbone, talks, TUNED).q
    q.save(tmp_path / "q")
    manifest = tmp_path / "q/manifest.json"
    facts = json.loads(manifest.read_text())
    facts["facts"]["config"]["tune"]["r"] = 2
    manifest.write_text(json.dumps(facts))
    with pytest.raises(ArtifactError, match=r"critic's adapter: .*another rank"):
        QFunction.load(tmp_path / "q", make_backbone())
    q.save(tmp_path / "p")
    (tmp_path / "p/critic.safetensors").unlink()
    with pytest.raises(ArtifactError, match="missing"):
        QFunction.load(tmp_path / "p", make_backbone())


def test_a_q_that_was_stored_before_there_were_critics_is_read(backbone, talks, rows, tmp_path):
    q = fit_q(backbone, talks, HEAD).q
    q.save(tmp_path / "q")
    assert sorted(p.name for p in (tmp_path / "q").iterdir()) == [
        "head.safetensors",
        "manifest.json",
    ]
    manifest = tmp_path / "q/manifest.json"
    facts = artifacts.open_sealed(tmp_path / "q")
    del facts["facts"]["config"]["tune"]
    manifest.write_text(json.dumps(facts))
    assert QFunction.load(tmp_path / "q", backbone)(*rows) == q(*rows)


def test_the_first_error_is_the_weighted_one_of_the_frozen_q(backbone, talks):
    """With steps of (nearly) no size: mean of w (q - G)^2 with weights of mean 1."""
    still = dataclasses.replace(
        TUNED,
        numbers=2,
        learning_rate=1e-12,
        tune=TuneConfig(learning_rate=1e-12, epochs=1),
        batch_size=5,
    )
    told = [decisions(c, 0.9)[0] for c in talks]
    states, said = [d.state for d in told], [d.response for d in told]
    returns = torch.tensor([d.ret for d in told])
    weights = torch.tensor([3.0, 1.0] * 8)
    found = features(backbone, states, said, numbers=2)
    head = regress(found, returns, dataclasses.replace(HEAD, numbers=2), weights=weights)
    with torch.no_grad():
        each = torch.stack(
            [
                head.normalised(found)[:, k] * head.return_scale + head.return_mean - returns
                for k in range(2)
            ]
        )
    by_hand = float((weights / 2 * each.square()).mean())  # weights 1.5 and 0.5
    noted = []
    read = (token_rows(backbone, states, said), numbers(states, said, 2))
    tune(backbone, head, read, (returns, weights), still, lambda e, mse: noted.append((e, mse)))
    assert noted == [(1, pytest.approx(by_hand, rel=1e-4))]


def test_a_step_of_many_tokens_is_taken_in_parts(make_backbone, talk, monkeypatch):
    """The same gradients, a few rows at a time: no more padded tokens than the limit, but one row
    that is longer by itself."""
    from iterpo.policy_evaluation import tuned as module

    told = [d for i in range(4) for d in decisions(talk(i, 3, float(i % 2)), 0.9)]
    returns = torch.tensor([d.ret for d in told])
    sizes = []
    real = module.pad
    monkeypatch.setattr(
        module, "pad", lambda rows: sizes.append([len(r) for r in rows]) or real(rows)
    )
    found = []
    for limit in (100_000, 150, 1):
        backbone = make_backbone()
        states, said = [d.state for d in told], [d.response for d in told]
        config = dataclasses.replace(TUNED, batch_size=12, max_batch_tokens=limit)
        config = dataclasses.replace(config, tune=TuneConfig(r=4, alpha=8, epochs=2))
        head = regress(features(backbone, states, said), returns, HEAD)
        sizes.clear()
        mse = []
        read = (token_rows(backbone, states, said), torch.empty((len(told), 0)))
        tune(backbone, head, read, (returns, None), config, lambda _, m, mse=mse: mse.append(m))
        found.append((mse, head.inner.weight.detach().clone(), [len(s) for s in sizes]))
        assert all(len(s) == 1 or len(s) * max(s) <= limit for s in sizes)
    whole, parts, single = found
    assert whole[2] == [12] * 2
    assert 2 < len(parts[2]) < 24 == len(single[2])
    for other in (parts, single):
        assert other[0] == pytest.approx(whole[0], rel=1e-4)
        assert torch.allclose(other[1], whole[1], atol=1e-4)


def test_the_report_is_about_conversations_that_it_never_saw_and_epochs_are_told(deaf, talks):
    noted = {}
    config = dataclasses.replace(TUNED, holdout_fraction=0.25)
    result = fit_q(deaf, talks, config, lambda epoch, values: noted.update({epoch: values}))
    assert result.report.heldout.rows == 4
    assert result.report.fit.mse < 0.1, "the rule is learnt, not the rows"
    assert sorted(noted) == list(range(1, 2 * config.passes + 1))
    assert config.passes == 19
    assert set(noted[3]) == {"report/mse", "report/heldout_mse"}
    assert set(noted[4]) == set(noted[19]) == {"report/mse"}
    assert set(noted[20]) == set(noted[38]) == {"final/mse"}
    assert noted[19]["report/mse"] < 0.05 < noted[3]["report/mse"]


def test_a_loss_that_diverges_is_an_error(backbone, talks):
    wild = dataclasses.replace(TUNED, tune=TuneConfig(learning_rate=1e20, epochs=3))
    with pytest.raises(TrainingError, match=r"tuning Q diverged in epoch .*lower tune\.learning"):
        fit_q(backbone, talks, wild)


def test_it_can_not_be_put_where_it_would_be_wrong(backbone):
    with pytest.raises(ConfigError, match=r"tune is given with backbone 'nf4'; accepted.*: shared"):
        dataclasses.replace(TUNED, backbone="nf4")
    for name, value in (("r", 0), ("alpha", 0.0), ("learning_rate", -1.0), ("epochs", 0)):
        with pytest.raises(ConfigError, match=f"{name}: given {value}"):
            TuneConfig(**{name: value})
    critic = attach_critic(backbone, SPEC, seed=1)
    with pytest.raises(ModelError, match="a backbone with a critic"):
        attach_critic(critic, SPEC, seed=1)
    with pytest.raises(ModelError, match="a 4-bit base"):
        attach_critic(dataclasses.replace(backbone, quantized=True), SPEC, seed=1)
    with pytest.raises(ModelError, match="are missing, unknown or of another shape"):
        load_critic(backbone, SPEC, {})
