"""Long climbs that end as soon as they repeat themselves; the input's next climb takes the free place.

A climb is a function of its image. Once an image is bit for bit one of some steps ago, the rest is known: the last
image is the one in the same phase, and none comes that was not seen. So the answer is that of the plain way, as far as
what a network says of an input does not depend on the other inputs of the batch. A GPU does not promise this.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rrbench.protocols import Batch, Outputs

if TYPE_CHECKING:
    from rrbench.ascent import Score, Tracker

WINDOW = 10  # steps between two looks at what repeats; a longer period is not noticed
LONG = 500  # steps from which on looking pays: a climb that never repeats takes a window more

Objective = Callable[[Outputs], Tensor]
Begin = Callable[[Batch, int], Tensor]  # (inputs, restart) -> their first images
Rise = Callable[[Tensor, Batch, Objective], tuple[Outputs, Tensor, Tensor]]  # -> outputs, objective, the next images


def climb_in_turn(
    batch: Batch,
    turns: Sequence[range],
    scores: Sequence["Score"],
    tracker: "Tracker",
    begin: Begin,
    rise: Rise,
    steps: int,
) -> None:
    """Take `steps` steps of every climb and show the tracker all images; the last of each climb is marked as last.

    `batch` holds one copy of the inputs for each of `turns`, the numbers of its climbs. Number c climbs score c modulo
    their count, from restart c // their count.
    """
    size = batch.size // len(turns)
    climb = torch.tensor([turn.start for turn in turns]).repeat_interleave(size)
    stop = torch.tensor([turn.stop for turn in turns]).repeat_interleave(size)
    left = torch.full_like(climb, steps)
    rows, part, device = torch.arange(batch.size), tracker, batch.labels.device
    moved = batch.images.clone()
    _begin(moved, batch, climb // len(scores), climb < stop, begin)
    while True:
        objective = _by_score(scores, climb % len(scores), batch.labels)
        seen, moved, back = _window(part, batch, moved, objective, rise, left.to(device))
        period = back.cpu()
        # The last image of a climb that repeats itself is in this window, in the same phase.
        phase = torch.where(period > 0, left % period.clamp_min(1), left)
        is_done = (climb < stop) & (phase < WINDOW)
        for index in phase[is_done].unique().tolist():
            ended = (is_done & (phase == index)).nonzero()[:, 0].to(device)
            images, outputs, value = seen[index]
            few = part.some(ended)
            few.see(images[ended], outputs.at(ended), value[ended], is_last=True)
            part.put(ended, few)
        climb, left = climb + is_done.long(), torch.where(is_done, steps, left - WINDOW).clamp_min(0)
        is_left = climb < stop
        left[~is_left] = 0
        if not bool(is_left.any()):
            break
        _begin(moved, batch, climb // len(scores), is_done & is_left, begin)
        fewer = _fewer(len(rows), int(is_left.sum()))
        if fewer < len(rows):
            kept = (~is_left).to(torch.uint8).argsort(stable=True)[:fewer]
            tracker.put(rows.to(device), part)
            rows, climb, stop, left = rows[kept], climb[kept], stop[kept], left[kept]
            part, batch, moved = tracker.some(rows.to(device)), batch.at(kept.to(device)), moved[kept.to(device)]
    tracker.put(rows.to(device), part)


Seen = tuple[Tensor, Outputs, Tensor]  # images, outputs, objective


def _window(
    tracker: "Tracker", batch: Batch, moved: Tensor, objective: Objective, rise: Rise, left: Tensor
) -> tuple[list[Seen], Tensor, Tensor]:
    """Take the next steps; return what was seen, the next images, and after how many steps the first ones came back.

    0: they did not.
    """
    seen: list[Seen] = []
    first, period = moved, torch.zeros_like(left)
    for index in range(WINDOW):
        outputs, value, after = rise(moved, batch, objective)
        tracker.see(moved, outputs, value, is_last=False)
        seen.append((moved, outputs, value))
        # A climb that has taken all its steps waits: an image beyond its end must not be seen.
        goes_on = (index < left).view(-1, *[1] * (moved.dim() - 1))
        moved = torch.where(goes_on, after, moved)
        is_back = (moved == first).flatten(1).all(1)
        period = torch.where(is_back & (period == 0), index + 1, period)
    return seen, moved, period


def _begin(moved: Tensor, batch: Batch, restart: Tensor, is_new: Tensor, begin: Begin) -> None:
    """Put the first images of new climbs into their places."""
    for each in restart[is_new].unique().tolist():
        places = (is_new & (restart == each)).nonzero()[:, 0].to(moved.device)
        moved[places] = begin(batch.at(places), each)


def _by_score(scores: Sequence["Score"], which: Tensor, labels: Tensor) -> Objective:
    """Return the objective of inputs that climb different scores; each score sees its own inputs only."""
    groups = [(score, (which == index).nonzero()[:, 0]) for index, score in enumerate(scores)]
    order = torch.cat([places for _, places in groups]).argsort().to(labels.device)
    there = [(score, places.to(labels.device)) for score, places in groups if len(places)]

    def objective(outputs: Outputs) -> Tensor:
        return torch.cat([score(outputs.at(places), labels[places]) for score, places in there])[order]

    return objective


def _fewer(size: int, needed: int) -> int:
    """Halve a batch as often as its climbs allow: a GPU takes extra time for every new size."""
    while needed <= size // 2:
        size //= 2
    return size
