"""Encoders: which hidden state stands for a text, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from iterpo.domain import Message, Response
from iterpo.errors import ModelError, UnknownNameError
from iterpo.models import hub
from iterpo.models.backbone import hidden_states, load
from iterpo.models.encoders import Encoder, check_encoder, load_encoder, policy_encoder, read
from iterpo.testing.tiny_encoder import tiny_encoder
from iterpo.testing.tiny_model import tiny_model

CPU = torch.device("cpu")
SAID = (Message("system", "Be brief."), Message("user", "hello"))


@pytest.fixture(scope="module")
def roberta(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_encoder(tmp_path_factory.mktemp("encoder"))


@pytest.fixture(scope="module")
def causal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("tiny"))


def alone(encoder: Encoder, ids: list[int]) -> torch.Tensor:
    """The states of one text, without any padding."""
    hidden: torch.Tensor = encoder.model(input_ids=torch.tensor([ids])).last_hidden_state
    return hidden[0].float()


@torch.no_grad()
def test_a_bidirectional_model_is_read_at_its_first_token(roberta: Path) -> None:
    encoder = load_encoder(str(roberta), CPU)
    encoder.model.eval()
    texts = [encoder.action_ids(Response(t)) for t in ("no", "a longer answer")]
    assert [ids[0] for ids in texts] == [0, 0]
    assert [ids[-1] for ids in texts] == [2, 2]
    found = read(encoder, encoder.model, texts)
    for ids, value in zip(texts, found, strict=True):
        torch.testing.assert_close(value, alone(encoder, ids)[0], atol=1e-5, rtol=1e-5)
    assert not torch.allclose(found[0], found[1])


@torch.no_grad()
def test_a_causal_model_is_read_at_its_last_real_token(causal: Path) -> None:
    """Pains 20 and 21: its pad token is its stop token, and rows are padded."""
    encoder = load_encoder(str(causal), CPU)
    encoder.model.eval()
    texts = [encoder.action_ids(Response(t)) for t in ("no", "a longer answer")]
    found = read(encoder, encoder.model, texts)
    for ids, value in zip(texts, found, strict=True):
        torch.testing.assert_close(value, alone(encoder, ids)[-1], atol=1e-5, rtol=1e-5)


def test_an_observation_loses_its_beginning_where_it_is_too_long(roberta: Path) -> None:
    encoder = load_encoder(str(roberta), CPU)
    assert encoder.longest == 62, "RoBERTa has no position for the ids up to that of padding"
    long = (Message("user", "x" * 100 + "the end"),)
    ids = encoder.observation_ids(long)
    assert len(ids) == 62
    assert (ids[0], ids[-1]) == (0, 2), "the tokens that frame a text stay"
    assert ids[-8:-1] == encoder.action_ids(Response("the end"))[1:-1]
    read(encoder, encoder.model, [ids])
    assert load_encoder(str(roberta), CPU, 10).longest == 10


@torch.no_grad()
def test_the_policy_as_encoder_is_a_copy_with_its_adapter(causal: Path) -> None:
    backbone = load(hub.base_policy(str(causal)))
    encoder = policy_encoder(backbone)
    encoder.model.eval()
    prompt = backbone.chat.prompt_ids(SAID)
    assert encoder.observation_ids(SAID) == prompt
    assert encoder.action_ids(Response("ok"))[-1] == backbone.chat.stop_ids[0]
    value = read(encoder, encoder.model, [prompt, prompt[:4]])[0]
    ids = torch.tensor([prompt])
    own = hidden_states(backbone, ids, torch.ones_like(ids))[0, -1]
    torch.testing.assert_close(value, own, atol=1e-5, rtol=1e-5)
    for parameter in encoder.model.parameters():
        parameter.add_(1.0)
    again = hidden_states(backbone, ids, torch.ones_like(ids))[0, -1]
    assert torch.equal(own, again), "what is trained is a copy"
    assert all(p.requires_grad for p in encoder.model.parameters())


def test_weights_train_in_float32_whatever_the_policy_has(causal: Path) -> None:
    backbone = load(hub.base_policy(str(causal)), dtype="bfloat16")
    encoder = policy_encoder(backbone)
    assert {p.dtype for p in encoder.model.parameters()} == {torch.float32}


def test_what_can_not_be_an_encoder_is_refused(roberta: Path, tmp_path: Path) -> None:
    check_encoder(str(roberta))
    with pytest.raises(UnknownNameError, match="no model 'roberta'"):
        check_encoder("roberta")
    broken = tiny_encoder(tmp_path / "t5")
    config = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps({"model_type": "t5"}))
    with pytest.raises(ModelError, match="'t5'; accepted: models with one stack"):
        check_encoder(str(broken))
    (broken / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 2}))
    with pytest.raises(ModelError, match="lacks 16 of its weights"):
        load_encoder(str(broken), CPU)
