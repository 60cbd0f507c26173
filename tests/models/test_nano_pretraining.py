"""How `nano` is made: teachers that box right sums, and a training that can be killed."""

from __future__ import annotations

import dataclasses
import importlib
import random
from pathlib import Path
from typing import Any

import pytest

from iterpo.domain import Ending, Role, Turn

SCRIPTS = Path(__file__).parents[2] / "scripts"
GAMES = ("ultimatum", "deal_or_no_deal", "craigslist", "casino", "job_interview", "alliance")
LABELLED = pytest.mark.parametrize("game", GAMES)


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return lambda module: importlib.import_module(f"nano_pretraining.{module}")


@pytest.mark.parametrize("course", ["FIRST", "SECOND"])
def test_teachers_box_what_the_games_can_read_and_their_sums_are_right(
    lab: Any, course: str
) -> None:
    corpus, judging = lab("corpus"), lab("judging")
    games = {name: [0, 0, 0] for name in GAMES}
    for played in corpus.dialogues(80, 4, getattr(corpus, course)):
        turns = played.conversation.turns
        assert played.conversation.outcome.ending is not Ending.INFRASTRUCTURE_FAILURE
        count = games[played.environment.name]
        for i, turn in enumerate(turns):
            if turn.role is Role.AGENT and not turn.scripted:
                found = judging.agent_boxes(turn.text, played.scenario)
                assert all(box.valid for box in found), turn.text
                fits = judging.words_fit(turn.text, played.scenario)
                assert fits is not False, turn.text
                copied = judging.consent_is_copied(turn.text, turns[:i], played.scenario)
                assert copied is not False, turn.text
                count[0] += len(found)
                count[1] += fits is True
                count[2] += copied is True
    assert all(boxes > 80 and words > 15 for boxes, words, _ in games.values())
    assert all(games[name][2] > 5 for name in set(GAMES) - {"deal_or_no_deal", "casino"})


@LABELLED
def test_every_game_has_at_least_200_phrasings_and_they_are_varied(lab: Any, game: str) -> None:
    texts = lab("phrasings").of_game(game).all()
    plain = {t.replace("{box}", "").strip().lower() for t in texts}
    assert len(plain) >= 200
    assert len({word for t in plain for word in t.split()}) >= 200
    assert not any(c.isdigit() or c == "$" for t in plain for c in t)


@pytest.mark.parametrize("mindful", [False, True])
@LABELLED
def test_a_teacher_reads_the_transcript_and_its_own_points_only(
    lab: Any, game: str, mindful: bool
) -> None:
    kernels, position, teacher = lab("kernels"), lab("position"), lab("teacher")
    environment = kernels.game(game)
    first, *others = kernels.kernels(game, 12, seed=1)
    hidden = {"partner", "partner_values", "partner_order", "partner_scores", "partner_threshold",
              "target"}  # fmt: skip
    assert game == "ultimatum" or hidden & first.facts.keys()
    # The other side's facts, and with the kernel's name the partner's private draw, are another's.
    twin = dataclasses.replace(
        first,
        kernel_id="another",
        facts={k: others[0].facts[k] if k in hidden else v for k, v in first.facts.items()},
    )
    table = environment.bargain(first)
    rng = random.Random(3)
    for seed in range(40):
        turns = [environment.opening(first)]
        same = [
            teacher.Teacher(
                position.position(environment, s, Role.AGENT, mindful=mindful), random.Random(seed)
            )
            for s in (first, twin)
        ]
        for _ in range(3):
            terms = position.position(environment, first, Role.AGENT).draw(rng)
            turns.append(Turn(Role.PARTNER, table.box(terms, Role.PARTNER)))
            said = {one.reply(turns) for one in same}
            assert len(said) == 1
            turns.append(Turn(Role.AGENT, said.pop()))


def test_consents_box_what_the_partner_offered_last_and_only_that_is_learnt(lab: Any) -> None:
    corpus, training, consents = lab("corpus"), lab("training"), lab("consents").consents
    rng = random.Random(0)
    _, words = _rows(lab, 4, 500)
    games = dict.fromkeys(GAMES, 0)
    for played in corpus.dialogues(15, seed=2):
        for lesson in consents(played, 2, rng):
            offer, reply = (m.content for m in lesson.messages[-2:])
            box = reply[reply.index("\\boxed{") :]
            assert offer.endswith(box)
            row = training.encode_row(lesson, words)
            assert words.decode(row.ids[row.own]) == f" {box}<|im_end|>"
            games[played.environment.name] += 1
    by_keyword = {"deal_or_no_deal", "casino"}
    assert all((n == 0) is (name in by_keyword) for name, n in games.items())


