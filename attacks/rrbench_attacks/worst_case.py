"""The worst of many attacks: for each input, the image that serves the attacker best."""

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
    """Prefers wrong images to right ones, then more certain ones, then those nearest to being wrong.

    Among wrong images the accepted ones are the most certain, so they come first at any threshold.
    """

    revision = 2  # 1 skipped an input once it was wrong and accepted
    maximises = "the harm done by every budgeted attack of this norm in the preset's list"
    cost = "about that of the attacks it is the worst of, where they have not been run"

    def combine(self, victim: Victim, batch: Batch, members: Sequence[Member]) -> Moved:
        """Let each attack try every input, and keep the worst image of all.

        No input leaves early: a wrong and accepted image may still become more certain, which changes AUC, TPR-95 and
        the risk-coverage curve.
        """
        tracker = Tracker(batch, victim.certainty, keep="best", select="evade")
        _offer(tracker, victim, batch.images)
        failures: list[CellError] = []
        for member in members:
            try:
                moved = member(victim, batch)
            except CellError as error:
                failures.append(error)
                warnings.warn(f"the worst case goes on without one of its attacks: {error}", stacklevel=2)
                continue
            for images in (moved.images, moved.boldest):
                if images is not None:
                    _offer(tracker, victim, images)
        if failures and len(failures) == len(members):
            raise failures[0]
        return tracker.moved()


@torch.no_grad()
def _offer(tracker: Tracker, victim: Victim, images: Tensor) -> None:
    outputs: Outputs = victim.network(images)
    tracker.see(images, outputs, torch.zeros_like(outputs.logits[:, 0]), is_last=True)
