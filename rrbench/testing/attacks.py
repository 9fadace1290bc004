"""The contract of an attack."""

import math
from copy import deepcopy
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import cast, get_args

import torch
from torch import Tensor, nn

from rrbench.compute.draws import HashedDraws
from rrbench.compute.instrumented import Instrumented
from rrbench.errors import CellError
from rrbench.lending import kept
from rrbench.measuring.evaluation import run_attack
from rrbench.measuring.measured_network import MeasuredNetwork
from rrbench.plugins.contract import check_class
from rrbench.plugins.guards import check_budget, checked, class_kept
from rrbench.protocols import Attack, Batch, Budget, Moved, Norm, Outputs, Victim
from rrbench.testing.check import Check, expect
from rrbench.testing.problem import CALIBRATION, INFO, Headed, build_network, patterns

SIZE = 10  # images
RADII: dict[str, Fraction] = {"linf": Fraction(1, 20), "l2": Fraction(2, 5)}
CHANGES = "it changes the network's {}: work on a copy"
APART = 1e-5  # how far rounding may move a pixel if batches are cut differently


def attack_checks(attack: Attack) -> list[Check]:
    """Return the contract as checks of an attack; choose settings that make it quick."""
    norms = [norm for norm in get_args(Norm) if norm in (attack.norms or ("linf",))]
    checks = [Check("its class says what it is", lambda: _says_what_it_is(attack))]
    for norm in norms:
        case = AttackCase(attack, norm)
        sentences = {
            "every input is answered in budget and in range": case.is_in_budget,
            "the same draws give the same images, and nothing else is touched": case.is_repeatable,
            "another split into batches gives the same images": case.is_alone,
            "it asks for the gradients that it announces": case.costs_what_it_says,
            "a network that says NaN fails the cell": case.fails_on_nan,
        }
        if case.budget.radius is not None:
            sentences["a radius of zero gives the clean images"] = case.stands_still
        if attack.is_adaptive:
            sentences["its boldest image is at least as bold as its answer"] = case.is_bold
        where = f"{norm}: " if len(norms) > 1 else ""
        checks += [Check(where + sentence, check) for sentence, check in sentences.items()]
    return checks


def _says_what_it_is(attack: Attack) -> None:
    kind = type(attack)
    check_class(kind)
    expect(kind.maximises, f"{kind.__name__} does not say what it does: write maximises = '...'")
    expect(attack.norms <= set(get_args(Norm)), f"the norms of {kind.__name__} must be of linf and l2")


class _Nan(nn.Module):
    """Answers NaN to every image."""

    def forward(self, images: Tensor) -> Outputs:
        """Return only NaN."""
        flat = images.flatten(1)
        return Outputs(flat, math.nan * flat[:, : INFO.classes], math.nan * flat[:, :1])


