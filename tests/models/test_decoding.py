"""Both decoders against transformers' plain forward, token by token."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from iterpo.domain import Sampling
from iterpo.models import attention, decoding, grouped_cache, prompt_pass
from iterpo.models.backbone import Backbone, attach_lora
from iterpo.models.decoding import Decoder, GroupedDecoder, PlainDecoder, decoder_for
from iterpo.models.generation import generate
from iterpo.models.grouped_cache import GroupedCache
from iterpo.models.lora import LoraSpec
from models.random_models import random_model

NEW = 40  # more than twice the steps that a grid has room for at first


def prompts_of(counts: Sequence[int], seed: int = 0) -> list[list[int]]:
    """As many random prompts of mixed lengths as there are counts, each so often, shuffled."""
    generator = torch.Generator().manual_seed(seed)
    distinct = [
        torch.randint(0, 200, (int(n),), generator=generator).tolist()
        for n in torch.randint(1, 60, (len(counts),), generator=generator)
    ]
    rows = [p for p, count in zip(distinct, counts, strict=True) for _ in range(count)]
    return [rows[i] for i in torch.randperm(len(rows), generator=generator).tolist()]


def _now_and_then(step: int) -> float:
    """Share of the rows that end at a step."""
    return 0.1 if step % 3 == 1 else 0


def fed(
    decoder: Decoder, n: int, seed: int = 0, ending: Callable[[int], float] = _now_and_then
) -> list[tuple[list[int], torch.Tensor]]:
    """Tokens fed to each of n rows and the logits (tokens + 1, V) found; rows end at random."""
    generator = torch.Generator().manual_seed(seed)
    rows = list(range(n))
    said: list[list[int]] = [[] for _ in rows]
    with torch.no_grad():
        logits = decoder.prefill()
        found = [[row] for row in logits]
        with decoder.steps():
            for step in range(NEW - 1):
                tokens = torch.randint(0, 200, (len(rows),), generator=generator)
                stay = torch.rand(len(rows), generator=generator) > ending(step)
                keep = [k for k, on in enumerate(stay.tolist()) if on]
                if not keep:
                    break
                logits = decoder.step(tokens, None if len(keep) == len(rows) else keep)
                rows = [rows[k] for k in keep]
                for k, row in enumerate(rows):
                    said[row].append(int(tokens[keep[k]]))
                    found[row].append(logits[k])
    return [(s, torch.stack(f)) for s, f in zip(said, found, strict=True)]


def plain_logits(model: Any, prompt: list[int], said: list[int]) -> torch.Tensor:
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([prompt + said])).logits[0].float()
    return logits[len(prompt) - 1 :]  # type: ignore[no-any-return]


def worst(
    model: Any, prompts: list[list[int]], found: list[tuple[list[int], torch.Tensor]]
) -> float:
    """Largest difference of a log-probability."""
    return max(
        float((got.log_softmax(-1) - plain_logits(model, p, said).log_softmax(-1)).abs().max())
        for p, (said, got) in zip(prompts, found, strict=True)
    )


def holding(model: Any) -> Any:
    """What decoders want of a backbone."""
    chat = SimpleNamespace(stop_ids=(0,))
    return SimpleNamespace(model=model, device=torch.device("cpu"), chat=chat)


@pytest.mark.parametrize(
    "kind", ["Llama", "Qwen2", "Qwen3", "GPTNeoX", "Olmo2", "Granite", "Gemma"]
)
def test_grouped_steps_equal_a_plain_forward_whatever_the_architecture(kind: str) -> None:
    model = random_model(kind)
    backbone = holding(model)
    prompts = prompts_of([1, 8, 3, 1, 20, 2])
    decoder = decoder_for(backbone, prompts, NEW)
    assert isinstance(decoder, GroupedDecoder)
    found = fed(decoder, len(prompts))
    assert len({len(said) for said, _ in found}) > 5  # they ended at different times
    assert worst(model, prompts, found) < 1e-4  # float32 sums in another order
    assert model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("counts", [[1], [30], [1] * 12, [16, 17], [8] * 4])
def test_any_mix_of_repeated_prompts_is_exact(counts: list[int]) -> None:
    model = random_model("Llama")
    prompts = prompts_of(counts, seed=sum(counts))
    found = fed(GroupedDecoder(holding(model), prompts, NEW), len(prompts))
    assert worst(model, prompts, found) < 1e-4


@pytest.mark.parametrize("step", [0, 1, 15, 16, 17])
@pytest.mark.parametrize("counts", [[8] * 4, [1] * 12, [40]])
def test_most_rows_may_end_at_once_at_any_step(counts: list[int], step: int) -> None:
    model = random_model("Llama")
    prompts = prompts_of(counts, seed=step)
    decoder = GroupedDecoder(holding(model), prompts, NEW)
    found = fed(decoder, len(prompts), step, lambda now: 0.7 if now == step else 0)
    assert worst(model, prompts, found) < 1e-4


def test_a_hidden_token_seen_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin that is wrong on purpose: samples of a prompt that see each other's tokens."""
    plain = grouped_cache._fused

    def wrong(asked: Any, layer: Any, mask: torch.Tensor, scale: float) -> torch.Tensor:
        return plain(asked, layer, torch.zeros_like(mask), scale)

    monkeypatch.setattr(grouped_cache, "_fused", wrong)
    model = random_model("Llama")
    prompts = prompts_of([8])
    assert worst(model, prompts, fed(GroupedDecoder(holding(model), prompts, NEW), 8)) > 1e-2


