"""Draws from large vocabularies, against the exact distribution in float64."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch

from iterpo.domain import Sampling
from iterpo.models.sampler import draw

SIZE = 4999  # above the bound for blocks, and no multiple of theirs


def exact(logits: torch.Tensor, top_p: float) -> npt.NDArray[np.float64]:
    """Probabilities (V,) after a plain, sorted nucleus."""
    mass = torch.softmax(logits.double(), -1)
    ranked, order = mass.sort(descending=True)
    ranked[ranked.cumsum(0) - ranked >= top_p] = 0
    out = torch.zeros_like(mass)
    out[order] = ranked
    found: npt.NDArray[np.float64] = (out / out.sum()).numpy()
    return found


@pytest.mark.parametrize("top_p", [1.0, 0.9])
def test_many_draws_have_the_exact_frequencies(top_p: float) -> None:
    generator = torch.Generator().manual_seed(1)
    row = 2.5 * torch.randn(SIZE, generator=generator)
    n = 40_000
    u = np.random.default_rng(5).random(n)
    sampling = Sampling(top_p=top_p)
    ids = np.concatenate(
        [draw(row.expand(len(part), -1), sampling, part).ids for part in np.split(u, 40)]
    )
    mass = exact(row, top_p)
    counts = np.bincount(ids, minlength=SIZE)
    assert counts[mass == 0].sum() == 0
    big = mass * n >= 5  # the usual validity bound of the test; the rest is pooled
    observed = np.append(counts[big], counts[~big].sum())
    expected = np.append(mass[big], mass[~big].sum()) * n
    observed, expected = observed[expected > 0], expected[expected > 0]
    chi2, dof = float(((observed - expected) ** 2 / expected).sum()), len(expected) - 1
    assert dof > 200
    # Mean dof, variance 2 dof; seeds are fixed, so 4.5 standard deviations can't flicker.
    assert chi2 < dof + 4.5 * np.sqrt(2 * dof)


@pytest.mark.parametrize("top_p", [1.0, 0.9])
def test_each_draw_is_the_inverse_of_the_cumulative_distribution(top_p: float) -> None:
    generator = torch.Generator().manual_seed(2)
    # Rows from nearly certain to nearly flat: some need few candidates, some very many.
    scale = torch.tensor([12.0, 6.0, 3.0, 1.0, 0.3])[:, None].repeat(20, 1)
    logits = scale * torch.randn(100, SIZE, generator=generator)
    u = np.random.default_rng(6).random(100)
    u[:10], u[10:20] = 0.0, np.nextafter(1.0, 0.0)
    got = draw(logits, Sampling(top_p=top_p), u)
    for row in range(100):
        mass = exact(logits[row], top_p)
        cdf = mass.cumsum()
        token = int(got.ids[row])
        assert mass[token] > 0
        # Within float32 rounding of the mass before and after the token.
        assert cdf[token] - mass[token] - 1e-6 <= u[row] <= cdf[token] + 1e-6
        assert float(got.logprobs[row]) == pytest.approx(np.log(mass[token]), abs=1e-4)


def test_a_row_draws_the_same_whatever_the_rows_beside_it_need() -> None:
    generator = torch.Generator().manual_seed(3)
    logits = torch.tensor([8.0, 0.3, 3.0])[:, None] * torch.randn(3, SIZE, generator=generator)
    u, sampling = np.array([0.4, 0.7, 0.9]), Sampling(temperature=0.8, top_p=0.95)
    together = draw(logits, sampling, u)
    for row in range(3):
        alone = draw(logits[row : row + 1], sampling, u[row : row + 1])
        assert int(alone.ids[0]) == int(together.ids[row])
        assert float(alone.logprobs[0]) == pytest.approx(float(together.logprobs[row]), abs=1e-5)
