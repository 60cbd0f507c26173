"""VllmSampler: a fixed policy's responses drawn by vLLM, as ``generation.generate`` draws them.

The only module that imports vLLM (0.22 or newer), and only once an engine starts. Settings are
those of ``domain.Sampling`` and nothing else: the checkpoint's generation defaults are off, its
end-of-text token too, as ``ChatFormat`` knows what ends a message. Log-probabilities are those of
the distribution drawn from (``logprobs_mode="processed_logprobs"``; vLLM's default is the one
before temperature and nucleus). Every request has its seed, but the numbers drawn from it are not
those of ``generate``.
"""

from __future__ import annotations

import gc
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from iterpo.domain import PolicyRef, Sampling
from iterpo.errors import ModelError
from iterpo.models.backbone import load_chat
from iterpo.models.chat import ChatFormat
from iterpo.models.engines import VllmConfig, check_vllm, vllm_limits
from iterpo.models.generation import Generated, check_requests
from iterpo.models.weights import verified_adapter, verified_base

__all__ = ["VllmSampler"]

_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""Largest ranks that vLLM lays memory out for."""


class VllmSampler:
    """A running vLLM engine that holds one policy; its GPU memory is free after ``close``.

    Args:
        policy: Which weights. They are read by vLLM, from the files of the policy.
        config: What vLLM gets of the machine.
        dtype: ``auto`` (bfloat16), ``bfloat16`` or ``float16``.
        cache: See ``hub.resolve``.

    Raises:
        ConfigError: if vLLM can't hold this policy, see ``engines.check_vllm``.
        ModelError: if the weights are not those that ``policy`` names, or vLLM does not start.
    """

    def __init__(
        self,
        policy: PolicyRef,
        config: VllmConfig | None = None,
        *,
        dtype: str = "auto",
        cache: Path | None = None,
    ) -> None:
        config = config or VllmConfig()
        chat, context = load_chat(policy, cache=cache)
        check_vllm(Sampling(), dtype, context, config)
        self.policy = policy
        self.chat: ChatFormat = chat
        self.context_length: int = config.context or context
        base = verified_base(policy, cache)
        adapter = verified_adapter(policy) if policy.adapter is not None else None
        self._proven = adapter is None or _does_nothing(adapter)
        self._llm: Any = _start(base, adapter, config, dtype, self.context_length)
        self._lora = _lora_request(policy, adapter)

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, seeds: Sequence[int]
    ) -> list[Generated]:
        """Sample one response per prompt; identical beginnings share their keys and values.

        Args:
            prompts: Rendered prompts (``ChatFormat.prompt_ids``).
            sampling: Settings, applied exactly.
            seeds: One seed per prompt, in [0, 2**63).

        Raises:
            ContextOverflowError: if a prompt and its response do not fit; nothing has run then.
            ModelError: if vLLM can't draw with these settings, or what it returns makes no sense.
        """
        check_requests(self, prompts, sampling, seeds)
        if limits := vllm_limits(sampling):
            raise ModelError("sampling settings out of vLLM's range: " + ", ".join(limits))
        if self._llm is None:
            raise ModelError("this engine was closed; start another VllmSampler")
        if not prompts:
            return []
        if not self._proven:
            self._prove_adapter(prompts[0])
        wanted = [self._params(sampling, seed=seed, logprobs=0) for seed in seeds]
        outputs = self._ask(prompts, wanted, self._lora)
        return [_generated(o.outputs[0], sampling) for o in outputs]

    def close(self) -> None:
        """End the engine and its processes; a second call does nothing."""
        llm, self._llm = self._llm, None
        if llm is None:
            return
        llm.llm_engine.engine_core.shutdown()
        del llm
        gc.collect()  # engine objects refer to each other
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _params(self, sampling: Sampling, **more: Any) -> Any:
        from vllm import SamplingParams

        return SamplingParams(
            n=1,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            repetition_penalty=sampling.repetition_penalty,
            max_tokens=sampling.max_new_tokens,
            stop_token_ids=list(self.chat.stop_ids),
            ignore_eos=True,  # a tokenizer's end of text is no stop token unless the chat says so
            detokenize=False,
            **more,
        )

    def _ask(self, prompts: Sequence[Sequence[int]], params: list[Any], lora: Any) -> list[Any]:
        from vllm import TokensPrompt

        asked = [TokensPrompt(prompt_token_ids=list(prompt)) for prompt in prompts]
        outputs: list[Any] = self._llm.generate(asked, params, use_tqdm=False, lora_request=lora)
        if len(outputs) != len(asked):
            raise ModelError(f"vLLM answered {len(outputs)} of {len(asked)} requests")
        return outputs

    def _prove_adapter(self, prompt: Sequence[int]) -> None:
        """An adapter whose modules vLLM does not find would be left out without a word."""
        params = self._params(Sampling(temperature=0, max_new_tokens=1), prompt_logprobs=0)
        told = []
        for lora in (self._lora, None):
            rows = self._ask([prompt], [params], lora)[0].prompt_logprobs
            told.append([entry.logprob for row in rows if row for entry in row.values()])
        if told[0] and told[0] == told[1]:  # a prompt of one token is told nothing of
            raise ModelError(
                f"vLLM answers as if policy {self.policy.id} had no adapter: every log-probability "
                f"of a prompt of {len(prompt)} tokens is the base model's own. Its modules may "
                "have other names there: use sampler local for this model."
            )
        self._proven = bool(told[0])


def _start(base: Path, adapter: Path | None, config: VllmConfig, dtype: str, context: int) -> Any:
    from vllm import LLM

    options: dict[str, Any] = {
        "dtype": "bfloat16" if dtype == "auto" else dtype,
        "seed": 0,
        "generation_config": "vllm",  # no defaults of the checkpoint
        "logprobs_mode": "processed_logprobs",
        "max_model_len": context,
        "gpu_memory_utilization": config.memory_share,
        "tensor_parallel_size": config.tensor_parallel,
        "enable_prefix_caching": True,  # the weights never change while an engine lives
        "trust_remote_code": False,
    }
    if adapter is not None:
        options |= {"enable_lora": True, "max_loras": 1, "max_lora_rank": _room_for(adapter)}
    try:
        return LLM(model=str(base), **options)
    except Exception as error:
        raise ModelError(
            f"vLLM could not start with {base}: {type(error).__name__}: {error}. If memory is "
            "short, lower policy.vllm.memory_share or policy.vllm.context; policy.sampler=local "
            "does without vLLM."
        ) from error


def _room_for(adapter: Path) -> int:
    rank = int(json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8"))["r"])
    room = next((r for r in _RANKS if r >= rank), None)
    if room is None:
        raise ModelError(
            f"{adapter} has rank {rank}; vLLM takes up to {_RANKS[-1]}. Use sampler local."
        )
    return room


def _lora_request(policy: PolicyRef, adapter: Path | None) -> Any:
    """The adapter under a name that never stands for other weights (pain 43)."""
    if adapter is None:
        return None
    from vllm.lora.request import LoRARequest

    return LoRARequest(policy.id, 1, str(adapter.resolve()))  # 1: the engine has no other


def _does_nothing(adapter: Path) -> bool:
    """Whether an adapter changes no output, as before any training: its B are all 0."""
    from safetensors.torch import load_file

    state = load_file(adapter / "adapter_model.safetensors")
    return not any(bool(t.any()) for name, t in state.items() if "lora_B" in name)


def _generated(output: Any, sampling: Sampling) -> Generated:
    ids = tuple(int(i) for i in output.token_ids)
    if output.finish_reason not in ("stop", "length"):
        raise ModelError(f"vLLM gave up on a response: {output.finish_reason!r}")
    if len(output.logprobs) != len(ids):
        raise ModelError(f"vLLM told {len(output.logprobs)} log-probabilities of {len(ids)} tokens")
    logprobs = tuple(float(row[i].logprob) for i, row in zip(ids, output.logprobs, strict=True))
    if not all(map(math.isfinite, logprobs)):
        raise ModelError(
            "vLLM's log-probabilities are not finite: the weights are broken or overflow in this "
            "dtype; check the last training"
        )
    if sampling.temperature == 0:
        logprobs = (0.0,) * len(ids)  # a sure thing, where vLLM tells the model's own
    return Generated(ids, logprobs, str(output.finish_reason))
