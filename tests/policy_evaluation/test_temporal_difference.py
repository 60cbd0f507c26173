"""Estimators of Q^pi against exact values, on a game small enough to log in its exact shares.

The agent says 0 or 1, three times at most; after each the partner closes in half of the cases, and
after the third in all. What a deal is worth depends on everything that was said. Features are
one-hot, and logs hold every course of the game as often as it is expected. So an exact fit of least
squares has no error but those of principle; a few tests fit the network that is used.
"""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence

import pytest
import torch

from iterpo.agents.optimist import CHOICE
from iterpo.domain import (
    Conversation,
    Ending,
    Exploration,
    Outcome,
    Response,
    Role,
    State,
    Turn,
    decisions,
)
from iterpo.errors import BatchError, ConfigError
from iterpo.policy_evaluation import fit, temporal_difference
from iterpo.policy_evaluation.base import QConfig
from iterpo.policy_evaluation.continuation import own_targets
from iterpo.policy_evaluation.earlier import EarlierRound, log_weights
from iterpo.policy_evaluation.features import Extracted
from iterpo.policy_evaluation.qfunction import QFunction, ValueHead
from iterpo.policy_evaluation.temporal_difference import Ahead, Pairs, iterate
from iterpo.policy_evaluation.transitions import transitions

LONGEST = 3
PLAIN = {0: 0.25, 1: 0.75}
OTHER = {0: 0.75, 1: 0.25}
"""A persona, or an older policy."""

Said = tuple[int, ...]
SAID: list[Said] = [
    tuple(n >> i & 1 for i in range(t)) for t in range(1, LONGEST + 1) for n in range(2**t)
]

CONFIG = QConfig(
    hidden=16, heads=1, dropout=0.0, learning_rate=1e-2, weight_decay=0.0, epochs=30,
    batch_size=64, holdout_fraction=0.0, judge_fraction=0.0, td_iterations=LONGEST - 1,
    pool_max_weight=100.0, pool_min_ess=0.0,
)  # fmt: skip
CLOSE = 1e-5
"""Rounding of fp32."""
FAR = 0.07


def worth(said: Said) -> float:
    """1 is better said last, and worse said before."""
    return 1.0 - 0.4 * sum(said[:-1]) + 0.6 * said[-1]


def exact(said: Said, gamma: float, step: int, last: int, policy: dict[int, float]) -> float:
    """Q of a policy by dynamic programming; ``said`` is the state and the action at its end.

    ``step`` and ``last`` are the powers of gamma between actions and to the closing message.
    """
    closes = 0.5 if len(said) < LONGEST else 1.0
    value = closes * gamma**last * worth(said)
    if closes < 1:
        following = (p * exact((*said, a), gamma, step, last, policy) for a, p in policy.items())
        value += (1 - closes) * gamma**step * sum(following)
    return value


def table(policy: dict[int, float] = PLAIN, unit: str = "agent_turn") -> dict[Said, float]:
    step, last = (1, 0) if unit == "agent_turn" else (2, 1)
    return {said: exact(said, 0.9, step, last, policy) for said in SAID}


def talk(said: Said, i: int, drawn: Exploration | None = None) -> Conversation:
    turns = [Turn(Role.AGENT, "open", scripted=True)]
    off = drawn is not None and drawn.off_policy
    for t, a in enumerate(said, 1):
        marked = drawn is not None and off and drawn.action in (None, t)
        turns += [Turn(Role.PARTNER, "?"), Turn(Role.AGENT, str(a), off_policy=marked)]
    turns.append(Turn(Role.PARTNER, "deal"))
    outcome = Outcome(Ending.AGREED, worth(said), closing_message=len(turns) - 1)
    name = f"{said}{i}{drawn}"
    return Conversation(name, name, "toy", tuple(turns), outcome, "", exploration=drawn)


def courses(by_turn: Sequence[dict[int, float]]) -> Iterator[tuple[Said, float]]:
    def go(said: Said, p: float) -> Iterator[tuple[Said, float]]:
        for a, q in by_turn[len(said)].items():
            longer = (*said, a)
            closes = 0.5 if len(longer) < LONGEST else 1.0
            yield longer, p * q * closes
            if closes < 1:
                yield from go(longer, p * q * (1 - closes))

    yield from go((), 1.0)


