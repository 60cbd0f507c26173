"""A game with a scripted partner: the partner's words and the game's reading of them agree."""

from __future__ import annotations

from collections.abc import Sequence

from iterpo.agents.scripted import Bargain, Move, ScriptedPartner, bargaining, decide
from iterpo.domain import Conversation, Ending, Role, Turn, discounted_return
from iterpo.environments.base import Environment
from iterpo.testing.plays import Play
from iterpo.testing.report import Findings

__all__ = ["check_bargain"]

_GAMMA = 0.9
_SCRIPTED = ("greet", "counter", "nudge", "last")


def check_bargain(env: Environment, plays: Sequence[Play], findings: Findings) -> None:
    """Each scripted message is read as the one act that was meant, and J* is the optimum."""
    game = bargaining(env)
    if game is None:
        findings.unchecked(
            "partner", "the game has no bargain(), so no scripted partner and no known optimum"
        )
        return
    partner = ScriptedPartner(game)
    for play in plays:
        if not play.who.endswith("scripted partner"):
            continue
        with findings.calling("bargain", play):
            _check_messages(env, game.bargain(play.seat.scenario), play, findings)
            _check_bound(partner, play, env.name, findings)


def _check_messages(env: Environment, bargain: Bargain, play: Play, findings: Findings) -> None:
    for i in range(1, len(play.turns), 2):
        move = decide(bargain, play.turns[:i])
        read = _act(env, bargain, play, i + 1)
        meant = _meant(move)
        findings.expect(
            "partner: each scripted message is read as the one act that was meant",
            read == meant,
            play,
            f"message {i}",
            play.turns[i].text,
            f"means {meant}, read as {read}",
        )


def _meant(move: Move) -> tuple[str, object]:
    if move.act in ("accept", "refuse"):
        return move.act, None
    return "talk", move.terms if move.act in _SCRIPTED else None


def _act(env: Environment, bargain: Bargain, play: Play, n: int) -> tuple[str, object]:
    """What the n-th message did: it closed, ended, or set the partner's standing terms."""
    turns: tuple[Turn, ...] = play.turns[:n]
    outcome = env.read(play.seat.scenario, turns)
    if outcome is not None and outcome.ending is Ending.AGREED:
        return "accept", None
    if outcome is not None and outcome.ending is Ending.REFUSED:
        return "refuse", None
    before = bargain.standing(turns[:-1], Role.PARTNER)
    after = bargain.standing(turns, Role.PARTNER)
    boxed = bargain.boxed_offer(turns[-1].text) is not None
    return "talk", after if boxed or after != before else None


def _check_bound(partner: ScriptedPartner, play: Play, name: str, findings: Findings) -> None:
    if play.outcome is None or not play.outcome.ending.scored or play.outcome.reward is None:
        return
    best = partner.j_star(play.seat.scenario, _GAMMA)
    if not best:
        findings.unchecked("partner: J*", "j_star() knows no bound under these options")
        return
    kernel = play.seat.scenario.kernel_id
    talk = Conversation(play.who, kernel, name, play.turns, play.outcome, "")
    for unit in ("agent_turn", "message"):
        got = discounted_return(talk, _GAMMA, unit)
        findings.expect(
            f"partner: no play is worth more than J* ({unit})",
            got <= best[unit] + 1e-9,
            play,
            f"got {got}, J* is {best[unit]}",
        )
    if play.who.startswith("oracle"):
        got = discounted_return(talk, _GAMMA, "agent_turn")
        findings.expect(
            "partner: the oracle attains J* (agent_turn)",
            abs(got - best["agent_turn"]) < 1e-9,
            play,
            f"got {got}, J* is {best['agent_turn']}",
        )
