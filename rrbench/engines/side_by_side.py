"""Runs several trainings at once on one GPU: a single training with batches of 128 leaves much of the GPU idle."""

import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar, cast

import torch

from rrbench.compute.devices import free_memory, tf32, tried_kernels
from rrbench.compute.turns import TURNS
from rrbench.errors import StoppedError, no_exit, reason
from rrbench.lending import surroundings_kept
from rrbench.measuring.materials import Materials
from rrbench.planning.cells import Training
from rrbench.progress import Advance, PassedOn, Report

MOST = 4  # more trainings at once gave no higher total speed on an H200
ROOM = 24 * 2**30  # bytes that a training may need, WRN-34-10 included

Result = TypeVar("Result")


@dataclass(frozen=True)
class Ended(Generic[Result]):
    """How the work on a training ended: with a result, or with an error."""

    training: Training
    result: Result | None = None
    error: Exception | None = None

    def get(self) -> Result:
        """Return the result, or raise the error."""
        if self.error is not None:
            raise self.error
        return cast(Result, self.result)


def default_jobs(device: torch.device) -> int:
    """Return how many trainings run at once on a device: one on a CPU; on a GPU as many as fit, at most MOST."""
    if device.type != "cuda":
        return 1
    return max(1, min(MOST, free_memory(device) // ROOM))


def train_side_by_side(
    materials: Materials, trainings: Sequence[Training], work: Callable[[Training], Result], jobs: int
) -> list[Ended[Result]]:
    """Call `work` on every training, `jobs` at a time, and return how each ended.

    An error is reported at once and ends only its own training; an interrupt ends all trainings.
    """
    for training in trainings:
        for split in ("train", training.recipe.choose_on, "test"):
            materials.data(training.dataset, split)  # load each split once, before threads start
    stop, outer = threading.Event(), materials.report
    materials.report = Stoppable(outer, stop)
    try:
        # Set these switches once for all: if each training set them, the first to end would reset them for the others.
        # What a plugin sets for all threads is put back when all have ended: each one alone may see another's settings.
        with (
            surroundings_kept(),
            tf32(materials.precision == "tf32"),
            tried_kernels(True),
            ThreadPoolExecutor(max(1, min(jobs, len(trainings) or 1))) as pool,
        ):
            futures = {pool.submit(_lightly, work, training): training for training in trainings}
            try:
                for future in as_completed(futures):
                    error = future.exception()
                    if error is not None and not isinstance(error, Exception):
                        raise error
                    if error is not None and not isinstance(error, StoppedError) and len(trainings) > 1:
                        outer.line(f"failed: training {futures[future].trained_as}: {reason(error)}")
            except BaseException:
                stop.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        return [_ended(training, future) for future, training in futures.items()]
    finally:
        materials.report = outer


def _lightly(work: Callable[[Training], Result], training: Training) -> Result:
    """Do the work; clear the frames of an error, which would keep the memory of a failed training in use."""
    try:
        with no_exit():
            return work(training)
    except Exception as error:
        with TURNS.together():
            traceback.clear_frames(error.__traceback__)
            error.__context__ = error.__cause__ = None
        raise error.with_traceback(None) from None


def _ended(training: Training, future: Future[Result]) -> Ended[Result]:
    error = future.exception()
    assert error is None or isinstance(error, Exception)
    return Ended(training, error=error) if error else Ended(training, future.result())


class Stoppable(PassedOn):
    """Reports in plain lines, since several bars would overwrite each other; can stop the work that reports to it."""

    def __init__(self, outer: Report, stop: threading.Event) -> None:
        super().__init__(outer.line)
        self.stop = stop

    @contextmanager
    def task(self, name: str, total: float) -> Iterator[Advance]:
        """Show one piece of work; once `stop` is set, its next report of progress raises KeyboardInterrupt."""
        with super().task(name, total) as advance:

            def go_on(done: float) -> None:
                if self.stop.is_set():
                    raise KeyboardInterrupt
                advance(done)

            yield go_on