def log(by_turn: Sequence[dict[int, float]], drawn: Exploration | None = None):
    """256 conversations: every course in its exact share."""
    out = []
    for said, p in courses(by_turn):
        n = p * 256
        assert n == round(n)
        out += [talk(said, i, drawn) for i in range(round(n))]
    assert len(out) == 256
    return out


ON_POLICY = log([PLAIN] * 3)
PERSONA = log([OTHER] * 3, Exploration({"tone": "blunt"}, 0.5))
"""Throughout."""
ONE_MESSAGE = [
    c
    for k in (1, 2, 3)
    for c in log(
        [OTHER if t == k else PLAIN for t in (1, 2, 3)], Exploration({"tone": "warm"}, 1 / 3, k)
    )
]


def ratios(conversation: Conversation) -> tuple[float, ...]:
    """log pi - log pi_other of what was said off-policy, exactly 0 elsewhere."""
    agent = [t for t in conversation.turns if t.role is Role.AGENT and not t.scripted]
    each = [math.log(PLAIN[int(t.text)] / OTHER[int(t.text)]) for t in agent]
    return tuple(x if t.off_policy else 0.0 for x, t in zip(each, agent, strict=True))


def weighable(log: Sequence[Conversation]) -> EarlierRound:
    return EarlierRound(0, tuple(log), tuple(ratios(c) for c in log))


def respond(states: Sequence[State]) -> list[list[Response]]:
    """Four drawn in exact shares."""
    return [[Response("0"), Response("1"), Response("1"), Response("1")] for _ in states]


def key(state: State, response: Response) -> Said:
    before = [m.content for m in state.messages if m.role == "assistant"][1:]
    return tuple(int(a) for a in (*before, response.text))


@pytest.fixture
def one_hot(monkeypatch: pytest.MonkeyPatch) -> None:
    def extract(_, states, responses, **__):
        rows = [SAID.index(key(s, r)) for s, r in zip(states, responses, strict=True)]
        return Extracted(torch.eye(len(SAID))[rows], len(rows), 0, 0, "float32")

    monkeypatch.setattr(fit, "extract", extract)


def least_squares(features, targets, config, on_epoch=None, weights=None) -> ValueHead:
    """The head of least weighted squares: relu(1 x) times the mean target of each cell.

    A cell without a row is nan: nothing may lean on it.
    """
    weights = torch.ones(len(targets)) if weights is None else weights
    total = features.T.double() @ weights.double()
    values = features.T.double() @ (weights * targets).double() / total
    head = ValueHead(len(SAID), len(SAID), 1, 0.0).eval().requires_grad_(False)
    head.inner.weight.copy_(torch.eye(len(SAID)))
    head.inner.bias.zero_()
    head.bias.zero_()
    head.outer.copy_(torch.where(total > 0, values, torch.nan).float()[None])

    def lookup(x, pessimism=0.0):
        return head.outer[0][x.argmax(dim=1)]

    head.forward = lookup
    return head


@pytest.fixture
def tabular(one_hot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit, "regress", least_squares)
    monkeypatch.setattr(temporal_difference, "regress", least_squares)


def errors(q: QFunction, exact: dict[Said, float], only: Sequence[Said] = SAID) -> float:
    found = q.scores(torch.eye(len(SAID)))
    gaps = [abs(float(found[SAID.index(said)]) - exact[said]) for said in only]
    assert not any(map(math.isnan, gaps))
    return max(gaps)


def config(estimator: str, **changes) -> QConfig:
    return dataclasses.replace(CONFIG, estimator=estimator, **changes)


