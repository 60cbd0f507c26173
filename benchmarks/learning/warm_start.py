"""A scripted warm start: an adapter that has learnt from dialogues of random teachers to speak.

Teachers of `scripts/nano_pretraining` play a game against the scripted partner on kernels and
private draws that no benchmark uses (Ultimatum's training pairs, invented divisions). They close
most deals and bargain carelessly: whoever imitates them can play, and has much to learn. They never
see what the partner holds back, so their words can't tell it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

from cells import ROOT

from iterpo import environments
from iterpo.agents.base import Reply, Seat
from iterpo.agents.scripted import Bargaining, ScriptedPartner
from iterpo.artifacts import write_atomic
from iterpo.collect.play import Table, play
from iterpo.domain import Role, View, derive
from iterpo.models.lora import LoraSpec

sys.path.insert(0, str(ROOT / "scripts"))
from nano_pretraining.corpus import Dialogue, Lesson, TeacherAgent, lessons
from nano_pretraining.kernels import kernels


@dataclass(frozen=True, slots=True)
class WarmStart:
    """All that the adapter depends on, but for the versions of the packages."""

    model: str
    """Base model."""
    dtype: str
    """Precision of its weights; the adapter is float32."""
    threads: int
    """CPU threads; they change rounding."""
    lora: LoraSpec
    """Shape of the adapter; the plan's, since the run trains it on."""
    games: tuple[str, ...] = ("ultimatum", "deal_or_no_deal")
    """Games, all in one adapter."""
    dialogues: int = 240
    """Dialogues a game; each is learnt from once."""
    batch: int = 8
    """Dialogues of one game a step."""
    micro_batch: int = 4
    """Dialogues a forward pass; changes memory only."""
    learning_rate: float = 1e-3
    """Peak rate of AdamW: a tenth of the steps up, then linearly down to nothing."""
    seed: int = 0
    """Of the dialogues, their order and the fresh adapter."""
    style: str = field(default="full", init=False)
    """Prompt style."""

    @property
    def name(self) -> str:
        """Folder name: other settings, another folder."""
        text = json.dumps(asdict(self), sort_keys=True)
        return f"warm-start-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


@dataclass(frozen=True, slots=True)
class _Row:
    ids: tuple[int, ...]
    own: tuple[bool, ...]
    """True on the teacher's tokens, stop tokens included."""


class _Speaker:
    """A teacher that names items as people do."""

    def __init__(self, teacher: TeacherAgent) -> None:
        self._teacher = teacher

    async def reply(self, view: View) -> Reply:
        said = await self._teacher.reply(view)
        return Reply(naturally(said.text))

    def close(self) -> None:
        self._teacher.close()


def naturally(text: str) -> str:
    r"""Items in a sentence, none of which there are none; boxes stay as they are.

    >>> naturally("I take 1 book 0 hats 2 balls. \\boxed{ACCEPT}")
    'I take 1 book and 2 balls. \\boxed{ACCEPT}'
    """

    def sentence(found: re.Match[str]) -> str:
        some = [f"{n} {item}" for n, item in re.findall(r"(\d+) ([a-z]+)", found[0]) if n != "0"]
        return " and ".join(filter(None, (", ".join(some[:-1]), *some[-1:]))) or "nothing"

    return re.sub(r"\d+ books? \d+ hats? \d+ balls?", sentence, text)


def dialogues(game: str, n: int, seed: int) -> Iterator[Dialogue]:
    """Conversations of teachers with the scripted partner, in the prose style of prompts."""
    env = environments.make(game, prompt_style="full")

    def teacher(seat: Seat) -> _Speaker:
        return _Speaker(TeacherAgent(env, seat, mindful=True))

    for i, scenario in enumerate(kernels(game, n, derive(seed, "warm-start"))):
        people = derive(seed, "warm-start", "partner", game, i)
        partner = ScriptedPartner(cast(Bargaining, env), partner_seed=people)
        seat = Seat(scenario, Role.AGENT, 0, i, derive(seed, "warm-start", "dialogue", game, i))
        played = asyncio.run(play(Table(env, teacher, partner), seat))
        yield Dialogue(env, scenario, played, (Role.AGENT,))


