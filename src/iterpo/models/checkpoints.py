"""A policy on disk: an adapter in safetensors, its chat template's hash, a manifest written last.

The folder holds no path of its own, and names a base model in a folder by its relative place too,
so a run folder can be moved as a whole. Writing the same weights twice gives the same bytes.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from iterpo import artifacts
from iterpo.domain import PolicyRef
from iterpo.errors import ArtifactError, ModelError, TemplateError
from iterpo.models import hub

__all__ = ["load_policy", "read_policy", "save_policy"]

_WEIGHTS = "adapter_model.safetensors"
_CONFIG = "adapter_config.json"


def save_policy(
    folder: Path,
    model: Any,
    adapter_name: str,
    *,
    parent: PolicyRef,
    round: int,  # noqa: A002  (the name that the domain uses)
    cache: Path | None = None,
) -> PolicyRef:
    """Store a trained adapter as the next policy; the base model is named, not copied.

    Args:
        folder: New policy folder; left-overs of an interrupted attempt are replaced.
        model: A PEFT model, or a ``Backbone`` that holds one.
        adapter_name: Which adapter (``backbone.TRAINED`` after training).
        parent: The policy that it was trained from.
        round: Index i of the new pi_i.
        cache: See ``hub.resolve``.

    Raises:
        ModelError: if there is no such adapter, or its weights are not finite.
        StorageFullError: if the disk is full.
    """
    from safetensors.torch import save

    peft_model = model if hasattr(model, "peft_config") else getattr(model, "model", model)
    state = _state(peft_model, adapter_name)
    base = hub.resolve(parent.base_model, cache)
    facts: dict[str, Any] = {
        "base_model": parent.base_model,
        "base_sha256": parent.base_sha256,
        "base_relative": None,
        "parent": parent.id,
        "round": round,
        "template_sha256": hub.template_sha256(base.path),
    }
    if base.origin == "folder":
        facts["base_model"] = str(base.path)
        facts["base_relative"] = os.path.relpath(base.path, folder.resolve())
    with artifacts.build(folder, "policy", facts):
        artifacts.write_atomic(folder / _WEIGHTS, save(state, metadata={"format": "pt"}))
        config = _plain_config(peft_model.peft_config[adapter_name])
        text = json.dumps(config, indent=1, sort_keys=True)
        artifacts.write_atomic(folder / _CONFIG, text + "\n")
        facts["adapter_sha256"] = artifacts.file_sha256(folder / _WEIGHTS)
    return PolicyRef(
        base_model=str(facts["base_model"]),
        base_sha256=parent.base_sha256,
        adapter=str(folder),
        adapter_sha256=facts["adapter_sha256"],
        parent=parent.id,
        round=round,
    )


def read_policy(folder: Path, cache: Path | None = None) -> PolicyRef:
    """The policy in a folder, after checking every file, its base model and its chat template.

    Raises:
        ArtifactError: if the folder is unfinished, corrupt, or something else.
        TemplateError: if the base model's chat template is not the one trained with, or its hash
            was not stored.
        ModelError: if the base model is not the one trained on.
    """
    facts = artifacts.open_sealed(folder, "policy")["facts"]
    try:
        ref = PolicyRef(
            base_model=_find_base(folder, facts),
            base_sha256=facts["base_sha256"],
            adapter=str(folder),
            adapter_sha256=facts["adapter_sha256"],
            parent=facts["parent"],
            round=int(facts["round"]),
        )
    except KeyError as error:
        raise ArtifactError(f"the manifest of {folder} lacks {error}; make the policy again") from (
            error
        )
    base = hub.resolve(ref.base_model, cache)
    if base.sha256 != ref.base_sha256:
        raise ModelError(
            f"policy {folder} was trained on base weights {ref.base_sha256[:12]}, but "
            f"{ref.base_model!r} now holds {base.sha256[:12]}; restore the old files"
        )
    trained, found = facts.get("template_sha256"), hub.template_sha256(base.path)
    if trained is None or trained != found:
        stored = "no template hash" if trained is None else f"template {trained[:12]}"
        raise TemplateError(
            f"policy {folder} was trained with {stored}, but {ref.base_model!r} now has "
            f"{(found or 'none')[:12]}: it would see other prompts than it learned on. "
            "Restore the template (chat_template.jinja) of the base model."
        )
    return ref


def load_policy(name_or_folder: str | Path, cache: Path | None = None) -> PolicyRef:
    """A policy by name: a folder written by ``save_policy``, or any base model's name.

    Raises:
        UnknownNameError: if it is neither.
    """
    folder = Path(name_or_folder).expanduser()
    holds_adapter = (folder / _CONFIG).is_file() and not (folder / "config.json").is_file()
    if holds_adapter or artifacts.is_sealed(folder):
        manifest = folder / artifacts.MANIFEST
        if holds_adapter or json.loads(manifest.read_text()).get("kind") == "policy":
            return read_policy(folder, cache)
    return hub.base_policy(str(name_or_folder), cache)


def _state(model: Any, adapter_name: str) -> dict[str, Any]:
    import torch
    from peft import get_peft_model_state_dict

    if adapter_name not in getattr(model, "peft_config", {}):
        known = ", ".join(getattr(model, "peft_config", {})) or "none"
        raise ModelError(f"no adapter {adapter_name!r} on this model; there are: {known}")
    raw = get_peft_model_state_dict(model, adapter_name=adapter_name, save_embedding_layers=False)
    state = {k: v.detach().to("cpu", torch.float32).contiguous().clone() for k, v in raw.items()}
    broken = sorted(k for k, v in state.items() if not bool(torch.isfinite(v).all()))
    if broken:
        raise ModelError(
            f"{len(broken)} adapter tensors hold NaN or infinity (first: {broken[0]}); the policy "
            "is not saved. Lower the learning rate, or train in float32."
        )
    return state


def _plain_config(config: Any) -> dict[str, Any]:
    """The PEFT config as JSON values without paths, sets in a fixed order."""
    out: dict[str, Any] = {}
    for key, value in config.to_dict().items():
        out[key] = sorted(value) if isinstance(value, set | frozenset) else value
    # Where the base lies is in the manifest; a path here would differ between machines.
    out.update(base_model_name_or_path=None, revision=None, inference_mode=True)
    return out


def _find_base(folder: Path, facts: dict[str, Any]) -> str:
    relative = facts["base_relative"]
    if relative is not None:
        moved = (folder.resolve() / relative).resolve()
        if moved.is_dir():
            return str(moved)
    return str(facts["base_model"])
