"""vLLM draws what our own sampler would: against a stand-in here, the real one on a GPU."""

from __future__ import annotations

import importlib.util
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from iterpo.domain import PolicyRef, Sampling
from iterpo.errors import ConfigError, ContextOverflowError, MissingExtraError, ModelError
from iterpo.models import engines, hub
from iterpo.models.backbone import TRAINED, Backbone, attach_lora, load, logprob_tolerance
from iterpo.models.checkpoints import save_policy
from iterpo.models.engines import VllmConfig, check_vllm, choose_sampler
from iterpo.models.generation import generate
from iterpo.models.lora import LoraSpec
from iterpo.models.vllm_sampler import VllmSampler
from vllm_stand_in import LLM, install

PROMPTS = [[267, 10, 11, 12], [267, 10], [267, *range(30, 60)]]
GREEDY = Sampling(temperature=0, max_new_tokens=12)
STOP = 266


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> type[LLM]:
    return install(monkeypatch, tmp_path / "site")


def exact(model: Backbone, ids: list[int], sampling: Sampling) -> list[float]:
    """Log-probabilities (V,) of what follows, in float64, straight from the definitions."""
    with torch.no_grad():
        row = model.model(input_ids=torch.tensor([ids])).logits[0, -1].double().numpy()
    for t in set(ids):
        row[t] = row[t] / sampling.repetition_penalty if row[t] > 0 else (
            row[t] * sampling.repetition_penalty
        )  # fmt: skip
    row = row / sampling.temperature
    p = np.exp(row - row.max())
    order = np.argsort(-p)
    if sampling.top_k:
        p[order[sampling.top_k :]] = 0
    p /= p.sum()
    mass = 0.0
    for t in order:
        if mass >= sampling.top_p:
            p[t] = 0
        mass += p[t]
    with np.errstate(divide="ignore"):
        told: list[float] = np.log(p / p.sum()).tolist()
    return told


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(max_new_tokens=8),
        Sampling(temperature=0.6, max_new_tokens=8),
        Sampling(temperature=1.4, top_p=0.7, max_new_tokens=8),
        Sampling(top_k=5, top_p=0.9, max_new_tokens=8),
        Sampling(repetition_penalty=1.5, max_new_tokens=8),
    ],
)
def test_logprobs_are_those_of_the_distribution_drawn_from(
    vllm: type[LLM], tiny: Backbone, sampling: Sampling
) -> None:
    found = VllmSampler(tiny.policy).generate(PROMPTS, sampling, [1, 2, 3])
    for prompt, got in zip(PROMPTS, found, strict=True):
        assert len(got.token_ids) == len(got.logprobs) > 0
        for j, (token, logprob) in enumerate(zip(got.token_ids, got.logprobs, strict=True)):
            want = exact(tiny, [*prompt, *got.token_ids[:j]], sampling)[token]
            assert logprob == pytest.approx(want, abs=1e-4)  # float32 in another order


def test_pain_40_greedy_equals_the_local_sampler_and_no_checkpoint_default_leaks_in(
    vllm: type[LLM], tiny: Backbone
) -> None:
    ours = generate(tiny, PROMPTS, GREEDY, [0] * 3)
    theirs = VllmSampler(tiny.policy).generate(PROMPTS, GREEDY, [0] * 3)
    assert theirs == ours  # log-probabilities of a sure thing too: 0, not the model's own
    assert vllm.started[0].arguments["generation_config"] == "vllm"


def test_pain_52_every_request_has_its_own_seed_and_the_order_is_kept(
    vllm: type[LLM], tiny: Backbone
) -> None:
    sampler, sampling = VllmSampler(tiny.policy), Sampling(temperature=1.5, max_new_tokens=10)
    seeds = [7, 8, 2**63 - 1]
    together = sampler.generate([PROMPTS[0]] * 3, sampling, seeds)
    assert len({g.token_ids for g in together}) == 3
    assert sampler.generate([PROMPTS[0]] * 3, sampling, seeds[::-1]) == together[::-1]
    assert [p.seed for p in vllm.started[0].asked[0][1]] == seeds


