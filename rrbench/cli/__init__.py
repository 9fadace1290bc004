"""The command line. Each command has its own file, which only parses; commands import heavy modules when called."""

import errno
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Annotated, NoReturn

import typer

from rrbench.cli import bench, board, data, evaluate, figure, join, listing, options, report, run, table, train, verify
from rrbench.cli.authoring import check, new
from rrbench.errors import CellError, UseError, brief, interrupts, no_exit, one_line
from rrbench.files import provenance

INTERRUPTED = 130  # the code that typer returns after a KeyboardInterrupt, without a message
TERMINATED = 143  # 128 plus the number of SIGTERM, as INTERRUPTED is 128 plus that of SIGINT
GO_ON = {"run", "eval", "train", "data"}  # keep what they have done; other commands begin anew


def _show_version(asked: bool) -> None:
    if asked:
        print(f"rrbench {provenance.version()}")
        raise typer.Exit


app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="How well does a defence reject what it would get wrong, when somebody attacks it?",
    epilog="A first result, without any option: rrbench run",
)


@app.callback()
def _before_a_command(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Print the version and exit.")
    ] = False,
) -> None:
    """Take the options that stand before a command."""


app.command("run")(run.run)
app.command("eval")(evaluate.evaluate)
app.command("train")(train.train)
app.command("table")(table.table)
app.command("figure")(figure.figure)
app.command("report")(report.report)
app.command("board")(board.board)
app.command("join")(join.join)
app.command("list")(listing.show)
app.command("verify")(verify.verify)
app.command("bench")(bench.bench)
app.command("check")(check.check)
app.add_typer(data.app, name="data")
app.add_typer(new.app, name="new")
for part in (app, data.app, new.app):
    for command in part.registered_commands:
        command.cls = options.Command


def main() -> None:
    """Run a command; an error prints one line on stderr and exits with 2, or with 1 for a failed cell."""
    warnings.showwarning = lambda message, *rest, **more: _tell(f"rrbench: warning: {one_line(str(message))}")
    with _interruptible():
        try:
            _check_words(sys.argv[1:])
            with no_exit(kind=UseError):
                code = app(prog_name="rrbench", standalone_mode=False)
            sys.stdout.flush()
            if code == INTERRUPTED:
                raise KeyboardInterrupt
            sys.exit(code if isinstance(code, int) else 0)
        except UseError as error:
            stop(str(error), 2)
        except CellError as error:
            stop(str(error), 1)
        except KeyboardInterrupt:
            is_terminated = signal.SIGTERM in interrupts
            how, code = ("terminated", TERMINATED) if is_terminated else ("interrupted", INTERRUPTED)
            stop(f"{how}; run the same command again to go on" if GO_ON & {*sys.argv[1:2]} else how, code)
        except OSError as error:
            _stop_for(error)
        except Exception as error:
            # Typer has its own copy of click, so recognise a usage error by its attributes.
            if not hasattr(error, "format_message") or not hasattr(error, "exit_code"):
                raise
            message, context = error.format_message(), getattr(error, "ctx", None)
            if type(error).__name__ == "NoArgsIsHelpError":
                _tell(message)
                sys.exit(error.exit_code)
            where = f"; see {context.command_path} --help" if context else ""
            stop(message.rstrip(".") + where, error.exit_code)


def stop(message: str, code: int) -> NoReturn:
    """Print the reason in one line on stderr, and exit."""
    _tell(f"rrbench: {one_line(message)}")
    sys.exit(code)


def _tell(text: str) -> None:
    with suppress(OSError):  # the exit code still tells that it failed
        print(text, file=sys.stderr, flush=True)


def _check_words(words: Iterable[str]) -> None:
    """Refuse arguments that are not UTF-8: they can be neither printed nor written into a manifest."""
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError:
            shown = repr(os.fsencode(word))[1:]
            raise UseError(f"{shown} is not UTF-8") from None


def _stop_for(error: OSError) -> NoReturn:
    """Exit after an error of the operating system: it refused a file, or printing to stdout."""
    if error.filename is not None:
        stop(f"{brief(str(error.filename))}: {error.strerror or error}", 2)
    # The error names no file, so stdout failed. Discard the unprinted output: Python would try to print it at exit.
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if error.errno == errno.EPIPE:  # the reading process has ended
        sys.exit(1)
    stop(f"cannot print: {error.strerror or error}", 2)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let SIGTERM end a command as Ctrl-C does, so that finished work is kept; note which signal came."""

    def end(number: int, frame: FrameType | None) -> None:
        interrupts.append(number)
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # A shell makes background commands ignore SIGINT: leave it ignored.
    numbers = [signal.SIGTERM]
    numbers += [signal.SIGINT] if signal.getsignal(signal.SIGINT) is signal.default_int_handler else []
    before = {number: signal.signal(number, end) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        interrupts.clear()
