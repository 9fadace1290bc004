"""`rrbench.evaluate` used wrongly: one clear line each."""

from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor, nn

import rrbench
from own_network import SHAPE, Featured, Linear, first_feature, inputs, measure, refusal
from rrbench import Outputs, UseError
from rrbench_attacks.pgd import Pgd
from rrbench_baselines.confidence import Confidence

pytestmark = pytest.mark.usefixtures("own_folder")


def with_images(change: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    images, labels = inputs(20)
    return change(images), labels


def with_labels(change: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    images, labels = inputs(20)
    return images, change(labels)


def speck(value: float) -> Callable[[Tensor], Tensor]:
    def change(images: Tensor) -> Tensor:
        images[3, 0, 1, 1] = value
        return images

    return change


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (with_images(lambda images: images * 255), "images must lie in [0, 1]"),
        (with_images(lambda images: images - 0.5), "normalisation belongs inside the network"),
        (with_images(speck(float("nan"))), "NaN"),
        (with_images(speck(float("inf"))), "[0, 1]"),
        (with_images(lambda images: images.flatten(1)), "shape"),
        (with_images(lambda images: images.squeeze(1)), "shape"),
        (with_images(lambda images: (images * 255).int()), "float"),
        (with_images(lambda images: images[:7]), "7 images"),
        (with_images(lambda images: images.repeat(1, 3, 2, 2)), "(2, 3, 8, 8)"),
        (with_images(lambda images: images[:0]), "images"),
        ((torch.zeros(0, *SHAPE), torch.zeros(0, dtype=torch.long)), "no images"),
        (with_labels(lambda labels: labels + 1), "labels must lie in 0..1 but span 1..2"),
        (with_labels(lambda labels: labels - 1), "labels must lie in 0..1"),
        (with_labels(lambda labels: labels.float()), "labels must be int64"),
        (with_labels(lambda labels: labels[:, None].repeat(1, 2)), "labels must be int64 of shape (N,)"),
        (inputs(20)[0], "(images, labels)"),
        ((inputs(20)[0].tolist(), inputs(20)[1]), "a torch tensor or a NumPy array, not list"),
        ((inputs(20)[0], ["one", "two"]), "labels must be whole numbers"),
        (inputs(20)[0].numpy(), "(images, labels)"),
        (None, "(images, labels)"),
    ],
)
def test_bad_data_is_one_clear_line(data: Any, line: str) -> None:
    assert line in refusal(lambda: rrbench.evaluate(Linear(), "confidence", "clean", data))


def test_bad_data_is_named() -> None:
    bad = with_images(lambda images: images + 1)
    assert refusal(lambda: rrbench.evaluate(Linear(), "confidence", "clean", inputs(), fit_data=bad)).startswith(
        "fit_data: "
    )
    line = refusal(lambda: rrbench.evaluate(Linear(), "confidence", "clean", inputs(), calibration_data=bad))
    assert line.startswith("calibration_data: ")


def test_a_rejector_that_needs_features_says_so() -> None:
    line = refusal(lambda: rrbench.evaluate(Linear(), "kd", "clean", inputs(), fit_data=inputs()))
    assert "needs features, and this network gives none" in line


def test_a_rejector_that_needs_a_head_says_so() -> None:
    assert "needs head" in refusal(lambda: rrbench.evaluate(Linear(), "rr", "clean", inputs()))


def test_a_rejector_that_must_be_fitted_asks_for_data() -> None:
    network = Featured()
    assert "fit_data" in refusal(lambda: rrbench.evaluate(network, "kd", "clean", inputs()))


@pytest.mark.parametrize("rejector", [first_feature, "ebd"])
def test_an_adaptive_attack_on_a_score_that_is_no_probability_asks_for_data(
    rejector: str | Callable[[Outputs], Tensor],
) -> None:
    attack, budget = "adaptive(ce+rcon,steps=2)", "linf:1/20"
    assert "fit_data" in refusal(lambda: rrbench.evaluate(Linear(), rejector, attack, inputs(), budget=budget))
    assert measure(Linear(), rejector, attack, inputs(), budget=budget, fit_data=inputs()).status == "ok"


