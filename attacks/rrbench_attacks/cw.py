"""CW, the smallest push to a wrong answer (Carlini and Wagner, 2017, arXiv 1608.04644).

With `goal=adaptive` the rejector must accept it too (Pang et al., 2022, arXiv 2105.14785, Table 7).
"""

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from rrbench.ascent import Score, doubt_of, judge, margin, wide
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
        self.begin()

    def begin(self) -> None:
        """Begin a descent: only candidates that are nearer than the answers count."""
        self.candidate, self.nearest = self.answer.clone(), self.distance.clone()

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
    """Adam (Kingma and Ba, 2015, arXiv 1412.6980) on a batch from which images can be dropped."""

    def __init__(self, position: Tensor, learning_rate: float) -> None:
        self.position, self.learning_rate, self.count = position, learning_rate, 0
        self.first, self.second = torch.zeros_like(position), torch.zeros_like(position)

    def keep(self, rows: Tensor) -> None:
        """Keep only the images in `rows`."""
        self.position, self.first, self.second = self.position[rows], self.first[rows], self.second[rows]

    def descend(self, gradient: Tensor) -> None:
        """Take one step down."""
        self.count += 1
        self.first = self.first.lerp(gradient, 1 - 0.9)
        self.second = self.second.lerp(gradient.square(), 1 - 0.999)
        spread = (self.second / (1 - 0.999**self.count)).sqrt() + 1e-8
        self.position = self.position.addcdiv(self.first, spread, value=-self.learning_rate / (1 - 0.9**self.count))


class Descent:
    """The images that still make progress in one descent, and what belongs to each of them."""

    def __init__(self, record: Record, weight: Tensor, learning_rate: float) -> None:
        self.rows = torch.arange(len(record.labels), device=record.labels.device)  # where they are in the record
        self.start, self.labels, self.weight = record.start, record.labels, weight
        self.centre = (INSIDE * (2 * self.start - 1)).atanh()  # the start in tanh space
        self.adam = Adam(torch.zeros_like(self.start), learning_rate)  # its position is the offset from the centre
        self.lowest = self.last = torch.full_like(weight, math.inf)  # the loss that counts: now, and at the last check

    def keep(self, going: Tensor) -> None:
        """Keep only the images in `going`."""
        self.rows, self.labels, self.weight = self.rows[going], self.labels[going], self.weight[going]
        self.start, self.centre = self.start[going], self.centre[going]
        self.lowest, self.last = self.lowest[going], self.last[going]
        self.adam.keep(going)


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
        for _ in range(self.searches):
            record.begin()
            reached = self.descend(network, record, weight) & ~self.certify(network, record)
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

    def descend(self, network: Network, record: Record, weight: Tensor) -> Tensor:
        """Descend from the start with each image's weight, and tell which images reached the goal on the way.

        Images that make no progress leave the batch.
        """
        descent = Descent(record, weight, self.learning_rate)
        reached = torch.zeros_like(record.broken)
        for step in range(self.steps):
            loss, gradient, is_there = self.evaluate(network, record, descent)
            reached[descent.rows] |= is_there
            # Differs from the release: an image's own loss oscillates, so the lowest of its losses counts.
            descent.lowest = torch.minimum(descent.lowest, loss) if self.stop == "image" else loss.sum().expand_as(loss)
            if step % max(self.steps // CHECKS, 1) == 0:
                record.broken[descent.rows] |= descent.lowest.isnan()
                going = descent.lowest <= STALLED * descent.last
                descent.last = descent.lowest
                if not bool(going.all()):
                    descent.keep(going)
                    gradient = gradient[going]
                if not len(descent.rows):
                    break
            descent.adam.descend(gradient)
        record.broken[descent.rows] |= descent.lowest.isnan()
        return reached

    def evaluate(self, network: Network, record: Record, descent: Descent) -> tuple[Tensor, Tensor, Tensor]:
        """Return each image's loss and gradient, and which images are at the goal; the record sees them all."""
        offset = descent.adam.position.detach().requires_grad_()
        with torch.enable_grad():
            moved = ((descent.centre + offset).tanh() + 1) / 2
            outputs = network(moved)
            lead = margin(outputs.logits, descent.labels)
            shortfall = F.relu(lead)
            with torch.set_grad_enabled(record.floor != WRONG):  # if wrong is enough, nothing descends by certainty
                certainty = record.certainty(outputs, descent.labels)
            if record.floor != WRONG:
                shortfall = shortfall + F.relu(record.floor - certainty)
            loss = self.penalty(moved - descent.start) + descent.weight * shortfall
            (gradient,) = torch.autograd.grad(loss.sum(), offset)
        moved, loss = moved.detach(), loss.detach()
        with torch.no_grad():
            wrong = outputs.logits.argmax(1) != descent.labels
            distance = self.distance(moved - descent.start)
            return loss, gradient, record.see(descent.rows, moved, wrong, lead, certainty, distance)


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
