"""The two ways rrbench refuses: wrong use, or one cell that cannot be measured; and the way it stops in time."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

interrupts: list[int] = []  # signals that asked this process to end; the command line listens for them
LONGEST_WORD = 1000  # letters; a longer one hides what a message says


def one_line(text: str) -> str:
    """Return a message as a terminal can show it: one line, no control codes, no word without end."""
    shown = "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)
    words = (f"{word[:60]} ... {word[-20:]}" if len(word) > LONGEST_WORD else word for word in shown.split(" "))
    return " ".join(words)


def brief(value: object, most: int = 80) -> str:
    """Show a value that others gave, as a message can hold it."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # Python prints no number of more than 4300 digits
        return f"an {type(value).__name__} too large to show"
    return text if len(text) <= most else f"{text[: most * 2 // 3]} ... {text[-most // 6 :]}"


def first_line(error: BaseException) -> str:
    """Return the first line of a message, or the error's kind when it has none."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def reason(error: BaseException) -> str:
    """Say in one line why something failed; an error that is not ours is named by its kind too."""
    is_ours = isinstance(error, UseError | CellError)
    return first_line(error) if is_ours else f"{type(error).__name__}: {first_line(error)}"


class UseError(Exception):
    """Wrong use: one clear line on stderr, exit code 2."""


class CellError(Exception):
    """One cell cannot be measured: its row says why, the other cells go on, exit code 1."""


class StoppedError(Exception):
    """The time limit is over: nothing is wrong, and a later run goes on from here. It says what is left."""


@contextmanager
def no_exit(whose: str = "a plugin", kind: type[UseError | CellError] = CellError) -> Iterator[None]:
    """Turn an exit of other people's code into an error: it would end the run with code 0 and no row.

    And the other way round: a signal that comes while C code runs ends as whatever error that code makes of it. Such an
    error is no fault of the cell.
    """
    try:
        yield
    except Exception as error:
        if interrupts and threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt from error
        raise
    except SystemExit as error:
        # Ray ends a worker that was told to; Typer ends a command when whoever read its output has gone.
        if hasattr(error, "ray_terminate_msg") or isinstance(error.__context__, BrokenPipeError):
            raise
        raise kind(f"{whose} tried to end the process (SystemExit: {error.code}): it should raise an error") from None
