"""One step of training: PyTorch's plain way, and on a GPU the same step captured once and replayed.

At a batch of 128 a GPU waits for Python to launch its kernels: a captured step is launched as a whole. The numbers are
the plain step's: the same functions are captured, and the random numbers are taken from keys that change on the device.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from rrbench.compute.draws import ReplayedDraws, derive
from rrbench.compute.instrumented import Instrumented
from rrbench.compute.turns import TURNS
from rrbench.errors import first_line
from rrbench.planning.cells import Training
from rrbench.progress import Report
from rrbench.protocols import Batch, DataInfo, Framework, Rejector, Victim
from rrbench.training.augment import augment
from rrbench.training.average import Average

WARM = 3  # steps taken plainly before a capture, so that kernels are chosen and buffers exist


@dataclass
class Step:
    """Takes steps of SGD on the inputs at given positions."""

    framework: Framework
    rejector: Rejector
    network: Instrumented
    optimizer: torch.optim.SGD
    info: DataInfo
    data: Batch
    average: Average | None = field(default=None, kw_only=True)  # follows the weights
    total: Tensor = field(init=False)  # loss of this epoch so far, summed over its inputs

    def __post_init__(self) -> None:
        self.total = torch.zeros((), dtype=torch.float64, device=self.data.labels.device)
        self._shifts, self._draws = ReplayedDraws(0), ReplayedDraws(0)

    def begin(self, training: Training, epoch: int) -> None:
        """Start an epoch: its own random numbers, and no loss yet."""
        self._shifts.follow(derive(training.seed, "augment", epoch))
        self._draws.follow(derive(training.seed, "train", epoch))
        self.total.zero_()

    def take(self, positions: Tensor, rate: float) -> None:
        """Take one step."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self._step(positions)

    def release(self) -> None:
        """Give back what the steps hold on the device; no step is taken after this."""

    def _step(self, positions: Tensor) -> None:
        self.network.refresh()
        batch = augment(self.data.at(positions), self.info, self._shifts)
        loss = self.framework(Victim(self.network, self.rejector), batch, self._draws)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        if self.average is not None:
            self.average.follow()
        self.total += loss.detach() * len(positions)


@dataclass
class Captured:
    """A step for batches of one size."""

    positions: Tensor  # where the graph looks for its batch
    to_warm: int  # steps to be taken plainly before a capture
    is_refused: bool = False
    graph: torch.cuda.CUDAGraph | None = None
    rate: float | None = None  # at which the graph steps


@dataclass
class CapturedStep(Step):
    """Replays a step, captured for each size of batch (an epoch's last is smaller) and anew for another rate."""

    report: Report
    name: str

    def __post_init__(self) -> None:
        super().__post_init__()
        self._captured: dict[int, Captured] = {}

    def take(self, positions: Tensor, rate: float) -> None:
        """Take one step."""
        if len(positions) not in self._captured:
            # Of another size only the kernels are new, and what refuses one refuses both.
            is_refused = any(each.is_refused for each in self._captured.values())
            with TURNS.together():
                own_positions = positions.clone()
            self._captured[len(positions)] = Captured(own_positions, 1 if self._captured else WARM, is_refused)
        own = self._captured[len(positions)]
        own.positions.copy_(positions)
        if own.to_warm:
            own.to_warm -= 1
            with TURNS.alone():  # what is compiled here is compiled once for all trainings
                return super().take(own.positions, rate)
        if rate != own.rate and not own.is_refused:
            self._capture(own, rate)
        if own.graph is None:
            with TURNS.together():
                return super().take(own.positions, rate)
        return own.graph.replay()

    def release(self) -> None:
        """Free the graphs now: left to Python, they might go while another training captures."""
        if self.data.labels.is_cuda:
            torch.cuda.current_stream().synchronize()
        for each in self._captured.values():
            if each.graph is not None:
                each.graph.reset()
        self._captured.clear()

    def _capture(self, own: Captured, rate: float) -> None:
        """Record a step; one that waits for the device in between cannot be: its size goes plainly from then on."""
        with TURNS.alone():
            stream = torch.cuda.current_stream()
            stream.synchronize()
            own.graph = own.rate = None  # the memory of one with another rate is free then
            graph = torch.cuda.CUDAGraph()
            # The graphs never run at the same time, so they can share memory.
            pool = next((each.graph.pool() for each in self._captured.values() if each.graph is not None), None)
            try:
                with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
                    super().take(own.positions, rate)
            except RuntimeError as error:
                own.is_refused = True
                what = f"{self.name}: its step of {len(own.positions)} images"
                self.report.line(f"{what} cannot be captured and goes on plainly ({first_line(error)})")
            else:
                own.graph, own.rate = graph, rate
            del graph  # within the turn: freeing one that was refused may wait for the device
