"""The embedded model `nano`: small, self-contained, and able to play all six games."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from iterpo.domain import Conversation, Message, Sampling, Scenario, Split
from iterpo.models import backbone, hub
from iterpo.models.backbone import Backbone

SCRIPTS = Path(__file__).parents[2] / "scripts"
NO_NUCLEUS = Sampling(temperature=1.0, top_p=1.0, max_new_tokens=64)


@pytest.fixture(scope="module")
def nano() -> Backbone:
    return backbone.load(hub.base_policy("nano"), device="cpu")


def test_it_is_small_and_holds_no_code() -> None:
    folder = hub.resolve("nano").path
    assert hub.count_parameters(folder) == hub.EMBEDDED["nano"].parameters <= 5_000_000
    assert sum(f.stat().st_size for f in folder.glob("*.safetensors")) <= 10_000_000
    assert {f.suffix for f in folder.iterdir()} <= {".json", ".safetensors", ".md"}
    config = json.loads((folder / "config.json").read_text())
    assert (config["model_type"], config["tie_word_embeddings"]) == ("llama", True)
    assert config["dtype"] == "bfloat16"


def test_its_special_tokens_are_distinct(nano: Backbone) -> None:
    tokenizer = nano.tokenizer
    assert tokenizer.pad_token_id != tokenizer.eos_token_id
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.bos_token_id is None
    assert nano.chat.stop_ids[0] == tokenizer.eos_token_id == nano.model.config.eos_token_id


@pytest.mark.parametrize(
    "text",
    [
        r"I keep $600, you get $400. \boxed{AGREED: split=$600}",
        r"\boxed{REJECT} \boxed{AGREED: MINE: book=1 hat=0 ball=2; THEIRS: book=2 hat=1 ball=0}",
        'Sell ★ Vélo “Peugeot” – 21" / 54cm?? $1,249.50',
        "  two  blanks,\ttabs\r\nand\n\nlines \n",
        "naïve café – 日本語 🙂 \u200b\x00 don't",
        "",
        " ",
        "x ,y .z !",
    ],
)
def test_any_text_comes_back_unchanged(nano: Backbone, text: str) -> None:
    ids = nano.tokenizer.encode(text, add_special_tokens=False)
    assert nano.tokenizer.decode(ids) == text
    assert nano.chat.decode(ids) == text


def test_digits_are_single_tokens(nano: Backbone) -> None:
    for text in ("10000", "$4250", "split=$614", "book=3 12x7", "a1b22"):
        pieces = nano.tokenizer.tokenize(text)
        assert [p for p in pieces if re.search(r"\d", p)] == re.findall(r"\d", text)


def test_frequent_pieces_are_one_token(nano: Backbone) -> None:
    games = (
        " split=$",
        " MINE:",
        " book=",
        " THEIRS:",
        " Food=",
        " Salary=",
        "Tokyo",
        "Sales",
        " E=",
    )
    for piece in (" \\boxed{", "AGREED:", "REJECT", "ACCEPT", *games):
        assert len(nano.tokenizer.tokenize(piece)) == 1, piece


def test_its_template_has_the_prefix_property(nano: Backbone) -> None:
    chat = [
        {"role": "system", "content": " P1 pool=100 rounds=4 "},
        {"role": "assistant", "content": "Split $100?\n"},
        {"role": "user", "content": "\nHi \\boxed{AGREED: split=$35}"},
        {"role": "assistant", "content": " I keep $60. "},
        {"role": "user", "content": ""},
        {"role": "assistant", "content": "Fine."},
    ]

    def rendered(k: int, *, ready: bool) -> str:
        return str(
            nano.tokenizer.apply_chat_template(
                chat[:k], tokenize=False, add_generation_prompt=ready
            )
        )

    whole = rendered(len(chat), ready=False)
    for k in range(1, len(chat) + 1):
        assert whole.startswith(rendered(k, ready=False))
        assert chat[k - 1]["content"] in rendered(k, ready=False)  # nothing is trimmed
        if k < len(chat) and chat[k]["role"] == "assistant":
            assert whole.startswith(rendered(k, ready=True) + chat[k]["content"])


def test_its_template_refuses_an_unknown_role(nano: Backbone) -> None:
    with pytest.raises(Exception, match="roles system, user and assistant"):
        nano.tokenizer.apply_chat_template([{"role": "tool", "content": "x"}], tokenize=False)


def test_masks_of_a_conversation_are_proved(nano: Backbone) -> None:
    messages = (
        Message("system", "P1 pool=100 rounds=4"),
        Message("assistant", "Split $100?"),
        Message("user", "Hi \\boxed{AGREED: split=$35}"),
        Message("assistant", "I accept. \\boxed{AGREED: split=$35}"),
    )
    row = nano.chat.conversation_ids(messages, trained=[3])
    start, end = row.spans[0]
    assert list(row.ids[:start]) == nano.chat.prompt_ids(messages[:3])
    assert list(row.ids[start:end]) == nano.chat.response_ids(messages[3].content)


GAMES = ("ultimatum", "deal_or_no_deal", "craigslist", "casino", "job_interview", "alliance")


# Bounds leave two to three standard errors of 96 conversations to the figures of the model card.
@pytest.mark.parametrize("split", list(Split))
@pytest.mark.parametrize("game", GAMES)
def test_it_plays_sensibly_and_leaves_room_to_improve(
    nano: Backbone, game: str, split: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The script's own measure, so that the model card and this test can't disagree.
    monkeypatch.syspath_prepend(str(SCRIPTS))
    from nano_pretraining import quality

    conversations: list[Conversation]
    scenarios: dict[str, Scenario]
    conversations, scenarios = quality.converse(nano, game, 96, NO_NUCLEUS, seed=5, split=split)
    facts = quality.measure(conversations, scenarios)
    assert 0.6 <= facts.agreement <= 0.95
    assert facts.boxing >= 0.93
    assert facts.valid_boxes >= 0.94
    # Five terms with words of their own are the hardest to copy.
    assert facts.right_boxes >= (0.75 if game == "job_interview" else 0.91)
    if game not in ("deal_or_no_deal", "casino"):  # these accept by a keyword
        assert facts.copied >= 0.75
    assert facts.spread >= 0.12
    assert 0.36 * facts.j_star <= facts.j <= 0.75 * facts.j_star
    assert 8 <= facts.tokens[1] <= 35
    assert facts.truncated <= 0.005
