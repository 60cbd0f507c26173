"""Prompts that go on from what is kept, against whole passes; and what is kept when."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from iterpo.domain import Sampling
from iterpo.errors import ModelError
from iterpo.models import plain_layers, prompt_pass
from iterpo.models.backbone import Backbone, attach_lora, frozen
from iterpo.models.generation import Generated, generate
from iterpo.models.grouped_cache import GroupedCache
from iterpo.models.kept_turns import KeptTurns, Past, weights_stamp
from iterpo.models.lora import LoraSpec
from iterpo.models.prompt_pass import PromptPass
from iterpo.models.shared_prefix import cache_argument
from models.random_models import random_model

SAMPLING = Sampling(temperature=1.0, max_new_tokens=7)
ENOUGH = 2**30
LAYERS = 3


def tokens(n: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, 200, (n,), generator=generator).tolist()


def logprobs(model: Any, ids: Sequence[int]) -> Tensor:
    """Of the token behind ``ids``, by transformers' plain forward."""
    with torch.no_grad():
        out: Tensor = model(input_ids=torch.tensor([list(ids)])).logits[0, -1]
    return out.float().log_softmax(-1)


def passed(model: Any, prompts: Sequence[Sequence[int]], pasts: Sequence[Past | None]) -> Any:
    """A pass and the log-probs behind its prompts (u, V)."""
    run = PromptPass(prompts, pasts, torch.device("cpu"))
    with torch.no_grad():
        logits = run.logits(model, cache_argument(model))
    return run, logits.float().log_softmax(-1)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize(
    "kind", ["Llama", "Qwen2", "Qwen3", "GPTNeoX", "Olmo2", "Granite", "Gemma"]
)
def test_a_pass_behind_known_tokens_equals_a_plain_forward(
    kind: str, attention: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if attention == "eager":  # a few queries at a time, as 16 bits have it
        monkeypatch.setattr(prompt_pass, "by_products", lambda _: True)
        monkeypatch.setattr(prompt_pass, "_QUERIES", 7)
    model = random_model(kind, attention=attention, num_hidden_layers=LAYERS)
    first = [tokens(n, seed=n) for n in (9, 40, 23)]
    run, found = passed(model, first, [None] * 3)
    for prompt, got in zip(first, found, strict=True):
        assert float((got - logprobs(model, prompt)).abs().max()) < 1e-4
    pasts = [
        Past(n, [(x.keys[i], x.values[i]) for x in run.layers])
        for i, n in enumerate((9, 31, 23))  # the second was rewritten behind its 31st token
    ]
    longer = [
        first[0] + tokens(30, 1),
        first[1][:31] + tokens(4, 2),
        first[2] + tokens(1, 3),
        tokens(12, 4),
    ]
    run, found = passed(model, longer, [*pasts, None])
    for i, (prompt, got) in enumerate(zip(longer, found, strict=True)):
        assert float((got - logprobs(model, prompt)).abs().max()) < 1e-4
        alone, _ = passed(model, [prompt], [None])
        for ours, theirs in zip(run.layers, alone.layers, strict=True):
            for name in ("keys", "values"):
                near = getattr(ours, name)[i, :, : len(prompt)], getattr(theirs, name)[0]
                torch.testing.assert_close(*near, rtol=1e-4, atol=1e-5)
    assert not any("forward" in m.__dict__ for m in model.modules())


def test_the_last_layer_runs_for_the_last_tokens_only(monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_model("Llama", num_hidden_layers=LAYERS)
    rows: list[tuple[int, ...]] = []
    mlp = type(model.model.layers[0].mlp)
    plain = mlp.forward
    monkeypatch.setattr(
        mlp, "forward", lambda self, x: rows.append(tuple(x.shape[:2])) or plain(self, x)
    )
    prompts = [tokens(9, 1), tokens(12, 2)]
    _, short = passed(model, prompts, [None, None])
    assert rows == [(2, 12), (2, 12), (2, 1)]
    rows.clear()
    # A layer that is given more than this module knows of is left to run as it is.
    for known in (set(), prompt_pass._KNOWN - {"position_embeddings"}):  # a tuple of tensors
        monkeypatch.setattr(prompt_pass, "_KNOWN", known)
        _, whole = passed(model, prompts, [None, None])
        assert rows == [(2, 12)] * 3
        torch.testing.assert_close(short, whole, rtol=1e-4, atol=1e-5)
        rows.clear()
    model.model.layers[-1].__dict__["forward"] = model.model.layers[-1].forward  # someone's hook
    _, hooked = passed(model, prompts, [None, None])
    assert rows == [(2, 12)] * 3
    torch.testing.assert_close(hooked, whole, rtol=1e-4, atol=1e-5)


class Talk:
    """Conversations of a few speakers with one model, as ``LocalPolicy`` holds them."""

    def __init__(self, backbone: Backbone, kept: KeptTurns | None, n: int = 5) -> None:
        self.backbone, self.kept = backbone, kept
        self.prompts = [tokens(12 + 5 * i, seed=i) for i in range(n)]

    def turn(self, t: int, sampling: Sampling = SAMPLING) -> list[Generated]:
        """All speak once; then all are answered."""
        n = len(self.prompts)
        more: dict[str, Any] = (
            {"kept": self.kept, "speakers": range(n)} if self.kept is not None else {}
        )
        seeds = [100 * t + i for i in range(n)]
        said = generate(self.backbone, self.prompts, sampling, seeds, **more)
        before = self.prompts
        self.prompts = [
            p + list(g.token_ids) + tokens(3 + (i + t) % 4, seed=50 * t + i)
            for i, (p, g) in enumerate(zip(self.prompts, said, strict=True))
        ]
        self.spoken = list(zip(before, said, strict=True))
        return said


def worst(backbone: Backbone, spoken: Sequence[tuple[list[int], Generated]]) -> float:
    """Largest difference of a log-probability from transformers' plain forward."""
    found = []
    for prompt, got in spoken:
        for k, (token, logprob) in enumerate(zip(got.token_ids, got.logprobs, strict=True)):
            exact = logprobs(backbone.model, [*prompt, *got.token_ids[:k]])[token]
            found.append(abs(float(exact) - logprob))
    return max(found)


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Tokens that were known of each prompt, pass by pass."""
    seen: list[int] = []
    plain = PromptPass.__init__

    def spy(self: PromptPass, prompts: Any, pasts: Any, device: torch.device) -> None:
        seen.extend(past.length if past else 0 for past in pasts)
        plain(self, prompts, pasts, device)

    monkeypatch.setattr(PromptPass, "__init__", spy)
    return seen


def test_turns_of_a_conversation_are_exact_and_run_once(
    adapted: Backbone, known: list[int]
) -> None:
    talk, fresh = Talk(adapted, KeptTurns(ENOUGH)), Talk(adapted, None)
    ran = [0] * 5
    for t in range(4):
        before = [len(p) for p in talk.prompts]
        known.clear()
        said = talk.turn(t)
        assert sorted(known) == sorted(ran)
        # The token that was drawn last has not run.
        ran = [n + len(g.token_ids) - 1 for n, g in zip(before, said, strict=True)]
        assert [g.token_ids for g in said] == [g.token_ids for g in fresh.turn(t)]
        assert worst(adapted, talk.spoken) < 1e-4


def test_rewritten_turns_are_run_from_where_they_differ(tiny: Backbone, known: list[int]) -> None:
    talk = Talk(tiny, KeptTurns(ENOUGH), n=3)
    talk.turn(0)
    talk.prompts[0][10] = 199  # inside of what was the prompt
    talk.prompts[1] = tokens(20, 77)  # nothing in common
    talk.prompts[2] = talk.prompts[2][:15]  # shorter than what is known
    known.clear()
    talk.turn(1)
    assert sorted(known) == [0, 10, 14]
    assert worst(tiny, talk.spoken) < 1e-4


def test_states_of_another_conversation_would_be_noticed(tiny: Backbone) -> None:
    """The twin that is wrong on purpose."""

    class Wrong(KeptTurns):
        def find(self, speaker: Hashable, prompt: Sequence[int]) -> Past | None:
            entries = list(self._entries.values())
            return Past(10, entries[(int(str(speaker)) + 1) % len(entries)].states)

    talk = Talk(tiny, KeptTurns(ENOUGH), n=3)
    talk.turn(0)
    assert talk.kept is not None
    talk.kept.__class__ = Wrong
    talk.turn(1)
    assert worst(tiny, talk.spoken) > 1e-2


@pytest.mark.parametrize("max_batch_tokens", [65_536, 50])
def test_memory_is_bounded_and_what_does_not_fit_is_run_again(
    tiny: Backbone, known: list[int], monkeypatch: pytest.MonkeyPatch, max_batch_tokens: int
) -> None:
    """Also where a call has several batches: what one keeps must not cost the next its own."""
    monkeypatch.setitem(generate.__kwdefaults__, "max_batch_tokens", max_batch_tokens)
    whole = KeptTurns(ENOUGH)
    Talk(tiny, whole).turn(0)
    assert whole.count == 5
    few = KeptTurns(whole.bytes // 2)
    talk, fresh = Talk(tiny, few), Talk(tiny, None)
    copied: list[int] = []
    plain = GroupedCache.states_of

    def spy(self: GroupedCache, row: int) -> Any:
        copied.append(row)
        return plain(self, row)

    monkeypatch.setattr(GroupedCache, "states_of", spy)
    for t in range(3):
        known.clear()
        copied.clear()
        held = few.count
        said = talk.turn(t)
        assert 0 < few.bytes <= few.most_bytes
        assert few.bytes == sum(e.size for e in few._entries.values())
        assert sum(n > 0 for n in known) == held  # everything kept was of use
        assert len(copied) <= few.count + 1  # the first size of all is found by a copy
        assert [g.token_ids for g in said] == [g.token_ids for g in fresh.turn(t)]
        assert worst(tiny, talk.spoken) < 1e-4
    for speaker in range(5):
        few.drop(speaker)
    assert (few.count, few.bytes) == (0, 0)
    none = KeptTurns(0)
    Talk(tiny, none).turn(0)
    assert none.count == 0


def test_a_size_is_that_of_its_keys_and_values(tiny: Backbone) -> None:
    kept = KeptTurns(ENOUGH)
    (said,) = generate(tiny, [tokens(20, 1)], SAMPLING, [1], kept=kept, speakers=["a"])
    config = tiny.model.config
    head = config.hidden_size // config.num_attention_heads
    numbers = 2 * config.num_hidden_layers * config.num_key_value_heads * head
    assert kept.bytes == 4 * numbers * (20 + len(said.token_ids) - 1)


def test_other_weights_or_another_adapter_forget_everything(adapted: Backbone) -> None:
    model = adapted.model
    kept, stamp = KeptTurns(ENOUGH), weights_stamp(model)

    def speak() -> None:
        generate(adapted, [tokens(20, 1)], SAMPLING, [1], kept=kept, speakers=["a"])

    speak()
    assert weights_stamp(model) == stamp  # sampling itself changes nothing
    speak()
    kept.check(stamp)
    assert kept.count == 1
    with model.disable_adapter():
        assert weights_stamp(model) != stamp
    attach_lora(adapted, LoraSpec(r=4, alpha=4), seed=3)
    both = weights_stamp(model)
    with frozen(adapted):  # switches the layers alone
        assert weights_stamp(model) != both
    assert weights_stamp(model) == both
    parameter = next(p for n, p in model.named_parameters() if "lora_B" in n)
    with torch.no_grad():
        parameter.add_(0.5)
    assert weights_stamp(model) != stamp
    (said,) = generate(adapted, [tokens(20, 1)], SAMPLING, [1], kept=kept, speakers=["a"])
    assert worst(adapted, [(tokens(20, 1), said)]) < 1e-4


def test_plain_layers_are_made_once_for_the_same_weights(
    adapted: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []
    plain = plain_layers._plain
    monkeypatch.setattr(
        plain_layers, "_plain", lambda layer, copied: made.append(layer) or plain(layer, copied)
    )
    talk = Talk(adapted, KeptTurns(ENOUGH), n=2)
    talk.turn(0)
    assert made
    made.clear()
    talk.turn(1)
    assert not made
    parameter = next(p for n, p in adapted.model.named_parameters() if "lora_B" in n)
    with torch.no_grad():
        parameter.add_(0.5)
    talk.turn(3)
    assert made
    assert worst(adapted, talk.spoken) < 1e-4


def test_prompts_of_several_speakers_may_be_equal(tiny: Backbone, known: list[int]) -> None:
    kept, prompt = KeptTurns(ENOUGH), tokens(20, 1)
    generate(tiny, [prompt], SAMPLING, [1], kept=kept, speakers=["a"])
    known.clear()
    said = generate(tiny, [prompt] * 3, SAMPLING, [1, 2, 3], kept=kept, speakers=["b", "a", "c"])
    assert known == [19]
    assert kept.count == 3
    assert worst(tiny, [(prompt, g) for g in said]) < 1e-4


def test_speakers_are_one_per_prompt(tiny: Backbone) -> None:
    for speakers in (["a"], ["a", "a"]):
        with pytest.raises(ModelError, match="different speakers"):
            generate(tiny, [[1], [2]], SAMPLING, [1, 2], kept=KeptTurns(ENOUGH), speakers=speakers)


def test_a_model_whose_cache_is_not_plain_keeps_nothing(tiny: Backbone) -> None:
    model = random_model("Mistral", num_hidden_layers=LAYERS, vocab_size=300, sliding_window=8)
    kept = KeptTurns(ENOUGH)
    talk = Talk(replace(tiny, model=model), kept, n=3)
    for t in range(2):
        talk.turn(t)
        assert kept.count == 0
        assert worst(talk.backbone, talk.spoken) < 1e-4
