"""CW, the smallest push to a wrong answer (Carlini and Wagner, 2017, arXiv 1608.04644).

With `goal=adaptive` the rejector must accept it too (Pang et al., 2022, arXiv 2105.14785, Table 7).
"""

import math
from abc import abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from rrbench.ascent import Score, doubt_of, judge, margin, wide
from rrbench.compute.repeated import Repeated, watching
from rrbench.errors import CellError
from rrbench.protocols import Attack, Batch, Budget, Draws, Moved, Network, Victim
from rrbench_attacks.objectives import confidence

INSIDE = 0.999999  # images are shrunk by this factor, so that black and white stay finite in tanh space
HIGHEST, UNBOUNDED = 1e10, 1e9  # the weight's first upper bound; a bound of at least the second counts as none
CHECKS = 10  # how often the progress of one descent is checked
STALLED = 0.999999  # a loss above this share of the loss at the last check is no progress
SHARPNESS = 40  # p of the p-norm that replaces the maximum
WRONG = -math.inf  # floor of the normal goal: any certainty is enough
# Of the push that a search in lower precision finds, float32 tries this share first, then larger ones until it agrees,
# and then halves what lies between the last two HALVINGS times.
SHARES = (0.98, 1.0, 1.004, 1.016, 1.064)
HALVINGS = 3


class Record:
    """Keeps, for each input, the nearest image at the goal (wrong, certainty above `floor`) and the boldest wrong one.

    The search offers candidates; `accept` makes them answers once float32 finds them at the goal.
    Nothing here waits for the device; a NaN is remembered and raised once, at the end.
    """

    def __init__(self, batch: Batch, certainty: Score, farthest: float, doubt: float) -> None:
        self.labels, self.certainty, self.farthest, self.doubt = batch.labels, certainty, farthest, doubt
        self.answer, self.boldest = batch.images.clone(), batch.images.clone()
        self.boldness = torch.full(batch.labels.shape, -math.inf, dtype=torch.float64, device=batch.labels.device)
        self.broken = torch.zeros_like(batch.labels, dtype=torch.bool)
        self.aim(WRONG)

    def aim(self, floor: float) -> None:
        """Begin a goal: the answers so far become the start, and distance is measured from there."""
        self.floor, self.start, self.answer = floor, self.answer, self.answer.clone()
        self.distance = torch.full_like(self.boldness, self.farthest)
        self.candidate, self.nearest = self.answer.clone(), self.distance.clone()

    def begin(self) -> None:
        """Begin a descent: only candidates that are nearer than the answers count."""
        self.candidate.copy_(self.answer)
        self.nearest.copy_(self.distance)

    def see(
        self, rows: Tensor, images: Tensor, wrong: Tensor, lead: Tensor, certainty: Tensor, distance: Tensor
    ) -> Tensor:
        """Consider one candidate for each of `rows`, and tell which reach the goal; `lead` is the true class's."""
        certainty, distance = certainty.detach().double(), distance.double()
        bolder = wrong & (lead <= -self.doubt) & (certainty > self.boldness[rows])
        self.boldness[rows] = torch.where(bolder, certainty, self.boldness[rows])
        self.boldest[rows] = torch.where(wide(bolder, images), images, self.boldest[rows])
        reached = wrong & (certainty > self.floor) & (distance < self.farthest)
        nearer = reached & (distance < self.nearest[rows])
        self.nearest[rows] = torch.where(nearer, distance, self.nearest[rows])
        self.candidate[rows] = torch.where(wide(nearer, images), images, self.candidate[rows])
        return reached

    def accept(self, rows: Tensor, images: Tensor, distance: Tensor) -> None:
        """Take images at the goal as the answers of `rows`, where they are nearer than the answers so far."""
        nearer = distance.double() < self.distance[rows]
        self.distance[rows[nearer]], self.answer[rows[nearer]] = distance.double()[nearer], images[nearer]

    def moved(self) -> Moved:
        """Return what was kept; a NaN seen on the way is an error, never a robust image."""
        if bool(self.broken.any()):
            raise CellError(f"NaN or infinite scores on {int(self.broken.sum())} attacked inputs")
        return Moved(self.answer, self.boldest, self.distance < self.farthest)


