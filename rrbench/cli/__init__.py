"""The command line: one file per command; parsing only; heavy imports inside the commands."""

import sys
import warnings

import typer

from rrbench.cli import bench, check, data, figure, listing, new, report, run, table, train, verify
from rrbench.errors import CellError, UseError

INTERRUPTED = 130  # what typer makes of a KeyboardInterrupt, without a word

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="How well does a defence reject what it would get wrong, when somebody attacks it?",
    epilog="A first result, without any option: rrbench run",
)
app.command("run")(run.run)
app.command("train")(train.train)
app.command("table")(table.table)
app.command("figure")(figure.figure)
app.command("report")(report.report)
app.command("list")(listing.show)
app.command("verify")(verify.verify)
app.command("bench")(bench.bench)
app.command("check")(check.check)
app.add_typer(data.app, name="data")
app.add_typer(new.app, name="new")


def main() -> None:
    """Run a command; what goes wrong is one line on stderr and exit code 2, or 1 for a failed cell."""
    warnings.showwarning = lambda message, *rest, **more: print(f"rrbench: warning: {message}", file=sys.stderr)
    try:
        code = app(prog_name="rrbench", standalone_mode=False)
        if code == INTERRUPTED:
            raise KeyboardInterrupt
        sys.exit(code if isinstance(code, int) else 0)
    except UseError as error:
        _stop(str(error), 2)
    except CellError as error:
        _stop(str(error), 1)
    except KeyboardInterrupt:
        _stop("interrupted; run the same command again to go on", INTERRUPTED)
    except Exception as error:
        # Typer brings its own copy of click, so a usage error is known by what it can do.
        if not hasattr(error, "format_message") or not hasattr(error, "exit_code"):
            raise
        message, context = error.format_message(), getattr(error, "ctx", None)
        if "\n" in message:  # no command at all: its help
            print(message, file=sys.stderr)
            sys.exit(error.exit_code)
        where = f"; see {context.command_path} --help" if context else ""
        _stop(message.rstrip(".") + where, error.exit_code)


def _stop(message: str, code: int) -> None:
    print(f"rrbench: {message}", file=sys.stderr)
    sys.exit(code)
