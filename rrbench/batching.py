"""Runs a tensor function over batches that fit the device; out of memory halves the batch and goes on."""

import gc
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from rrbench.devices import free_memory
from rrbench.errors import CellError
from rrbench.protocols import Network, Outputs

LARGEST = 5000  # inputs: beyond, a GPU gains nothing more
ROOM = 16 * 2**20  # bytes that an input may need while it is attacked, through WRN-34-10


def batch_size(device: torch.device) -> int:
    """Choose the number of inputs a device works on at once, on a GPU by its free memory."""
    if device.type != "cuda":
        return 512
    return max(min(LARGEST, free_memory(device) // ROOM), 1)


def in_batches(
    total: int,
    size: int,
    work: Callable[[slice], Sequence[Tensor | None]],
    done: Callable[[int], None] = lambda n: None,
) -> list[Tensor | None]:
    """Call `work` on slices of 0 .. total and join what it returns, part by part."""
    parts: list[Sequence[Tensor | None]] = []
    start = 0
    # Even pieces: on a GPU a last small one would be slow, and a new shape costs time of its own.
    size = -(-total // -(-total // size)) if total else size
    while start < total:
        stop = min(start + size, total)
        try:
            parts.append(work(slice(start, stop)))
        except torch.OutOfMemoryError:
            if stop - start == 1:
                raise CellError("out of memory with a single image") from None
            size = (stop - start) // 2
        else:
            done(stop - start)
            start = stop
            continue
        # Here, not in the handler: there the error's traceback still holds every tensor of the failed call.
        gc.collect()
        torch.cuda.empty_cache()
    return [_join(column) for column in zip(*parts, strict=True)]


def _join(column: Sequence[Tensor | None]) -> Tensor | None:
    tensors = [tensor for tensor in column if tensor is not None]
    return torch.cat(tensors) if len(tensors) == len(column) else None


@torch.no_grad()
def forward(network: Network, images: Tensor, size: int) -> Outputs:
    """Return the network's outputs on all images."""
    parts = in_batches(images.shape[0], size, lambda piece: network(images[piece]))
    return Outputs(*(part for part in parts if part is not None))
