"""Passes of a backbone in eval mode on a GPU: recorded once for each batch size, then replayed.

A small batch waits for Python: the GPU is done with a kernel before the next one is launched. A recorded pass is
launched as a whole. Attacks shrink their batches image by image, so there are few sizes, and a batch lies at the front
of the next larger one. What lies behind it changes nothing: in eval mode no image depends on another.
"""

import gc
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from rrbench.compute.recorder import PLAIN, SIZES, Recorder, Recording, Work, is_near, is_recording
from rrbench.errors import first_line
from rrbench.networks.fast.norm_relu import Seen

Trail = list[Any]  # what a backbone stores on its way forward, for the way back


class Backbone(Protocol):
    """What can be recorded: a way forward from images to features, and the way back."""

    def ascend(self, images: Tensor, trail: Trail | None) -> tuple[Tensor, Seen]:
        """Return the features, and what the last norm has seen; store the rest in the trail, if given."""
        ...

    def image_gradient(self, gradient: Tensor, trail: Trail, last: Seen, *, training: bool) -> Tensor:
        """Return the gradient of the images, given that of the features."""
        ...


class Pass:
    """A recorded pass of one batch size: forward and, if wanted, backward."""

    def __init__(
        self, backbone: Backbone, images: Tensor, record: Callable[[Work], Recording], *, has_gradient: bool
    ) -> None:
        self.backbone, self.images = backbone, images
        self.trail: Trail | None = [] if has_gradient else None
        self.last: Seen | None = None
        self.forward = record(self._ascend)
        if has_gradient:
            self.gradient = torch.zeros_like(self.forward.replay())
            self.backward = record(self._descend)
            self.trail = []  # a recorded trail stays where it is; from now on other recordings may use its memory
        self.last = None

    def ascend(self, images: Tensor) -> Tensor:
        """Return the features of at most as many images as were recorded."""
        self.images[: len(images)].copy_(images)
        return self.forward.replay()[: len(images)].clone()

    def descend(self, gradient: Tensor) -> Tensor:
        """Return the gradient of the images of the last `ascend`."""
        self.gradient[: len(gradient)].copy_(gradient)
        return self.backward.replay()[: len(gradient)].clone()

    def is_sound(self, images: Tensor) -> bool:
        """Tell whether it answers as the plain pass does."""
        trail: Trail | None = None if self.trail is None else []
        expected, last = self.backbone.ascend(images, trail)
        if not is_near(self.ascend(images), expected):
            return False
        if trail is None:
            return True
        return is_near(self.descend(expected), self.backbone.image_gradient(expected, trail, last, training=False))

    def _ascend(self) -> Tensor:
        if self.trail is not None:
            self.trail.clear()
        features, self.last = self.backbone.ascend(self.images, self.trail)
        return features

    def _descend(self) -> Tensor:
        assert self.trail is not None
        assert self.last is not None
        return self.backbone.image_gradient(self.gradient, self.trail, self.last, training=False)


class Turn(NamedTuple):
    """One replayed way forward."""

    replayed: "Replayed"
    recorded: Pass
    number: int

    def descend(self, gradient: Tensor, images: Callable[[], Tensor]) -> Tensor:
        """Return the gradient of the images; they go forward again if another batch did so in the meantime."""
        if self.number != self.replayed.turns:
            self.replayed.ascend(self.recorded, images())
        return self.recorded.descend(gradient)


class Replayed:
    """The recorded passes of one backbone. Its weights stay where they are, and so does PyTorch's tf32 switch."""

    def __init__(self, backbone: Backbone, record: Callable[[Work], Recording] | None = None) -> None:
        self.backbone, self.record = backbone, record
        self.passes: dict[tuple[torch.Size, bool], Pass] = {}
        self.asked: Counter[tuple[torch.Size, bool]] = Counter()
        self.turns = 0  # so often the memory that all passes share was overwritten
        self.is_refused = False

    def find(self, images: Tensor, *, has_gradient: bool) -> Pass | None:
        """Return the pass for a batch; None if it must go plainly."""
        size = next((size for size in SIZES if size >= len(images)), None)
        if self.is_refused or size is None or not len(images) or is_recording():
            return None
        key = torch.Size((size, *images.shape[1:])), has_gradient
        if key not in self.passes:
            self.asked[key] += 1
            if self.asked[key] > PLAIN:
                self._record(key, images)
        return self.passes.get(key)

    def ascend(self, recorded: Pass, images: Tensor) -> tuple[Tensor, Turn]:
        """Return the features, and the turn that leads back from them."""
        self.turns += 1
        return recorded.ascend(images), Turn(self, recorded, self.turns)

    def _record(self, key: tuple[torch.Size, bool], images: Tensor) -> None:
        """Record a pass; if that fails, all passes go plainly from now on, which is slower and nothing else."""
        self.turns += 1  # a recording, too, overwrites the memory
        shape, has_gradient = key
        try:
            # A recording serves later passes, too, which may be in another mode than this one.
            with torch.inference_mode(False), torch.no_grad():
                if self.record is None:
                    gc.collect()  # recordings of earlier networks would spoil a new one if they were freed during it
                    self.record = Recorder()
                buffer = torch.zeros(shape, dtype=images.dtype, device=images.device)
                made = Pass(self.backbone, buffer, self.record, has_gradient=has_gradient)
                if not made.is_sound(images.clone()):
                    raise RuntimeError("it answers otherwise than the plain pass")
        except RuntimeError as error:
            self.is_refused = True
            self.passes.clear()  # perhaps it was their memory that was missing
            warnings.warn(f"small batches go slowly: a pass could not be recorded ({first_line(error)})", stacklevel=2)
        else:
            self.passes[key] = made
