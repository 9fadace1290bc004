import math
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from cw_runs import BOTH, SHORT, Linear, digits, distances, fast_on_small_networks, flags, linear, run
from rrbench.compute.instrumented import Instrumented
from rrbench.errors import CellError
from rrbench.names import parse, resolve
from rrbench.protocols import Batch, Norm, Rejector
from rrbench_attacks.cw import CarliniWagner, CwL2, CwLinf, Record
from rrbench_attacks.foolbox_attack import load
from small_rejectors import Confidence, Constant, Energy, Rectified


@pytest.fixture(autouse=True, scope="module")
def _fast() -> Iterator[None]:
    with fast_on_small_networks():
        yield


def test_l2_with_the_papers_constants_is_within_two_percent_of_the_minimum() -> None:
    network, batch = linear()
    moved = run(CwL2(), network, batch)
    ratio = distances(moved.images, batch, "l2") / network.nearest(batch, "l2")
    assert flags(moved).all()
    assert ratio.min() > 1 - 1e-4
    assert ratio.max() < 1.02


def test_linf_with_the_plain_maximum_is_never_below_the_minimum_and_near_it_at_the_median() -> None:
    network, batch = linear()
    moved = run(CwLinf(), network, batch)
    ratio = distances(moved.images, batch, "linf") / network.nearest(batch, "linf")
    assert flags(moved).all()
    assert ratio.min() > 1 - 1e-4
    assert ratio.median() < 1.5


def test_linf_with_the_smooth_maximum_is_within_five_percent_of_the_minimum() -> None:
    network, batch = linear()
    moved = run(CwLinf(maximum="smooth", learning_rate=0.01, steps=200, searches=7), network, batch)
    ratio = distances(moved.images, batch, "linf") / network.nearest(batch, "linf")
    assert flags(moved).all()
    assert ratio.min() > 1 - 1e-4
    assert ratio.max() < 1.05


@pytest.mark.parametrize(("attack", "slack"), [(CwL2(), 1.02), (CwLinf(maximum="smooth"), 1.05)])
def test_the_adaptive_goal_ends_where_the_wrong_answer_is_sure_enough(attack: CarliniWagner, slack: float) -> None:
    network, batch = linear()
    (norm,) = attack.norms
    attack = replace(attack, goal="adaptive", c0=0.1, learning_rate=0.01, steps=200, searches=6)
    moved = run(attack, network, batch, Confidence(), median=0.8)
    # Confidence 0.8 is a lead of log 4.
    nearest = network.nearest(batch, "linf" if norm == "linf" else "l2", lead=math.log(4))
    ratio = distances(moved.images, batch, "linf" if norm == "linf" else "l2") / nearest
    assert flags(moved).all()
    assert ratio.min() > 1 - 1e-4
    assert ratio.max() < slack


