"""A tiny random chat model, made once per session."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from iterpo.domain import PolicyRef
from iterpo.models import hub
from iterpo.models.backbone import Backbone, load
from iterpo.models.lora import LoraSpec
from iterpo.testing.tiny_model import tiny_model


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # The checkpoint ships sampling defaults that must never leak in (pain 40).
    return tiny_model(
        tmp_path_factory.mktemp("tiny"),
        seed=0,
        generation_config={"repetition_penalty": 1.7, "temperature": 0.1, "do_sample": True},
    )


@pytest.fixture(scope="session")
def tiny_policy(tiny_folder: Path) -> PolicyRef:
    return hub.base_policy(str(tiny_folder))


@pytest.fixture
def tiny(tiny_policy: PolicyRef) -> Backbone:
    return load(tiny_policy, device="cpu")


@pytest.fixture
def adapted(tiny_policy: PolicyRef, tmp_path: Path) -> Backbone:
    """A policy with a frozen, non-zero adapter."""
    from iterpo.models.backbone import TRAINED, attach_lora
    from iterpo.models.checkpoints import save_policy

    model = attach_lora(load(tiny_policy, device="cpu"), LoraSpec(r=4, alpha=4), seed=1)
    generator = torch.Generator().manual_seed(5)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and "lora_B" in name:
            parameter.data.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
    ref = save_policy(tmp_path / "pi_1", model, TRAINED, parent=tiny_policy, round=1)
    return load(ref, device="cpu")
