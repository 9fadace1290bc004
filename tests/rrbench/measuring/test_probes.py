"""What looks robust and is not gets a note; what ships, and what works in bf16 inside, gets none."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

import rrbench
from own_network import Featured, Linear, inputs
from rrbench import Outputs, zoo
from rrbench.compute.looking import with_looks
from rrbench.datasets.digits import Digits
from rrbench.files.checkpoints import load_weights, read_checkpoint
from rrbench.measuring import probes
from rrbench.measuring.measured_network import MeasuredNetwork
from rrbench.plugins.config import load_preset
from rrbench.plugins.registry import build, choose, expand, restore
from rrbench.protocols import Batch, NetworkSource, Rejector, Split
from tested_plugins import TESTED

pytestmark = pytest.mark.usefixtures("own_folder")

RANDOM = "the network is random: two passes over the same inputs differ"
BATCH = "the network looks at the batch: alone, or beside others, an image gets another answer"
OTHERWISE = "the network answers otherwise where gradients are asked for"
SLOPE = "the gradient of the {} is wrong: a small step does not do what it says"
INSIDE = (
    "the logits lie in [0, 1] as probabilities do: if they come from softmax or sigmoid, return what comes before it"
)
PROBABILITIES = "the logits are probabilities: return what comes before the softmax"
FLAT = "the certainty has a gradient of zero: an adaptive attack cannot follow it"
CHANCE = "{} of {} clean inputs are answered right, no more than chance: check labels and scale"
USES = "that it is measured on", "that fix its threshold"
ADAPTIVE = "adaptive(ce+rcon,steps=2,restarts=1)"


@pytest.fixture(scope="module", autouse=True)
def _all_passes(quick_probes: int) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(probes, "PASSES", quick_probes)
        yield


class Lying(torch.autograd.Function):
    """Is nothing but a wrong gradient."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return images.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (gradient,) = gradients
        return (gradient * ctx.factor if ctx.factor else torch.randn_like(gradient)), None


