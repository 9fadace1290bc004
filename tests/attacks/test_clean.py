from fractions import Fraction

import torch

from rrbench.compute.draws import HashedDraws
from rrbench.protocols import Batch, Budget, Outputs, Victim
from rrbench_attacks.clean import Clean
from rrbench_baselines.confidence import Confidence


def test_the_images_come_back_as_they_are_and_the_network_is_not_asked(patterns: Batch) -> None:
    def network(images: torch.Tensor) -> Outputs:
        raise AssertionError("asked")

    for budget in (Budget("linf", Fraction(0)), Budget("l2", Fraction(1))):
        moved = Clean()(Victim(network, Confidence()), patterns, budget, HashedDraws(0))
        assert torch.equal(moved.images, patterns.images)
        assert moved.boldest is None


def test_it_has_no_norm_no_budget_and_no_cost() -> None:
    assert not Clean().norms
    assert not Clean.needs_budget
    assert not Clean().is_adaptive
    assert Clean().gradients_per_image(10) == 0
