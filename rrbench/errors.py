"""The two ways rrbench refuses: wrong use, or one cell that cannot be measured; and the way it stops in time."""


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
