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
from iterpo.errors import ConfigError, ContextOverflowError, TemplateError
from iterpo.experiments import preflight as module
from iterpo.experiments.events import ignore
from iterpo.experiments.plan import Plan, load_plan
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
