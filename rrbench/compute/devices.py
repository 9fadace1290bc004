"""Devices and precision: attack and train fast, judge exactly."""

import os
import platform
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Literal, cast

import torch
from torch import nn

from rrbench.errors import UseError, brief, first_line
from rrbench.progress import Report

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
