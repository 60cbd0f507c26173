"""A stand-in for vLLM, which needs a GPU: the part of its interface that iterpo uses.

Names, arguments, defaults, refusals and the shape of what comes back are those of release 0.31.0,
unwelcome ones too (log-probabilities before the temperature unless asked otherwise, the tokenizer's
end of text as a stop token, temperatures raised to 0.01). The model computes in plain transformers,
one request after the other, without a cache.
"""

from __future__ import annotations

import sys
import warnings
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar, TypedDict

import pytest
import torch

__all__ = ["LLM", "LoRARequest", "SamplingParams", "TokensPrompt", "install"]

RELEASE = "0.31.0"


class TokensPrompt(TypedDict):
    prompt_token_ids: list[int]


@dataclass
class SamplingParams:
    n: int = 1
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True

    def __post_init__(self) -> None:
        if 0 < self.temperature < 0.01:
            self.temperature = 0.01
        if not 0 <= self.temperature <= 2:
            raise ValueError("temperature must be in [0, 2]")
        if self.seed is not None and not -(2**63) <= self.seed < 2**63:
            raise ValueError("seed")


@dataclass
class LoRARequest:
    lora_name: str
    lora_int_id: int
    lora_path: str = ""


@dataclass
class Logprob:
    logprob: float
    rank: int | None = None


@dataclass
class CompletionOutput:
    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None
    logprobs: list[dict[int, Logprob]] | None
    finish_reason: str | None = None


@dataclass
class RequestOutput:
    request_id: str
    prompt_token_ids: list[int]
    prompt_logprobs: list[dict[int, Logprob] | None] | None
    outputs: list[CompletionOutput] = field(default_factory=list)


class LLM:
    started: ClassVar[list[LLM]] = []
    """Engines, in the order in which they were started."""
    end_of_text: ClassVar[int | None] = None
    """Token that the tokenizer calls its end, beside the one of the chat."""
    adapters_apply: ClassVar[bool] = True
    """Whether adapters change anything."""
    refuses: ClassVar[str] = ""
    """Why no engine starts."""

    def __init__(
        self,
        model: str,
        *,
        trust_remote_code: bool = False,
        tensor_parallel_size: int = 1,
        dtype: str = "auto",
        seed: int = 0,
        gpu_memory_utilization: float = 0.92,
        generation_config: str = "auto",
        logprobs_mode: str = "raw_logprobs",
        max_model_len: int | None = None,
        enable_prefix_caching: bool | None = None,
        enable_lora: bool = False,
        max_loras: int = 1,
        max_lora_rank: int = 16,
    ) -> None:
        if self.refuses:
            raise RuntimeError(self.refuses)
        from transformers import AutoModelForCausalLM

        self.arguments = {k: v for k, v in locals().items() if k not in ("self", "__class__")}
        self.model: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
        self.lora: LoRARequest | None = None
        self.asked: list[tuple[list[Any], list[SamplingParams], LoRARequest | None]] = []
        self.ended = 0
        self.llm_engine = SimpleNamespace(engine_core=SimpleNamespace(shutdown=self._end))
        LLM.started.append(self)

    def _end(self, timeout: float | None = None) -> None:
        self.ended += 1

    def generate(
        self,
        prompts: list[TokensPrompt],
        sampling_params: list[SamplingParams],
        *,
        use_tqdm: bool = True,
        lora_request: LoRARequest | None = None,
    ) -> list[RequestOutput]:
        assert not self.ended, "the engine is gone"
        assert len(prompts) == len(sampling_params)
        self.asked.append((prompts, sampling_params, lora_request))
        return [
            self._answer(str(i), list(prompt["prompt_token_ids"]), params, lora_request)
            for i, (prompt, params) in enumerate(zip(prompts, sampling_params, strict=True))
        ]

    def _answer(
        self, name: str, prompt: list[int], params: SamplingParams, lora: LoRARequest | None
    ) -> RequestOutput:
        assert len(prompt) < self.arguments["max_model_len"]
        raw = self._logits(prompt, lora).log_softmax(-1)
        told: list[dict[int, Logprob] | None] = [None]
        told += [{t: Logprob(float(raw[i, t]))} for i, t in enumerate(prompt[1:])]
        generator = torch.Generator()
        if params.seed is not None:
            generator.manual_seed(params.seed)
        ids: list[int] = []
        rows: list[dict[int, Logprob]] = []
        finish = "length"
        while len(ids) < (params.max_tokens or 16):
            logits = self._logits([*prompt, *ids], lora)[-1]
            processed = _processed(logits, [*prompt, *ids], params)
            if params.temperature == 0:
                token = int(processed.argmax())
            else:
                noise = torch.empty_like(processed).exponential_(generator=generator)
                token = int((processed.exp() / noise).argmax())
            mode = self.arguments["logprobs_mode"]
            shown = processed if mode == "processed_logprobs" else logits.log_softmax(-1)
            ids.append(token)
            rows.append({token: Logprob(float(shown[token]))})
            end = None if params.ignore_eos else self.end_of_text
            if token in (params.stop_token_ids or ()) or token == end:
                finish = "stop"
                break
        one = CompletionOutput(0, "", ids, None, None if params.logprobs is None else rows, finish)
        return RequestOutput(name, prompt, None if params.prompt_logprobs is None else told, [one])

    def _logits(self, ids: list[int], lora: LoRARequest | None) -> torch.Tensor:
        if lora is not None:
            self._load(lora)
        wrapped = hasattr(self.model, "disable_adapter")
        with torch.no_grad():
            if wrapped and (lora is None or not self.adapters_apply):
                with self.model.disable_adapter():
                    logits = self.model(input_ids=torch.tensor([ids])).logits[0]
            else:
                logits = self.model(input_ids=torch.tensor([ids])).logits[0]
        found: torch.Tensor = logits.float()
        return found

    def _load(self, lora: LoRARequest) -> None:
        if self.lora is not None:
            assert self.lora == lora
            return
        from peft import PeftConfig, PeftModel

        assert self.arguments["enable_lora"], "Got lora_request but LoRA is not enabled!"
        assert lora.lora_int_id >= 1
        config: Any = PeftConfig.from_pretrained(lora.lora_path)
        assert self.arguments["max_lora_rank"] in (1, 8, 16, 32, 64, 128, 256, 320, 512)
        assert config.r <= self.arguments["max_lora_rank"]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="`is_gradient_checkpointing` is deprecated")
            self.model = PeftModel.from_pretrained(self.model, lora.lora_path).eval()
        self.lora = lora