class Wrong(Linear):
    """Two classes told apart by one weight vector, and one thing wrong with them."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.passes = how, 0

    def forward(self, images: Tensor) -> Any:
        self.passes += 1
        plain: Callable[[Tensor], Tensor] = super().forward
        logits = plain(images)
        if self.how == "one in seven" and self.passes % 7 == 0:
            return logits + 0.1 * torch.randn_like(logits)
        return {
            "right": lambda: logits,
            "one in seven": lambda: logits,
            "looks": lambda: logits - logits.mean(0),
            "by place": lambda: logits + torch.randn(logits.shape, generator=torch.Generator().manual_seed(0)),
            "alone": lambda: logits if len(logits) > 1 else -logits,
            "fails alone": lambda: logits if len(logits) > 1 else logits[0],
            "otherwise": lambda: -logits if torch.is_grad_enabled() else logits,
            "turned": lambda: plain(Lying.apply(images, -1.0)),  # type: ignore[no-untyped-call]
            "noise": lambda: plain(Lying.apply(images, 0.0)),  # type: ignore[no-untyped-call]
            "faint": lambda: plain(Lying.apply(images, 0.01)),  # type: ignore[no-untyped-call]
            "half": lambda: logits + 3 * torch.stack([images[:, 0, 0, 0], images[:, 0, 1, 1]], 1).detach() * 5,
            "softmax": lambda: logits.softmax(1),
            "half softmax": lambda: logits.half().softmax(1).float(),
            "bf16 softmax": lambda: logits.bfloat16().softmax(1).float(),
            "clamped": lambda: (5 * logits).softmax(1).clamp(0.03, 0.97).sub(0.005),
            "sigmoid": lambda: (9 * logits + 0.5).sigmoid(),
            "log": lambda: logits.log_softmax(1),
            "features": lambda: (10 * images.flatten(1).detach(), logits),
        }[self.how]()


def note(network: nn.Module, rejector: Any, attack: str, **options: Any) -> str:
    budget = None if attack == "clean" else "linf:1/50"
    given = {"fit_data": inputs(100, seed=1)} | options
    rows = rrbench.evaluate(network, rejector, attack, inputs(), budget=budget, **given)
    (found,) = rows.note
    return str(found)


# Networks.


@pytest.mark.parametrize(
    ("how", "attack", "text"),
    [
        ("right", "pgd2", ""),
        ("one in seven", "clean", RANDOM),
        ("one in seven", "pgd2", RANDOM),
        ("looks", "clean", BATCH),
        ("by place", "clean", BATCH),
        ("alone", "clean", BATCH),
        ("fails alone", "clean", BATCH),
        ("otherwise", "pgd2", OTHERWISE),
        ("otherwise", "clean", ""),
        ("turned", "pgd2", SLOPE.format("logits")),
        ("turned", "clean", ""),
        ("noise", "pgd2", SLOPE.format("logits")),
        ("faint", "pgd2", SLOPE.format("logits")),
        ("half", "pgd2", f"{SLOPE.format('logits')}; {CHANCE.format(95, 200)}"),
        ("softmax", "clean", PROBABILITIES),
        ("half softmax", "clean", PROBABILITIES),
        ("bf16 softmax", "clean", PROBABILITIES),
        ("clamped", "clean", INSIDE),
        ("sigmoid", "clean", INSIDE),
        ("log", "clean", ""),
    ],
)
def test_a_network_that_only_looks_robust_is_noted(how: str, attack: str, text: str) -> None:
    assert note(Wrong(how), "confidence", attack) == text


@pytest.mark.parametrize("classes", [2, 10, 100])
@pytest.mark.parametrize("count", [2, 20, 500])
@pytest.mark.parametrize("size", [0.01, 0.1, 1.0, 10.0])
def test_random_logits_are_not_taken_for_probabilities(classes: int, count: int, size: float) -> None:
    logits = size * torch.randn(count, classes, generator=torch.Generator().manual_seed(0))
    untrained = 0.4 + logits.clamp(-0.2, 0.2)  # near to each other, and all in [0, 1]
    for each in (logits, untrained):
        assert not probes.are_probabilities(each)
        assert not probes.look_like_probabilities(each)


def on_both(outputs: Outputs) -> Tensor:
    return outputs.logits.amax(1) + outputs.features.sum(1)


@pytest.mark.parametrize(("rejector", "attack"), [(on_both, ADAPTIVE), (on_both, "pgd2"), ("confidence", ADAPTIVE)])
def test_features_without_a_gradient_are_noted_where_an_adaptive_attack_needs_them(rejector: Any, attack: str) -> None:
    is_noted = SLOPE.format("features") in note(Wrong("features"), rejector, attack)
    assert is_noted == (rejector is on_both and attack == ADAPTIVE)


# Rejectors.


class Counted:
    """A certainty that changes with every so many-th call."""

    def __init__(self, every: int) -> None:
        self.every, self.calls = every, 0

    def __call__(self, outputs: Outputs) -> Tensor:
        self.calls += 1
        return confident(outputs) + (0.01 * torch.rand(len(outputs.logits)) if self.calls % self.every == 0 else 0)


def confident(outputs: Outputs) -> Tensor:
    return outputs.logits.softmax(1).amax(1)


def rounded(outputs: Outputs) -> Tensor:
    return (10 * confident(outputs)).round() / 10


def rounded_with_a_slope(outputs: Outputs) -> Tensor:
    return confident(outputs) + (rounded(outputs) - confident(outputs)).detach()


def turned(outputs: Outputs) -> Tensor:
    return 2 * confident(outputs).detach() - confident(outputs)


def half(outputs: Outputs) -> Tensor:
    return confident(outputs) + outputs.features.sum(1).detach()


def otherwise(outputs: Outputs) -> Tensor:
    return confident(outputs) * (0.5 if torch.is_grad_enabled() else 1)


def sure(outputs: Outputs) -> Tensor:
    """Is 1 in float32 for every clean input, and as right as confidence."""
    return (1000 * outputs.logits).softmax(1).amax(1)


WRONG_SLOPE = SLOPE.format("certainty")
TIED = "the threshold 0.5 refuses no clean input: more than 5 % of the right ones that fix it share it"


@pytest.mark.parametrize(
    ("certainty", "text", "always"),
    [
        (confident, "", ""),
        (rounded, FLAT, TIED),
        (rounded_with_a_slope, WRONG_SLOPE, TIED),
        (turned, WRONG_SLOPE, ""),
        (half, WRONG_SLOPE, ""),
        (otherwise, "the certainty answers otherwise where gradients are asked for", ""),
    ],
)
def test_a_certainty_that_cannot_be_followed_is_noted_under_adaptive_attacks_alone(
    certainty: Callable[[Outputs], Tensor], text: str, always: str
) -> None:
    assert note(Featured(), certainty, ADAPTIVE) == "; ".join(filter(None, (text, always)))
    assert note(Featured(), certainty, "pgd2") == always


def test_a_certainty_that_is_random_now_and_then_is_noted_or_refused() -> None:
    line = "the certainty is random: asked twice for the same inputs it differs"
    assert note(Linear(), Counted(20), "clean") == line
    with pytest.raises(rrbench.UseError, match=r"depends on the batch: .* without chance"):
        note(Linear(), Counted(7), "clean")


# Data.


def test_a_threshold_fixed_on_what_is_measured_is_noted() -> None:
    images, labels = inputs()
    text = "the threshold was fixed on {} of the inputs that it is measured on"
    assert note(Linear(), "confidence", "clean", calibration_data=(images, labels)) == text.format(200)
    other, others = inputs(100, seed=3)
    mixed = torch.cat([other, images[:20]]), torch.cat([others, labels[:20]])
    assert note(Linear(), "confidence", "clean", calibration_data=mixed) == text.format(20)
    assert note(Linear(), "confidence", "clean", calibration_data=(other, others)) == ""
    # Named by the same ids, they are not counted for the deployed threshold, as on CIFAR-10.
    shared = Batch(images[:50], labels[:50], torch.arange(50))
    assert note(Linear(), "confidence", "clean", calibration_data=shared) == ""


def test_a_threshold_from_a_handful_of_inputs_is_noted() -> None:
    text = "the threshold was fixed on 19 inputs alone: too few to know what it keeps"
    for size, noted in ((19, text), (20, "")):
        assert note(Linear(), "confidence", "clean", calibration_data=inputs(size, seed=3)) == noted


DARK = "{} is above 0.0627, or 16 of 255: if they were bytes that do not end at 255, give floats in [0, 1]"


class Lines(nn.Module):
    """A linear network whose features are the pixels."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(weight.float()), nn.Parameter(bias.float())

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        pixels = images.flatten(1)
        return pixels, pixels @ self.weight.T + self.bias


