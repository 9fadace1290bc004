"""The worst over many attacks: per input, whichever of their images serves the attacker best."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rrbench.ascent import Tracker
from rrbench.errors import CellError
from rrbench.protocols import Batch, Ensemble, Member, Moved, Outputs, Victim


@dataclass(frozen=True)
class WorstCase(Ensemble):
    """Prefers wrong images to right ones, the more certain before the less, then the nearest to being wrong.

    Among wrong images the accepted ones are the most certain, so they come first whatever the threshold is.
    """

    maximises = "the harm done by every budgeted attack of this norm in the preset's list"
    cost = "about that of the attacks it is the worst of, where they have not been run"

    def combine(self, victim: Victim, batch: Batch, members: Sequence[Member]) -> Moved:
        """Let each attack try the inputs that are not broken yet, and keep the worst of all they found."""
        tracker = Tracker(batch, victim.certainty, keep="best", select="evade")
        _offer(tracker, victim, batch.images)
        failures: list[CellError] = []
        for member in members:
            left = (~self.is_broken(victim, tracker, batch.ids)).nonzero().squeeze(1)
            if not len(left):
                break
            try:
                moved = member(victim, batch.at(left))
            except CellError as error:
                failures.append(error)
                warnings.warn(f"the worst case goes on without one of its attacks: {error}", stacklevel=2)
                continue
            for images in (moved.images, moved.boldest):
                if images is not None:
                    _offer(tracker, victim, tracker.answer.index_copy(0, left, images))
        if failures and len(failures) == len(members):
            raise failures[0]
        return tracker.moved()

    def is_broken(self, victim: Victim, tracker: Tracker, ids: Tensor) -> Tensor:
        """Say which inputs are wrong and accepted already: nothing worse can happen to them."""
        if victim.calibration is None:
            return torch.zeros_like(tracker.evades)
        return tracker.evades & (tracker.rank >= victim.calibration.threshold_of(ids))


@torch.no_grad()
def _offer(tracker: Tracker, victim: Victim, images: Tensor) -> None:
    outputs: Outputs = victim.network(images)
    tracker.see(images, outputs, torch.zeros_like(outputs.logits[:, 0]), is_last=True)