@pytest.mark.parametrize("unit", ["agent_turn", "message"])
@pytest.mark.parametrize("estimator", ["monte_carlo", "sarsa", "fitted_q"])
def test_on_policy_every_estimator_finds_exact_q(backbone, tabular, estimator, unit) -> None:
    settings = config(estimator, discount_unit=unit)
    q = fit.fit_q(backbone, ON_POLICY, settings, respond=respond).q
    assert errors(q, table(unit=unit)) < CLOSE
    assert errors(q, table(OTHER, unit)) > FAR  # the policy matters here


@pytest.mark.parametrize(("estimator", "said"), [("sarsa", "policy"), ("fitted_q", "persona")])
def test_the_network_finds_it_too_as_far_as_it_is_fitted(
    backbone, one_hot, estimator, said
) -> None:
    log = {"policy": ON_POLICY, "persona": PERSONA}[said]
    settings = config(estimator, off_policy="drop")
    q = fit.fit_q(backbone, log, settings, respond=respond).q
    assert errors(q, table(), SAID[:6]) < 0.04
    assert errors(q, table(OTHER), SAID[:6]) > 0.08


def unmarked(log: Sequence[Conversation]) -> list[Conversation]:
    """As if the policy had said it: what is wrong without a correction."""
    return [
        dataclasses.replace(
            c,
            exploration=None,
            turns=tuple(dataclasses.replace(t, off_policy=False) for t in c.turns),
        )
        for c in log
    ]


@pytest.mark.parametrize("estimator", ["monte_carlo", "sarsa"])
def test_uncorrected_another_policys_log_teaches_its_own_q(backbone, tabular, estimator) -> None:
    """The wrong-on-purpose twin: Q of who spoke, not of the policy."""
    q = fit.fit_q(backbone, unmarked(PERSONA), config(estimator)).q
    assert errors(q, table(OTHER)) < CLOSE
    assert errors(q, table()) > FAR


@pytest.mark.parametrize("estimator", ["monte_carlo", "sarsa"])
def test_weights_find_the_policys_q_in_what_personas_said_throughout(
    backbone, tabular, estimator
) -> None:
    settings = config(estimator, off_policy="weight")
    found = fit.fit_q(backbone, PERSONA, settings, explored=weighable(PERSONA))
    assert errors(found.q, table()) < CLOSE
    (told,) = found.report.corrected
    assert (told.rows, told.conversations) == (448, 256)
    assert [t.mean_weight for t in told.turns] == pytest.approx([1.0, 1.0, 1.0])
    # One ratio varies less than a product of two.
    assert told.turns[0].ess == pytest.approx(
        {"monte_carlo": 104.73, "sarsa": 153.6}[estimator], abs=0.01
    )


def test_a_cap_leaves_weighted_q_between_the_two(backbone, tabular) -> None:
    settings = config("monte_carlo", off_policy="weight", pool_max_weight=1.0)
    q = fit.fit_q(backbone, PERSONA, settings, explored=weighable(PERSONA)).q
    assert errors(q, table()) > FAR


@pytest.mark.parametrize("unit", ["agent_turn", "message"])
def test_fitted_q_finds_the_policys_q_in_anybodys_log(backbone, tabular, unit) -> None:
    """No record of the draw, no log-probs: what comes next is drawn from the policy."""
    settings = config("fitted_q", discount_unit=unit, off_policy="drop")
    assert (
        errors(fit.fit_q(backbone, PERSONA, settings, respond=respond).q, table(unit=unit)) < CLOSE
    )
    forgotten = [dataclasses.replace(c, exploration=None) for c in PERSONA]
    found = fit.fit_q(backbone, forgotten, settings, respond=respond)
    assert errors(found.q, table(unit=unit)) < CLOSE
    assert found.report.unrecorded > 0


def test_with_too_few_regressions_fitted_q_is_still_partly_the_other_policys(
    backbone, tabular
) -> None:
    """The first one is Monte Carlo; each later one moves the policy's own answer a turn back."""
    settings = config("fitted_q", td_iterations=1)
    q = fit.fit_q(backbone, unmarked(PERSONA), settings, respond=respond).q
    late = [said for said in SAID if len(said) >= 2]
    assert errors(q, table(), late) < CLOSE
    assert errors(q, table(), SAID[:2]) > FAR / 2


