from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from iterpo.models.backbone import load
from iterpo.models.hub import base_policy
from policy_improvement.tiny import MakeBackbone, write_model


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    write_model(folder)
    return folder


@pytest.fixture
def make_backbone(model_folder: Path) -> MakeBackbone:
    return lambda: load(base_policy(str(model_folder)), dtype="float32", device="cpu")
