"""A network in a given precision that counts its passes and gradients."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from rrbench.compute.devices import Precision, tf32
from rrbench.errors import CellError
from rrbench.lending import WRITES
from rrbench.protocols import Outputs


class Instrumented(nn.Module):
    """A network in a given precision that counts its passes and gradients, also those that package attacks ask for.

    `climb` is for gradients with respect to images; the `twin` answers it, and may also answer training batches.
    `judge` is for verdicts; the `exact` network answers it.
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
        # Passes in eval mode may be recorded on the GPU, since the network's own are.
        self.replays = bool(getattr(network, "replays", False))
        self.gradients = 0
        self.forwards = 0
        self._left_out = 0
        self._wanted: Tensor | None = None  # which rows of a batch count; None: all
        self._vanished: Tensor | None = None  # how many gradients were zero everywhere
        self._broken: Tensor | None = None  # whether one was NaN

    def forward(self, images: Tensor) -> Outputs:
        """Return float32 outputs, so that certainty is never computed in lower precision."""
        learn = getattr(self.network, "learn", None)
        # Only PyTorch's own backward pass gives gradients of images and weights at once.
        is_lesson = self.network.training and torch.is_grad_enabled() and not images.requires_grad
        if self.twin is not None and learn is not None and is_lesson:
            return self._ask(partial(learn, twin=self.twin), images)
        return self._ask(self.network, images)

    def climb(self, images: Tensor) -> Outputs:
        """Answer as `forward` does, if no weight needs a gradient."""
        return self._ask(self.network if self.twin is None else self.twin, images)

    @torch.no_grad()
    def judge(self, images: Tensor) -> Outputs:
        """Answer as the final verdict does: in lower precision an image at the boundary may change sides."""
        self.forwards += images.shape[0]
        with tf32(False):
            return Outputs(*(self.network if self.exact is None else self.exact)(images))

    def refresh(self) -> None:
        """Update the twin after the network's weights have changed."""
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
        """Count zero and NaN gradients without waiting for the device; in place, so that a recorded step counts too."""
        largest = gradient.detach().flatten(1).abs().amax(1)
        if self._wanted is not None:
            largest = torch.where(self._wanted, largest, 1.0)
        vanished, broken = self.tallies(gradient.device)
        vanished += (largest == 0).sum()
        broken |= largest.isnan().any()

    @contextmanager
    def watching(self, wanted: Tensor) -> Iterator[None]:
        """Look at the gradients of the wanted rows alone; the others only fill a batch."""
        self._wanted = wanted
        try:
            yield
        finally:
            self._wanted = None

    def tallies(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return what the looks at gradients have found: how many were zero everywhere, and whether one was NaN."""
        if self._vanished is None or self._broken is None:
            self._vanished = torch.zeros((), dtype=torch.long, device=device)
            self._broken = torch.zeros((), dtype=torch.bool, device=device)
        return self._vanished, self._broken

    def leave_out(self, counts: Tensor, is_flat: Tensor) -> None:
        """Note how many gradients of each image an attack knew without asking, and whether these were all zero."""
        if self.watch:
            self._left_out += int(counts.sum())
            vanished, _ = self.tallies(counts.device)
            vanished += counts[is_flat].sum()

    def vanished(self) -> float:
        """Return the share of gradients that were zero everywhere: there no attack can climb.

        A gradient that an attack left out counts too: the share is that of the same attack with all its steps.
        """
        asked = self.gradients + self._left_out
        return float(self._vanished or 0) / asked if asked else 0.0

    def has_seen_nan(self) -> bool:
        """Tell whether a gradient was NaN: its image may look robust although it is not."""
        return bool(self._broken is not None and self._broken)
