"""How `nano` is made: teachers that box right sums, and a training that can be killed."""

from __future__ import annotations

import importlib
import random
from pathlib import Path
from typing import Any

import pytest

from iterpo.domain import Ending, Role

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return lambda module: importlib.import_module(f"nano_pretraining.{module}")


def test_teachers_box_what_the_games_can_read_and_their_sums_are_right(lab: Any) -> None:
    corpus, quality = lab("corpus"), lab("quality")
    games = dict.fromkeys(corpus.GAMES, 0)
    for played in corpus.dialogues(150, seed=4):
        assert played.conversation.outcome.ending is not Ending.INFRASTRUCTURE_FAILURE
        for turn in played.conversation.turns[1:]:
            if turn.role is Role.AGENT:
                found = quality.agent_boxes(turn.text, played.scenario)
                assert all(valid for valid, _ in found), turn.text
                assert all(quality.right_sums(turn.text, played.scenario)), turn.text
                games[played.environment.name] += len(found)
    assert min(games.values()) > 100


def test_the_measure_sees_a_wrong_box_and_a_wrong_sum(lab: Any) -> None:
    corpus, quality = lab("corpus"), lab("quality")
    ultimatum = corpus.game("ultimatum").scenarios(corpus.Split.TRAIN, 1)[0]  # pool 100
    assert quality.agent_boxes(r"\boxed{AGREED: split=$60}", ultimatum) == [(True, 0.6)]
    assert quality.agent_boxes(r"\boxed{AGREED: split=$600}", ultimatum) == [(False, None)]
    assert quality.agent_boxes(r"\boxed{AGREED: split=$60", ultimatum) == [(False, None)]
    assert quality.right_sums(r"You get $40. \boxed{AGREED: split=$60}", ultimatum) == [True]
    assert quality.right_sums(r"You get $30. \boxed{AGREED: split=$60}", ultimatum) == [False]
    dond = corpus.generated_dond(1, 0)[0]
    zero = "book=0 hat=0 ball=0"
    counts = dond.facts["counts"]
    everything = " ".join(f"{i}={n}" for i, n in zip(("book", "hat", "ball"), counts, strict=True))
    good = f"\\boxed{{AGREED: MINE: {everything}; THEIRS: {zero}}}"
    assert quality.agent_boxes(good, dond) == [(True, 1.0)]
    bad = f"\\boxed{{AGREED: MINE: {everything}; THEIRS: {everything}}}"
    assert quality.agent_boxes(bad, dond) == [(False, None)]
    assert quality.agent_boxes(r"\boxed{REJECT}", ultimatum) == [(False, None)]


def test_invented_kernels_have_the_layout_of_the_data(lab: Any) -> None:
    for scenario in lab("corpus").generated_dond(200, 1):
        counts = scenario.facts["counts"]
        assert 5 <= sum(counts) <= 7
        for side in ("agent_values", "partner_values"):
            assert sum(c * v for c, v in zip(counts, scenario.facts[side], strict=True)) == 10


def test_a_killed_training_ends_with_the_weights_of_an_undisturbed_one(
    lab: Any, tmp_path: Path
) -> None:
    corpus, tokenizer, training = lab("corpus"), lab("tokenizer"), lab("training")
    rng = random.Random(1)
    chats = [c for d in corpus.dialogues(20, 3) for c in corpus.lessons(d, rng, 0.3)]
    words = tokenizer.train_tokenizer((m.content for c in chats for m in c), 500)
    rows = [training.encode_row(c, words) for c in chats]
    plan = training.TrainingPlan(steps=6, batch_rows=4, warmup=2, checkpoint_s=0.0)
    shape = training.Shape(hidden=32, layers=1, heads=1, mlp=32)

    def trained(scratch: Path, stop_at: int | None = None) -> list[Any]:
        model = training.build_model(shape, words, seed=0)

        def report(progress: Any) -> None:
            if progress.step == stop_at:
                raise KeyboardInterrupt

        training.train(model, rows, plan, scratch, report)
        return [p.detach() for p in model.parameters()]

    undisturbed = trained(tmp_path / "a")
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "b", stop_at=4)
    resumed = trained(tmp_path / "b")
    fresh = [p.detach() for p in training.build_model(shape, words, seed=0).parameters()]
    assert all((a == b).all() for a, b in zip(undisturbed, resumed, strict=True))
    assert not all((a == b).all() for a, b in zip(undisturbed, fresh, strict=True))


def test_the_loss_covers_the_speakers_own_replies_and_their_stop_token(lab: Any) -> None:
    corpus, tokenizer, training = lab("corpus"), lab("tokenizer"), lab("training")
    rng = random.Random(1)
    chats = [c for d in corpus.dialogues(10, 3) for c in corpus.lessons(d, rng, 0.5)]
    words = tokenizer.train_tokenizer((m.content for c in chats for m in c), 500)
    for chat in chats:
        row = training.encode_row(chat, words)
        rendered = words.apply_chat_template([m.as_dict() for m in chat], tokenize=False)
        assert words.decode(row.ids) == rendered
        own = words.decode(row.ids[row.own])
        assert own == "".join(f"{m.content}<|im_end|>" for m in chat if m.role == "assistant")
