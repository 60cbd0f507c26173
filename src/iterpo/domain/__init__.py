"""What a conversation is: frozen values, standard library only, no I/O."""

from iterpo.domain.conversation import (
    Conversation,
    Exploration,
    Message,
    Role,
    Sampled,
    Sampling,
    Turn,
    View,
)
from iterpo.domain.decision import (
    Decision,
    DiscountUnit,
    Response,
    Reward,
    State,
    action_indices,
    decisions,
    discounted_return,
    discounts,
    returns_to_go,
)
from iterpo.domain.outcome import Ending, Outcome
from iterpo.domain.policy import PolicyRef
from iterpo.domain.scenario import Scenario, Split
from iterpo.domain.seeds import derive, uniform

__all__ = [
    "Conversation",
    "Decision",
    "DiscountUnit",
    "Ending",
    "Exploration",
    "Message",
    "Outcome",
    "PolicyRef",
    "Response",
    "Reward",
    "Role",
    "Sampled",
    "Sampling",
    "Scenario",
    "Split",
    "State",
    "Turn",
    "View",
    "action_indices",
    "decisions",
    "derive",
    "discounted_return",
    "discounts",
    "returns_to_go",
    "uniform",
]
