"""Off-policy values: what a new policy would have earned, from conversations of an older one.

A logged conversation counts with the probability of its agent turns under the new policy over that
under the policy that spoke; the partner's turns cancel, so no model of the partner is needed. The
price is variance: the effective sample size says how many conversations are left of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iterpo.domain import (
    Conversation,
    DiscountUnit,
    Sampling,
    Turn,
    action_indices,
    derive,
    discounted_return,
)
from iterpo.errors import BatchError
from iterpo.measure.intervals import Interval, mean_interval

__all__ = [
    "Gain",
    "Reweighed",
    "first_order_gain",
    "logged_log_probs",
    "reweighed",
    "value_gain",
    "why_no_ratio",
]

Array = NDArray[np.float64]

_RESAMPLES = 2000
_MOST = 300.0  # squares of larger ratios overflow


@dataclass(frozen=True, slots=True)
class Reweighed:
    """A conversation as importance sampling sees it."""

    kernel: str
    """Scenario; intervals are clustered by it."""
    log_ratios: tuple[float, ...]
    """log pi'(a_t | s_t) - log pi(a_t | s_t) of every agent action, in nats, at least one."""
    rewards: tuple[float, ...]
    """Reward of every action, already discounted to the start; their sum is the return."""

    @property
    def ret(self) -> float:
        """Discounted return; its mean under the policy that spoke is J."""
        return math.fsum(self.rewards)


@dataclass(frozen=True, slots=True)
class Gain:
    """J of the new policy less J of the one that spoke, and how much data stands behind it."""

    gain: Interval
    """Estimate and interval, clustered by kernel."""
    ess: float
    """Effective sample size (sum w)^2 / sum w^2; the number of samples if nothing changed."""
    n: int
    """Samples that it is to be compared with: conversations, or actions (first order)."""

    def to_dict(self) -> dict[str, Any]:
        """JSON values only."""
        return {**self.gain.to_dict(), "ess": self.ess, "samples": self.n}


def value_gain(logged: Sequence[Reweighed], *, confidence: float = 0.95, seed: int = 0) -> Gain:
    """J(pi') - J(pi) by per-decision weighted importance sampling, bootstrapped over kernels.

    J(pi') = sum_t (sum_i w_it r_it) / (sum_i w_it), where w_it is the product of the ratios of the
    first t actions; a conversation that has ended stays in the denominator with its last weight.
    Consistent, not unbiased: weights that sum to n are worth more than an unbiased estimate that
    one conversation decides. The interval is the percentile bootstrap with whole kernels
    resampled, of both values together; with a small ``ess`` it is too narrow, since the sample
    lacks the conversations that would weigh most.

    Args:
        logged: Conversations of pi.
        confidence: Coverage of the two-sided interval.
        seed: Seed of the resamples.

    Raises:
        BatchError: if there is no conversation, or a number is not finite.
    """
    kernels = _kernels(logged)
    weights, rewards = _weights(logged)  # both (n, longest)
    returns = np.array([c.ret for c in logged])
    places = {k: i for i, k in enumerate(sorted(set(kernels)))}
    index = np.array([places[k] for k in kernels])

    def by_kernel(values: Array) -> Array:
        out = np.zeros((len(places), *values.shape[1:]))
        np.add.at(out, index, values)
        return out

    sums = by_kernel(weights * rewards), by_kernel(weights), by_kernel(returns)
    sizes = by_kernel(np.ones(len(logged)))

    def gains(counts: Array) -> Array:  # (b, kernels) -> (b,)
        new = ((counts @ sums[0]) / (counts @ sums[1])).sum(axis=-1)
        return np.asarray(new - (counts @ sums[2]) / (counts @ sizes))

    mean = float(gains(np.ones((1, len(places))))[0])
    last = weights[:, -1]
    ess = float(last.sum() ** 2 / np.square(last).sum())
    if len(places) < 2:
        found = Interval(mean, math.nan, -math.inf, math.inf, len(logged), 1)
        return Gain(found, ess, len(logged))
    rng = np.random.default_rng(derive(seed, "off-policy"))
    drawn = gains(
        rng.multinomial(len(places), [1 / len(places)] * len(places), _RESAMPLES).astype(float)
    )
    low, high = np.quantile(drawn, [(1 - confidence) / 2, (1 + confidence) / 2])
    se = float(drawn.std(ddof=1))
    found = Interval(mean, se, float(low), float(high), len(logged), len(places))
    return Gain(found, ess, len(logged))


