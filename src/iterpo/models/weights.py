"""verified: the files of a policy, after proof that they hold the weights that it names."""

from __future__ import annotations

from pathlib import Path

from iterpo.artifacts import file_sha256
from iterpo.domain import PolicyRef
from iterpo.errors import ModelError
from iterpo.models import hub

__all__ = ["verified_adapter", "verified_base"]


def verified_base(policy: PolicyRef, cache: Path | None = None) -> Path:
    """Folder of the base model.

    Raises:
        ModelError: if it holds other weights than those that the policy was made on.
    """
    files = hub.resolve(policy.base_model, cache)
    if files.sha256 != policy.base_sha256:
        raise ModelError(
            f"the base model {policy.base_model!r} has changed: policy {policy.id} was made on "
            f"weights {policy.base_sha256[:12]}, {files.path} holds {files.sha256[:12]}. Restore "
            "the old files, or start from a new base policy."
        )
    return files.path


def verified_adapter(policy: PolicyRef) -> Path:
    """Folder of the adapter of a policy that has one.

    Raises:
        ModelError: if it holds no weights, or others.
    """
    folder = Path(str(policy.adapter))
    weights = folder / "adapter_model.safetensors"
    if not weights.is_file():
        raise ModelError(
            f"policy {policy.id} names the adapter {folder}, which holds no {weights.name}"
        )
    found = file_sha256(weights)
    if found != policy.adapter_sha256:
        raise ModelError(
            f"{weights} has changed: its hash is {found[:12]}, policy {policy.id} names "
            f"{str(policy.adapter_sha256)[:12]}"
        )
    return folder