class Adam:
    """Adam (Kingma and Ba, 2015, arXiv 1412.6980) on the first rows of tensors that stay where they are."""

    def __init__(self, like: Tensor, learning_rate: float, steps: int) -> None:
        self.position, self.first, self.second = (torch.zeros_like(like) for _ in range(3))
        self.taken = torch.zeros(1, dtype=torch.long, device=like.device)
        counts = range(1, steps + 1)
        self.rates = like.new_tensor([-learning_rate / (1 - 0.9**count) for count in counts])
        self.shares = like.new_tensor([1 - 0.999**count for count in counts])

    def begin(self) -> None:
        """Go back to where all began."""
        for each in (self.position, self.first, self.second, self.taken):
            each.zero_()

    def descend(self, gradient: Tensor) -> None:
        """Take one step down with as many rows as the gradient has."""
        count = len(gradient)
        first = self.first[:count].lerp_(gradient, 1 - 0.9)
        second = self.second[:count].lerp_(gradient.square(), 1 - 0.999)
        spread = (second / self.shares[self.taken]).sqrt_().add_(1e-8)
        self.position[:count].add_((first * self.rates[self.taken]).div_(spread))
        self.taken += 1


class Descent:
    """The images that still make progress, at the front of tensors that stay where they are, and what belongs to each.

    A few that make none may stand behind them, since only some batch sizes are recorded; nothing they find counts.
    """

    def __init__(self, record: Record, learning_rate: float, steps: int) -> None:
        self.record = record
        self.rows = torch.arange(len(record.labels), device=record.labels.device)  # where they are in the record
        self.start, self.labels = record.start.clone(), record.labels.clone()
        self.centre = torch.empty_like(self.start)  # the start in tanh space
        self.adam = Adam(self.start, learning_rate, steps)  # its position is the offset from the centre
        self.weight = torch.empty_like(record.distance)
        self.lowest, self.last = (torch.empty_like(self.weight) for _ in range(2))  # losses: now, at the last check
        self.is_going = torch.empty_like(record.broken)
        self.reached = torch.empty_like(record.broken)  # of all images, in the record's order

    def begin(self, weight: Tensor) -> None:
        """Begin a descent of all images from the start."""
        self.size = self.left = len(weight)
        self.rows.copy_(torch.arange(self.size, device=weight.device))
        self.start.copy_(self.record.start)
        self.labels.copy_(self.record.labels)
        self.centre.copy_((INSIDE * (2 * self.start - 1)).atanh_())
        self.weight.copy_(weight)
        self.adam.begin()
        self.lowest.fill_(math.inf)
        self.last.fill_(math.inf)
        self.is_going.fill_(True)
        self.reached.fill_(False)

    def state(self) -> list[Tensor]:
        """Return what one step changes and the next one reads."""
        return [self.adam.position, self.adam.first, self.adam.second, self.adam.taken, self.lowest]

    def found(self) -> list[Tensor]:
        """Return all else that a step writes."""
        record = self.record
        return [self.reached, record.candidate, record.nearest, record.boldest, record.boldness]

    def check(self) -> Tensor:
        """Tell which images have found a new lowest loss since the last check; a NaN is noted."""
        going, lowest = self.is_going[: self.size], self.lowest[: self.size]
        self.note_broken()
        progress = going & (lowest <= STALLED * self.last[: self.size])
        self.last.copy_(self.lowest)
        return progress

    def note_broken(self) -> None:
        """Remember which images have a loss that is NaN."""
        broken = self.is_going[: self.size] & self.lowest[: self.size].isnan()
        self.record.broken[self.rows[: self.size]] |= broken

    def keep(self, going: Tensor, left: int, size: int) -> None:
        """Move the `left` images in `going` to the front, with others behind them up to `size`."""
        order = torch.cat([going.nonzero()[:, 0], (~going).nonzero()[:, 0]])[:size]
        self.is_going[: self.size] = going
        of_images = (
            self.rows,
            self.start,
            self.labels,
            self.centre,
            self.weight,
            self.lowest,
            self.last,
            self.is_going,
        )
        for each in (*of_images, self.adam.position, self.adam.first, self.adam.second):
            each[:size] = each[order]
        self.size, self.left = size, left


