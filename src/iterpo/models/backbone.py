"""A policy's weights in memory: the base model, its frozen adapter, and a trainable copy.

An adapter is never merged into the policy that it belongs to. The frozen adapter is called
``policy``, the trainable one ``default`` (where trainers look for it); ``frozen`` computes with
the policy as it was loaded, whatever is being trained on top of it.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from iterpo.domain import PolicyRef
from iterpo.errors import MissingExtraError, ModelError
from iterpo.models import hub
from iterpo.models.chat import ChatFormat, check_template
from iterpo.models.lora import LoraSpec
from iterpo.models.weights import verified_adapter, verified_base

__all__ = [
    "CRITIC",
    "FROZEN",
    "TRAINED",
    "Backbone",
    "attach_lora",
    "check_quantization",
    "fresh_adapter",
    "frozen",
    "hidden_states",
    "inner",
    "load",
    "load_chat",
    "logprob_tolerance",
    "merge_adapter",
]

CRITIC = "critic"
"""Name of an adapter that a copy of the weights has for scoring (``models.critic``)."""
FROZEN = "policy"
"""Name of the adapter that the policy came with; never trained."""
TRAINED = "default"
"""Name of the adapter being trained."""

_SMALL = 50_000_000


@dataclass(frozen=True, slots=True)
class Backbone:
    """A loaded policy."""

    model: Any
    """transformers model, or the PEFT model around it where the policy has an adapter."""
    tokenizer: Any
    """Its tokenizer."""
    chat: ChatFormat
    """Its chat format."""
    policy: PolicyRef
    """Identity of the weights."""
    device: torch.device
    """Where the weights lie."""
    context_length: int
    """Longest sequence in tokens."""
    dtype: torch.dtype
    """Type of the base weights (of the computation, if they are 4-bit)."""
    quantized: bool = False
    """True for a 4-bit base."""
    critic: str | None = None
    """Adapter that is at work beside the policy's; None: the policy itself."""

    @property
    def vocabulary(self) -> int:
        """Number of token ids that the model knows; larger ones can't be read."""
        return int(inner(self.model).get_input_embeddings().weight.shape[0])


def load(
    policy: PolicyRef,
    *,
    dtype: str = "auto",
    device: str = "auto",
    quantize: Literal["nf4"] | None = None,
    cache: Path | None = None,
) -> Backbone:
    """Load a policy, frozen and in eval mode.

    Args:
        policy: Which weights.
        dtype: ``float32``, ``bfloat16``, ``float16``, or ``auto``: float32 on a CPU for models
            under 50M weights, else bfloat16.
        device: ``cpu``, ``cuda``, ``cuda:1``, …, or ``auto``: a GPU if there is one.
        quantize: ``nf4`` for a 4-bit base (the paper's frozen critic backbone; meant for GPUs).
        cache: See ``hub.resolve``.

    Raises:
        ModelError: if the weights are not those that ``policy`` names, or can't be loaded.
    """
    path = verified_base(policy, cache)
    where = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    where = where if device == "auto" else torch.device(device)
    kind = _dtype(dtype, where, path)
    model, tokenizer = _read(path, kind, where, quantize)
    if policy.adapter is not None:
        model = _load_adapter(model, policy)
    model.eval().requires_grad_(False)
    return Backbone(
        model=model,
        tokenizer=tokenizer,
        chat=ChatFormat(tokenizer),
        policy=policy,
        device=where,
        context_length=_context_length(model),
        dtype=kind,
        quantized=quantize is not None,
    )


def load_chat(policy: PolicyRef, *, cache: Path | None = None) -> tuple[ChatFormat, int]:
    """The chat format and context length of a policy, checked, without reading any weights.

    Raises:
        TemplateError: if the model has no chat template, or one that can't be trained with.
        ModelError: if tokenizer or configuration can't be read.
    """
    from transformers import AutoConfig

    path = hub.resolve(policy.base_model, cache).path
    try:
        config = AutoConfig.from_pretrained(path, trust_remote_code=False, local_files_only=True)
    except Exception as error:
        raise ModelError(f"{path} can't be read: {type(error).__name__}: {error}") from error
    return check_template(_tokenizer(path)), _context(config)


def check_quantization() -> None:
    """Check that a 4-bit backbone can be made here.

    Raises:
        MissingExtraError: if bitsandbytes is not installed.
    """
    _nf4("nf4", torch.bfloat16)


