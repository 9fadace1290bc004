"""What a user is told, for tests: a report that stores its messages, and the lines of a command."""

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


def lines(text: str) -> list[str]:
    """Return the lines but for the warning of the plugin that is broken on purpose, which comes but once."""
    return [line for line in text.strip().splitlines() if not line.startswith("rrbench: warning: plugin")]
