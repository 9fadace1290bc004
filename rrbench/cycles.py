"""Climbs that end once they repeat themselves.

A climb's next image depends on its image alone. Once it is back at an image of some steps ago, it is in a cycle: no new
image comes, and the last one is known. Whole cycles can be left out, and the climb ends on the image that the plain way
ends on. This holds if a network's answer to an image does not depend on the rest of the batch: batches become smaller
on the way, and some devices then round otherwise.
"""

from collections.abc import Callable

import torch
from torch import Tensor

# Steps between two looks for repeats; a longer cycle is not noticed. Each climb counts its own steps, so that it ends
# at the same step in any batch.
WINDOW = 20

Rise = Callable[
    [Tensor, Tensor], Tensor
]  # (images, their places in the batch, on the CPU) -> the images one step later


def climb_until_repeat(start: Tensor, steps: int, rise: Rise) -> tuple[Tensor, Tensor]:
    """Take `steps` steps without cycles that repeat; return the last images and how many steps each climb took.

    A climb that repeats itself has gone through its whole cycle, and takes its last steps in the order of the plain
    way. So even of equally good images the same one comes last.
    """
    taken = torch.full((len(start),), steps)  # on the CPU: the device is waited for once in a window
    moved, first = start.clone(), start
    cycle = torch.zeros(len(start), dtype=torch.long, device=start.device)  # steps back to `first`; 0: not back
    for at in range(steps):
        if at and at % WINDOW == 0:
            period = cycle.cpu()
            is_cycle = (period > 0) & (taken == steps)
            taken = torch.where(is_cycle, at + (steps - at) % period.clamp_min(1), taken)
            first, cycle = moved.clone(), torch.zeros_like(cycle)
        places = (taken > at).nonzero()[:, 0]
        if not len(places):
            break
        there = places.to(start.device)
        moved[there] = rise(moved[there], places)
        is_back = (moved == first).flatten(1).all(1)
        cycle = torch.where(is_back & (cycle == 0), at % WINDOW + 1, cycle)
    return moved, taken
