"""The papers' theorems on small random problems with exact Q, and what happens without a premise.

Theorem 3.2 and appendix B of arXiv 2511.21638v3 (theorem 1 and appendix A of v1); the approximate
version announced in section 3.1 (appendix C); its KL-regularised version (theorem 2, appendix B
of v1). The constants are those of v1's proof; without a KL term it gives those of appendix C.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from paper.tabular import Array, Problem, kl, policy, problems

N = 200
ROUNDING = 1e-9


def greedy(q: Array) -> Array:
    return np.eye(q.shape[1])[q.argmax(axis=1)]


def better_everywhere(problem: Problem, pi: Array, rng: np.random.Generator) -> Array:
    """A random policy, taken in the states where it is no worse by Q^pi; else pi."""
    q, other = problem.q(pi), policy(rng, *pi.shape)
    gains = ((other - pi) * q).sum(axis=1)
    return np.where(gains[:, None] >= 0, other, pi)


def test_theorem_1_better_by_q_in_every_state_is_better_from_every_state() -> None:
    gained = 0
    for problem, pi, rng in problems(N):
        new = better_everywhere(problem, pi, rng)
        gain = problem.values(new) - problem.values(pi)
        assert gain.min() >= -ROUNDING
        gained += gain.max() > ROUNDING
    assert gained > N / 2  # most of them have something to show


def test_without_its_premise_in_a_single_state_the_policy_gets_worse_there() -> None:
    for problem, pi, _ in problems(N):
        s = int(np.ptp(problem.q(pi), axis=1).argmax())
        new = pi.copy()
        new[s] = np.eye(pi.shape[1])[problem.q(pi)[s].argmin()]
        assert problem.values(new)[s] < problem.values(pi)[s]


def test_it_takes_q_of_the_policy_itself_another_policys_will_not_do() -> None:
    """Statewise better by Q of a policy that plays on otherwise: worse in some problems."""
    worse = 0
    for problem, pi, rng in problems(N):
        q_of_other = problem.q(policy(rng, *pi.shape))
        old, new = greedy(problem.q(pi)), greedy(q_of_other)
        assert (((new - old) * q_of_other).sum(axis=1) >= -ROUNDING).all()
        worse += (problem.values(new) - problem.values(old)).min() < -0.01
    assert worse > 0


def test_appendix_a_the_gain_is_the_advantage_over_the_new_policys_visits() -> None:
    """V' - V = E_{d'} E_{pi'} A / (1 - gamma), the identity behind all bounds here."""
    for problem, pi, rng in problems(N):
        new = policy(rng, *pi.shape)
        advantage = ((new - pi) * problem.q(pi)).sum(axis=1)
        expected = problem.visits(new) @ advantage / (1 - problem.gamma)
        assert problem.values(new) - problem.values(pi) == pytest.approx(expected, abs=1e-8)
        old_visits = problem.visits(pi) @ advantage / (1 - problem.gamma)
        if np.abs(problem.visits(new) - problem.visits(pi)).max() > 0.2:  # the twin
            assert not np.allclose(old_visits, expected, atol=1e-6)


def noisy(q: Array, most: float, rng: np.random.Generator) -> Array:
    """Q with an error of at most ``most``, and of just that somewhere."""
    error = rng.uniform(-1, 1, q.shape)
    return np.asarray(q + most * error / np.abs(error).max())


def nearly_greedy(q_hat: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    """A policy and by how much, state by state, it misses the best of ``q_hat``."""
    share = rng.uniform(0, 0.5, (len(q_hat), 1))
    new = (1 - share) * greedy(q_hat)
    new += share * rng.dirichlet(np.ones(q_hat.shape[1]), len(q_hat))
    return new, q_hat.max(axis=1) - (new * q_hat).sum(axis=1)


def test_appendix_c_errors_of_q_and_of_the_optimiser_cost_no_more_than_the_bound() -> None:
    """V' - V >= E_{d'}[-delta_s - 2 eps_Q] / (1 - gamma), and with the best gain added to it."""
    for problem, pi, rng in problems(N):
        q, most = problem.q(pi), float(rng.uniform(0.01, 1.0))
        new, slack = nearly_greedy(noisy(q, most, rng), rng)
        gain = problem.values(new) - problem.values(pi)
        visits = problem.visits(new) / (1 - problem.gamma)
        best = q.max(axis=1) - problem.values(pi)
        assert (gain >= visits @ (-slack - 2 * most) - ROUNDING).all()
        assert (gain >= visits @ (best - slack - 2 * most) - ROUNDING).all()


def test_small_enough_errors_leave_an_improvement() -> None:
    """Where the best gain exceeds delta_s + 2 eps_Q in every state, all states gain."""
    for problem, pi, rng in problems(N):
        q = problem.q(pi)
        best = q.max(axis=1) - problem.values(pi)
        q_hat = noisy(q, float(best.min()) / 4, rng)
        new = greedy(q_hat)
        assert (problem.values(new) > problem.values(pi)).all()


def test_the_bound_is_tight_twice_the_error_of_q_can_be_lost() -> None:
    """One state, two actions worth +eps and -eps that Q^ takes for equal; the optimiser errs."""
    most = 0.3
    for gamma in (0.0, 0.5, 0.9):
        problem = Problem(np.ones((1, 2, 1)), np.array([[most, -most]]), gamma)
        pi, new = np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]])
        q = problem.q(pi)
        q_hat = np.full((1, 2), q.mean())
        assert np.abs(q_hat - q).max() == pytest.approx(most)
        loss = problem.values(pi)[0] - problem.values(new)[0]
        assert loss == pytest.approx(2 * most / (1 - gamma))
        assert loss > most / (1 - gamma)  # a bound with eps_Q once would be wrong