FEW_APART = "the threshold was fixed on 19 inputs alone: too few to know what it keeps"


def digits_and_lines() -> tuple[Any, Any, nn.Module]:
    """Return 200 digits as whole numbers from 0 to 16, and a network that knows them if they are scaled to [0, 1]."""
    pixels, labels = load_digits().images[:200], load_digits().target[:200]
    fitted = LogisticRegression(max_iter=500).fit(pixels.reshape(200, 64) / 16, labels)
    weight, bias = torch.from_numpy(fitted.coef_), torch.from_numpy(fitted.intercept_)
    return pixels.astype(np.uint8), labels, Lines(weight, bias)


def test_images_that_are_all_dark_are_noted() -> None:
    pixels, labels, model = digits_and_lines()
    notes = {
        scale: rrbench.evaluate(model, "confidence", "clean", (images, labels)).note[0]
        for scale, images in (("bytes", pixels), ("16", pixels / 16), ("255", (255 * (pixels / 16)).astype(np.uint8)))
    }
    assert notes == {"bytes": DARK.format("no pixel"), "16": "", "255": ""}


def test_dark_images_that_fix_the_threshold_or_fit_the_rejector_are_noted() -> None:
    pixels, labels, model = digits_and_lines()
    tested, bright = (pixels[:80] / 16, labels[:80]), (pixels[80:] / 16, labels[80:])
    dark = pixels[80:], labels[80:]
    cases: tuple[tuple[str, dict[str, Any], str], ...] = (
        ("confidence", {"calibration_data": dark}, "no pixel of the inputs that fix the threshold"),
        ("knn", {"fit_data": dark}, "no pixel of the inputs of the fit"),
        ("confidence", {"calibration_data": bright}, ""),
        (
            "confidence",
            {"calibration_data": (dark[0][:20], dark[1][:20])},
            "no pixel of the inputs that fix the threshold",
        ),
        ("confidence", {"calibration_data": (dark[0][:19], dark[1][:19])}, FEW_APART),
        ("knn", {"fit_data": bright}, ""),
    )
    for rejector, given, what in cases:
        (found,) = rrbench.evaluate(model, rejector, "clean", tested, **given).note
        dark_or_few = DARK.format(what) if what.startswith("no pixel") else what
        assert found.partition("; the threshold")[0] == dark_or_few