def test_a_prompt_is_kept_once_and_grids_shrink(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[tuple[int, int, int]] = []
    running: list[int] = []
    plain = GroupedCache.step

    def spy(self: GroupedCache) -> None:
        plain(self)
        sizes.append((len(self.lines), self.width, self.layers[0].keys.shape[2]))
        running.append(len(self.prompt_of))

    monkeypatch.setattr(GroupedCache, "step", spy)
    model = random_model("Llama")
    prompts = [list(range(1, 101))] * 8 + [list(range(50, 90))] * 8
    fed(GroupedDecoder(holding(model), prompts, NEW), 16)
    assert sizes[0] == (2, 8, 100 + 16 * 8)
    assert running[-1] < 8
    for (lines, width, _), rows in zip(sizes, running, strict=True):
        assert lines * width <= max(2 * rows, 4)


def test_a_cache_is_copied_only_where_room_from_the_start_would_cost_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moves: list[int] = []
    plain = GroupedCache._move

    def spy(self: GroupedCache, lines: list[list[int]]) -> None:
        moves.append(self.steps)
        plain(self, lines)

    monkeypatch.setattr(GroupedCache, "_move", spy)
    model, one, two = random_model("Llama"), list(range(1, 161)), list(range(1, 17))
    for prompts, expected in (([one], []), ([two], [16, 32]), ([one] * 8, [16, 32])):
        fed(GroupedDecoder(holding(model), prompts, NEW), len(prompts), ending=lambda _: 0)
        assert moves == expected
        moves.clear()


def test_sixteen_bit_steps_are_as_close_to_float32_as_a_plain_forward(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    empty = torch.Tensor.new_empty
    monkeypatch.setattr(prompt_pass, "_QUERIES", 16)
    monkeypatch.setattr(  # what was never written must never be read
        torch.Tensor, "new_empty", lambda *a, **k: empty(*a, **k).fill_(torch.nan)
    )
    exact = random_model("Llama")
    model = copy.deepcopy(exact).to(torch.bfloat16)
    prompts = prompts_of([1, 8, 3, 1, 20, 2])
    found = fed(GroupedDecoder(holding(model), prompts, NEW), len(prompts))
    ours, theirs = [], []
    for prompt, (said, got) in zip(prompts, found, strict=True):
        truth = plain_logits(exact, prompt, said).log_softmax(-1)
        ours.append((got.log_softmax(-1) - truth).abs().flatten())
        theirs.append((plain_logits(model, prompt, said).log_softmax(-1) - truth).abs().flatten())
    noise, own = torch.cat(theirs), torch.cat(ours)
    assert float(own.mean()) < 1.1 * float(noise.mean())
    assert float(own.max()) < 2 * float(noise.max())


def test_a_sliding_window_takes_the_plain_decoder_which_is_exact_too() -> None:
    model = random_model("Mistral", sliding_window=8)
    backbone = holding(model)
    prompts = prompts_of([3, 1, 2])
    decoder = decoder_for(backbone, prompts, NEW)
    assert isinstance(decoder, PlainDecoder)
    found = fed(decoder, len(prompts))
    assert worst(model, prompts, found) < 1e-4


def test_an_attention_that_is_more_than_plain_starts_over_with_the_plain_decoder(
    tiny: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = prompts_of([3, 1, 4])
    sampling = Sampling(temperature=1.0, max_new_tokens=8)
    fast = generate(tiny, prompts, sampling, range(8))
    taken: list[str] = []
    plain = decoding.PlainDecoder.prefill

    def spy(self: PlainDecoder) -> torch.Tensor:
        taken.append("plain")
        return plain(self)

    monkeypatch.setattr(decoding.PlainDecoder, "prefill", spy)
    monkeypatch.setattr(attention, "_NEUTRAL", set())  # as if dropout=0.0 were unheard of
    slow = generate(tiny, prompts, sampling, range(8))
    assert taken == ["plain"]
    assert [g.token_ids for g in slow] == [g.token_ids for g in fast]
    for a, b in zip(slow, fast, strict=True):
        assert a.logprobs == pytest.approx(b.logprobs, abs=1e-4)
    assert tiny.model.config._attn_implementation == "sdpa"


def trained_on(backbone: Backbone, scale: float = 0.1) -> Backbone:
    """A second adapter, trained away from the first, is active."""
    spec = LoraSpec(r=4, alpha=4)
    model = attach_lora(backbone, spec, seed=3)
    generator = torch.Generator().manual_seed(8)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and "lora_B" in name:
            parameter.data.add_(scale * torch.randn(parameter.shape, generator=generator))
    return replace(backbone, model=model)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_adapters_are_sampled_from_as_they_are_and_left_as_they_were(
    adapted: Backbone, training: bool, dtype: torch.dtype
) -> None:
    backbone = trained_on(adapted) if training else adapted
    if dtype != torch.float32:
        backbone.model.to(dtype)
    before = {k: v.clone() for k, v in backbone.model.state_dict().items()}
    modules = list(backbone.model.modules())
    prompts = prompts_of([3, 1, 4])
    sampling = Sampling(temperature=1.0, max_new_tokens=20)
    found = generate(backbone, prompts, sampling, range(8))
    assert all(a is b for a, b in zip(modules, backbone.model.modules(), strict=True))
    after = backbone.model.state_dict()
    assert all(torch.equal(before[k], after[k]) for k in before)
    near, far = [], []
    for prompt, got in zip(prompts, found, strict=True):
        ids = torch.tensor(got.token_ids)[:, None]
        logits = plain_logits(backbone.model, prompt, list(got.token_ids))[:-1]
        exact = logits.log_softmax(-1).gather(1, ids)[:, 0]
        near.append((torch.tensor(got.logprobs) - exact).abs())
        with backbone.model.disable_adapter():
            other = plain_logits(backbone.model, prompt, list(got.token_ids))[:-1]
        far.append((torch.tensor(got.logprobs) - other.log_softmax(-1).gather(1, ids)[:, 0]).abs())
    bound = 1e-4 if dtype == torch.float32 else 0.15
    assert float(torch.cat(near).mean()) < bound / 2
    assert float(torch.cat(near).max()) < bound * (1 if dtype == torch.float32 else 4)
    assert float(torch.cat(far).mean()) > 2 * bound  # the adapter matters
