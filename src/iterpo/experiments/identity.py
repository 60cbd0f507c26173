"""The identity of a plan: which of its values change results, and one spelling for each."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping
from typing import Any

__all__ = ["identity"]

_NO_EFFECT_ON_RESULTS = (
    ("name",),
    ("environment", "options", "data_dir"),
    ("improve", "report_to"),
    ("improve", "checkpoint_every"),
    ("collect", "max_failed"),  # whoever accepts the failures after all resumes with more
    # Where and how patiently a served model is asked; which one it is stays.
    ("partner", "endpoint", "base_url"),
    ("partner", "endpoint", "api_key_env"),
    ("partner", "endpoint", "concurrency"),
    ("partner", "endpoint", "call_timeout_s"),
    ("partner", "endpoint", "conversation_timeout_s"),
    ("partner", "endpoint", "retries"),
    ("partner", "endpoint", "backoff_s"),
    ("partner", "endpoint", "proxy"),
    ("policy", "vllm", "memory_share"),
)

_UNSET_AS_BEFORE = (("collect", "optimism"), ("q", "tune"), ("method", "options"))
"""Options that earlier versions lacked: where they are unset, a plan is what it was without."""


def identity(plan: Mapping[str, Any]) -> str:
    """SHA-256 over all of a plan's plain values that change results."""
    values = copy.deepcopy(dict(plan))
    for *sections, key in _NO_EFFECT_ON_RESULTS:
        section = values
        for name in sections:
            section = section[name] or {}
        section.pop(key, None)
    for key in _idle_in_q(values["q"]):  # a plan is what it was before there was this option
        del values["q"][key]
    for section_name, key in _UNSET_AS_BEFORE:
        if values[section_name][key] in (None, {}):
            del values[section_name][key]
    if values["improve"]["operator"] != "ppo":
        del values["improve"]["ppo"]
    if values["policy"]["sampler"] == "local":  # all that earlier versions had
        del values["policy"]["sampler"], values["policy"]["vllm"]
    text = json.dumps(_one_spelling(values), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _idle_in_q(q: Mapping[str, Any]) -> list[str]:
    """Settings of Q that change nothing as the others stand."""
    out = []
    if not q["numbers"]:
        out.append("numbers")
    if q["estimator"] == "monte_carlo":
        out += ["estimator", "td_iterations"]
    if q["estimator"] != "fitted_q":
        out.append("td_responses")
    if not q["pool_rounds"]:
        out.append("pool_rounds")
        if q["off_policy"] != "weight":
            out += ["pool_max_weight", "pool_min_ess"]
    return out


def _one_spelling(value: Any) -> Any:
    """64 and 64.0 are the same setting, whether written in YAML or in Python."""
    if isinstance(value, Mapping):
        return {k: _one_spelling(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_one_spelling(v) for v in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
