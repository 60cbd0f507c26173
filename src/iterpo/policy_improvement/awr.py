"""AWR: imitate logged turns, each as much as its weight says (ArCHer's actor).

``weights.advantage_weights`` makes the weights exp(beta A). With all weights 1 it is SFT on every
turn, with a sum over the tokens of a turn where ``sft`` takes the mean over those of a step.
"""

from __future__ import annotations

from collections.abc import Sequence

from iterpo.errors import BatchError
from iterpo.models.chains import Chain, Read
from iterpo.policy_improvement._trl_sft import trainer
from iterpo.policy_improvement.base import ImproveResult, Training
from iterpo.policy_improvement.logged import Example, LoggedConfig, schedule
from iterpo.policy_improvement.supervised import Run, fit
from iterpo.policy_improvement.tokens import encode

__all__ = ["train"]


def train(training: Training, examples: Sequence[Example], config: LoggedConfig) -> ImproveResult:
    """Minimise -mean over turns of weight * sum over tokens (stop token included) of log pi.

    Args:
        training: The policy and where to work.
        examples: Agent turns with their weights.
        config: How; its batches are turns.

    Raises:
        BatchError: if there is no example, or another model made the token ids.
        ContextOverflowError: if a turn doesn't fit the context and may not be shortened.
    """
    if not examples:
        raise BatchError("there is no agent turn to learn from; collect more conversations")
    encoded = encode(training.backbone, examples, config)
    turns = [
        Chain([*prompt, *response], [Read((i,), len(prompt), len(prompt) + len(response))])
        for i, (prompt, response) in enumerate(zip(encoded.prompts, encoded.responses, strict=True))
    ]
    weights = [example.weight for example in examples]
    plan = schedule(len(turns), config, training.seed)
    plan = plan.by_length([len(turn.ids) for turn in turns])
    run = Run(
        training,
        config,
        plan,
        {
            "loss": "awr",
            "weights": weights,
            "tokens": [(p, r) for p, r in zip(encoded.prompts, encoded.responses, strict=True)],
        },
        {
            "examples": len(turns),
            "shortened_prompts": encoded.shortened,
            "tokens": sum(len(turns[i].ids) for i in plan.visits),
        },
        [len(response) for response in encoded.responses],
    )
    return fit(run, trainer(training.backbone, plan, [[turn] for turn in turns], weights))