def test_older_rounds_are_weighed_by_one_ratio_or_not_at_all(backbone, tabular) -> None:
    old = unmarked(PERSONA)
    earlier = [EarlierRound(0, tuple(old), tuple(ratios(c) for c in PERSONA))]
    few = ON_POLICY[::8]
    for estimator in ("monte_carlo", "sarsa", "fitted_q"):
        settings = config(estimator, pool_rounds=1)
        found = fit.fit_q(backbone, few, settings, earlier=earlier, respond=respond)
        assert errors(found.q, table(), SAID[6:]) < CLOSE
        assert found.report.pooled[0].rows == 448
    weights = fit.weigh_rounds(earlier, settings).weights
    assert set(weights) == {1.0}


def rows_used(report) -> int:
    return report.rows + sum(r.rows for r in report.corrected)


@pytest.mark.parametrize(
    ("estimator", "off_policy", "lost"),
    [
        # Message 1, 2 or 3 was explored; 448 rows each, of which 256 are first and 128 second ones.
        ("monte_carlo", "drop", 256 + 384),
        ("monte_carlo", "weight", 0),
        ("sarsa", "drop", 256 + 128),
        ("sarsa", "weight", 0),
        ("fitted_q", "drop", 0),
    ],
)
def test_which_rows_each_estimator_uses_where_one_message_was_explored(
    backbone, tabular, estimator, off_policy, lost
) -> None:
    settings = config(estimator, off_policy=off_policy)
    explored = weighable(ONE_MESSAGE) if off_policy == "weight" else None
    found = fit.fit_q(backbone, ONE_MESSAGE, settings, explored=explored, respond=respond)
    assert 3 * 448 - rows_used(found.report) == lost
    assert found.report.left_out["explored_rows"] == 256 + 384
    assert errors(found.q, table()) < CLOSE
    assert found.report.estimator == estimator


def test_sarsa_keeping_the_row_before_an_explored_message_where_it_ended_is_wrong(
    backbone, tabular, monkeypatch
) -> None:
    """The tempting rule: an explored message that was never said changed nothing."""

    def tempting(c, gamma, estimator):
        rows = decisions(c, gamma)
        agent = [t for t in c.turns if t.role is Role.AGENT and not t.scripted]
        return tuple(i == len(rows) or not agent[i].off_policy for i in range(1, len(rows) + 1))

    monkeypatch.setattr("iterpo.policy_evaluation.earlier.own_targets", tempting)
    settings = config("sarsa", off_policy="drop")
    assert errors(fit.fit_q(backbone, ONE_MESSAGE, settings).q, table(), SAID[:6]) > CLOSE


@pytest.mark.parametrize("estimator", ["monte_carlo", "sarsa", "fitted_q"])
def test_own_targets_are_enumerated_samples_of_q(estimator) -> None:
    """Target by target: the mean of the kept ones is exact Q wherever one is kept."""
    exact_q = table()
    sums: dict[Said, list[float]] = defaultdict(list)
    for c in ONE_MESSAGE:
        rows, steps = decisions(c, 0.9), transitions(c, 0.9, "agent_turn")
        for row, step, kept in zip(rows, steps, own_targets(c, 0.9, estimator), strict=True):
            if not kept:
                continue
            said = key(row.state, row.response)
            if estimator == "monte_carlo":
                target = row.ret
            elif step.following is None:
                target = step.reward
            elif estimator == "sarsa":
                target = step.discount * exact_q[key(step.following.state, step.following.response)]
            else:
                target = step.discount * sum(p * exact_q[*said, a] for a, p in PLAIN.items())
            sums[said].append(target)
    assert set(sums) == set(SAID)
    for said, targets in sums.items():
        assert sum(targets) / len(targets) == pytest.approx(exact_q[said])


