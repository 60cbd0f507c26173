"""KTO: make agreed turns likelier than the reference finds them, others less (appendix E.5).

r = log pi(a|s) - log pi_ref(a|s), summed over the tokens of a turn. A turn of an agreed
conversation costs lambda_D (1 - sigmoid(beta (r - z0))), another one lambda_U (1 - sigmoid(beta
(z0 - r))). z0 is the mean of the same r over mismatched pairs, in which each state of a forward
pass has the response of the example before it; at least 0, and without gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from iterpo.domain import Response, State
from iterpo.errors import BatchError, ConfigError
from iterpo.policy_improvement._trl_kto import Rated, trainer
from iterpo.policy_improvement.base import ImproveResult, Training
from iterpo.policy_improvement.logged import Example, LoggedConfig, Schedule, schedule
from iterpo.policy_improvement.supervised import Run, fit
from iterpo.policy_improvement.tokens import Encoded, encode
from iterpo.policy_improvement.weights import class_weights

__all__ = ["Reference", "mismatched", "train"]

Reference = Callable[[Sequence[State], Sequence[Response]], Sequence[Sequence[float]]]
"""The log-probability of each token of each response under the frozen reference."""


def train(
    training: Training,
    examples: Sequence[Example],
    config: LoggedConfig,
    *,
    beta: float,
    reference: Reference,
    reference_policy: str,
) -> ImproveResult:
    """Train a policy on turns that are agreed or not, weighted N / (2 n) by class.

    The reference is asked once, before anything is trained.

    Args:
        training: The policy and where to work.
        examples: At least two agent turns; their weights don't count.
        config: How; its batches are turns, at least two at a time.
        beta: How soon a turn that has moved away from the reference stops counting.
        reference: Log-probs under the frozen reference.
        reference_policy: Its ``PolicyRef.id``.

    Raises:
        ConfigError: if a forward pass is to see one turn only.
        BatchError: if there are fewer than two turns, or another model made the token ids.
        ContextOverflowError: if a turn doesn't fit the context and may not be shortened.
    """
    if config.batch_size < 2:
        raise ConfigError(
            f"batch_size: given {config.batch_size}; accepted: 2 or more (the KL term needs "
            "another response in the same forward pass)"
        )
    if len(examples) < 2:
        raise BatchError(f"KTO needs 2 agent turns or more, given {len(examples)}; collect more")
    plan = schedule(len(examples), config, training.seed)
    pairs = mismatched(plan)
    encoded = encode(training.backbone, examples, config, pairs)
    weights = class_weights([e.agreed for e in examples])
    rows = _rated(examples, encoded, pairs, reference)
    inputs = {
        "loss": "kto",
        "beta": beta,
        "reference": reference_policy,
        "agreed": [e.agreed for e in examples],
        "tokens": [(p, r) for p, r in zip(encoded.prompts, encoded.responses, strict=True)],
    }
    learned = [len(response) for response in encoded.responses]
    run = Run(training, config, plan, inputs, _counts(examples, encoded, rows), learned)
    return fit(run, trainer(training.backbone, rows, beta, weights))


def mismatched(plan: Schedule) -> list[tuple[int, int]]:
    """For each visit the pair (its example, the one before it in the same forward pass, cyclic).

    >>> mismatched(Schedule(((4, 2, 7, 5),), 2))
    [(4, 2), (2, 4), (7, 5), (5, 7)]
    """
    visits, size = plan.visits, plan.batch_size
    passes = [visits[k : k + size] for k in range(0, len(visits), size)]
    return [(i, seen[k - 1]) for seen in passes for k, i in enumerate(seen)]


def _rated(
    examples: Sequence[Example],
    encoded: Encoded,
    pairs: Sequence[tuple[int, int]],
    reference: Reference,
) -> list[Rated]:
    """One row for each visit, in order, with what the reference says."""
    asked = list(dict.fromkeys([(i, i) for i, _ in pairs] + list(pairs)))
    answers = reference(
        [encoded.states[i] for i, _ in asked], [examples[j].response for _, j in asked]
    )
    said = {pair: math.fsum(answer) for pair, answer in zip(asked, answers, strict=True)}
    return [
        Rated(
            encoded.prompts[i],
            encoded.responses[i],
            encoded.responses[j],
            examples[i].agreed,
            said[i, i],
            said[i, j],
        )
        for i, j in pairs
    ]


def _counts(examples: Sequence[Example], encoded: Encoded, rows: Sequence[Rated]) -> dict[str, int]:
    # A mismatched pair is read as well, by the policy alone.
    read = [2 * len(row.prompt) + len(row.response) + len(row.mismatched) for row in rows]
    return {
        "examples": len(examples),
        "agreed_examples": sum(e.agreed for e in examples),
        "shortened_prompts": encoded.shortened,
        "tokens": sum(read),
    }