def first_order_gain(logged: Sequence[Reweighed], *, confidence: float = 0.95) -> Gain:
    """The gain if single actions of pi' were mixed into conversations of pi, to first order.

    E_pi[sum_t gamma^(t-1) A^pi(s_t, a'_t)] with a'_t from pi' (the premise of the paper's policy
    improvement theorem, averaged over logged states), estimated by sum_t (rho_t - 1) (R - b): each
    action's own ratio, never their product, so it stays usable where ``value_gain`` is lost. b is
    the mean return; E[rho_t - 1 | s_t] = 0 makes any constant right, and this one quiet. What it
    leaves out is second order in the change of the policy: later states differ under pi'.

    Raises:
        BatchError: if there is no conversation, or a number is not finite.
    """
    kernels = _kernels(logged)
    returns = [c.ret for c in logged]
    base = math.fsum(returns) / len(returns)
    if max(x for c in logged for x in c.log_ratios) > _MOST:
        raise BatchError(
            f"an action is e^{_MOST:.0f} times likelier under the new policy: the two have nothing "
            "in common any more, so the log says nothing about the new one"
        )
    ratios = [np.exp(np.array(c.log_ratios)) for c in logged]
    values = [float((rho - 1).sum() * (r - base)) for rho, r in zip(ratios, returns, strict=True)]
    every = np.concatenate(ratios)
    ess = float(every.sum() ** 2 / np.square(every).sum()) if every.any() else 0.0
    return Gain(mean_interval(values, kernels, confidence), ess, len(every))


def logged_log_probs(conversation: Conversation) -> tuple[Sampling, tuple[float, ...]]:
    """How a conversation was sampled, and log pi(a_t | s_t) of every agent action as stored.

    Raises:
        BatchError: if the log can't carry a ratio: text only, an explored turn, a nucleus or
            penalty (what pi never says, no weight can bring back), greedy, or mixed settings.
    """
    turns = [conversation.turns[m] for m in action_indices(conversation.turns)]
    wrong = "it was explored" if conversation.explored else ""
    wrong = wrong or next((text for t in turns if (text := why_no_ratio(t))), "")
    settings = {t.sampled.sampling for t in turns if t.sampled}
    if not wrong and len(settings) != 1:
        wrong = "it has no agent action" if not turns else "its turns were sampled differently"
    if wrong:
        raise BatchError(
            f"conversation {conversation.id!r} can't be valued under another policy: {wrong}. "
            "That needs the log-probabilities of every agent turn, sampled without a nucleus "
            "(collect.sampling: temperature above 0, top_p 1, top_k 0, repetition_penalty 1)"
        )
    said = [math.fsum(t.sampled.logprobs or ()) for t in turns if t.sampled]
    return settings.pop(), tuple(said)


def reweighed(
    conversation: Conversation,
    new: Sequence[float],
    gamma: float,
    unit: DiscountUnit,
) -> Reweighed:
    """A logged conversation against a new policy.

    Args:
        conversation: With a reward, and with log-probs (``logged_log_probs``).
        new: log pi'(a_t | s_t) of every agent action, under the settings that were logged.
        gamma: Discount factor.
        unit: What a power of it stands for; the return is that of ``domain.discounted_return``.
    """
    _, old = logged_log_probs(conversation)
    ratios = tuple(n - o for n, o in zip(new, old, strict=True))
    last = discounted_return(conversation, gamma, unit)
    return Reweighed(conversation.kernel_id, ratios, (*(0.0 for _ in ratios[1:]), last))


def why_no_ratio(turn: Turn) -> str:
    """Why no importance weight can be formed from an agent turn; empty if one can."""
    sampled = turn.sampled
    if sampled is None or sampled.token_ids is None or sampled.logprobs is None:
        return "an agent turn has no token ids or no log-probabilities"
    s = sampled.sampling
    if not s.temperature > 0:
        return "an agent turn was greedy"
    if s.reshaped:
        return "an agent turn was cut to a nucleus or penalised"
    if sampled.logprobs_mode == "raw" and s.temperature != 1:
        return "the stored log-probabilities are those before the temperature"
    return ""


def _kernels(logged: Sequence[Reweighed]) -> list[str]:
    if not logged:
        raise BatchError(
            "there is no conversation to value a policy on; collect some with a reward"
        )
    for c in logged:
        if len(c.log_ratios) != len(c.rewards) or not c.rewards:
            raise BatchError(
                f"a conversation of kernel {c.kernel!r} has {len(c.log_ratios)} ratios and "
                f"{len(c.rewards)} rewards; one of each per agent action is needed"
            )
        if not all(map(math.isfinite, (*c.log_ratios, *c.rewards))):
            raise BatchError(
                f"a conversation of kernel {c.kernel!r} has a number that isn't finite"
            )
    return [c.kernel for c in logged]


def _weights(logged: Sequence[Reweighed]) -> tuple[Array, Array]:
    """Cumulated ratios and rewards by action (n, longest); past the end: last weight, no reward."""
    longest = max(len(c.rewards) for c in logged)
    logs, rewards = np.empty((len(logged), longest)), np.zeros((len(logged), longest))
    for i, c in enumerate(logged):
        total = np.cumsum(c.log_ratios)
        logs[i] = np.append(total, [total[-1]] * (longest - len(total)))
        rewards[i, : len(c.rewards)] = c.rewards
    # A common factor of a column cancels in the estimate, and keeps its largest weight at 1.
    # The floor keeps a resample without the heaviest kernels from dividing by 0.
    return np.exp(np.maximum(logs - logs.max(axis=0), -700.0)), rewards
