"""The table of a run's rounds, as `run`, `demo` and `show --rounds` print it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from iterpo.cli.output import console, estimate, number, print_table, say

if TYPE_CHECKING:
    from iterpo.experiments.results import RunFacts

__all__ = ["as_json", "print_rounds", "print_timings", "print_versions"]

_MEASURES = (
    ("J_agent_turn", "J"),
    ("J_message", "J (msg)"),
    ("agreement", "agreed"),
    ("turns", "turns"),
    ("reward", "reward"),
    ("regret_agent_turn", "regret"),
)


def print_rounds(run: RunFacts) -> None:
    """Tables for held-out and training kernels, the health of Q, and the updates' verdicts."""
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
    _print_updates(run)
    if run.best_round is not None:
        say(f"* best collected J in {run.plan.q.discount_unit} units: the policy to deploy")
        say(_gain(run))


def _gain(run: RunFacts) -> str:
    from iterpo.experiments.results import heldout_gain

    gain = heldout_gain(run)
    if gain is None:
        return "No update did better on the training kernels: pi_0 is still the policy to deploy."
    if gain.clusters < 2:
        return (
            f"Held-out J of pi_{run.best_round} against pi_0: {gain.mean:+.3f} on a single kernel, "
            "which has no interval: this run can't tell whether the policy got better."
        )
    if gain.low > 0:
        told = "the run made the policy better"
    elif gain.high < 0:
        told = "the run made the policy worse"
    else:
        told = "the interval includes 0: this run can't tell whether the policy got better"
    return (
        f"Held-out J of pi_{run.best_round} against pi_0: {gain.mean:+.3f} (95% interval "
        f"{gain.low:+.3f} to {gain.high:+.3f}, paired over {gain.clusters} kernels): {told}."
    )


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


def _print_updates(run: RunFacts) -> None:
    """Where each policy comes from, and what was said of it before it was deployed."""
    updates = [(r.round, r.update) for r in run.rounds if r.update and r.update.get("parent")]
    rows = []
    for _, update in updates:
        seen = update.get("evidence", {})
        rows.append(
            (
                update["policy"],
                update["parent"],
                update.get("verdict", "-"),
                *(_interval(seen.get(k)) for k in ("judge_gain", "off_policy")),
                number((seen.get("off_policy") or {}).get("ess")),
                number(seen.get("kl")),
                _share(seen.get("unseen_new")),
            )
        )
    if rows:
        columns = ("policy", "from", "verdict", "judge", "off-policy", "ess", "KL", "never tried")
        print_table("Updates: what was known before they were deployed (gains)", columns, rows)
    for i, update in updates:
        if "verdict" in update:
            say(f"round {i}: {update['verdict']}: {update['why']}")
    for r in run.rounds:
        for told in (_lineage(r.round, r.update or {}), _optimism(r.round, r.deploy)):
            if told:
                say(told)


def _lineage(i: int, update: dict[str, Any]) -> str:
    """In words, where the next policy doesn't simply follow from pi_i."""
    parts = []
    start = update.get("start_round", i)
    if start != i:
        fell = update["roll_back"]["difference"]["mean"]
        parts.append(
            f"pi_{i} fell by {-fell:.3f}, so the update started again from pi_{start} "
            f"({update['parent']})"
        )
    elif len(update.get("batch_rounds", ())) > 1:
        rounds = ", ".join(map(str, update["batch_rounds"]))
        parts.append(
            f"{update['parent']} was deployed in rounds {rounds}: all their logs were used"
        )
    parts += update.get("notes", [])
    if update.get("next") == "parent" and update["policy"] != update["parent"]:
        parts.append(f"{update['policy']} was discarded: round {i + 1} deploys {update['parent']}")
    return f"round {i}: " + "; ".join(parts) if parts else ""


def _optimism(i: int, deploy: dict[str, Any]) -> str:
    """How many messages were chosen where Q was uncertain, or why none was."""
    told = deploy.get("optimism")
    if told is None:
        return ""
    if told["q_round"] is None:
        return f"round {i}: {told['why']}"
    return (
        f"round {i}: {told['said']} messages were chosen optimistically by Q of round "
        f"{told['q_round']} ({told['drawn']} drawn; the others were never reached)"
    )


def _interval(told: dict[str, Any] | None) -> str:
    if told is None:
        return "-"
    low, high = (number(told.get(end)) for end in ("low", "high"))
    return f"{told['mean']:+.3f} [{low}, {high}]"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def print_timings(run: RunFacts) -> None:
    """Wall-clock time and peak memory of every phase."""
    rows = [(t["phase"], f"{t['wall_s']:.1f}", f"{t['peak_memory_mb']:.0f}") for t in run.timings]
    if rows:
        print_table("Time and memory", ("phase", "seconds", "peak MB"), rows)
    else:
        console().print("no phase has finished yet")


def print_versions(run: RunFacts) -> None:
    """What the run was made with; several lines where that changed between its stretches."""
    if not run.versions:
        say("versions: not kept by the iterpo that made this run")
    for i, one in enumerate(run.versions):
        told = ", ".join(f"{name} {version}" for name, version in sorted(one.items()))
        say(("then with " if i else "made with ") + (told or "versions that were not kept"))


def as_json(run: RunFacts) -> dict[str, Any]:
    """The same facts for programs."""
    return {
        "folder": str(run.folder),
        "name": run.plan.name,
        "identity": run.plan.identity(),
        "best_round": run.best_round,
        "rounds": [{"round": r.round, "deploy": r.deploy, "update": r.update} for r in run.rounds],
        "timings": list(run.timings),
        "versions": list(run.versions),
    }
