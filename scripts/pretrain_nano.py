"""Make the embedded chat model `nano` from scratch: offline, seeded, on one CPU core.

    python scripts/pretrain_nano.py --out src/iterpo/models/nano

Teachers play the games against the scripted partner, a tokenizer and a small Llama learn from
what they say in two courses (first to speak and box, then what terms are worth and to consent to
exactly what was offered), and the result is measured in conversations. The same seed on the same
machine gives the same weights. A killed run continues from its last checkpoint.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import Progress as Bar
from rich.progress import TextColumn, TimeElapsedColumn, TimeRemainingColumn
from transformers import GenerationConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from iterpo.domain import derive
from nano_pretraining.consents import consents
from nano_pretraining.corpus import FIRST, SECOND, Course, Lesson, dialogues, lessons
from nano_pretraining.drill import drills
from nano_pretraining.kernels import GAMES
from nano_pretraining.report import quality_table
from nano_pretraining.tokenizer import train_tokenizer
from nano_pretraining.training import (
    Progress,
    Row,
    Shape,
    TrainingPlan,
    build_model,
    encode_row,
    train,
)


def main() -> None:
    """Parse the options and run the steps."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="model folder to write")
    parser.add_argument("--dialogues", type=int, default=7_000, help="per game, about")
    parser.add_argument("--steps", type=int, default=TrainingPlan().steps)
    parser.add_argument("--drill-steps", type=int, default=200, help="steps of mere copying first")
    parser.add_argument("--second-steps", type=int, default=1200, help="second course; 0: none")
    parser.add_argument("--start", type=Path, help="folder to go on from: the second course only")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--vocab", type=int, default=1280)
    parser.add_argument("--scratch", type=Path, default=Path("runs/nano-pretraining"))
    parser.add_argument("--conversations", type=int, default=400, help="per row of the table")
    parser.add_argument("--data-dir", help="data sets to measure on as well; none is learnt from")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    console = Console(width=110 if not sys.stdout.isatty() else None)

    if options.start:
        model = LlamaForCausalLM.from_pretrained(options.start, dtype=torch.float32)
        tokenizer = PreTrainedTokenizerFast.from_pretrained(options.start)
    else:
        model, tokenizer = fit_first(options, console)
    if options.second_steps:
        fit_second(model, tokenizer, options, console)
    save(model, tokenizer, options.out)
    shutil.rmtree(options.scratch, ignore_errors=True)
    table = quality_table(options.out, options.conversations, options.seed, options.data_dir)
    console.print(table, soft_wrap=True, highlight=False)


def fit_first(
    options: argparse.Namespace, console: Console
) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """The drill and the first course, from scratch."""
    chats = corpus(FIRST, options.dialogues, options.seed, console)
    tokenizer = train_tokenizer((_plain(c) for c in chats[:20_000]), options.vocab)
    rows = [encode_row(chat, tokenizer) for chat in chats]
    console.print(
        f"{len(rows)} rows, {sum(len(r.ids) for r in rows):,} tokens, "
        f"longest {max(len(r.ids) for r in rows)}, vocabulary {len(tokenizer)}"
    )
    model = build_model(Shape(), tokenizer, options.seed)
    console.print(f"{sum(p.numel() for p in model.parameters()):,} parameters")
    tokenizer.save_pretrained(options.scratch / "tokenizer")  # to look at checkpoints with
    plan = TrainingPlan(seed=options.seed, steps=options.steps)
    short = replace(plan, steps=options.drill_steps, warmup=30)
    drill_rows = [
        encode_row(one, tokenizer)
        for one in drills(chats, short.steps * short.batch_rows, options.seed)
    ]
    fit(model, drill_rows, short, options.scratch / "drill", console)
    fit(model, rows, plan, options.scratch / "first", console)
    return model, tokenizer


def fit_second(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    options: argparse.Namespace,
    console: Console,
) -> None:
    """The second course, from weights as a folder would hold them."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.bfloat16())
    seed = derive(options.seed, "second")
    chats = corpus(SECOND, options.dialogues * 11 // 35, seed, console)
    rows = [encode_row(chat, tokenizer) for chat in chats]
    plan = TrainingPlan(seed=options.seed, steps=options.second_steps, lr=4e-3, adam_lr=2.5e-3)
    fit(model, rows, plan, options.scratch / "second", console)


def fit(
    model: LlamaForCausalLM, rows: list[Row], plan: TrainingPlan, scratch: Path, console: Console
) -> None:
    """Train on rows, with a progress bar."""
    began = time.monotonic()
    with Bar(*Bar.get_default_columns()[:3], TimeElapsedColumn(), TimeRemainingColumn(),
             TextColumn("{task.fields[facts]}"), console=console) as bar:  # fmt: skip
        task = bar.add_task(scratch.name, total=plan.steps, facts="")

        def show(p: Progress) -> None:
            facts = f"loss {p.loss:.3f}  {p.tokens_per_s:,.0f} tokens/s"
            bar.update(task, completed=p.step, facts=facts)
            if not console.is_terminal and p.step % 50 == 0:
                console.print(f"{scratch.name}: step {p.step}/{plan.steps}  {facts}")

        train(model, rows, plan, scratch, show)
    console.print(f"{scratch.name}: {plan.steps} steps in {time.monotonic() - began:.0f} s")


def corpus(course: Course, n_per_game: int, seed: int, console: Console) -> list[Lesson]:
    """All lessons of a course, shuffled."""
    rng = random.Random(derive(seed, "nano", "lessons"))
    chats = []
    for dialogue in dialogues(n_per_game, derive(seed, "nano", "corpus"), course):
        chats += lessons(dialogue, rng)
        extra = course.consents.get(dialogue.environment.name, 0)
        chats += consents(dialogue, extra, rng) if extra else []
    console.print(f"{len(chats)} lessons from about {len(GAMES) * n_per_game} dialogues")
    rng.shuffle(chats)
    return chats


def save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    """Write the folder in transformers format, weights in bf16; an existing model card stays."""
    out.mkdir(parents=True, exist_ok=True)
    model = model.to(torch.bfloat16)
    model.generation_config = GenerationConfig(
        do_sample=True,
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        max_new_tokens=64,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model.save_pretrained(out)
    tokenizer.save_pretrained(out, save_jinja_files=False)
    path = out / "tokenizer_config.json"
    facts = json.loads(path.read_text())
    for name in ("backend", "is_local", "local_files_only"):  # facts of this process, not the model
        facts.pop(name, None)
    # The newest name of this class is unknown to older readers; this one is known to all.
    facts["tokenizer_class"] = "PreTrainedTokenizerFast"
    path.write_text(json.dumps(facts, indent=2) + "\n")
    for file in out.iterdir():
        file.chmod(0o644)


def _plain(chat: Lesson) -> str:
    return "".join(f"{m.role}\n{m.content}" for m in chat.messages)


if __name__ == "__main__":
    main()
