"""Any input is accepted, or refused in one line: no traceback, no hang, no file outside its folder.

Each file here tries inputs of one kind. `RRBENCH_FUZZ=20000` is how many inputs to try in all; `make fuzz` does. The
counts are printed at the end.
"""

import os
import warnings
from collections import Counter
from collections.abc import Iterator

import pytest

from fuzz_box import Box, Tried

TRIED: pytest.StashKey[Counter[tuple[str, str]]] = pytest.StashKey()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[TRIED] = Counter()


@pytest.fixture(scope="session")
def tried(pytestconfig: pytest.Config) -> Counter[tuple[str, str]]:
    """How often an input of a kind was taken or refused."""
    return pytestconfig.stash[TRIED]


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory, tried: Tried) -> Iterator[Box]:
    outer = tmp_path_factory.mktemp("outer")
    box, before = Box(outer, tried), os.getcwd()
    os.chdir(box.inner)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy's, of numbers that are no numbers; and the plugin broken on purpose
        yield box
    os.chdir(before)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the counts of this process."""
    tried = config.stash[TRIED]
    for kind in dict.fromkeys(kind for kind, _ in tried):
        taken, refused = tried[kind, "taken"], tried[kind, "refused"]
        terminalreporter.write_line(f"fuzz: {kind}: {taken + refused} tried, {refused} of them refused in one line")
    if tried:
        terminalreporter.write_line(f"fuzz: {tried.total()} inputs")
