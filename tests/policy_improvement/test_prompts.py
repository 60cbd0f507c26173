from __future__ import annotations

import pytest

from iterpo.errors import ContextOverflowError
from iterpo.models.backbone import Backbone
from iterpo.policy_improvement.prompts import fit_prompts
from policy_improvement.tiny import MakeBackbone, state


@pytest.fixture
def backbone(make_backbone: MakeBackbone) -> Backbone:
    return make_backbone()


def test_prompts_that_fit_are_left_alone(backbone: Backbone) -> None:
    states = [state(0), state(1, turns=3)]
    prompts = fit_prompts(backbone.chat, states, 100, drop_old_turns=True)
    assert prompts.states == tuple(states)
    assert prompts.ids == tuple(tuple(backbone.chat.prompt_ids(s.messages)) for s in states)
    assert prompts.shortened == 0


def test_prompts_that_do_not_fit_are_an_error_with_a_way_out(backbone: Backbone) -> None:
    states = [state(0), state(1, turns=6), state(2, turns=9)]
    with pytest.raises(ContextOverflowError, match=r"2 of 3 prompts.*'c2'.*drop_old_turns"):
        fit_prompts(backbone.chat, states, 30)


def test_pain_16_oldest_whole_turns_go_and_system_and_latest_message_stay(
    backbone: Backbone,
) -> None:
    long = state(2, turns=9)
    prompts = fit_prompts(backbone.chat, [state(0), long], 30, drop_old_turns=True)
    kept = prompts.states[1].messages
    assert prompts.shortened == 1
    assert kept[0] == long.messages[0]
    assert kept[1:] == long.messages[len(long.messages) - len(kept) + 1 :]
    assert len(kept) > 2
    assert len(prompts.ids[1]) <= 30
    assert prompts.ids[1] == tuple(backbone.chat.prompt_ids(kept))


def test_a_last_message_that_alone_does_not_fit_is_an_error(backbone: Backbone) -> None:
    with pytest.raises(ContextOverflowError, match="even without its older turns"):
        fit_prompts(backbone.chat, [state(0, words=40, turns=2)], 30, drop_old_turns=True)
