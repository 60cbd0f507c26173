"""open_policy: a policy ready to speak, held by the engine that a setting names."""

from __future__ import annotations

from iterpo.domain import PolicyRef, Sampling
from iterpo.models.backbone import Backbone, load
from iterpo.models.engines import SamplerName, VllmConfig, choose_sampler
from iterpo.models.vllm_sampler import VllmSampler

__all__ = ["open_policy"]


def open_policy(
    policy: PolicyRef,
    sampler: SamplerName,
    vllm: VllmConfig,
    *,
    sampling: Sampling | None = None,
    dtype: str = "auto",
    device: str = "auto",
) -> Backbone | VllmSampler:
    """The policy in memory, by an engine for ``sampling``; whoever gets an engine closes it.

    Raises:
        MissingExtraError: see ``engines.choose_sampler``.
        ConfigError, ModelError: see there, ``VllmSampler`` and ``load``.
    """
    if choose_sampler(sampler, device, sampling=sampling, dtype=dtype) == "vllm":
        return VllmSampler(policy, vllm, dtype=dtype)
    return load(policy, dtype=dtype, device=device)
