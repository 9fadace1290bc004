"""foolbox's attacks against a linear classifier, against foolbox itself, and against our PGD."""

import logging
import os
import random
import warnings
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from linear_network import RADII, problem
from rrbench.compute.draws import HashedDraws
from rrbench.compute.eval_mode import frozen
from rrbench.compute.instrumented import Instrumented
from rrbench.datasets.digits import Digits
from rrbench.errors import CellError, UseError
from rrbench.files.checkpoints import load_weights, read_checkpoint
from rrbench.names import parse, resolve
from rrbench.networks.small_cnn import SmallCnn
from rrbench.protocols import Batch, Budget, Moved, Norm, Rejector, Victim
from rrbench.zoo import EMBEDDED
from rrbench_attacks.autoattack import Logits
from rrbench_attacks.foolbox_attack import Foolbox, load
from rrbench_attacks.pgd import Pgd
from rrbench_baselines.confidence import Confidence

pytestmark = pytest.mark.usefixtures("one_thread")


def run(name: str, network: nn.Module, batch: Batch, budget: Budget, stream: int = 3) -> Moved:
    return Foolbox(name)(Victim(network, Confidence()), batch, budget, HashedDraws(stream))


def sizes(moved: Tensor, batch: Batch, norm: Norm) -> Tensor:
    delta = (moved - batch.images).flatten(1)
    return delta.abs().amax(1) if norm == "linf" else delta.square().sum(1).sqrt()


@pytest.mark.parametrize(
    ("name", "classes", "norm"),
    [
        ("LinfPGD", 2, "linf"),
        ("L2PGD(rel_stepsize:1/5)", 2, "l2"),
        ("LinfDeepFool", 3, "linf"),
        ("L2DeepFool", 5, "l2"),
    ],
)
def test_it_fools_where_the_boundary_is_within_the_budget_and_answers_everywhere(
    name: str, classes: int, norm: Norm
) -> None:
    network, batch, is_wrong = problem(classes)
    budget = Budget(norm, RADII[norm])
    distances = network.distances(batch.images, batch.labels, norm)
    is_near, is_far = (distances < 0.95 * budget.eps) & ~is_wrong, distances > budget.eps
    assert is_near.sum() > 10
    assert is_far.sum() > 10
    moved = run(name, network, batch, budget).images
    is_fooled = network(moved).logits.argmax(1) != batch.labels
    assert is_fooled[is_near].all()
    assert not is_fooled[is_far].any()
    moves = sizes(moved, batch, norm)
    assert float(moves.max()) <= budget.eps + 1e-6
    assert (moves[is_far] > 0.9 * budget.eps).all()


@pytest.mark.parametrize(("name", "norm"), [("LinfDeepFool", "linf"), ("L2DeepFool", "l2")])
def test_without_a_radius_the_answer_is_the_nearest_point(name: str, norm: Norm) -> None:
    network, batch, is_wrong = problem(5)
    moved = run(name, network, batch, Budget(norm, None))
    assert moved.reached is not None
    assert moved.reached.all()
    nearest = network.distances(batch.images, batch.labels, norm)[~is_wrong]
    found = sizes(moved.images, batch, norm)
    assert (found[~is_wrong] >= nearest - 1e-6).all()
    assert (found[~is_wrong] <= 1.03 * (nearest + 1e-4)).all()  # foolbox goes that far beyond the boundary
    assert torch.equal(moved.images[is_wrong], batch.images[is_wrong])


def test_an_attack_that_needs_a_radius_says_so() -> None:
    network, batch, _ = problem(3)
    with pytest.raises(CellError, match="LinfPGD failed: FixedEpsilonAttack"):
        run("LinfPGD", network, batch, Budget("linf", None))


def test_pgd_has_our_pgd_s_robust_accuracy() -> None:
    network = SmallCnn().build(Digits.info, Confidence())
    load_weights(network, read_checkpoint(EMBEDDED / "digits-small-cnn-pgd-at-15epochs-seed0.safetensors"))
    network.eval()
    batch, budget = Digits().load("test").at(slice(200)), Budget("linf", Fraction(3, 20))
    theirs = run("LinfPGD(steps:20,rel_stepsize:1/10)", network, batch, budget).images
    ours = Pgd(steps=20, step=Fraction(3, 200))(Victim(network, Confidence()), batch, budget, HashedDraws(3)).images
    correct = [int((network(images).logits.argmax(1) == batch.labels).sum()) for images in (theirs, ours)]
    assert abs(correct[0] - correct[1]) <= 2
    assert 100 < correct[0] < 190


