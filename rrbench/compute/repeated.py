"""A step that an attack takes again and again: plain work or, where a GPU would wait for Python, recorded and replayed.

The step works on the first rows of tensors that stay where they are, and writes all it finds into them. An attack whose
images leave the batch one by one moves those that go on to the front, and asks here how many rows to work on.
"""

import gc
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import Tensor

from rrbench.compute.instrumented import Instrumented
from rrbench.compute.recorder import PLAIN, SIZES, Recorder, Recording, Work, is_near
from rrbench.errors import first_line
from rrbench.protocols import Network


class Recorded(NamedTuple):
    """A recorded step, and how many gradients and passes it counts for."""

    recording: Recording
    gradients: int
    forwards: int


class Repeated:
    """Takes a step on the first `rows` rows; `state` is what the next step reads of what this one has changed.

    Whatever else a step writes must stay as it is if the same step is taken twice.
    """

    def __init__(
        self,
        step: Callable[[int], None],
        state: Sequence[Tensor],
        network: Network,
        record: Callable[[Work], Recording] | None = None,
    ) -> None:
        self.step, self.state, self.record = step, state, record
        self.counted = network if isinstance(network, Instrumented) else None
        self.is_plain = record is None and not (self.counted is not None and self.counted.replays)
        self.recorded: dict[int, Recorded] = {}
        self.asked = Counter[int]()

    def rows(self, wanted: int, most: int) -> int:
        """Return how many rows to work on so that `wanted` rows are among them: only few sizes are recorded."""
        sizes = () if self.is_plain else SIZES
        return min(next((size for size in sizes if size >= wanted), wanted), most)

    def __call__(self, rows: int) -> None:
        """Take the step."""
        found = self.recorded.get(rows)
        if found is not None:
            self._replay(found)
            return
        self.asked[rows] += 1
        if self.is_plain or rows > SIZES[-1] or self.asked[rows] <= PLAIN:
            self.step(rows)
        else:
            self._record(rows)

    def _record(self, rows: int) -> None:
        """Take the step and record it; if that fails, all steps are plain from now on: that is only slower."""
        before, counts = self._copies(), self._counts()
        own = counts

        def work() -> Tensor:
            nonlocal own
            gradients, forwards = self._counts()
            self.step(rows)
            now = self._counts()
            own = now[0] - gradients, now[1] - forwards
            return self.state[0]

        try:
            if self.record is None:
                gc.collect()  # earlier recordings would spoil a new one if they were freed during it
                self.record = Recorder()
            recording = self.record(work)
            made = Recorded(recording, *own)
            self._count((counts[0] + made.gradients, counts[1] + made.forwards))  # recording itself asked for nothing
            plain = self._copies()
            self._put_back(before)
            self._replay(made)
            if not all(map(is_near, self.state, plain)):
                raise RuntimeError("it does otherwise than the plain step")
        except RuntimeError as error:
            self.is_plain = True
            self.recorded.clear()  # perhaps it was their memory that was missing
            warnings.warn(f"small batches go slowly: a step could not be recorded ({first_line(error)})", stacklevel=2)
            self._put_back(before)
            self._count(counts)
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

    def _copies(self) -> list[Tensor]:
        return [each.clone() for each in self.state]

    def _put_back(self, copies: Sequence[Tensor]) -> None:
        for each, copy in zip(self.state, copies, strict=True):
            each.copy_(copy)
