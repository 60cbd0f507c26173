from __future__ import annotations

from functools import wraps
from pathlib import Path

import numpy as np
import pytest
import torch

from iterpo.domain import Sampling
from iterpo.errors import ContextOverflowError, ModelError
from iterpo.models import generation, hub
from iterpo.models.backbone import Backbone, load
from iterpo.models.generation import generate
from iterpo.models.sampler import draw
from iterpo.testing.tiny_model import tiny_model

PROMPTS = [[267, 10, 11, 12], [267, 10], [267, 10, 11, 12], [267, *range(30, 60)]]
GREEDY = Sampling(temperature=0, max_new_tokens=16)


def reference(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Plain sorted top-k and top-p, in float64, after the temperature: (V,) probabilities."""
    probs = torch.softmax(logits.double() / sampling.temperature, -1)
    ranked, order = probs.sort(descending=True)
    if sampling.top_k:
        ranked[sampling.top_k :] = 0
        ranked = ranked / ranked.sum()
    keep = ranked.cumsum(0) - ranked < sampling.top_p
    out = torch.zeros_like(probs)
    out[order] = torch.where(keep, ranked, 0)
    return out / out.sum()


def forward(backbone: Backbone, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = backbone.model(input_ids=torch.tensor([ids])).logits[0].float()
    return logits


def greedy_by_transformers(tiny: Backbone, prompt: list[int], penalty: float) -> list[int]:
    """What transformers' own generate says, with every default overruled."""
    ids = tiny.model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        max_new_tokens=16,
        do_sample=False,
        repetition_penalty=penalty,
        temperature=1.0,
        pad_token_id=266,
    )
    found: list[int] = ids[0, len(prompt) :].tolist()
    return found


def test_pain_40_greedy_equals_transformers_and_no_checkpoint_default_leaks_in(
    tiny: Backbone,
) -> None:
    assert tiny.model.generation_config.repetition_penalty == 1.7  # what must not be applied
    ours = generate(tiny, PROMPTS, GREEDY, [0] * 4)
    for prompt, got in zip(PROMPTS, ours, strict=True):
        assert list(got.token_ids) == greedy_by_transformers(tiny, prompt, 1.0)
    penalised = generate(
        tiny, PROMPTS, Sampling(temperature=0, max_new_tokens=16, repetition_penalty=1.7), [0] * 4
    )
    assert [g.token_ids for g in penalised] != [g.token_ids for g in ours]


def test_an_asked_for_repetition_penalty_equals_transformers(tiny: Backbone) -> None:
    sampling = Sampling(temperature=0, max_new_tokens=16, repetition_penalty=1.7)
    ours = generate(tiny, PROMPTS, sampling, [0] * 4)
    for prompt, got in zip(PROMPTS, ours, strict=True):
        assert list(got.token_ids) == greedy_by_transformers(tiny, prompt, 1.7)


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(max_new_tokens=1),
        Sampling(temperature=0.7, top_p=0.9, max_new_tokens=1),
        Sampling(temperature=1.3, top_k=5, max_new_tokens=1),
        Sampling(temperature=1.0, top_k=40, top_p=0.6, max_new_tokens=1),
    ],
)
def test_sampled_frequencies_match_the_exact_distribution(
    tiny: Backbone, sampling: Sampling
) -> None:
    n, prompt = 4000, PROMPTS[0]
    ids = [g.token_ids[0] for g in generate(tiny, [prompt] * n, sampling, range(n))]
    exact = reference(forward(tiny, prompt)[-1], sampling).numpy()
    counts = np.bincount(ids, minlength=len(exact))
    assert counts[exact == 0].sum() == 0
    big = exact * n >= 5  # the usual validity bound of the test; the rest is pooled
    observed = np.append(counts[big], counts[~big].sum())
    expected = np.append(exact[big], exact[~big].sum()) * n
    observed, expected = observed[expected > 0], expected[expected > 0]
    chi2, dof = float(((observed - expected) ** 2 / expected).sum()), len(expected) - 1
    # Mean dof, variance 2 dof; seeds are fixed, so 4.5 standard deviations can't flicker.
    assert chi2 < dof + 4.5 * np.sqrt(2 * dof)


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(max_new_tokens=10),
        Sampling(temperature=0.7, top_p=0.9, max_new_tokens=10),
        Sampling(temperature=0.7, top_k=20, max_new_tokens=10),
    ],
)
def test_logprobs_match_a_plain_forward(tiny: Backbone, sampling: Sampling) -> None:
    for prompt, got in zip(PROMPTS, generate(tiny, PROMPTS, sampling, [1, 2, 3, 4]), strict=True):
        logits = forward(tiny, [*prompt, *got.token_ids])
        for j, (token, logprob) in enumerate(zip(got.token_ids, got.logprobs, strict=True)):
            exact = reference(logits[len(prompt) - 1 + j], sampling)
            # 1e-4: float32 sums in another order, through two layers.
            assert logprob == pytest.approx(float(exact[token].log()), abs=1e-4)


