"""Which engine draws a fixed policy's responses, and what vLLM may take; readable without torch."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Literal

from iterpo.domain import Sampling
from iterpo.domain.rules import refuse, within
from iterpo.errors import ConfigError, MissingExtraError

__all__ = [
    "OLDEST_VLLM",
    "SamplerName",
    "VllmConfig",
    "check_vllm",
    "choose_sampler",
    "vllm_limits",
    "vllm_version",
]

SamplerName = Literal["auto", "local", "vllm"]
"""``local``: ``models.generation``; ``vllm``: ``models.vllm_sampler``; ``auto``: vLLM where it is
installed, the device is a GPU and the settings are in its range, else ``local``."""

OLDEST_VLLM = (0, 22)
"""Oldest release that ``models.vllm_sampler`` was written for, as for the trainer's own engine."""

_DEVICES = ("auto", "cuda", "cuda:0")


@dataclass(frozen=True, slots=True)
class VllmConfig:
    """What vLLM gets of the machine."""

    memory_share: float = 0.9
    """Share of a GPU's memory, weights included; with other models on the same GPU (a local
    partner, the Q of `collect.optimism`), leave room for them. Changes no result."""
    tensor_parallel: int = 1
    """GPUs that share the weights."""
    context: int | None = None
    """Longest sequence in tokens that memory is laid out for; null: all that the model reads, for
    which there may be too little memory where that is long."""

    def __post_init__(self) -> None:
        """Refuse impossible values."""
        refuse(
            self,
            memory_share=within("(0, 1]"),
            tensor_parallel=within("[1, inf)"),
            context=within("[2, inf)", null=""),
        )


def choose_sampler(
    sampler: SamplerName,
    device: str = "auto",
    *,
    sampling: Sampling | None = None,
    dtype: str = "auto",
) -> Literal["local", "vllm"]:
    """The engine that a setting means on this machine.

    Args:
        sampler: The setting.
        device: Where the policy lies, as in ``models.backbone.load``.
        sampling: How it samples, where that is known.
        dtype: Precision of its weights.

    Raises:
        MissingExtraError: if vLLM is asked for and not installed, or too old.
        ConfigError: if vLLM is asked for without a GPU, or on one that it can't be sent to.
    """
    if sampler == "local":
        return "local"
    if sampler == "auto" and (not _usable(device) or _out_of_range(sampling or Sampling(), dtype)):
        return "local"
    _check_installed()
    if device not in _DEVICES or not _has_gpu():
        raise ConfigError(
            f"sampler: given 'vllm' with device {device!r}"
            f"{'' if _has_gpu() else ' on a machine without a usable GPU'}; accepted: a CUDA GPU "
            "and device auto, cuda or cuda:0 (vLLM takes the first visible ones: choose others by "
            "CUDA_VISIBLE_DEVICES), or sampler local"
        )
    return "vllm"


def check_vllm(sampling: Sampling, dtype: str, context: int, config: VllmConfig) -> None:
    """Refuse before it starts what vLLM could not do, or would change without a word.

    Args:
        sampling: How the policy samples.
        dtype: Precision of the weights.
        context: Longest sequence that the model reads.
        config: What vLLM gets.

    Raises:
        ConfigError: with all that stands against it.
    """
    found = _out_of_range(sampling, dtype)
    if config.context is not None and config.context > context:
        found.append(
            f"vllm.context: given {config.context}; accepted: null, or up to the {context} tokens "
            "that the model reads"
        )
    if found:
        raise ConfigError("\n".join(found))


def _out_of_range(sampling: Sampling, dtype: str) -> list[str]:
    found = [f"sampling.{text}" for text in vllm_limits(sampling)]
    if dtype == "float32":
        found.append(
            "dtype: given float32 with sampler vllm; accepted: auto or bfloat16, since vLLM "
            "computes adapters in 16 bits only, or sampler local"
        )
    return found


def vllm_limits(sampling: Sampling) -> list[str]:
    """Settings that vLLM refuses, or replaces by its own, a line for each."""
    t = sampling.temperature
    if t == 0 or 0.01 <= t <= 2:
        return []
    return [f"temperature: given {t}; accepted with sampler vllm: 0 (greedy), or 0.01 to 2"]


def vllm_version() -> str | None:
    """The installed release; None if there is none. vLLM itself is not imported."""
    if find_spec("vllm") is None:
        return None
    try:
        return version("vllm")
    except PackageNotFoundError:
        return None


def _usable(device: str) -> bool:
    found = vllm_version()
    return found is not None and _new_enough(found) and device in _DEVICES and _has_gpu()


def _check_installed() -> None:
    found = vllm_version()
    if found is not None and _new_enough(found):
        return
    oldest = ".".join(map(str, OLDEST_VLLM))
    state = "is not installed" if found is None else f"is {found}"
    raise MissingExtraError(
        f"sampler: given 'vllm', but vLLM {state}; {oldest} or newer is needed. Install it beside "
        "the training stack: pip install 'iterpo[train,vllm]', or set sampler to local."
    )


def _new_enough(found: str) -> bool:
    """By the first two numbers, which is all that releases such as 0.31.0+cu129 share."""
    parts = found.split(".")[:2]
    return (
        len(parts) == 2
        and all(p.isdigit() for p in parts)
        and (tuple(int(p) for p in parts) >= OLDEST_VLLM)
    )


def _has_gpu() -> bool:
    import torch

    return torch.version.cuda is not None and torch.cuda.is_available()
