"""SFT: imitate what the agent said in chosen conversations (the paper's MT-SFT, appendix E.4).

An example is a conversation, as in the paper: with batch 1 and accumulation 8 a step sees eight of
them, and its loss is the mean over all of their agent tokens. Each turn is read after exactly the
prompt that it was logged with. So a conversation is one sequence where each prompt begins like the
one before, and more where it doesn't (a reminder that moves on).
"""

from __future__ import annotations

from collections.abc import Sequence

from iterpo.errors import BatchError
from iterpo.models.chains import Chain, TokenRow, chain_rows
from iterpo.policy_improvement._trl_sft import trainer
from iterpo.policy_improvement.base import ImproveResult, Training
from iterpo.policy_improvement.logged import Example, LoggedConfig, schedule
from iterpo.policy_improvement.supervised import Run, fit
from iterpo.policy_improvement.tokens import encode

__all__ = ["train"]


def train(
    training: Training, conversations: Sequence[Sequence[Example]], config: LoggedConfig
) -> ImproveResult:
    """Maximise the mean log-probability of the agent's tokens, and of no others.

    Args:
        training: The policy and where to work.
        conversations: The agent turns of each conversation; their weights don't count.
        config: How; its batches are conversations.

    Raises:
        BatchError: if there is nothing to imitate, or another model made the token ids.
        ContextOverflowError: if a turn doesn't fit the context and may not be shortened.
    """
    spoken = [turns for turns in conversations if turns]
    if not spoken:
        raise BatchError("there is no agent turn to imitate; choose conversations that have some")
    flat = [example for turns in spoken for example in turns]
    encoded = encode(training.backbone, flat, config)
    rows = [
        TokenRow("", state.t, prompt, response)
        for state, prompt, response in zip(
            encoded.states, encoded.prompts, encoded.responses, strict=True
        )
    ]
    groups: list[list[Chain]] = []
    start = 0
    for turns in spoken:
        groups.append(chain_rows(rows[start : start + len(turns)]))
        start += len(turns)
    plan = schedule(len(groups), config, training.seed)
    plan = plan.by_length([max(len(chain.ids) for chain in group) for group in groups])
    run = Run(
        training,
        config,
        plan,
        {"loss": "sft", "tokens": [[_facts(chain) for chain in group] for group in groups]},
        {
            "conversations": len(groups),
            "examples": len(flat),
            "shortened_prompts": encoded.shortened,
            "tokens": sum(len(chain.ids) for i in plan.visits for chain in groups[i]),
        },
        [sum(r.end - r.start for chain in group for r in chain.reads) for group in groups],
    )
    return fit(run, trainer(training.backbone, plan, groups))


def _facts(chain: Chain) -> tuple[list[int], list[tuple[int, int]]]:
    return chain.ids, [(r.start, r.end) for r in chain.reads]
