"""The scripted partner: its bound J*, what it says, and what it does not give away."""

from __future__ import annotations

import dataclasses
import re
import string
import time
from typing import Any, get_args

import pytest

from agents.conftest import NO_DATA
from iterpo.agents.base import Reply, Seat
from iterpo.agents.scripted import Move, ScriptedPartner, _asks, decide
from iterpo.agents.wording import TEMPLATES, SpeechAct
from iterpo.agents.yardsticks import FirstCounter, Oracle, RandomOffer
from iterpo.domain import Ending, Role, Split, Turn, View, derive, discounted_return
from iterpo.environments import boxed
from iterpo.environments.deal_or_no_deal import DealOrNoDeal
from iterpo.environments.sources import Division
from iterpo.environments.ultimatum import Ultimatum
from iterpo.errors import ConfigError

GAMES = [*NO_DATA, pytest.param("real deals", marks=pytest.mark.data)]
UNITS = ("agent_turn", "message")


class Babbler:
    """Says anything: boxes, words, half boxes, claims, refusals; worse than any trained policy."""

    def __init__(self, game: Any) -> None:
        self.game = game

    def __call__(self, seat: Seat) -> Babbler:
        speaker = Babbler(self.game)
        speaker.bargain, speaker.seed = self.game.bargain(seat.scenario), seat.seed
        return speaker

    bargain: Any
    seed: int

    async def reply(self, view: View) -> Reply:
        import numpy as np

        rng = np.random.default_rng(derive(self.seed, len(view.turns)))
        box = self.bargain.box(self.bargain.draw_terms(rng), Role.AGENT)
        standing = self.bargain.standing(view.turns, Role.PARTNER)
        number = int(rng.integers(0, 4))
        said = [
            "hm",
            box,
            box,
            box[:-1],
            f"\\boxed{{REJECT}} {box}",
            "\\boxed{ACCEPT}",
            "\\boxed{REJECT}",
            f"I take {number} books",
            f"you get {number} balls and the hat",
            f"I'll take {number} food and the water",
            "ok, deal!",
            f"I keep ${number * 20}",
            f"you get ${number * 15}",
            "What do you value most?",
            boxed.boxes(box)[0].removeprefix("AGREED: "),
            " and ".join(re.findall(r"[A-E]=[1-5]|Tokyo|Apple|Sales", box)),
            view.turns[-1].text,
            self.bargain.box(standing, Role.PARTNER)
            if standing is not None
            else "\\boxed{NO DEAL}",
        ]
        picks = rng.integers(len(said), size=int(rng.integers(1, 3)))
        return Reply(". ".join(said[int(i)] for i in picks))

    def close(self) -> None:
        pass


@pytest.mark.parametrize("name", GAMES)
def test_the_oracle_attains_j_star(game: Any, play: Any, name: str) -> None:
    env, kernels = game(name, "full", 200)
    partner = ScriptedPartner(env, 5)
    for kernel in kernels:
        played = play(env, kernel, Oracle(env, 5, gamma=0.9), partner)
        best = partner.j_star(kernel, 0.9)
        assert discounted_return(played, 0.9, "agent_turn") == pytest.approx(
            best["agent_turn"], abs=1e-9
        )
        assert discounted_return(played, 0.9, "message") <= best["message"] + 1e-9


def test_without_a_rejection_in_front_the_oracle_would_miss(game: Any, play: Any) -> None:
    """The wrong twin: its box can read like the partner's standing one and closes as an echo."""
    env, kernels = game("invented deals", "full", 400)

    class Blunt:
        def __init__(self, bargain: Any) -> None:
            self.bargain = bargain

        rejection = ""

        def __getattr__(self, name: str) -> Any:
            return getattr(self.bargain, name)

    class BluntGame:
        def bargain(self, scenario: Any, seed: int = 0) -> Any:
            return Blunt(env.bargain(scenario, seed))

    partner = ScriptedPartner(env)
    missed = 0
    for kernel in kernels:
        value = discounted_return(
            play(env, kernel, Oracle(BluntGame()), partner), 0.9, "agent_turn"
        )
        missed += value < partner.j_star(kernel, 0.9)["agent_turn"] - 1e-9
    assert missed > 0


def _no_play_beats_j_star(game: Any, play: Any, name: str, n: int, replicas: int) -> int:
    env, kernels = game(name, "full", n)
    partner = ScriptedPartner(env, 1)
    deals = 0
    for kernel in kernels:
        best = partner.j_star(kernel, 0.9)
        for agent in (Babbler(env), RandomOffer(env), FirstCounter(env)):
            for replica in range(replicas):
                played = play(env, kernel, agent, partner, replica)
                deals += played.outcome.ending is Ending.AGREED
                for unit in UNITS:
                    assert discounted_return(played, 0.9, unit) <= best[unit] + 1e-9
    return deals


