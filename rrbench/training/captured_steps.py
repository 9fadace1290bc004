"""One training step: plain PyTorch, or on a GPU the same step captured once and replayed.

With batches of 128, a GPU waits for Python to launch kernels; a captured step is launched as a whole. It gives the
same numbers as the plain step: the same functions run, and the keys of the random numbers change on the device.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from rrbench.compute.draws import ReplayedDraws, derive
from rrbench.compute.instrumented import Instrumented
from rrbench.compute.turns import TURNS
from rrbench.errors import first_line
from rrbench.planning.cells import Training
from rrbench.plugins.guards import checked_loss
from rrbench.progress import Report
from rrbench.protocols import Batch, DataInfo, Framework, Rejector, Victim
from rrbench.training.augment import augment
from rrbench.training.average import Average
from rrbench.training.first_step import FirstStep

WARM = 3  # plain steps before a capture: they choose the kernels and allocate the buffers


@dataclass
class Step:
    """Takes the optimiser's steps on the inputs at given positions."""

    framework: Framework
    rejector: Rejector
    network: Instrumented
    optimizer: torch.optim.Optimizer
    info: DataInfo
    data: Batch
    report: Report
    name: str  # of the training
    average: Average | None = field(default=None, kw_only=True)  # follows the weights
    total: Tensor = field(init=False)  # loss of this epoch so far, summed over the inputs

    def __post_init__(self) -> None:
        self.total = torch.zeros((), dtype=torch.float64, device=self.data.labels.device)
        self._shifts, self._draws = ReplayedDraws(0), ReplayedDraws(0)
        self._first: FirstStep | None = FirstStep(self.framework, self.rejector, self.network.network)
        self._epoch = 0

    def begin(self, training: Training, epoch: int) -> None:
        """Start an epoch: set its random numbers and clear the loss."""
        self._shifts.follow(derive(training.seed, "augment", epoch))
        self._draws.follow(derive(training.seed, "train", epoch))
        self.total.zero_()
        self._epoch = epoch

    def take(self, positions: Tensor, rate: float) -> None:
        """Take one step."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self._step(positions)

    def release(self) -> None:
        """Free what the steps hold on the device; take no step after this."""

    def _step(self, positions: Tensor) -> None:
        self.network.refresh()
        batch = augment(self.data.at(positions), self.info, self._shifts)
        loss = self._follow(batch)
        self.optimizer.step()
        if self.average is not None:
            self.average.follow()
        self.total += loss.detach() * len(positions)

    def _follow(self, batch: Batch) -> Tensor:
        """Compute the gradients of a batch's loss, and return the loss."""
        first, self._first = self._first, None
        if first is None:
            loss = self.framework(Victim(self.network, self.rejector), batch, self._draws)
            loss = checked_loss(type(self.framework).__name__, loss)
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            return loss
        loss = first.loss(self.network, batch, self._draws)
        self.optimizer.zero_grad(set_to_none=True)
        first.follow(loss)
        for remark in first.remarks(batch.size, is_fresh=self._epoch == 0):
            self.report.line(f"{self.name}: {remark}")
        return loss


@dataclass
class Captured:
    """The captured step for one batch size."""

    positions: Tensor  # the graph reads the positions of its batch here
    to_warm: int  # plain steps left before the capture
    is_refused: bool = False
    graph: torch.cuda.CUDAGraph | None = None
    rate: float | None = None  # the learning rate in the graph


@dataclass
class CapturedStep(Step):
    """Replays a captured step; captures one for each batch size, and again when the learning rate changes.

    An epoch's last batch is smaller.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self._captured: dict[int, Captured] = {}

    def take(self, positions: Tensor, rate: float) -> None:
        """Take one step."""
        if len(positions) not in self._captured:
            # Another batch size changes only the kernels: if one size cannot be captured, no size can.
            is_refused = any(each.is_refused for each in self._captured.values())
            with TURNS.together():
                own_positions = positions.clone()
            self._captured[len(positions)] = Captured(own_positions, 1 if self._captured else WARM, is_refused)
        own = self._captured[len(positions)]
        own.positions.copy_(positions)
        if own.to_warm:
            own.to_warm -= 1
            with TURNS.alone():  # kernels compiled here serve all trainings
                return super().take(own.positions, rate)
        if rate != own.rate and not own.is_refused:
            self._capture(own, rate)
        if own.graph is None:
            with TURNS.together():
                return super().take(own.positions, rate)
        return own.graph.replay()

    def release(self) -> None:
        """Free the graphs now: Python might free them later, while another training captures."""
        if self.data.labels.is_cuda:
            torch.cuda.current_stream().synchronize()
        for each in self._captured.values():
            if each.graph is not None:
                each.graph.reset()
        self._captured.clear()

    def _capture(self, own: Captured, rate: float) -> None:
        """Record a step; if it waits for the device in between, it cannot be recorded, and this size stays plain."""
        with TURNS.alone():
            stream = torch.cuda.current_stream()
            stream.synchronize()
            own.graph = own.rate = None  # frees the memory of the graph with the old rate
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
            del graph  # while the turn is held: freeing a refused graph may wait for the device