def test_the_scripted_partners_replies_are_no_lesson(lab: Any) -> None:
    corpus = lab("corpus")
    rng = random.Random(0)
    seats = {Role.AGENT: 0, Role.PARTNER: 0}
    for played in corpus.dialogues(40, seed=2):
        turns = played.conversation.turns
        spoken = {role: {t.text for t in turns if t.role is role} for role in seats}
        for lesson in corpus.lessons(played, rng):
            learnt = [m.content for m in lesson.messages[lesson.first :] if m.role == "assistant"]
            role = Role.AGENT if lesson.messages[1].role == "assistant" else Role.PARTNER
            assert learnt
            assert set(learnt) <= spoken[role]
            assert role in played.taught
            assert turns[0].text not in learnt
            seats[role] += 1
    assert seats[Role.AGENT] > 3 * seats[Role.PARTNER] > 0


_NOTHING = {"deal_or_no_deal": "book=0 hat=0 ball=0", "casino": "Food=0 Water=0 Firewood=0"}
_JOB = "Salary=30 Holiday=3 Workplace=Tokyo Company=Apple Position=Sales"
_ROWS = [
    ("ultimatum", r"\boxed{AGREED: split=$60}", True, None),
    ("ultimatum", r"\boxed{AGREED: split=$600}", False, None),
    ("ultimatum", r"\boxed{AGREED: split=$60", False, None),
    ("ultimatum", r"You get $40. \boxed{AGREED: split=$60}", True, True),
    ("ultimatum", r"You get $30. \boxed{AGREED: split=$60}", True, False),
    ("ultimatum", r"\boxed{REJECT}", False, None),
    ("craigslist", r"I can do $7.50. \boxed{AGREED: $7.50}", True, True),
    ("craigslist", r"I can do $75. \boxed{AGREED: $7.50}", True, False),
    ("craigslist", r"\boxed{AGREED: 7.5 apples}", False, None),
    ("casino", r"\boxed{AGREED: MINE: Food=3 Water=3 Firewood=3; THEIRS: Food=0 Water=0 "
     r"Firewood=1}", False, None),
    ("casino", r"I take 3 food. \boxed{AGREED: MINE: Food=2 Water=3 Firewood=3; THEIRS: Food=1 "
     r"Water=0 Firewood=0}", True, False),
    ("casino", r"\boxed{ACCEPT}", True, None),
    ("job_interview", rf"Tokyo and Sales. \boxed{{AGREED: {_JOB}}}", True, True),
    ("job_interview", rf"Then Salary=35. \boxed{{AGREED: {_JOB}}}", True, False),
    ("job_interview", rf"Seoul is nice. \boxed{{AGREED: {_JOB}}}", True, False),
    ("job_interview", r"\boxed{AGREED: Salary=60 Holiday=3}", False, None),
    ("alliance", r"A plan with C=2. \boxed{AGREED: A=1 B=2 C=2 D=4 E=5}", True, True),
    ("alliance", r"I want C=3. \boxed{AGREED: A=1 B=2 C=2 D=4 E=5}", True, False),
    ("alliance", r"\boxed{AGREED: A=3 B=2 C=2 D=4 E=5}", False, None),
]  # fmt: skip


@pytest.mark.parametrize(("game", "text", "valid", "fits"), _ROWS, ids=[r[1] for r in _ROWS])
def test_the_measure_sees_wrong_boxes_and_words_that_differ(
    lab: Any, game: str, text: str, valid: bool, fits: bool | None
) -> None:
    scenario = lab("kernels").kernels(game, 1, seed=0)[0]  # Ultimatum: a pool of 100
    judging = lab("judging")
    assert [box.valid for box in judging.agent_boxes(text, scenario)] == [valid]
    assert judging.words_fit(text, scenario) is fits


