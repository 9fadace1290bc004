"""The engine `ray`: workers do the units; Ray places them on the GPUs, or cores, of one or many machines."""

import os
import signal
import socket
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rrbench import zoo
from rrbench.engines.estimate import seconds_of
from rrbench.engines.worker import Orders, Worker
from rrbench.errors import StoppedError, UseError, first_line
from rrbench.files import provenance
from rrbench.files.disk import write_bytes
from rrbench.measuring.runner import Runner
from rrbench.planning.units import Unit, longest_first
from rrbench.progress import Mailbox

ATTEMPTS = 3  # workers that may die on a unit before its cells fail
PATIENCE = 5.0  # seconds that an address has to answer
POLL = 0.5  # seconds between two looks at the workers' lines and at the size of the cluster


@dataclass(frozen=True)
class RayEngine:
    """Work on the cluster at an address; without an address, start a cluster on this machine and end it afterwards."""

    address: str | None = None

    def __post_init__(self) -> None:
        if find_spec("ray") is None:
            raise UseError(f"engine ray needs the package ray: {provenance.pip_line('ray')}")
        if self.address not in (None, "auto"):
            _split(str(self.address))

    def __call__(self, runner: Runner, units: Sequence[Unit]) -> Generator[Unit, None, None]:
        """Yield the units as they are finished."""
        if not units:
            return
        sign = runner.materials.store.root.resolve() / "locks" / f"ray-{uuid.uuid4().hex}"
        # Ray prints messages about dead workers and nodes to stdout, which is only for results.
        with redirect_stdout(sys.stderr), _connected(self.address):
            write_bytes(sign, b"")
            dispatch = Dispatch(runner, list(units), sign)
            try:
                yield from dispatch.run()
            finally:
                dispatch.dismiss()
                sign.unlink(missing_ok=True)