def test_the_nucleus_is_exact_when_it_needs_more_than_the_first_candidates() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = 0.3 * torch.randn(3, 5000, generator=generator)  # flat: about 4,000 ids in the nucleus
    logits[0, 17] = 12.0  # one row with a tiny nucleus beside flat ones
    sampling = Sampling(top_p=0.8)
    u = np.array([0.5, 0.3, 0.9999])
    got = draw(logits, sampling, u)
    for row in range(3):
        exact = reference(logits[row], sampling)
        cdf = exact.cumsum(0)
        assert int(got.ids[row]) == int((cdf <= u[row] * cdf[-1]).sum())
        assert float(got.logprobs[row]) == pytest.approx(float(exact[got.ids[row]].log()), abs=1e-4)


def test_pain_52_a_draw_depends_on_its_seed_not_on_its_batch(tiny: Backbone) -> None:
    sampling = Sampling(temperature=0.9, top_p=0.95, max_new_tokens=12)
    together = generate(tiny, PROMPTS, sampling, [7, 8, 9, 10])
    alone = [
        generate(tiny, [p], sampling, [s])[0] for p, s in zip(PROMPTS, [7, 8, 9, 10], strict=True)
    ]
    small = generate(tiny, PROMPTS, sampling, [7, 8, 9, 10], max_batch_tokens=1)
    for a, b, c in zip(together, alone, small, strict=True):
        assert a.token_ids == b.token_ids == c.token_ids
        # 1e-4: a batch's matrix products may sum in another order.
        assert a.logprobs == pytest.approx(b.logprobs, abs=1e-4)
    assert together == generate(tiny, PROMPTS, sampling, [7, 8, 9, 10])  # bit for bit
    other = generate(tiny, PROMPTS, sampling, [11, 12, 13, 14])
    assert together[0].token_ids != together[2].token_ids  # same prompt, other seed
    assert other[0].token_ids != together[0].token_ids


def test_identical_prompts_share_one_prefill(
    tiny: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes: list[tuple[int, ...]] = []
    plain = type(tiny.model).forward

    @wraps(plain)
    def spy(*args: object, input_ids: torch.Tensor, **given: object) -> object:
        shapes.append(tuple(input_ids.shape))
        return plain(*args, input_ids=input_ids, **given)

    monkeypatch.setattr(type(tiny.model), "forward", spy)
    generate(tiny, [PROMPTS[0]] * 8 + [PROMPTS[1]], Sampling(max_new_tokens=2), range(9))
    assert shapes == [(2, 4), (9, 1)]


def test_a_stop_token_ends_a_row_and_finished_rows_leave(tiny: Backbone) -> None:
    n = 64
    sampling = Sampling(temperature=1.5, max_new_tokens=40)
    results = generate(tiny, [PROMPTS[1]] * n, sampling, range(n))
    finishes = {g.finish for g in results}
    assert finishes == {"stop", "length"}
    for g in results:
        assert len(g.token_ids) == len(g.logprobs)
        assert (g.token_ids[-1] == 266) == (g.finish == "stop")
        assert 266 not in g.token_ids[:-1]
        assert g.finish == "stop" or len(g.token_ids) == 40


def test_pain_12_a_prompt_that_does_not_fit_is_refused_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny_model(tmp_path / "m", max_position_embeddings=20)
    backbone = load(hub.base_policy(str(folder)), device="cpu")
    monkeypatch.setattr(generation._Batch, "run", lambda _: pytest.fail("something ran"))
    with pytest.raises(ContextOverflowError, match=r"prompt 1 has 9 tokens.*makes 21.*holds 20"):
        generate(backbone, [[1], [1] * 9], Sampling(max_new_tokens=12), [0, 1])
    monkeypatch.undo()
    (exact,) = generate(backbone, [[1] * 8], Sampling(temperature=0, max_new_tokens=12), [0])
    assert len(exact.token_ids) <= 12


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=-1),
        Sampling(temperature=1e-300),
        Sampling(temperature=float("inf")),
        Sampling(temperature=float("nan")),
        Sampling(top_p=0),
        Sampling(top_p=1.5),
        Sampling(top_k=-1),
        Sampling(repetition_penalty=0),
        Sampling(max_new_tokens=0),
    ],
)
def test_senseless_settings_are_refused(tiny: Backbone, sampling: Sampling) -> None:
    with pytest.raises(ModelError, match="out of range"):
        generate(tiny, [[1]], sampling, [0])


def test_broken_weights_are_an_error_not_a_token(tiny: Backbone) -> None:
    tiny.model.get_decoder().norm.weight.data.fill_(float("nan"))
    with pytest.raises(ModelError, match="not finite"):
        generate(tiny, [[1]], GREEDY, [0])


def test_no_prompts_no_work(tiny: Backbone) -> None:
    assert generate(tiny, [], GREEDY, []) == []
    with pytest.raises(ModelError, match="seeds"):
        generate(tiny, [[1]], GREEDY, [])
    with pytest.raises(ModelError, match="empty prompt"):
        generate(tiny, [[]], GREEDY, [0])
