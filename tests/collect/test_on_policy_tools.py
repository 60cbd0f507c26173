"""The page on on-policy tools, run block by block; real gymnasium and a real TRL trainer."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from architecture.sources import named_blocks
from iterpo.agents.base import Reply, Seat
from iterpo.agents.scripted import ScriptedPartner
from iterpo.collect.single_agent import SingleAgentEnv
from iterpo.domain import Split, View
from iterpo.environments.ultimatum import Ultimatum, UltimatumOptions

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "on-policy-tools.md"
BLOCKS = named_blocks(PAGE)


def run(name: str, **given: Any) -> dict[str, Any]:
    exec(compile(BLOCKS[name], f"{PAGE.name}: {name}", "exec"), given)
    return given


def test_the_first_block_plays_an_episode(capsys: pytest.CaptureFixture[str]) -> None:
    env: SingleAgentEnv = run("gymnasium")["env"]
    said = capsys.readouterr().out
    assert re.match(r"[01]\.\d+ (agreed|refused|turn_limit) \{", said)
    assert "agent: I propose \\boxed{AGREED: split=$50}." in said
    assert env.render() == ""


@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning:gymnasium")
def test_gymnasiums_own_checker_accepts_it() -> None:
    gymnasium = pytest.importorskip("gymnasium")
    checker = pytest.importorskip("gymnasium.utils.env_checker")
    game = Ultimatum()
    table = {
        "game": game,
        "partner": ScriptedPartner(game),
        "scenarios": game.scenarios(Split.TRAIN, 10),
    }
    made = run("gymnasium.Env")["Negotiation"]
    gymnasium.register("iterpo/Negotiation-v0", made, kwargs=table, max_episode_steps=1)
    try:
        env = gymnasium.make("iterpo/Negotiation-v0", render_mode="ansi")
        checker.check_env(env.unwrapped)
        first, _ = env.reset(seed=1)
        assert first.startswith("system: You are Player 1")
        *_, terminated, truncated, _ = env.step("hm")
        assert (terminated, truncated) == (False, True)
        env.close()
    finally:
        gymnasium.registry.pop("iterpo/Negotiation-v0")


class Generous:
    """Closes at once, the better for the agent the more of its characters are small."""

    def __init__(self, seat: Seat) -> None:
        self.pool = seat.scenario.facts["pool"]

    async def reply(self, view: View) -> Reply:
        if len(view.turns) == 1:
            return Reply("Well?")
        said = view.turns[-1].text
        share = sum(c.islower() for c in said) / max(len(said), 1)
        return Reply(f"Fine. \\boxed{{AGREED: split=${round(share * self.pool)}}}")

    def close(self) -> None:
        pass


@pytest.fixture
def tiny(tmp_path: Path) -> tuple[Any, Any]:
    """A random model and its tokenizer, taught plain speech."""
    transformers = pytest.importorskip("transformers")
    from iterpo.testing.tiny_model import tiny_model

    folder = tiny_model(tmp_path / "model", max_position_embeddings=1024)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    run("plain speech", tokenizer=tokenizer)
    return transformers.AutoModelForCausalLM.from_pretrained(folder), tokenizer


def test_plain_speech_renders_an_ordinary_chat(tiny: tuple[Any, Any]) -> None:
    """What the policy reads is what the model's own template makes of the same messages."""
    from iterpo.testing.tiny_model import CHAT_TEMPLATE

    _, tokenizer = tiny
    call = {"type": "function", "function": {"name": "say", "arguments": {"message": "Ten?"}}}
    head = [{"role": "system", "content": "S"}, {"role": "user", "content": "Well?"}]
    tools = [
        *head,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "name": "say", "content": "No."},
    ]
    plain = [*head, {"role": "assistant", "content": "Ten?"}, {"role": "user", "content": "No."}]
    rendered = tokenizer.apply_chat_template(tools, add_generation_prompt=True, tokenize=False)
    assert rendered == tokenizer.apply_chat_template(
        plain, add_generation_prompt=True, tokenize=False, chat_template=CHAT_TEMPLATE
    )


@pytest.mark.filterwarnings("ignore:You are using .environment_factory.")
@pytest.mark.filterwarnings("ignore:.*_checkpointing.*is deprecated:FutureWarning")
def test_a_real_grpo_trainer_trains_on_conversations(tmp_path: Path, tiny: tuple[Any, Any]) -> None:
    trl = pytest.importorskip("trl")
    pytest.importorskip("datasets")
    torch = pytest.importorskip("torch")

    model, tokenizer = tiny
    game = Ultimatum(UltimatumOptions(closing="unilateral", prompt_style="compact"))
    heard: list[str] = []

    class Listening(Generous):
        async def reply(self, view: View) -> Reply:
            heard.append(view.turns[-1].text)
            return await super().reply(view)

    arguments = trl.GRPOConfig(
        output_dir=str(tmp_path / "out"),
        use_cpu=True,
        bf16=False,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        logging_steps=1,
        per_device_train_batch_size=4,
        num_generations=4,
        max_steps=2,
        learning_rate=1e-2,
        max_completion_length=96,
        max_tool_calling_iterations=1,
    )
    before = [p.detach().clone() for p in model.parameters()]
    trained = run(
        "trl",
        game=game,
        ScriptedPartner=lambda game: Listening,
        Split=Split,
        model=model,
        tokenizer=tokenizer,
        arguments=arguments,
    )
    history = [row for row in trained["trainer"].state.log_history if "reward" in row]
    assert len(history) == 2
    for row in history:
        assert row["tools/call_frequency"] == 1.0
        assert row["tools/failure_frequency"] == 0.0
        assert row["rewards/ToolConversation/mean"] == row["reward"]
        assert row["reward"] > 0
        assert row["reward_std"] > 0
    spoken = [text for text in heard if not text.startswith("Split $")]
    assert len(spoken) == 8
    assert len(set(spoken)) == 8
    moved = [not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True)]
    assert all(moved)
