"""The box in which the fuzz tries inputs: who refuses in several lines, hangs or writes outside is noticed."""

import contextlib
import io
import os
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from rrbench import cli
from rrbench.errors import CellError, UseError, one_line

INPUTS = int(os.environ.get("RRBENCH_FUZZ", "500"))
SECONDS = 20  # that one input may take; a busy machine is slow

Tried = Counter[tuple[str, str]]
T = TypeVar("T")


def tries(share: float) -> settings:
    """Return how often to try, and that a shrunk failure is worth its time."""
    return settings(
        max_examples=max(1, round(share * INPUTS)),
        deadline=None,
        derandomize=INPUTS <= 500,
        suppress_health_check=list(HealthCheck),
        database=None,
    )


def mostly(common: st.SearchStrategy[T], rare: st.SearchStrategy[T]) -> st.SearchStrategy[T]:
    """Draw what is sound three times of four, so that what comes after it is tried too."""
    return st.integers(0, 3).flatmap(lambda turn: common if turn else rare)


class Box:
    """A folder to work in; what is written beside it is noticed."""

    def __init__(self, outer: Path, tried: Tried) -> None:
        self.outer, self.tried = outer, tried
        self.inner = outer / "inner"
        self.inner.mkdir()

    @contextlib.contextmanager
    def trying(self, kind: str) -> Iterator[None]:
        """Take an input, or refuse it as rrbench does."""
        begin = time.monotonic()
        refusal: Exception | None = None
        try:
            yield
        except (UseError, CellError) as error:
            refusal = error
        assert refusal is None or str(refusal)
        assert refusal is None or one_line(str(refusal)).isprintable()
        self.tried[kind, "taken" if refusal is None else "refused"] += 1
        assert time.monotonic() - begin < SECONDS
        assert os.listdir(self.outer) == ["inner"], "something was written outside"

    def say(self, *words: object) -> None:
        """Run a command in this process; a refusal of it is raised."""
        out, err, before = io.StringIO(), io.StringIO(), (sys.argv, warnings.showwarning)
        sys.argv = ["rrbench", *map(str, words)]
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                cli.main()
        except SystemExit as stopped:
            code = stopped.code
        finally:
            sys.argv, warnings.showwarning = before
        lines = [line for line in err.getvalue().splitlines() if "warning: plugin" not in line]
        assert code in (0, 1, 2), (code, lines)
        if code == 2:
            assert len(lines) == 1, lines
            assert lines[0].startswith("rrbench: ")
            assert out.getvalue() == ""
            raise UseError(lines[0])
