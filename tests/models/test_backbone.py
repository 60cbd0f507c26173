from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from iterpo.domain import PolicyRef, Sampling
from iterpo.errors import BatchError, ModelError
from iterpo.models.backbone import (
    FROZEN,
    TRAINED,
    Backbone,
    attach_lora,
    frozen,
    hidden_states,
    load,
    merge_adapter,
)
from iterpo.models.chat import check_ids
from iterpo.models.generation import generate
from iterpo.models.hub import base_policy
from iterpo.models.lora import LoraSpec
from iterpo.testing.tiny_model import tiny_model

IDS = torch.tensor([[267, 10, 11, 12, 13]])
SPEC = LoraSpec(r=4, alpha=4)


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        out: torch.Tensor = model(input_ids=IDS).logits
    return out


def nudge(model: Any) -> None:
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data.add_(0.1)


def test_a_loaded_policy_is_frozen_small_and_fp32(tiny: Backbone) -> None:
    assert tiny.dtype == tiny.model.dtype == torch.float32
    assert not tiny.model.training
    assert not any(p.requires_grad for p in tiny.model.parameters())
    assert tiny.context_length == 512


def test_other_weights_under_a_policys_name_are_refused(tiny_policy: PolicyRef) -> None:
    changed = dataclasses.replace(tiny_policy, base_sha256="0" * 64)
    with pytest.raises(ModelError, match="has changed"):
        load(changed, device="cpu")


def test_weights_that_are_missing_are_never_drawn_at_random(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    config["num_hidden_layers"] += 1
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"lacks \d+ of the weights .*layers\.2"):
        load(base_policy(str(folder)), device="cpu")


def test_ids_of_another_models_tokenizer_are_refused(tiny: Backbone) -> None:
    check_ids([[0, tiny.vocabulary - 1], []], tiny.vocabulary)
    with pytest.raises(BatchError, match=f"token id {tiny.vocabulary}, but"):
        check_ids([[0], [tiny.vocabulary]], tiny.vocabulary)


def test_unknown_options_say_what_is_accepted(tiny_policy: PolicyRef) -> None:
    with pytest.raises(ModelError, match="accepted: auto, float32"):
        load(tiny_policy, device="cpu", dtype="int8")


def test_a_fresh_adapter_changes_nothing_and_follows_its_seed(tiny_policy: PolicyRef) -> None:
    plain = load(tiny_policy, device="cpu")
    before = logits(plain.model)
    state = torch.random.get_rng_state()
    weights = []
    for seed in (3, 3, 4):
        model = attach_lora(load(tiny_policy, device="cpu"), SPEC, seed)
        torch.testing.assert_close(logits(model), before, rtol=0, atol=0)
        weights.append(torch.cat([p.flatten() for p in model.parameters() if p.requires_grad]))
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert torch.equal(torch.random.get_rng_state(), state)  # nobody else's draws are shifted


def test_pain_51_the_trainable_copy_starts_exactly_at_the_frozen_adapter(
    adapted: Backbone, tiny_policy: PolicyRef
) -> None:
    base = logits(load(tiny_policy, device="cpu").model)
    before = logits(adapted.model)
    assert not torch.allclose(before, base)  # the adapter does something
    model = attach_lora(adapted, SPEC, seed=0)
    torch.testing.assert_close(logits(model), before, rtol=0, atol=0)
    nudge(model)
    assert not torch.allclose(logits(model), before)
    with frozen(adapted):  # the reference stays where the round started
        torch.testing.assert_close(logits(model), before, rtol=0, atol=0)
    trainable = {n for n, p in model.named_parameters() if p.requires_grad}
    assert trainable
    assert all(f".{TRAINED}." in n for n in trainable)


def test_pain_43_a_used_adapter_name_is_refused(adapted: Backbone, tiny: Backbone) -> None:
    for backbone in (adapted, tiny):
        attach_lora(backbone, SPEC, seed=0)
        with pytest.raises(ModelError, match="never used for two"):
            attach_lora(backbone, SPEC, seed=0)


def test_an_adapter_of_another_shape_can_not_be_continued(adapted: Backbone) -> None:
    with pytest.raises(ModelError, match="rank 4, alpha 4"):
        attach_lora(adapted, LoraSpec(r=8, alpha=8), seed=0)


@pytest.mark.parametrize("which", ["tiny", "adapted"])
def test_hidden_states_are_the_frozen_policys_while_it_trains(
    which: str, request: pytest.FixtureRequest
) -> None:
    backbone: Backbone = request.getfixturevalue(which)
    mask = torch.ones_like(IDS)
    before = hidden_states(backbone, IDS, mask)
    assert before.shape == (1, 5, 32)
    model = attach_lora(backbone, LoraSpec(r=4, alpha=4), seed=0)
    nudge(model)
    model.train()
    flags = {n: p.requires_grad for n, p in model.named_parameters()}
    trained = logits(model)
    after = hidden_states(backbone, IDS, mask)
    torch.testing.assert_close(after, before, rtol=0, atol=0)
    assert not after.requires_grad
    assert model.training
    assert flags == {n: p.requires_grad for n, p in model.named_parameters()}
    torch.testing.assert_close(logits(model), trained, rtol=0, atol=0)


def test_hidden_states_end_with_the_final_norm_and_ignore_the_padding_side(
    tiny: Backbone,
) -> None:
    plain = hidden_states(tiny, IDS, torch.ones_like(IDS))
    head = tiny.model.get_output_embeddings()
    torch.testing.assert_close(head(plain), logits(tiny.model))
    pad = torch.full((1, 3), 266)
    none = torch.zeros_like(pad)
    ones = torch.ones_like(IDS)
    left = hidden_states(tiny, torch.cat([pad, IDS], 1), torch.cat([none, ones], 1))[:, 3:]
    right = hidden_states(tiny, torch.cat([IDS, pad], 1), torch.cat([ones, none], 1))[:, :5]
    # 1e-5: masked positions add exact zeros, sums may be ordered differently.
    torch.testing.assert_close(left, plain, rtol=0, atol=1e-5)
    torch.testing.assert_close(right, plain, rtol=0, atol=1e-5)


def test_generation_follows_the_adapter_in_training(tiny: Backbone) -> None:
    sampling = Sampling(temperature=0, max_new_tokens=8)
    before = generate(tiny, [[267, 10]], sampling, [0])
    model = attach_lora(tiny, SPEC, seed=0)
    model.train()
    nudge(model)
    assert generate(tiny, [[267, 10]], sampling, [0]) != before
    assert model.training
    with frozen(tiny):
        assert generate(tiny, [[267, 10]], sampling, [0]) == before


def test_pain_44_merging_into_a_4_bit_base_is_refused(adapted: Backbone, tiny: Backbone) -> None:
    with pytest.raises(ModelError, match="4-bit base changes its outputs and is refused"):
        merge_adapter(dataclasses.replace(adapted, quantized=True))
    with pytest.raises(ModelError, match="no adapter"):
        merge_adapter(tiny)
    before = logits(adapted.model)
    merged = merge_adapter(adapted)
    # 1e-4: W + BA is rounded once in float32.
    torch.testing.assert_close(logits(merged), before, rtol=0, atol=1e-4)
    assert FROZEN in adapted.model.peft_config
    torch.testing.assert_close(logits(adapted.model), before, rtol=0, atol=0)
