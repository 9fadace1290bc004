"""The two ways rrbench refuses: the user asked for something wrong, or one cell cannot be measured."""


def first_line(error: BaseException) -> str:
    """Return the first line of a message, or the error's kind when it has none."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


class UseError(Exception):
    """Wrong use: one clear line on stderr, exit code 2."""


class CellError(Exception):
    """One cell cannot be measured: its row says why, the other cells go on, exit code 1."""