def test_only_what_ends_a_message_ends_a_response(
    vllm: type[LLM], tiny: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampling = Sampling(temperature=1.5, max_new_tokens=30)
    plain = VllmSampler(tiny.policy).generate([PROMPTS[1]] * 20, sampling, range(20))
    assert {g.finish for g in plain} == {"stop", "length"}
    for g in plain:
        assert (g.token_ids[-1] == STOP) == (g.finish == "stop")
        assert STOP not in g.token_ids[:-1]
    common = next(t for g in plain for t in g.token_ids[:-1])
    monkeypatch.setattr(vllm, "end_of_text", common)
    assert VllmSampler(tiny.policy).generate([PROMPTS[1]] * 20, sampling, range(20)) == plain


def test_pain_43_an_adapter_is_drawn_from_under_its_own_name(
    vllm: type[LLM], adapted: Backbone
) -> None:
    sampler = VllmSampler(adapted.policy)
    assert sampler.generate(PROMPTS, GREEDY, [0] * 3) == generate(adapted, PROMPTS, GREEDY, [0] * 3)
    (engine,) = vllm.started
    assert engine.arguments["max_lora_rank"] == 8  # the least that holds rank 4
    assert engine.lora is not None
    assert engine.lora.lora_name == adapted.policy.id
    assert Path(engine.lora.lora_path).is_absolute()
    base = hub.base_policy(adapted.policy.base_model)
    assert VllmSampler(base).generate(PROMPTS, GREEDY, [0] * 3) != sampler.generate(
        PROMPTS, GREEDY, [0] * 3
    )


def test_an_adapter_that_is_left_out_is_noticed(
    vllm: type[LLM], adapted: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm, "adapters_apply", False)
    with pytest.raises(ModelError, match=r"as if policy r1-\w+ had no adapter"):
        VllmSampler(adapted.policy).generate(PROMPTS, GREEDY, [0] * 3)


def test_an_adapter_that_does_nothing_is_none_that_was_left_out(
    vllm: type[LLM], tiny_policy: PolicyRef, tmp_path: Path
) -> None:
    model = attach_lora(load(tiny_policy, device="cpu"), LoraSpec(r=4, alpha=4), seed=1)
    fresh = save_policy(tmp_path / "pi", model, TRAINED, parent=tiny_policy, round=1)
    found = VllmSampler(fresh).generate(PROMPTS, GREEDY, [0] * 3)
    assert found == VllmSampler(tiny_policy).generate(PROMPTS, GREEDY, [0] * 3)


def test_a_changed_adapter_is_refused_before_an_engine_starts(
    vllm: type[LLM], adapted: Backbone
) -> None:
    with pytest.raises(ModelError, match="has changed"):
        VllmSampler(replace(adapted.policy, adapter_sha256="0" * 64))
    with pytest.raises(ModelError, match="has changed"):
        VllmSampler(replace(adapted.policy, base_sha256="0" * 64))
    assert not vllm.started


def test_pain_12_a_prompt_that_does_not_fit_is_refused_before_anything_runs(
    vllm: type[LLM], tiny: Backbone
) -> None:
    sampler = VllmSampler(tiny.policy, VllmConfig(context=20))
    with pytest.raises(ContextOverflowError, match=r"prompt 1 has 9 tokens.*holds 20"):
        sampler.generate([[1], [1] * 9], Sampling(max_new_tokens=12), [0, 1])
    assert vllm.started[0].asked == []
    assert vllm.started[0].arguments["max_model_len"] == 20
    assert len(sampler.generate([[1] * 8], Sampling(max_new_tokens=12), [0])) == 1
    assert VllmSampler(tiny.policy).context_length == tiny.context_length


def test_what_the_plan_gives_vllm_reaches_it(vllm: type[LLM], tiny: Backbone) -> None:
    VllmSampler(tiny.policy, VllmConfig(memory_share=0.4, tensor_parallel=2))
    VllmSampler(tiny.policy, dtype="float16")
    first, second = (e.arguments for e in vllm.started)
    assert (first["gpu_memory_utilization"], first["tensor_parallel_size"]) == (0.4, 2)
    assert (first["dtype"], second["dtype"]) == ("bfloat16", "float16")
    assert first["trust_remote_code"] is False
    assert first["max_model_len"] == 512


def test_pain_46_a_closed_engine_is_gone(vllm: type[LLM], tiny: Backbone) -> None:
    sampler = VllmSampler(tiny.policy)
    sampler.close()
    sampler.close()
    assert vllm.started[0].ended == 1
    with pytest.raises(ModelError, match="was closed"):
        sampler.generate(PROMPTS, GREEDY, [0] * 3)


def test_an_engine_that_does_not_start_says_what_to_change(
    vllm: type[LLM], tiny: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm, "refuses", "no free memory")
    with pytest.raises(ModelError, match=r"no free memory.*memory_share.*sampler=local"):
        VllmSampler(tiny.policy)


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("finish_reason", "abort", "gave up"),
        ("logprobs", [], "told 0 log-probabilities"),
        ("logprobs", None, "not finite"),
    ],
)
def test_answers_that_make_no_sense_are_errors(
    vllm: type[LLM], tiny: Backbone, monkeypatch: pytest.MonkeyPatch,
    field: str, value: Any, told: str,
) -> None:  # fmt: skip
    plain = vllm._answer

    def broken(*given: Any) -> Any:
        found = plain(*given)
        one = found.outputs[0]
        if value is None and one.logprobs:
            one.logprobs[-1][one.token_ids[-1]].logprob = math.nan
        else:
            setattr(one, field, value)
        return found

    monkeypatch.setattr(vllm, "_answer", broken)
    with pytest.raises(ModelError, match=told):
        VllmSampler(tiny.policy).generate(PROMPTS, GREEDY, [0] * 3)