@contextmanager
def fresh_adapter(spec: LoraSpec, device: torch.device, seed: int) -> Iterator[Any]:
    """Gives peft's configuration of an adapter whose initial weights, drawn inside, follow a seed.

    The random state of the process is as before afterwards.
    """
    from peft import LoraConfig

    targets = spec.target_modules
    config = LoraConfig(
        r=spec.r,
        lora_alpha=spec.alpha,
        lora_dropout=spec.dropout,
        target_modules=targets if isinstance(targets, str) else list(targets),
        task_type="CAUSAL_LM",
    )
    devices = [device.index or 0] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="`is_gradient_checkpointing` is deprecated")
        torch.manual_seed(seed % 2**63)
        yield config


def attach_lora(backbone: Backbone, spec: LoraSpec, seed: int) -> Any:
    """Put a trainable adapter on a policy; returns the PEFT model, ready to train.

    A policy with an adapter is continued: the trainable copy starts from its weights (``spec``
    must then have its shape), while the frozen one stays loaded as the reference. Otherwise a
    fresh adapter is initialised from ``seed``, whose first output is the base model's own.

    Raises:
        ModelError: if an adapter is already being trained on this backbone, or ``spec`` does not
            fit the policy's adapter.
    """
    from peft import PeftModel, get_peft_model

    if TRAINED in getattr(inner(backbone.model), "peft_config", {}) or _has_adapter(
        backbone.model, TRAINED
    ):
        raise ModelError(
            f"an adapter {TRAINED!r} is already on this backbone; a name is never used for two "
            "sets of weights. Load the backbone again for another training."
        )
    with fresh_adapter(spec, backbone.device, seed) as config:
        if isinstance(backbone.model, PeftModel):
            model = backbone.model
            _check_shape(model.peft_config[FROZEN], spec, backbone.policy)
            model.add_adapter(TRAINED, copy.deepcopy(config))
            _copy_adapter(model, FROZEN, TRAINED)
            model.set_adapter(TRAINED)
        else:
            model = get_peft_model(backbone.model, config, adapter_name=TRAINED)
    return model


@contextmanager
def frozen(backbone: Backbone) -> Iterator[None]:
    """Compute with the policy as it was loaded: eval mode, no gradients, trainable parts bypassed.

    Everything is as before afterwards: active adapter, gradient flags, train mode.
    """
    layers = _adapter_layers(backbone.model)
    own = [FROZEN] if backbone.policy.adapter is not None else []
    own += [backbone.critic] if backbone.critic is not None else []
    active = [(layer, list(layer.active_adapters), layer.disable_adapters) for layer in layers]
    grads = [(p, p.requires_grad) for layer in layers for p in layer.parameters()]
    training = [(m, m.training) for m in backbone.model.modules() if m.training]
    backbone.model.eval()
    try:
        for layer in layers:
            layer.enable_adapters(bool(own))
            if own:
                layer.set_adapter(own)
        with torch.no_grad():
            yield
    finally:
        for layer, names, disabled in active:
            layer.set_adapter(names)
            layer.enable_adapters(not disabled)
        for parameter, flag in grads:
            parameter.requires_grad_(flag)
        for module, flag in training:
            module.training = flag


