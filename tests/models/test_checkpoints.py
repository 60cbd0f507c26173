from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from iterpo.artifacts import file_sha256
from iterpo.domain import PolicyRef
from iterpo.errors import ArtifactError, ModelError, TemplateError, UnknownNameError
from iterpo.models import hub
from iterpo.models.backbone import TRAINED, attach_lora, load
from iterpo.models.checkpoints import load_policy, read_policy, save_policy
from iterpo.models.lora import LoraSpec
from iterpo.testing.tiny_model import tiny_model

IDS = torch.tensor([[267, 10, 11, 12, 13]])


def make(run: Path, seed: int = 1) -> tuple[PolicyRef, torch.Tensor]:
    """A run folder with a base model and pi_1; returns pi_1 and its logits."""
    if not (run / "base").is_dir():
        tiny_model(run / "base")
    parent = hub.base_policy(str(run / "base"))
    model = attach_lora(load(parent, device="cpu"), LoraSpec(r=4, alpha=4), seed=seed)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data.add_(0.05)
    ref = save_policy(run / "pi_1", model, TRAINED, parent=parent, round=1)
    with torch.no_grad():
        return ref, model(input_ids=IDS).logits


def test_a_saved_policy_computes_the_same_after_loading(tmp_path: Path) -> None:
    ref, logits = make(tmp_path)
    again = read_policy(tmp_path / "pi_1")
    assert again == ref
    assert (again.round, again.parent) == (1, hub.base_policy(str(tmp_path / "base")).id)
    with torch.no_grad():
        got = load(again, device="cpu").model(input_ids=IDS).logits
    torch.testing.assert_close(got, logits, rtol=0, atol=0)


def test_only_the_adapter_is_stored_and_its_bytes_are_stable(tmp_path: Path) -> None:
    make(tmp_path)
    names = {p.name for p in (tmp_path / "pi_1").iterdir()}
    assert names == {"adapter_model.safetensors", "adapter_config.json", "manifest.json"}
    before = {n: file_sha256(tmp_path / "pi_1" / n) for n in names}
    make(tmp_path)
    assert before == {n: file_sha256(tmp_path / "pi_1" / n) for n in names}
    make(tmp_path, seed=2)
    assert before != {n: file_sha256(tmp_path / "pi_1" / n) for n in names}


def test_a_run_folder_can_move(tmp_path: Path) -> None:
    ref, logits = make(tmp_path / "run")
    shutil.move(tmp_path / "run", tmp_path / "elsewhere")
    moved = read_policy(tmp_path / "elsewhere" / "pi_1")
    assert moved.base_model == str(tmp_path / "elsewhere" / "base")
    assert moved.id == ref.id
    with torch.no_grad():
        got = load(moved, device="cpu").model(input_ids=IDS).logits
    torch.testing.assert_close(got, logits, rtol=0, atol=0)


def test_pain_10_another_chat_template_is_refused(tmp_path: Path) -> None:
    make(tmp_path)
    template = tmp_path / "base" / "chat_template.jinja"
    old = template.read_text()
    template.write_text(old + " ")
    with pytest.raises(TemplateError, match=r"was trained with template .* but .* now has"):
        read_policy(tmp_path / "pi_1")
    template.write_text(old)
    read_policy(tmp_path / "pi_1")


def test_pain_10_a_checkpoint_without_template_hash_is_refused(tmp_path: Path) -> None:
    make(tmp_path)
    manifest = tmp_path / "pi_1" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"template_sha256"', '"old_name"'))
    with pytest.raises(TemplateError, match="no template hash"):
        read_policy(tmp_path / "pi_1")


def test_damage_is_noticed(tmp_path: Path) -> None:
    make(tmp_path)
    weights = tmp_path / "pi_1" / "adapter_model.safetensors"
    raw = weights.read_bytes()
    weights.write_bytes(raw[:-1])
    with pytest.raises(ArtifactError, match="truncated"):
        read_policy(tmp_path / "pi_1")
    weights.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    with pytest.raises(ArtifactError, match="checksum"):
        read_policy(tmp_path / "pi_1")


def test_an_adapter_swapped_after_reading_is_refused(tmp_path: Path) -> None:
    ref, _ = make(tmp_path)
    make(tmp_path, seed=2)
    with pytest.raises(ModelError, match="has changed"):
        load(ref, device="cpu")


def test_a_changed_base_model_is_refused(tmp_path: Path) -> None:
    make(tmp_path)
    tiny_model(tmp_path / "base", seed=9)
    with pytest.raises(ModelError, match="base weights"):
        read_policy(tmp_path / "pi_1")


def test_broken_weights_are_not_saved(tmp_path: Path) -> None:
    parent = hub.base_policy(str(tiny_model(tmp_path / "base")))
    model = attach_lora(load(parent, device="cpu"), LoraSpec(r=4, alpha=4), seed=1)
    next(p for p in model.parameters() if p.requires_grad).data[0, 0] = float("nan")
    with pytest.raises(ModelError, match="NaN"):
        save_policy(tmp_path / "pi_1", model, TRAINED, parent=parent, round=1)
    assert not (tmp_path / "pi_1").exists()


def test_policies_are_loaded_by_folder_or_name(tmp_path: Path) -> None:
    ref, _ = make(tmp_path)
    assert load_policy(tmp_path / "pi_1") == ref
    assert load_policy(str(tmp_path / "base")) == hub.base_policy(str(tmp_path / "base"))
    (tmp_path / "pi_1" / "manifest.json").unlink()
    with pytest.raises(ArtifactError, match="unfinished"):
        load_policy(tmp_path / "pi_1")
    with pytest.raises(UnknownNameError):
        load_policy("nonesuch")