def test_requests_that_make_no_sense_are_refused(vllm: type[LLM], tiny: Backbone) -> None:
    sampler = VllmSampler(tiny.policy)
    assert sampler.generate([], GREEDY, []) == []
    for prompts, sampling, seeds, told in (
        ([[1]], GREEDY, [], "seeds"),
        ([[]], GREEDY, [0], "empty prompt"),
        ([[1]], Sampling(top_p=0), [0], "out of range"),
        ([[1]], Sampling(temperature=2.5), [0], "0.01 to 2"),
        ([[1]], Sampling(temperature=0.005), [0], "0.01 to 2"),
    ):
        with pytest.raises(ModelError, match=told):
            sampler.generate(prompts, sampling, seeds)


def test_what_vllm_would_change_or_can_not_do_is_told_at_once() -> None:
    check_vllm(Sampling(temperature=2), "auto", 512, VllmConfig(context=512))
    with pytest.raises(ConfigError) as caught:
        check_vllm(Sampling(temperature=3), "float32", 512, VllmConfig(context=513))
    lines = str(caught.value).splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        "sampling.temperature", "dtype", "vllm.context",
    ]  # fmt: skip
    for wrong in ({"memory_share": 0}, {"memory_share": 1.1}, {"tensor_parallel": 0}):
        with pytest.raises(ConfigError, match="accepted"):
            VllmConfig(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("sampler", "release", "gpu", "device", "chosen"),
    [
        ("local", "0.31.0", True, "auto", "local"),
        ("auto", "0.31.0", True, "auto", "vllm"),
        ("auto", "0.31.0+cu129", True, "cuda", "vllm"),
        ("auto", "0.31.0", True, "cuda:1", "local"),
        ("auto", "0.31.0", True, "cpu", "local"),
        ("auto", "0.31.0", False, "auto", "local"),
        ("auto", "0.21.3", True, "auto", "local"),
        ("auto", None, True, "auto", "local"),
        ("vllm", "1.0.0", True, "cuda:0", "vllm"),
        ("vllm", None, True, "auto", MissingExtraError("pip install 'iterpo[train,vllm]'")),
        ("vllm", "0.9.1", True, "auto", MissingExtraError("vLLM is 0.9.1; 0.22 or newer")),
        ("vllm", "0.31.0", False, "auto", ConfigError("without a usable GPU")),
        ("vllm", "0.31.0", True, "cuda:1", ConfigError("CUDA_VISIBLE_DEVICES")),
        ("vllm", "0.31.0", True, "cpu", ConfigError("device 'cpu'")),
    ],
)
def test_which_sampler_a_setting_means(
    monkeypatch: pytest.MonkeyPatch,
    sampler: Any, release: str | None, gpu: bool, device: str, chosen: str | Exception,
) -> None:  # fmt: skip
    monkeypatch.setattr(engines, "vllm_version", lambda: release)
    monkeypatch.setattr(engines, "_has_gpu", lambda: gpu)
    if isinstance(chosen, str):
        assert choose_sampler(sampler, device) == chosen
        return
    with pytest.raises(type(chosen)) as caught:
        choose_sampler(sampler, device)
    assert str(chosen) in str(caught.value)