def test_an_adaptive_attack_on_a_score_without_gradient_says_so() -> None:
    def rank(outputs: Outputs) -> Tensor:
        return outputs.logits.argmax(1).double()

    attack, budget = "adaptive(ce+rcon,steps=2)", "linf:1/20"
    line = refusal(lambda: rrbench.evaluate(Linear(), rank, attack, inputs(), budget=budget, fit_data=inputs()))
    assert "no gradient" in line


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({}, "pgd2 needs a budget, such as linf:8/255"),
        ({"budget": "8/255"}, "linf:8/255"),
        ({"budget": "linf:x"}, "fraction"),
        ({"budget": "linf:-1/2"}, "negative"),
        ({"budget": "l1:1/2"}, "linf:8/255"),
        ({"budget": "linf:1/20", "precision": "fp8"}, "unknown precision"),
        ({"budget": "linf:1/20", "preset": "slow"}, "unknown preset"),
    ],
)
def test_a_wrong_option_is_one_clear_line(options: dict[str, Any], line: str) -> None:
    assert line in refusal(lambda: rrbench.evaluate(Linear(), "confidence", "pgd2", inputs(), **options))


def test_a_training_cannot_be_asked_of_a_trained_model() -> None:
    line = refusal(lambda: rrbench.evaluate(Linear(), "confidence@trades", "clean", inputs()))
    assert line == "'confidence@trades': @ names a training, and this model is trained already"


@pytest.mark.parametrize(
    ("rejector", "attack"),
    [("confidense", "clean"), ("confidence", "pgb10"), (3, "clean"), ("confidence", 3), ("confidence", Pgd)],
)
def test_an_unknown_rejector_or_attack_is_one_clear_line(rejector: Any, attack: Any) -> None:
    refusal(lambda: rrbench.evaluate(Linear(), rejector, attack, inputs(), budget="linf:1/20"))


def test_a_rejector_class_instead_of_an_instance_is_one_clear_line() -> None:
    refusal(lambda: rrbench.evaluate(Linear(), Confidence, "clean", inputs()))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "network",
    [
        lambda images: images,
        nn.Flatten(0),
        nn.Conv2d(1, 2, 1),
        nn.Linear(5, 2),
        nn.Sequential(nn.Flatten(), nn.Linear(3, 2)),
    ],
    ids=["function", "one dimension", "four dimensions", "wrong size", "wrong width"],
)
def test_what_is_no_network_for_these_images_is_one_clear_line(network: Any) -> None:
    refusal(lambda: rrbench.evaluate(network, "confidence", "clean", inputs()))


@pytest.mark.parametrize("whose", ["network", "certainty", "attack"])
def test_what_exits_is_one_clear_line_and_an_interrupt_is_none(whose: str, monkeypatch: pytest.MonkeyPatch) -> None:
    error: BaseException = SystemExit(3)

    def end(*given: object) -> Any:
        raise error

    network = Linear()
    if whose == "network":
        monkeypatch.setattr(network, "forward", end)
    if whose == "attack":
        monkeypatch.setattr(Pgd, "__call__", end)

    def call() -> object:
        return rrbench.evaluate(
            network, end if whose == "certainty" else "confidence", "pgd1", inputs(20), budget="linf:1/50"
        )

    who = "the network, the rejector or the attack" if whose == "network" else "a plugin"
    assert refusal(call) == f"{who} tried to end the process (SystemExit: 3): it should raise an error"
    error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        call()


def test_nan_logits_are_one_clear_line() -> None:
    network = Linear()
    with torch.no_grad():
        network.weight[3] = float("nan")
    assert "NaN" in refusal(lambda: rrbench.evaluate(network, "confidence", "clean", inputs()))


@pytest.mark.parametrize(
    ("rejector", "line"),
    [
        (lambda outputs: outputs.logits, "(8, 2) scores for 8 inputs"),
        (lambda outputs: outputs.logits[:, 0] * float("nan"), "NaN"),
        (lambda outputs: None, "score"),
    ],
    ids=["shape", "nan", "none"],
)
def test_a_function_that_gives_no_certainty_is_one_clear_line(rejector: Any, line: str) -> None:
    assert line in refusal(lambda: rrbench.evaluate(Linear(), rejector, "clean", inputs()))


