"""A GRPO step: iterpo's against stock TRL's, same model, adapter, prompts, group and lengths.

One warm step and one timed step a repeat, by turns, in one process. `iterpo` does what `trl` does,
`iterpo-guarded` also measures the distance to the round's policy in every step and holds it, as the
defaults have it. `trl` is TRL with its defaults, `trl-kept-activations` the same without gradient
checkpointing, which TRL switches on. Run it as

    python benchmarks/speed/grpo_step.py --model smollm2-135m --dtype bfloat16

A run that is cut goes on where it was. `--profile` adds a table of where one step's time goes.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig
from side_by_side import Repeats, gflop_per_token, matmul_gflops, messages_of, never_stop
from transformers import PrinterCallback, ProgressCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from iterpo.domain import Response, Sampling, State
from iterpo.models.backbone import Backbone, load
from iterpo.models.checkpoints import load_policy
from iterpo.models.lora import LoraSpec
from iterpo.policy_improvement.base import ImproveConfig
from iterpo.policy_improvement.single_turn import improve

RESULT = Path(__file__).parents[1] / "results" / "grpo-step.json"
ROWS = 12


class Clock:
    """Times the last of the steps, and profiles it if asked."""

    def __init__(self, profile: bool = False) -> None:
        self.marks = [time.perf_counter()]
        self.cpu = [time.process_time()]
        self.profiler = torch.profiler.profile() if profile else None

    def tick(self, *_: Any) -> None:
        if self.profiler is not None and len(self.marks) == 2:
            self.profiler.stop()
        self.marks.append(time.perf_counter())
        self.cpu.append(time.process_time())
        if self.profiler is not None and len(self.marks) == 2:
            self.profiler.start()

    def last(self) -> dict[str, float]:
        return {
            "seconds": self.marks[2] - self.marks[1],
            "cpu_seconds": self.cpu[2] - self.cpu[1],
        }

    def table(self) -> list[dict[str, Any]]:
        """The operations that took most of the profiled step, by time of their own."""
        assert self.profiler is not None
        events = self.profiler.key_averages()
        total = sum(e.self_cpu_time_total for e in events)
        top = sorted(events, key=lambda e: -e.self_cpu_time_total)[:ROWS]
        return [
            {"operation": e.key, "share": e.self_cpu_time_total / total, "calls": e.count}
            for e in top
        ]


def mixed(texts: Sequence[str]) -> list[float]:
    """Any scores with a spread."""
    return [len(set(text)) % 7 / 7 for text in texts]


def ours(
    args: argparse.Namespace, guard: dict[str, Any], backbone: Backbone, clock: Clock
) -> dict[str, Any]:
    states = [
        State(f"c{i}", f"k{i}", 1, messages_of(backbone, i, args.prompt_tokens))
        for i in range(args.prompts)
    ]
    never_stop(backbone, backbone.chat.prompt_ids(states[0].messages))
    rows: list[dict[str, float]] = []

    def reward(_: Sequence[State], responses: Sequence[Response]) -> list[float]:
        return mixed([r.text for r in responses])

    def record(_: int, metrics: Any) -> None:
        clock.tick()
        rows.append(dict(metrics))

    config = ImproveConfig(
        lora=LoraSpec(r=args.rank, alpha=args.rank),
        sampling=Sampling(max_new_tokens=args.new_tokens),
        prompts_per_step=args.prompts,
        group_size=args.group,
        steps=2,
        learning_rate=1e-6,
        clipped_ratio_alarm=1.0,
        **guard,
    )
    with tempfile.TemporaryDirectory() as folder:
        result = improve(backbone, states, reward, config, workdir=Path(folder), record=record)
    return {
        "completion_tokens": rows[-1]["completion_tokens"],
        "of_both_steps_s": {k: v for k, v in result.seconds.items() if k != "total"},
    }


class Ticker(TrainerCallback):  # type: ignore[misc]
    def __init__(self, clock: Clock, lengths: list[float]) -> None:
        self.clock, self.lengths = clock, lengths

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        del args, state, control
        if logs and "loss" in logs:
            self.clock.tick()
            self.lengths.append(logs["completions/mean_length"])


def stock(
    args: argparse.Namespace, options: dict[str, Any], backbone: Backbone, clock: Clock
) -> dict[str, Any]:
    prompts = [
        [m.as_dict() for m in messages_of(backbone, i, args.prompt_tokens)]
        for i in range(args.prompts)
    ]
    lengths: list[float] = []

    def reward(completions: Sequence[Any], **_: Any) -> list[float]:
        return mixed([c[0]["content"] for c in completions])

    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder,
            use_cpu=True,
            bf16=backbone.dtype == torch.bfloat16,
            per_device_train_batch_size=args.prompts * args.group,
            num_generations=args.group,
            max_completion_length=args.new_tokens,
            generation_kwargs={"min_new_tokens": args.new_tokens},
            max_steps=2,
            learning_rate=1e-6,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            dataloader_pin_memory=False,
            disable_tqdm=True,
            **options,
        )
        trainer = GRPOTrainer(
            model=backbone.model,
            reward_funcs=reward,
            args=config,
            train_dataset=Dataset.from_dict({"prompt": prompts}),
            processing_class=backbone.tokenizer,
            peft_config=LoraConfig(
                r=args.rank,
                lora_alpha=args.rank,
                target_modules=LoraSpec().target_modules,
                task_type="CAUSAL_LM",
            ),
            callbacks=[Ticker(clock, lengths)],
        )
        for noisy in (PrinterCallback, ProgressCallback):
            trainer.remove_callback(noisy)
        trainer.train()
    return {"completion_tokens": lengths[-1]}


Step = Callable[[Backbone, Clock], dict[str, Any]]


def timed(args: argparse.Namespace, step: Step) -> dict[str, Any]:
    backbone = load(load_policy(args.model), dtype=args.dtype, device="cpu")
    per_token = gflop_per_token(backbone)
    clock = Clock()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        facts = step(backbone, clock)
    # Each prompt and response once to draw, and once forward and twice as much backward to train.
    tokens = args.prompts * (args.prompt_tokens + args.group * args.new_tokens)
    return {**clock.last(), **facts, "useful_gflop": 4 * tokens * per_token}


def profiled(args: argparse.Namespace, step: Step) -> list[dict[str, Any]]:
    clock = Clock(profile=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        step(load(load_policy(args.model), dtype=args.dtype, device="cpu"), clock)
    return clock.table()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--prompt-tokens", type=int, default=290)
    parser.add_argument("--new-tokens", type=int, default=48)
    parser.add_argument("--rank", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--sides", nargs="+", default=["iterpo", "iterpo-guarded", "trl"])
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--out", type=Path, default=RESULT)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    names = ("model", "dtype", "prompts", "group", "prompt_tokens", "new_tokens", "rank", "threads")
    settings = {name: getattr(args, name) for name in names}
    steps: dict[str, Step] = {
        "iterpo": partial(ours, args, {"kl_target": None, "kl_share": 0}),
        "iterpo-guarded": partial(ours, args, {}),
        "trl": partial(stock, args, {}),
        "trl-kept-activations": partial(stock, args, {"gradient_checkpointing": False}),
    }
    repeats = Repeats(args.out, "a GRPO step: ours against stock TRL's", settings)
    sides = {name: partial(timed, args, steps[name]) for name in args.sides}
    repeats.run(f"{args.prompts}x{args.group}", sides, args.repeats)
    repeats.summary("iterpo", matmul_gflops(getattr(torch, args.dtype)))
    if args.profile:
        tables = repeats.extra.setdefault("profile", {})
        for name in args.sides:
            if name not in tables:
                tables[name] = profiled(args, steps[name])
                repeats.save()
            print(f"{name}: share of one step's time, by operation")
            for row in tables[name]:
                print(f"  {row['share']:6.1%}  {row['calls']:>7}  {row['operation']}")


if __name__ == "__main__":
    main()