def test_a_network_at_chance_is_noted_and_one_that_is_better_is_not() -> None:
    pixels, _, model = digits_and_lines()
    images = pixels / 16
    answers = model(torch.from_numpy(images).float())[1].argmax(1).numpy()
    none = f"{CHANCE.format(0, 200)}; no threshold: no clean input is right"
    for right, said in ((20, CHANCE.format(20, 200)), (21, ""), (0, none)):
        given = np.where(np.arange(200) < right, answers, (answers + 1) % 10)
        assert rrbench.evaluate(model, "confidence", "clean", (images, given)).note[0] == said
    few = np.append(answers[:1], (answers[1:19] + 1) % 10)
    found = rrbench.evaluate(model, "confidence", "clean", (images[:19], few)).note[0]
    assert "chance" not in found, "of so few inputs a good network may miss most"


def test_copies_among_the_inputs_are_noted_if_they_are_more_than_one_in_a_hundred() -> None:
    pixels, labels, model = digits_and_lines()
    for count, said in ((2, ""), (3, "3 of the inputs are copies of others: the intervals may be too narrow")):
        chosen = np.r_[np.arange(200 - count), np.zeros(count, int)]
        (found,) = rrbench.evaluate(model, "confidence", "clean", (pixels[chosen] / 16, labels[chosen])).note
        assert found == said


def test_calibration_inputs_with_ids_of_other_measured_images_are_noted() -> None:
    pixels, labels, model = digits_and_lines()
    images, known = torch.from_numpy(pixels / 16).float()[:, None], torch.from_numpy(labels)
    test = Batch(images[:100], known[:100], torch.arange(100))
    unlike = int((labels[100:140] != labels[60:100]).sum())
    assert unlike == 37, "three of forty digits are the same by chance"
    line = "37 calibration inputs have ids of measured inputs of other labels: they fix no threshold"
    for first, ids, said in (
        (100, torch.arange(60, 160), line),
        (100, torch.arange(100, 200), ""),
        (0, torch.arange(100), ""),  # the same images, as CIFAR's
    ):
        calibration = Batch(images[first:][:100], known[first:][:100], ids)
        (found,) = rrbench.evaluate(model, "confidence", "clean", test, calibration_data=calibration).note
        assert found == said


