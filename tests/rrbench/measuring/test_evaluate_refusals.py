"""`rrbench.evaluate` used wrongly: one clear line each."""

import os
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor, nn

import rrbench
from own_network import SHAPE, Featured, Linear, first_feature, inputs, measure
from rrbench import Batch, Budget, Outputs, UseError
from rrbench.protocols import Draws, Moved, Victim
from rrbench_attacks.pgd import Pgd
from rrbench_baselines.confidence import Confidence

pytestmark = pytest.mark.usefixtures("own_folder")


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(UseError) as caught:
        call()
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) >= 15
    return str(caught.value)


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
        (with_labels(lambda labels: labels[:, None]), "labels must be int64 of shape (N,)"),
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


class Fitting(Confidence):
    """Is fitted, in a way that cannot be stored as it is."""

    how = ""

    def fit(self, clean: Outputs, labels: Tensor) -> None:
        mean = clean.logits.mean(0)
        self.fitted = {"mean": mean.to_sparse() if self.how == "sparse" else mean, "same": mean}

    def certainty(self, outputs: Outputs) -> Tensor:
        return (outputs.logits - self.fitted["same"]).amax(1)


class Threshold(Confidence):
    """Brings a threshold that is none."""


@pytest.mark.parametrize("threshold", [float("nan"), float("inf"), "0.5", True])
def test_a_threshold_that_is_no_number_is_refused(threshold: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Threshold, "own_threshold", threshold)
    line = refusal(lambda: rrbench.evaluate(Linear(), Threshold(), "clean", inputs(20)))
    assert line == f"own_threshold of Threshold is {threshold!r}: write float(...), finite, or None"


class Learnt(Fitting):
    """Learns its threshold, and computes a part once for all inputs of a call."""

    @property
    def own_threshold(self) -> float:  # type: ignore[override] # a class variable in the protocol
        return float(self.fitted["same"].mean())

    @cached_property
    def twice(self) -> float:
        return 2 * self.tau

    def certainty(self, outputs: Outputs) -> Tensor:
        return super().certainty(outputs) * self.twice


def test_a_threshold_may_be_learnt_and_a_part_computed_once() -> None:
    assert measure(Linear(), Learnt(), "pgd2", inputs(20), fit_data=inputs(30), budget="linf:1/50").status == "ok"


class Building(Linear):
    """Makes some of its parts when it answers for the first time, and remembers what it saw."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.hooks, self.is_built = how, dict[str, Tensor](), False

    def forward(self, images: Tensor) -> Tensor:
        answer: Tensor = super().forward(images)
        if not self.is_built and self.how == "buffer":
            self.register_buffer("mask", torch.ones(1))
        elif not self.is_built and self.how == "module":
            self.last = nn.Identity()
        elif not self.is_built and self.how == "hook":
            self.register_forward_hook(lambda *_: None)
        elif self.how == "dict":
            self.hooks["answer"] = answer
        self.is_built = True
        return answer


@pytest.mark.parametrize("how", ["buffer", "module", "hook", "dict"])
def test_a_network_may_finish_building_itself_at_its_first_answer(how: str) -> None:
    network = Building(how)
    rows = [measure(each, "confidence", "pgd2", inputs(20), budget="linf:1/50") for each in (network, Linear())]
    assert [row.status for row in rows] == ["ok", "ok"]
    assert rows[0].acc_all == rows[1].acc_all
    assert network.is_built


def test_options_for_trained_networks_go_with_a_request_that_has_some() -> None:
    frame = rrbench.run("confidence", "clean", network=["small-cnn", Digits()], zoo=True, limit=20, device="cpu")
    assert set(frame.trained_as) == {"pgd-at", "Digits"}


class Digits(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        return images.flatten(1)[:, :10]


def test_what_plugins_set_for_the_whole_process_is_put_back(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()

    def wanders(outputs: Outputs) -> Tensor:
        os.chdir(elsewhere)
        torch.set_default_dtype(torch.float64)
        return outputs.logits.amax(1)

    class Switching(Pgd):
        def __call__(self, victim: Victim, batch: Batch, budget: Budget, draws: Draws) -> Moved:
            found = super().__call__(victim, batch, budget, draws)
            torch.set_grad_enabled(mode=False)
            torch.use_deterministic_algorithms(mode=True)
            return found

    here = Path.cwd()
    rrbench.evaluate(Linear(), wanders, Switching(steps=2), inputs(20), budget="linf:1/50", out="mine")
    assert Path.cwd() == here
    assert sorted(path.name for path in Path("mine").iterdir()) == sorted(
        ["attacks", "cells", "clean", "data", "fitted", "locks", "manifest.json", "rows.csv", "scores"]
    )
    assert not list(elsewhere.iterdir())
    assert torch.is_grad_enabled()
    assert torch.get_default_dtype() == torch.float32
    assert not torch.are_deterministic_algorithms_enabled()


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


def test_a_fit_may_give_one_tensor_two_names_and_a_sparse_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured() -> Any:
        return measure(Linear(), Fitting(), "clean", inputs(20), fit_data=inputs(30))

    assert measured().status == "ok"
    monkeypatch.setattr(Fitting, "how", "sparse")
    line = refusal(measured)
    assert line == "fit of Fitting writes a sparse tensor into self.fitted['mean']: write value.to_dense()"


def test_a_row_without_a_threshold_says_why() -> None:
    images, darker = inputs(20)[0], inputs(20)[0] / 2
    right, other = (Linear()(each).argmax(1) for each in (images, darker))
    none = measure(Linear(), "confidence", "clean", (images, 1 - right))
    apart = measure(Linear(), "confidence", "clean", (images, right), calibration_data=(darker, 1 - other))
    assert none.note == "no threshold: no clean input is right"
    assert apart.note == "no threshold: no calibration input is right"
    assert pd.isna([none.deploy_joint, apart.deploy_joint]).all()


def test_a_network_of_torch_jit_is_measured_as_the_one_it_was_made_of() -> None:
    plain = nn.Sequential(nn.Flatten(), nn.Linear(16, 2)).eval()
    models = (plain, torch.jit.script(plain), torch.jit.trace(plain, inputs(2)[0]))
    rows = [measure(model, "confidence", "pgd2", inputs(20), budget="linf:1/50") for model in models]
    assert len({(row.status, row.acc_all, row.acc_tpr95) for row in rows}) == 1


def test_weights_that_are_not_made_yet_are_refused_in_one_line() -> None:
    network = nn.Sequential(nn.Flatten(), nn.LazyLinear(2)).eval()
    line = refusal(lambda: rrbench.evaluate(network, "confidence", "clean", inputs(20)))
    assert line.startswith("the network has weights that are not made yet")
    network(inputs(2)[0])
    assert measure(network, "confidence", "clean", inputs(20)).status == "ok"