def test_the_measure_sees_consent_to_other_terms_than_offered(lab: Any) -> None:
    judging = lab("judging")
    scenario = lab("kernels").kernels("ultimatum", 1, seed=0)[0]
    turns = [Turn(Role.AGENT, "Split $100?", scripted=True)]
    agreed = r"Agreed, I take $45. \boxed{AGREED: split=$45}"
    assert judging.consent_is_copied(agreed, turns, scenario) is False
    turns.append(Turn(Role.PARTNER, r"Hm. \boxed{AGREED: split=$45}"))
    assert judging.consent_is_copied(agreed, turns, scenario) is True
    assert judging.consent_is_copied(agreed.replace("45", "54"), turns, scenario) is False
    assert (
        judging.consent_is_copied(r"I want $60. \boxed{AGREED: split=$60}", turns, scenario) is None
    )


def test_the_value_of_a_box_is_the_own_share(lab: Any) -> None:
    judging = lab("judging")
    scenario = lab("kernels").kernels("deal_or_no_deal", 1, seed=0)[0]
    counts = scenario.facts["counts"]
    everything = " ".join(f"{i}={n}" for i, n in zip(("book", "hat", "ball"), counts, strict=True))
    nothing = _NOTHING["deal_or_no_deal"]
    for mine, theirs, share in ((everything, nothing, 1.0), (nothing, everything, 0.0)):
        text = f"\\boxed{{AGREED: MINE: {mine}; THEIRS: {theirs}}}"
        assert [box.share for box in judging.agent_boxes(text, scenario)] == [share]


def test_invented_kernels_have_the_layout_of_the_data(lab: Any) -> None:
    kernels = lab("kernels")
    for scenario in kernels.invented("deal_or_no_deal", 200, 1):
        counts = scenario.facts["counts"]
        assert 5 <= sum(counts) <= 7
        for side in ("agent_values", "partner_values"):
            assert sum(c * v for c, v in zip(counts, scenario.facts[side], strict=True)) == 10
    for scenario in kernels.invented("casino", 50, 1):
        for side in ("agent_order", "partner_order"):
            assert sorted(scenario.facts[side]) == ["Firewood", "Food", "Water"]
    listings = [s.facts for s in kernels.invented("craigslist", 500, 1)]
    assert all(0 < f["target"] < f["list_price"] < 100_000 for f in listings)
    assert len({f["title"] for f in listings}) > 450
    assert len({f["list_price"] for f in listings}) > 200


def _rows(lab: Any, n: int, vocabulary: int) -> tuple[list[Any], Any]:
    corpus = lab("corpus")
    rng = random.Random(1)
    lessons = [one for played in corpus.dialogues(n, 3) for one in corpus.lessons(played, rng)]
    words = lab("tokenizer").train_tokenizer(
        (m.content for one in lessons for m in one.messages), vocabulary
    )
    return lessons, words


def test_a_killed_training_ends_with_the_weights_of_an_undisturbed_one(
    lab: Any, tmp_path: Path
) -> None:
    training = lab("training")
    lessons, words = _rows(lab, 8, 500)
    rows = [training.encode_row(one, words) for one in lessons]
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
    training = lab("training")
    lessons, words = _rows(lab, 10, 500)
    for lesson in lessons:
        row = training.encode_row(lesson, words)
        chat = [m.as_dict() for m in lesson.messages]
        assert words.decode(row.ids) == words.apply_chat_template(chat, tokenize=False)
        own = [m.content for m in lesson.messages[lesson.first :] if m.role == "assistant"]
        assert words.decode(row.ids[row.own]) == "".join(f"{text}<|im_end|>" for text in own)


def test_it_starts_with_heads_that_look_at_the_token_before(lab: Any) -> None:
    import torch

    training = lab("training")
    _, words = _rows(lab, 4, 500)
    model = training.build_model(training.Shape(), words, seed=0).eval()
    model.set_attn_implementation("eager")
    ids = torch.randint(3, len(words), (2, 60), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        looks = model(input_ids=ids, output_attentions=True).attentions[0]  # (B, H, T, T)
    before = looks.diagonal(offset=-1, dim1=2, dim2=3)  # (B, H, T - 1)
    assert before[:, :2].mean() > 0.7
    assert before[:, 2:].mean() < 0.2
