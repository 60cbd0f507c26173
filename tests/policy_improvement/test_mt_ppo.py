"""Multi-turn PPO on a tiny model: its gradient taken another way, its limits, its resumption."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from iterpo import artifacts
from iterpo.domain import (
    Conversation,
    DiscountUnit,
    Ending,
    Exploration,
    Outcome,
    Role,
    Sampled,
    Sampling,
    Turn,
    decisions,
    derive,
)
from iterpo.errors import ArtifactError, BatchError, ConfigError, ContextOverflowError, ResumeError
from iterpo.models.backbone import Backbone, attach_lora, load
from iterpo.models.checkpoints import save_policy
from iterpo.models.lora import LoraSpec
from iterpo.policy_evaluation.base import QConfig
from iterpo.policy_improvement import ppo_trainer
from iterpo.policy_improvement.base import ImproveResult, Training
from iterpo.policy_improvement.episodes import episodes
from iterpo.policy_improvement.mt_ppo import train
from iterpo.policy_improvement.ppo_batch import advantages, positions, prepare
from iterpo.policy_improvement.ppo_config import CreditUnit, PpoConfig
from iterpo.policy_improvement.value_head import ValueHead
from policy_improvement.runs import Stopped, difference, weights
from policy_improvement.tiny import MakeBackbone

LORA = LoraSpec(r=4, alpha=8)
QUICK = PpoConfig(
    learning_rate=1e-2,
    value_learning_rate=1e-2,
    value_passes=8,
    gradient_accumulation=4,
    target_kl=None,
)
Many = Sequence[Conversation]


def talk(n: int, reward: float, turns: int = 3, words: int = 2, **sampled: Any) -> Conversation:
    """Conversation number n, in which the agent says ``words`` words at a time, never the same."""
    said = [Turn(Role.AGENT, "w1", scripted=True)]
    for t in range(turns):
        text = " ".join(f"w{(3 * n + 5 * t + k) % 20}" for k in range(words + (n + t) % 2))
        said += [Turn(Role.PARTNER, f"w{(n + t) % 20} w{t}"), Turn(Role.AGENT, text)]
    outcome = Outcome(Ending.AGREED, reward, closing_message=len(said) - 1)
    return Conversation(f"c{n}", f"k{n}", "toy", tuple(said), outcome, "w2 w3", **sampled)


TALKS = tuple(talk(n, (n * 7 % 10) / 10, turns=1 + n % 3) for n in range(8))


@dataclass
class Run:
    """One training with everything that it reported."""

    backbone: Backbone
    folder: Path
    config: PpoConfig = QUICK
    talks: Many = TALKS
    every: int = 0
    kill_at: int = 0
    rows: dict[int, dict[str, float]] = field(default_factory=dict)
    result: ImproveResult = field(init=False)

    def __post_init__(self) -> None:
        training = Training(
            self.backbone, LORA, 5, self.folder / "work", self._record, None, self.every
        )
        self.result = train(training, self.talks, self.config, self._stage, gamma=0.9)

    def _record(self, step: int, metrics: Mapping[str, float]) -> None:
        self.rows[step] = dict(metrics)
        if step == self.kill_at:
            raise Stopped

    def _stage(self, name: str, build: Callable[[Path, Path | None], Mapping[str, Any]]) -> Path:
        target, before = self.folder / name, self.folder / "before" / name
        if not artifacts.is_sealed(target):
            with artifacts.build(target, name, {}) as fresh:
                build(fresh, before if before.exists() else None)
        return target

    def weights(self) -> dict[str, Tensor]:
        return weights(self.result.model)


@pytest.fixture
def gradients(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Tensor]]:
    """The gradient of every optimizer step, before anything is done with it."""
    seen: list[dict[str, Tensor]] = []
    plain = ppo_trainer._Callback.on_pre_optimizer_step

    def look(self: Any, *args: Any, **more: Any) -> None:
        named = self.trainer.job.model.named_parameters()
        seen.append({n: p.grad.clone() for n, p in named if p.grad is not None})
        plain(self, *args, **more)

    monkeypatch.setattr(ppo_trainer._Callback, "on_pre_optimizer_step", look)
    return seen


def by_definition(
    backbone: Backbone, model: Any, head: ValueHead, unit: str, whiten: bool = True
) -> dict[str, Tensor]:
    """The first step's gradient from formulas alone: one pass per turn, log-softmax, autograd.

    At ratio 1 and V unmoved the surrogate's gradient is that of -A log pi, and the value loss's
    that of half the squared error.
    """
    gamma, lam = 0.9, 0.95
    logps, values, advantages, targets = [], [], [], []
    for talk_ in TALKS:
        own_logps, own_values, reward, discount, tokens = [], [], [], [], []
        for row in decisions(talk_, 1.0):
            prompt = backbone.chat.prompt_ids(row.state.messages)
            said = backbone.chat.response_token_ids(row.response)
            out = model(torch.tensor([[*prompt, *said]]), output_hidden_states=True)
            places = range(len(prompt) - 1, len(prompt) + len(said) - 1)
            scores = out.logits[0, places].log_softmax(-1)
            own_logps.append(scores[range(len(said)), said])
            value = head(out.hidden_states[-1][0, places])
            inside = 0 if unit == "turn" else len(said) - 1
            own_values.append(value[:1] if unit == "turn" else value)
            reward += [0.0] * (inside + 1)
            discount += [1.0] * inside + [gamma]
            tokens += [len(said)] if unit == "turn" else [1] * len(said)
        reward[-1] = talk_.outcome.reward or 0.0
        v = torch.cat(own_values)
        a, ahead, next_v = [0.0] * len(v), 0.0, 0.0
        for j in reversed(range(len(v))):
            ahead = (
                reward[j] + discount[j] * next_v - float(v[j].detach()) + discount[j] * lam * ahead
            )
            a[j], next_v = ahead, float(v[j].detach())
        logps.append((torch.cat(own_logps), tokens))
        values.append(v)
        advantages.append(torch.tensor(a))
        targets.append(torch.tensor(a) + v.detach())
    pooled = torch.cat(advantages)
    mean, std = (pooled.mean(), pooled.std()) if whiten else (0.0, 1.0)
    gain = sum(
        (((a - mean) / std).repeat_interleave(torch.tensor(n)) * lp).sum()
        for a, (lp, n) in zip(advantages, logps, strict=True)
    )
    n_tokens = sum(len(lp) for lp, _ in logps)
    error = 0.5 * (torch.cat(values) - torch.cat(targets)).square().mean()
    model.zero_grad()
    (-gain / n_tokens + 0.1 * error).backward()
    named = [
        *model.named_parameters(),
        *(("value_head." + n, p) for n, p in head.named_parameters()),
    ]
    return {n: p.grad.clone() for n, p in named if p.grad is not None}


@pytest.mark.parametrize("unit", ["turn", "token"])
def test_the_first_gradient_is_the_plain_policy_gradient_of_another_derivation(
    unit: str, make_backbone: MakeBackbone, tmp_path: Path, gradients: list[dict[str, Tensor]]
) -> None:
    config = replace(QUICK, unit=unit, gradient_accumulation=8, steps=2, max_grad_norm=1e9)  # type: ignore[arg-type]
    run = Run(make_backbone(), tmp_path, config)
    first = run.rows[1]
    assert first["approx_kl"] == pytest.approx(0.0, abs=1e-9)
    assert first["clip_fraction"] == 0.0
    assert run.rows[2]["approx_kl"] > 1e-6

    fresh = make_backbone()
    model = attach_lora(fresh, LORA, derive(derive(5, "mt_ppo"), "lora"))
    head = ValueHead.load(tmp_path / "value")
    assert float(head.linear.weight.detach().abs().max()) > 1e-3, "a V of 0 would test little"
    expected = by_definition(fresh, model, head, unit)
    found = gradients[0]
    assert found.keys() == expected.keys()
    assert any("lora_B" in n for n in found)
    assert "value_head.linear.weight" in found
    for name, gradient in found.items():
        # float32, summed in another order; a wrong factor or sign anywhere is far beyond
        assert (gradient - expected[name]).norm() <= 1e-4 * expected[name].norm() + 1e-6, name


def test_pain_39_one_pass_of_eight_is_eight_passes_of_one(
    make_backbone: MakeBackbone, tmp_path: Path, gradients: list[dict[str, Tensor]]
) -> None:
    config = replace(QUICK, gradient_accumulation=8, epochs=2)
    small = Run(make_backbone(), tmp_path / "a", config)
    apart, gradients[:] = list(gradients), []
    large = Run(
        make_backbone(), tmp_path / "b", replace(config, batch_size=8, gradient_accumulation=1)
    )
    for one, other in zip(apart, gradients, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            torch.testing.assert_close(one[name], other[name], rtol=2e-3, atol=1e-6)
    for step in (1, 2):
        assert small.rows[step] == pytest.approx(large.rows[step], rel=1e-3, abs=1e-5)


def test_equal_inputs_give_equal_bytes_and_no_trace_is_left_on_the_policy(
    make_backbone: MakeBackbone, tmp_path: Path
) -> None:
    backbone = make_backbone()
    one, two = Run(backbone, tmp_path / "a"), Run(make_backbone(), tmp_path / "b")
    assert difference(one.weights(), two.weights()) == 0
    assert one.rows == two.rows
    model = one.result.model
    assert not hasattr(model, "value_head")
    for module in model.modules():
        assert "forward" not in module.__dict__
        assert not module.training
    assert all(p.grad is None for p in model.parameters())
    counts = one.result.counts
    said = sum(
        len(backbone.chat.response_token_ids(r.response)) for c in TALKS for r in decisions(c, 1)
    )
    assert counts["optimizer_steps"] == one.result.steps == 2
    assert (counts["conversations"], counts["trained_tokens"]) == (8, said)
    assert counts["read_tokens"] > said
    names = ("policy_loss", "value_loss", "approx_kl", "clip_fraction", "entropy")
    assert {*names, "explained_variance", "loss", "grad_norm"} <= set(one.rows[1])


@pytest.mark.slow
@pytest.mark.parametrize("continued", [False, True])
def test_killed_after_any_step_it_resumes_to_the_same_bytes(
    continued: bool, make_backbone: MakeBackbone, tmp_path: Path
) -> None:
    make = make_backbone
    if continued:  # of a policy that has an adapter already
        first = Run(make(), tmp_path / "first")
        backbone = first.backbone
        ref = save_policy(
            tmp_path / "pi_1", first.result.model, "default", parent=backbone.policy, round=1
        )
        make = lambda: load(ref, dtype="float32", device="cpu")  # noqa: E731
    config = replace(QUICK, gradient_accumulation=2)
    whole = Run(make(), tmp_path / "whole", config)
    assert whole.result.steps == 4
    folder = tmp_path / "killed"
    for step in (1, 3):
        with pytest.raises(Stopped):
            Run(make(), folder, config, every=1, kill_at=step)
    rest = Run(make(), folder, config, every=1)
    assert min(rest.rows) == 3, "it began anew"
    assert difference(whole.weights(), rest.weights()) == 0
    assert {s: whole.rows[s] for s in rest.rows} == rest.rows
    assert dict(whole.result.counts) == dict(rest.result.counts)


def test_a_checkpoint_of_other_inputs_is_refused(
    make_backbone: MakeBackbone, tmp_path: Path
) -> None:
    with pytest.raises(Stopped):
        Run(make_backbone(), tmp_path, every=1, kill_at=2)
    with pytest.raises(ResumeError, match="another policy, batch or settings"):
        Run(make_backbone(), tmp_path, replace(QUICK, clip=0.1), every=1)


def test_a_phase_ends_before_the_update_that_would_go_too_far(
    make_backbone: MakeBackbone, tmp_path: Path
) -> None:
    config = replace(QUICK, target_kl=1e-4)
    stopped = Run(make_backbone(), tmp_path / "a", config, every=1)
    assert stopped.result.counts["kl_stopped"] == 1
    assert stopped.rows[2]["approx_kl"] > 1.5e-4
    assert stopped.rows[2]["update_skipped"] == 1.0
    assert "update_skipped" not in stopped.rows[1]
    one_step = Run(make_backbone(), tmp_path / "b", replace(QUICK, steps=1))
    assert stopped.result.steps == one_step.result.steps == 1
    # Not even Adam's momentum moves it on; the order of a shorter plan is the same.
    assert difference(stopped.weights(), one_step.weights()) == 0
    again = Run(make_backbone(), tmp_path / "a", config, every=1)
    assert not again.rows, "a phase that has ended is not gone on with"
    assert difference(stopped.weights(), again.weights()) == 0
    assert again.result.counts == stopped.result.counts


def test_a_moving_reminder_costs_passes_and_changes_what_is_read_alone(
    make_backbone: MakeBackbone, tmp_path: Path
) -> None:
    backbone = make_backbone()
    plain, noted = talk(3, 0.5), replace(talk(3, 0.5), reminder="w9 w9")
    (one, many), shortened = episodes((plain, noted), backbone.chat, 128, gamma=0.9)
    assert (len(one.passes), len(many.passes), shortened) == (1, 3, 0)
    for episode, source in ((one, plain), (many, noted)):
        for action, row in zip(episode.actions, decisions(source, 1.0), strict=True):
            ids = episode.passes[action.of]
            prompt = backbone.chat.prompt_ids(row.state.messages)
            said = backbone.chat.response_token_ids(row.response)
            assert list(ids[: action.start]) == prompt
            assert list(ids[action.start : action.end]) == said, "pain 5: the first token counts"
            assert ids[action.end - 1] in backbone.chat.stop_ids, "pain 4"
        assert [a.reward for a in episode.actions] == [0.0, 0.0, 0.5]
    run = Run(backbone, tmp_path, talks=[replace(c, reminder="w9 w9") for c in TALKS])
    assert run.rows[1]["approx_kl"] == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("gamma", [0.9, 0.5, 0.0])
@pytest.mark.parametrize("discount_unit", ["agent_turn", "message"])
@pytest.mark.parametrize("unit", ["turn", "token"])
def test_the_returns_are_those_that_q_is_fitted_to(
    gamma: float, discount_unit: DiscountUnit, unit: CreditUnit, make_backbone: MakeBackbone
) -> None:
    """With V 0 and lambda 1, what V is to learn is G_t of the reduction at each token of a turn."""
    chat = make_backbone().chat
    closing = Turn(Role.PARTNER, "w7")  # so that messages pass after the agent's last action
    talks = [replace(c, turns=(*c.turns, *[closing] * (n % 2))) for n, c in enumerate(TALKS)]
    found, _ = episodes(talks, chat, 128, gamma=gamma, unit=discount_unit)
    config = replace(QUICK, unit=unit, lam=1.0, whiten=False)
    zero = [torch.zeros(positions(e, unit)) for e in found]
    _, returns = advantages(found, zero, config)
    for talk_, episode, got in zip(talks, found, returns, strict=True):
        rows = decisions(talk_, gamma, discount_unit)
        each = [1 if unit == "turn" else a.length for a in episode.actions]
        wanted = [row.ret for row, n in zip(rows, each, strict=True) for _ in range(n)]
        assert got.tolist() == pytest.approx(wanted)


def test_stored_log_probs_are_not_looked_at_but_the_temperature_is(
    make_backbone: MakeBackbone, tmp_path: Path
) -> None:
    backbone = make_backbone()

    def sampled(c: Conversation, temperature: float, top_p: float) -> Conversation:
        turns = []
        for turn in c.turns:
            if turn.role is Role.AGENT and not turn.scripted:
                ids = tuple(backbone.chat.response_ids(turn.text))
                how = Sampling(temperature=temperature, top_p=top_p)
                lies = (-0.01,) * len(ids)  # as a nucleus of one token would have them
                turn = replace(turn, sampled=Sampled(ids, lies, how, "", 1, "p", "stop"))
            turns.append(turn)
        return replace(c, turns=tuple(turns))

    text, neutral, greedy = (
        episodes(talks, backbone.chat, 128, gamma=0.9)
        for talks in (TALKS, *([sampled(c, t, 1.0) for c in TALKS] for t in (1.0, 0.0)))
    )
    assert text == neutral == greedy
    cold = [sampled(c, 0.5, 0.9) for c in TALKS]
    cooled, _ = episodes(cold, backbone.chat, 128, gamma=0.9)
    assert {a.temperature for e in cooled for a in e.actions} == {0.5}
    run = Run(backbone, tmp_path, talks=cold)
    assert run.rows[1]["approx_kl"] == pytest.approx(0.0, abs=1e-9)


def test_explored_conversations_are_refused_or_left_out_whole(
    make_backbone: MakeBackbone, tmp_path: Path
) -> None:
    marked = replace(
        TALKS[3], turns=(*TALKS[3].turns[:-1], replace(TALKS[3].turns[-1], off_policy=True))
    )
    drawn = replace(TALKS[5], exploration=Exploration({"tone": "warm"}, 0.5))
    lost = replace(TALKS[6], outcome=Outcome(Ending.INFRASTRUCTURE_FAILURE))
    given = [*TALKS[:3], marked, TALKS[4], drawn, lost, TALKS[7]]
    with pytest.raises(BatchError, match=r"2 of 7 conversations were explored.*off_policy"):
        Run(make_backbone(), tmp_path / "a", talks=given)
    dropped = Run(make_backbone(), tmp_path / "b", replace(QUICK, off_policy="drop"), given)
    clean = [*TALKS[:3], TALKS[4], TALKS[7]]
    counts = dropped.result.counts
    assert (counts["left_out"], counts["conversations"]) == (3, 5)
    assert counts["actions"] == sum(len(decisions(c, 1.0)) for c in clean)
    with pytest.raises(BatchError, match="nothing to learn from"):
        Run(make_backbone(), tmp_path / "d", replace(QUICK, off_policy="drop"), [marked, lost])


def test_pain_16_long_conversations_are_refused_or_lose_whole_old_turns(
    make_backbone: MakeBackbone, tmp_path: Path
) -> None:
    long = talk(30, 1.0, turns=6)
    config = replace(QUICK, max_length=40)
    with pytest.raises(ContextOverflowError, match=r"'c30'.*drop_old_turns.*max_length"):
        Run(make_backbone(), tmp_path / "a", config, [*TALKS, long])
    run = Run(make_backbone(), tmp_path / "b", replace(config, drop_old_turns=True), [*TALKS, long])
    assert run.result.counts["shortened_prompts"] > 0
    assert run.result.counts["actions"] == sum(len(decisions(c, 1)) for c in [*TALKS, long])
    with pytest.raises(BatchError, match=r"reward nan"):
        Run(make_backbone(), tmp_path / "c", talks=[talk(1, float("nan"))])


def test_the_head_is_fitted_first_kept_and_continued_if_asked(
    make_backbone: MakeBackbone, tmp_path: Path
) -> None:
    backbone = make_backbone()
    training = Training(backbone, LORA, 5, tmp_path)
    batch, _ = episodes(TALKS, backbone.chat, 128, gamma=0.9)

    def head(name: str, before: str | None = None, **settings: Any) -> tuple[Any, bytes]:
        (tmp_path / name).mkdir()
        old = None if before is None else tmp_path / before
        facts = prepare(training, batch, replace(QUICK, **settings), tmp_path / name, old)
        return facts["explained_variance"], (tmp_path / name / "head.safetensors").read_bytes()

    blank, some = head("a", value_passes=0), head("b", value_passes=300)
    assert blank[0] == pytest.approx(0.0)
    assert some[0] > 0.5
    assert head("c", "b", value_passes=0, warm_start=True) == some
    assert head("d", "b", value_passes=0) == blank
    (tmp_path / "b" / "head.safetensors").unlink()
    with pytest.raises(ArtifactError, match="value head"):  # pain 25
        head("e", "b", value_passes=0, warm_start=True)


def test_bad_settings_are_all_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        PpoConfig(lam=1.5, clip=0.0, target_kl=0.0, epochs=0, max_length=1)
    named = [line.split(":")[0] for line in str(caught.value).splitlines()]
    assert sorted(named) == ["clip", "epochs", "lam", "max_length", "target_kl"]
    paper = json.loads(
        '{"learning_rate": 1e-5, "epochs": 1, "batch_size": 1, "max_length": 2048,'
        ' "gradient_accumulation": 8, "clip": 0.2, "value_clip": 0.2, "value_coefficient": 0.1,'
        ' "target_kl": 0.05, "lam": 0.95}'
    )
    assert {name: getattr(PpoConfig(), name) for name in paper} == paper
    assert QConfig().gamma == 0.9, "the discount is the plan's"


def test_dropout_in_the_adapter_is_refused(make_backbone: MakeBackbone, tmp_path: Path) -> None:
    training = Training(make_backbone(), replace(LORA, dropout=0.1), 0, tmp_path)
    with pytest.raises(ConfigError, match=r"lora\.dropout"):
        train(training, TALKS, QUICK, lambda *_: tmp_path, gamma=0.9)
