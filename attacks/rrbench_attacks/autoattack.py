"""AutoAttack (Croce and Hein, 2020, arXiv 2003.01690): its package's attacks, each on inputs that are still right.

The answer is the clean image if all attacks fail, or if the network was wrong from the start. So accuracy after
rejection on these answers mixes clean and attacked images.

The package draws its random numbers for a whole batch. Here every number that differs between images comes from
`draws`, and every number that all images share comes from one seed, so no answer depends on the batch. Only
`version=package` leaves everything to the package: a second opinion.
"""

import itertools
import logging
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from rrbench.ascent import doubt_of, judge, norms, project, wide
from rrbench.compute.eval_mode import frozen
from rrbench.errors import CellError
from rrbench.protocols import Attack, Batch, Budget, Draws, Moved, Network, Victim

TARGETS = 9  # how many classes the targeted attacks of `standard` aim at, the likeliest first
RESTARTS = 5  # of every gradient attack of `original`
ROUNDING = 1e-6  # how far the package's rounding may leave the budget before the image is moved back

Run = Callable[[Batch, int], Tensor]  # (inputs still right, number of the run) -> candidates


class Logits(nn.Module):
    """A network as packages want it: images in, logits out. Its mode and device do not change."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.ask: Callable[[Tensor], Tensor] = lambda images: network(images).logits
        self.training = False

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits."""
        return self.ask(images)


@contextmanager
def lent(network: Network, draws: Draws, device: torch.device) -> Iterator[None]:
    """Lend a network to a package: frozen weights, seeded random states, no warnings; afterwards restore everything.

    Packages draw from the global random states, and call `backward`, which would leave gradients on the weights.
    AutoAttack's own evaluation also ends the tracing of a debugger, and warns by a logger.
    """
    seed = int(draws.uniform(torch.tensor([-1], device=device), (1,), 0) * 2**24)
    gpus = [device] if device.type == "cuda" else []
    states = random.getstate(), np.random.get_state()
    trace, logger = sys.gettrace(), logging.getLogger("auto-attack")
    was_disabled = logger.disabled
    with (
        frozen(network) if isinstance(network, nn.Module) else nullcontext(),
        torch.random.fork_rng(gpus),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        torch.default_generator.manual_seed(seed)
        for gpu in gpus:
            with torch.cuda.device(gpu):
                torch.cuda.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        logger.disabled = True
        try:
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])
            sys.settrace(trace)
            logger.disabled = was_disabled


