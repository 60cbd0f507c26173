"""All that can be known before a run is checked before it, in one error."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")

from iterpo.artifacts import open_sealed
from iterpo.domain import Role, Scenario, Split, Turn, View
from iterpo.environments import make
from iterpo.errors import ConfigError, ContextOverflowError, EndpointError, TemplateError
from iterpo.experiments import preflight as module
from iterpo.experiments.events import ignore
from iterpo.experiments.plan import Plan, load_plan
from iterpo.testing.chat_server import Asked, ChatServer, Sent
from iterpo.testing.tiny_model import tiny_model


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("tiny"))  # reads 512 tokens


def plan(model: Path, **settings: Any) -> Plan:
    given = {"policy.model": model, "collect.scenarios": 3, "heldout.scenarios": 2} | settings
    return load_plan("smoke", [f"{key}={json.dumps(str(v) if isinstance(v, Path) else v)}"
                               for key, v in given.items()])  # fmt: skip


def check(given: Plan, folder: Path) -> None:
    module.preflight(folder, given, "preflight", ignore)


def test_what_will_be_played_is_drawn_once_and_kept(tiny: Path, tmp_path: Path) -> None:
    small = {"collect.sampling.max_new_tokens": 8, "improve.sampling.max_new_tokens": 8}
    check(plan(tiny, **small), tmp_path)
    drawn = json.loads((tmp_path / "preflight" / "kernels.json").read_text())
    assert [len(drawn[s.value]) for s in (Split.TRAIN, Split.HELDOUT)] == [3, 2]
    assert open_sealed(tmp_path / "preflight")["facts"]["policy"].startswith("r0-")


@pytest.mark.parametrize("section", ["collect", "improve"])
def test_a_conversation_that_may_not_fit_is_refused(
    tiny: Path, tmp_path: Path, section: str
) -> None:
    sizes = {f"{s}.sampling.max_new_tokens": 8 for s in ("collect", "improve")}
    sizes[f"{section}.sampling.max_new_tokens"] = 60 if section == "collect" else 480
    with pytest.raises(ContextOverflowError, match=r"ult-p100-r4-0 may need \d+ tokens.*compact"):
        check(plan(tiny, **sizes), tmp_path)


def test_the_longest_persona_must_fit_too(tiny: Path, tmp_path: Path) -> None:
    sizes = {f"{s}.sampling.max_new_tokens": 8 for s in ("collect", "improve")}
    check(plan(tiny, **sizes), tmp_path / "plain")
    full = {"environment.options": {"prompt_style": "full"}}
    explore = {"collect.explore.share": 0.5, "q.off_policy": "drop"}
    with pytest.raises(ContextOverflowError) as told:
        check(plan(tiny, **sizes, **full), tmp_path / "full")
    with pytest.raises(ContextOverflowError) as more:
        check(plan(tiny, **sizes, **full, **explore), tmp_path / "explored")
    plain, explored = (int(str(e.value).split("may need ")[1].split()[0]) for e in (told, more))
    assert explored > plain + 50


def test_all_that_is_wrong_comes_at_once(tmp_path: Path) -> None:
    bare = tiny_model(tmp_path / "bare", chat_template=None)
    wrong = plan(bare, **{"improve.grpo": {"epsilonn": 0.1}})
    with pytest.raises(ConfigError) as caught:
        check(wrong, tmp_path)
    text = str(caught.value)
    assert "2 things stand in the way" in text
    assert "epsilonn" in text
    assert "no chat template" in text
    assert not (tmp_path / "preflight").exists()


def test_a_model_without_chat_template_is_refused(tmp_path: Path) -> None:
    bare = tiny_model(tmp_path / "bare", chat_template=None)
    with pytest.raises(TemplateError, match="no chat template"):
        check(plan(bare), tmp_path)


def test_the_context_is_that_of_the_policys_own_view(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its prompt, reminder included, is what must fit; the partner's may be much shorter."""

    class Wordy:
        name = "wordy"

        def bargain(self, scenario: Scenario, seed: int = 0) -> None:
            """Enough for a scripted partner to sit down."""

        def scenarios(self, split: Split, n: int, data_seed: int = 42) -> tuple[Scenario, ...]:
            return tuple(Scenario(f"w{i}", "wordy", split, {}) for i in range(n))

        def opening(self, scenario: Scenario) -> Turn:
            return Turn(Role.AGENT, "hi", scripted=True)

        def view(self, scenario: Scenario, role: Role, turns: Sequence[Turn]) -> View:
            note = "remember this well " * 40 if role is Role.AGENT else None
            return View(role, "s", tuple(turns), note)

    monkeypatch.setattr(module.environments, "make", lambda *_, **__: Wordy())
    small = {"collect.sampling.max_new_tokens": 8, "improve.sampling.max_new_tokens": 8}
    with pytest.raises(ContextOverflowError, match="w0 may need"):
        check(plan(tiny, **small), tmp_path)


