"""The one gradient-ascent loop, for training and attacks: start, step, project, and which image to keep."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from rrbench.compute.batching import copies
from rrbench.compute.instrumented import Instrumented
from rrbench.cycles import climb_until_repeat
from rrbench.errors import CellError
from rrbench.protocols import Batch, Budget, Draws, Moved, Network, Norm, Outputs

# Revision of what all attacks share: this file, and the objectives and apgd of rrbench_attacks. Raise it with every
# change of behaviour: attacks' keys hold it. 1 divided an l2 step by the gradient's norm + 1e-10 at any scale.
REVISION = 2

Score = Callable[[Outputs, Tensor], Tensor]  # (outputs, labels) -> (N,)
Keep = Literal["last", "best"]  # of one ascent: its last image, or the best by `select` of all its images
Select = Literal["ce", "objective", "evade"]  # between candidates of one input
Until = Literal["end", "repeat"]  # a climb takes all its steps, or leaves out whole cycles once it repeats itself

DOUBT = 0.1  # logits: an answer nearer than this to the border, found in lower precision, may be another in float32


def wide(values: Tensor, images: Tensor) -> Tensor:
    """Shape one value per image so that it broadcasts over images."""
    return values.view(-1, *[1] * (images.dim() - 1))


def norms(delta: Tensor) -> Tensor:
    """Return each image's l2 norm, shaped to multiply images."""
    return wide(torch.linalg.vector_norm(delta.flatten(1), dim=1), delta)


def project(moved: Tensor, images: Tensor, norm: Norm, radius: float) -> Tensor:
    """Move images back into the ball around the clean ones, then into [0, 1]."""
    if norm == "linf":
        # min and max instead of adding a clipped delta: radius 0 then gives exactly the clean image.
        moved = torch.minimum(torch.maximum(moved, images - radius), images + radius)
    else:
        delta = moved - images
        moved = images + delta * (radius / norms(delta).clamp_min(1e-12)).clamp_max(1.0)
    return moved.clamp(0.0, 1.0)


def random_start(batch: Batch, norm: Norm, radius: float, draws: Draws, restart: int) -> Tensor:
    """Start uniformly in the box, or in a Gaussian direction at a uniform share of the radius."""
    shape = tuple(batch.images.shape[1:])
    if norm == "linf":
        delta = (2 * draws.uniform(batch.ids, shape, restart) - 1) * radius
    else:
        direction = draws.normal(batch.ids, shape, restart)
        share = draws.uniform(batch.ids, (1,) * len(shape), restart)
        delta = direction / norms(direction).clamp_min(1e-12) * share * radius
    return (batch.images + delta.to(batch.images.dtype)).clamp(0.0, 1.0)


def step_up(moved: Tensor, gradient: Tensor, norm: Norm, step: float) -> Tensor:
    """Move by `step` in the steepest direction of the norm, however small the gradient is."""
    if norm == "linf":
        # PyTorch's sign of NaN is 0: the image would not move and would look robust.
        return moved + step * gradient.sign().where(~gradient.isnan(), gradient)
    # A confident network's gradients are far below the paper's 1e-10, which would then decide the step's length.
    largest = wide(gradient.flatten(1).abs().amax(1), gradient)
    unit = gradient / largest.clamp_min(torch.finfo(gradient.dtype).tiny)
    return moved + step * unit / (norms(unit) + 1e-10)


def ask_to_climb(network: Network, images: Tensor) -> Outputs:
    """Ask where no weight needs a gradient: the fast twin may answer."""
    return network.climb(images) if isinstance(network, Instrumented) else network(images)


def slope(network: Network, images: Tensor, objective: Callable[[Outputs], Tensor]) -> tuple[Outputs, Tensor, Tensor]:
    """Return the outputs for images, the objective and its gradient, all detached."""
    images = images.detach().requires_grad_()
    with torch.enable_grad():
        outputs = ask_to_climb(network, images)
        value = objective(outputs)
        if not value.requires_grad:
            raise CellError(_without_gradient(outputs))
        (gradient,) = torch.autograd.grad(value.sum(), images)  # given slopes, PyTorch would import SymPy: 0.5 s
    return Outputs(*(part.detach() for part in outputs)), value.detach(), gradient


