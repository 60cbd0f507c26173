from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest

from iterpo.domain import Sampling, State
from iterpo.errors import ConfigError, UnknownNameError
from iterpo.models.lora import LoraSpec
from iterpo.policy_improvement.base import ImproveConfig
from iterpo.policy_improvement.single_turn import check_grpo_fields, improve, state_names


def test_the_defaults_are_the_recipe_that_held() -> None:
    """The paper's values are a preset, and tested with plans; these are both."""
    config = ImproveConfig()
    assert config.mistakes() == []
    assert (config.lora.r, config.lora.alpha) == (64, 64)
    assert (config.learning_rate, config.group_size, config.beta) == (1e-5, 8, 0.0)
    assert (config.kl_target, config.kl_stop, config.std_floor) == (2.0, None, 0.05)
    assert (config.sampling.temperature, config.sampling.top_p) == (1.0, 1.0)


def test_every_mistake_is_listed_at_once() -> None:
    config = ImproveConfig(
        group_size=1,
        learning_rate=-1,
        report_to="wandbb",
        sampling=Sampling(temperature=0.0, max_new_tokens=0),
        lora=LoraSpec(r=0, dropout=0.1),
    )
    text = "\n".join(config.mistakes())
    for name in ("group_size", "learning_rate", "report_to", "temperature", "max_new_tokens"):
        assert name in text
    assert "lora.dropout" in text
    assert "r and alpha" in text
    assert "wandb" in text


def test_pain_37_one_candidate_is_refused() -> None:
    (mistake,) = ImproveConfig(group_size=1).mistakes()
    assert "group_size is 1" in mistake
    assert ">= 2" in mistake


def test_pain_41_a_ratio_under_a_nucleus_is_refused() -> None:
    nucleus = Sampling(top_p=0.9)
    assert ImproveConfig(sampling=nucleus).mistakes() == []
    (mistake,) = ImproveConfig(sampling=nucleus, grpo={"num_iterations": 2}).mistakes()
    assert "num_iterations" in mistake


def test_an_unknown_operator_is_named() -> None:
    config = ImproveConfig(operator="grop")
    with pytest.raises(UnknownNameError, match=r"grop.*grpo"):
        improve(cast(Any, None), [], lambda s, r: [], config, workdir=Path("unused"))


def test_settings_need_no_torch() -> None:
    code = (
        "import sys, iterpo.policy_improvement.base, iterpo.policy_improvement.single_turn;"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.filterwarnings("ignore:.*is deprecated")  # the old names of fields stay usable
def test_every_field_of_grpo_config_is_reachable_or_names_our_option() -> None:
    from dataclasses import MISSING, fields

    from trl import GRPOConfig

    decided = []
    for f in fields(GRPOConfig):
        default = f.default if f.default is not MISSING else None
        with suppress(ConfigError):
            check_grpo_fields(ImproveConfig(grpo={f.name: default}))
            continue
        with pytest.raises(ConfigError, match=rf"grpo\.{f.name} is decided by"):
            check_grpo_fields(ImproveConfig(grpo={f.name: default}))
        decided.append(f.name)
    assert 20 < len(decided) < 50
    assert {"num_generations", "output_dir", "beta"} <= set(decided)


def test_unknown_fields_are_refused_all_at_once_with_suggestions() -> None:
    wrong = {"epsilon_hihg": 0.3, "num_generations": 4, "weight_decay": 0.1, "temprature": 1}
    with pytest.raises(ConfigError) as caught:
        check_grpo_fields(ImproveConfig(grpo=wrong))
    text = str(caught.value)
    assert "did you mean 'epsilon_high'" in text
    assert "grpo.num_generations is decided by" in text
    assert "group_size" in text
    assert "grpo.temprature" in text
    assert "weight_decay" not in text


def test_a_value_that_trl_refuses_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="sideways"):
        check_grpo_fields(ImproveConfig(grpo={"lr_scheduler_type": "sideways"}))


def test_a_setting_without_effect_is_refused() -> None:
    with pytest.raises(ConfigError, match="min_p only acts with"):
        check_grpo_fields(ImproveConfig(grpo={"min_p": 0.1}))


def test_pain_39_a_loss_that_depends_on_the_micro_batch_is_refused() -> None:
    fields = {"loss_type": "bnpo"}
    with pytest.raises(ConfigError, match=r"bnpo.*dapo"):
        check_grpo_fields(ImproveConfig(prompts_per_step=4, micro_batch=8, grpo=fields))
    check_grpo_fields(ImproveConfig(prompts_per_step=4, micro_batch=32, grpo=fields))


def test_a_tracker_that_is_not_installed_is_named_with_its_package() -> None:
    from importlib.util import find_spec

    from iterpo.errors import MissingExtraError

    if find_spec("mlflow") is not None:
        pytest.skip("mlflow is installed")
    with pytest.raises(MissingExtraError, match="pip install mlflow"):
        check_grpo_fields(ImproveConfig(report_to="mlflow"))


def test_pain_52_states_of_joined_logs_draw_candidates_of_their_own() -> None:
    """Seeds come from these names: two alike would give two states the same draws."""
    states = [State(c, "k", t, ()) for c, t in (("a", 1), ("a", 2), ("a", 1), ("b", 1), ("a", 1))]
    assert state_names(states) == ["a:1", "a:2", "a:1#2", "b:1", "a:1#3"]
