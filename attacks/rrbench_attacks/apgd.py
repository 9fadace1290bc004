"""The ascent of APGD (Croce and Hein, 2020, arXiv 2003.01690) on any objective: momentum, and steps that halve."""

from collections.abc import Callable

import torch
from torch import Tensor

from rrbench.ascent import Observe, norms, project, slope, step_up, wide
from rrbench.protocols import Batch, Draws, Network, Norm, Outputs

MOMENTUM = 0.75  # the new step's share; the last movement has the remaining share
RISING = 0.75  # the step halves if a smaller share of the window's steps rose


def apgd_start(batch: Batch, norm: Norm, radius: float, draws: Draws, restart: int) -> Tensor:
    """Start on the surface of the ball, in a uniform or a Gaussian direction."""
    shape = tuple(batch.images.shape[1:])
    if norm == "linf":
        direction = 2 * draws.uniform(batch.ids, shape, restart) - 1
        length = wide(direction.flatten(1).abs().amax(1), direction)
    else:
        direction = draws.normal(batch.ids, shape, restart)
        length = norms(direction)
    delta = radius * direction / length.clamp_min(1e-12)
    return project(batch.images + delta.to(batch.images.dtype), batch.images, norm, radius)


def apgd_ascend(
    network: Network,
    images: Tensor,
    start: Tensor,
    objective: Callable[[Outputs], Tensor],
    *,
    norm: Norm,
    radius: float,
    steps: int,
    observe: Observe | None = None,
) -> Tensor:
    """Take `steps` steps up the objective in the budget and return the best image; each image has its own step size."""
    moved = previous = best = start.detach()
    best_gradient = torch.zeros_like(images)
    value = best_value = judged = torch.full((len(images),), -torch.inf, dtype=torch.float64, device=images.device)
    rises, step = torch.zeros_like(value), torch.full_like(value, 2 * radius)
    halved = torch.ones_like(value, dtype=torch.bool)  # so that the first checkpoint looks only at rises
    windows = checkpoints(steps)
    for taken in range(steps):
        before = value
        outputs, value, gradient = slope(network, moved, objective)
        if observe is not None:
            observe(moved, outputs, value)
        value = value.double()
        if taken > 0:
            rises = rises + (value > before)
        better = value > best_value
        best, best_gradient = pick(better, moved, best), pick(better, gradient, best_gradient)
        best_value = torch.where(better, value, best_value)
        if taken in windows:
            halved = must_halve(rises, windows[taken], halved, best_value, judged)
            judged, rises = best_value, torch.zeros_like(rises)
            step = torch.where(halved, step / 2, step)
            moved, gradient = pick(halved, best, moved), pick(halved, best_gradient, gradient)
        share = MOMENTUM if taken > 0 else 1.0
        direction = step_up(torch.zeros_like(moved), gradient, norm, 1.0)
        stepped = project(moved + wide(step, moved).to(moved.dtype) * direction, images, norm, radius)
        mixed = moved + share * (stepped - moved) + (1 - share) * (moved - previous)
        previous, moved = moved, project(mixed, images, norm, radius)
    with torch.no_grad():
        outputs = network(moved)
        value = objective(outputs)
    if observe is not None:
        observe(moved, outputs, value)
    return pick(value.double() > best_value, moved, best)


def checkpoints(steps: int) -> dict[int, int]:
    """Return {steps taken when a step size is judged: steps since the last time}: 22 %, then 3 % less, at least 6 %."""
    window, shrink, least = (max(percent * steps // 100, 1) for percent in (22, 3, 6))
    found, taken = {}, window
    while taken <= steps:
        found[taken] = window
        window = max(window - shrink, least)
        taken += window
    return found


def must_halve(rises: Tensor, window: int, halved: Tensor, best: Tensor, judged: Tensor) -> Tensor:
    """Tell which steps are too long: few rises, or no progress since a checkpoint that did not halve."""
    return (rises < RISING * window) | (~halved & (best <= judged))


def pick(mask: Tensor, one: Tensor, other: Tensor) -> Tensor:
    """Return, for each image, `one` if the mask is true, else `other`."""
    return torch.where(wide(mask, one), one, other)
