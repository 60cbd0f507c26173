"""Everything that can be checked before anything expensive starts, in one error.

Data, model, chat template, context length and trainer options are looked at in a process of
their own; what the run will play is drawn once and kept (bit streams are stable in practice, not
by contract).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TypeVar

from iterpo import environments
from iterpo.agents.base import Seat
from iterpo.agents.persona import longest
from iterpo.artifacts import seal, write_atomic
from iterpo.domain import PolicyRef, Role, Scenario, Split, Turn, View
from iterpo.environments.base import Environment
from iterpo.errors import ConfigError, ContextOverflowError, IterpoError
from iterpo.experiments.events import Report
from iterpo.experiments.kernels import draw_scenarios
from iterpo.experiments.lineage import policy_of_round
from iterpo.experiments.plan import Plan
from iterpo.experiments.speakers import (
    Local,
    Served,
    Speaker,
    check_partner,
    partner_of,
    prompt_style,
    served,
)
from iterpo.methods import make
from iterpo.models.backbone import check_quantization, load_chat
from iterpo.models.engines import check_vllm, choose_sampler
from iterpo.policy_improvement.single_turn import check_grpo_fields

__all__ = ["preflight"]

T = TypeVar("T")
_Drawn = dict[str, list[Scenario]]


def preflight(folder: Path, plan: Plan, key: str, report: Report) -> None:  # noqa: ARG001
    """Check the plan against this machine; all that is wrong comes in one error.

    Raises:
        ConfigError: if more than one thing is wrong; else the error of that thing itself.
    """
    found: list[IterpoError] = []
    env = _attempt(found, lambda: environments.make(plan.environment.name, **_options(plan)))
    policy = _attempt(found, lambda: policy_of_round(folder, plan, 0))
    partner = _attempt(found, lambda: partner_of(plan.partner))
    _attempt(found, lambda: _check_method(plan))
    _attempt(found, lambda: check_grpo_fields(plan.improve))
    if plan.q.backbone == "nf4":
        _attempt(found, check_quantization)
    limit = _attempt(found, lambda: _check_sampler(policy, plan)) if policy is not None else None
    drawn = _attempt(found, lambda: _draw(env, plan)) if env is not None else None
    if env is not None and drawn is not None:
        if policy is not None:
            _attempt(found, lambda: _check_agent_fits(env, policy, plan, drawn, limit))
        if partner is not None:
            _attempt(found, lambda: _check_partner(env, partner, plan, drawn))
    _raise(found)
    if policy is None or drawn is None:  # pragma: no cover - _raise has raised
        return
    kernels = {split: [asdict(s) for s in scenarios] for split, scenarios in drawn.items()}
    write_atomic(folder / key / "kernels.json", json.dumps(kernels, indent=1) + "\n")
    seal(folder / key, "preflight", {"policy": policy.id, "base_sha256": policy.base_sha256})


def _check_method(plan: Plan) -> None:
    method = make(plan.method.name, plan.method.options)
    check = getattr(method, "preflight", None)  # of those that need more than is in a plan
    if check is not None:
        check()


def _draw(env: Environment, plan: Plan) -> _Drawn:
    """Every kernel that the run will play, by split."""
    rounds = range(plan.rounds + 1) if plan.collect.kernels == "fresh" else range(1)
    train = [s for i in rounds for s in draw_scenarios(env, plan, Split.TRAIN, i)]
    heldout = list(draw_scenarios(env, plan, Split.HELDOUT, 0))
    return {Split.TRAIN.value: train, Split.HELDOUT.value: heldout}


def _options(plan: Plan) -> dict[str, object]:
    return dict(plan.environment.options)


def _attempt(found: list[IterpoError], check: Callable[[], T]) -> T | None:
    try:
        return check()
    except IterpoError as error:
        found.append(error)
        return None


def _raise(found: list[IterpoError]) -> None:
    if len(found) == 1:
        raise found[0]
    if found:
        lines = "\n  - ".join(str(error) for error in found)
        raise ConfigError(f"{len(found)} things stand in the way of this run:\n  - {lines}")


def _check_sampler(policy: PolicyRef, plan: Plan) -> int | None:
    """Tokens that the engine of a round lays memory out for, where it is not the model's own."""
    at, sampling = plan.policy, plan.collect.sampling
    if choose_sampler(at.sampler, at.device, sampling=sampling, dtype=at.dtype) == "local":
        return None
    _, context = load_chat(policy)
    check_vllm(sampling, at.dtype, context, at.vllm)
    return plan.policy.vllm.context


def _check_agent_fits(
    env: Environment, policy: PolicyRef, plan: Plan, drawn: _Drawn, limit: int | None
) -> None:
    own = plan.collect.sampling.max_new_tokens
    # A scripted partner's messages are no longer than the policy's may be.
    others = own if plan.partner.kind == "scripted" else plan.partner.sampling.max_new_tokens
    explore = plan.collect.explore
    persona = longest(explore, prompt_style(env)) if explore is not None else ""
    # Candidates of the improvement may be longer than what was said.
    beyond = max(0, plan.improve.sampling.max_new_tokens - own)

    def view(scenario: Scenario) -> View:
        opening = env.opening(scenario)
        # With an answer to speak to: the reminder only shows then.
        turns = [opening, Turn(Role.PARTNER, opening.text)]
        plain = env.view(scenario, Role.AGENT, turns)
        return replace(plain, system=plain.system + persona)

    _check_context(policy, view, drawn, (own, others, beyond), limit)


def _check_partner(env: Environment, partner: Speaker, plan: Plan, drawn: _Drawn) -> None:
    """A local partner's prompts must fit too; a server is asked for one message."""
    check_partner(env, partner)

    def view(scenario: Scenario) -> View:
        return env.view(scenario, Role.PARTNER, [env.opening(scenario)])

    if isinstance(partner, Local):
        own, others = plan.partner.sampling.max_new_tokens, plan.collect.sampling.max_new_tokens
        _check_context(partner.policy, view, drawn, (own, others, 0))
    elif isinstance(partner, Served):
        scenario = drawn[Split.TRAIN.value][0]
        place = Seat(scenario, Role.PARTNER, round=0, replica=0, seed=plan.seed)
        asyncio.run(served(partner)(place).reply(view(scenario)))


def _check_context(
    policy: PolicyRef,
    view: Callable[[Scenario], View],
    drawn: _Drawn,
    lengths: tuple[int, int, int],
    limit: int | None = None,
) -> None:
    """The longest conversation must fit: prompts are never cut in the middle of a run.

    Args:
        policy: Who reads it.
        view: Its own view of a scenario at its first message, reminder included.
        drawn: What will be played.
        lengths: Tokens of a message of its own, of one of the other side, and what else may come.
        limit: What its engine holds, where that is less than what it reads.
    """
    chat, context = load_chat(policy)
    context = limit or context
    own, others, beyond = lengths
    for scenario in (s for scenarios in drawn.values() for s in scenarios):
        first = len(chat.prompt_ids(view(scenario).messages()))
        # Ten messages follow the opening.
        needed = first + 5 * (own + others) + beyond
        if needed > context:
            raise ContextOverflowError(
                f"conversations of {scenario.kernel_id} may need {needed} tokens ({first} for the "
                f"first prompt, then up to 5 messages of {own} and 5 of {others}), but "
                f"{policy.base_model!r} reads {context} here. Lower max_new_tokens (of "
                "collect.sampling, improve.sampling and a model partner's sampling), use "
                "environment option prompt_style=compact, or take a model with a longer context."
            )