def test_calibration_inputs_that_are_the_measured_ones_in_another_form_are_not_noted() -> None:
    pixels, labels, model = digits_and_lines()
    images, known = torch.from_numpy(pixels / 16).float()[:100, None], torch.from_numpy(labels)[:100]
    clean = Batch(images, known, torch.arange(100))
    for corrupted in (images / 2 + 0.25, images.roll(1, 3)):
        test = clean._replace(images=corrupted)
        (found,) = rrbench.evaluate(model, "confidence", "clean", test, calibration_data=clean).note
        assert "ids" not in found


def test_classes_that_are_missing_are_noted_if_chance_would_not_leave_them_out() -> None:
    pixels, labels, model = digits_and_lines()
    sorted_ = np.argsort(labels, kind="stable")
    # Of 64 drawn inputs 9.99 of 10 classes are expected.
    for count, order, said in (
        (64, sorted_, "only 4 of the 10 classes are among the inputs"),
        (64, np.arange(200), ""),
        (20, sorted_, "only 1 of the 10 classes are among the inputs"),
        (19, sorted_, ""),  # too few to tell anything
    ):
        chosen = order[:count]
        (found,) = rrbench.evaluate(model, "confidence", "clean", (pixels[chosen] / 16, labels[chosen])).note
        assert found == said


def test_a_fit_on_what_is_measured_or_fixes_the_threshold_is_noted() -> None:
    images, labels = inputs()
    measured, fixing = (f"the rejector was fitted on {{}} of the inputs {use}" for use in USES)
    assert note(Featured(), "kd", "clean", fit_data=(images, labels)) == measured.format(200)
    apart, other = inputs(100, seed=3), inputs(100, seed=4)
    given = {"fit_data": apart, "calibration_data": apart}
    assert note(Featured(), "kd", "clean", **given) == fixing.format(100)
    assert note(Featured(), "confidence", "clean", **given) == "", "nothing is fitted"
    assert note(Featured(), "kd", "clean", fit_data=other, calibration_data=apart) == ""
    for count, noted in ((2, ""), (3, measured.format(3))):  # many data sets hold a few images twice
        mixed = torch.cat([other[0], images[:count]]), torch.cat([other[1], labels[:count]])
        assert note(Featured(), "kd", "clean", fit_data=mixed) == noted


def test_a_named_data_set_that_is_fitted_on_its_test_inputs_is_noted(digits: dict[Split, Batch]) -> None:
    measured, _ = measured_network_of(zoo.EMBEDDED / "digits-small-cnn-pgd-at-15epochs-seed0.safetensors", digits)
    mixed = digits | {"train": digits["test"]}
    leaking = MeasuredNetwork(measured.network, lambda split: mixed[split], measured.device, "fp32")
    rejector = build(Rejector, choose("rejector", "kd", load_preset("quick"), "digits"))
    victim = leaking.victim(rejector, needs_scale=False)
    text = f"the rejector was fitted on {digits['test'].size} of the inputs that it is measured on"
    assert leaking.doubts(victim.rejector) == [probes.Doubt(text)]


# The error of a gradient, by hand.


def test_the_error_of_a_gradient_is_what_a_hand_calculation_says() -> None:
    at = torch.tensor([[1.0, 2.0], [3.0, -1.0], [0.5, 0.5]], dtype=torch.float64)
    errors, is_flat = probes.slope_errors(lambda x: x.square().sum(1), at, 0.04, 0.1)
    assert errors.tolist() == pytest.approx([0, 0, 0], abs=1e-9)  # both sides of a square cancel
    assert not is_flat.any()
    errors, _ = probes.slope_errors(lambda x: 2 * x.sum(1).detach() - x.sum(1), at, 0.04, 0.1)
    assert errors.tolist() == pytest.approx([2, 2, 2])  # said 1, done -1
    errors, _ = probes.slope_errors(lambda x: x.sum(1) + 3 * x.sum(1).detach(), at, 0.04, 0.1)
    assert errors.tolist() == pytest.approx([0.75] * 3)  # said 1, done 4
    errors, is_flat = probes.slope_errors(lambda x: 0 * x.sum(1) + x.sum(1).round(), at, 0.04, 0.1)
    assert is_flat.all()