@pytest.mark.parametrize("name", GAMES)
def test_no_play_goes_above_j_star(game: Any, play: Any, name: str) -> None:
    assert _no_play_beats_j_star(game, play, name, 100, 2) > 200


@pytest.mark.slow
@pytest.mark.parametrize("name", GAMES)
def test_many_plays_do_not_go_above_j_star(game: Any, play: Any, name: str) -> None:
    plays = 400 * 3 * 17  # 20,400 a game
    assert _no_play_beats_j_star(game, play, name, 400, 17) > plays / 3


def _actions(text: str) -> list[tuple[str, str | None]]:
    return [(k, rest) for k, rest in boxed._keyword_boxes(text)]


@pytest.mark.parametrize("style", ["full", "compact"])
@pytest.mark.parametrize("name", GAMES)
def test_partner_messages_pass_the_games_parser_with_the_intended_action(
    game: Any, play: Any, name: str, style: str
) -> None:
    env, kernels = game(name, style, 150)
    partner = ScriptedPartner(env, 2)
    seen: dict[str, set[str]] = {}
    for kernel in kernels:
        bargain = env.bargain(kernel, 2)
        for replica in range(2):
            turns = play(env, kernel, Babbler(env), partner, replica).turns
            for m in range(1, len(turns), 2):
                move, text = decide(bargain, turns[:m]), turns[m].text
                seen.setdefault(move.act, set()).add(boxed.outside(text))
                _check(env, kernel, bargain, turns, m, move)
    assert {"accept", "counter", "nudge", "last"} <= seen.keys()
    assert len(seen["counter"]) >= 8