@pytest.mark.parametrize(
    ("sampling", "dtype", "chosen"),
    [
        (Sampling(), "bfloat16", "vllm"),
        (Sampling(), "float32", "local"),
        (Sampling(temperature=0.005), "auto", "local"),
        (Sampling(temperature=2.5), "auto", "local"),
    ],
)
def test_auto_does_without_vllm_what_vllm_would_refuse(
    monkeypatch: pytest.MonkeyPatch, sampling: Sampling, dtype: str, chosen: str
) -> None:
    monkeypatch.setattr(engines, "vllm_version", lambda: "0.31.0")
    monkeypatch.setattr(engines, "_has_gpu", lambda: True)
    assert choose_sampler("auto", sampling=sampling, dtype=dtype) == chosen
    assert choose_sampler("vllm", sampling=sampling, dtype=dtype) == "vllm"  # refused by its check


def test_vllm_is_imported_when_an_engine_starts_and_not_before() -> None:
    code = (
        "import sys; sys.modules['vllm'] = None\n"
        "import iterpo.models.vllm_sampler, iterpo.experiments.speakers\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]


ABSENT = [
    what
    for what, there in (
        ("vLLM is not installed", importlib.util.find_spec("vllm") is not None),
        ("there is no CUDA GPU", torch.cuda.is_available()),
    )
    if not there
]


@pytest.mark.gpu
@pytest.mark.skipif(bool(ABSENT), reason=", and ".join(ABSENT))
@pytest.mark.parametrize("trained", [False, True])
def test_the_real_vllm_agrees_with_the_local_sampler(tmp_path: Path, trained: bool) -> None:
    policy = hub.base_policy("nano")
    if trained:
        model = attach_lora(load(policy), LoraSpec(r=8, alpha=8), seed=1)
        generator = torch.Generator().manual_seed(5)
        for name, parameter in model.named_parameters():
            if parameter.requires_grad and "lora_B" in name:
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.data.copy_(0.05 * noise)
        policy = save_policy(tmp_path / "pi", model, TRAINED, parent=policy, round=1)
    sampling = Sampling(temperature=0.8, top_p=0.9, max_new_tokens=24)
    local = load(policy, dtype="bfloat16")
    prompts = [list(range(5 + i, 60 + i)) for i in range(16)]
    sampler = VllmSampler(policy, VllmConfig(memory_share=0.3))
    try:
        found = sampler.generate(prompts, sampling, range(16))
        assert sampler.generate(prompts, sampling, range(16)) == found
    finally:
        sampler.close()
    gaps = []
    for prompt, got in zip(prompts, found, strict=True):
        with torch.no_grad():
            ids = torch.tensor([[*prompt, *got.token_ids]], device=local.device)
            logits = local.model(input_ids=ids).logits[0].float().cpu()
        for j, (token, logprob) in enumerate(zip(got.token_ids, got.logprobs, strict=True)):
            row = (logits[len(prompt) - 1 + j] / sampling.temperature).softmax(-1)
            best, order = row.sort(descending=True)
            kept = order[best.cumsum(0) - best < sampling.top_p]
            if token in kept:  # at the rim of the nucleus rounding decides
                gaps.append(abs(logprob - float((row[token] / row[kept].sum()).log())))
    assert len(gaps) > 0.97 * sum(len(g.token_ids) for g in found)
    assert sum(gaps) / len(gaps) < logprob_tolerance(torch.bfloat16)
