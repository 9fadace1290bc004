"""Turns on a GPU that several trainings share: while one thread captures a step, the others may only replay theirs.

CUDA refuses to wait for a whole device while a step is being captured on it, and breaks the capture off. Much waits for
the device without saying so: cuDNN when it tries kernels, memory that is given back, a kernel that is compiled, a graph
that is freed. So all work but the replay of a captured step takes a turn: together with others, or alone.
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
        """Work beside others, while nobody is alone; a thread that has a turn already keeps it."""
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
        """Work while nobody else has a turn."""
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


TURNS = Turns()  # of this process