def test_beyond_the_error_that_was_assumed_the_bound_fails() -> None:
    """The wrong-on-purpose twin: Q^ errs ten times as much as is said."""
    broken = 0
    for problem, pi, rng in problems(N):
        new, slack = nearly_greedy(noisy(problem.q(pi), 1.0, rng), rng)
        visits = problem.visits(new) / (1 - problem.gamma)
        gain = problem.values(new) - problem.values(pi)
        broken += bool((gain < visits @ (-slack - 2 * 0.1) - ROUNDING).any())
    assert broken > 0


def forward_optimum(q_hat: Array, pi: Array, beta: float) -> Array:
    """argmax_mu E_mu Q^ - beta KL(pi || mu): mu = beta pi / (x - Q^), x by bisection."""
    low, high = q_hat.max(axis=1) + 1e-12, q_hat.max(axis=1) + beta
    for _ in range(100):
        x = (low + high) / 2
        too_much = (beta * pi / (x[:, None] - q_hat)).sum(axis=1) > 1
        low, high = np.where(too_much, x, low), np.where(too_much, high, x)
    mu = beta * pi / (high[:, None] - q_hat)
    return np.asarray(mu / mu.sum(axis=1, keepdims=True))


def reverse_optimum(q_hat: Array, pi: Array, beta: float) -> Array:
    """argmax_mu E_mu Q^ - beta KL(mu || pi): mu = pi exp(Q^ / beta), normalised."""
    logits = np.log(pi) + q_hat / beta
    mu = np.exp(logits - logits.max(axis=1, keepdims=True))
    # A floor that does not show: KL needs every action to be possible.
    return np.asarray((mu + 1e-300) / mu.sum(axis=1, keepdims=True))


def divergence(direction: str, mu: Array, pi: Array) -> Array:
    return kl(pi, mu) if direction == "forward" else kl(mu, pi)


def objective(direction: str, mu: Array, pi: Array, q_hat: Array, beta: float) -> Array:
    return np.asarray((mu * q_hat).sum(axis=1) - beta * divergence(direction, mu, pi))


OPTIMA = {"forward": forward_optimum, "reverse": reverse_optimum}


