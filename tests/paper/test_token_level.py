"""Optimising Q token by token is improving the policy response by response (section 3.1).

Responses are sequences of a tiny vocabulary, spoken by an autoregressive policy, as actions of a
small multi-turn problem with exact Q. No response is ever looked at token by token by Q.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
import torch

from iterpo.policy_improvement.advantages import group_advantages
from paper.tabular import Array, Problem, problems

END = 2
VOCABULARY = 3
LONGEST = 2
STATES = 3
GAMMA = 0.8

Said = tuple[int, ...]


def responses(so_far: Said = ()) -> list[Said]:
    """All that can be said: up to two words, or the end token before that."""
    if len(so_far) == LONGEST or END in so_far:
        return [so_far]
    return [said for token in range(VOCABULARY) for said in responses((*so_far, token))]


RESPONSES = responses()
PREFIXES = sorted({said[:j] for said in RESPONSES for j in range(len(said))})


@dataclass
class Speaker:
    """Logits (S, prefixes, vocabulary): the next token given the state and what was said."""

    logits: torch.Tensor

    def token_log_probs(self) -> torch.Tensor:
        return torch.log_softmax(self.logits, -1)

    def log_probs(self) -> torch.Tensor:
        """(S, responses): sums over tokens."""
        tokens = self.token_log_probs()
        parts = [
            sum(tokens[:, PREFIXES.index(said[:j]), said[j]] for j in range(len(said)))
            for said in RESPONSES
        ]
        return torch.stack(parts, dim=1)  # type: ignore[arg-type]

    def policy(self) -> Array:
        return np.asarray(self.log_probs().exp().detach().numpy())


def speaker(seed: int, spread: float = 1.0) -> Speaker:
    generator = torch.Generator().manual_seed(seed)
    shape = (STATES, len(PREFIXES), VOCABULARY)
    logits = spread * torch.randn(shape, generator=generator, dtype=torch.float64)
    return Speaker(logits.requires_grad_())


def multi_turn(seed: int) -> Problem:
    rng = np.random.default_rng(seed)
    moves = rng.dirichlet(np.full(STATES, 0.3), (STATES, len(RESPONSES)))
    return Problem(moves, rng.normal(size=(STATES, len(RESPONSES))), GAMMA)


def gradient(value: torch.Tensor, of: Speaker) -> torch.Tensor:
    (found,) = torch.autograd.grad(value, of.logits)
    return found


def test_there_are_seven_responses_and_a_policy_over_them() -> None:
    """One of the end token alone, two of a word and the end, four of two words."""
    assert len(RESPONSES) == 7
    assert PREFIXES == [(), (0,), (1,)]
    assert speaker(0).policy().sum(axis=1) == pytest.approx(np.ones(STATES))


@pytest.mark.parametrize("seed", range(5))
def test_the_token_level_gradient_of_expected_q_is_the_response_level_one(seed: int) -> None:
    """Three routes: through the table of responses; response scores times the sum of token scores;
    and the policy gradient of the token-level problem, whose only reward is Q at the last token.
    """
    says, q = speaker(seed), torch.tensor(multi_turn(seed).q(speaker(seed).policy()))
    by_response = gradient((says.log_probs().exp() * q).sum(), says)
    weights = (says.log_probs().exp() * q).detach()
    by_score = gradient((weights * says.log_probs()).sum(), says)
    by_token = torch.zeros_like(by_response)
    tokens = says.token_log_probs().exp().detach()
    probabilities = says.log_probs().exp().detach()
    for p, prefix in enumerate(PREFIXES):
        for token in range(VOCABULARY):
            mine = [
                i for i, said in enumerate(RESPONSES) if said[: len(prefix) + 1] == (*prefix, token)
            ]
            reached = probabilities[:, mine].sum(1)  # of this prefix and this token
            ahead = (probabilities[:, mine] * q[:, mine]).sum(1) / reached
            # d(prefix) * grad p(token | prefix) * Q of the token; softmax's derivative by hand.
            for other in range(VOCABULARY):
                slope = float(token == other) - tokens[:, p, other]
                by_token[:, p, other] += reached * slope * ahead
    torch.testing.assert_close(by_score, by_response)
    torch.testing.assert_close(by_token, by_response)


def test_one_small_step_up_that_gradient_is_better_in_every_state_and_globally() -> None:
    """The premise of the policy improvement theorem, made by a token-level optimiser."""
    for seed in range(10):
        says, problem = speaker(seed), multi_turn(seed)
        old = says.policy()
        q = problem.q(old)
        step = gradient((says.log_probs().exp() * torch.tensor(q)).sum(), says)
        new = Speaker(says.logits.detach() + 0.05 * step).policy()
        assert (((new - old) * q).sum(axis=1) > 0).all()
        assert (problem.values(new) > problem.values(old)).all()


def grpo_step(says: Speaker, q: Array, generator: torch.Generator, size: float) -> Speaker:
    """One step on a sampled group of each state: advantages per response, shared by its tokens."""
    log_probs = says.log_probs()
    group = 16
    drawn = torch.multinomial(
        log_probs.detach().exp(), group, replacement=True, generator=generator
    )
    rewards = torch.tensor(q).gather(1, drawn)
    advantages = group_advantages(rewards.flatten(), group).values.view_as(drawn)
    surrogate = (advantages * log_probs.gather(1, drawn)).mean(dim=1).sum()
    return Speaker((says.logits + size * gradient(surrogate, says)).detach().requires_grad_())


def optimised(problem: Problem, seed: int, gamma: float, sign: float = 1.0) -> list[float]:
    """Mean values of the policies of rounds: exact Q of the policy, then GRPO on sampled groups."""
    says, generator = speaker(seed), torch.Generator().manual_seed(seed)
    fitted = Problem(problem.moves, problem.rewards, gamma)
    out = [float(problem.values(says.policy()).mean())]
    for _ in range(6):
        q = sign * fitted.q(says.policy())
        for _ in range(15):
            says = grpo_step(says, q, generator, 0.3)
        out.append(float(problem.values(says.policy()).mean()))
    return out


def test_grpo_on_exact_q_improves_j_round_after_round() -> None:
    for seed in range(4):
        problem = multi_turn(seed)
        values, best = optimised(problem, seed, GAMMA), float(problem.optimum().mean())
        assert all(after > before for before, after in pairwise(values[:4]))
        assert best - values[-1] < 0.5 * (best - values[0])


def test_grpo_on_q_turned_around_makes_j_worse() -> None:
    """The twin: what carries the gain is Q, not the optimiser."""
    for seed in range(2):
        values = optimised(multi_turn(seed), seed, GAMMA, sign=-1.0)
        assert values[-1] < values[0]


def test_a_token_level_step_changes_no_other_states_responses() -> None:
    """So any statewise improvement can be made state by state; the tables are independent."""
    says, problem = speaker(1), multi_turn(1)
    q = torch.tensor(problem.q(says.policy()))
    step = gradient((says.log_probs().exp() * q)[0].sum(), says)
    assert float(step[0].abs().max()) > 0
    assert float(step[1:].abs().max()) == 0


def test_random_problems_are_what_they_claim_to_be() -> None:
    """The test bench itself: values by simulation of the sums, not by the solver."""
    for problem, pi, _ in problems(5):
        values = np.zeros(len(pi))
        for _ in range(800):
            values = (pi * (problem.rewards + problem.gamma * problem.moves @ values)).sum(axis=1)
        assert problem.values(pi) == pytest.approx(values, abs=1e-6)
        assert (pi * problem.q(pi)).sum(axis=1) == pytest.approx(problem.values(pi))
        assert problem.visits(pi).sum(axis=1) == pytest.approx(np.ones(len(pi)))
