"""The two ways rrbench refuses: the user asked for something wrong, or one cell cannot be measured."""


class UseError(Exception):
    """Wrong use: one clear line on stderr, exit code 2."""


class CellError(Exception):
    """One cell cannot be measured: its row says why, the other cells go on, exit code 1."""
