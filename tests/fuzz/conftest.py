"""Counts the inputs that the fuzz tried, and prints the counts at the end."""

from collections import Counter

import pytest

TRIED: pytest.StashKey[Counter[tuple[str, str]]] = pytest.StashKey()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[TRIED] = Counter()


@pytest.fixture(scope="session")
def tried(pytestconfig: pytest.Config) -> Counter[tuple[str, str]]:
    """How often an input of a kind was taken or refused."""
    return pytestconfig.stash[TRIED]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the counts of this process."""
    tried = config.stash[TRIED]
    for kind in dict.fromkeys(kind for kind, _ in tried):
        taken, refused = tried[kind, "taken"], tried[kind, "refused"]
        terminalreporter.write_line(f"fuzz: {kind}: {taken + refused} tried, {refused} of them refused in one line")
    if tried:
        terminalreporter.write_line(f"fuzz: {tried.total()} inputs")