@pytest.mark.parametrize("direction", OPTIMA)
def test_the_regularised_optimum_is_one(direction: str) -> None:
    for problem, pi, rng in problems(50):
        q, beta = problem.q(pi), float(rng.uniform(0.05, 2.0))
        best = objective(direction, OPTIMA[direction](q, pi, beta), pi, q, beta)
        for _ in range(20):
            other = objective(direction, policy(rng, *pi.shape), pi, q, beta)
            assert (other <= best + 1e-7).all()


@pytest.mark.parametrize("direction", OPTIMA)
def test_theorem_2_a_kl_regularised_step_gains_at_least_its_divergence_less_the_errors(
    direction: str,
) -> None:
    """V' - V >= E_{d'}[beta KL - delta_s - 2 eps_Q] / (1 - gamma), the KL being the objective's.

    ``forward`` is the paper's KL(pi || pi'); ``reverse`` what GRPO and PPO penalise.
    """
    for problem, pi, rng in problems(N):
        q, beta = problem.q(pi), float(rng.uniform(0.05, 2.0))
        most = float(rng.choice([0.0, rng.uniform(0.0, 0.5)]))
        q_hat = noisy(q, most, rng)
        best = OPTIMA[direction](q_hat, pi, beta)
        share = rng.uniform(0, 0.3) * float(rng.integers(0, 2))
        new = (1 - share) * best + share * policy(rng, *pi.shape)
        values = [objective(direction, mu, pi, q_hat, beta) for mu in (best, new)]
        terms = beta * divergence(direction, new, pi) - (values[0] - values[1]) - 2 * most
        bound = problem.visits(new) @ terms / (1 - problem.gamma)
        assert (problem.values(new) - problem.values(pi) >= bound - 1e-7).all()


def test_the_divergence_of_the_bound_can_not_be_turned_around() -> None:
    """v1's last display has KL(pi' || pi) under an objective with KL(pi || pi'): not in general.

    An action that pi hardly knows and pi' likes: KL(pi' || pi) grows without limit, the gain not.
    """
    problem = Problem(np.ones((1, 2, 1)), np.array([[0.0, 1.0]]), 0.0)
    pi = np.array([[1 - 1e-9, 1e-9]])
    beta = 0.5
    new = forward_optimum(problem.q(pi), pi, beta)
    gain = float((problem.values(new) - problem.values(pi))[0])
    assert gain >= beta * float(kl(pi, new)[0])
    assert gain < beta * float(kl(new, pi)[0])


def test_without_optimising_the_regularised_objective_the_bound_fails() -> None:
    """The wrong-on-purpose twin of theorem 2: a policy whose slack is not counted."""
    broken = 0
    for problem, pi, rng in problems(N):
        new = policy(rng, *pi.shape)
        bound = problem.visits(new) @ (0.1 * kl(pi, new)) / (1 - problem.gamma)
        broken += bool((problem.values(new) - problem.values(pi) < bound).any())
    assert broken > 0


def iterated(problem: Problem, pi: Array, gamma_of_q: float) -> list[Array]:
    """Values of the policies of policy iteration, with Q at another discount if one likes."""
    fitted = Problem(problem.moves, problem.rewards, gamma_of_q)
    out = [problem.values(pi)]
    for _ in range(12):
        pi = greedy(fitted.q(pi))
        out.append(problem.values(pi))
    return out


def test_evaluation_and_improvement_in_turns_reach_the_optimum() -> None:
    for problem, pi, _ in problems(N // 2):
        values = iterated(problem, pi, problem.gamma)
        for before, after in pairwise(values):
            assert (after >= before - ROUNDING).all()
        assert values[-1] == pytest.approx(problem.optimum(), abs=1e-6)


def test_the_myopic_q_of_st_grpo_stops_short_of_it() -> None:
    gaps = [
        float((problem.optimum() - iterated(problem, pi, 0.0)[-1]).max())
        for problem, pi, _ in problems(N // 2)
    ]
    assert np.mean([gap > 0.05 for gap in gaps]) > 0.1