def test_it_agrees_with_foolbox_on_a_trained_network() -> None:
    foolbox, (network, batch) = load(), digits()

    class Logits(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            logits: Tensor = network(images).logits
            return logits

    theirs = foolbox.attacks.L2CarliniWagnerAttack(
        binary_search_steps=5, steps=100, stepsize=0.05, initial_const=1.0, confidence=0
    )
    model = foolbox.PyTorchModel(Logits().eval(), bounds=(0, 1))
    _, found, success = theirs(model, batch.images, batch.labels, epsilons=None)
    for stop in ("image", "batch"):
        moved = run(CwL2(c0=1.0, learning_rate=0.05, steps=100, searches=5, stop=stop), network, batch)
        both = flags(moved) & success
        assert abs(int(flags(moved).sum()) - int(success.sum())) <= 1
        ours, reference = (distances(images, batch, "l2")[both].mean() for images in (moved.images, found))
        assert float(ours) == pytest.approx(float(reference), rel=0.05)


@pytest.mark.parametrize(
    ("attack", "rejector"),
    [
        (CwL2("adaptive"), Rectified()),
        (CwL2("adaptive", start="phase1"), Energy()),
        (CwLinf("adaptive", maximum="smooth"), Energy()),
        (CwLinf("adaptive", start="phase1"), Rectified()),
    ],
)
def test_adaptive_success_means_wrong_and_surer_than_the_median(attack: CarliniWagner, rejector: Rejector) -> None:
    network, batch = digits(40)
    attack = replace(attack, **SHORT)
    median = float(rejector.certainty(network(batch.images)).quantile(0.1))  # low enough to be reached in few steps
    moved = run(attack, network, batch, rejector, median)
    outputs, reached = network(moved.images), flags(moved)
    fooled = (outputs.logits.argmax(1) != batch.labels) & (rejector.certainty(outputs) > median)
    assert reached.float().mean() > 0.7
    assert fooled[reached].float().mean() > 0.97  # a second pass may round the other way at the very edge
    assert moved.boldest is not None
    assert (rejector.certainty(network(moved.boldest)) > median - 1e-4)[reached].all()
    norm: Norm = "l2" if "l2" in attack.norms else "linf"
    normal = run(replace(attack, goal="normal"), network, batch)
    near, far = (distances(answer.images, batch, norm)[reached].mean() for answer in (normal, moved))
    assert near < far


@pytest.mark.parametrize("attack", [CwL2(), CwLinf(), CwLinf("adaptive", start="phase1", maximum="smooth")])
def test_the_batch_does_not_change_what_an_image_gets(attack: CarliniWagner) -> None:
    network, batch = digits(24)
    attack = replace(attack, **SHORT)
    whole = run(attack, network, batch, Energy(), 5.0)
    parts = [run(attack, network, batch.at(piece), Energy(), 5.0) for piece in (slice(0, 7), slice(7, 24))]
    assert torch.equal(torch.cat([flags(part) for part in parts]), flags(whole))
    torch.testing.assert_close(torch.cat([part.images for part in parts]), whole.images, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    "attack",
    [
        CwL2(c0=1, learning_rate=0.03, steps=80, searches=3),
        CwL2("adaptive", c0=10, learning_rate=0.03, steps=80, searches=2),
    ],
)
def test_a_search_in_bf16_ends_at_the_goal_in_float32_and_hardly_farther(attack: CarliniWagner) -> None:
    network, batch = digits(30)
    seen = Instrumented(network, "bf16", exact=network)
    exact, fast = (run(attack, victim, batch, median=0.6) for victim in (network, seen))
    outputs = network(fast.images)
    certainty = Confidence().certainty(outputs)
    there = (outputs.logits.argmax(1) != batch.labels) & ((certainty > 0.6) | (attack.goal == "normal"))
    assert torch.equal(there, flags(fast))
    assert torch.equal(flags(fast), flags(exact))
    one, other = (distances(moved.images, batch, "l2")[flags(exact)].mean() for moved in (exact, fast))
    assert float(other) == pytest.approx(float(one), rel=0.01)
    assert flags(fast).sum() > 20


def test_images_that_stall_leave_the_batch_and_the_released_rule_stops_all_at_once() -> None:
    shared = CwL2(c0=1.0, learning_rate=0.05, steps=100, searches=3)
    for attack, is_shrinking in ((shared, True), (replace(shared, stop="batch"), False)):
        network, batch = linear()
        run(attack, network, batch)
        assert (min(network.sizes) < batch.size) == is_shrinking
        assert sum(network.sizes) < batch.size * attack.gradients_per_image(2)


@pytest.mark.parametrize("attack", BOTH)
def test_a_search_that_fails_answers_with_the_start(attack: CarliniWagner) -> None:
    network, batch = linear(6)
    attack = replace(attack, goal="adaptive", **SHORT)
    moved = run(attack, network, batch, Confidence(), median=1.0)
    assert not flags(moved).any()
    assert torch.equal(moved.images, batch.images)
    second = run(replace(attack, start="phase1"), network, batch, Confidence(), median=1.0)
    assert not flags(second).any()
    assert torch.equal(second.images, run(replace(attack, goal="normal"), network, batch).images)
    assert not torch.equal(second.images, batch.images)


@pytest.mark.parametrize("attack", BOTH)
def test_an_input_that_is_already_there_hardly_moves(attack: CarliniWagner) -> None:
    network, batch = linear(6)
    batch = batch._replace(labels=1 - batch.labels)
    moved = run(replace(attack, **SHORT), network, batch)
    assert flags(moved).all()
    assert (moved.images - batch.images).abs().max() < 2e-6


@pytest.mark.parametrize("attack", [*BOTH, CwLinf()])
def test_images_stay_in_range_and_the_boldest_is_wrong(attack: CarliniWagner) -> None:
    network, batch = digits(30)
    assert batch.images.min() == 0
    assert batch.images.max() == 1
    moved = run(replace(attack, **SHORT), network, batch)
    assert moved.boldest is not None
    for images in (moved.images, moved.boldest):
        assert images.min() >= 0
        assert images.max() <= 1
    answer, boldest = network(moved.images), network(moved.boldest)
    reached = flags(moved)
    assert (boldest.logits.argmax(1) != batch.labels)[reached].all()
    assert (Confidence().certainty(boldest) >= Confidence().certainty(answer) - 1e-6)[reached].all()


def test_only_the_adaptive_goal_looks_at_the_rejector() -> None:
    assert not CwL2().is_adaptive
    assert CwLinf("adaptive").is_adaptive
    assert CwL2().gradients_per_image(10) == CwL2("adaptive").gradients_per_image(10) == 9000
    assert CwL2("adaptive", start="phase1").gradients_per_image(10) == 18000
    assert CwL2(start="phase1").gradients_per_image(10) == 9000


def test_the_goal_can_be_named_in_brackets() -> None:
    choice = resolve("attack", parse("cw-linf(adaptive,steps=50)"), {"cw-linf": CwLinf}, {})
    assert CwLinf(**dict(choice.settings)) == CwLinf("adaptive", steps=50)  # type: ignore[arg-type]


def test_what_cannot_be_attacked_says_why() -> None:
    network, batch = linear(4)
    with pytest.raises(CellError, match=r"median certainty"):
        run(CwL2("adaptive"), network, batch)
    with pytest.raises(CellError, match=r"no gradient"):
        run(CwL2("adaptive"), network, batch, Constant(), 0.5)
    with pytest.raises(CellError, match=r"NaN or infinite scores on 4 attacked inputs"):
        run(CwL2(**SHORT), Linear(network.weights * math.nan), batch)


@pytest.mark.parametrize("settings", [{"c0": 0.0}, {"learning_rate": -1.0}, {"steps": 0}, {"searches": 0}])
def test_settings_without_meaning_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"above 0, and steps and searches at least 1"):
        CwL2(**settings)  # type: ignore[arg-type]


def test_the_boldest_image_is_wrong_by_more_than_the_doubt_of_a_lower_precision() -> None:
    batch = Batch(torch.zeros(3, 1, 2, 2), torch.zeros(3, dtype=torch.long), torch.arange(3))
    record = Record(batch, lambda outputs, labels: outputs.logits[:, 0], farthest=9.0, doubt=0.1)
    images, lead = torch.ones(3, 1, 2, 2), torch.tensor([0.2, -0.05, -0.15])
    record.see(torch.arange(3), images, lead < 0, lead, torch.full((3,), 0.7), torch.ones(3))
    assert record.boldness.tolist() == pytest.approx([-math.inf, -math.inf, 0.7])
    assert record.boldest.amax((1, 2, 3)).tolist() == [0, 0, 1]