@pytest.mark.parametrize("split", ["fit_data", "calibration_data"])
def test_images_of_another_shape_than_the_data_are_refused(split: str) -> None:
    images, labels = torch.rand(6, 1, 4, 4), torch.zeros(6, dtype=torch.long)
    network = nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
    more: dict[str, Any] = {split: (images[:, :, :2], labels)}
    with pytest.raises(UseError, match=f"the images of {split} are"):
        rrbench.evaluate(network, "confidence", "clean", (images, labels), **more)


class Swapped(Featured):
    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override] # more than its base
        features, logits = super().forward(images)
        return logits, features


def test_logits_before_features_are_one_line_that_names_the_model() -> None:
    models = {"good": Featured(), "bad": Swapped()}
    line = refusal(lambda: rrbench.evaluate(models, "confidence", "clean", inputs(20)))
    assert line.startswith("bad: the network seems to return (logits, features): the first has 2 columns")
    assert "the second 16; return (features, logits), or, if these are that, rrbench.Outputs" in line


class Failing(Linear):
    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def forward(self, images: Tensor) -> Tensor:
        raise self.error


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ZeroDivisionError("division by zero"), "ZeroDivisionError: division by zero"),
        (KeyError("head"), "KeyError: 'head'"),
        (NotImplementedError(), "NotImplementedError: NotImplementedError"),
        (AssertionError("wrong shape\nand more"), "AssertionError: wrong shape"),
    ],
)
def test_a_model_that_fails_in_any_way_is_one_line_that_names_it(error: Exception, said: str) -> None:
    models = {"good": Linear(), "bad": Failing(error)}
    line = refusal(lambda: rrbench.evaluate(models, "confidence", "pgd2", inputs(20), budget="linf:1/50"))
    assert line == f"bad: the network fails on images of shape {(2, *SHAPE)}: {said}"
    line = refusal(lambda: rrbench.evaluate(models["bad"], "confidence", "pgd2", inputs(20), budget="linf:1/50"))
    assert line == f"the network fails on images of shape {(2, *SHAPE)}: {said}"


@pytest.mark.parametrize("name", ["", " ", "two\nlines", "a\ttab", "\x1b[31mred"])
def test_a_name_that_no_line_can_show_is_refused(name: str) -> None:
    for call in (
        lambda: rrbench.evaluate({name: Linear()}, "confidence", "clean", inputs(20)),
        lambda: rrbench.evaluate(Linear(), {name: first_feature}, "clean", inputs(20)),
        lambda: rrbench.evaluate(Linear(), "confidence", {name: Pgd(steps=1)}, inputs(20), budget="linf:1/50"),
        lambda: rrbench.evaluate(Linear(), "confidence", "clean", {name: inputs(20)}),
    ):
        assert refusal(call) == f"{name!r} is no name: write one line of letters that can be seen"


def test_a_name_for_what_has_one_is_refused() -> None:
    line = refusal(lambda: rrbench.evaluate(Linear(), {"mine": "confidence"}, "clean", inputs(20)))
    assert line == "'confidence' has its own name: leave out 'mine', and give it in a list"


@pytest.mark.parametrize("out", ["", "  "])
def test_an_empty_name_of_the_work_folder_does_not_mean_the_current_one(out: str) -> None:
    assert (
        refusal(lambda: measure(Linear(), "confidence", "clean", inputs(20), out=out)) == "out is empty: give a folder"
    )


def test_every_fifth_input_of_one_s_own_is_refused_where_no_others_fix_thresholds() -> None:
    def run(every: int) -> pd.DataFrame:
        return rrbench.run("confidence", "clean", dataset=inputs(60), network=Linear(), every=every)

    assert refusal(lambda: run(10)).startswith("--every 10 leaves no inputs of own data to fix thresholds")
    assert run(9).deploy_joint.notna().all()
