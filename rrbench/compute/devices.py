"""Devices and precision: attack and train fast, judge exactly."""

import os
import platform
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from typing import Literal, cast

import torch
from torch import Tensor, nn

from rrbench.errors import CellError, UseError, brief, first_line
from rrbench.lending import WRITES
from rrbench.progress import Report
from rrbench.protocols import Outputs

Precision = Literal["fp32", "tf32", "bf16"]
PRECISIONS: tuple[Precision, ...] = ("fp32", "tf32", "bf16")


def find_device(name: str, *, is_here: bool = True) -> torch.device:
    """Return the device asked for; `auto` takes a GPU where there is one. Not `is_here`: others work, on theirs."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        if is_here:
            torch.zeros(1, device=device).item()
    except Exception as error:  # each kind of device that this PyTorch is built without fails in its own way
        raise UseError(f"device {brief(name)} cannot be used: {first_line(error).partition('. ')[0]}") from None
    if not is_here and (device.index is not None or device.type not in ("cpu", "cuda")):
        raise UseError(f"the engine places the work: give --device cpu or cuda, not {brief(name)}")
    return device


def find_precision(name: str, device: torch.device) -> Precision:
    """Return the precision of training and attacks; `auto` is bf16 on a GPU that has it and fp32 elsewhere."""
    if name == "auto" and device.type == "cuda":
        # Where another machine will do the work, its GPU is taken for one that has it.
        is_old = torch.cuda.is_available() and torch.cuda.get_device_capability(device) < (8, 0)
        return "fp32" if is_old else "bf16"
    if name == "auto":
        return "fp32"
    for precision in PRECISIONS:
        if name == precision:
            return precision
    raise UseError(f"unknown precision {name!r}; one of auto, {', '.join(PRECISIONS)}")


def describe(device: torch.device) -> str:
    """Name the device for the row."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device) if torch.cuda.is_available() else "cuda"
    return f"{platform.machine()} cpu x{os.cpu_count()}"


def place(network: nn.Module, device: torch.device) -> nn.Module:
    """Put a network on a device, on a GPU in the memory format that its convolutions like best."""
    if device.type == "cuda":
        return network.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]
    return network.to(device)


@contextmanager
def tf32(enabled: bool) -> Iterator[None]:
    """Allow or forbid the GPU's shortened float32 for a while.

    PyTorch has one such switch for all threads: who finds it as wanted neither sets it nor puts it back.
    """
    matmul, cudnn = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    if matmul == cudnn == enabled:
        yield
        return
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = enabled
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = matmul, cudnn


@contextmanager
def tried_kernels(enabled: bool) -> Iterator[None]:
    """Have cuDNN time its kernels on every new shape instead of guessing: worth it where shapes come again.

    One switch for all threads, as `tf32` is.
    """
    if torch.backends.cudnn.benchmark or not enabled:
        yield
        return
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = False


def free_memory(device: torch.device) -> int:
    """Return the bytes of a GPU that nobody uses, those that PyTorch holds ready included."""
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def make_twin(network: nn.Module, precision: Precision, device: torch.device) -> nn.Module | None:
    """Return a network's twin for faster gradients, where it brings one and a GPU gains by it."""
    make = getattr(network, "twin", None)
    if make is None or device.type != "cuda" or precision == "fp32" or find_spec("triton") is None:
        return None
    return cast(nn.Module | None, make(torch.bfloat16 if precision == "bf16" else torch.float32))


class _FirstCompiled:
    """Listens to Triton, and says once that it has compiled a kernel which its cache did not hold."""

    def __init__(self, report: Report) -> None:
        self.report, self.untold = report, threading.Semaphore(1)

    def __call__(self, *, cache_hit: bool, **rest: object) -> None:
        if not cache_hit and self.untold.acquire(blocking=False):
            self.report.line("compiling kernels for this GPU; they are kept, a later run need not wait for them")


def tell_compiling(device: torch.device, report: Report) -> None:
    """Have a run say when it waits for kernels to be compiled, as a first one does for about a minute."""
    if device.type != "cuda" or find_spec("triton") is None:
        return
    from triton import knobs

    if isinstance(knobs.compilation.listener, _FirstCompiled | None):  # somebody else's stays
        knobs.compilation.listener = _FirstCompiled(report)


class Instrumented(nn.Module):
    """A network in a given precision that counts what is asked of it, package attacks' gradients included.

    `climb` is for gradients that end at the images, and `twin` answers there; a training batch may go by way of it too.
    `judge` is for verdicts, and `exact` answers there.
    """

    def __init__(
        self,
        network: nn.Module,
        precision: Precision,
        *,
        twin: nn.Module | None = None,
        exact: nn.Module | None = None,
        watch: bool = False,
    ) -> None:
        super().__init__()
        self.network, self.precision, self.watch = network, precision, watch
        self.twin, self.exact = twin, exact
        self.gradients = 0
        self.forwards = 0
        self._vanished: list[Tensor] = []
        self._broken: list[Tensor] = []

    def forward(self, images: Tensor) -> Outputs:
        """Return float32 outputs, so that certainty is never computed in short precision."""
        learn = getattr(self.network, "learn", None)
        # Only PyTorch's own way back reaches images and weights at once.
        is_lesson = self.network.training and torch.is_grad_enabled() and not images.requires_grad
        if self.twin is not None and learn is not None and is_lesson:
            return self._ask(partial(learn, twin=self.twin), images)
        return self._ask(self.network, images)

    def climb(self, images: Tensor) -> Outputs:
        """Answer likewise where nobody asks for the gradient of a weight."""
        return self._ask(self.network if self.twin is None else self.twin, images)

    @torch.no_grad()
    def judge(self, images: Tensor) -> Outputs:
        """Answer as the final verdict will: in short precision an image on the boundary may change sides."""
        self.forwards += images.shape[0]
        with tf32(False):
            return Outputs(*(self.network if self.exact is None else self.exact)(images))

    def refresh(self) -> None:
        """Bring the twin up to date after the network's weights have changed."""
        if self.twin is not None:
            self.twin.refresh()  # type: ignore[operator]

    def _ask(self, network: Callable[[Tensor], Outputs], images: Tensor) -> Outputs:
        self.forwards += images.shape[0]
        if images.requires_grad:
            self.gradients += images.shape[0]
            if self.watch:
                images.register_hook(self._look)
        version = images._version
        if self.precision == "fp32":
            with tf32(False):
                outputs = network(images)
        else:
            with torch.autocast(images.device.type, torch.bfloat16, enabled=self.precision == "bf16"):
                outputs = network(images)
        if images._version != version:
            raise CellError(WRITES)
        return Outputs(*(part.float() for part in outputs))

    def _look(self, gradient: Tensor) -> None:
        """Note zero and NaN gradients without waiting for the device."""
        largest = gradient.detach().flatten(1).abs().amax(1)
        self._vanished.append((largest == 0).sum())
        self._broken.append(largest.isnan().any())

    def vanished(self) -> float:
        """Return the share of the gradients seen that were zero everywhere: where they are, no attack can climb."""
        return float(sum(self._vanished)) / self.gradients if self._vanished else 0.0

    def has_seen_nan(self) -> bool:
        """Tell whether a gradient was NaN: its image may look robust and is not."""
        return any(bool(found) for found in self._broken)