def _check(env: Any, kernel: Any, bargain: Any, turns: Any, m: int, move: Move) -> None:
    text = turns[m].text
    boxes = _actions(text)
    after = env.talk(kernel, turns[: m + 1])
    if move.act == "prefer":
        assert boxes == []
        assert not re.search(r"[0-9$]", text)
        return
    assert len(boxes) == 1 + move.anew
    if move.act == "accept":
        assert after.ending is Ending.AGREED
        assert env.read(kernel, turns[: m + 1]).reward == pytest.approx(bargain.reward(move.terms))
    elif move.act == "refuse":
        assert after.ending is Ending.REFUSED
    elif move.act == "reject":
        assert after.ending is None
        assert after.offers == {}
    else:
        assert after.ending in (None, Ending.TURN_LIMIT)
        assert bargain.standing(turns[: m + 1], Role.PARTNER) == move.terms
        assert bargain.worth(move.terms) >= bargain.aspirations[(m - 1) // 2]


@pytest.mark.parametrize("name", NO_DATA)
def test_the_partner_repeats_itself_by_seed_and_varies_by_replica(
    game: Any, play: Any, name: str
) -> None:
    env, kernels = game(name, "full", 20)
    talks = [
        [
            play(env, k, FirstCounter(env), ScriptedPartner(env, seed), replica).turns
            for k in kernels
        ]
        for seed, replica in ((0, 0), (0, 0), (0, 1), (1, 0))
    ]
    assert talks[0] == talks[1]
    assert talks[0] != talks[2]
    assert talks[0] != talks[3]


def test_the_partner_does_not_know_the_agents_values(game: Any, play: Any) -> None:
    env, kernels = game("invented deals", "full", 60)
    for kernel in kernels:
        bargain = env.bargain(kernel)
        blind = dataclasses.replace(bargain, agent_values=(0, 0, 0))
        turns = play(env, kernel, Babbler(env), ScriptedPartner(env)).turns
        for m in range(1, len(turns), 2):
            assert decide(bargain, turns[:m]) == decide(blind, turns[:m])


def _turns(*messages: str) -> tuple[Turn, ...]:
    roles = (Role.AGENT, Role.PARTNER)
    return tuple(Turn(roles[i % 2], m, scripted=i == 0) for i, m in enumerate(messages))


def test_moves_of_the_responder() -> None:
    env = Ultimatum()
    kernel = env.scenarios(Split.TRAIN, 2)[1]  # pool 100, 8 rounds
    bargain = dataclasses.replace(env.bargain(kernel), aspirations=(65.0, 54.0, 42.0, 30.0))
    hello, p1 = env.opening(kernel).text, "\\boxed{AGREED: split=$35}"
    offer = "\\boxed{{AGREED: split=${}}}".format
    assert decide(bargain, _turns(hello)) == Move("greet", 3500)
    assert decide(bargain, _turns(hello, p1, offer(46))) == Move("accept", 4600)
    assert decide(bargain, _turns(hello, p1, offer(47))) == Move("counter", 4600)
    assert decide(bargain, _turns(hello, p1, "I keep $46")) == Move("nudge", 4600)
    assert decide(bargain, _turns(hello, p1, "I keep $40")) == Move("nudge", 4000)
    assert decide(bargain, _turns(hello, p1, "I keep $60")) == Move("nudge", 4600)
    quiet = _turns(hello, p1, "hm", p1, "hm", p1, "hm")
    assert decide(bargain, quiet) == Move("refuse")
    assert decide(bargain, _turns(hello, p1, offer(99), p1, "hm", p1, "hm")) == Move("last", 7000)
    assert decide(bargain, _turns(hello, p1, offer(58), p1, "hm")) == Move("accept", 5800)


def test_moves_of_the_divider() -> None:
    env = DealOrNoDeal()
    kernel = env.scenario(Division((3, 1, 2), (2, 0, 2), (0, 6, 2)), Split.TRAIN)
    bargain = env.bargain(kernel)
    hello = env.opening(kernel).text
    assert decide(bargain, _turns(hello)) == Move("prefer")
    # Worth 8 to the partner: hat and a ball. Nothing offered yet: most items for the agent.
    assert decide(bargain, _turns(hello, "Hats!", "hm")) == Move("counter", (3, 0, 1))
    # The counter nearest to (0, 1, 0) would be written like it, so it is skipped.
    greedy = bargain.box((0, 1, 1), Role.AGENT)
    move = decide(bargain, _turns(hello, "Hats!", greedy))
    assert move.terms is not None
    assert not bargain.clashes(move.terms, (0, 1, 1))
    # In words the agent then offers what would read like its own box: rejected first, then boxed.
    talk = _turns(
        hello, "Hats!", bargain.box((0, 1, 1), Role.AGENT), "No.", "I take 3 books and a ball"
    )
    assert decide(bargain, talk) == Move("nudge", (3, 0, 1), anew=True)
    asked = _turns(hello, "Hats!", "What do you like most?")
    speaker = ScriptedPartner(env)(Seat(kernel, Role.PARTNER, 0, 0, 0))
    with pytest.raises(StopIteration) as done:
        speaker.reply(env.view(kernel, Role.PARTNER, asked)).send(None)  # type: ignore[attr-defined]
    assert done.value.value.text.startswith(
        "I care most about hats, then balls, and least about books."
    )


@pytest.mark.parametrize(
    ("text", "asks"),
    [
        ("What do you want?", True),
        ("Do you need the hat?", True),
        ("Hats are mine. And yours?", True),
        ("How would you rank them?", True),
        ("I like books. What about you?", True),
        ("I want the hat. Deal?", False),
        ("Shall we go on?", False),
        ("I want books.", False),
    ],
)
def test_questions_about_preferences_are_told_from_others(text: str, asks: bool) -> None:
    assert _asks(text) is asks


def test_the_last_counter_is_called_a_last_offer() -> None:
    for template in TEMPLATES["full"]["last"]:
        assert re.search("(?:last|final) offer", template, re.IGNORECASE)


def test_with_nothing_left_to_offer_the_partner_rejects() -> None:
    env = DealOrNoDeal()
    kernel = env.scenario(Division((2, 2, 2), (5, 0, 0), (5, 0, 0)), Split.TRAIN)
    bargain = dataclasses.replace(env.bargain(kernel), pool=(1, 1, 1), partner_values=(5, 3, 2))
    only = bargain.counter(10, None, None)
    assert only == (0, 0, 0)
    assert bargain.counter(10, None, (1, 1, 1)) is None


def test_every_act_has_eight_templates_and_none_can_be_misread() -> None:
    for style, acts in TEMPLATES.items():
        assert set(acts) == set(get_args(SpeechAct))
        for act, templates in acts.items():
            assert len(set(templates)) >= 8
            for template in templates:
                fields = {f for _, f, _, _ in string.Formatter().parse(template) if f}
                assert fields == {"chat": set(), "prefer": {"words"}}.get(act, {"box"}), style
                said = template.format(box="", words="")
                assert not re.search(r"[0-9$\\{}]", said)


def test_seats_are_checked(game: Any) -> None:
    env, (kernel,) = game("ultimatum", "full", 1)
    with pytest.raises(ConfigError, match="can't sit in the 'agent' seat"):
        ScriptedPartner(env)(Seat(kernel, Role.AGENT, 0, 0, 0))
    with pytest.raises(ConfigError, match="plays the agent"):
        FirstCounter(env)(Seat(kernel, Role.PARTNER, 0, 0, 0))
    with pytest.raises(ConfigError, match="object offers no scripted partner"):
        ScriptedPartner(object())  # type: ignore[arg-type]


@pytest.mark.parametrize("name", NO_DATA)
def test_a_thousand_conversations_a_second(game: Any, play: Any, name: str) -> None:
    env, kernels = game(name, "full", 100)
    partner = ScriptedPartner(env)
    start = time.process_time()
    for kernel in kernels:
        for replica in range(4):
            play(env, kernel, Oracle(env), partner, replica)
    # 400 conversations: 0.4 s is the aim, measured 0.15 s; the slack is for slow shared machines.
    assert time.process_time() - start < 2
