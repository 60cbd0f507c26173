"""Features: the right token, whatever the padding, and one forward per conversation."""

from __future__ import annotations

import dataclasses
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from iterpo.domain import Response, decisions
from iterpo.errors import ContextOverflowError
from iterpo.models.chains import TokenRow, batches, chain_rows
from iterpo.models.padding import pad
from iterpo.policy_evaluation.features import extract, features

# One forward differs from another in the order of floating-point sums only.
CLOSE = {"atol": 1e-5, "rtol": 0.0}


def rows_of(*conversations):
    rows = [d for c in conversations for d in decisions(c, 0.9)]
    return [d.state for d in rows], [d.response for d in rows]


def one_by_one(backbone, states, responses):
    """The slow truth: a bare forward per pair, without padding or a mask."""
    out = []
    was, _ = backbone.model.training, backbone.model.eval()
    for state, response in zip(states, responses, strict=True):
        ids = backbone.chat.prompt_ids(state.messages) + backbone.chat.response_token_ids(response)
        with torch.no_grad():
            hidden = backbone.model.model(torch.tensor([ids])).last_hidden_state
        out.append(hidden[0, -1].float())
    backbone.model.train(was)
    return torch.stack(out)


def test_one_forward_per_conversation_equals_one_per_pair(backbone, talk):
    states, responses = rows_of(talk(0, 6), talk(1, 2), talk(2, 4))
    found = extract(backbone, states, responses)
    assert (found.rows, found.forwards) == (12, 3)
    torch.testing.assert_close(found.features, one_by_one(backbone, states, responses), **CLOSE)


def test_text_only_rows_are_chained_too(backbone, talk):
    states, responses = rows_of(talk(0, 4, text_only=True))
    found = extract(backbone, states, responses)
    assert found.forwards == 1
    torch.testing.assert_close(found.features, one_by_one(backbone, states, responses), **CLOSE)


def test_a_moving_reminder_is_detected_and_read_row_by_row(backbone, talk):
    states, responses = rows_of(talk(0, 4, reminder="[NOTE]"), talk(1, 3))
    found = extract(backbone, states, responses)
    assert found.forwards == 4 + 1
    truth = one_by_one(backbone, states, responses)
    torch.testing.assert_close(found.features, truth, **CLOSE)
    # Reading all of them from the last row's pass would have been wrong, not just different.
    ids = backbone.chat.prompt_ids(states[3].messages)
    with torch.no_grad():
        hidden = backbone.model.eval().model(torch.tensor([ids])).last_hidden_state[0]
    end = len(backbone.chat.prompt_ids(states[0].messages)) + len(responses[0].token_ids or ())
    assert (hidden[end - 1] - truth[0]).abs().max() > 1e-2


def test_a_template_that_rewrites_history_falls_back_per_row(make_backbone, talk):
    backbone = make_backbone()
    backbone.chat.flip_history = True
    states, responses = rows_of(talk(0, 3))
    found = extract(backbone, states, responses)
    assert found.forwards == 3
    torch.testing.assert_close(found.features, one_by_one(backbone, states, responses), **CLOSE)


def test_pain_20_padding_side_does_not_move_the_final_token(backbone, talk):
    states, responses = rows_of(talk(0, 5), talk(1, 1), talk(2, 3))
    right = extract(backbone, states, responses, padding="right").features
    left = extract(backbone, states, responses, padding="left").features
    alone = torch.cat(
        [features(backbone, [s], [r]) for s, r in zip(states, responses, strict=True)]
    )
    torch.testing.assert_close(left, right, **CLOSE)
    torch.testing.assert_close(alone, right, **CLOSE)


def test_pain_21_stop_tokens_inside_the_prompt_do_not_move_the_final_token(backbone, talk):
    states, responses = rows_of(talk(0, 3), talk(1, 5))
    prompts = [backbone.chat.prompt_ids(s.messages) for s in states]
    assert all(prompt.count(0) >= 2 for prompt in prompts), "the trap is not set"
    torch.testing.assert_close(
        features(backbone, states, responses), one_by_one(backbone, states, responses), **CLOSE
    )


def test_pain_22_batch_size_does_not_change_features(backbone, talk):
    states, responses = rows_of(*(talk(i, 1 + i % 5) for i in range(8)))
    single = features(backbone, states, responses, max_batch_tokens=1)
    packed = features(backbone, states, responses, max_batch_tokens=100_000)
    torch.testing.assert_close(single, packed, **CLOSE)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_pain_24_half_precision_hidden_states_are_cast_and_recorded(make_backbone, talk, dtype):
    states, responses = rows_of(talk(0, 3), talk(1, 2))
    found = extract(make_backbone(dtype), states, responses)
    assert found.features.dtype == torch.float32
    assert found.hidden_dtype == str(dtype).removeprefix("torch.")
    truth = features(make_backbone(), states, responses)
    # Eight bits of mantissa: about 1% of a hidden state of size 1 per layer.
    torch.testing.assert_close(found.features, truth, atol=0.1, rtol=0.0)


def test_the_backbone_is_read_without_dropout_and_left_as_it_was(backbone, talk):
    states, responses = rows_of(talk(0, 3))
    assert backbone.model.training
    first, second = (features(backbone, states, responses) for _ in range(2))
    assert torch.equal(first, second)
    assert not first.requires_grad
    assert backbone.model.training


