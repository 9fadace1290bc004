"""Runs a function over batches that fit the device; out of memory halves the batch and continues."""

import gc
import math
import os
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor

from rrbench.compute.devices import free_memory
from rrbench.errors import CellError
from rrbench.lending import WRITES, is_written
from rrbench.protocols import Network, Outputs

LARGEST = 5000  # inputs: a GPU is no faster with more
ROOM = 16 * 2**20  # bytes that one attacked input may need, for WRN-34-10
USUAL = 3 * 32 * 32  # values of such an input
USUAL_ON_CPU = 64  # inputs of CIFAR's size: with more, a ResNet-18 waits for new memory, twice as long for a gradient
ON_CPU = 512  # inputs at most; of those larger than CIFAR's, no more values than 512 of these have (not timed)


def batch_size(device: torch.device, shape: Sequence[int]) -> int:
    """Choose how many inputs of a shape a device works on at once; this depends on its free memory.

    A larger image needs more room in proportion to its pixels. On a CPU images of the usual size are not counted: there
    is room for them.
    """
    times = math.prod(shape) / USUAL
    if device.type == "cuda":
        return max(min(LARGEST, int(free_memory(device) // (ROOM * max(times, 1.0)))), 1)
    if times <= 1:
        return min(ON_CPU, int(USUAL_ON_CPU / times))
    return max(int(min(USUAL_ON_CPU, ON_CPU / times, free_on_cpu() / (ROOM * times))), 1)


def free_on_cpu() -> float:
    """Return the free bytes of this machine; infinite if the system does not tell."""
    try:
        return float(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (ValueError, OSError, AttributeError):
        return math.inf


@dataclass
class _Room:
    """How many inputs a device takes at once while `in_batches` works on a piece."""

    inputs: int
    filled: int = 0  # inputs in the piece with all its copies, if there are copies


_ROOM: ContextVar[_Room | None] = ContextVar("room", default=None)


def copies(size: int, wanted: int) -> int:
    """Return how many copies of `size` inputs to work on at once: at most `wanted`, as many as fit the device.

    Outside `in_batches` it is 1, as no caller there could try again with fewer.
    """
    room = _ROOM.get()
    count = max(1, min(wanted, room.inputs // max(size, 1))) if room else 1
    if room and count > 1:
        room.filled = max(room.filled, count * size)
    return count


def in_batches(
    total: int,
    size: int,
    work: Callable[[slice], Sequence[Tensor | None]],
    done: Callable[[int], None] = lambda n: None,
) -> list[Tensor | None]:
    """Call `work` on slices of 0 .. total and join the results, each part with its like."""
    parts: list[Sequence[Tensor | None]] = []
    start, inputs = 0, size
    # Even pieces: a small last piece would be slow on a GPU, and a new shape takes extra time.
    size = -(-total // -(-total // size)) if total else size
    while start < total:
        stop, room = min(start + size, total), _Room(inputs)
        token = _ROOM.set(room)
        try:
            # A copy: `work` may return the same memory every time, and would overwrite earlier results.
            parts.append([None if part is None else part.clone() for part in work(slice(start, stop))])
        except torch.OutOfMemoryError:
            tried = max(room.filled, stop - start)
            if tried == 1:
                raise CellError("out of memory with a single image") from None
            inputs = tried // 2
            size = min(size, inputs)
        else:
            done(stop - start)
            start = stop
            continue
        finally:
            _ROOM.reset(token)
        # Not in the handler: the error's traceback still holds every tensor of the failed call there.
        gc.collect()
        torch.cuda.empty_cache()
    return [_join(column) for column in zip(*parts, strict=True)]


def _join(column: Sequence[Tensor | None]) -> Tensor | None:
    tensors = [tensor for tensor in column if tensor is not None]
    return torch.cat(tensors) if len(tensors) == len(column) else None


@torch.no_grad()
def forward(network: Network, images: Tensor, size: int) -> Outputs:
    """Return the network's outputs on all images; the network gets copies, and must not write into them."""

    def ask(piece: slice) -> Outputs:
        lent = images[piece].clone()
        outputs = network(lent)
        if is_written(lent, images[piece]):
            raise CellError(WRITES)
        return outputs

    parts = in_batches(images.shape[0], size, ask)
    return Outputs(*(part for part in parts if part is not None))
