"""Work on a GPU that is recorded once, then launched as a whole.

A small batch waits for Python: the GPU is done with a kernel before the next one is launched.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor

from rrbench.compute.turns import TURNS

# How many inputs recorded work takes. Of a larger batch the kernels take longer than their launches.
SIZES = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1280, 1536, 1792, 2048)
PLAIN = 3  # times of plain work of a size before it is recorded: a few are not worth a recording
# How far recorded work may be from plain work, as a share of its length. Not 0: cuDNN may choose other kernels for
# another batch size.
APART = 0.01

Work = Callable[[], Tensor]
_own = threading.local()


@contextmanager
def recording() -> Iterator[None]:
    """Mark what this thread does: it is recorded as a whole, so no part of it may be replayed from a recording."""
    try:
        _own.records = True
        yield
    finally:
        _own.records = False


def is_recording() -> bool:
    """Tell whether this thread's work is being recorded as a whole."""
    return getattr(_own, "records", False)


class Recording(Protocol):
    """Work that can be done again."""

    def replay(self) -> Tensor:
        """Do the work, and return its result; the next replay overwrites it."""
        ...


class Graph:
    """Work recorded on a GPU."""

    def __init__(self, graph: torch.cuda.CUDAGraph, result: Tensor) -> None:
        self.graph, self.result = graph, result

    def replay(self) -> Tensor:
        """Do the work on the current stream."""
        self.graph.replay()
        return self.result


class Recorder:
    """Records work on the current GPU. All its recordings share memory, so at most one may be in use."""

    def __init__(self) -> None:
        # Memory is shared only between recordings on the same stream.
        self.stream, self.pool = torch.cuda.Stream(), torch.cuda.graph_pool_handle()

    def __call__(self, work: Work) -> Graph:
        """Do the work twice: plainly, which compiles and chooses kernels, then while it is recorded."""
        graph = torch.cuda.CUDAGraph()
        with TURNS.alone(), recording():
            self.stream.wait_stream(torch.cuda.current_stream())
            # Outside: a recording that fails does not go back to the stream before.
            with torch.cuda.stream(self.stream):
                work()
                with torch.cuda.graph(graph, pool=self.pool, stream=self.stream, capture_error_mode="thread_local"):
                    result = work()
            torch.cuda.current_stream().wait_stream(self.stream)
        return Graph(graph, result)


def is_near(found: Tensor, expected: Tensor) -> bool:
    """Compare, but for NaN and infinite values, which the network itself gives."""
    finite = expected.isfinite()
    apart = torch.where(finite, found - expected, 0.0).norm()
    return bool(apart <= APART * torch.where(finite, expected, 0.0).norm())
