"""QFunction: the same scores everywhere, also after saving; never a made-up head."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from iterpo import artifacts
from iterpo.domain import PolicyRef, Response, decisions
from iterpo.errors import ArtifactError
from iterpo.models.backbone import Backbone, attach_lora
from iterpo.models.lora import LoraSpec
from iterpo.policy_evaluation.base import QConfig
from iterpo.policy_evaluation.fit import fit_q
from iterpo.policy_evaluation.qfunction import QFunction, ValueHead


@pytest.fixture
def rows(talk):
    found = [d for i in range(4) for d in decisions(talk(i, 3), 0.9)]
    return [d.state for d in found], [d.response for d in found]


@pytest.fixture
def q(backbone, talk):
    talks = [talk(i, 3, float(i % 2)) for i in range(6)]
    return fit_q(backbone, talks, QConfig(hidden=8, learning_rate=1e-2)).q


def test_pain_22_scores_do_not_depend_on_the_batch(q, rows):
    together = q(*rows)
    alone = [q([s], [r])[0] for s, r in zip(*rows, strict=True)]
    assert together == pytest.approx(alone, abs=1e-5)
    assert len(set(together)) > 6, "constant scores would pass as well"


def test_pain_25_saving_and_loading_keeps_every_score(q, rows, tmp_path, make_backbone):
    q.save(tmp_path / "q")
    again = QFunction.load(tmp_path / "q", make_backbone())
    assert again.id == q.id, "a stored Q is the same reward"
    assert again(*rows) == q(*rows)
    assert again.config == q.config
    assert not again.head.training


def test_pain_25_a_deleted_head_is_refused(q, tmp_path):
    q.save(tmp_path / "q")
    (tmp_path / "q" / "head.safetensors").unlink()
    with pytest.raises(ArtifactError, match="missing"):
        QFunction.load(tmp_path / "q", q.backbone)


def test_pain_25_a_manifest_without_a_head_is_refused(q, tmp_path):
    with artifacts.build(tmp_path / "q", "q", {}):
        pass
    with pytest.raises(ArtifactError, match="has no head"):
        QFunction.load(tmp_path / "q", q.backbone)


def test_pain_25_a_head_without_all_tensors_is_refused(q, tmp_path):
    q.save(tmp_path / "q")
    facts = artifacts.open_sealed(tmp_path / "q")["facts"]
    tensors = load_file(tmp_path / "q" / "head.safetensors")
    del tensors["bias"]
    with artifacts.build(tmp_path / "q", "q", facts) as place:
        save_file(tensors, place / "head.safetensors")
    with pytest.raises(ArtifactError, match="can't be read as a value head"):
        QFunction.load(tmp_path / "q", q.backbone)


def test_a_changed_head_is_refused(q, tmp_path):
    q.save(tmp_path / "q")
    path = tmp_path / "q" / "head.safetensors"
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    with pytest.raises(ArtifactError, match="checksum"):
        QFunction.load(tmp_path / "q", q.backbone)


def test_another_kind_of_artefact_is_refused(q, tmp_path):
    with artifacts.build(tmp_path / "q", "policy", {}):
        pass
    with pytest.raises(ArtifactError, match="'policy', but 'q'"):
        QFunction.load(tmp_path / "q", q.backbone)


def test_another_policy_is_refused(q, tmp_path, make_backbone):
    q.save(tmp_path / "q")
    other = make_backbone(policy=PolicyRef("toy", "1" * 64))
    with pytest.raises(ArtifactError, match="backbone with policy"):
        QFunction.load(tmp_path / "q", other)


def test_another_quantisation_is_refused(q, tmp_path, make_backbone):
    q.save(tmp_path / "q")
    with pytest.raises(ArtifactError, match="backbone with quantized"):
        QFunction.load(tmp_path / "q", make_backbone(quantized=True))


def test_another_template_is_refused(q, tmp_path, make_backbone):
    q.save(tmp_path / "q")
    other = make_backbone()
    other.chat.flip_history = True
    with pytest.raises(ArtifactError, match="template_sha256"):
        QFunction.load(tmp_path / "q", other)


def test_pain_24_the_dtype_is_recorded_and_may_differ(q, rows, tmp_path, make_backbone):
    q.save(tmp_path / "q")
    facts = artifacts.open_sealed(tmp_path / "q")["facts"]
    assert facts["backbone"]["dtype"] == "float32"
    assert facts["head_dtype"] == "float32"
    half = QFunction.load(tmp_path / "q", make_backbone(torch.bfloat16))
    # 1.5% of the hidden state (measured) through a small head.
    assert half(*rows) == pytest.approx(q(*rows), abs=0.1)


def test_no_response_and_no_number_give_none_never_zero(q, rows):
    states, responses = rows
    assert q(states[:2], [Response("", ()), responses[1]])[0] is None
    assert q(states[:1], [Response("", ())]) == [None]
    assert q([], []) == []
    with torch.no_grad():
        q.backbone.model.model.norm.weight.fill_(float("nan"))
    assert q(states[:2], responses[:2]) == [None, None]


def test_the_manifest_is_json_without_time_stamps(q, tmp_path):
    q.save(tmp_path / "q")
    facts = json.loads((tmp_path / "q" / "manifest.json").read_text())["facts"]
    assert facts["config"] == dataclasses.asdict(q.config)
    assert set(facts) == {"config", "backbone", "width", "head_dtype", "log_sha256"}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_shared_backbone_is_the_policy_that_was_deployed_not_the_one_in_training(
    q, rows, backbone
):
    shared = Backbone(**{f.name: getattr(backbone, f.name) for f in dataclasses.fields(Backbone)})
    q = dataclasses.replace(q, backbone=shared)
    before = q(*rows)
    trained = attach_lora(shared, LoraSpec(r=4, alpha=64), seed=0).train()
    with torch.no_grad():
        for name, parameter in trained.named_parameters():
            if "lora_B" in name:
                parameter.normal_()
    ids = torch.tensor([[5, 6, 7, 8]])
    moved = trained(ids).logits
    with trained.disable_adapter():
        assert (trained(ids).logits - moved).abs().max() > 0.1, "the adapter does nothing"
    assert q(*rows) == before


def head_saying(*said: float, **scales: float) -> ValueHead:
    """A head whose members say these values (in scaled units) whatever the features are."""
    head = ValueHead(2, 3, len(said), 0.0).eval()
    with torch.no_grad():
        head.outer.zero_()
        head.bias.copy_(torch.tensor(said))
        for name, value in scales.items():
            getattr(head, name).fill_(value)
    return head


def test_a_lower_confidence_bound_over_the_heads_by_hand():
    """Heads 1, 2, 6: mean 3, deviations -2, -1, 3, so the variance is 14 / 2 = 7."""
    head, x = head_saying(1.0, 2.0, 6.0), torch.zeros(1, 2)
    assert head(x).tolist() == pytest.approx([3.0])
    assert head(x, 1.0).tolist() == pytest.approx([3 - 7**0.5])
    assert head(x, 2.0).tolist() == pytest.approx([3 - 2 * 7**0.5])
    # In the unit of the returns both scale: 10 + 0.5 (3 - sqrt 7).
    scaled = head_saying(1.0, 2.0, 6.0, return_mean=10.0, return_scale=0.5)
    assert scaled(x, 1.0).tolist() == pytest.approx([10 + 0.5 * (3 - 7**0.5)])


def test_scores_are_bounded_last_or_disagreement_beyond_the_bound_would_be_lost():
    """Heads 1.5 and 3.5 with returns up to 1: bounded one by one they would agree on 1."""
    head, x = head_saying(1.5, 3.5, lowest=0.0, highest=1.0), torch.zeros(1, 2)
    assert head(x).tolist() == [1.0]
    # mean 2.5, sd sqrt 2: 2.5 - 1.2 sqrt 2 = 0.803 lies within the bounds; 2.5 - 2 sqrt 2 does not.
    assert head(x, 1.2).tolist() == pytest.approx([2.5 - 1.2 * 2**0.5])
    assert head(x, 2.0).tolist() == [0.0]


def test_pessimism_is_part_of_the_reward_but_not_of_the_health_report(backbone, talk, rows):
    talks = [talk(i, 3, float(i % 2)) for i in range(6)]
    config = QConfig(hidden=8, heads=4, learning_rate=1e-2, clamp=False)  # bounds could tie them
    mean = fit_q(backbone, talks, config)
    bound = fit_q(backbone, talks, dataclasses.replace(config, pessimism=1.0))
    assert bound.q.id == mean.q.id, "the same heads"
    assert all(b < m for b, m in zip(bound.q(*rows), mean.q(*rows), strict=True))
    assert bound.report == mean.report
