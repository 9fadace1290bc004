"""Turns on a GPU that several trainings share: while one thread captures a step, others may only replay theirs.

While a step is being captured on a device, CUDA refuses to wait for the whole device, and the capture fails. Many
operations wait for the device silently: cuDNN trying kernels, memory being freed, a kernel being compiled, a graph
being freed. So all work except replaying a captured step takes a turn: together with other threads, or alone.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Turns:
    """Lets any number of threads work together, or one alone.

    A thread that waits to work alone goes before threads that want to work together.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._together = 0  # threads that work together now
        self._is_alone = False
        self._waiting = 0  # threads that wait to be alone
        self._own = threading.local()

    @contextmanager
    def together(self) -> Iterator[None]:
        """Work beside other threads while no thread is alone; a thread that has a turn keeps it."""
        if self._has_turn():
            yield
            return
        took = False  # an interrupt may come at any line
        try:
            with self._changed:
                self._changed.wait_for(lambda: not self._is_alone and not self._waiting)
                took = True
                self._together += 1
            self._own.has_turn = True
            yield
        finally:
            self._own.has_turn = False
            with self._changed:
                self._together -= took
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Work while no other thread has a turn."""
        if self._has_turn():
            raise RuntimeError("this thread has a turn already: it would wait for itself")
        took = waits = False
        try:
            with self._changed:
                waits = True
                self._waiting += 1
                self._changed.wait_for(lambda: not self._is_alone and not self._together)
                took = self._is_alone = True
                waits = False
                self._waiting -= 1
            self._own.has_turn = True
            yield
        finally:
            self._own.has_turn = False
            with self._changed:
                self._waiting -= waits
                self._is_alone &= not took
                self._changed.notify_all()

    def is_alone(self) -> bool:
        """Tell whether some thread works alone now."""
        return self._is_alone

    def _has_turn(self) -> bool:
        return bool(getattr(self._own, "has_turn", False))


TURNS = Turns()  # for this process