@dataclass(frozen=True)
class AttackCase:
    """An attack in one norm, and its answer."""

    attack: Attack
    norm: Norm

    @property
    def budget(self) -> Budget:
        """The budget that the harness would give this attack."""
        if self.attack.needs_budget:
            return Budget(self.norm, RADII[self.norm])
        return Budget(self.norm, None if self.attack.norms else Fraction(0))

    @cached_property
    def batch(self) -> Batch:
        """A few inputs."""
        return patterns().at(slice(0, SIZE))

    @cached_property
    def network(self) -> nn.Module:
        """The network; only some of its weights need gradients, and an attack must not change that."""
        network = build_network(Headed())
        for parameter in list(network.parameters())[::2]:
            parameter.requires_grad_(False)
        return network

    @cached_property
    def usual(self) -> tuple[Moved, float]:
        """The answer that several checks use, and the number of gradients for each image."""
        counted = Instrumented(deepcopy(self.network), "fp32")  # a copy: what it changes must not disturb other checks
        return self.run(self.batch, network=counted), counted.gradients / self.batch.size

    def run(self, batch: Batch, budget: Budget | None = None, network: nn.Module | None = None) -> Moved:
        """Attack as the harness does: a blind attack does not see the rejector."""
        victim = Victim(network or self.network, Headed(), CALIBRATION).seen_by(self.attack)
        budget = budget or self.budget
        # A copy, as in a run: if an attack writes into its batch, other checks must not notice.
        lent = batch.copied()
        with class_kept(self.attack):
            moved = checked(self.attack, self.attack(victim, lent, budget, HashedDraws(7)), batch, budget)
        is_same = all(torch.equal(after, before) for after, before in zip(lent, batch, strict=True))
        expect(is_same and not lent.images.requires_grad, "it changes the batch that it is given: work on a copy")
        return moved

    def is_in_budget(self) -> None:
        """Check range, budget and form of the answers."""
        moved, _ = self.usual
        for images in (moved.images, moved.boldest):
            if images is not None:
                check_budget(images, self.batch.images, self.budget)
                expect(not images.requires_grad, "its images hold on to their gradients: detach them")
        is_needed = self.budget.radius is None
        expect((moved.reached is not None) == is_needed, "attacks without a radius answer `reached`, and no others do")

    def is_repeatable(self) -> None:
        """Repeat the attack in another random state, and check everything that it was lent."""
        first, network = self.usual[0].images, self.network
        modes = [module.training for module in network.modules()]
        wanted = [parameter.requires_grad for parameter in network.parameters()]
        with kept(network, CHANGES.format), torch.random.fork_rng(devices=[]):
            torch.manual_seed(123)  # must not matter
            state = torch.get_rng_state()
            again = self.run(self.batch).images
            clean = all(parameter.grad is None for parameter in network.parameters())
            expect(clean, "it leaves gradients on the network's weights: use torch.autograd.grad(value, images)")
            expect(torch.equal(torch.get_rng_state(), state), "it takes random numbers from torch: use draws alone")
        expect(torch.equal(again, first), "a second run gives other images: take random numbers from draws alone")
        expect([module.training for module in network.modules()] == modes, "it leaves the network in another mode")
        expect(
            [parameter.requires_grad for parameter in network.parameters()] == wanted,
            "it leaves the network's weights asking for other gradients",
        )

    def is_alone(self) -> None:
        """Attack the first image by itself; compare within rounding, which depends on the batch's shape."""
        whole = self.usual[0].images
        pieces = (slice(0, 1), slice(1, SIZE))
        split = torch.cat([self.run(self.batch.at(piece)).images for piece in pieces])
        apart = float((split - whole).abs().max())
        expect(apart <= APART, f"an image depends on the rest of its batch: {apart:.3g} apart when it is cut otherwise")

    def stands_still(self) -> None:
        """Attack with a radius of zero."""
        moved = self.run(self.batch, Budget(self.norm, Fraction(0)))
        for images in (moved.images, moved.boldest):
            expect(images is None or torch.equal(images, self.batch.images), "it moves images by a radius of 0")

    def costs_what_it_says(self) -> None:
        """Compare the number of gradients used with the number announced."""
        asked, announced, cost = self.usual[1], self.attack.gradients_per_image(INFO.classes), self.attack.cost
        line = f"it asks for {asked:g} gradients an image and gradients_per_image says {announced}"
        if "at most" in cost:
            expect(asked <= announced, line)
        elif "about" not in cost and "roughly" not in cost:
            expect(asked == announced, line)

    def is_bold(self) -> None:
        """Compare the certainty of the boldest image with that of the answer, if both are wrong."""
        moved, _ = self.usual
        if moved.boldest is None:
            return
        labels, rejector = self.batch.labels, Headed()
        with torch.no_grad():
            answer, boldest = cast(Outputs, self.network(moved.images)), cast(Outputs, self.network(moved.boldest))
        wrong = answer.logits.argmax(1) != labels
        is_wrong = (boldest.logits.argmax(1) != labels)[wrong].all()
        expect(is_wrong, "an answer is wrong and its boldest image is not: boldest is the surest wrong image seen")
        gap = (rejector.certainty(answer) - rejector.certainty(boldest))[wrong]
        expect((gap <= 1e-6).all(), "an answer is wrong and surer than its boldest image")

    def fails_on_nan(self) -> None:
        """Attack a network that answers NaN."""
        measured = MeasuredNetwork(_Nan(), lambda split: self.batch, torch.device("cpu"), "fp32")
        victim = Victim(measured.network, Headed(), CALIBRATION)
        try:
            run_attack(measured, victim, self.attack, "checked", self.budget, 0, lambda count: None)
        except CellError:
            return
        expect(False, "a network that says NaN of every image looks robust to it")
