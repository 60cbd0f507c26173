"""``check_environment``: does somebody's environment keep what every environment promises?"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from iterpo.agents.base import AgentFactory
from iterpo.domain import Scenario, Split
from iterpo.environments.base import Environment
from iterpo.errors import ConformanceError, MissingDataError
from iterpo.testing.bargains import check_bargain
from iterpo.testing.hostile import check_robustness
from iterpo.testing.plays import (
    check_outcomes,
    check_repeatable,
    check_what_follows,
    play_all,
)
from iterpo.testing.promises import (
    check_opening,
    check_options,
    check_scenarios,
    check_views,
    draw,
    instance,
)
from iterpo.testing.purity import check_another_process, check_purity
from iterpo.testing.report import Findings, Report
from iterpo.testing.secrecy import Private, check_secrecy

__all__ = ["check_environment"]


def check_environment(
    env: Environment,
    *,
    scenarios: int | Sequence[Scenario] = 8,
    plays: int = 40,
    seed: int = 0,
    speaker: AgentFactory | None = None,
    private: Private | None = None,
    reward_range: tuple[float, float] | None = None,
    max_messages: int = 100,
) -> Report:
    """Try an environment from all sides; a fraction of a second to a few seconds.

    Args:
        env: The environment, e.g. from ``iterpo.environments.make``.
        scenarios: How many kernels of each split to look at, or kernels of the training split.
        plays: Conversations by silent, rambling and repeating speakers, by ``speaker`` and, where
            the game offers a ``bargain``, against the scripted partner.
        seed: Seed of all that is drawn.
        speaker: Somebody for either seat who says what the game listens to, so that deals are
            seen; not needed where the game offers a ``bargain``.
        private: Keys of the facts that only one side may know. By default the facts named
            ``agent``, ``agent_…``, ``partner`` and ``partner_…``.
        reward_range: Smallest and largest possible reward.
        max_messages: Length by which every conversation must have ended.

    Returns:
        What was checked and what could not be.

    Raises:
        ConformanceError: if something is wrong; lists all of it, each with a counter-example.
        MissingDataError: if the kernels lie in a data set that is absent.
    """
    findings = Findings()
    check_options(env, findings)
    other = _another(env, findings)
    chosen = _chosen(env, other, scenarios, findings)
    going = [scenario for scenario in chosen if check_opening(env, scenario, findings)]
    if going:
        played = play_all(env, going, plays, seed, max_messages, speaker, findings)
        checks: tuple[Callable[[], None], ...] = (
            lambda: check_views(env, played, findings),
            lambda: check_purity(env, other, played, seed, findings),
            lambda: check_repeatable(other, played, max_messages, speaker, findings),
            lambda: check_outcomes(played, reward_range, findings),
            lambda: check_what_follows(env, played, seed, findings),
            lambda: check_bargain(env, played, findings),
            lambda: check_robustness(env, going[0], played, findings),
            lambda: check_secrecy(env, going, played, private, findings),
        )
        for check in checks:
            with findings.calling("an answer", "while it was looked at"):
                check()
    else:
        findings.unchecked("everything else", "no conversation can begin; repair that first")
    if going and isinstance(scenarios, int):
        check_another_process(env, len(chosen), findings)
    return _passed(findings.report(str(env.name)))


def _passed(report: Report) -> Report:
    if not report.ok:
        raise ConformanceError(str(report))
    return report


def _another(env: Environment, findings: Findings) -> Environment:
    with findings.calling("making another instance", "options_type(**options) given to the class"):
        return instance(type(env), env.options)
    return env


def _chosen(
    env: Environment, other: Environment, scenarios: int | Sequence[Scenario], findings: Findings
) -> tuple[Scenario, ...]:
    given = () if isinstance(scenarios, int) else tuple(scenarios)
    n = scenarios if isinstance(scenarios, int) else len(given)
    with findings.calling("scenarios", "of the training split"):
        try:
            drawn = draw(env, Split.TRAIN, n)
        except MissingDataError as error:
            if not given:
                raise
            findings.unchecked("scenarios", str(error))
            return given
        check_scenarios(env, other, n, findings)
        return given or drawn
    return given