@dataclass(frozen=True)
class AutoAttack(Attack):
    """Runs a fixed list of attacks, each on the images that the earlier attacks left right."""

    paper = "Croce and Hein 2020, arXiv 2003.01690"
    is_mixture = True
    maximises = "cross-entropy and DLR by APGD, then FAB and Square, each on what is still right"
    cost = (
        "at most 19 x (steps + 1) gradients an image (original: (10 + 5 x classes) x (steps + 1)), and `queries` looks"
    )

    # `original` is the set in the paper's text: APGD-CE, APGD-DLR and FAB five times each, then Square.
    # `apgd` is the first half of `standard`: FAB and Square took RR from 48.23 to 48.16 %, at several times the cost.
    # `package` is the package's own evaluation by `standard`, in its own batches and with its own random numbers.
    version: Literal["standard", "original", "apgd", "package"] = "standard"
    steps: int = 100
    queries: int = 5000  # of Square

    def __post_init__(self) -> None:
        if self.steps < 1 or self.queries < 1:
            raise ValueError("steps and queries must be at least 1")

    @property
    def packages(self) -> tuple[str, ...]:  # type: ignore[override]  # here it depends on what is installed
        """Name the package that computes the answers."""
        return (library(),)

    @torch.no_grad()
    def __call__(self, victim: Victim, batch: Batch, budget: Budget, draws: Draws) -> Moved:
        """Return the first adversarial image found, else the clean image."""
        logits = Logits(victim.network)
        answer = batch.images.clone(memory_format=torch.contiguous_format)
        batch = batch._replace(images=answer.clone())
        if self.version == "package" and doubt_of(victim.network):
            # An image that only lower precision calls wrong would be safe from all attacks that follow.
            raise CellError("autoattack(package) judges its images itself, which needs --precision fp32")
        clean = verdicts(victim.network, answer)
        self.check(clean.shape[1], budget, tuple(answer.shape[1:]))
        left = (clean.argmax(1) == batch.labels).nonzero().squeeze(1)
        package = Package(logits, budget, draws, self.steps, self.queries)
        for number, run in enumerate(self.runs(package, clean.shape[1]) if budget.eps > 0 else []):
            if not len(left):
                break
            rest = batch.at(left)
            with lent(victim.network, draws, answer.device):
                candidates = run(rest, number)
            is_near = size(candidates - rest.images, budget) <= budget.eps + ROUNDING
            candidates = project(candidates, rest.images, budget.norm, budget.eps)
            is_fooled = is_near & (verdicts(victim.network, candidates).argmax(1) != rest.labels)
            answer[left[is_fooled]] = candidates[is_fooled]
            left = left[~is_fooled]
        return Moved(answer, answer)

    def check(self, classes: int, budget: Budget, shape: tuple[int, ...]) -> None:
        """Refuse, before the start, what the package cannot do."""
        least = 3 if self.version == "original" else 4
        if classes < least:
            raise CellError(f"autoattack({self.version}) needs {least} classes or more: DLR is undefined for {classes}")
        if self.version != "apgd" and budget.norm == "l2" and shape[1] < 5:
            raise CellError(f"autoattack in l2 needs images of 5 rows or more, not {shape[1]}: Square is undefined")

    def runs(self, package: "Package", classes: int) -> list[Run]:
        """List the attacks in order."""
        if self.version == "package":
            return [partial(package.evaluation, targets=targets(classes))]
        if self.version == "original":
            losses = [partial(package.apgd, loss=loss) for loss in ("ce", "dlr") for _ in range(RESTARTS)]
            restarts = [partial(package.fab, is_random=restart > 0) for restart in range(RESTARTS)]
            return [*losses, *restarts, package.square]
        ranks = range(2, targets(classes) + 2)
        descents = [partial(package.targeted_apgd, rank=rank) for rank in ranks]
        ascents: list[Run] = [partial(package.apgd, loss="ce"), *descents]
        if self.version == "apgd":
            return ascents
        return [*ascents, *(partial(package.fab, rank=rank) for rank in ranks), package.square]

    def gradients_per_image(self, classes: int) -> int:
        """Count for an image that no attack fools; untargeted FAB takes one gradient for every class and step."""
        if self.version == "original":
            return RESTARTS * (2 * (self.steps + 1) + self.steps * classes)
        ascents = (1 + targets(classes)) * (self.steps + 1)
        return ascents if self.version == "apgd" else ascents + targets(classes) * self.steps


def targets(classes: int) -> int:
    """Return how many classes the targeted attacks aim at."""
    return min(TARGETS, classes - 1)


def verdicts(network: Network, images: Tensor) -> Tensor:
    """Return the logits that decide; a NaN is an error, never a robust image."""
    found = judge(network, images).logits
    if not bool(found.isfinite().all()):
        raise CellError("NaN or infinite logits on attacked inputs")
    return found


def size(delta: Tensor, budget: Budget) -> Tensor:
    """Return each perturbation's size in the budget's norm."""
    return delta.flatten(1).abs().amax(1) if budget.norm == "linf" else norms(delta).flatten()