class PlainDraws:
    """Draws as foolbox would: PyTorch's numbers from seed 5."""

    def uniform(self, ids: Tensor, shape: tuple[int, ...], restart: int) -> Tensor:
        return torch.rand(len(ids), *shape, generator=torch.Generator().manual_seed(5))

    def normal(self, ids: Tensor, shape: tuple[int, ...], restart: int) -> Tensor:
        return torch.randn(len(ids), *shape, generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize(
    ("name", "norm"),
    [("LinfPGD", "linf"), ("L2PGD", "l2"), ("LinfDeepFool", "linf"), ("L2CarliniWagner(steps:20)", "l2")],
)
def test_with_foolbox_s_random_numbers_it_gives_foolbox_s_images(
    build_network: Callable[[Rejector], nn.Module], patterns: Batch, name: str, norm: Norm
) -> None:
    network, batch = build_network(Confidence()), patterns.at(slice(40))
    budget, foolbox = Budget(norm, {"linf": Fraction(1, 20), "l2": Fraction(2, 5)}[norm]), load()
    attack = Foolbox(name)
    ours = attack(Victim(network, Confidence()), batch, budget, PlainDraws()).images
    with torch.random.fork_rng(), frozen(network):
        torch.manual_seed(5)
        model = foolbox.PyTorchModel(Logits(network), bounds=(0, 1), device="cpu")
        theirs = attack.build(norm)(model, batch.images, batch.labels, epsilons=budget.eps)[1]
    assert torch.allclose(ours, theirs, atol=1e-6)
    assert not torch.equal(ours, batch.images)


@pytest.mark.parametrize(
    ("name", "norm"),
    [
        ("LinfPGD(steps:5)", "linf"),
        ("L2PGD(steps:5)", "l2"),
        ("LinfRepeatedAdditiveUniformNoise(repeats:5)", "linf"),
        ("LinearSearchBlendedUniformNoise(directions:5,steps:5)", "l2"),
        ("SaltAndPepperNoise(steps:5)", "l2"),
    ],
)
def test_random_attacks_do_not_depend_on_the_batch(name: str, norm: Norm) -> None:
    network, batch, _ = problem(3, 20)
    budget = Budget(norm, RADII[norm])
    whole = run(name, network, batch, budget).images
    parts = [run(name, network, batch.at(piece), budget).images for piece in (slice(0, 1), slice(1, 9), slice(9, 20))]
    assert torch.allclose(torch.cat(parts), whole, atol=1e-5)
    assert not torch.equal(run(name, network, batch, budget, stream=4).images, whole)


def test_random_states_are_put_back_and_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    network, batch, _ = problem(3, 10)
    before, numpy_before, python_before = torch.get_rng_state(), np.random.get_state(), random.getstate()
    handlers = list(logging.root.handlers)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in ("LinfDeepFool", "LinfPGD(steps:2)", "HopSkipJump(steps:1,constraint:linf)"):
            run(name, network, batch, Budget("linf", RADII["linf"]))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(np.array_equal(now, then) for now, then in zip(np.random.get_state(), numpy_before, strict=True))
    assert random.getstate() == python_before
    assert logging.root.handlers == handlers
    assert capfd.readouterr() == ("", "")
    assert os.environ["GIT_PYTHON_REFRESH"] == "quiet"


def test_gradients_are_counted_and_announced() -> None:
    network, batch, _ = problem(3, 10)
    counted = Instrumented(network, "fp32")
    for name, expected in (("LinfPGD(steps:7)", 7), ("LinfFastGradient", 1)):
        counted.gradients = 0
        run(name, counted, batch, Budget("linf", RADII["linf"]))
        assert counted.gradients / batch.size == Foolbox(name).gradients_per_image(3) == expected
    assert Foolbox("LinfDeepFool(steps:5)").gradients_per_image(3) == 10
    assert Foolbox("L2CarliniWagner(steps:5,binary_search_steps:3)").gradients_per_image(3) == 15


def test_the_attack_decides_which_norms_there_are() -> None:
    assert Foolbox("LinfPGD").norms == {"linf"}
    assert Foolbox("L2DeepFoolAttack").norms == {"l2"}
    assert Foolbox("GaussianBlur").norms == {"linf", "l2"}
    assert Foolbox("HopSkipJump").norms == {"l2"}
    assert Foolbox("HopSkipJump(constraint:linf)").norms == {"linf"}


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("LinfDepFool", UseError, "unknown foolbox attack 'LinfDepFool'; near: LinfDeepFool"),
        ("LinfDeepFool(step:50)", UseError, "unknown argument of foolbox attack 'LinfDeepFool' 'step'; near: steps"),
        ("LinfDeepFool(steps:many)", UseError, "argument 'steps' cannot be 'many'; expected a whole number"),
        ("LinfDeepFool(loss:hinge)", UseError, "'loss' cannot be 'hinge'; expected one of logits, crossentropy"),
        ("LinfDeepFool(50)", UseError, r"write LinfDeepFool\(argument:value,...\)"),
        ("LinfDeepFool(steps:50", UseError, "cannot read"),
        ("Boundary(init_attack:LinfPGD)", UseError, "unknown argument of foolbox attack 'Boundary' 'init_attack'"),
        ("Boundary(tensorboard:here)", UseError, "unknown argument of foolbox attack 'Boundary' 'tensorboard'"),
        ("L1PGD", ValueError, "works in the L1 distance"),
        ("Spatial", ValueError, "no distance at all"),
        ("VirtualAdversarial", TypeError, "missing 1 required positional argument: 'steps'"),
    ],
)
def test_a_wrong_attack_or_argument_is_refused_when_the_plan_is_built(
    name: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Foolbox(name)


def test_arguments_are_brought_to_their_types() -> None:
    attack = Foolbox("LinfPGD(abs_stepsize:1/4,random_start:false,steps:3)").build("linf")
    assert (attack.abs_stepsize, attack.random_start, attack.steps) == (0.25, False, 3)
    assert Foolbox("LinfPGD(abs_stepsize:none)").build("linf").abs_stepsize is None
    assert Foolbox("LinfDeepFool(loss:crossentropy)").build("linf").loss == "crossentropy"


def test_the_name_survives_being_written_and_read() -> None:
    table = {"foolbox": Foolbox}
    choice = resolve("attack", parse("foolbox(LinfPGD(steps:5,random_start:false))"), table, {})
    assert str(choice) == "foolbox(LinfPGD(steps:5,random_start:false))"
    assert resolve("attack", parse(str(choice)), table, {}) == choice
    assert Foolbox(**dict(choice.settings)) == Foolbox("LinfPGD(steps:5,random_start:false)")  # type: ignore[arg-type]
    with pytest.raises(UseError, match="needs 'name'"):
        resolve("attack", parse("foolbox"), table, {})
