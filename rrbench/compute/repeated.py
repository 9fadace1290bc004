"""A step that an attack takes again and again: plain work or, where a GPU would wait for Python, recorded and replayed.

The step works on the first rows of tensors that stay where they are, and writes all it finds into them. An attack whose
images leave the batch one by one moves those that go on to the front, and asks here how many rows to work on.
"""

import gc
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor

from rrbench.compute.instrumented import Instrumented
from rrbench.compute.recorder import APART, PLAIN, SIZES, Recorder, Recording, Work
from rrbench.errors import first_line
from rrbench.protocols import Network

ROUNDING = 1e-5  # as a share of a tensor's length: kernels may add in another order


class Recorded(NamedTuple):
    """A recorded step, and how many gradients and passes it counts for."""

    recording: Recording
    gradients: int
    forwards: int


class Repeated:
    """Takes a step on the first rows of tensors.

    `state` is what the next step reads of what this one has changed; `found` is all else that a step writes.
    """

    def __init__(
        self,
        step: Callable[[int], None],
        state: Sequence[Tensor],
        found: Sequence[Tensor],
        network: Network,
        record: Callable[[Work], Recording] | None = None,
    ) -> None:
        self.step, self.state, self.found, self.record = step, state, found, record
        self.counted = network if isinstance(network, Instrumented) else None
        self.is_plain = record is None and not (self.counted is not None and self.counted.replays)
        self.recorded: dict[int, Recorded] = {}
        self.asked = Counter[int]()

    def rows(self, wanted: int, most: int) -> int:
        """Return how many rows to work on so that `wanted` rows are among them: only few sizes are recorded."""
        sizes = () if self.is_plain else SIZES
        return min(next((size for size in sizes if size >= wanted), wanted), most)

    def __call__(self, rows: int, wanted: int) -> None:
        """Take the step on some rows; the gradients of `wanted` rows count, the others fill the batch."""
        gradients, forwards = self._counts()
        self._take(rows)
        now = self._counts()
        self._count(
            (gradients + (now[0] - gradients) * wanted // rows, forwards + (now[1] - forwards) * wanted // rows)
        )

    def _take(self, rows: int) -> None:
        made = self.recorded.get(rows)
        if made is not None:
            self._replay(made)
            return
        self.asked[rows] += 1
        if self.is_plain or rows > SIZES[-1] or self.asked[rows] <= PLAIN:
            self.step(rows)
        else:
            self._record(rows)

    def _record(self, rows: int) -> None:
        """Take the step and record it. If that fails, all steps are plain from now on: that is only slower."""
        written = [*self.state, *self.found, *self._tallies()]
        before, counts = _copies(written), self._counts()
        own = counts

        def work() -> Tensor:
            nonlocal own
            gradients, forwards = self._counts()
            self.step(rows)
            now = self._counts()
            own = now[0] - gradients, now[1] - forwards
            return self.state[0]

        def go_back() -> None:
            _put_back(written, before)
            self._count(counts)

        try:
            if self.record is None:
                gc.collect()  # earlier recordings would spoil a new one if they were freed during it
                self.record = Recorder()
            recording = self.record(work)
            made, plain = Recorded(recording, *own), _copies(self.state)
            go_back()
            self._replay(made)
            parts = zip(self.state, plain, before, strict=False)
            if not all(_does_as(*(each[:rows] for each in part)) for part in parts):
                raise RuntimeError("it does otherwise than the plain step")
        except RuntimeError as error:
            self.is_plain = True
            self.recorded.clear()  # perhaps it was their memory that was missing
            warnings.warn(f"small batches go slowly: a step could not be recorded ({first_line(error)})", stacklevel=2)
            go_back()
            self.step(rows)
        else:
            self.recorded[rows] = made

    def _replay(self, made: Recorded) -> None:
        gradients, forwards = self._counts()
        made.recording.replay()
        self._count((gradients + made.gradients, forwards + made.forwards))

    def _counts(self) -> tuple[int, int]:
        return (0, 0) if self.counted is None else (self.counted.gradients, self.counted.forwards)

    def _count(self, counts: tuple[int, int]) -> None:
        if self.counted is not None:
            self.counted.gradients, self.counted.forwards = counts

    def _tallies(self) -> Sequence[Tensor]:
        return () if self.counted is None else self.counted.tallies(self.state[0].device)


def _does_as(found: Tensor, plain: Tensor, before: Tensor) -> bool:
    """Tell whether a replay has changed a tensor as the plain step does, but for NaN and what becomes infinite."""
    if not found.is_floating_point():
        return torch.equal(found, plain)
    start = torch.where(before.isfinite(), before, 0.0)
    is_finite = plain.isfinite()
    apart, change, size = (torch.where(is_finite, each, 0.0).norm() for each in (found - plain, plain - start, plain))
    return bool(apart <= APART * change + ROUNDING * size)


def watching(network: Network, wanted: Tensor) -> AbstractContextManager[None]:
    """Let the network look at the gradients of the wanted rows alone; the others fill the batch."""
    return network.watching(wanted) if isinstance(network, Instrumented) else nullcontext()


def _copies(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [each.clone() for each in tensors]


def _put_back(tensors: Sequence[Tensor], copies: Sequence[Tensor]) -> None:
    for each, copy in zip(tensors, copies, strict=True):
        each.copy_(copy)