def _processed(logits: torch.Tensor, seen: list[int], params: SamplingParams) -> torch.Tensor:
    """Log-probabilities after penalty, temperature, top-k and nucleus: (V,)."""
    logits = logits.clone()
    if params.repetition_penalty != 1:
        for t in set(seen):
            by = params.repetition_penalty
            logits[t] = logits[t] / by if logits[t] > 0 else logits[t] * by
    if params.temperature == 0:
        return logits.log_softmax(-1)
    logits /= params.temperature
    if params.top_k > 0:
        logits[logits < logits.topk(params.top_k).values[-1]] = -torch.inf
    if params.top_p < 1:
        ascending, order = logits.sort()
        out = ascending.softmax(-1).cumsum(-1) <= 1 - params.top_p
        out[-1] = False
        logits[order[out]] = -torch.inf
    return logits.log_softmax(-1)


def install(patch: pytest.MonkeyPatch, folder: Path, release: str = RELEASE) -> type[LLM]:
    """Make ``import vllm`` find this, as that release, on a machine with a GPU."""
    vllm, lora, request = (ModuleType(n) for n in ("vllm", "vllm.lora", "vllm.lora.request"))
    for module in (vllm, lora, request):
        module.__spec__ = ModuleSpec(module.__name__, None)
        patch.setitem(sys.modules, module.__name__, module)
    vars(vllm).update(LLM=LLM, SamplingParams=SamplingParams, TokensPrompt=TokensPrompt)
    vars(request).update(LoRARequest=LoRARequest)
    facts = folder / f"vllm-{release}.dist-info"
    facts.mkdir(parents=True)
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {release}\n")
    patch.syspath_prepend(str(folder))
    patch.setattr("iterpo.models.engines._has_gpu", lambda: True)
    patch.setattr(LLM, "started", [])
    return LLM
