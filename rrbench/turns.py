"""Turns on a GPU that several trainings share: no step is captured while another thread does anything but replay.

CUDA refuses to wait for a whole device while a step is being captured on it, and breaks the capture off. Much waits for
the device without saying so: cuDNN when it tries kernels, memory that is given back, a kernel that is compiled, a graph
that is freed. So all work but the replay of a captured step takes a turn: together with others, or alone.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Turns:
    """Lets any number of threads work together, or one alone; who waits to be alone goes first."""

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
        with self._changed:
            self._changed.wait_for(lambda: not self._is_alone and not self._waiting)
            self._together += 1
        self._own.has_turn = True
        try:
            yield
        finally:
            self._own.has_turn = False
            with self._changed:
                self._together -= 1
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Work while nobody else has a turn."""
        if self._has_turn():
            raise RuntimeError("this thread has a turn already: it would wait for itself")
        with self._changed:
            self._waiting += 1
            try:
                self._changed.wait_for(lambda: not self._is_alone and not self._together)
                self._is_alone = True
            finally:
                self._waiting -= 1
                self._changed.notify_all()
        self._own.has_turn = True
        try:
            yield
        finally:
            self._own.has_turn = False
            with self._changed:
                self._is_alone = False
                self._changed.notify_all()

    def is_alone(self) -> bool:
        """Tell whether some thread works alone now."""
        return self._is_alone

    def _has_turn(self) -> bool:
        return bool(getattr(self._own, "has_turn", False))


TURNS = Turns()  # of this process