@dataclass(frozen=True)
class Package:
    """The package's attacks on one network; `number` gives each run its own random numbers."""

    logits: Logits
    budget: Budget
    draws: Draws
    steps: int
    queries: int

    def apgd(self, batch: Batch, number: int, loss: str) -> Tensor:
        """Run APGD once, on cross-entropy or DLR."""
        attack = self.make("autopgd_base", "APGDAttack", batch, n_iter=self.steps, loss=loss)
        return self.ascend(attack, batch, number)

    def targeted_apgd(self, batch: Batch, number: int, rank: int) -> Tensor:
        """Run APGD once on DLR, towards each image's class of the given rank (1 is its own)."""
        attack = self.make("autopgd_base", "APGDAttack_targeted", batch, n_iter=self.steps)
        attack.y_target = self.logits(batch.images).sort(dim=1)[1][:, -rank]
        return self.ascend(attack, batch, number)

    def ascend(self, attack: Any, batch: Batch, number: int) -> Tensor:
        """Start APGD on the surface of the ball and return the last wrong image on its way."""
        attack.init_hyperparam(batch.images)
        start = batch.images + self.budget.eps * self.direction(batch, number)
        moved: Tensor = attack.attack_single_run(batch.images, batch.labels, x_init=start)[3]
        return moved

    def fab(self, batch: Batch, number: int, rank: int | None = None, is_random: bool = False) -> Tensor:
        """Run FAB once, towards the nearest boundary, or towards the boundary of the class of the given rank."""
        attack = self.make("fab_pt", "FABAttack_PT", batch, n_iter=self.steps)
        if is_random:
            # FAB accepts no start from outside, so it is written over the first image that FAB asks about.
            start = (batch.images + self.budget.eps / 2 * self.direction(batch, number)).clamp(0.0, 1.0)
            ask, starts = attack.get_diff_logits_grads_batch, [start]

            def ask_from_start(images: Tensor, labels: Tensor) -> Any:
                # In lower precision FAB may see an image as already wrong and leave it out.
                if starts and images.shape == starts.pop().shape:
                    images.copy_(start)
                return ask(images, labels)

            attack.get_diff_logits_grads_batch = ask_from_start
        attack.target_class = rank
        moved: Tensor = attack.attack_single_run(
            batch.images, batch.labels, use_rand_start=is_random, is_targeted=rank is not None
        )
        return moved

    def square(self, batch: Batch, number: int) -> Tensor:
        """Run Square once."""
        attack = self.make("square", "SquareAttack", batch, n_queries=self.queries, p_init=0.8, resc_schedule=False)
        attack.init_hyperparam(batch.images)
        shared, margin_and_loss = attack.random_choice, attack.margin_and_loss
        numbers, left = itertools.count(number), batch.ids

        def random_choice(shape: list[int]) -> Tensor:
            if len(shape) < batch.images.dim():
                signs: Tensor = shared(shape)
                return signs
            return torch.where(self.draws.uniform(left, tuple(shape[1:]), next(numbers)) < 0.5, -1.0, 1.0)

        def follow(images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
            nonlocal left
            margin, loss = margin_and_loss(images, labels)
            left = left[margin > 0]  # Square itself drops the others
            return margin, loss

        attack.random_choice, attack.margin_and_loss = random_choice, follow
        moved: Tensor = attack.attack_single_run(batch.images, batch.labels)[1]
        return moved

    def evaluation(self, batch: Batch, number: int, targets: int) -> Tensor:
        """Run the package's own evaluation, as its users do."""
        settings: dict[str, object] = {"seed": torch.default_generator.initial_seed()}  # as `lent` has set it
        if library() == "autoattack":
            settings["verbose"] = False  # its fork is silent
        whole = self.make("autoattack", "AutoAttack", batch, **settings)
        for attack in (whole.apgd, whole.apgd_targeted, whole.fab):
            attack.n_iter = self.steps
        for attack in (whole.apgd_targeted, whole.fab):
            attack.n_target_classes = targets
        whole.square.n_queries = self.queries
        found = whole.run_standard_evaluation(batch.images, batch.labels)
        moved: Tensor = found[0] if isinstance(found, tuple) else found  # the fork also returns its answers' classes
        return moved

    def direction(self, batch: Batch, number: int) -> Tensor:
        """Draw a perturbation of norm 1 for each image."""
        shape = tuple(batch.images.shape[1:])
        if self.budget.norm == "linf":
            drawn = 2 * self.draws.uniform(batch.ids, shape, number) - 1
            return drawn / wide(drawn.abs().flatten(1).amax(1), drawn)
        drawn = self.draws.normal(batch.ids, shape, number)
        return drawn / norms(drawn)

    def make(self, module: str, name: str, batch: Batch, **settings: object) -> Any:
        """Build one of the package's attacks."""
        norm = {"linf": "Linf", "l2": "L2"}[self.budget.norm]
        device = batch.images.device
        return getattr(find(module), name)(self.logits, norm=norm, eps=self.budget.eps, device=device, **settings)


def library() -> str:
    """Name the package that runs: `autoattack` if it is installed, else its fork `pyautoattack`."""
    return "autoattack" if find_spec("autoattack") else "pyautoattack"


def find(module: str) -> Any:
    """Import a module of the package."""
    return import_module(f"{library()}.{module}")
