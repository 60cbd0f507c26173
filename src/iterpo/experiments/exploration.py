"""Whether what a plan explores can be used: by its Q, its method, and the measurement of J."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from iterpo.agents.optimist import OptimismConfig
from iterpo.agents.persona import PersonaConfig
from iterpo.domain import Sampling
from iterpo.methods.base import make
from iterpo.policy_evaluation.base import QConfig

__all__ = ["refusing_method", "unusable_exploration"]


def unusable_exploration(
    explore: PersonaConfig | None,
    optimism: OptimismConfig | None,
    sampling: Sampling,
    q: QConfig,
    rounds: int,
) -> list[str]:
    """What stands against it, a line for each mistake.

    Args:
        explore: Personas of the collection.
        optimism: Optimistic messages of the collection.
        sampling: How the policy samples there.
        q: How Q is fitted.
        rounds: How often.
    """
    found = []
    for name, config in (("explore", explore), ("optimism", optimism)):
        if config is None:
            continue
        if q.off_policy == "refuse":
            found.append(
                f"q.off_policy: given 'refuse' with collect.{name}; accepted: drop, which leaves "
                "out the targets that exploration can have changed, weight, which corrects them; "
                f"or collect.{name}=null"
            )
        if config.share == 1:
            found.append(
                f"collect.{name}.share: given 1.0; accepted in a plan: below 1, since J of the "
                "policy is measured on what it says itself"
            )
    if q.off_policy == "weight" and q.weighs:
        found += _unweighable(explore, optimism, sampling)
    if optimism is None:
        return found
    if rounds == 1:
        found.append(
            "collect.optimism: given with rounds 1, where no Q is there before the only update; "
            "accepted: rounds of 2 or more, or collect.optimism=null"
        )
    return found + _unable(optimism, sampling, q)


def refusing_method(name: str, options: Mapping[str, Any]) -> list[str]:
    """What stands against personas where a method has a say of its own on explored turns."""
    own = getattr(make(name, options), "options", None)
    if getattr(own, "off_policy", None) != "refuse":
        return []
    return [
        "method.options.off_policy: given 'refuse' with collect.explore; accepted: what else "
        f"`iterpo methods {name}` lists, or collect.explore=null"
    ]


def _unweighable(
    explore: PersonaConfig | None, optimism: OptimismConfig | None, sampling: Sampling
) -> list[str]:
    if explore is None and optimism is not None:
        return [
            "q.off_policy: given 'weight' with collect.optimism alone, whose choices have no "
            "log-probability to be weighed by; accepted: drop"
        ]
    if explore is not None and (sampling.temperature == 0 or sampling.reshaped):
        return [
            "q.off_policy: given 'weight' with collect.sampling that never says some responses, "
            "which no weight brings back; accepted: drop, or a temperature above 0 with top_p 1, "
            "top_k 0 and repetition_penalty 1"
        ]
    return []


def _unable(optimism: OptimismConfig, sampling: Sampling, q: QConfig) -> list[str]:
    found = []
    if optimism.scale > 0 and q.heads < 2:
        found.append(
            f"collect.optimism.scale: given {optimism.scale:g} with q.heads {q.heads}; one head "
            "has no spread; accepted: q.heads of 2 or more, or scale 0"
        )
    if sampling.temperature == 0:
        found.append(
            "collect.optimism: given with collect.sampling.temperature 0, where all drafts are the "
            "same; accepted: a temperature above 0, or collect.optimism=null"
        )
    return found