# What ships.


def shipped() -> dict[str, Path]:
    return {entry.file: zoo.EMBEDDED / entry.file for entry in zoo.entries(zoo.EMBEDDED)}


@pytest.fixture(scope="module")
def digits() -> dict[Split, Batch]:
    splits: tuple[Split, ...] = ("train", "calibration", "test")
    return {split: Digits().load(split) for split in splits}


def measured_network_of(path: Path, digits: dict[Split, Batch]) -> tuple[MeasuredNetwork, str]:
    checkpoint = read_checkpoint(path)
    trained = checkpoint.facts["training_key"]
    own = build(Rejector, choose("rejector", trained or "confidence", load_preset("quick"), "digits"))
    network = build(NetworkSource, restore("network", checkpoint.facts["network"])).build(Digits().info, own)
    load_weights(network, checkpoint)
    return MeasuredNetwork(network, lambda split: digits[split], torch.device("cpu"), "fp32"), trained


@pytest.mark.parametrize("file", shipped())
def test_what_ships_raises_no_doubt(file: str, digits: dict[Split, Batch]) -> None:
    measured, trained = measured_network_of(shipped()[file], digits)
    assert measured.doubts() == []
    names = [name for name in TESTED["rejector"] if not trained and "@" not in expand("rejector", name)]
    looked = 0
    for text in [trained] if trained else [expand("rejector", name) for name in names]:
        rejector = build(Rejector, choose("rejector", text, load_preset("quick"), "digits"))
        if rejector.has_training() and not trained:
            continue
        looking = MeasuredNetwork(with_looks(measured.network, rejector), measured.load, measured.device, "fp32")
        asked = looking if rejector.has_look() else measured
        victim = asked.victim(rejector, needs_scale=False)
        assert asked.doubts(victim.rejector) == [], text
        looked += 1
    assert looked == 1 if trained else looked > 8


@pytest.mark.parametrize("file", shipped())
def test_probabilities_of_what_ships_are_told_from_its_logits(file: str, digits: dict[Split, Batch]) -> None:
    measured, _ = measured_network_of(shipped()[file], digits)
    logits = measured.outputs("test").logits
    for kind in (torch.float32, torch.float16, torch.bfloat16):
        assert probes.are_probabilities(logits.to(kind).softmax(1).float())
    for each in (logits.sigmoid(), logits.softmax(1).clamp(0.01, 0.99), logits.softmax(1) + 0.005):
        assert probes.look_like_probabilities(each)
    for each in (logits, logits.log_softmax(1), logits / 10, logits / 100):
        assert not probes.are_probabilities(each)
        assert not probes.look_like_probabilities(each)


class Short(nn.Module):
    """Works in bf16 inside."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Outputs:
        with torch.autocast("cpu", torch.bfloat16):
            outputs = self.network(images)
        return Outputs(*(part.float() for part in outputs))


@pytest.mark.parametrize("file", [name for name in shipped() if "pgd-at-" in name or "trades+rr" in name])
def test_a_network_that_works_in_bf16_raises_no_doubt(file: str, digits: dict[Split, Batch]) -> None:
    measured, _ = measured_network_of(shipped()[file], digits)
    measured.network = Short(measured.network)
    assert measured.doubts() == []


def test_a_network_is_looked_at_once(digits: dict[Split, Batch], monkeypatch: pytest.MonkeyPatch) -> None:
    measured, _ = measured_network_of(next(iter(shipped().values())), digits)
    answers = iter([[probes.Doubt("once")]])
    monkeypatch.setattr(probes, "of_network", lambda *given: next(answers))
    assert measured.doubts() == measured.doubts() == [probes.Doubt("once")]
