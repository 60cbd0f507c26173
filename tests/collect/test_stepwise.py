"""On-policy adapters: the same conversations as ``play``, steered from outside."""

from __future__ import annotations

import asyncio
import gc
import inspect
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import invented
from iterpo import environments
from iterpo.agents.base import Reply, Seat
from iterpo.agents.scripted import ScriptedPartner
from iterpo.agents.yardsticks import Oracle
from iterpo.collect import Table, play
from iterpo.collect.single_agent import SingleAgentEnv, as_messages, as_text
from iterpo.collect.stepwise import Backstage, Dialogue
from iterpo.collect.tool_calls import ToolConversation, ToolEnvironments
from iterpo.domain import Ending, Role, Split, Turn, View, discounted_return
from iterpo.environments.ultimatum import Ultimatum
from iterpo.errors import ConfigError, OutOfTurnError, TrainingError

GAME = Ultimatum()
KERNELS = GAME.scenarios(Split.TRAIN, 12)
PARTNER = ScriptedPartner(GAME)
FAIR = "\\boxed{AGREED: split=$%d}"


class Speaker:
    """Says what ``line`` gives; counts how often it was closed."""

    def __init__(self, line: Callable[[View], str]) -> None:
        self.line = line
        self.closed = 0

    def __call__(self, seat: Seat) -> Speaker:
        return self

    async def reply(self, view: View) -> Reply:
        await asyncio.sleep(0)
        return Reply(self.line(view))

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def backstage() -> Iterator[Backstage]:
    stage = Backstage()
    yield stage
    stage.close()


@pytest.fixture
def make() -> Iterator[Callable[..., SingleAgentEnv]]:
    made: list[SingleAgentEnv] = []

    def build(partner: Any = PARTNER, **more: Any) -> SingleAgentEnv:
        made.append(SingleAgentEnv(GAME, partner, KERNELS, **more))
        return made[-1]

    yield build
    for env in made:
        env.close()


def seat(replica: int = 0) -> Seat:
    return Seat(KERNELS[0], Role.AGENT, 0, replica, 7)


# --- the core ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", environments.names())
def test_steered_from_outside_a_conversation_is_what_play_makes_of_it(
    tmp_path: Path, backstage: Backstage, name: str
) -> None:
    env = invented.game(name, tmp_path)
    partner = ScriptedPartner(env)
    for kernel in env.scenarios(Split.TRAIN, 3):
        place = Seat(kernel, Role.AGENT, 2, 3, 11)
        wanted = asyncio.run(play(Table(env, Oracle(env), partner), place))
        talk = Dialogue(backstage, env, partner, place)
        oracle = Oracle(env)(place)
        while not talk.over:
            assert talk.view
            talk.say(asyncio.run(oracle.reply(talk.view)).text)
        assert talk.conversation == wanted
        assert talk.view == env.view(kernel, Role.AGENT, wanted.turns)
        assert talk.turns == wanted.turns


def test_nothing_can_be_said_after_the_end_or_after_leaving(backstage: Backstage) -> None:
    talk = Dialogue(backstage, GAME, PARTNER, seat())
    talk.say("\\boxed{NO DEAL}")
    assert talk.over
    talk.leave()  # no harm
    assert talk.conversation
    assert talk.conversation.outcome.ending is Ending.REFUSED
    with pytest.raises(OutOfTurnError, match="begin a new one"):
        talk.say("Wait!")
    left = Dialogue(backstage, GAME, PARTNER, seat())
    left.leave()
    with pytest.raises(OutOfTurnError):
        left.say("Hello?")


def test_the_partner_is_released_once_in_every_case(backstage: Backstage) -> None:
    def fails(view: View) -> str:
        raise ConnectionError("no line")

    for line, first in (
        (lambda v: "hm", "\\boxed{NO DEAL}"),
        (lambda v: "hm", None),
        (fails, None),
    ):
        speaker = Speaker(line)
        talk = Dialogue(backstage, GAME, speaker, seat())
        if first:
            talk.say(first)
        talk.leave()
        for _ in range(200):
            if speaker.closed:
                break
            threading.Event().wait(0.01)
        assert speaker.closed == 1


def test_its_thread_ends_with_its_owner() -> None:
    before = threading.active_count()
    stages = [Backstage() for _ in range(3)]
    talks = [Dialogue(stage, GAME, PARTNER, seat()) for stage in stages]
    assert threading.active_count() == before + 3
    stages[0].close()
    stages[0].close()
    del stages, talks
    gc.collect()
    assert threading.active_count() == before