def test_marks_without_a_record_leave_sarsa_what_monte_carlo_has() -> None:
    (c,) = [c for c in ONE_MESSAGE if c.id.startswith("(1, 1, 1)0") and c.exploration.action == 2]
    assert own_targets(c, 0.9) == (False, True, True)
    assert own_targets(c, 0.9, "sarsa") == (False, True, True)
    late = dataclasses.replace(c, exploration=dataclasses.replace(c.exploration, action=3))
    assert own_targets(late, 0.9, "sarsa") == (False, False, True)  # a mark that was not drawn
    forgotten = dataclasses.replace(c, exploration=None)
    assert own_targets(forgotten, 0.9, "sarsa") == (False, True, True)
    whole = dataclasses.replace(c, exploration=Exploration({"tone": "warm"}, 0.5))
    assert own_targets(whole, 0.9, "sarsa") == (False, False, False)
    assert own_targets(whole, 0.9, "fitted_q") == (True, True, True)
    third = next(c for c in ONE_MESSAGE if c.exploration.action == 3 and len(c.turns) == 8)
    assert own_targets(third, 0.9, "sarsa") == (True, False, True)


def test_transitions_in_both_units() -> None:
    """Three actions at messages 2, 4 and 6, closed at message 7."""
    c = talk((1, 1, 0), 0)
    assert [(s.reward, s.discount) for s in transitions(c, 0.5, "agent_turn")] == [
        (0.0, 0.5), (0.0, 0.5), (pytest.approx(0.2), 0.0),
    ]  # fmt: skip
    by_message = transitions(c, 0.5, "message")
    assert [(s.reward, s.discount) for s in by_message] == [
        (0.0, 0.25), (0.0, 0.25), (pytest.approx(0.1), 0.0),
    ]  # fmt: skip
    for unit in ("agent_turn", "message"):
        rows, steps = decisions(c, 0.5, unit), transitions(c, 0.5, unit)
        later = [*(r.ret for r in rows[1:]), 0.0]
        for row, step, ret in zip(rows, steps, later, strict=True):
            assert row.ret == pytest.approx(step.reward + step.discount * ret)
    failed = dataclasses.replace(c, outcome=Outcome(Ending.ABANDONED, None))
    assert transitions(failed, 0.5, "message") == () or failed.outcome.ending.scored


def test_log_weights_of_the_estimators() -> None:
    """Ratios 3, 2 and 1/4: a product ahead, one ahead, none."""
    logs = [math.log(3), math.log(2), math.log(1 / 4)]
    for estimator, weights in (
        ("monte_carlo", [0.5, 0.25, 1]), ("sarsa", [2, 0.25, 1]), ("fitted_q", [1, 1, 1]),
    ):  # fmt: skip
        assert [math.exp(x) for x in log_weights(logs, estimator)] == pytest.approx(weights)


class Scores:
    """A head whose score is the feature."""

    def __call__(self, features):
        return features[:, 0]


def test_targets_average_what_follows_and_skip_what_has_no_features() -> None:
    """Rows: one ends at 1; one leads to 2 and 4; one to 5 and nan; one to nan alone."""
    pairs = Pairs((1.0, 0.0, 0.0, 0.0), (0.0, 0.5, 0.5, 0.5), (), (), (1, 1, 2, 2, 3))
    nan = float("nan")
    ahead = Ahead.of(pairs, torch.tensor([[2.0], [4.0], [5.0], [nan], [nan]]))
    assert ahead.complete.tolist() == [True, True, True, False]
    assert ahead.targets(Scores())[:3].tolist() == [1.0, 1.5, 2.5]
    some = ahead.where(torch.tensor([True, False, True, False]))
    assert some.targets(Scores()).tolist() == [1.0, 2.5]
    assert some.owners.tolist() == [1]


def test_pairs_none_of_which_has_features_complete_no_row() -> None:
    """No text that fits leaves features without columns; all of nothing is finite."""
    ahead = Ahead.of(Pairs((1.0, 0.0), (0.0, 0.5), (), (), (1,)), torch.zeros(1, 0))
    assert ahead.complete.tolist() == [True, False]


def test_nothing_to_lean_on_is_monte_carlo_again(backbone, one_hot) -> None:
    """Conversations of one action: every regression has the same targets, from the same start."""
    short = [talk((a,), i) for a in (0, 1) for i in range(20)]
    heads = [
        fit.fit_q(backbone, short, config(e, epochs=3)).q.head for e in ("monte_carlo", "sarsa")
    ]
    assert torch.equal(heads[0].outer, heads[1].outer)


