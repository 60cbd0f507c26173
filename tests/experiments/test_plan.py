"""Plans: presets equal the paper's tables, identity follows results, mistakes come all at once."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from iterpo import environments
from iterpo.config import canonical_yaml, dump
from iterpo.domain import Split
from iterpo.errors import ConfigError
from iterpo.experiments.plan import Plan, load_plan, preset_names

# Tables 2 and 3 of arXiv 2511.21638v3, row by row: (our key, the paper's value).
TABLE_2 = {
    "collect.scenarios": 100,  # Scenarios per round
    "collect.per_scenario": 4,  # Conversations per scenario (K)
    "collect.data_seed": 42,  # Data seed
    "collect.sampling.temperature": 0.7,
    "collect.sampling.top_p": 0.9,
    "improve.sampling.temperature": 0.7,  # "Generation" is shared by all stages
    "improve.sampling.top_p": 0.9,
    "improve.lora.r": 64,
    "improve.lora.alpha": 64,
}
TABLE_3 = {
    "rounds": 4,
    "q.gamma": 0.9,
    "q.backbone": "nf4",  # Policy LLM (frozen, 4-bit NF4)
    "q.hidden": 256,  # MLP (d -> 256 -> 1), ReLU, dropout 0.1
    "q.dropout": 0.1,
    "q.heads": 1,
    "q.pooling": "final",  # "applied to the final-token hidden state"
    "q.learning_rate": 1e-4,
    "q.epochs": 3,
    "q.batch_size": 8,
    "improve.learning_rate": 1e-5,
    "improve.epochs": 1,
    "improve.micro_batch": 8,  # Per-device batch size
    "improve.group_size": 8,  # Generations per prompt (G)
    "improve.beta": 0.0,  # KL penalty
}


def at(plan: Plan, key: str) -> Any:
    value: Any = dump(plan)
    for part in key.split("."):
        value = value[part]
    return value


@pytest.mark.parametrize(("key", "value"), [*TABLE_2.items(), *TABLE_3.items()])
def test_the_paper_preset_equals_the_papers_tables(key: str, value: Any) -> None:
    assert at(load_plan("paper"), key) == value


def test_the_paper_preset_steps_on_as_many_sequences_as_the_paper() -> None:
    plan = load_plan("paper").improve
    accumulation = plan.prompts_per_step * plan.group_size / plan.micro_batch
    assert accumulation == 8, "Table 3: gradient accumulation steps 8"
    assert plan.steps is None, "one epoch, not a fixed number of steps"


def test_the_paper_preset_plays_at_most_ten_messages_after_the_opening() -> None:
    plan = load_plan("paper")
    game: Any = environments.make(plan.environment.name, **plan.environment.options)
    assert game.limit(None) == 10, "Table 2: max turns per conversation"


def test_the_paper_preset_names_the_papers_model_and_method() -> None:
    plan = load_plan("paper")
    assert plan.policy.model == "Qwen/Qwen2.5-7B-Instruct"
    assert plan.method.name == "iterpo"
    assert plan.collect.kernels == "fixed"
    assert plan.q.refit_on_all
    assert not plan.q.shuffle_returns


# What the paper has nothing of: guards of ours, and how they read when they are off.
OUR_GUARDS = {
    "q.standardise": False,
    "q.clamp": False,
    "q.judge_fraction": 0.0,
    "q.pessimism": 0.0,
    "q.tune": None,
    "q.pool_rounds": 0,
    "improve.kl_target": None,
    "improve.kl_stop": None,
    "improve.std_floor": 0.0,
    "improve.entropy_bonus": 0.0,
    "improve.candidate_temperatures": [],
    "roll_back.enabled": False,
    "verdict.on_refused": "keep",
}


@pytest.mark.parametrize(("key", "value"), OUR_GUARDS.items())
def test_the_paper_preset_switches_our_guards_off(key: str, value: Any) -> None:
    assert at(load_plan("paper"), key) == value


# The recipe that held, where it departs from the paper: (our key, our default).
RECIPE = {
    "collect.sampling.temperature": 1.0,
    "collect.sampling.top_p": 1.0,
    "q.backbone": "shared",
    "q.pooling": "final_and_mean",
    "q.heads": 8,
    "q.standardise": True,
    "q.clamp": True,
    "q.learning_rate": 3e-4,
    "q.epochs": 8,
    "q.batch_size": 32,
    "q.judge_fraction": 0.25,
    "improve.sampling.temperature": 1.0,
    "improve.sampling.top_p": 1.0,
    "improve.micro_batch": 32,
    "improve.kl_target": 2.0,
    "improve.std_floor": 0.05,
}


def test_the_defaults_are_the_recipe_and_elsewhere_the_papers() -> None:
    for key, value in RECIPE.items():
        assert at(Plan(), key) == value, key
    for key, value in (TABLE_2 | TABLE_3 | OUR_GUARDS).items():
        if key in RECIPE:
            assert value != RECIPE[key], f"{key} is no departure"
        else:
            assert at(Plan(), key) == value, key


def test_all_presets_are_valid_and_playable() -> None:
    assert preset_names() == ("demo", "paper", "smoke")
    for name in preset_names():
        plan = load_plan(name)
        assert plan.name == name
        environments.make(plan.environment.name, **plan.environment.options)


def test_the_demo_is_the_recipe_with_a_step_for_a_small_model() -> None:
    plan = load_plan("demo")
    for key, value in RECIPE.items():
        assert at(plan, key) == value, key
    assert (plan.policy.model, plan.rounds, plan.environment.name) == ("nano", 2, "ultimatum")
    # Of a fresh adapter, which starts at zero effect; beyond the target it is held.
    assert plan.improve.learning_rate <= 4e-3
    assert plan.improve.steps is not None
    assert plan.improve.steps * plan.improve.prompts_per_step <= 512  # under three minutes
    assert plan.improve.kl_target is not None
    for sampling in (plan.collect.sampling, plan.improve.sampling):
        assert (sampling.temperature, sampling.top_p, sampling.top_k) == (1.0, 1.0, 0)
    game = environments.make("ultimatum", prompt_style="compact")
    train = game.scenarios(Split.TRAIN, plan.collect.scenarios)
    pairs = {(s.facts["pool"], s.facts["rounds"]) for s in train}
    assert len(pairs) == 12, "all training pairs of the game"
    assert plan.collect.scenarios % 12 == 0, "each pair equally often"


@pytest.mark.parametrize(
    "change",
    [
        "seed=1",
        "rounds=3",
        "environment.name=deal_or_no_deal",
        "environment.options.closing=unilateral",
        "partner.seed=1",
        "partner={kind: local, model: nano}",
        "partner={kind: endpoint, endpoint: {base_url: 'http://h/v1', model: m}}",
        "policy.model=x",
        "policy.dtype=bfloat16",
        "policy.threads=2",
        "method.name=st_grpo",
        "collect.sampling.top_k=5",
        "collect.concurrency=64",
        "collect.kernels=fresh",
        "q.gamma=0.5",
        "q.seed=1",
        "improve.beta=0.1",
        "improve.kl_target=null",
        "q.judge_fraction=0",
        "improve.grpo.epsilon=0.1",
        "heldout.scenarios=12",
        "stop_when_q_converged=0.1",
    ],
)
def test_identity_follows_whatever_changes_results(change: str) -> None:
    assert load_plan("demo", [change]).identity() != load_plan("demo").identity()


def test_exploration_follows_its_settings_and_not_their_order() -> None:
    drop = "q.off_policy=drop"
    traits = ("tone: {warm: 1, blunt: 2}", "pace: {late: 1}")
    ids = [
        load_plan("demo", [drop, *more]).identity()
        for more in (
            [],
            ["collect.explore.share=0.3"],
            ["collect.explore.share=0.4"],
            ["collect.explore.scope=action"],
            [f"collect.explore.traits={{{', '.join(traits)}}}"],
            [f"collect.explore.traits={{{', '.join(reversed(traits))}}}"],
        )
    ]
    assert len(set(ids)) == len(ids) - 1
    assert ids[-1] == ids[-2]


@pytest.mark.parametrize("method", ["mt_sft", "mt_kto", "mt_ppo"])
def test_a_plan_that_explores_needs_a_method_that_does_not_refuse_it(method: str) -> None:
    """Else the first update would refuse what was collected."""
    explores = [f"method.name={method}", "collect.explore.share=0.3", "q.off_policy=drop"]
    with pytest.raises(ConfigError, match=r"method\.options\.off_policy: given 'refuse'"):
        load_plan("demo", explores)
    load_plan("demo", [*explores, "method.options.off_policy=drop"])
    load_plan("demo", ["method.name=archer", *explores[1:]])


@pytest.mark.parametrize(
    ("setting", "nothing"),
    [("q.pool_rounds=1", "0"), ("stop_when_q_converged=0.1", "null")],
)
def test_what_only_a_q_can_use_is_refused_of_a_method_that_fits_none(
    setting: str, nothing: str
) -> None:
    name = setting.partition("=")[0]
    with pytest.raises(ConfigError, match=rf"{name}: given .* fits no Q; accepted: {nothing}"):
        load_plan("demo", [setting, "method.name=mt_sft"])
    load_plan("demo", [setting])


def test_a_plan_that_explores_needs_a_q_that_can_take_it() -> None:
    with pytest.raises(ConfigError, match=r"q\.off_policy: given 'refuse' .*accepted: drop"):
        load_plan("demo", ["collect.explore.share=0.3"])
    with pytest.raises(ConfigError, match=r"collect\.explore\.share.*below 1, since J"):
        load_plan("demo", ["collect.explore.share=1", "q.off_policy=drop"])
    with pytest.raises(ConfigError) as caught:
        load_plan("demo", ["collect.explore.traits.tone.loud=1", "q.off_policy=drop"])
    assert "1 mistake\n  collect.explore.traits: given tone.loud; accepted" in str(caught.value)
    plan = load_plan("demo", ["collect.explore.share=0.3", "q.off_policy=drop"])
    assert plan.collect.explore is not None
    assert plan.collect.explore.share == 0.3


NUCLEUS = "collect.sampling.top_p=0.9"
EXPLORED = ("collect.explore.share=0.3", "q.off_policy=weight")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ([*EXPLORED, NUCLEUS], r"q\.off_policy: given 'weight' .*never says some .*accepted: drop"),
        (["q.off_policy=weight", "collect.optimism.share=0.3"], "alone, whose choices have no"),
        ([*EXPLORED, "q.estimator=fitted_q"], "there is nothing to weigh; accepted: drop"),
        (["q.estimator=sarsa", "method.name=st_grpo"], r"q\.estimator: .*accepted with st_grpo"),
        (["q.estimator=sarsa", "q.gamma=0"], "'sarsa' with gamma 0"),
    ],
)
def test_a_q_that_could_not_be_corrected_is_refused(changes: list[str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        load_plan("demo", changes)


@pytest.mark.parametrize(
    "changes",
    [
        EXPLORED,
        [*EXPLORED, "q.estimator=sarsa"],
        ["collect.explore.share=0.3", "q.off_policy=drop", "q.estimator=fitted_q", NUCLEUS],
        ["rounds=2", "q.pool_rounds=1", "q.estimator=fitted_q", NUCLEUS],
    ],
)
def test_what_can_be_corrected_is_accepted(changes: list[str]) -> None:
    assert load_plan("demo", changes).q.passes >= 1


@pytest.mark.parametrize(
    ("setting", "without", "with_it"),
    [
        ("q.td_iterations=3", [], ["q.estimator=sarsa"]),
        ("q.td_responses=3", ["q.estimator=sarsa"], ["q.estimator=fitted_q"]),
        ("q.pool_min_ess=0.3", ["q.off_policy=drop"], ["q.off_policy=weight"]),
    ],
)
def test_settings_of_an_estimator_count_where_it_is_used(
    setting: str, without: list[str], with_it: list[str]
) -> None:
    for changes, counts in ((without, False), (with_it, True)):
        before, after = (load_plan("demo", x).identity() for x in (changes, [*changes, setting]))
        assert (before != after) is counts
    assert load_plan("demo", with_it).identity() != load_plan("demo", without).identity()


def test_presets_do_not_explore() -> None:
    assert all(load_plan(name).collect.explore is None for name in preset_names())


def test_st_grpo_counts_agent_turns() -> None:
    assert load_plan("demo", ["q.discount_unit=message"]).q.discount_unit == "message"
    with pytest.raises(ConfigError, match=r"q\.discount_unit.*st_grpo: agent_turn"):
        load_plan("demo", ["method.name=st_grpo", "q.discount_unit=message"])


@pytest.mark.parametrize(
    "change",
    [
        "name=other",
        "improve.report_to=tensorboard",
        "improve.checkpoint_every=5",
        "environment.options.data_dir=/elsewhere",
    ],
)
def test_identity_ignores_what_changes_no_result(change: str) -> None:
    assert load_plan("demo", [change]).identity() == load_plan("demo").identity()


SERVED = "partner={kind: endpoint, endpoint: {base_url: 'http://h/v1', model: m}}"


@pytest.mark.parametrize(
    "change",
    [
        "base_url=http://elsewhere/v1",
        "api_key_env=MY_KEY",
        "concurrency=2",
        "call_timeout_s=5",
        "conversation_timeout_s=5",
        "retries=0",
        "backoff_s=0",
        "proxy=http://proxy:3128",
    ],
)
def test_identity_ignores_where_and_how_patiently_a_partner_is_asked(change: str) -> None:
    moved = load_plan("demo", [SERVED, f"partner.endpoint.{change}"])
    assert moved != load_plan("demo", [SERVED])
    assert moved.identity() == load_plan("demo", [SERVED]).identity()


@pytest.mark.parametrize(
    "change",
    ["endpoint.model=n", "endpoint.extra_body.seed=null", "sampling.top_k=5"],
)
def test_identity_follows_which_partner_is_asked_and_how(change: str) -> None:
    assert (
        load_plan("demo", [SERVED, f"partner.{change}"]).identity()
        != load_plan("demo", [SERVED]).identity()
    )


PARTNERS = {
    "a model for a scripted partner": (
        "{model: nano, seed: -1}",
        ["partner.model: given with kind scripted", "partner.seed: given -1"],
    ),
    "a local partner without a model": (
        "{kind: local, seed: 2, sampling: {top_p: 0, temperature: -1}}",
        [
            "partner.model: given null with kind local; accepted: a model",
            "partner.sampling.temperature: given -1",
            "partner.sampling.top_p: given 0",
            "partner.seed: given with kind local",
        ],
    ),
    "an endpoint without an address": (
        "{kind: endpoint, endpoint: {model: m}}",
        ["partner.endpoint.base_url: required"],
    ),
    "an endpoint without all": (
        "{kind: endpoint, model: m, dtype: float32}",
        [
            "partner.endpoint: given null with kind endpoint; accepted: a mapping",
            "partner.model: given with kind endpoint, which does not look at it; "
            "accepted: endpoint, sampling",
            "partner.dtype: given with kind endpoint",
        ],
    ),
    "an endpoint at nowhere": (
        "{kind: endpoint, endpoint: {base_url: 'ftp://h', model: m, retries: -1}}",
        ["partner.endpoint.base_url: 'ftp://h'; accepted", "partner.endpoint.retries: -1"],
    ),
    "somebody else": ("{kind: human}", ["partner.kind: given"]),
}


@pytest.mark.parametrize("case", PARTNERS, ids=list(PARTNERS))
def test_all_mistakes_about_a_partner_come_at_once(case: str) -> None:
    partner, starts = PARTNERS[case]
    with pytest.raises(ConfigError) as caught:
        load_plan("demo", [f"partner={partner}"])
    lines = [line.strip() for line in str(caught.value).splitlines()[1:]]
    assert len(lines) == len(starts), lines
    for start in starts:
        assert any(line.startswith(start) for line in lines), (start, lines)


def test_identity_is_stable_across_processes_and_spellings(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text("seed: 0\nimprove: {learning_rate: 0.00001}\ncollect: {}\n")
    assert load_plan(path).identity() == Plan().identity()
    code = "from iterpo.experiments.plan import Plan; print(Plan().identity(), end='')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == Plan().identity()


def test_a_stored_plan_reads_back_as_the_same_plan(tmp_path: Path) -> None:
    plan = load_plan("demo", ["improve.grpo.epsilon=1e-3", "environment.options.note=no"])
    path = tmp_path / "plan.yaml"
    path.write_text(canonical_yaml(plan))
    assert load_plan(path) == plan
    assert load_plan(str(path), []).identity() == plan.identity()


def test_all_sections_report_their_mistakes_in_one_error() -> None:
    wrong = {
        "rounds=0": "rounds: given 0",
        "seed=-1": "seed: given -1",
        "name=a/b": "name: given 'a/b'",
        "stop_when_q_converged=-1": "stop_when_q_converged: given -1",
        "policy.threads=0": "policy.threads: given 0",
        "policy.dtype=float64": "policy.dtype: given",
        "partner.kind=human": "partner.kind: given",
        "method.name=itterpo": "method.name: there is no method 'itterpo'",
        "collect.per_scenario=0": "collect.per_scenario: given 0",
        "collect.sampling.top_p=0": "collect.sampling.top_p: given 0",
        "collect.sampling.topp=1": "collect.sampling.topp: unknown key",
        "q.gamma=2": "q.gamma: given 2",
        "q.heads=0": "q.heads: given 0",
        "improve.group_size=1": "improve.group_size is 1",
        "improve.lr=1": "improve.lr: unknown key",
        "heldout.scenarios=none": "heldout.scenarios: given",
        "colect.scenarios=5": "colect: unknown key",
    }
    with pytest.raises(ConfigError) as caught:
        load_plan("demo", list(wrong))
    lines = [line.strip() for line in str(caught.value).splitlines()[1:]]
    for start in wrong.values():
        assert any(line.startswith(start) for line in lines), (start, lines)
    assert len(lines) == len(wrong), lines


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        (["collect.scenarios=1", "collect.per_scenario=1"], "q.holdout_fraction"),
        (["collect.scenarios=1", "q.split_by=kernel"], "q.holdout_fraction"),
        (["rounds=1", "stop_when_q_converged=0.1"], "stop_when_q_converged"),
    ],
)
def test_sections_are_checked_against_each_other(settings: list[str], key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        load_plan("demo", settings)
    load_plan("demo", ["collect.scenarios=1", "collect.per_scenario=1", "q.holdout_fraction=0"])


def test_a_name_that_is_no_file_and_no_preset_lists_the_presets() -> None:
    with pytest.raises(ConfigError, match="demo, paper, smoke"):
        load_plan("papr")


def test_a_file_named_like_a_preset_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo").write_text("name: mine\n")
    assert load_plan("demo").name == "mine"


def test_plans_are_values() -> None:
    plan = load_plan("smoke")
    assert replace(plan, seed=plan.seed) == plan
    with pytest.raises(AttributeError):
        plan.seed = 2  # type: ignore[misc]


def test_reading_a_plan_leaves_torch_alone() -> None:
    code = (
        "import sys; from iterpo.experiments.plan import load_plan; load_plan('paper');"
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_seed_of_a_run_follows_from_its_own_and_the_round() -> None:
    plan = load_plan("smoke")
    seeds = {
        config.seed
        for p in (plan, replace(plan, seed=1))
        for i in range(3)
        for config in p.operators_of_round(i)
    }
    assert len(seeds) == 12, "no two phases share a stream"
    assert max(seeds) < 2**32, "numpy takes no more"
    q, improve = plan.operators_of_round(0)
    assert replace(q, seed=plan.q.seed) == plan.q
    assert replace(improve, seed=plan.improve.seed) == plan.improve
