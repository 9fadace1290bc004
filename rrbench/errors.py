"""The errors that rrbench raises on purpose: wrong use, a cell that cannot be measured, the end of the time limit."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

interrupts: list[int] = []  # signals that asked this process to end; the command line adds them
LONGEST_WORD = 1000  # letters; a longer word hides the rest of a message


def one_line(text: str) -> str:
    """Return a message that a terminal can show: one line, no control codes, no endless word."""
    shown = "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)
    words = (f"{word[:60]} ... {word[-20:]}" if len(word) > LONGEST_WORD else word for word in shown.split(" "))
    return " ".join(words)


def brief(value: object, most: int = 80) -> str:
    """Show a value from outside so that it fits into a message."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # Python does not print numbers of more than 4300 digits
        return f"an {type(value).__name__} too large to show"
    return shortened(text, most)


def shortened(text: str, most: int) -> str:
    """Return a text, or its beginning and end if it is longer than `most` letters."""
    return text if len(text) <= most else f"{text[: most * 2 // 3]} ... {text[-most // 6 :]}"


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its type if it has no message."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def reason(error: BaseException) -> str:
    """Say in one line why something failed; for an error that is not rrbench's, add its type."""
    is_ours = isinstance(error, UseError | CellError)
    return first_line(error) if is_ours else f"{type(error).__name__}: {first_line(error)}"


class UseError(Exception):
    """Wrong use: one clear line on stderr, exit code 2."""


class FileError(UseError):
    """The system refused to read or write a file, as on a full disk: one line and exit code 2, as for wrong use."""


class CellError(Exception):
    """One cell cannot be measured: its row says why, the other cells continue, exit code 1."""


class StoppedError(Exception):
    """The time limit is over: nothing is wrong, and a later run continues. The message says what is left."""


@contextmanager
def no_exit(whose: str = "a plugin", kind: type[UseError | CellError] = CellError) -> Iterator[None]:
    """Turn an exit in other people's code into an error: the exit would end the run with code 0 and without a row.

    Also the reverse: if a signal comes while C code runs, that code may turn it into any error. This error is not the
    cell's fault, so it becomes a KeyboardInterrupt.
    """
    try:
        yield
    except Exception as error:
        if interrupts and threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt from error
        raise
    except SystemExit as error:
        # Ray ends a worker that was told to end; Typer ends a command when its output's reader has closed the pipe.
        if hasattr(error, "ray_terminate_msg") or isinstance(error.__context__, BrokenPipeError):
            raise
        raise kind(f"{whose} tried to end the process (SystemExit: {error.code}): it should raise an error") from None
