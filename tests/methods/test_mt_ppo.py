"""MT-PPO as a method: from a log to the next policy, resumed, checked early, and able to learn."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest

from iterpo import artifacts
from iterpo.domain import (
    Conversation,
    Ending,
    Outcome,
    PolicyRef,
    Role,
    Sampled,
    Sampling,
    Turn,
)
from iterpo.errors import ConfigError
from iterpo.experiments.plan import load_plan
from iterpo.methods import RoundBatch, make
from iterpo.methods.workspace import FolderWorkspace, Settings
from iterpo.models.backbone import Backbone, load
from iterpo.models.generation import generate
from iterpo.models.hub import base_policy
from iterpo.models.lora import LoraSpec
from iterpo.policy_evaluation.base import QConfig
from iterpo.policy_improvement.base import ImproveConfig
from methods.conftest import IMPROVE
from policy_improvement.tiny import write_model

OPTIONS = {"learning_rate": 1e-2, "value_learning_rate": 1e-2, "gradient_accumulation": 4}


def test_it_learns_from_none_of_the_conversations_that_are_for_the_judge(
    policy: PolicyRef, batch: RoundBatch, tmp_path: Path
) -> None:
    many = tuple(
        replace(c, id=f"{i}/{c.id}", kernel_id=f"{i}", system=f"be {i}")
        for i in range(5)
        for c in batch.conversations
    )
    all_of_them = replace(batch, conversations=many)
    space = FolderWorkspace(tmp_path, Settings(QConfig(judge_fraction=0.25), IMPROVE))
    own = space.own(all_of_them)
    assert len(own) < len(many)
    make("mt_ppo", {**OPTIONS, "epochs": 1}).update(policy, all_of_them, space)
    facts = artifacts.open_sealed(tmp_path / "value", "value")["facts"]
    assert facts["conversations"] == len(own)


def test_the_discount_is_that_of_the_plan(
    policy: PolicyRef, batch: RoundBatch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, object] = {}
    monkeypatch.setattr("iterpo.methods.mt_ppo.learner", lambda *_, **more: asked.update(more))
    space = FolderWorkspace(
        tmp_path, Settings(QConfig(gamma=0.5, discount_unit="message"), IMPROVE)
    )
    monkeypatch.setattr(FolderWorkspace, "learn", lambda *_: policy)
    make("mt_ppo", OPTIONS).update(policy, batch, space)
    assert asked == {"gamma": 0.5, "unit": "message"}
    with pytest.raises(ConfigError, match=r"method\.options\.gamma: unknown key"):
        load_plan("smoke", ["method={name: mt_ppo, options: {gamma: 0.5}}"])


def test_mistakes_in_its_options_are_mistakes_of_the_plan() -> None:
    options = "{clip: 0, lam: 2, epochs: 0, learning_rat: 1}"
    with pytest.raises(ConfigError) as caught:
        load_plan("smoke", [f"method={{name: mt_ppo, options: {options}}}"])
    for named in ("clip", "lam", "epochs", "learning_rat"):
        assert f"method.options.{named}" in str(caught.value)
    plan = load_plan("smoke", ["method={name: mt_ppo, options: {clip: 0.1}}"])
    assert plan.identity() != load_plan("smoke", ["method.name=mt_ppo"]).identity()


# A dialogue with two states. The first word moves the partner to w1 or, if its number is odd, to
# w2. Behind w1 one word in four ends well, behind w2 every other one; nothing else is rewarded.
DRAW = Sampling(max_new_tokens=1)
GOOD = {"w1": lambda said: said % 4 == 0, "w2": lambda said: said % 2 == 1}


def played(backbone: Backbone, n: int, round_: int) -> tuple[Conversation, ...]:
    turns: list[list[Turn]] = [[Turn(Role.PARTNER, "w0")] for _ in range(n)]
    said = [0] * n
    for t in range(2):
        prompts = []
        for own in turns:
            if t:
                own.append(Turn(Role.PARTNER, "w2" if said[len(prompts)] % 2 else "w1"))
            view = Conversation("", "", "", tuple(own), Outcome(Ending.AGREED, 0.0), "w3")
            prompts.append(backbone.chat.prompt_ids(view.agent_view(len(own)).messages()))
        seeds = [1000 * round_ + 2 * i + t for i in range(n)]
        for i, got in enumerate(generate(backbone, prompts, DRAW, seeds)):
            how = Sampled(got.token_ids, got.logprobs, DRAW, "", len(prompts[i]), "p", got.finish)
            turns[i].append(Turn(Role.AGENT, backbone.chat.decode(got.token_ids), sampled=how))
            said[i] = got.token_ids[0]
    return tuple(
        Conversation(
            f"{round_}/{i}",
            f"{i}",
            "toy",
            tuple(own),
            Outcome(Ending.AGREED, float(GOOD[own[2].text](said[i])), closing_message=3),
            "w3",
        )
        for i, own in enumerate(turns)
    )


def rewards(talks: Sequence[Conversation]) -> list[float]:
    return [c.outcome.reward or 0.0 for c in talks]


@pytest.mark.slow
def test_pain_55_it_solves_a_dialogue_of_two_states_and_shuffled_rewards_teach_nothing(
    tmp_path: Path,
) -> None:
    (tmp_path / "model").mkdir()
    write_model(tmp_path / "model")
    options = {"learning_rate": 2e-2, "batch_size": 16, "gradient_accumulation": 1, "epochs": 2}
    options |= {"value_learning_rate": 3e-2, "value_passes": 4, "target_kl": 0.2}
    settings = Settings(
        QConfig(judge_fraction=0.0), ImproveConfig(lora=LoraSpec(r=8, alpha=16), seed=3)
    )
    gains: dict[bool, list[float]] = {True: [], False: []}
    for seed in (1, 2):
        for shuffled in (False, True):
            policy = initial = base_policy(str(tmp_path / "model"))
            first = 0.0
            for round_ in range(6):
                talks = played(load(policy), 192, 100 * seed + round_)
                given = rewards(talks)
                first = first or fmean(given)
                if shuffled:
                    random.Random(seed).shuffle(given)
                talks = tuple(
                    replace(c, outcome=replace(c.outcome, reward=r))
                    for c, r in zip(talks, given, strict=True)
                )
                folder = tmp_path / f"{seed}-{shuffled}-{round_}"
                policy = make("mt_ppo", options).update(
                    policy, RoundBatch(round_, talks, initial), FolderWorkspace(folder, settings)
                )
            last = fmean(rewards(played(load(policy), 192, 100 * seed + 99)))
            gains[shuffled].append(last - first)
    assert min(gains[False]) > 0.4  # it begins at 0.41, and the best is 1
    assert max(gains[True]) < 0.25
