"""What an attack keeps does not go from one cell to another."""

from dataclasses import dataclass, field
from fractions import Fraction

import pytest
import torch
from torch import Tensor

import rrbench
from own_network import EPS, Linear, inputs, measure, refusal
from rrbench import Batch, Budget
from rrbench.protocols import Attack, Draws, Moved, Victim

pytestmark = pytest.mark.usefixtures("own_folder")
BUDGET = "linf:1/50"


@dataclass(frozen=True)
class Push(Attack):
    """Moves every pixel against the right answer by a share of the budget, as only a linear network allows."""

    maximises = "the wrong class of a linear network"
    share: float = 1.0

    def __call__(self, victim: Victim, batch: Batch, budget: Budget, draws: Draws) -> Moved:
        images = batch.images.clone().requires_grad_()
        with torch.enable_grad():
            logits = victim.network(images).logits
            gap = logits.gather(1, batch.labels[:, None])[:, 0] - logits.sum(1) / 2
            (slope,) = torch.autograd.grad(gap.sum(), images)
        return Moved(batch.images - self.share * budget.eps * slope.sign())

    def gradients_per_image(self, classes: int) -> int:
        return 1


# State.


@dataclass(frozen=True)
class Cached(Push):
    """Keeps its answers by the ids of the images, whatever the network or the budget."""

    cache: dict[int, Tensor] = field(default_factory=dict, repr=False, compare=False)

    def __call__(self, victim: Victim, batch: Batch, budget: Budget, draws: Draws) -> Moved:
        ids = batch.ids.tolist()
        if any(each not in self.cache for each in ids):
            self.cache.update(zip(ids, super().__call__(victim, batch, budget, draws).images, strict=True))
        return Moved(torch.stack([self.cache[each] for each in ids]))


def right_share(network: Linear, data: tuple[Tensor, Tensor], eps: float) -> float:
    """Compute by hand how many answers of a linear network are right after the best push."""
    fall = 2 * eps * float(network.weight.detach().abs().sum())
    return 100 * float((network.margins(*data) > fall).double().mean())


def test_what_an_attack_keeps_in_itself_does_not_go_from_one_cell_to_the_next() -> None:
    networks, attack, data = {"one": Linear(0), "other": Linear(1)}, Cached(), inputs()
    rows = rrbench.evaluate(networks, "confidence", attack, data, budget=["linf:1/200", BUDGET])
    assert len(rows) == 4
    for name, eps, found in zip(rows.trained_as, rows.eps, rows.acc_all, strict=True):
        assert found == pytest.approx(right_share(networks[name], data, float(Fraction(eps))))
    assert attack.cache == {}  # the user's own stays as it was


class Locked(Cached):
    """Holds something that cannot be copied, beside its cache."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "stream", torch.Generator())


def test_what_cannot_be_copied_does_not_keep_the_rest_from_being_copied() -> None:
    networks, data = {"one": Linear(0), "other": Linear(1)}, inputs()
    rows = rrbench.evaluate(networks, "confidence", Locked(), data, budget=BUDGET)
    assert list(rows.acc_all) == pytest.approx([right_share(networks[name], data, EPS) for name in rows.trained_as])


@dataclass(frozen=True)
class Shared(Push):
    """Keeps its answers in its class."""

    kept = {}  # type: ignore[var-annotated] # noqa: RUF012

    def __call__(self, victim: Victim, batch: Batch, budget: Budget, draws: Draws) -> Moved:
        if "images" not in self.kept:
            self.kept["images"] = super().__call__(victim, batch, budget, draws).images
        return Moved(self.kept["images"])


def test_what_an_attack_keeps_in_its_class_is_refused() -> None:
    networks = {"one": Linear(0), "other": Linear(1)}
    for _ in range(2):  # what the first cell left must not serve a later one
        line = refusal(lambda: rrbench.evaluate(networks, "confidence", Shared(), inputs(), budget=BUDGET))
        assert line.startswith("Shared changes Shared.kept, so rows would depend on what was attacked before")
    assert Shared.kept == {}


class Counting(Push):
    """Counts its calls in its class."""

    calls = [0]  # noqa: RUF012

    def __call__(self, victim: Victim, batch: Batch, budget: Budget, draws: Draws) -> Moved:
        self.calls[0] += 1
        return super().__call__(victim, batch, budget, draws)


def test_an_attack_may_count_its_calls_in_its_class() -> None:
    measure(Linear(), "confidence", Counting(), inputs(), budget=BUDGET)
    assert Counting.calls == [1]
