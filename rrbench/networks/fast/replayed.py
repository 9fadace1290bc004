"""Passes of a backbone in eval mode on a GPU: recorded once for each batch size, then replayed.

A small batch waits for Python: the GPU is done with a kernel before the next one is launched. A recorded pass is
launched as a whole. Attacks shrink their batches image by image, so there are few sizes, and a batch lies at the front
of the next larger one. What lies behind it changes nothing: in eval mode no image depends on another.
"""

import warnings
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from rrbench.compute.turns import TURNS
from rrbench.errors import first_line
from rrbench.networks.fast.norm_relu import Seen

if TYPE_CHECKING:
    from rrbench.networks.fast.residual import FastResidual, Passed

# Of a larger batch the kernels take longer than their launches.
SIZES = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1280, 1536, 1792, 2048)
PLAIN = 3  # passes of a size before it is recorded: a few are not worth a recording

Work = Callable[[], Tensor]


class Recording(Protocol):
    """Work that can be done again."""

    def replay(self) -> Tensor:
        """Do the work, and return its result; the next replay overwrites it."""
        ...


class Graph:
    """Work recorded on a GPU. All recordings with one pool share memory: at most one may be in use."""

    def __init__(self, work: Work, pool: Any) -> None:
        self.graph = torch.cuda.CUDAGraph()
        with TURNS.alone():
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                work()  # compiles and chooses kernels, which a recording cannot
            torch.cuda.current_stream().wait_stream(stream)
            with torch.cuda.graph(self.graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
                self.result = work()

    def replay(self) -> Tensor:
        """Do the work on the current stream."""
        self.graph.replay()
        return self.result


class Pass:
    """A recorded pass of one batch size: forward and, if wanted, backward."""

    def __init__(
        self, backbone: "FastResidual", images: Tensor, record: Callable[[Work], Recording], *, has_gradient: bool
    ) -> None:
        self.backbone, self.images = backbone, images
        self.trail: list[Passed] | None = [] if has_gradient else None
        self.last: Seen | None = None
        self.forward = record(self._ascend)
        if has_gradient:
            self.gradient = torch.zeros_like(self.forward.replay())
            self.backward = record(self._descend)
            self.trail, self.last = [], None  # a recorded trail stays where it is; others may use its memory after that

    def ascend(self, images: Tensor) -> Tensor:
        """Return the features of at most as many images as were recorded."""
        self.images[: len(images)].copy_(images)
        return self.forward.replay()[: len(images)].clone()

    def descend(self, gradient: Tensor) -> Tensor:
        """Return the gradient of the images of the last `ascend`."""
        self.gradient[: len(gradient)].copy_(gradient)
        return self.backward.replay()[: len(gradient)].clone()

    def _ascend(self) -> Tensor:
        if self.trail is not None:
            self.trail.clear()
        features, self.last = self.backbone.ascend(self.images, self.trail)
        return features

    def _descend(self) -> Tensor:
        assert self.trail is not None
        assert self.last is not None
        flow = self.backbone.descend(self.gradient, self.trail, self.last, training=False)
        return self.backbone.links.leave(self.backbone.stem, flow)


class Replayed:
    """The recorded passes of one backbone, whose weights stay where they are."""

    def __init__(self, backbone: "FastResidual", record: Callable[[Work, Any], Recording] = Graph) -> None:
        self.backbone, self.record = backbone, record
        self.passes: dict[tuple[torch.Size, bool], Pass] = {}
        self.asked: Counter[tuple[torch.Size, bool]] = Counter()
        self.turn = 0  # of the forward pass whose trail is in memory
        self.is_refused = False
        self._pool: Any = None

    def find(self, images: Tensor, *, has_gradient: bool) -> Pass | None:
        """Return the pass for a batch; None if it must go plainly."""
        size = next((size for size in SIZES if size >= len(images)), None)
        if self.is_refused or size is None or not len(images):
            return None
        key = torch.Size((size, *images.shape[1:])), has_gradient
        if key not in self.passes:
            self.asked[key] += 1
            if self.asked[key] > PLAIN:
                self._record(key, images)
        return self.passes.get(key)

    def ascend(self, found: Pass, images: Tensor) -> tuple[Tensor, int]:
        """Return the features, and the turn that `descend` must name."""
        self.turn += 1
        return found.ascend(images), self.turn

    def descend(self, found: Pass, gradient: Tensor, turn: int, images: Callable[[], Tensor]) -> Tensor:
        """Return the gradient of a turn's images; they go forward again if another batch did so in the meantime."""
        if turn != self.turn:
            self.ascend(found, images())
        return found.descend(gradient)

    def _record(self, key: tuple[torch.Size, bool], images: Tensor) -> None:
        """Record a pass; if that fails, all passes stay plain, which is slower and nothing else."""
        self.turn += 1  # a recording, too, overwrites what is in memory
        shape, has_gradient = key
        if self._pool is None and images.is_cuda:
            self._pool = torch.cuda.graph_pool_handle()
        buffer = torch.zeros(shape, dtype=images.dtype, device=images.device)
        try:
            made = Pass(self.backbone, buffer, lambda work: self.record(work, self._pool), has_gradient=has_gradient)
        except RuntimeError as error:
            self.is_refused = True
            warnings.warn(f"small batches go slowly: a pass could not be recorded ({first_line(error)})", stacklevel=2)
        else:
            self.passes[key] = made