def batches(settings: WarmStart, chat: Any) -> list[list[_Row]]:
    """One pass over all dialogues in shuffled batches, each of one game and of like lengths."""
    rng = random.Random(derive(settings.seed, "warm-start", "order"))
    out = []
    for game in settings.games:
        played = dialogues(game, settings.dialogues, settings.seed)
        rows = [_row(lesson, chat) for one in played for lesson in lessons(one, rng)]
        rows.sort(key=lambda row: len(row.ids))
        out += [rows[i : i + settings.batch] for i in range(0, len(rows), settings.batch)]
    rng.shuffle(out)
    return out


def _row(lesson: Lesson, chat: Any) -> _Row:
    spoken = [
        i for i, m in enumerate(lesson.messages) if m.role == "assistant" and i >= lesson.first
    ]
    row = chat.conversation_ids(lesson.messages, spoken)
    return _Row(row.ids, row.mask)


def make(settings: WarmStart, folder: Path) -> None:
    """Train the adapter and store it as a policy folder.

    A loop of our own: TRL's trainer makes logits over 49k words at every token, and the teacher's
    are a tenth of all. Killed, it starts anew; the losses are in ``folder`` with suffix ``.json``.
    """
    import torch

    from iterpo.models.backbone import TRAINED, attach_lora, load
    from iterpo.models.checkpoints import load_policy, save_policy

    torch.set_num_threads(settings.threads)
    base = load_policy(settings.model)
    backbone = load(base, dtype=settings.dtype, device="cpu")
    plan = batches(settings, backbone.chat)
    model = attach_lora(backbone, settings.lora, derive(settings.seed, "warm-start", "lora"))
    weights = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=settings.learning_rate, weight_decay=0.0)
    log = []
    for step, rows in enumerate(plan):
        begun = time.monotonic()
        rate = settings.learning_rate * _share(step, len(plan))
        for group in optimizer.param_groups:
            group["lr"] = rate
        total = sum(sum(row.own) for row in rows)
        loss = 0.0
        for i in range(0, len(rows), settings.micro_batch):
            part = _loss(model, rows[i : i + settings.micro_batch]) / total
            part.backward()
            loss += float(part.detach())
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        wall = round(time.monotonic() - begun, 2)
        log.append({"step": step + 1, "loss": round(loss, 4), "rate": rate, "wall_s": wall})
        print(json.dumps(log[-1]), flush=True)
    told = {"settings": asdict(settings), "steps": log}
    write_atomic(folder.with_suffix(".json"), json.dumps(told, indent=1) + "\n")
    save_policy(folder, model, TRAINED, parent=base, round=0)


def _share(step: int, steps: int) -> float:
    rise = max(1, steps // 10)
    return min((step + 1) / rise, (steps - step) / max(1, steps - rise))


def _loss(model: Any, rows: list[_Row]) -> Any:
    """Summed negative log-probability of the teacher's tokens."""
    import torch
    from torch.nn.functional import cross_entropy

    from iterpo.models.backbone import inner

    most = max(len(row.ids) for row in rows)
    ids, own, seen = (torch.zeros(len(rows), most, dtype=torch.long) for _ in range(3))
    for i, row in enumerate(rows):
        n = len(row.ids)
        ids[i, :n], own[i, :n], seen[i, :n] = torch.tensor(row.ids), torch.tensor(row.own), 1
    bare = inner(model)
    with torch.autocast("cpu", torch.bfloat16, enabled=bare.dtype == torch.bfloat16):
        states = bare.get_decoder()(ids, attention_mask=seen, use_cache=False).last_hidden_state
        told = own[:, 1:].bool()
        logits = bare.get_output_embeddings()(states[:, :-1][told])
    return cross_entropy(logits.float(), ids[:, 1:][told], reduction="sum")
