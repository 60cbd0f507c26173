"""Critics: what they read of a transition, and that a stored one goes on as it was."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch

from iterpo.errors import ArtifactError
from iterpo.models.encoders import load_encoder
from iterpo.policy_evaluation.base import QConfig
from iterpo.policy_evaluation.critics import (
    HeadShape,
    backups,
    load_critics,
    on_encoder,
    on_features,
    save_critics,
)
from iterpo.policy_evaluation.iql import fit
from iterpo.policy_evaluation.iql_config import IqlConfig
from iterpo.policy_evaluation.transitions import transitions
from iterpo.testing.tiny_encoder import tiny_encoder

PLAIN = HeadShape(hidden=8, dropout=0.0, pooling="final", standardise=False)
CONFIG = IqlConfig(learning_rate=1e-3, batch_size=4, accumulation=2, epochs=2)


def rows_of(*conversations):
    return [row for c in conversations for row in transitions(c, 0.9)]


def last_state(backbone, ids):
    """The slow truth: one bare forward."""
    was, _ = backbone.model.training, backbone.model.eval()
    with torch.no_grad():
        hidden = backbone.model.model(torch.tensor([ids])).last_hidden_state
    backbone.model.train(was)
    return hidden[0, -1]


def test_one_pass_reads_states_and_responses_of_a_conversation(backbone, talk):
    rows = rows_of(talk(0, 4), talk(1, 2))[1:]  # the first state is not among the sampled ones
    ready = on_features(backbone, rows, QConfig(), PLAIN, seed=0)
    assert ready.facts == {"unreadable": 0, "forwards": 2}
    read, chat = ready.reader, backbone.chat
    for i, row in enumerate(rows):
        prompt = chat.prompt_ids(row.state.messages)
        said = [*prompt, *chat.response_token_ids(row.response)]
        then = prompt if row.following is None else chat.prompt_ids(row.following.state.messages)
        close = {"atol": 1e-5, "rtol": 0.0}
        torch.testing.assert_close(read.actions[i], last_state(backbone, said), **close)
        torch.testing.assert_close(read.states[read.now[i]], last_state(backbone, prompt), **close)
        torch.testing.assert_close(read.states[read.then[i]], last_state(backbone, then), **close)
    index = torch.tensor([2, 0])
    q, v = read.values(ready.critic, index)
    following = read.following(ready.critic, index)
    prompts = [chat.prompt_ids(rows[i].following.state.messages) for i in index.tolist() if i != 2]
    ahead = ready.critic.v.normalised(torch.stack([last_state(backbone, p) for p in prompts]))
    torch.testing.assert_close(following[1:], ahead, atol=1e-4, rtol=0)
    assert q.shape == v.shape == following.shape == (2, 2)
    assert not torch.allclose(q[:, 0], q[:, 1]), "the twins begin differently"


def test_a_response_without_tokens_is_left_out_and_counted(backbone, talk):
    from dataclasses import replace

    from iterpo.domain import Response

    rows = rows_of(talk(0, 3))
    rows[1] = replace(rows[1], response=Response("", ()))
    ready = on_features(backbone, rows, QConfig(), PLAIN, seed=0)
    assert ready.facts["unreadable"] == 1
    assert [row.state.t for row in ready.rows] == [1, 3]
    assert len(ready.reader.actions) == len(ready.reader.now) == len(ready.reader.then) == 2


def test_standardised_features_have_mean_0_and_spread_1(backbone, talk):
    ready = on_features(
        backbone, rows_of(talk(0, 4), talk(1, 4)), QConfig(), HeadShape(8, 0.0, "final", True), 0
    )
    head = ready.critic.q
    scaled = (ready.reader.actions - head.feature_mean) / head.feature_scale
    torch.testing.assert_close(scaled.mean(dim=0), torch.zeros(32), atol=1e-4, rtol=0)
    torch.testing.assert_close(scaled.std(dim=0, correction=0), torch.ones(32), atol=1e-4, rtol=0)
    assert torch.equal(ready.target.q.feature_mean, head.feature_mean)


@pytest.fixture(scope="module")
def roberta(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_encoder(tmp_path_factory.mktemp("encoder")))


def test_an_encoder_is_trained_with_what_reads_it(roberta, talk):
    rows = rows_of(talk(0, 3), talk(1, 2, reward=0.0))
    ready = on_encoder(load_encoder(roberta, torch.device("cpu"), 40), rows, seed=0)
    assert ready.facts["texts_at_limit"] == sum(
        len(ids) == 40 for ids in (*ready.reader.states, *ready.reader.actions)
    )
    assert ready.facts["texts_at_limit"] > 0
    before = copy.deepcopy(ready.critic)
    fit(ready.critic, ready.target, ready.reader, backups(rows), CONFIG)
    moved = {
        name
        for (name, old), new in zip(
            before.named_parameters(), ready.critic.parameters(), strict=True
        )
        if not torch.equal(old, new)
    }
    assert any(name.startswith("encoder.embeddings") for name in moved)
    assert any(name.startswith("q.1.4") for name in moved)
    assert any(name.startswith("v.0.0") for name in moved)


def test_observation_and_action_are_encoded_separately(roberta, talk):
    rows = rows_of(talk(0, 3))
    ready = on_encoder(load_encoder(roberta, torch.device("cpu")), rows, seed=0)
    critic, read = ready.critic.eval(), ready.reader
    with torch.no_grad():
        ahead = read.following(critic, torch.tensor([0, 1]))  # s' of one turn is s of the next
        torch.testing.assert_close(
            ahead, read.values(critic, torch.tensor([1, 2]))[1], atol=1e-5, rtol=0
        )
        for i in range(len(rows)):
            state, action = (
                critic.encoder(input_ids=torch.tensor([ids])).last_hidden_state[0, 0]
                for ids in (read.states[read.now[i]], read.actions[i])
            )
            q, v = read.values(critic, torch.tensor([i]))
            for twin in range(2):
                both = critic.q[twin](torch.cat([state, action]))
                torch.testing.assert_close(q[0, twin : twin + 1], both, atol=1e-5, rtol=0)
                torch.testing.assert_close(
                    v[0, twin : twin + 1], critic.v[twin](state), atol=1e-5, rtol=0
                )


def test_a_critic_goes_on_from_where_it_was_stored_target_and_all(backbone, talk, tmp_path: Path):
    rows = rows_of(talk(0, 4), talk(1, 3, reward=0.0))
    ready = on_features(backbone, rows, QConfig(), PLAIN, seed=0)
    fit(ready.critic, ready.target, ready.reader, backups(rows), CONFIG)
    save_critics(tmp_path, ready.critic, ready.target)
    fresh = on_features(backbone, rows, QConfig(), PLAIN, seed=1)
    load_critics(tmp_path, fresh.critic, fresh.target)
    for old, new in ((ready.critic, fresh.critic), (ready.target, fresh.target)):
        assert all(
            torch.equal(a, b)
            for a, b in zip(old.state_dict().values(), new.state_dict().values(), strict=True)
        )
    assert not torch.equal(fresh.critic.q.outer, fresh.target.q.outer)
    other = on_features(backbone, rows, QConfig(), HeadShape(9, 0.0, "final", False), seed=1)
    with pytest.raises(ArtifactError, match="no critic of this shape"):
        load_critics(tmp_path, other.critic, other.target)