SMALL = {f"{s}.sampling.max_new_tokens": 8 for s in ("collect", "improve")}
MODEL = SMALL | {"partner.sampling.max_new_tokens": 8}


def test_a_local_partner_must_fit_its_own_model(tiny: Path, tmp_path: Path) -> None:
    local = {"partner.kind": "local", "partner.model": tiny}
    check(plan(tiny, **MODEL, **local), tmp_path)
    narrow = tiny_model(tmp_path / "narrow", max_position_embeddings=128)
    with pytest.raises(ContextOverflowError, match=r"'\S*narrow' reads 128"):
        check(plan(tiny, **MODEL, **local | {"partner.model": narrow}), tmp_path / "b")
    long = MODEL | {"partner.sampling.max_new_tokens": 80}
    with pytest.raises(ContextOverflowError, match="5 messages of 8 and 5 of 80"):
        check(plan(tiny, **long, **local), tmp_path / "c")


def test_a_partner_that_is_no_model_is_told_with_the_rest(tmp_path: Path) -> None:
    bare = tiny_model(tmp_path / "bare", chat_template=None)
    wrong = plan(bare, **{"partner.kind": "local", "partner.model": "nanoo"})
    with pytest.raises(ConfigError, match="2 things stand in the way") as caught:
        check(wrong, tmp_path)
    assert "nanoo" in str(caught.value)


def test_a_served_partner_is_asked_for_one_message(tiny: Path, tmp_path: Path) -> None:
    def served(model: str, url: str) -> Plan:
        endpoint = {"base_url": url, "model": model, "retries": 0}
        return plan(tiny, **MODEL, **{"partner.kind": "endpoint", "partner.endpoint": endpoint})

    def script(asked: Asked) -> Sent | str:
        return "Hello." if asked.body["model"] == "m" else Sent("no such model", 404)

    with ChatServer(script) as server:
        check(served("m", server.base_url), tmp_path)
        assert len(server.asked) == 1
        assert "Player" not in server.asked[0].body["messages"][0]["content"], "compact prompts"
        with pytest.raises(EndpointError, match="no such model"):
            check(served("n", server.base_url), tmp_path / "b")
        gone = server.base_url
    with pytest.raises(EndpointError, match="127"):
        check(served("m", gone), tmp_path / "c")
    assert not (tmp_path / "b" / "preflight").exists()


def test_a_game_without_a_scripted_partner_is_refused_unless_a_model_plays(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = make("ultimatum", prompt_style="compact")

    class Bare:
        name = "bare"
        scenarios, opening, view = real.scenarios, real.opening, real.view

    monkeypatch.setattr(module.environments, "make", lambda *_, **__: Bare())
    with pytest.raises(ConfigError, match=r"bare offers no bargain\(\)"):
        check(plan(tiny, **SMALL), tmp_path)
    check(plan(tiny, **MODEL, **{"partner.kind": "local", "partner.model": tiny}), tmp_path)