def _without_gradient(outputs: Outputs) -> str:
    if outputs.logits.requires_grad:
        return "the objective has no gradient: this certainty cannot be attacked by gradient ascent"
    network = "the network's logits have no gradient: take no_grad() and detach() out of its forward"
    return f"{network}, or attack it without gradients, by square-reject"


Observe = Callable[[Tensor, Outputs, Tensor], None]  # (images, outputs, objective), all detached


def ascend(
    network: Network,
    images: Tensor,
    start: Tensor,
    objective: Callable[[Outputs], Tensor],
    *,
    norm: Norm,
    radius: float,
    step: float,
    steps: int,
    observe: Observe | None = None,
) -> Tensor:
    """Take `steps` steps up the objective inside the budget and return the last image."""
    moved = start.detach()
    for _ in range(steps):
        outputs, value, gradient = slope(network, moved, objective)
        if observe is not None:
            observe(moved, outputs, value)
        moved = project(step_up(moved, gradient, norm, step), images, norm, radius)
    return moved


def margin(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the true class's logit minus the best other one: negative means wrong."""
    true = logits.gather(1, labels[:, None]).squeeze(1)
    return true - _largest_other(logits, labels)


def _largest_other(values: Tensor, labels: Tensor) -> Tensor:
    return values.scatter(1, labels[:, None], -torch.inf).amax(1)


def doubt_of(network: Network) -> float:
    """Return how far beyond the border an answer must be to stay wrong in float32, which gives the verdict.

    The wrong image with the highest energy lies on the border itself, where bf16 and float32 often disagree. Without
    this, eta=1:10 left EBD more right answers than eta=1 alone: 57.3 % and 53.3 %.
    """
    return DOUBT if isinstance(network, Instrumented) and network.precision != "fp32" else 0.0


def judge(network: Network, images: Tensor) -> Outputs:
    """Ask as the final verdict does: in float32."""
    return network.judge(images) if isinstance(network, Instrumented) else network(images)


def is_wrong(logits: Tensor, labels: Tensor, doubt: float) -> Tensor:
    """Tell which answers are wrong, with the true logit at least `doubt` below another one."""
    return (logits.argmax(1) != labels) & (margin(logits, labels) <= -doubt)


def cross_entropy(outputs: Outputs, labels: Tensor) -> Tensor:
    """Return CE to the true label, one value per input."""
    return F.cross_entropy(outputs.logits, labels, reduction="none")


def best_other(outputs: Outputs, labels: Tensor) -> Tensor:
    """Return log max_{k != y} p_k; the class is chosen again at each step."""
    return _largest_other(outputs.logits.log_softmax(1), labels)


Places = slice | Tensor  # of some inputs in a batch
ALL = slice(None)


class Tracker:
    """Keeps, for each input, the answer (by `keep` and `select`) and the boldest wrong image seen.

    `doubt` (of the network's precision) tells which images count as wrong for `evade` and for the boldest.
    Nothing here waits for the device; a NaN is remembered and raised once, at the end.
    """

    def __init__(self, batch: Batch, certainty: Score, keep: Keep, select: Select, doubt: float = 0.0) -> None:
        self.labels, self.certainty, self.keep, self.select = batch.labels, certainty, keep, select
        self.doubt = doubt
        lowest = torch.full(batch.labels.shape, -torch.inf, dtype=torch.float64, device=batch.labels.device)
        self.answer, self.rank = batch.images.clone(), lowest
        self.boldest, self.boldness = batch.images.clone(), lowest.clone()
        self.evades = torch.zeros_like(batch.labels, dtype=torch.bool)
        self.broken = torch.zeros_like(self.evades)

    def see(self, images: Tensor, outputs: Outputs, objective: Tensor, *, is_last: bool, places: Places = ALL) -> None:
        """Consider one candidate for every input, or for the inputs at some places."""
        labels = self.labels[places]
        certainty = self.certainty(outputs, labels).double()
        wrong = is_wrong(outputs.logits, labels, self.doubt)
        self.broken[places] |= ~(certainty.isfinite() & objective.isfinite() & outputs.logits.isfinite().all(1))
        self._note_bolder(images, torch.where(wrong, certainty, -torch.inf), places)
        if not is_last and self.keep == "last":
            return
        evades = torch.zeros_like(wrong)
        if self.select == "ce":
            rank = F.cross_entropy(outputs.logits, labels, reduction="none").double()
        elif self.select == "objective":
            rank = objective.double()
        else:
            # Wrong images come first, the most certain of them best; then the images nearest to being wrong.
            evades, rank = wrong, torch.where(wrong, certainty, -margin(outputs.logits, labels).double())
        self._note_better(images, rank, evades, places)

    def join(self, other: "Tracker") -> None:
        """Take over what another tracker kept for copies of these inputs, as if seen here copy by copy."""
        size = len(self.labels)
        for start in range(0, len(other.labels), size):
            copy = slice(start, start + size)
            self.broken |= other.broken[copy]
            self._note_bolder(other.boldest[copy], other.boldness[copy])
            self._note_better(other.answer[copy], other.rank[copy], other.evades[copy])

    def _note_bolder(self, images: Tensor, boldness: Tensor, places: Places = ALL) -> None:
        bolder = boldness > self.boldness[places]
        self.boldness[places] = torch.where(bolder, boldness, self.boldness[places])
        self.boldest[places] = torch.where(wide(bolder, images), images, self.boldest[places])

    def _note_better(self, images: Tensor, rank: Tensor, evades: Tensor, places: Places = ALL) -> None:
        before, best = self.evades[places], self.rank[places]
        better = (evades & ~before) | ((evades == before) & (rank >= best))
        self.answer[places] = torch.where(wide(better, images), images, self.answer[places])
        self.rank[places], self.evades[places] = torch.where(better, rank, best), before | evades

    def moved(self) -> Moved:
        """Return what was kept; a NaN seen on the way is an error, never a robust image."""
        if bool(self.broken.any()):
            raise CellError(f"NaN or infinite scores on {int(self.broken.sum())} attacked inputs")
        return Moved(self.answer, self.boldest)


def best_places(evades: Tensor, rank: Tensor, count: int) -> Tensor:
    """Return where the best `count` candidates of each input are among all, (count, N), the earliest place first.

    As for a tracker, evading candidates come first, then those of higher rank; of equal ones the earlier is taken.
    """
    order = rank.argsort(dim=0, descending=True, stable=True)
    order = order.gather(0, evades.gather(0, order).int().argsort(dim=0, descending=True, stable=True))
    return order[:count].sort(dim=0).values


def search(
    network: Network,
    batch: Batch,
    budget: Budget,
    draws: Draws,
    objectives: Sequence[Score],
    certainty: Score,
    *,
    steps: int,
    restarts: int,
    step: float,
    keep: Keep,
    select: Select,
    doubt: float = 0.0,
    until: Until = "end",
    narrow: int | None = None,
) -> Moved:
    """Ascend each objective from each random start, and keep one answer for each input over all of them.

    A small batch climbs several starts and objectives at once; the answer does not depend on how many. `until="repeat"`
    leaves out what a climb in linf would only repeat (`cycles.py`); steps in l2 hardly ever come back to the same bits.
    `narrow` leaves out climbs: from the second start on, each input climbs only so many objectives, those whose answers
    from the first start ranked best for it.
    """
    if steps < 0 or restarts < 1:
        raise CellError(f"an attack takes no fewer than 0 steps from 1 start: steps={steps}, restarts={restarts}")
    if narrow is not None and narrow < 1:
        raise CellError(f"an attack climbs at least 1 objective from each start: narrow={narrow}")
    tracker = Tracker(batch, certainty, keep, select, doubt)

    def climb(climbs: Sequence[_Climb]) -> tuple[list[Tensor], list[Tensor]]:
        """Show every climb to the tracker; return which evade, and their ranks, in parts of (climbs, N)."""
        evades, ranks = [], []
        at_once = copies(batch.size, len(climbs))
        for first in range(0, len(climbs), at_once):
            group = climbs[first : first + at_once]
            many = batch.repeated(len(group))
            together = Tracker(many, certainty, keep, select, doubt)
            restarts_here = {restart for restart, _ in group}
            starts = {at: random_start(batch, budget.norm, budget.eps, draws, at) for at in restarts_here}
            start = torch.cat([starts[restart] for restart, _ in group])
            objective = partial(_side_by_side, group, batch.labels)
            here = _Climbs(network, many.images, objective, together, budget, step, steps)
            last = here.until_repeat(start) if until == "repeat" and budget.norm == "linf" else here.to_the_end(start)
            with torch.no_grad():
                outputs = network(last)
                together.see(last, outputs, objective(torch.arange(many.size))(outputs), is_last=True)
            tracker.join(together)
            evades.append(together.evades.view(len(group), batch.size))
            ranks.append(together.rank.view(len(group), batch.size))
        return evades, ranks

    count = len(objectives) if narrow is None else narrow
    full_starts = restarts if count >= len(objectives) else 1
    evades, ranks = climb([(restart, _for_all(score)) for restart in range(full_starts) for score in objectives])
    if full_starts < restarts:
        best = best_places(torch.cat(evades), torch.cat(ranks), count)
        chosen = [_for_each(objectives, numbers) for numbers in best]
        climb([(restart, score) for restart in range(full_starts, restarts) for score in chosen])
    return tracker.moved()


Objective = Callable[[Outputs], Tensor]
_Score = Callable[[Outputs, Tensor, Tensor], Tensor]  # (outputs, labels, places in the batch) -> (N,)
_Climb = tuple[int, _Score]  # (restart, what it climbs)


def _for_all(score: Score) -> _Score:
    return lambda outputs, labels, places: score(outputs, labels)


def _for_each(scores: Sequence[Score], numbers: Tensor) -> _Score:
    """Let each input of the batch climb the score with its own number."""

    def score(outputs: Outputs, labels: Tensor, places: Tensor) -> Tensor:
        values = torch.stack([each(outputs, labels) for each in scores])
        return values.gather(0, numbers[None, places]).squeeze(0)

    return score


def _side_by_side(climbs: Sequence[_Climb], labels: Tensor, places: Tensor) -> Objective:
    """Return the objective at sorted places (on the CPU) of copies of one batch; each copy has its own score."""
    borders = torch.searchsorted(places, torch.arange(len(climbs) + 1) * len(labels)).tolist()
    parts = [slice(*pair) for pair in pairwise(borders)]
    places = (places % len(labels)).to(labels.device)
    labels = labels[places]

    def objective(outputs: Outputs) -> Tensor:
        pieces = zip(parts, climbs, strict=True)
        return torch.cat(
            [
                score(outputs.at(part), labels[part], places[part])
                for part, (_, score) in pieces
                if part.start < part.stop
            ]
        )

    return objective


@dataclass(frozen=True)
class _Climbs:
    """Climbs side by side; the tracker is shown every image on the way but the last."""

    network: Network
    images: Tensor
    objective: Callable[[Tensor], Objective]  # at given places
    tracker: Tracker
    budget: Budget
    step: float
    steps: int

    def to_the_end(self, start: Tensor) -> Tensor:
        """Take every step, and return the last images."""

        def observe(moved: Tensor, outputs: Outputs, value: Tensor) -> None:
            self.tracker.see(moved, outputs, value, is_last=False)

        return ascend(
            self.network, self.images, start, self.objective(torch.arange(len(self.images))),
            norm=self.budget.norm, radius=self.budget.eps, step=self.step, steps=self.steps, observe=observe,
        )  # fmt: skip

    def until_repeat(self, start: Tensor) -> Tensor:
        """Leave out steps that only repeat earlier ones; the share of zero gradients counts them."""
        is_flat = torch.zeros(len(self.images), dtype=torch.bool, device=self.images.device)
        norm, radius = self.budget.norm, self.budget.eps

        def rise(moved: Tensor, places: Tensor) -> Tensor:
            outputs, value, gradient = slope(self.network, moved, self.objective(places))
            there = places.to(self.images.device)
            self.tracker.see(moved, outputs, value, is_last=False, places=there)
            is_flat[there] = ~gradient.flatten(1).any(1)
            return project(step_up(moved, gradient, norm, self.step), self.images[there], norm, radius)

        last, taken = climb_until_repeat(start.detach(), self.steps, rise)
        if isinstance(self.network, Instrumented):
            # Without a slope an image stays where it is: either all gradients of a cycle are zero, or none.
            self.network.leave_out((self.steps - taken).to(self.images.device), is_flat)
        return last
