"""Devices and precision: attack and train fast, judge exactly."""

import os
import platform
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Literal

import torch
from torch import nn

from rrbench.errors import UseError, brief, first_line
from rrbench.progress import Report

Precision = Literal["fp32", "tf32", "bf16"]
PRECISIONS: tuple[Precision, ...] = ("fp32", "tf32", "bf16")


def find_device(name: str, *, is_here: bool = True) -> torch.device:
    """Return the device asked for; `auto` takes a GPU if there is one. Without `is_here` other machines do the work."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        if is_here:
            torch.zeros(1, device=device).item()
    except Exception as error:  # a kind of device that this PyTorch lacks may fail in any way
        raise UseError(f"device {brief(name)} cannot be used: {first_line(error).partition('. ')[0]}") from None
    if not is_here and (device.index is not None or device.type not in ("cpu", "cuda")):
        raise UseError(f"the engine places the work: give --device cpu or cuda, not {brief(name)}")
    return device


def find_precision(name: str, device: torch.device) -> Precision:
    """Return the precision of training and attacks; `auto` is bf16 on a GPU that supports it, else fp32."""
    if name == "auto" and device.type == "cuda":
        # If another machine does the work, assume that its GPU supports bf16.
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
    """Put a network on a device; on a GPU in the memory format that is fastest for convolutions."""
    if device.type == "cuda":
        return network.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]
    return network.to(device)


@contextmanager
def tf32(enabled: bool) -> Iterator[None]:
    """Allow or forbid the GPU's shortened float32 inside the block.

    All threads share PyTorch's switch: a thread that finds it as wanted neither sets it nor resets it.
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
    """Let cuDNN time its kernels on every new shape instead of guessing; this pays if shapes recur.

    All threads share this switch, too.
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
    """Return the free bytes of a GPU, including those that PyTorch has reserved but does not use."""
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def make_twin(
    network: nn.Module, precision: Precision, device: torch.device, *, replays: bool = False
) -> nn.Module | None:
    """Return a network's twin for faster gradients, if it has one and the GPU gains from it; else None.

    With `replays` it replays small batches, if it can: not for a training, which captures its steps as a whole.
    """
    make = getattr(network, "twin", None)
    if make is None or device.type != "cuda" or precision == "fp32" or find_spec("triton") is None:
        return None
    twin: nn.Module | None = make(torch.bfloat16 if precision == "bf16" else torch.float32)
    replay = getattr(twin, "replay", None)
    if replays and replay is not None:
        replay()
    return twin


class _FirstCompiled:
    """Listens to Triton and says once that a kernel was compiled because Triton's cache did not have it."""

    def __init__(self, report: Report) -> None:
        self.report, self.untold = report, threading.Semaphore(1)

    def __call__(self, *, cache_hit: bool, **rest: object) -> None:
        if not cache_hit and self.untold.acquire(blocking=False):
            self.report.line("compiling kernels for this GPU; they are kept, a later run need not wait for them")


def tell_compiling(device: torch.device, report: Report) -> None:
    """Make a run say when it waits for kernels to compile; the first run waits for about a minute."""
    if device.type != "cuda" or find_spec("triton") is None:
        return
    from triton import knobs

    if isinstance(knobs.compilation.listener, _FirstCompiled | None):  # another program's listener stays
        knobs.compilation.listener = _FirstCompiled(report)
