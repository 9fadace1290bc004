"""The contract of an attack, for every one that is installed: an outsider's plugin is taken up by itself."""

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import cache
from typing import Any, NamedTuple, cast, get_args

import pytest
import torch
from torch import Tensor, nn

from rrbench.devices import Instrumented
from rrbench.draws import HashedDraws
from rrbench.errors import CellError
from rrbench.evaluation import Subject, check_budget, run_attack
from rrbench.names import settings_of
from rrbench.protocols import Attack, Batch, Budget, Calibration, Ensemble, Moved, Norm, Outputs, Rejector, Victim
from rrbench.registry import is_ours, table
from rrbench_baselines.rr import RR

pytestmark = pytest.mark.usefixtures("one_thread")

# An ensemble has nothing to answer without its members: tests/attacks/test_worst_case.py.
ATTACKS = {
    name: kind
    for name, kind in cast(Mapping[str, type[Attack]], table("attack").classes).items()
    if not issubclass(kind, Ensemble)
}

# Settings that make an attack small, wherever it has them; a few attacks need a value of their own.
SMALL = {"steps": 2, "restarts": 2, "searches": 2, "queries": 10, "eta": (0.1, 1.0)}
EXAMPLES: dict[str, list[dict[str, Any]]] = {
    "foolbox": [{"name": "LinfPGD(steps:2)"}, {"name": "L2PGD(steps:2)"}],
}
RADII: dict[str, Fraction] = {"linf": Fraction(1, 20), "l2": Fraction(2, 5)}
CALIBRATION = Calibration(threshold=0.3, median=0.4, scale=0.1)
SIZE, CLASSES = 10, 4


class Case(NamedTuple):
    """An attack by name, with one choice of its settings, in one norm."""

    name: str
    settings: tuple[tuple[str, Any], ...]
    norm: Norm

    @property
    def attack(self) -> Attack:
        kind = ATTACKS[self.name]
        small = {key: value for key, value in SMALL.items() if key in settings_of(kind)}
        return kind(**small | dict(self.settings))

    @property
    def budget(self) -> Budget:
        """What the harness would give this attack."""
        if self.attack.needs_budget:
            return Budget(self.norm, RADII[self.norm])
        return Budget(self.norm, None if self.attack.norms else Fraction(0))


SEEKS_NO_WRONG = {"over-reject"}  # its goal is a right answer that is refused


def cases(wanted: Callable[[Case], bool] = lambda case: True) -> list[Any]:
    found = []
    for name, kind in ATTACKS.items():
        setting, values = kind.expand_over or ("", ())
        for settings in EXAMPLES.get(name) or [{setting: value} for value in values] or [{}]:
            for norm in get_args(Norm):
                case = Case(name, tuple(settings.items()), norm)
                if norm in (case.attack.norms or ("linf",)) and wanted(case):
                    label = "-".join([name, *map(str, settings.values()), norm])
                    found.append(pytest.param(case, id=label))
    return found


EVERY = pytest.mark.parametrize("case", cases())


@pytest.fixture(scope="module")
def batch(patterns: Batch) -> Batch:
    return patterns.at(slice(0, SIZE))


@pytest.fixture(scope="module")
def network(build_network: Callable[[Rejector], nn.Module]) -> nn.Module:
    network = build_network(RR())
    for parameter in list(network.parameters())[::2]:
        parameter.requires_grad_(False)  # some do and some do not: an attack must not mix them up
    return network


@pytest.fixture(scope="module")
def victim(network: nn.Module) -> Victim:
    return Victim(network, RR(), CALIBRATION)


class Usual(NamedTuple):
    """What an attack answered, and how many gradients an image it asked for."""

    moved: Moved
    gradients: float


@pytest.fixture(scope="module")
def usual(victim: Victim, batch: Batch) -> Callable[[Case], Usual]:
    """Run an attack once for all the tests that look at its answer."""

    @cache
    def run_once(case: Case) -> Usual:
        assert isinstance(victim.network, nn.Module)
        counted = Instrumented(victim.network, "fp32")
        return Usual(run(case, victim._replace(network=counted), batch), counted.gradients / batch.size)

    return run_once


def run(case: Case, victim: Victim, batch: Batch, budget: Budget | None = None) -> Moved:
    return case.attack(victim, batch, budget or case.budget, HashedDraws(7))


@EVERY
def test_every_input_is_answered_in_budget_and_in_range(
    case: Case, usual: Callable[[Case], Usual], batch: Batch
) -> None:
    moved = usual(case).moved
    for images in (moved.images, moved.boldest):
        if images is not None:
            check_budget(images, batch.images, case.budget)  # to 1e-6
            assert images.dtype == batch.images.dtype
            assert not images.requires_grad
    assert (moved.reached is not None) == (case.budget.radius is None)


