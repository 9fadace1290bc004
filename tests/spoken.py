"""A report that stores its messages, for tests of what a user is told."""

from collections.abc import Callable

from rrbench.progress import Silent


class Spoken(Silent):
    """Keeps the lines, and calls `heard` at each."""

    def __init__(self, heard: Callable[[], None] = lambda: None) -> None:
        self.lines: list[str] = []
        self.heard = heard

    def line(self, text: str) -> None:
        """Keep a line."""
        self.lines.append(text)
        self.heard()
