"""Continuations: which targets of a conversation are the policy's own, whatever led there.

G_t is a sample of Q^pi(s_t, a_t) if the policy itself would have spoken whatever came after a_t,
wherever s_t and a_t came from (section 3.4). Whether that holds must not be read off what happened
to come after: a conversation that ended before it was explored again is kept because it ended,
and returns of conversations that end are not those of conversations that go on.
"""

from __future__ import annotations

from iterpo.domain import Conversation, action_indices
from iterpo.policy_evaluation.base import Estimator

__all__ = ["first_own_return", "own_targets"]


def first_own_return(conversation: Conversation, gamma: float) -> int:
    """Smallest t (from 1) such that G_t, G_{t+1}, … are samples of Q^pi of the deployed policy.

    With a recorded draw this is exact: 1 if nothing was explored; the explored action itself if
    there was one (also where it was never reached); beyond the last action if the whole
    conversation was. Marked turns without a record start at the last of them, which is exact
    only if nothing after it could have been explored.

    Args:
        conversation: Any conversation.
        gamma: Discount factor; at 0 nothing that is said after a_t enters G_t, so t = 1.
    """
    if gamma == 0:
        return 1
    actions = action_indices(conversation.turns)
    marked = [t for t, m in enumerate(actions, start=1) if conversation.turns[m].off_policy]
    latest = max(marked, default=1)
    drawn = conversation.exploration
    if drawn is None or not drawn.off_policy:
        return latest
    return max(latest, len(actions) + 1 if drawn.action is None else drawn.action)


def own_targets(
    conversation: Conversation, gamma: float, estimator: Estimator = "monte_carlo"
) -> tuple[bool, ...]:
    """For each action, whether an estimator's target there needs no correction.

    ``monte_carlo``: from ``first_own_return`` on. ``sarsa`` looks one action ahead: all actions
    but the one before the explored one, which is out also where the conversation ended there,
    since it would be kept because it ended. Without a record of the draw, or where the whole
    conversation was explored: as ``monte_carlo``. ``fitted_q``: all, since what follows the
    partner's answer is drawn from the policy anew.
    """
    actions = action_indices(conversation.turns)
    if estimator == "fitted_q":
        return (True,) * len(actions)
    first = first_own_return(conversation, gamma)
    found = [t >= first for t in range(1, len(actions) + 1)]
    drawn = conversation.exploration
    if estimator == "sarsa" and drawn is not None and drawn.off_policy and drawn.action is not None:
        marked = {t for t, m in enumerate(actions, 1) if conversation.turns[m].off_policy}
        if marked <= {drawn.action}:
            found = [t != drawn.action - 1 for t in range(1, len(actions) + 1)]
    return tuple(found)
