from __future__ import annotations

from pathlib import Path

import pytest

from iterpo.models.backbone import load
from iterpo.models.hub import base_policy
from policy_improvement.tiny import MakeBackbone, write_model


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    write_model(folder)
    return folder


@pytest.fixture
def make_backbone(model_folder: Path) -> MakeBackbone:
    return lambda: load(base_policy(str(model_folder)), dtype="float32", device="cpu")
