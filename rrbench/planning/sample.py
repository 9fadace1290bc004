"""Which test inputs are measured: all, the first few, or every so many-th. Imports no torch."""

from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rrbench.errors import UseError
from rrbench.metrics.deployment import FOLDS
from rrbench.names import convert
from rrbench.numbers import ordinal

if TYPE_CHECKING:
    from rrbench.protocols import Batch


@dataclass(frozen=True)
class Sample:
    """The first `limit` test inputs, or every `every`-th: 0, every, 2 * every, ...; all inputs if neither is given."""

    limit: int | None = None
    every: int | None = None

    @classmethod
    def asked(cls, limit: int | None, every: int | None) -> "Sample":
        """Check what a request says; every first input is all of them."""
        if limit is not None and convert(limit, int, "--limit") != max(limit, 1):
            raise UseError(f"--limit must be at least 1, not {limit}")
        if every is not None and convert(every, int, "--every") != max(every, 1):
            raise UseError(f"--every must be at least 1, not {every}")
        if limit is not None and every is not None:
            raise UseError("give --limit or --every, not both")
        return cls(limit, None if every == 1 else every)

    @classmethod
    def of_cell(cls, cell: Mapping[str, Any]) -> "Sample":
        """Return the sample of a cell that `Cell.describe` describes."""
        return cls(cell["limit"], cell.get("every"))

    def facts(self) -> dict[str, int | None]:
        """Return what a key is made of; without `every` where it is not used, so that older keys stay."""
        return {"limit": self.limit} | ({"every": self.every} if self.every else {})

    @property
    def at(self) -> slice:
        """The positions in the test split."""
        return slice(None, None, self.every) if self.every else slice(self.limit)

    def size(self, total: int) -> int:
        """Return how many of `total` inputs are measured."""
        return len(range(total)[self.at])

    def check(self, total: int, dataset: object) -> None:
        """Refuse a step beyond the inputs: it would measure the first input alone."""
        if self.every and self.every > total > 0:
            raise UseError(f"--every {self.every} is more than the {total} test inputs of {dataset}")

    def check_folds(self, splits: Container[str], dataset: object) -> None:
        """Refuse a step whose inputs all lie in one fold, if no calibration inputs fix the thresholds instead."""
        if self.every and self.every % FOLDS == 0 and "calibration" not in splits:
            raise UseError(
                f"--every {self.every} leaves no inputs of {dataset} to fix thresholds: "
                f"give calibration inputs, or a step that {FOLDS} does not divide, such as {self.every - 1}"
            )

    def of(self, test: "Batch") -> "Batch":
        """Return the measured inputs of the test split."""
        # A copy: fast kernels need inputs without gaps between them.
        return test.at(self.at).copied() if self.every else test.at(self.at)

    def held_out(self, calibration: "Batch", measured: "Batch") -> "Batch":
        """Return the calibration inputs that fix thresholds.

        Those of CIFAR are test inputs, so a few of them are measured: these are left out. Cross-fitting over the
        measured ones would fail: an input's fold is its id modulo 5, and every tenth input has the same fold.
        """
        is_free = (calibration.ids[:, None] != measured.ids).all(1)
        return calibration.at(is_free) if self.every and bool(is_free.any()) else calibration

    @property
    def note(self) -> str:
        """What a row says of it; `n` alone says how many the first inputs are."""
        return f"only every {ordinal(self.every)} test input" if self.every else ""


ALL_INPUTS = Sample()
