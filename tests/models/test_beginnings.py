"""Prompts that begin alike share a pass, and come out as if they had not."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from iterpo.domain import Sampling
from iterpo.models.backbone import Backbone
from iterpo.models.beginnings import beginnings, same_beginning
from iterpo.models.decoding import GroupedDecoder
from iterpo.models.generation import generate
from iterpo.models.prompt_pass import PromptPass

TALKS = st.lists(st.integers(0, 1), min_size=1, max_size=60)


@given(
    st.lists(TALKS, max_size=3),
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 60), TALKS), max_size=12),
)
def test_groups_share_what_they_are_said_to(
    roots: list[list[int]], tails: list[tuple[int, int, list[int]]]
) -> None:
    prompts = [roots[r][:cut] + tail for r, cut, tail in tails if r < len(roots)]
    seen: list[int] = []
    found = list(beginnings(prompts))
    # Of two that share much, one at least is grouped: else a pass for both would have paid.
    grouped = {i for _, members in found for i in members}
    for i, j in combinations(range(len(prompts)), 2):
        shared = min(same_beginning(prompts[i], prompts[j]), *(len(prompts[k]) - 1 for k in (i, j)))
        assert shared < 16 or grouped & {i, j}
    for n, members in found:
        assert len(members) > 1
        assert n >= 16
        assert {tuple(prompts[i][:n]) for i in members} == {tuple(prompts[members[0]][:n])}
        assert all(len(prompts[i]) > n for i in members)
        seen += members
    assert len(seen) == len(set(seen))


def test_a_longer_beginning_of_few_does_not_give_way_to_a_shorter_one_of_more() -> None:
    a, b = [1] * 60, [1] * 20
    prompts = [[*a, 5], [*a, 6], [*b, 7], [*b, 8]]
    assert list(beginnings(prompts)) == [(60, [0, 1]), (20, [2, 3])]
    assert list(beginnings([[*b, 5], [*b, 6], [*b, 7]])) == [(20, [0, 1, 2])]
    assert list(beginnings([[1] * 15 + [2], [1] * 15 + [3]])) == []


def test_prompts_that_begin_alike_are_exact_and_cost_one_beginning(
    adapted: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[int] = []
    plain = PromptPass.__init__

    def spy(self: PromptPass, prompts: Any, pasts: Any, device: torch.device) -> None:
        plain(self, prompts, pasts, device)
        ran.append(int((self.last + 1).sum()))

    monkeypatch.setattr(PromptPass, "__init__", spy)
    pasts_left: list[int] = []
    prefill = GroupedDecoder.prefill

    def prefilled(self: GroupedDecoder) -> torch.Tensor:
        logits = prefill(self)
        pasts_left.append(len(self.pasts))
        return logits

    monkeypatch.setattr(GroupedDecoder, "prefill", prefilled)
    root, other = list(range(3, 43)), list(range(90, 130))
    prompts = [[*root, 9, 8], [*root, 7], [*other, 5, 6], other, [*root, 9, 8], [44, 45]]
    sampling = Sampling(temperature=1.0, max_new_tokens=5)
    found = generate(adapted, prompts, sampling, range(6))
    assert pasts_left == [0]
    assert sum(ran) == (40 + 2 + 1) + (39 + 3 + 1) + 2
    for prompt, got, seed in zip(prompts, found, range(6), strict=True):
        ids = torch.tensor([prompt + list(got.token_ids)])
        with torch.no_grad():
            logits = adapted.model(input_ids=ids).logits[0, len(prompt) - 1 : -1]
        exact = logits.log_softmax(-1).gather(1, torch.tensor(got.token_ids)[:, None])[:, 0]
        assert got.logprobs == pytest.approx(exact.tolist(), abs=1e-4)
        (alone,) = generate(adapted, [prompt], sampling, [seed])
        assert alone.token_ids == got.token_ids
