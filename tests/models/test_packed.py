"""Packed rows and folded adapters against one plain pass per sequence."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import LoraConfig
from peft.tuners.lora.layer import Linear
from torch import Tensor

from iterpo.domain import PolicyRef
from iterpo.models import lora_sum, packed, shared_prefix
from iterpo.models.attention import UnusualAttention, plain_attention
from iterpo.models.backbone import Backbone, attach_lora, load
from iterpo.models.folded import folded
from iterpo.models.lora import LoraSpec
from iterpo.models.packed import packed_states
from iterpo.models.plain_layers import plain_layers
from iterpo.models.shared_prefix import states_behind, two_passes

PROMPTS = [[5, 6, 7, 8, 9, 10, 11], [12, 13, 14]]
SAID = [[[20, 21, 22], [23], [24, 25]], [[26, 27, 28, 29]]]


@pytest.fixture
def trained(tiny_policy: PolicyRef) -> Any:
    """A PEFT model in train mode whose adapter is not zero."""
    return _train(load(tiny_policy, device="cpu"), LoraSpec(r=4, alpha=8))


def _train(backbone: Backbone, spec: LoraSpec) -> Any:
    model = attach_lora(backbone, spec, seed=3)
    generator = torch.Generator().manual_seed(4)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data.copy_(0.2 * torch.randn(parameter.shape, generator=generator))
    return model.train()


def _decoder(model: Any) -> Any:
    return model.get_base_model().get_decoder()


def _tensors(ids: list[list[int]]) -> list[Tensor]:
    return [torch.tensor(i) for i in ids]


def _alone(decoder: Any) -> Tensor:
    """What ``packed_states`` is to give, by a pass per sequence."""
    found = []
    for prompt, said in zip(PROMPTS, SAID, strict=True):
        states = decoder(input_ids=torch.tensor([prompt]), use_cache=False).last_hidden_state[0]
        found.append(states)
        for response in said:
            ids = torch.tensor([prompt + response])
            states = decoder(input_ids=ids, use_cache=False).last_hidden_state[0]
            found.append(states[len(prompt) :])
    return torch.cat(found)


def _gradients(model: Any, states: Tensor) -> list[Tensor]:
    generator = torch.Generator().manual_seed(6)
    weights = torch.randn(states.shape, generator=generator)
    wanted = [p for p in model.parameters() if p.requires_grad]
    return list(torch.autograd.grad((states * weights).sum(), wanted))


@pytest.mark.parametrize(("at_once", "blocks"), [(1, 4), (5, 3), (128, 2)])
def test_every_token_gets_the_state_and_the_gradient_that_it_gets_alone(
    trained: Any, monkeypatch: pytest.MonkeyPatch, at_once: int, blocks: int
) -> None:
    """However few responses attend at a time."""
    monkeypatch.setitem(packed._AT_ONCE, "cpu", at_once)
    masks: list[int] = []
    attend = torch.nn.functional.scaled_dot_product_attention

    def spy(*args: Any, **given: Any) -> Tensor:
        masks.append(given.get("attn_mask") is not None)
        return attend(*args, **given)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", spy)
    decoder = _decoder(trained)
    found = packed_states(decoder, _tensors(PROMPTS), [_tensors(s) for s in SAID])
    assert sum(masks) == blocks * decoder.config.num_hidden_layers
    alone = _alone(decoder)
    assert found.shape == alone.shape
    torch.testing.assert_close(found, alone, rtol=1e-4, atol=1e-5)
    for a, b in zip(_gradients(trained, found), _gradients(trained, alone), strict=True):
        assert float(b.abs().max()) > 1e-3
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5 * float(b.abs().max()))


def test_padded_in_padded_out_as_two_passes_have_it(trained: Any) -> None:
    """Rows of prompts in any order, one of them without a token of its own."""
    decoder, index = _decoder(trained), torch.tensor([1, 0, 1, 0])
    before = torch.tensor([[5, 6, 7, 8], [0, 0, 9, 10]])
    seen = torch.tensor([[1, 1, 1, 1], [0, 0, 1, 1]])
    after = torch.tensor([[20, 21, 22], [23, 0, 0], [0, 0, 0], [24, 25, 0]])
    said = torch.tensor([[1, 1, 1], [1, 0, 0], [0, 0, 0], [1, 1, 0]])
    mask = torch.cat([seen[index], said], dim=1)
    both = [way(decoder, (before, seen), index, after, mask) for way in (states_behind, two_passes)]
    real = torch.cat([torch.ones(4, 1, dtype=torch.long), said], dim=1).bool()
    torch.testing.assert_close(both[0][real], both[1][real], rtol=1e-4, atol=1e-5)


def test_the_model_attends_as_before_afterwards(
    trained: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = _decoder(trained)
    before = _alone(decoder)
    packed_states(decoder, _tensors(PROMPTS), [[], []])
    with pytest.raises(IndexError):
        packed_states(decoder, [torch.tensor([10**6])], [[]])
    assert decoder.config._attn_implementation == "sdpa"
    assert not any("forward" in m.__dict__ for m in decoder.modules())
    assert torch.equal(_alone(decoder), before)
    layer = decoder.layers[0].self_attn
    attend = type(layer).forward
    monkeypatch.setattr(type(layer), "forward", lambda *a, **k: attend(*a, **k, softcap=30.0))
    with pytest.raises(UnusualAttention, match="softcap"):
        packed_states(decoder, _tensors(PROMPTS), [[], []])


@pytest.mark.parametrize(
    "asked", [{"softcap": 30.0}, {"unheard_of": 1}, {"attention_mask": torch.zeros(1, 1, 1, 1)}]
)
def test_an_attention_that_asks_for_more_than_groups_takes_two_passes(
    trained: Any, monkeypatch: pytest.MonkeyPatch, asked: dict[str, Any]
) -> None:
    """Such as Doge, which makes a mask of its own whatever the attention is called."""
    decoder = _decoder(trained)
    kind = type(decoder.layers[0].self_attn)
    attend = kind.forward

    def asks(self: Any, *args: Any, **given: Any) -> Any:
        packing = self.config._attn_implementation == "iterpo_packed_attention"
        return attend(self, *args, **(given | asked if packing else given))

    monkeypatch.setattr(kind, "forward", asks)
    with pytest.raises(UnusualAttention):
        packed_states(decoder, _tensors(PROMPTS), [[], []])
    prompt, after = torch.tensor([PROMPTS[1]]), torch.tensor([[20, 21], [22, 23]])
    rows = (prompt, torch.ones_like(prompt)), torch.tensor([0, 0]), after
    mask = torch.ones(2, 5, dtype=torch.long)
    assert torch.equal(states_behind(decoder, *rows, mask), two_passes(decoder, *rows, mask))
    assert decoder.config._attn_implementation == "sdpa"


def test_models_whose_attention_is_their_own_take_two_passes(
    trained: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = _decoder(trained)
    assert plain_attention(decoder)
    capped = SimpleNamespace(attn_logit_softcapping=50.0, _attn_implementation="sdpa")
    assert not plain_attention(SimpleNamespace(config=capped, _supports_attention_backend=True))
    monkeypatch.setattr(type(decoder), "_supports_attention_backend", False)
    assert not plain_attention(decoder)
    monkeypatch.delattr(shared_prefix, "_packed")  # must not be needed
    one = torch.ones(1, 2, dtype=torch.long)
    found = shared_prefix.states_behind(
        decoder, (one, one), torch.tensor([0]), one, torch.ones(1, 4, dtype=torch.long)
    )
    assert found.shape[:2] == (1, 3)


def test_folding_changes_no_output_and_no_gradient(trained: Any) -> None:
    decoder = _decoder(trained)
    ids = torch.arange(5, 45)[None]
    plain = decoder(input_ids=ids, use_cache=False).last_hidden_state
    with folded(decoder):
        once = decoder(input_ids=ids, use_cache=False).last_hidden_state
        again = decoder(input_ids=ids, use_cache=False).last_hidden_state
    assert not torch.equal(once, plain)  # it did take the other way
    assert torch.equal(once, again)
    torch.testing.assert_close(once, plain, rtol=1e-4, atol=1e-5)
    for a, b in zip(_gradients(trained, once), _gradients(trained, plain), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5 * float(b.abs().max()))


@pytest.mark.parametrize("case", ["few", "bfloat16", "dropout", "disabled", "large", "autocast"])
def test_folding_leaves_alone_what_it_does_not_fit(
    tiny_policy: PolicyRef, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    backbone = load(
        tiny_policy, device="cpu", dtype="bfloat16" if case == "bfloat16" else "float32"
    )
    model = _train(backbone, LoraSpec(r=4, alpha=8, dropout=0.5 if case == "dropout" else 0.0))
    decoder, tokens = _decoder(model), 4 if case == "few" else 40
    if case == "large":
        monkeypatch.setattr(lora_sum, "_MOST", 1000)
    ids = torch.arange(5, 5 + tokens)[None]

    def states() -> Any:
        torch.manual_seed(0)
        with torch.autocast("cpu", torch.bfloat16, enabled=case == "autocast"):
            return decoder(input_ids=ids, use_cache=False).last_hidden_state

    def both() -> tuple[Tensor, Tensor]:
        plain = states()
        with folded(decoder):
            return plain, states()

    if case == "disabled":
        with model.disable_adapter():
            plain, found = both()
    else:
        plain, found = both()
    assert torch.equal(plain, found)


@pytest.mark.filterwarnings("ignore:.*lora_bias:UserWarning")  # peft, of merging
@pytest.mark.parametrize("case", ["dora", "bias", "merged", "two", "no-memory", "plain"])
def test_layers_that_are_more_than_one_sum_come_out_as_they_are(
    tiny_policy: PolicyRef, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    backbone = load(tiny_policy, device="cpu")
    model = _train(backbone, LoraSpec(r=4, alpha=8)).eval()
    more = {"dora": {"use_dora": True}, "bias": {"lora_bias": True}}.get(case, {})
    if more or case == "two":
        config = LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False, **more)
        model.add_adapter("other", config)
        model.base_model.set_adapter(["default", "other"] if case == "two" else "other")
    if case == "bias":
        for name, parameter in model.named_parameters():
            if name.endswith("lora_B.other.bias"):
                torch.nn.init.ones_(parameter)
    if case == "merged":
        model.merge_adapter()
    if case == "no-memory":
        monkeypatch.setattr(lora_sum, "_MOST", 0)
    decoder, ids = _decoder(model), torch.arange(5, 45)[None]
    found = []
    for way in (nullcontext, plain_layers, folded):
        with torch.no_grad(), way(*([] if way is nullcontext else [decoder])):
            if way is plain_layers:
                kinds = {type(m).__name__ for m in decoder.modules()}
                assert ("_Beside" in kinds) == (case == "no-memory")
                assert (Linear in map(type, decoder.modules())) == (
                    case not in ("plain", "no-memory")
                )
            found.append(decoder(input_ids=ids, use_cache=False).last_hidden_state)
    with torch.no_grad(), model.disable_adapter():
        base = decoder(input_ids=ids, use_cache=False).last_hidden_state
    assert float((found[0] - base).abs().max()) > 1e-2  # the adapter matters
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-4, atol=1e-5)
