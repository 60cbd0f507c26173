"""SFT, AWR and KTO: what is in the loss and what is not, against a derivation in plain torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from safetensors.torch import save  # noqa: E402
from torch import Tensor  # noqa: E402

from iterpo.domain import Message, Response, State, derive  # noqa: E402
from iterpo.errors import (  # noqa: E402
    BatchError,
    ConfigError,
    ContextOverflowError,
    ResumeError,
)
from iterpo.models.backbone import Backbone, attach_lora, load  # noqa: E402
from iterpo.models.checkpoints import save_policy  # noqa: E402
from iterpo.models.lora import LoraSpec  # noqa: E402
from iterpo.policy_improvement import _trl_sft, supervised  # noqa: E402
from iterpo.policy_improvement.base import ImproveResult, Training  # noqa: E402
from iterpo.policy_improvement.kto import mismatched  # noqa: E402
from iterpo.policy_improvement.logged import (  # noqa: E402
    Example,
    LoggedConfig,
    learner,
    schedule,
)
from policy_improvement.runs import Stopped, difference, weights  # noqa: E402
from policy_improvement.tiny import MakeBackbone, state  # noqa: E402

LORA = LoraSpec(r=4, alpha=8)
SEED = 5


def turns(n: int, count: int, agreed: bool = True, *, moved: bool = False) -> tuple[Example, ...]:
    """A conversation of ``count`` agent turns; with ``moved`` a note stands in the last message."""
    out = []
    for t in range(1, count + 1):
        seen = state(n, words=1, turns=t)
        if moved:
            last = seen.messages[-1]
            note = Message(last.role, f"w19 {last.content}")
            seen = replace(seen, messages=(*seen.messages[:-1], note))
        out.append(Example(seen, Response(f"w{(n + 2 * t - 1) % 20}"), agreed, 0.5 + n / 4))
    return tuple(out)


TALKS = [turns(n, 1 + n % 3, agreed=n % 4 != 1, moved=n % 2 == 1) for n in range(8)]
FLAT = [turn for talk in TALKS for turn in talk]


class Run:
    """One training with what it reported and the gradient of its first step."""

    def __init__(self, backbone: Backbone, workdir: Path, name: str, *given: Any, **options: Any):
        self.rows: dict[int, dict[str, float]] = {}
        self.ticks: list[tuple[int, int]] = []
        self.gradient: dict[str, Tensor] = {}
        every, lora = options.pop("checkpoint_every", 0), options.pop("lora", LORA)
        stop, factor = options.pop("stop_at", None), options.pop("step_factor", 1.0)

        def record(step: int, metrics: Any) -> None:
            self.rows[step] = dict(metrics)
            if step == stop:
                raise Stopped

        def before_the_step(_: Any, args: Any, state: Any, control: Any, **more: Any) -> None:
            if not self.gradient:
                self.gradient = gradient(more["model"])

        tick: Callable[..., None] = lambda done, total, _: self.ticks.append((done, total))  # noqa: E731
        training = Training(backbone, lora, SEED, workdir, record, tick, every, factor)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                supervised._Reporter, "on_pre_optimizer_step", before_the_step, raising=False
            )
            self.result: ImproveResult = learner(name, *given, **options)(training)

    def bytes(self) -> bytes:
        return save(weights(self.result.model))


def gradient(model: Any) -> dict[str, Tensor]:
    """Of the adapter, scaled to norm 1 where it is longer, as the trainer does."""
    found = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    norm = torch.sqrt(sum((g**2).sum() for g in found.values()))
    return {n: g / max(1.0, float(norm)) for n, g in found.items()}


class Plain:
    """The same losses in plain torch: every turn by itself, nothing padded, nothing shared."""

    def __init__(self, backbone: Backbone) -> None:
        self.backbone = backbone
        self.model = attach_lora(backbone, LORA, derive(SEED, "improve", "lora"))

    def token_logps(self, seen: State, response: Response) -> Tensor:
        chat = self.backbone.chat
        prompt, said = chat.prompt_ids(seen.messages), chat.response_token_ids(response)
        logits = self.model(input_ids=torch.tensor([[*prompt, *said]])).logits[0]
        logps = torch.log_softmax(logits, -1)[len(prompt) - 1 : -1]
        return logps.gather(-1, torch.tensor(said)[:, None])[:, 0]

    def logp(self, seen: State, response: Response) -> Tensor:
        return self.token_logps(seen, response).sum()

    def gradient(self, loss: Tensor) -> dict[str, Tensor]:
        loss.backward()
        return gradient(self.model)


def test_sft_is_the_mean_over_the_agents_tokens_of_a_step_and_of_no_others(
    make_backbone: MakeBackbone, tmp_path: Path
) -> None:
    config = LoggedConfig(batch_size=2, gradient_accumulation=2)
    run = Run(make_backbone(), tmp_path, "sft", TALKS, config)
    plain = Plain(make_backbone())
    chosen = [TALKS[i] for i in schedule(len(TALKS), config, SEED).order[0]]
    tokens = torch.cat([plain.token_logps(e.state, e.response) for talk in chosen for e in talk])
    loss = -tokens.mean()
    assert run.rows[1]["loss"] == pytest.approx(float(loss.detach()), rel=1e-5)
    assert difference(run.gradient, plain.gradient(loss)) < 1e-5
    # The twin that must differ: the mean of conversations' means, as batches of one would give it.
    assert len({sum(len(plain.token_logps(e.state, e.response)) for e in t) for t in chosen}) > 1
    counts = run.result.counts
    assert counts["response_tokens"] == 2 * len(FLAT), "a word and the stop token each"
    assert [run.rows[k]["response_tokens"] for k in (1, 2)] == [
        len(tokens),
        2 * len(FLAT) - len(tokens),
    ]
    assert (counts["conversations"], counts["examples"]) == (8, len(FLAT))
    assert (run.result.steps, counts["optimizer_steps"], run.ticks) == (2, 2, [(1, 2), (2, 2)])


def test_a_conversation_is_read_in_one_pass_unless_a_note_moves_on(
    make_backbone: MakeBackbone, tmp_path: Path
) -> None:
    plain = Run(make_backbone(), tmp_path / "a", "sft", [turns(2, 3)], LoggedConfig())
    moved = Run(make_backbone(), tmp_path / "b", "sft", [turns(2, 3, moved=True)], LoggedConfig())
    chat = make_backbone().chat
    alone = [len(chat.prompt_ids(e.state.messages)) + 2 for e in turns(2, 3)]
    assert plain.result.counts["tokens"] == alone[-1]
    assert moved.result.counts["tokens"] == sum(alone) + 3, "one word of the note in each pass"


def test_only_agent_tokens_are_labels(
    make_backbone: MakeBackbone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[dict[str, Tensor]] = []
    original = _trl_sft._inputs
    monkeypatch.setattr(_trl_sft, "_inputs", lambda c: made.append(original(c)) or made[-1])
    backbone = make_backbone()
    Run(backbone, tmp_path, "sft", [turns(2, 3)], LoggedConfig())
    (batch,) = made
    labels, ids = batch["labels"][0], batch["input_ids"][0]
    learned = labels != -100
    said = [i for e in turns(2, 3) for i in backbone.chat.response_token_ids(e.response)]
    assert labels[learned].tolist() == ids[learned].tolist() == said


def test_awr_is_the_weighted_sum_over_the_tokens_of_each_turn(
    make_backbone: MakeBackbone, tmp_path: Path
) -> None:
    config = LoggedConfig(batch_size=2, gradient_accumulation=3)
    run = Run(make_backbone(), tmp_path, "awr", FLAT, config)
    plain = Plain(make_backbone())
    chosen = [FLAT[i] for i in schedule(len(FLAT), config, SEED).order[0]]
    loss = -torch.stack([e.weight * plain.logp(e.state, e.response) for e in chosen]).mean()
    assert run.rows[1]["loss"] == pytest.approx(float(loss.detach()), rel=1e-5)
    assert difference(run.gradient, plain.gradient(loss)) < 1e-5


def test_awr_with_weights_1_is_sft_with_a_sum_over_the_tokens(
    make_backbone: MakeBackbone, tmp_path: Path
) -> None:
    alike = [replace(e, weight=1.0) for e in FLAT]
    config = LoggedConfig(batch_size=4, gradient_accumulation=2)
    awr = Run(make_backbone(), tmp_path / "a", "awr", alike, config)
    sft = Run(make_backbone(), tmp_path / "b", "sft", [(e,) for e in alike], config)
    assert awr.rows[1]["loss"] == pytest.approx(2 * sft.rows[1]["loss"], rel=1e-5)  # 2 tokens each


@pytest.mark.parametrize("name", ["sft", pytest.param("awr", marks=pytest.mark.slow)])
def test_accumulation_1_by_8_equals_8_by_1(
    make_backbone: MakeBackbone, tmp_path: Path, name: str
) -> None:
    data = TALKS if name == "sft" else FLAT
    small, large = (
        Run(
            make_backbone(),
            tmp_path / str(size),
            name,
            data,
            LoggedConfig(steps=1, batch_size=size, gradient_accumulation=8 // size),
        )
        for size in (1, 8)
    )
    assert difference(small.gradient, large.gradient) < 1e-6
    assert small.rows[1]["loss"] == pytest.approx(large.rows[1]["loss"], rel=1e-5)


# --- KTO

KTO = LoggedConfig(batch_size=2, gradient_accumulation=2)


class Reference:
    """A reference that is off the policy by a given log-ratio for each pair."""

    def __init__(self, plain: Plain, ratio: Callable[[State, Response], float]) -> None:
        self.plain, self.ratio = plain, ratio

    def __call__(
        self, states: Sequence[State], responses: Sequence[Response]
    ) -> list[tuple[float, ...]]:
        with torch.no_grad():
            return [
                (float(self.plain.logp(s, a)) - self.ratio(s, a), 0.0)
                for s, a in zip(states, responses, strict=True)
            ]


def kto(
    make: MakeBackbone,
    folder: Path,
    data: Sequence[Example],
    ratio: Callable[[State, Response], float],
    config: LoggedConfig = KTO,
    **options: Any,
) -> Run:
    reference = Reference(Plain(make()), ratio)
    given = {"beta": 0.1, "reference": reference, "reference_policy": "pi_0", **options}
    return Run(make(), folder, "kto", data, config, **given)


def own_response(seen: State, data: Sequence[Example]) -> Response:
    return next(e.response for e in data if e.state == seen)


def test_kto_costs_half_its_weight_where_the_policy_is_the_reference(
    make_backbone: MakeBackbone, tmp_path: Path
) -> None:
    run = kto(make_backbone, tmp_path, FLAT, lambda *_: 0.0)
    agreed = [e.agreed for e in FLAT]
    weight = {True: len(agreed) / (2 * sum(agreed)), False: len(agreed) / (2 * agreed.count(False))}
    first = [FLAT[i].agreed for i in schedule(len(FLAT), KTO, SEED).order[0]]
    expected = sum(weight[a] / 2 for a in first) / len(first)
    assert run.rows[1]["loss"] == pytest.approx(expected, abs=1e-6)
    assert run.rows[1]["z0"] == pytest.approx(0, abs=1e-5)


def test_kto_costs_what_was_worked_by_hand(make_backbone: MakeBackbone, tmp_path: Path) -> None:
    """Mismatched log-ratios 2, -1, .5, .5 give z0 .5; r 3 if agreed, else -2: .4378 each."""
    data = [replace(turns(n, 1)[0], agreed=n < 3) for n in range(4)]
    off = iter([2.0, -1.0, 0.5, 0.5])

    def ratio(seen: State, said: Response) -> float:
        mine = next(e for e in data if e.state == seen)
        return (3.0 if mine.agreed else -2.0) if said == mine.response else next(off)

    run = kto(make_backbone, tmp_path, data, ratio, LoggedConfig(batch_size=4, steps=1))
    assert run.rows[1]["z0"] == pytest.approx(0.5, abs=1e-5)
    # Three agreed turns at 4/6 and another one at 2: the weights of a class sum to N / 2.
    assert run.rows[1]["loss"] == pytest.approx((3 * 4 / 6 + 2) * 0.4378 / 4, abs=1e-4)
    assert run.rows[1]["reward_agreed"] == pytest.approx(0.3, abs=1e-5)
    assert run.rows[1]["reward_other"] == pytest.approx(-0.2, abs=1e-5)


def test_kto_equals_its_derivation_on_batches_of_two(
    make_backbone: MakeBackbone, tmp_path: Path
) -> None:
    def ratio(seen: State, said: Response) -> float:
        name = f"{seen.conversation_id} {seen.t} {said.text}"
        return derive(name) % 1000 / 100 - 4  # from -4 to 6: z0 is 0 in some passes

    run = kto(make_backbone, tmp_path, FLAT, ratio)
    plain = Plain(make_backbone())
    agreed = [e.agreed for e in FLAT]
    weight = {True: len(agreed) / (2 * sum(agreed)), False: len(agreed) / (2 * agreed.count(False))}
    plan = schedule(len(FLAT), KTO, SEED)
    pairs = mismatched(plan)[:4]
    losses, z = [], []
    for one in (pairs[:2], pairs[2:]):
        z0 = max(0.0, sum(ratio(FLAT[i].state, FLAT[j].response) for i, j in one) / 2)
        z.append(z0)
        for i, _ in one:
            e = FLAT[i]
            there = plain.logp(e.state, e.response)
            r = there - there.detach() + ratio(e.state, e.response)
            gap = r - z0 if e.agreed else z0 - r
            losses.append(weight[e.agreed] * (1 - torch.sigmoid(0.1 * gap)))
    loss = torch.stack(losses).mean()
    assert len(set(z)) > 1
    assert run.rows[1]["z0"] == pytest.approx(sum(z) / 2, abs=1e-4)
    assert run.rows[1]["loss"] == pytest.approx(float(loss.detach()), rel=1e-5)
    assert difference(run.gradient, plain.gradient(loss)) < 1e-5


def test_kto_on_one_class_alone_weighs_it_by_a_half(
    make_backbone: MakeBackbone, tmp_path: Path
) -> None:
    bad = [replace(e, agreed=False) for e in FLAT[:4]]
    run = kto(make_backbone, tmp_path, bad, lambda *_: 0.0)
    assert run.rows[1]["loss"] == pytest.approx(0.25, abs=1e-6)


def test_kto_refuses_what_leaves_no_mismatched_pair(
    make_backbone: MakeBackbone, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="batch_size: given 1; accepted: 2 or more"):
        kto(make_backbone, tmp_path, FLAT, lambda *_: 0.0, LoggedConfig())
    with pytest.raises(BatchError, match="2 agent turns or more, given 1"):
        kto(make_backbone, tmp_path, FLAT[:1], lambda *_: 0.0)


def test_kto_asks_the_reference_once_and_not_twice_for_a_pair(
    make_backbone: MakeBackbone, tmp_path: Path
) -> None:
    asked: list[tuple[str, int, str]] = []

    def reference(states: Sequence[State], responses: Sequence[Response]) -> list[tuple[float]]:
        asked.extend(
            (s.conversation_id, s.t, a.text) for s, a in zip(states, responses, strict=True)
        )
        return [(-1.0,)] * len(states)

    config = replace(KTO, epochs=3)
    options = {"beta": 0.1, "reference": reference, "reference_policy": "pi_0"}
    Run(make_backbone(), tmp_path, "kto", FLAT[:4], config, **options)
    assert len(asked) == len(set(asked)) <= 4 + 12


# --- what holds for all of them


ALL = ["kto", "sft", pytest.param("awr", marks=pytest.mark.slow)]  # the trainer of sft


def any_run(make: MakeBackbone, folder: Path, name: str, **options: Any) -> Run:
    config = LoggedConfig(learning_rate=1e-2, batch_size=2, gradient_accumulation=2, steps=4)
    if name == "kto":
        return kto(make, folder, FLAT, lambda s, _: s.t / 4, config, **options)
    return Run(make(), folder, name, TALKS if name == "sft" else FLAT, config, **options)


@pytest.mark.parametrize("name", ALL)
def test_a_training_repeats_and_goes_on_after_an_interruption(
    make_backbone: MakeBackbone, tmp_path: Path, name: str
) -> None:
    whole = any_run(make_backbone, tmp_path / "whole", name)
    with pytest.raises(Stopped):
        any_run(make_backbone, tmp_path / "cut", name, checkpoint_every=1, stop_at=3)
    (kept,) = (tmp_path / "cut").glob("checkpoint-*")
    assert kept.name == "checkpoint-2"
    half = tmp_path / "cut" / "checkpoint-3"  # as if killed while it was written
    half.mkdir()
    (half / "adapter_model.safetensors").write_bytes(b"half")
    rest = any_run(make_backbone, tmp_path / "cut", name, checkpoint_every=1)
    assert sorted(rest.rows) == [3, 4]
    assert rest.rows == {step: whole.rows[step] for step in (3, 4)}
    assert rest.bytes() == whole.bytes()
    assert rest.result.counts == whole.result.counts
    with pytest.raises(ResumeError, match="another policy, batch or settings"):
        Run(make_backbone(), tmp_path / "cut", "awr", FLAT[1:], LoggedConfig())


@pytest.mark.parametrize("name", ALL)
def test_the_policy_is_given_back_unpatched_and_its_own_adapter_untouched(
    make_backbone: MakeBackbone, tmp_path: Path, name: str
) -> None:
    first = any_run(make_backbone, tmp_path / "0", name)
    base = make_backbone().policy
    warm = save_policy(tmp_path / "pi_1", first.result.model, "default", parent=base, round=1)

    def continued() -> Backbone:
        return load(warm, dtype="float32", device="cpu")

    second = any_run(continued, tmp_path / "1", name)
    model = second.result.model
    assert set(model.peft_config) == {"policy", "default"}
    assert "forward" not in vars(model)
    assert "forward" not in vars(model.get_base_model())
    assert not model.training
    assert all(p.grad is None for p in model.parameters())
    frozen = {k.replace(".policy.", ".default."): v for k, v in weights(model, "policy").items()}
    assert difference(frozen, weights(first.result.model)) == 0
    assert difference(frozen, weights(model)) > 1e-4, "it is trained on from there"
    if name == "sft":
        assert second.rows[1]["loss"] < first.rows[1]["loss"] - 0.05


def test_dropout_and_what_does_not_fit_are_refused_before_any_training(
    make_backbone: MakeBackbone, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"lora\.dropout is 0\.1"):
        any_run(make_backbone, tmp_path, "sft", lora=replace(LORA, dropout=0.1))
    tight = LoggedConfig(max_length=12)
    with pytest.raises(ContextOverflowError, match="drop_old_turns"):
        Run(make_backbone(), tmp_path, "sft", TALKS, tight)
    tight = replace(tight, drop_old_turns=True)
    short = Run(make_backbone(), tmp_path, "sft", TALKS, tight, step_factor=0.5)
    assert short.result.counts["shortened_prompts"] > 0
    assert short.rows[1]["learning_rate"] == pytest.approx(tight.learning_rate / 2)
    strange = [replace(FLAT[0], response=Response("w1", (3000,)))]
    with pytest.raises(BatchError):
        Run(make_backbone(), tmp_path, "awr", strange, LoggedConfig())


@pytest.mark.slow
def test_each_training_learns_a_toy_with_a_known_optimum(
    make_backbone: MakeBackbone, tmp_path: Path
) -> None:
    """w7 is agreed to, w8 is not: what the policy says at a state it never saw moves to w7."""
    data = [
        Example(state(n), Response(word), word == "w7", math.exp(2.0 * (word == "w7") - 1))
        for n in range(8)
        for word in ("w7", "w8")
    ]
    config = LoggedConfig(learning_rate=2e-2, steps=12, batch_size=8, gradient_accumulation=1)
    before = Plain(make_backbone())
    new = state(15)

    def odds(plain: Plain) -> float:
        with torch.no_grad():
            good, bad = (float(plain.logp(new, Response(w))) for w in ("w7", "w8"))
        return good - bad

    start = odds(before)
    for name in ("awr", "kto", "sft"):
        backbone = make_backbone()
        options: dict[str, Any] = {}
        given: Any = [(e,) for e in data if e.agreed] if name == "sft" else data
        if name == "kto":
            options = {"beta": 0.5, "reference": Reference(before, lambda *_: 0.0)}
            options["reference_policy"] = "pi_0"
        Run(backbone, tmp_path / name, name, given, config, **options)
        after = Plain.__new__(Plain)
        after.backbone, after.model = backbone, backbone.model
        assert odds(after) > start + 1, name