def test_it_works_inside_a_running_event_loop(backstage: Backstage) -> None:
    async def notebook() -> bool:
        talk = Dialogue(backstage, GAME, PARTNER, seat())
        talk.say("\\boxed{NO DEAL}")
        return talk.over

    assert asyncio.run(notebook())


# --- reset and step ---------------------------------------------------------------------------


def episode(env: SingleAgentEnv, say: Callable[[Any], str], **reset: Any) -> tuple[Any, ...]:
    seen, info = env.reset(**reset)
    for _ in range(20):
        seen, reward, terminated, truncated, info = env.step(say(seen))
        if terminated or truncated:
            return seen, reward, terminated, truncated, info
        assert reward == 0.0
    raise AssertionError("it never ended")


def test_an_episode_is_a_conversation(make: Any) -> None:
    env = make()
    seen, info = env.reset(seed=3)
    assert [m["role"] for m in seen] == ["system", "assistant", "user"]
    assert info == {"kernel_id": info["kernel_id"], "actions": 0, "over": False}
    pool = next(k for k in KERNELS if k.kernel_id == info["kernel_id"]).facts["pool"]
    seen, reward, terminated, truncated, info = env.step(FAIR % (pool / 10))
    assert (terminated, truncated) == (True, False)
    assert reward == pytest.approx(0.2)
    assert (info["ending"], info["reward"], info["terms"]) == ("agreed", 0.2, {"split": pool / 10})
    talk = info["conversation"]
    assert discounted_return(talk, 0.9, "agent_turn") == 0.2
    assert talk.turns[-1].role is Role.PARTNER
    assert seen[-1] == {"role": "user", "content": talk.turns[-1].text}
    assert env.render().splitlines()[0].startswith("agent: Hi!")
    assert len(env.render().splitlines()) == 4


def test_the_games_own_limit_is_an_end_not_a_cut(make: Any) -> None:
    *_, reward, terminated, truncated, info = episode(make(), lambda seen: "Let me think.")
    assert (reward, terminated, truncated, info["ending"]) == (0.0, True, False, "refused")
    mute = Speaker(lambda view: "hm")
    *_, reward, terminated, truncated, info = episode(make(mute), lambda seen: "Let me think.")
    assert (reward, terminated, truncated, info["ending"]) == (0.0, True, False, "turn_limit")


def test_max_actions_cuts(make: Any) -> None:
    env = make(Speaker(lambda view: "hm"), max_actions=1)
    *_, reward, terminated, truncated, info = episode(env, lambda seen: "hm")
    assert (reward, terminated, truncated, info["actions"]) == (0.0, False, True, 1)
    assert "conversation" not in info
    with pytest.raises(OutOfTurnError, match="call reset"):
        env.step("And now?")


