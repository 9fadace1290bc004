"""Progress to stderr: a bar with an estimate on a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Protocol, runtime_checkable

Advance = Callable[[float], None]


@runtime_checkable
class Report(Protocol):
    """Where long work reports its progress."""

    def line(self, text: str) -> None:
        """Print one message."""

    def task(self, name: str, total: float) -> AbstractContextManager[Advance]:
        """Show one piece of work; call the yielded function with the amount done."""


class Silent:
    """Says nothing."""

    def line(self, text: str) -> None:
        """Say nothing."""

    @contextmanager
    def task(self, name: str, total: float) -> Iterator[Advance]:
        """Show nothing."""
        yield lambda done: None


class Lines:
    """Plain lines, one at the start of a task and then at most one every ten seconds."""

    def line(self, text: str) -> None:
        """Print a line to stderr."""
        with suppress(OSError):  # work continues even if stderr is closed
            sys.stderr.write(f"{text}\n")  # one write: other threads write too
            sys.stderr.flush()

    @contextmanager
    def task(self, name: str, total: float) -> Iterator[Advance]:
        """Print the name, then the progress and the time left."""
        self.line(name)
        begin = shown = time.monotonic()
        sofar = before = 0.0

        def advance(done: float) -> None:
            nonlocal begin, shown, sofar, before
            now = time.monotonic()
            if sofar == 0 and done < total / 100:  # a small first step may include compiling, so it is not timed
                begin, before = now, done
            sofar += done
            if now - shown >= 10 and 0 < sofar < total:
                estimate = ""
                if sofar - before >= total / 100:
                    estimate = f", about {(now - begin) * (total - sofar) / (sofar - before):.0f} s left"
                self.line(f"{name}: {100 * sofar / total:.0f} %{estimate}")
                shown = now

        yield advance


class PassedOn(Lines):
    """Plain lines that a function prints."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say = say

    def line(self, text: str) -> None:
        """Pass a line on."""
        self.say(text)


class Mailbox:
    """Holds lines of other processes until they are fetched; it lives in its own process, which needs no torch."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def put(self, line: str) -> None:
        """Add a line."""
        self.lines.append(line)

    def take(self) -> list[str]:
        """Return the lines and clear them."""
        lines, self.lines = self.lines, []
        return lines


class Bars:
    """A rich progress bar per task."""

    def __init__(self) -> None:
        from rich.console import Console

        self.console = Console(stderr=True)

    def line(self, text: str) -> None:
        """Print a line to stderr."""
        self.console.print(text, markup=False, highlight=False)

    @contextmanager
    def task(self, name: str, total: float) -> Iterator[Advance]:
        """Show a bar with the time left."""
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TaskProgressColumn(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=self.console, transient=True) as bar:
            task = bar.add_task(name, total=total)
            yield lambda done: bar.advance(task, done)
        self.line(name)


def reporter() -> Report:
    """Choose bars for a terminal, lines otherwise."""
    return Bars() if sys.stderr.isatty() else Lines()
