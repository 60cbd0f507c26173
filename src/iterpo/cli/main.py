"""``iterpo``: the command line; every command is a file that parses, calls and prints."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from iterpo.artifacts import disk_is_full
from iterpo.cli import (
    behavior,
    chat,
    collect,
    config,
    demo,
    envs,
    fit_q,
    improve,
    measure,
    methods,
    models,
    phase,
    play,
    report,
    run,
    show,
    study,
)
from iterpo.cli.output import examples, remark, say
from iterpo.errors import IterpoError, missing_extra

__all__ = ["app"]


class _Guarded(TyperGroup):
    """Turns errors raised on purpose into one message and exit code 2."""

    def invoke(self, ctx: Any) -> Any:
        try:
            with _ending_when_told():
                return super().invoke(ctx)
        except KeyboardInterrupt as stop:
            code = int(stop.args[0]) if stop.args else 130
            how = "interrupted" if code == 130 else "ended by a signal"
            with contextlib.suppress(OSError):  # a terminal that was closed can't be told
                remark(f"\niterpo: {how}.{self._how_to_go_on(ctx)}")
            raise typer.Exit(code) from None
        except (IterpoError, ModuleNotFoundError, OSError) as error:
            message = _message(error)
            if message is None:
                raise
            if ctx.params.get("debug"):
                traceback.print_exc()
            remark(f"iterpo: {message}")
            raise typer.Exit(2) from None

    def _how_to_go_on(self, ctx: Any) -> str:
        if ctx.invoked_subcommand in ("study", "improve", "behavior"):
            return " Finished work is kept; the same command goes on."
        command = self.get_command(ctx, ctx.invoked_subcommand or "")
        if command is None or "resume" not in [parameter.name for parameter in command.params]:
            return ""
        return " Finished work is kept; add --resume to go on."


@contextlib.contextmanager
def _ending_when_told() -> Iterator[None]:
    """Ctrl-C, SIGTERM and a closed terminal end a command at once: children first, with a word.

    Python's own handler of Ctrl-C would not do: under it ``asyncio.run`` only cancels, which
    reaches neither a person's input line nor a running generate call.
    """

    def stop(number: int, _: object) -> None:
        raise KeyboardInterrupt(128 + number)

    in_charge = threading.current_thread() is threading.main_thread()
    names = ("SIGINT", "SIGTERM", "SIGHUP") if in_charge else ()
    wanted = [number for name in names if (number := getattr(signal, name, None)) is not None]
    # One that is ignored stays so: `nohup iterpo run` outlives its terminal.
    usual = (signal.SIG_DFL, signal.default_int_handler)
    taken = {n: handler for n in wanted if (handler := signal.getsignal(n)) in usual}
    for number in taken:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in taken.items():
            signal.signal(number, handler)


def _message(error: IterpoError | ModuleNotFoundError | OSError) -> str | None:
    if isinstance(error, IterpoError):
        return str(error)
    if isinstance(error, OSError):  # a full disk under the output: `iterpo show RUN > file`
        if not disk_is_full(error):
            return None
        return f"can't write: {error.strerror}; make room, then give the same command"
    missing = missing_extra(error, "this command")
    return str(missing) if missing else None


app = typer.Typer(
    name="iterpo",
    cls=_Guarded,
    help=(
        "Make a conversational agent better from its own conversations.\n\n"
        "collect conversations → fit Q to their returns → improve the policy by single-turn RL "
        "on Q → measure; `run` does all of it, round after round."
    ),
    epilog=examples(
        "iterpo demo",
        "iterpo run smoke --set seed=1",
        "iterpo show runs/smoke --rounds",
    ),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        say(f"iterpo {version('iterpo')}")
        raise typer.Exit


@app.callback()
def _global_options(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")] = False,  # noqa: ARG001
    version: Annotated[  # noqa: ARG001
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    # Characters that the terminal's encoding lacks must not end a finished run with an error, nor
    # a stray byte somebody's conversation.
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


_LOOP, _STAGES, _LOOK = "The whole loop", "One stage at a time", "Look and ask"

for _panel, _module in (
    (_LOOP, demo),
    (_LOOP, run),
    (_STAGES, collect),
    (_STAGES, fit_q),
    (_STAGES, improve),
    (_STAGES, measure),
    (_LOOK, show),
    (_LOOK, behavior),
    (_LOOK, report),
    (_LOOK, play),
    (_LOOK, chat),
    (_LOOK, methods),
    (_LOOK, models),
):
    app.command(_module.NAME, epilog=_module.EXAMPLES, rich_help_panel=_panel)(_module.command)
app.add_typer(study.app, name="study", rich_help_panel=_LOOP)
app.add_typer(envs.app, name="envs", rich_help_panel=_LOOK)
app.add_typer(config.app, name="config", rich_help_panel=_LOOK)
app.command(phase.NAME, hidden=True)(phase.command)

if __name__ == "__main__":
    app()