@EVERY
def test_the_same_draws_give_the_same_images_and_nothing_else_is_touched(
    case: Case, usual: Callable[[Case], Usual], network: nn.Module, victim: Victim, batch: Batch
) -> None:
    first = usual(case).moved.images
    mine = Batch(*(part.clone() for part in batch))
    weights = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    modes = [module.training for module in network.modules()]
    wanted = [parameter.requires_grad for parameter in network.parameters()]
    with torch.random.fork_rng():
        torch.manual_seed(123)  # which must not matter
        state = torch.get_rng_state()
        assert torch.equal(run(case, victim, mine).images, first)
        assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(after, before) for after, before in zip(mine, batch, strict=True))
    assert not mine.images.requires_grad
    assert [module.training for module in network.modules()] == modes
    assert [parameter.requires_grad for parameter in network.parameters()] == wanted
    assert all(parameter.grad is None for parameter in network.parameters())
    assert all(torch.equal(tensor, weights[name]) for name, tensor in network.state_dict().items())


@EVERY
def test_another_split_into_batches_gives_the_same_images(
    case: Case, usual: Callable[[Case], Usual], victim: Victim, batch: Batch
) -> None:
    whole = usual(case).moved.images
    split = torch.cat([run(case, victim, batch.at(piece)).images for piece in (slice(0, 1), slice(1, SIZE))])
    # Not bit for bit: rounding depends on the shape of a batch.
    assert ((split - whole).abs().flatten(1).amax(1) > 1e-5).sum() == 0


@pytest.mark.parametrize("case", cases(lambda case: case.budget.radius is not None))
def test_a_radius_of_zero_gives_the_clean_images_bit_for_bit(case: Case, victim: Victim, batch: Batch) -> None:
    moved = run(case, victim, batch, Budget(case.norm, Fraction(0)))
    for images in (moved.images, moved.boldest):
        assert images is None or torch.equal(images, batch.images)


@EVERY
def test_the_gradients_it_asks_for_are_those_it_announces(case: Case, usual: Callable[[Case], Usual]) -> None:
    asked, announced, cost = usual(case).gradients, case.attack.gradients_per_image(CLASSES), case.attack.cost
    if "at most" in cost:
        assert asked <= announced
    elif "about" not in cost and "roughly" not in cost:
        assert asked == announced


@pytest.mark.parametrize("case", cases(lambda case: case.attack.is_adaptive and case.name not in SEEKS_NO_WRONG))
def test_the_boldest_image_is_at_least_as_bold_as_the_answer(
    case: Case, usual: Callable[[Case], Usual], victim: Victim, batch: Batch
) -> None:
    moved = usual(case).moved
    assert moved.boldest is not None
    with torch.no_grad():
        answer, boldest = victim.network(moved.images), victim.network(moved.boldest)
    wrong = answer.logits.argmax(1) != batch.labels
    assert (boldest.logits.argmax(1) != batch.labels)[wrong].all()
    certainties = [victim.certainty(outputs, batch.labels)[wrong] for outputs in (answer, boldest)]
    assert (certainties[1] >= certainties[0] - 1e-6).all()


class Broken(nn.Module):
    """Says NaN of every image."""

    def forward(self, images: Tensor) -> Outputs:
        flat = images.flatten(1)
        return Outputs(flat, math.nan * flat[:, :CLASSES], math.nan * flat[:, :1])


@EVERY
def test_a_network_that_says_nan_fails_the_cell(case: Case, batch: Batch) -> None:
    subject = Subject(Broken(), lambda split: batch, torch.device("cpu"), "fp32")
    victim = Victim(subject.network, RR(), CALIBRATION)
    with pytest.raises(CellError):
        run_attack(subject, victim, case.attack, case.name, case.budget, 0, lambda count: None)


@pytest.mark.parametrize("name", [name for name in ATTACKS if is_ours("attack", name)])
def test_ours_say_what_they_do_and_what_they_cost(name: str) -> None:
    kind = ATTACKS[name]
    assert kind.maximises
    assert "gradients" in kind.cost or "steps" in kind.cost
    assert kind.paper or name in ("clean", "over-reject")  # these two are nobody's idea in particular
    assert kind.norms <= {"linf", "l2"}
    assert kind.__hash__ is not None  # frozen


def test_the_installed_plugin_is_among_them() -> None:
    assert {"clean", "pgd", "adaptive", "outside-corner"} <= set(ATTACKS)