def hidden_states(backbone: Backbone, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
    """Hidden states of the frozen policy's final layer, after the final norm; no logits.

    Args:
        backbone: The policy; adapters in training are bypassed.
        input_ids: Token ids (b, n), padded on either side.
        attention_mask: 1 on real tokens (b, n); positions count real tokens only, so the
            padding side does not matter.

    Returns:
        Hidden states (b, n, d) in the model's dtype; rows of padding are meaningless.
    """
    ids = input_ids.to(backbone.device)
    mask = attention_mask.to(backbone.device)
    positions = (mask.long().cumsum(-1) - 1).clamp(min=0)
    with frozen(backbone), torch.autocast(backbone.device.type, enabled=False):
        out = inner(backbone.model).get_decoder()(
            input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False
        )
    states: Tensor = out.last_hidden_state  # (b, n, d)
    return states


def logprob_tolerance(dtype: torch.dtype) -> float:
    """Largest mean difference of a token's log-probs, computed twice, that is no difference.

    It lies well above rounding (mean 1e-5 in float32, 0.04 in bfloat16) and below the effect of a
    wrong position or mask, or of another policy.
    """
    return 1e-2 if dtype == torch.float32 else 0.15


def merge_adapter(backbone: Backbone) -> Any:
    """A copy of the model with the policy's adapter merged, for export; the policy keeps its own.

    Raises:
        ModelError: for a 4-bit base, where merging changes the outputs, or without an adapter.
    """
    if backbone.quantized:
        raise ModelError(
            "merging an adapter into a 4-bit base changes its outputs and is refused. Load the "
            "policy with quantize=None (16-bit base), merge there, and measure it again."
        )
    if backbone.policy.adapter is None:
        raise ModelError(f"policy {backbone.policy.id} has no adapter to merge")
    return copy.deepcopy(backbone.model).merge_and_unload(adapter_names=[FROZEN])


def _read(
    path: Path, dtype: torch.dtype, device: torch.device, quantize: str | None
) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM

    options: dict[str, Any] = {
        "use_safetensors": True,
        "trust_remote_code": False,
        "local_files_only": True,
        "dtype": dtype,
    }
    if quantize is not None:
        options["quantization_config"] = _nf4(quantize, dtype)
        options["device_map"] = {"": device}
    tokenizer = _tokenizer(path)
    try:
        with hub.silent_loading():
            model, found = AutoModelForCausalLM.from_pretrained(
                path, output_loading_info=True, **options
            )
    except Exception as error:
        raise ModelError(f"{path} can't be loaded: {type(error).__name__}: {error}") from error
    if absent := sorted(found["missing_keys"]):
        # transformers would draw them at random and go on.
        raise ModelError(
            f"{path} lacks {len(absent)} of the weights that its config.json asks for (first: "
            f"{absent[0]}). Fetch the model again, or correct the config; a causal language model "
            "with all of its weights is needed."
        )
    return (model if quantize else model.to(device)), tokenizer


def _tokenizer(path: Path) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(path, trust_remote_code=False, local_files_only=True)
    except Exception as error:
        raise ModelError(
            f"the tokenizer in {path} can't be loaded: {type(error).__name__}: {error}"
        ) from error


def _nf4(quantize: str, dtype: torch.dtype) -> Any:
    if quantize != "nf4":
        raise ModelError(f"quantize={quantize!r} is unknown; accepted: None, 'nf4'")
    try:
        import bitsandbytes  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(
            "a 4-bit backbone needs bitsandbytes: pip install 'iterpo[nf4]'"
        ) from error
    from transformers import BitsAndBytesConfig

    return BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype
    )


def _dtype(name: str, device: torch.device, path: Path) -> torch.dtype:
    if name == "auto":
        small = device.type == "cpu" and hub.count_parameters(path) < _SMALL
        return torch.float32 if small else torch.bfloat16
    known = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if name not in known:
        raise ModelError(f"dtype {name!r} is unknown; accepted: auto, {', '.join(known)}")
    return known[name]


def _load_adapter(model: Any, policy: PolicyRef) -> Any:
    from peft import PeftModel

    folder = verified_adapter(policy)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="`is_gradient_checkpointing` is deprecated")
        return PeftModel.from_pretrained(model, folder, adapter_name=FROZEN, is_trainable=False)


def _context_length(model: Any) -> int:
    return _context(inner(model).config)


def _context(config: Any) -> int:
    return int(getattr(config.get_text_config(), "max_position_embeddings", 0) or 2048)


def inner(model: Any) -> Any:
    """The transformers model inside a PEFT wrapper, if there is one."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def _adapter_layers(model: nn.Module) -> list[Any]:
    from peft.tuners.tuners_utils import BaseTunerLayer

    return [m for m in model.modules() if isinstance(m, BaseTunerLayer)]


def _has_adapter(model: nn.Module, name: str) -> bool:
    return any(name in getattr(m, "lora_A", {}) for m in _adapter_layers(model))


def _copy_adapter(model: Any, source: str, target: str) -> None:
    from peft import get_peft_model_state_dict, set_peft_model_state_dict

    state = {k: v.clone() for k, v in get_peft_model_state_dict(model, adapter_name=source).items()}
    set_peft_model_state_dict(model, state, adapter_name=target)


def _check_shape(config: Any, spec: LoraSpec, policy: PolicyRef) -> None:
    if (config.r, config.lora_alpha) != (spec.r, spec.alpha):
        raise ModelError(
            f"policy {policy.id} has an adapter of rank {config.r}, alpha {config.lora_alpha}; "
            f"it can't be continued with {asdict(spec)}. Keep the shape over the rounds."
        )