@contextmanager
def _connected(address: str | None) -> Iterator[None]:
    """Join or start a cluster; if this process has a connection already, use it and leave it open."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    if ray.is_initialized():
        yield
        return
    if address not in (None, "auto"):
        _knock(str(address))
    ends_on_sigterm = signal.getsignal(signal.SIGTERM)
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        if address is None:
            ray.init(address="local", include_dashboard=False, **options)
        else:
            ray.init(address=address, **options)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        where = "start a Ray cluster" if address is None else f"join the Ray cluster at {address}"
        raise UseError(f"cannot {where}: {first_line(error)}") from None
    try:
        # Ray has set its own handler for SIGTERM, which would exit without a message and without this clean-up.
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, ends_on_sigterm)
        yield
    finally:
        ray.shutdown()


def _split(address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    if not colon or not host or "/" in address or not port.isdigit() or not 0 < int(port) < 65536:
        raise UseError(f"--address {address!r} is neither auto nor HOST:PORT, such as 192.0.2.7:6379")
    return host.strip("[]"), int(port)


def _knock(address: str) -> None:
    """Refuse an address that does not answer; Ray would try it for minutes."""
    try:
        socket.create_connection(_split(address), timeout=PATIENCE).close()
    except OSError as error:
        raise UseError(f"no Ray cluster answers at {address}: {error.strerror or error}") from None


@dataclass
class Dispatch:
    """Gives units to workers, the longest first; if a worker dies, gives its unit to another worker."""

    runner: Runner
    units: list[Unit]
    sign: Path
    idle: list[Any] = field(default_factory=list)
    busy: dict[Any, tuple[Any, int | None]] = field(default_factory=dict)  # by Ray reference; None: starting
    closed: set[int] = field(default_factory=set)
    undone: set[int] = field(default_factory=set)  # units in `closed` whose checkpoint could not be made
    attempts: Counter[int] = field(default_factory=Counter)
    false_starts: int = 0

    def __post_init__(self) -> None:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self.materials = self.runner.materials
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        self.mailbox: Any = ray.remote(Mailbox).options(num_cpus=0, scheduling_strategy=here).remote()
        self.resource = "GPU" if self.materials.device.type == "cuda" else "CPU"
        share = {"num_cpus": 1, "num_gpus": 1 if self.resource == "GPU" else 0}
        self.worker: Any = ray.remote(Worker).options(**share, max_restarts=0)
        self.orders = ray.put(
            Orders(self.runner.bare(), self.sign, str(zoo.large_zoo().resolve()), provenance.version())
        )
        self.waiting = longest_first(seconds_of(self.units, self.materials))
        self.keys = [self.materials.keys(unit.cells) for unit in self.units]

    def run(self) -> Iterator[Unit]:
        """Yield the units as they are finished, until all are finished or the time is over."""
        import ray

        if self._slots() == 0:
            raise UseError(f"the Ray cluster has no {self.resource}")
        while len(self.closed) < len(self.units):
            if self.materials.deadline.is_over():
                self.waiting.clear()  # begin no new unit; running units end, a training after its epoch
                if all(position is None for _, position in self.busy.values()):
                    return
            for position in [index for index in self.waiting if not self.undone.isdisjoint(self.units[index].after)]:
                self.waiting.remove(position)
                yield self._close(position, is_done=False)
            self._hire()
            self._assign()
            ready, _ = ray.wait(list(self.busy), timeout=POLL)  # until one is done: its worker gets the next unit
            finished = [unit for awaited in ready if (unit := self._collect(awaited)) is not None]
            for line in ray.get(self.mailbox.take.remote()):
                self.materials.report.line(line)
            yield from finished

    def dismiss(self) -> None:
        """Kill every worker, also a busy one: files are written atomically, so none is left half-written."""
        import ray

        for worker in [*self.idle, *(worker for worker, _ in self.busy.values()), self.mailbox]:
            ray.kill(worker)

    def _slots(self) -> int:
        import ray

        return int(ray.cluster_resources().get(self.resource, 0))

    def _hire(self) -> None:
        """Start workers, as many as there are slots and open units; nodes may have joined or left the cluster."""
        wanted = min(self._slots(), len(self.units) - len(self.closed))
        for _ in range(wanted - len(self.idle) - len(self.busy)):
            worker = self.worker.remote(self.orders, partial(_post, self.mailbox))
            self.busy[worker.check.remote()] = worker, None

    def _assign(self) -> None:
        ready = [index for index in self.waiting if self.closed.issuperset(self.units[index].after)]
        for position in ready[: len(self.idle)]:
            self.waiting.remove(position)
            worker = self.idle.pop()
            self.busy[worker.work.remote(self.units[position], self.keys[position])] = worker, position

    def _collect(self, awaited: Any) -> Unit | None:
        """Take a worker's result; return its unit if the unit is finished."""
        import ray
        from ray.exceptions import RayError, RayTaskError

        worker, position = self.busy.pop(awaited)
        try:
            answer = ray.get(awaited)
        except RayTaskError as error:
            if isinstance(error.cause, StoppedError):
                self.idle.append(worker)
                return None
            raise error.cause if isinstance(error.cause, Exception) else error from None
        except RayError as error:
            ray.kill(worker)
            return self._lose(position, first_line(error))
        self.idle.append(worker)
        self.false_starts = 0
        return None if position is None else self._close(position, is_done=answer)

    def _close(self, position: int, *, is_done: bool) -> Unit:
        self.closed.add(position)
        if not is_done:
            self.undone.add(position)
        return self.units[position]

    def _lose(self, position: int | None, reason: str) -> Unit | None:
        """Put a unit whose worker died back into the queue; after ATTEMPTS dead workers, its cells fail."""
        if position is None:
            self.false_starts += 1
            is_anybody_there = self.idle or any(position is not None for _, position in self.busy.values())
            if self.false_starts >= ATTEMPTS and not is_anybody_there:
                raise UseError(f"workers of the Ray cluster do not start: {reason}")
            return None
        unit = self.units[position]
        self.attempts[position] += 1
        if self.attempts[position] < ATTEMPTS:
            self.materials.report.line(f"lost a worker, trying again: {unit.label}")
            self.waiting.insert(0, position)
            return None
        left = self.runner.give_up(unit, f"its worker died {ATTEMPTS} times: {reason}")
        if left is None:
            return self._close(position, is_done=not unit.is_training)
        self.units[position], self.keys[position] = left, self.materials.keys(left.cells)
        self.attempts[position] = 0
        self.waiting.insert(0, position)
        return None


def _post(mailbox: Any, line: str) -> None:
    """Send a line and wait until it has arrived, so that it is shown before its unit is finished."""
    import ray

    ray.get(mailbox.put.remote(line))