def test_copies_of_a_row_tie_exactly_and_cost_one_forward(backbone, talk):
    states, responses = rows_of(talk(0, 1))
    other = Response("other", (60, 61, 0))
    found = extract(backbone, [states[0]] * 5, [*responses * 2, other, *responses * 2])
    assert found.forwards == 2
    assert torch.equal(found.features[0], found.features[4])
    assert not torch.allclose(found.features[0], found.features[2])


def test_samples_that_branch_off_a_logged_state_are_read_correctly(backbone, talk):
    states, responses = rows_of(talk(0, 3))
    branch = Response("another", (70, 71, 72, 0))
    all_states = [*states, states[1], states[0]]
    all_responses = [*responses, branch, branch]
    found = extract(backbone, all_states, all_responses)
    assert found.forwards == 3
    truth = one_by_one(backbone, all_states, all_responses)
    torch.testing.assert_close(found.features, truth, **CLOSE)


@pytest.mark.parametrize("pooling", ["final", "final_and_mean"])
@pytest.mark.parametrize("room", [8192, 150, 40])
def test_candidates_of_a_state_share_its_prompt(backbone, talk, pooling, room):
    states, _ = rows_of(talk(0, 3), talk(1, 2))
    rng = random.Random(0)
    all_states = [s for s in states for _ in range(6)]
    ids = [tuple(rng.randrange(5, 90) for _ in range(rng.randrange(1, 9))) for _ in all_states]
    ids = [(*spoken, 0) for spoken in ids]
    said = [Response("said", i) for i in ids]
    together = extract(backbone, all_states, said, pooling=pooling, max_batch_tokens=room)
    apart = [
        extract(backbone, [s], [r], pooling=pooling).features[0]
        for s, r in zip(all_states, said, strict=True)
    ]
    torch.testing.assert_close(together.features, torch.stack(apart), **CLOSE)
    prompts = [len(backbone.chat.prompt_ids(s.messages)) for s in states]
    assert together.tokens == sum(prompts) + sum(map(len, ids)), "each prompt once"


def test_a_prompt_is_not_shared_where_the_cache_forgets_part_of_it(backbone, talk, monkeypatch):
    monkeypatch.setattr("iterpo.policy_evaluation.features.keeps_prompts", lambda _: False)
    states, _ = rows_of(talk(0, 1))
    said = [Response("said", i) for i in ((60, 0), (61, 0))]
    found = extract(backbone, states * 2, said)
    assert found.tokens == 2 * (len(backbone.chat.prompt_ids(states[0].messages)) + 2)


def test_the_mean_over_the_response_is_appended(backbone, talk):
    states, responses = rows_of(talk(0, 2))
    both = features(backbone, states, responses, pooling="final_and_mean")
    prompt = backbone.chat.prompt_ids(states[0].messages)
    ids = prompt + backbone.chat.response_token_ids(responses[0])
    with torch.no_grad():
        hidden = backbone.model.eval().model(torch.tensor([ids])).last_hidden_state[0]
    torch.testing.assert_close(both[0, :32], hidden[-1], **CLOSE)
    torch.testing.assert_close(both[0, 32:], hidden[len(prompt) :].mean(dim=0), **CLOSE)


def test_a_response_without_tokens_has_no_features(backbone, talk):
    states, responses = rows_of(talk(0, 2))
    found = features(backbone, states, [Response("", ()), responses[1]])
    assert torch.isnan(found[0]).all()
    assert torch.isfinite(found[1]).all()


def test_what_does_not_fit_the_context_is_refused_by_name(make_backbone, talk):
    states, responses = rows_of(talk(0, 3))
    with pytest.raises(ContextOverflowError, match=r"turn 3 of conversation 'c0'.*holds 40"):
        features(make_backbone(context_length=40), states, responses)


def test_states_and_responses_must_pair_up(backbone, talk):
    states, responses = rows_of(talk(0, 2))
    with pytest.raises(ValueError, match="2 states but 1 responses"):
        features(backbone, states, responses[:1])


def test_padding_masks_what_is_padded():
    ids, mask = pad([[5, 6], [7]], "left")
    assert ids.tolist() == [[5, 6], [0, 7]]
    assert mask.tolist() == [[1, 1], [0, 1]]


tokens = st.lists(st.integers(0, 2), max_size=3)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.integers(1, 3), tokens, tokens.filter(len)), max_size=8
    )
)
def test_every_row_is_read_exactly_once_from_its_own_tokens(raw):
    rows = [TokenRow(*r) for r in raw]
    chains = chain_rows(rows)
    seen = [
        (row, chain.ids[: read.start], chain.ids[read.start : read.end])
        for chain in chains
        for read in chain.reads
        for row in read.rows
    ]
    assert sorted(i for i, _, _ in seen) == list(range(len(rows)))
    for i, prompt, response in seen:
        assert (prompt, response) == (rows[i].prompt, rows[i].response)
    assert sum(map(len, batches(chains, 12))) == len(chains)


def test_batches_depend_on_the_rows_alone(backbone, talk):
    conversations = [talk(i, 1 + i % 4) for i in range(6)]
    states, responses = rows_of(*conversations)
    back, forth = rows_of(*reversed(conversations))
    one, two = features(backbone, states, responses), features(backbone, back, forth)
    order = [back.index(s) for s in states]
    assert torch.equal(one, two[order])
    assert dataclasses.is_dataclass(states[0])