def test_an_unscorable_end_is_a_cut(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from iterpo.domain import Outcome

    def read(self: Any, scenario: Any, turns: Any) -> Outcome | None:
        done = len(turns) > 2
        return Outcome(Ending.INVALID, closing_message=len(turns) - 1) if done else None

    monkeypatch.setattr(Ultimatum, "read", read)
    *_, reward, terminated, truncated, info = episode(make(), lambda seen: "hm")
    assert (reward, terminated, truncated, info["reward"]) == (0.0, False, True, None)


def test_a_partner_who_leaves_at_once_costs_an_episode_not_a_crash(make: Any) -> None:
    env = make(Speaker(lambda view: "\\boxed{NO DEAL}"))
    _, info = env.reset(seed=1)
    assert info["over"]
    assert info["ending"] == "refused"
    _, reward, terminated, truncated, info = env.step("never said")
    assert (reward, terminated, truncated, info["actions"]) == (0.0, True, False, 0)
    assert "never said" not in env.render()


def test_a_failure_is_no_reward(make: Any) -> None:
    def sometimes(view: View) -> str:
        if len(view.turns) > 1:
            raise ConnectionError("the server is gone")
        return "hm"

    env = make(Speaker(sometimes))
    env.reset()
    with pytest.raises(TrainingError, match=r"has no reward: ConnectionError: the server is gone"):
        env.step("hello")
    with pytest.raises(OutOfTurnError):
        env.step("hello?")
    env.reset()  # and goes on


def test_the_same_seed_gives_the_same_episodes(make: Any) -> None:
    def story(env: SingleAgentEnv, **first: Any) -> list[Any]:
        out = []
        for i in range(4):
            seen, info = env.reset(**(first if i == 0 else {}))
            out.append((seen, info["kernel_id"]))
        return out

    one = make()
    first = story(one, seed=5)
    assert story(one, seed=5) == first
    assert story(make(seed=5)) == first
    assert story(make(), seed=6) != first
    assert len({kernel for _, kernel in first}) > 1


def test_a_kernel_can_be_chosen(make: Any) -> None:
    env = make(observe=as_text)
    seen, info = env.reset(options={"kernel_id": KERNELS[4].kernel_id})
    assert info["kernel_id"] == KERNELS[4].kernel_id
    assert seen.startswith("system: You are Player 1")
    with pytest.raises(ConfigError, match="kernel_id: given 'x'; accepted: one of ult-"):
        env.reset(options={"kernel_id": "x"})
    with pytest.raises(ConfigError, match=r"options: given \['split'\]"):
        env.reset(options={"split": "train"})
    with pytest.raises(ConfigError, match="scenarios: given none"):
        SingleAgentEnv(GAME, PARTNER, [])
    env.reset()
    with pytest.raises(ConfigError, match="accepted: a text"):
        env.step(3)


def test_what_the_agent_sees_is_what_iterpos_own_policies_see(tmp_path: Path) -> None:
    env = invented.game("deal_or_no_deal", tmp_path)
    kernels = env.scenarios(Split.TRAIN, 2)
    single = SingleAgentEnv(env, ScriptedPartner(env), kernels)
    seen, info = single.reset(options={"kernel_id": kernels[0].kernel_id})
    turns = [env.opening(kernels[0]), Turn(Role.PARTNER, "")]
    note = env.view(kernels[0], Role.AGENT, turns).reminder
    assert seen[-1]["content"].startswith(f"{note}\n")
    *_, info = single.step("\\boxed{NO DEAL}")
    single.close()
    talk = info["conversation"]
    assert seen == [m.as_dict() for m in talk.agent_view(2).messages()]
    assert seen == as_messages(talk.agent_view(2))
    assert not any("PRIVATE" in t.text for t in talk.turns)


# --- tools ------------------------------------------------------------------------------------


def test_only_speaking_is_a_tool() -> None:
    functions = inspect.getmembers(ToolConversation, predicate=inspect.isfunction)
    public = {name for name, _ in functions if not name.startswith("_")}
    assert public == {"reset", "get_reward", "say"}
    assert set(inspect.signature(ToolConversation.say).parameters) == {"self", "message"}


def test_rows_reset_and_say_make_a_conversation(tmp_path: Path) -> None:
    env = invented.game("deal_or_no_deal", tmp_path)
    kernels = env.scenarios(Split.TRAIN, 3)
    factory = ToolEnvironments(env, ScriptedPartner(env), kernels)
    rows = factory.rows()
    assert [row["kernel_id"] for row in rows] == [k.kernel_id for k in kernels]
    row = rows[1]
    assert [m["role"] for m in row["prompt"]] == ["system", "assistant", "user"]
    assert row["prompt"][0]["content"].endswith("with the tool `say`.")
    talk = factory()
    first = talk.reset(**row)
    note = env.view(kernels[1], Role.AGENT, [env.opening(kernels[1])]).reminder
    assert first.startswith(f"{note}\n")
    best = Oracle(env)(factory.seat(kernels[1].kernel_id))
    dialogue: Any = talk._talk
    while not dialogue.over:
        heard = talk.say(asyncio.run(best.reply(dialogue.view)).text)
    assert heard.endswith("(The conversation is over: agreed.)")
    reward = talk.get_reward()
    assert reward == dialogue.conversation.outcome.reward
    assert reward > 0
    with pytest.raises(OutOfTurnError):
        talk.say("One more thing.")
    assert talk.get_reward() == reward


def test_rollouts_of_a_row_differ_and_repeat() -> None:
    def first_words() -> list[str]:
        factory = ToolEnvironments(GAME, PARTNER, KERNELS)
        row = factory.rows()[0]
        return [factory().reset(**row) for _ in range(6)]

    assert first_words() == first_words()
    assert len(set(first_words())) > 1


def test_a_rollout_that_stops_early_and_one_that_failed() -> None:
    def fails(view: View) -> str:
        raise ConnectionError("gone")

    for unfinished in (0.0, -1.0, None):
        factory = ToolEnvironments(GAME, PARTNER, KERNELS, unfinished=unfinished)
        talk = factory()
        assert talk.get_reward() is None
        with pytest.raises(OutOfTurnError):
            talk.say("hi")
        talk.reset(**factory.rows()[0])
        assert talk.get_reward() == unfinished
    broken = ToolEnvironments(GAME, Speaker(fails), KERNELS)
    talk = broken()
    assert "line is dead" in talk.reset(**broken.rows()[0])
    assert talk.get_reward() is None  # left out, never a zero
    with pytest.raises(ConfigError, match="make the data set of its rows"):
        talk.reset(kernel_id="other")
