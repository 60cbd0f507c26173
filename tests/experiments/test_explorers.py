"""Optimism in a run: from round 1 on, by the Q of the round before, on training kernels alone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from iterpo.agents.optimist import draw_optimism
from iterpo.artifacts import open_sealed
from iterpo.config import canonical_yaml
from iterpo.domain import decisions, derive
from iterpo.errors import ConfigError
from iterpo.experiments import rollout
from iterpo.experiments.events import Event, Report, ignore
from iterpo.experiments.lineage import policy_of_round
from iterpo.experiments.loop import run
from iterpo.experiments.phases import execute
from iterpo.experiments.plan import Plan, load_plan, preset_names
from iterpo.policy_evaluation.continuation import first_own_return
from iterpo.store import read_conversations

OPTIMISM = [
    "collect.optimism={share: 0.5, candidates: 4, scale: 1.5, within: 1}",
    "q.off_policy=drop",
    "q.heads=3",
    "rounds=2",
]


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ([OPTIMISM[0], "q.heads=2"], r"q\.off_policy: given 'refuse' with collect\.optimism; acc"),
        (
            [*OPTIMISM[:2], "q.heads=1"],
            r"collect\.optimism\.scale: given 1\.5 with q\.heads 1; one head has no",
        ),
        ([*OPTIMISM, "collect.optimism.share=1"], r"collect\.optimism\.share: given 1.*below 1"),
        (
            [*OPTIMISM, "collect.sampling.temperature=0"],
            r"collect\.optimism: given with collect\.sampling\.temperature 0",
        ),
        ([*OPTIMISM, "rounds=1"], r"collect\.optimism: given with rounds 1.*rounds of 2 or more"),
        ([*OPTIMISM, "collect.optimism.candidates=1"], r"collect\.optimism\.candidates: given 1"),
    ],
)
def test_a_plan_that_it_can_not_work_in_is_refused(settings: list[str], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        load_plan("smoke", settings)


def test_without_a_spread_one_head_will_do() -> None:
    load_plan("smoke", [*OPTIMISM[:2], "rounds=2", "collect.optimism.scale=0"])


def test_plans_without_it_are_what_they_were_before_it_existed() -> None:
    """A run that was begun by an earlier version can be resumed."""
    assert all(load_plan(name).collect.optimism is None for name in preset_names())
    with_it = [load_plan("demo", [*OPTIMISM, f"collect.optimism.scale={s}"]) for s in (1, 2)]
    assert len({load_plan("demo").identity(), *(p.identity() for p in with_it)}) == 3


def test_an_unset_option_that_earlier_versions_lacked_is_no_part_of_the_identity(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plans = [load_plan("demo"), load_plan("demo", OPTIMISM)]
    hashed: list[str] = []
    real = json.dumps

    def noting(value: Any, **options: Any) -> str:
        hashed.append(real(value, **options))
        return hashed[-1]

    monkeypatch.setattr("iterpo.experiments.identity.json.dumps", noting)
    for plan in plans:
        plan.identity()
    assert ["optimism" in text for text in hashed] == [False, True]


def _plan() -> Plan:
    small = ["collect.scenarios=6", "heldout.scenarios=3", "collect.concurrency=4"]
    quick = ["improve.steps=1", "improve.prompts_per_step=2", "improve.group_size=2"]
    return load_plan("smoke", [*small, *quick, *OPTIMISM, "rounds=3", "verdict.states=0"])


def _here(folder: Path, key: str, lock_fd: int, report: Report) -> None:
    execute(folder, key, report)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Plan]:
    pytest.importorskip("trl")
    place = tmp_path_factory.mktemp("optimism")
    plan = _plan()
    run(plan, place / "run", execute=_here)
    return place / "run", plan


def _facts(folder: Path, i: int) -> dict[str, Any]:
    return dict(open_sealed(folder / f"round-{i}/deploy", "deploy")["facts"])


def test_round_0_says_that_there_is_no_q_yet(finished: tuple[Path, Plan]) -> None:
    folder, _ = finished
    told = _facts(folder, 0)["optimism"]
    assert (told["drawn"], told["said"], told["q_round"]) == (0, 0, None)
    assert "no Q has been fitted before round 0" in told["why"]
    log = read_conversations(folder / "round-0/deploy/train")
    assert {c.exploration for c in log} == {None}


@pytest.mark.parametrize("i", [1, 2])
def test_later_rounds_say_what_the_last_q_finds_most_promising(
    finished: tuple[Path, Plan], i: int
) -> None:
    from iterpo.domain import Response
    from iterpo.models.backbone import load
    from iterpo.models.generation import generate
    from iterpo.policy_evaluation.qfunction import QFunction
    from iterpo.policy_evaluation.upper_bound import UpperBound

    folder, plan = finished
    assert plan.collect.optimism is not None
    log = read_conversations(folder / f"round-{i}/deploy/train")
    assert [c.exploration for c in log] == [
        draw_optimism(plan.collect.optimism, c.seed) for c in log
    ]
    explored = [c for c in log if c.explored]
    said = [c for c in explored if any(t.off_policy for t in c.turns)]
    told = _facts(folder, i)
    assert told["optimism"] == {"drawn": len(explored), "said": len(said), "q_round": i - 1}
    assert told["train"]["explored"] == len(explored)
    assert said
    held = read_conversations(folder / f"round-{i}/deploy/heldout")
    assert {c.exploration for c in held} == {None}
    policy = load(policy_of_round(folder, plan, i), dtype="float32", device="cpu")
    before = load(policy_of_round(folder, plan, i - 1), dtype="float32", device="cpu")
    score = UpperBound(QFunction.load(folder / f"round-{i - 1}/update/q", before), 1.5)
    agreed = 0
    for c in said:
        row = decisions(c, 0.9)[first_own_return(c, 0.9) - 1]
        assert row.turn.off_policy
        seeds = [c.seed, *(derive(c.seed, "optimism", "draft", k) for k in range(1, 4))]
        prompt = policy.chat.prompt_ids(row.state.messages)
        drawn = generate(policy, [prompt] * 4, plan.collect.sampling, [derive(s, 2) for s in seeds])
        drafts = [Response(policy.chat.decode(g.token_ids), g.token_ids) for g in drawn]
        scores = score([row.state] * 4, drafts)
        assert None not in scores
        chosen = max(range(4), key=lambda k: scores[k] or 0.0)
        agreed += row.response == drafts[chosen]
    assert agreed == len(said)


def test_nothing_is_explored_where_no_q_is_fitted_afterwards(finished: tuple[Path, Plan]) -> None:
    """All conversations of the last policy measure it."""
    folder, plan = finished
    told = _facts(folder, plan.rounds)
    assert (told["optimism"]["drawn"], told["optimism"]["q_round"]) == (0, None)
    assert "after the last round" in told["optimism"]["why"]
    log = read_conversations(folder / f"round-{plan.rounds}/deploy/train")
    assert {c.exploration for c in log} == {None}
    assert told["train"]["n_scored"] == len(log)


def test_q_is_fitted_to_the_rows_that_are_its_own(finished: tuple[Path, Plan]) -> None:
    folder, _ = finished
    log = read_conversations(folder / "round-1/deploy/train")
    health = open_sealed(folder / "round-1/update", "update")["facts"]["q_health"]
    rows = sum(len(decisions(c, 0.9)[first_own_return(c, 0.9) - 1 :]) for c in log)
    assert health["rows"] == rows
    assert health["unrecorded"] == 0


def test_a_killed_collection_resumes_to_the_same_bytes(
    finished: tuple[Path, Plan], tmp_path: Path
) -> None:
    folder, plan = finished
    shutil.copytree(folder, tmp_path / "r")
    shutil.rmtree(tmp_path / "r/round-1/deploy")

    def killing(event: Event) -> None:
        if event.stage == "train" and event.done == 6:  # in the second block
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rollout.deploy(tmp_path / "r", plan, "round-1/deploy", killing)
    assert list((tmp_path / "r/round-1/deploy").rglob("*.jsonl")), "a finished block is kept"
    rollout.deploy(tmp_path / "r", plan, "round-1/deploy", ignore)
    for path in (folder / "round-1/deploy").rglob("*"):
        if path.is_file():
            again = tmp_path / "r" / path.relative_to(folder)
            assert again.read_bytes() == path.read_bytes(), path


def test_a_method_without_a_q_is_said_to_have_none(
    finished: tuple[Path, Plan], tmp_path: Path
) -> None:
    folder, plan = finished
    shutil.copytree(folder, tmp_path / "r")
    shutil.rmtree(tmp_path / "r/round-1/deploy")
    shutil.rmtree(tmp_path / "r/round-0/update/q")
    manifest = tmp_path / "r/round-0/update/manifest.json"
    facts = json.loads(manifest.read_text())
    facts["files"] = {k: v for k, v in facts["files"].items() if not k.startswith("q/")}
    manifest.write_text(json.dumps(facts))
    rollout.deploy(tmp_path / "r", plan, "round-1/deploy", ignore)
    told = _facts(tmp_path / "r", 1)["optimism"]
    assert (told["drawn"], told["q_round"]) == (0, None)
    assert "stored no Q in round 0" in told["why"]


def test_the_table_of_rounds_counts_the_optimistic_messages(
    finished: tuple[Path, Plan], capsys: pytest.CaptureFixture[str]
) -> None:
    from iterpo.cli.rounds import print_rounds
    from iterpo.experiments.results import read_run

    folder, plan = finished
    assert canonical_yaml(read_run(folder).plan) == canonical_yaml(plan)
    print_rounds(read_run(folder))
    told = " ".join(capsys.readouterr().out.split())
    assert "round 0: no Q has been fitted before round 0" in told
    assert "chosen optimistically by Q of round 0" in told
