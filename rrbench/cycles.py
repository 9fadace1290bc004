"""Climbs that end once they repeat themselves.

A climb's next image depends on its image alone. Once it is back at an image of some steps ago, it only goes round: no
new image comes, and the last one is known. Whole rounds can be left out, and the climb ends on the image that the plain
way ends on. This holds as far as what a network says of an image does not depend on its batch: batches become smaller
on the way, and some devices then round otherwise.
"""

from collections.abc import Callable

import torch
from torch import Tensor

# Steps between two looks for repeats; a longer round is not noticed. Each climb counts its own steps, so that it ends
# at the same step in any batch.
WINDOW = 20

Rise = Callable[
    [Tensor, Tensor], Tensor
]  # (images, their places in the batch, on the CPU) -> the images one step later


def climb_until_repeat(start: Tensor, steps: int, rise: Rise) -> tuple[Tensor, Tensor]:
    """Take `steps` steps without rounds that repeat; return the last images and how many steps each climb took.

    A climb that repeats itself has gone all round at least once, and takes its last steps in the order of the plain
    way. So even of equally good images the same one comes last.
    """
    taken = torch.full((len(start),), steps)  # on the CPU: the device is waited for once in a window
    moved, first = start.clone(), start
    round_trip = torch.zeros(len(start), dtype=torch.long, device=start.device)  # steps back to `first`; 0: not back
    for at in range(steps):
        if at and at % WINDOW == 0:
            period = round_trip.cpu()
            is_round = (period > 0) & (taken == steps)
            taken = torch.where(is_round, at + (steps - at) % period.clamp_min(1), taken)
            first, round_trip = moved.clone(), torch.zeros_like(round_trip)
        places = (taken > at).nonzero()[:, 0]
        if not len(places):
            break
        there = places.to(start.device)
        moved[there] = rise(moved[there], places)
        is_back = (moved == first).flatten(1).all(1)
        round_trip = torch.where(is_back & (round_trip == 0), at % WINDOW + 1, round_trip)
    return moved, taken
