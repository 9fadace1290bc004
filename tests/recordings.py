"""Stands for the GPU's recorder where there is none."""

from collections.abc import Callable

from torch import Tensor

from rrbench.compute.recorder import Recording, Work


class Again:
    """Does the work again."""

    def __init__(self, work: Work) -> None:
        self.work = work

    def replay(self) -> Tensor:
        return self.work()


class Rehearsed:
    """Does the work once, as the GPU's recorder does, and again at every replay; counts both."""

    def __init__(self, wrap: Callable[[Work], Recording] = Again) -> None:
        self.wrap, self.recordings, self.replays = wrap, 0, 0

    def __call__(self, work: Work) -> Recording:
        work()
        self.recordings += 1

        def counted() -> Tensor:
            self.replays += 1
            return work()

        return self.wrap(counted)
