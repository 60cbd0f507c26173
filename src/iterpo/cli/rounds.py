"""The table of a run's rounds, as `run`, `demo` and `show --rounds` print it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from iterpo.cli.output import console, estimate, number, print_table, say

if TYPE_CHECKING:
    from iterpo.experiments.results import RunFacts

__all__ = ["as_json", "print_rounds", "print_timings"]

_MEASURES = (
    ("J_agent_turn", "J"),
    ("J_message", "J (msg)"),
    ("agreement", "agreed"),
    ("turns", "turns"),
    ("reward", "reward"),
    ("regret_agent_turn", "regret"),
)


def print_rounds(run: RunFacts) -> None:
    """One table for held-out and training kernels, and one for the health of Q."""
    for split, name in (("heldout", "Held-out kernels"), ("train", "Training kernels")):
        rows = [
            (
                f"pi_{r.round}" + (" *" if r.round == run.best_round else ""),
                *(estimate(r.deploy[split].get(key)) for key, _ in _MEASURES),
                _counted(r.deploy[split]),
            )
            for r in run.rounds
        ]
        if not rows:
            continue
        columns = ("policy", *(title for _, title in _MEASURES), "talks")
        print_table(f"{name} (mean ± standard error)", columns, rows)
    _print_health(run)
    if run.best_round is not None:
        say(f"* best collected J in {run.plan.q.discount_unit} units: the policy to deploy")


def _counted(measurement: dict[str, Any]) -> str:
    total = measurement.get("conversations", measurement.get("n"))
    left_out = measurement.get("left_out", 0)
    lost = sum(left_out.values()) if isinstance(left_out, dict) else left_out
    apart = {"left out": lost, "explored": measurement.get("explored", 0)}
    told = ", ".join(f"{n} {why}" for why, n in apart.items() if n)
    return f"{total} ({told})" if told else f"{total}"


def _print_health(run: RunFacts) -> None:
    rows = []
    for r in run.rounds:
        health = (r.update or {}).get("q_health")
        if not health:
            continue
        fit = health["fit"]
        rows.append(
            (
                f"Q of pi_{r.round}" + (" (shuffled)" if health.get("shuffled") else ""),
                health["rows"],
                *(number(fit.get(k)) for k in ("pearson", "spearman", "r2", "mse", "variance")),
            )
        )
    if rows:
        columns = ("Q health", "rows", "correlation", "rank corr.", "R²", "mse", "var. of returns")
        print_table("Q on conversations that it was not fitted on", columns, rows)


def print_timings(run: RunFacts) -> None:
    """Wall-clock time and peak memory of every phase."""
    rows = [(t["phase"], f"{t['wall_s']:.1f}", f"{t['peak_memory_mb']:.0f}") for t in run.timings]
    if rows:
        print_table("Time and memory", ("phase", "seconds", "peak MB"), rows)
    else:
        console().print("no phase has finished yet")


def as_json(run: RunFacts) -> dict[str, Any]:
    """The same facts for programs."""
    return {
        "folder": str(run.folder),
        "name": run.plan.name,
        "identity": run.plan.identity(),
        "best_round": run.best_round,
        "rounds": [{"round": r.round, "deploy": r.deploy, "update": r.update} for r in run.rounds],
        "timings": list(run.timings),
    }
