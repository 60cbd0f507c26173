"""Who sits where: texts and plans become agents at a table, and nobody sits in a wrong seat."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from typing import Any

import pytest

from iterpo import environments
from iterpo.agents.base import Agent, Reply, Seat
from iterpo.agents.endpoint import EndpointConfig
from iterpo.collect import collect, seats
from iterpo.domain import (
    Conversation,
    Ending,
    PolicyRef,
    Role,
    Sampling,
    Split,
    View,
    discounted_return,
)
from iterpo.environments.base import Environment
from iterpo.errors import ConfigError, UnknownNameError
from iterpo.experiments.plan import PartnerPlan
from iterpo.experiments.speakers import (
    Local,
    Scripted,
    Seating,
    Served,
    Speaker,
    Yardstick,
    is_nano,
    partner_of,
    read_speaker,
    seat,
    speaker_name,
)
from iterpo.models import hub, opening
from iterpo.testing.chat_server import Asked, ChatServer
from iterpo.testing.tiny_model import tiny_model

SAMPLING = Sampling(temperature=0.5, max_new_tokens=4)
URL = "http://localhost:8000/v1"


@pytest.fixture(scope="module")
def game() -> Environment:
    return environments.make("ultimatum", prompt_style="compact")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> PolicyRef:
    folder = tiny_model(tmp_path_factory.mktemp("tiny"), max_position_embeddings=2048)
    return hub.base_policy(str(folder))


def play(seating: Seating, n: int = 4) -> tuple[Conversation, ...]:
    kernels = seating.table.environment.scenarios(Split.TRAIN, n)
    places = seats(kernels, 1, round=seating.round, seed=1)
    return collect(seating.table, places, attempts=1, j_star=seating.j_star)


@pytest.mark.parametrize(
    ("spec", "speaker"),
    [
        ("scripted", Scripted()),
        ("oracle", Yardstick("oracle")),
        ("first-counter", Yardstick("first-counter")),
        ("random-offer", Yardstick("random-offer")),
        (f"{URL}#qwen", Served(EndpointConfig(URL, "qwen"), SAMPLING)),
        (
            "HTTPS://h.example/v1#org/model#2",
            Served(EndpointConfig("HTTPS://h.example/v1", "org/model#2"), SAMPLING),
        ),
        ("nano", Local(hub.base_policy("nano"), SAMPLING)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_text_names_a_speaker(spec: str, speaker: Speaker) -> None:
    assert read_speaker(spec, SAMPLING) == speaker


def test_a_folder_names_the_policy_in_it(tiny: PolicyRef) -> None:
    speaker = read_speaker(tiny.base_model, SAMPLING)
    assert isinstance(speaker, Local)
    assert speaker.policy.base_sha256 == tiny.base_sha256


@pytest.mark.parametrize(
    ("spec", "error", "part"),
    [
        ("orcale", UnknownNameError, "first-counter"),
        ("", UnknownNameError, "scripted"),
        (URL, ConfigError, "URL#MODEL"),
        (f"{URL}#", ConfigError, "URL#MODEL"),
        ("http://me:sesame@h/v1#qwen", ConfigError, "api_key_env"),
        ("http://h/v1/chat/completions#qwen", ConfigError, "leave out"),
    ],
)
def test_a_text_that_names_nobody_says_what_would(
    spec: str, error: type[Exception], part: str
) -> None:
    with pytest.raises(error, match=part) as caught:
        read_speaker(spec, SAMPLING)
    assert "sesame" not in str(caught.value)


def test_plans_describe_the_same_partners(tiny: PolicyRef) -> None:
    server = EndpointConfig(URL, "qwen", retries=0)
    assert partner_of(PartnerPlan(seed=3)) == Scripted(3)
    assert partner_of(
        PartnerPlan(
            "local", model=tiny.base_model, dtype="float32", device="cpu", sampling=SAMPLING
        )
    ) == Local(tiny, SAMPLING, "float32", "cpu")
    served = PartnerPlan("endpoint", endpoint=server, sampling=SAMPLING)
    assert partner_of(served) == Served(server, SAMPLING)


MISPLACED: dict[str, tuple[Speaker, Speaker, str]] = {
    "a scripted agent": (Scripted(), Scripted(), "agent can't be 'scripted'"),
    "a yardstick as partner": (
        Yardstick("first-counter"),
        Yardstick("random-offer"),
        "partner can't be 'random-offer'",
    ),
    "an oracle without a mind to read": (
        Yardstick("oracle"),
        Served(EndpointConfig(URL, "m")),
        "scripted partner's mind",
    ),
}


@pytest.mark.parametrize("case", MISPLACED, ids=list(MISPLACED))
def test_nobody_sits_in_a_wrong_seat(game: Environment, case: str) -> None:
    agent, partner, part = MISPLACED[case]
    with pytest.raises(ConfigError, match=part):
        seat(game, agent, partner)


def test_all_that_is_wrong_with_a_table_comes_at_once(game: Environment) -> None:
    class Other:
        name = "other"

    with pytest.raises(ConfigError) as caught:
        seat(Other(), Yardstick("oracle"), Yardstick("oracle"))  # type: ignore[arg-type]
    mind, bargain, side = str(caught.value).splitlines()
    assert "mind" in mind
    assert "other offers no bargain()" in bargain
    assert "partner can't be 'oracle'" in side


def test_the_oracle_reads_the_very_partner_that_sits_there(game: Environment) -> None:
    for partner in (Scripted(), Scripted(seed=7)):
        for conversation in play(seat(game, Yardstick("oracle"), partner, gamma=0.8), n=20):
            value = discounted_return(conversation, 0.8, "agent_turn")
            assert value == pytest.approx(conversation.j_star["agent_turn"], abs=1e-9)
    other = play(seat(game, Yardstick("oracle"), Scripted(7)), n=20)
    plain = play(seat(game, Yardstick("oracle"), Scripted()), n=20)
    assert [c.j_star for c in other] != [c.j_star for c in plain], "the seed is the partner's"


def test_a_bound_is_told_with_the_scripted_partner_only(game: Environment, tiny: PolicyRef) -> None:
    local = Local(tiny, SAMPLING)
    with_bound = seat(game, local, Scripted(), gamma=0.7)
    kernel = game.scenarios(Split.TRAIN, 1)[0]
    assert with_bound.j_star is not None
    assert with_bound.j_star(kernel)["gamma"] == 0.7
    assert seat(game, local, local).j_star is None
    assert all(not c.j_star for c in play(seat(game, Yardstick("first-counter"), local)))


def test_self_play_loads_the_weights_once(
    game: Environment, tiny: PolicyRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[PolicyRef] = []
    plain = opening.load

    def counting(ref: PolicyRef, **settings: Any) -> object:
        loaded.append(ref)
        return plain(ref, **settings)

    monkeypatch.setattr(opening, "load", counting)
    played = play(seat(game, Local(tiny, SAMPLING), Local(tiny, Sampling(max_new_tokens=3))))
    assert loaded == [tiny]
    for conversation in played:
        assert conversation.outcome.ending.scored, conversation.outcome.detail
        for turn in conversation.turns[1:]:
            assert turn.sampled, "the partner's evidence is kept too"
            assert turn.sampled.sampling.max_new_tokens == (4 if turn.role is Role.AGENT else 3)
    seat(game, Local(tiny, SAMPLING), Local(hub.base_policy("nano"), SAMPLING))
    assert len(loaded) == 3


def test_two_models_play_each_other(game: Environment, tiny: PolicyRef) -> None:
    nano = Local(hub.base_policy("nano"), SAMPLING)
    played = play(seat(game, nano, Local(tiny, SAMPLING)))
    policies = {t.role: t.sampled.policy for c in played for t in c.turns if t.sampled}
    assert policies == {Role.AGENT: nano.policy.id, Role.PARTNER: tiny.id}
    assert {c.policy for c in played} == {nano.policy.id}


def test_a_served_partner_answers_with_its_key(
    game: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    def script(asked: Asked) -> str:
        return "Fine. \\boxed{AGREED: split=$40}"

    monkeypatch.setenv("SOME_KEY", "sk-0123456789")
    with ChatServer(script) as server:
        config = EndpointConfig(server.base_url, "m", api_key_env="SOME_KEY", retries=0)
        seating = seat(game, Yardstick("first-counter"), Served(config, SAMPLING))
        played = play(seating)
        assert {a.headers["authorization"] for a in server.asked} == {"Bearer sk-0123456789"}
        assert {a.body["temperature"] for a in server.asked} == {0.5}
    assert [c.outcome.ending for c in played] == [Ending.AGREED] * 4
    assert "sk-0123456789" not in repr((seating, played))


def test_whoever_is_a_factory_already_is_seated_as_it_is(game: Environment) -> None:
    class Refusing:
        def __call__(self, seat: Seat) -> Agent:
            return self

        async def reply(self, view: View) -> Reply:
            return Reply("\\boxed{NO DEAL}")

        def close(self) -> None:
            pass

    seating = seat(game, Refusing(), Scripted())
    assert [c.outcome.ending for c in play(seating)] == [Ending.REFUSED] * 4
    assert speaker_name(Refusing()) == ""


def test_policies_that_grew_from_nano_are_nano() -> None:
    nano = hub.base_policy("nano")
    grown = dataclasses.replace(nano, adapter="somewhere", adapter_sha256="0" * 64, round=2)
    assert is_nano(Local(nano))
    assert is_nano(Local(grown))
    assert not is_nano(Local(dataclasses.replace(nano, base_model="smollm2-135m")))
    assert not is_nano(Scripted())


def test_the_round_is_that_of_the_agents_policy(game: Environment, tiny: PolicyRef) -> None:
    assert seat(game, Yardstick("first-counter"), Local(tiny)).round == 0
    assert seat(game, Local(dataclasses.replace(tiny, round=2)), Scripted()).round == 2


def test_whoever_seats_no_local_model_needs_no_torch() -> None:
    code = (
        "import sys\n"
        "from iterpo import environments\n"
        "from iterpo.domain import Sampling\n"
        "from iterpo.experiments.speakers import read_speaker, seat\n"
        "game = environments.make('ultimatum')\n"
        "for agent, partner in (('oracle', 'scripted'), ('http://h/v1#a', 'http://h/v1#b')):\n"
        "    seat(game, read_speaker(agent, Sampling()), read_speaker(partner, Sampling()))\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("side", ["agent", "partner"])
def test_settings_that_nothing_can_be_drawn_with_are_refused_before_a_batch(
    game: Environment, side: str
) -> None:
    """Else every conversation of the batch would fail, each with the same words."""
    bad = Served(EndpointConfig(URL, "qwen"), Sampling(temperature=float("nan"), top_p=0))
    agent, partner = (bad, Scripted()) if side == "agent" else (Yardstick("first-counter"), bad)
    with pytest.raises(ConfigError) as caught:
        seat(game, agent, partner)
    assert str(caught.value).splitlines() == [
        "qwen: sampling.temperature: given nan; accepted: 0 (greedy), or 0.001 to 1000",
        "qwen: sampling.top_p: given 0; accepted: above 0, at most 1",
    ]