@dataclass(frozen=True)
class CarliniWagner(Attack):
    """Descends distance + c * shortfall in tanh space with Adam; each image searches for its own smallest c.

    If an image never reaches the goal, the answer is the start. If it is there at once, the answer is the image
    itself, up to the rounding of tanh space (1e-6 for a pixel).
    """

    needs_budget = False
    certifies = True
    revision = 2  # 1 searched in float32
    paper = "Carlini & Wagner 2017, arXiv 1608.04644"
    cost = "at most steps x searches gradients an image, twice that for goal=adaptive with start=phase1"
    farthest: ClassVar[float]  # a success must be nearer than this distance

    goal: Literal["normal", "adaptive"] = (
        "normal"  # wrong; or wrong and above the median certainty of right training inputs
    )
    c0: float = 0.01
    learning_rate: float = 0.005
    steps: int = 1000
    searches: int = 9
    stop: Literal["image", "batch"] = "image"  # a descent ends without a new lowest loss; batch: as in the release
    start: Literal["clean", "phase1"] = "clean"  # of goal=adaptive; phase1: the normal goal's answer, as in the release

    def __post_init__(self) -> None:
        if not (self.c0 > 0 and self.learning_rate > 0 and self.steps >= 1 and self.searches >= 1):
            raise ValueError("c0 and learning_rate must be above 0, and steps and searches at least 1")

    @property
    def is_adaptive(self) -> bool:
        """Tell whether the attack looks at the rejector."""
        return self.goal == "adaptive"

    @abstractmethod
    def distance(self, delta: Tensor) -> Tensor:
        """Return each image's distance; the nearest image is kept."""

    def penalty(self, delta: Tensor) -> Tensor:
        """Return the distance term of the loss."""
        return self.distance(delta)

    def __call__(self, victim: Victim, batch: Batch, budget: Budget, draws: Draws) -> Moved:
        """Return the nearest image found for every input, and whether one was found."""
        if self.goal == "normal":
            record = Record(batch, confidence, self.farthest, doubt_of(victim.network))
            self.search(victim.network, record)
            return record.moved()
        median = victim.calibration.median if victim.calibration else math.nan
        if math.isnan(median):
            raise CellError("the adaptive goal needs the median certainty of training inputs, and there are none")
        record = Record(batch, victim.certainty, self.farthest, doubt_of(victim.network))
        if self.start == "phase1":
            self.search(victim.network, record)
        record.aim(median)
        self.search(victim.network, record)
        return record.moved()

    def gradients_per_image(self, classes: int) -> int:
        """Return steps x searches, twice that for two phases."""
        return self.steps * self.searches * (2 if self.is_adaptive and self.start == "phase1" else 1)

    def search(self, network: Network, record: Record) -> None:
        """Search each image's weight c: ten times larger while it fails, then by bisection."""
        low = torch.zeros_like(record.distance)
        high, weight = torch.full_like(low, HIGHEST), torch.full_like(low, self.c0)
        descent = Descent(record, self.learning_rate, self.steps)
        step = Repeated(partial(self.step, network, descent), descent.state(), descent.found(), network)
        for _ in range(self.searches):
            record.begin()
            descent.begin(weight)
            self.descend(descent, step)
            reached = descent.reached & ~self.certify(network, record)
            high = torch.where(reached, torch.minimum(high, weight), high)
            low = torch.where(reached, low, torch.maximum(low, weight))
            weight = torch.where(high < UNBOUNDED, (low + high) / 2, weight * 10)

    @torch.no_grad()
    def certify(self, network: Network, record: Record) -> Tensor:
        """Make answers of a descent's candidates that are at the goal in float32; tell which candidates are not.

        A candidate of a search in lower precision lies near the border that float32 sees, on either side. So float32
        looks for that border again, along the line from the start to the candidate.
        """
        (rows,) = (record.nearest < record.distance).nonzero(as_tuple=True)
        if not record.doubt:  # the search itself was in float32
            record.accept(rows, record.candidate[rows], record.nearest[rows])
            return torch.zeros_like(record.broken)
        low, high = torch.zeros_like(record.distance[rows]), torch.full_like(record.distance[rows], math.inf)
        for share in SHARES:
            trying = high.isinf()
            there = self.take(network, record, rows[trying], torch.full_like(high[trying], share))
            high[trying] = torch.where(there, share, high[trying])
            low[trying] = torch.where(there, low[trying], share)
        found = high.isfinite() & (low > 0)  # the others are at the goal with the smallest share already, or with none
        for _ in range(HALVINGS):
            middle = (low[found] + high[found]) / 2
            there = self.take(network, record, rows[found], middle)
            high[found], low[found] = torch.where(there, middle, high[found]), torch.where(there, low[found], middle)
        failed = torch.zeros_like(record.broken)
        failed[rows] = high.isinf()
        return failed

    def take(self, network: Network, record: Record, rows: Tensor, share: Tensor) -> Tensor:
        """Go a share of the way from the start to the candidates; take and tell which images are at the goal."""
        if not len(rows):
            return torch.zeros_like(rows, dtype=torch.bool)
        start, labels = record.start[rows], record.labels[rows]
        images = start + wide(share, start).to(start.dtype) * (record.candidate[rows] - start)
        images = images.clamp(0.0, 1.0)
        outputs, distance = judge(network, images), self.distance(images - start)
        certainty = record.certainty(outputs, labels)
        record.broken[rows] |= certainty.isnan() | outputs.logits.isnan().any(1)
        there = (outputs.logits.argmax(1) != labels) & (certainty > record.floor) & (distance < record.farthest)
        record.accept(rows[there], images[there], distance[there])
        return there

    def descend(self, descent: Descent, step: Repeated) -> None:
        """Descend from the start with each image's weight; images that make no progress leave the batch."""
        for count in range(self.steps):
            step(descent.size, descent.left)
            if count % max(self.steps // CHECKS, 1) == 0:
                going = descent.check()
                left = int(going.sum())
                if not left:
                    return
                if left < descent.left:
                    descent.keep(going, left, step.rows(left, descent.size))
        descent.note_broken()

    def step(self, network: Network, descent: Descent, size: int) -> None:
        """Take one step with the first images of a descent. All it writes stays where it is: it may be recorded."""
        loss, gradient, is_there = self.evaluate(network, descent, size)
        descent.reached[descent.rows[:size]] |= is_there
        lowest = descent.lowest[:size]
        # Differs from the release: an image's own loss oscillates, so the lowest of its losses counts.
        lowest.copy_(torch.minimum(lowest, loss) if self.stop == "image" else loss.sum().expand_as(loss))
        descent.adam.descend(gradient)

    def evaluate(self, network: Network, descent: Descent, size: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return each image's loss and gradient, and which images are at the goal; the record sees them all."""
        record, is_going = descent.record, descent.is_going[:size]
        labels, start = descent.labels[:size], descent.start[:size]
        offset = descent.adam.position[:size].detach().requires_grad_()
        with torch.enable_grad():
            moved = ((descent.centre[:size] + offset).tanh() + 1) / 2
            outputs = network(moved)
            lead = margin(outputs.logits, labels)
            shortfall = F.relu(lead)
            with torch.set_grad_enabled(record.floor != WRONG):  # if wrong is enough, nothing descends by certainty
                certainty = record.certainty(outputs, labels)
            if record.floor != WRONG:
                shortfall = shortfall + F.relu(record.floor - certainty)
            loss = self.penalty(moved - start) + descent.weight[:size] * shortfall
            with watching(network, is_going):
                (gradient,) = torch.autograd.grad(loss.sum(), offset)
        moved, loss = moved.detach(), loss.detach()
        with torch.no_grad():
            wrong = (outputs.logits.argmax(1) != labels) & is_going
            distance = self.distance(moved - start)
            return loss, gradient, record.see(descent.rows[:size], moved, wrong, lead, certainty, distance)


@dataclass(frozen=True)
class CwL2(CarliniWagner):
    """CW with the squared l2 distance."""

    norms = frozenset({"l2"})
    maximises = "the smallest l2 push to a wrong answer, with goal=adaptive to one that is accepted"
    farthest = 1e10

    def distance(self, delta: Tensor) -> Tensor:
        """Return the squared l2 norm."""
        return delta.flatten(1).square().sum(1)


@dataclass(frozen=True)
class CwLinf(CarliniWagner):
    """CW with the largest change of a pixel."""

    norms = frozenset({"linf"})
    maximises = "the smallest linf push to a wrong answer, with goal=adaptive to one that is accepted"
    farthest = 1.0

    maximum: Literal["plain", "smooth"] = "plain"  # plain moves one pixel at a time; smooth: a squared p-norm

    def distance(self, delta: Tensor) -> Tensor:
        """Return the linf norm."""
        return delta.flatten(1).abs().amax(1)

    def penalty(self, delta: Tensor) -> Tensor:
        """Return the maximum, or a smooth replacement that reduces every pixel near the maximum."""
        if self.maximum == "plain":
            return self.distance(delta)
        largest = self.distance(delta.detach()).clamp_min(1e-12)
        scaled: Tensor = torch.linalg.vector_norm((delta / wide(largest, delta)).flatten(1), SHARPNESS, 1)
        return (largest * scaled).square()