def test_iterations_and_epochs_are_told_as_one_course(backbone, one_hot) -> None:
    told = []
    settings = config("sarsa", epochs=3, holdout_fraction=0.2)
    fit.fit_q(backbone, ON_POLICY[::4], settings, record=lambda step, _: told.append(step))
    assert settings.passes == 9
    assert told == list(range(1, 19))  # report, then refit


def test_the_same_seed_gives_the_same_bytes(backbone, one_hot) -> None:
    settings = config("fitted_q", epochs=2, holdout_fraction=0.2)
    ids = {fit.fit_q(backbone, ON_POLICY[::4], settings, respond=respond).q.id for _ in "ab"}
    assert len(ids) == 1


def test_a_diverging_iteration_is_an_error_or_bounded() -> None:
    """With clamped scores targets stay within what rewards allow, whatever gamma."""
    features, rewards = torch.eye(2), (0.0, 1.0)
    pairs = Pairs(rewards, (1.0, 0.0), (), (), (0,))
    ahead = Ahead.of(pairs, features[:1])  # leans on itself: nothing ever pays
    head, targets = iterate(
        features, torch.tensor([0.5, 1.0]), ahead, config("sarsa", td_iterations=5, epochs=5)
    )
    assert float(targets.max()) <= 1.0
    with torch.no_grad():
        assert bool(torch.isfinite(head(features)).all())


def test_what_can_not_be_right_is_refused_before_anything_is_read(backbone) -> None:
    with pytest.raises(ConfigError, match="estimator is 'sarsa' with gamma 0"):
        QConfig(gamma=0.0, estimator="sarsa")
    with pytest.raises(ConfigError, match="off_policy is 'weight' with estimator 'fitted_q'"):
        QConfig(estimator="fitted_q", off_policy="weight")
    with pytest.raises(ConfigError, match="td_iterations: given 0; accepted: 1 or more"):
        QConfig(estimator="sarsa", td_iterations=0)
    with pytest.raises(ConfigError, match="estimator: given 'td'; accepted: monte_carlo, sarsa"):
        QConfig(estimator="td")
    with pytest.raises(ConfigError, match="'fitted_q' without responses of the policy"):
        fit.fit_q(backbone, ON_POLICY, config("fitted_q"))
    with pytest.raises(ConfigError, match="'weight' without the policy's ratios"):
        fit.fit_q(backbone, PERSONA, config("sarsa", off_policy="weight"))
    with pytest.raises(BatchError, match="explored off-policy"):
        fit.fit_q(backbone, PERSONA, config("fitted_q"), respond=respond)
    with pytest.raises(BatchError, match="1 answers for"):
        fit.fit_q(backbone, ON_POLICY, config("fitted_q"), respond=lambda _: [[]])


def test_what_can_not_be_weighed_is_told_and_dropped(backbone, tabular) -> None:
    settings = config("sarsa", off_policy="weight")
    refused = EarlierRound(0, refused="an agent turn was greedy")
    found = fit.fit_q(backbone, [*ON_POLICY, *PERSONA], settings, explored=refused)
    assert rows_used(found.report) == 448
    assert "explored turns were not weighed: an agent turn was greedy" in found.report.concerns()
    with pytest.raises(BatchError, match=r"none can be corrected for \(an agent turn"):
        fit.fit_q(backbone, PERSONA, settings, explored=refused)


def test_a_chosen_draft_is_dropped_where_personas_are_weighed(backbone, tabular) -> None:
    chosen = log([OTHER, PLAIN, PLAIN], Exploration(CHOICE, 0.5, 2))
    assert all(c.exploration.chosen for c in chosen)
    settings = config("monte_carlo", off_policy="weight")
    found = fit.fit_q(backbone, [*chosen, *PERSONA], settings, explored=weighable(PERSONA))
    assert rows_used(found.report) == 448 + 128 + 64
