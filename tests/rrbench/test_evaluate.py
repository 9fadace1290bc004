"""`rrbench.evaluate` on a user's own network, against hand computations."""

import json
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

import rrbench
from rrbench import Budget, Outputs, UseError
from rrbench.rows import COLUMNS
from rrbench_attacks.pgd import Pgd
from rrbench_baselines.confidence import Confidence
from rrbench_baselines.kd import Kd

SHAPE = (1, 4, 4)
EPS = 0.02


class Linear(nn.Module):
    """Two classes told apart by one weight vector; logits only."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.weight = nn.Parameter(torch.randn(16, generator=generator))

    def forward(self, images: Tensor) -> Tensor:
        score = (images.flatten(1) - 0.5) @ self.weight
        return torch.stack([score, -score], 1)

    def margins(self, images: Tensor, labels: Tensor) -> Tensor:
        """Return how far right each answer is: the true logit minus the other."""
        logits: Tensor = self(images)
        return (logits[:, 0] - logits[:, 1]) * (1 - 2 * labels)


class Featured(Linear):
    """The same with features: the pixels to some power."""

    def __init__(self, power: int = 1) -> None:
        super().__init__()
        self.power = power

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override] # more than its base
        return 10 * images.flatten(1) ** self.power, super().forward(images)


class Deep(nn.Module):
    """A small network with everything that has a mode."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.5))
            self.last = nn.Linear(16, 2)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.last(self.body(images))
        return logits


class Drawn(Linear):
    """A randomised network."""

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images) + torch.randn(len(images), 2)


def inputs(count: int = 200, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Images well inside [0, 1], so that no attack within EPS is cut off; labels mostly the linear network's."""
    generator = torch.Generator().manual_seed(seed)
    images = 0.5 + 0.3 * (torch.rand(count, *SHAPE, generator=generator) - 0.5)
    flip = torch.rand(count, generator=generator) < 0.1
    return images, (Linear()(images).argmax(1) ^ flip).long()


def measure(*arguments: Any, **options: Any) -> pd.Series:
    (_, row), *rest = rrbench.evaluate(*arguments, **options).iterrows()
    assert not rest
    return row


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(UseError) as caught:
        call()
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) >= 15
    return str(caught.value)


# Numbers.


def test_clean_accuracy_is_the_share_of_right_answers() -> None:
    images, labels = inputs()
    row = measure(Linear(), "confidence", "clean", (images, labels))
    assert row.acc_all == pytest.approx(100 * (Linear()(images).argmax(1) == labels).double().mean().item())
    assert (row.n, row.norm, row.eps, row.gradients, row.status) == (200, "", "", 0, "ok")


@pytest.mark.parametrize("attack", ["pgd20", Pgd(20), "adaptive(ce+rcon,steps=20)"])
def test_accuracy_under_linf_attack_is_what_the_margins_of_a_linear_network_say(attack: Any) -> None:
    images, labels = inputs()
    network = Linear()
    # No attack within EPS takes more from the margin than 2 EPS |w|_1, and a gradient attack takes just that.
    survives = network.margins(images, labels) > 2 * EPS * network.weight.abs().sum()
    assert 0.2 < survives.double().mean() < 0.8
    row = measure(network, "confidence", attack, (images, labels), budget="linf:1/50")
    assert row.acc_all == pytest.approx(100 * survives.double().mean().item())
    assert (row.norm, row.eps) == ("linf", "1/50")
    assert row.gradients == (20 if "adaptive" not in str(attack) else 40)


def test_accuracy_under_l2_attack_is_what_the_margins_of_a_linear_network_say() -> None:
    images, labels = inputs()
    network = Linear()
    survives = network.margins(images, labels) > 2 * 0.1 * network.weight.norm()
    assert 0.1 < survives.double().mean() < 0.9
    row = measure(network, "confidence", "pgd40", (images, labels), budget="l2:1/10")
    assert row.acc_all == pytest.approx(100 * survives.double().mean().item(), abs=0.51)


def first_feature(outputs: Outputs) -> Tensor:
    return outputs.logits[:, 0]


def test_a_function_of_the_outputs_is_a_rejector() -> None:
    images, labels = inputs()
    logits = Linear()(images).detach()
    correct = (logits.argmax(1) == labels).numpy()
    row = measure(Linear(), first_feature, "clean", (images, labels))
    assert row.rejector == "first_feature"
    assert row.auc == pytest.approx(roc_auc_score(correct, logits[:, 0]))
    kept = logits[:, 0] >= np.sort(logits[:, 0].numpy()[correct])[int(0.05 * correct.sum())]
    assert row.acc_tpr95 == pytest.approx(100 * correct[kept.numpy()].mean())


def test_the_deployed_threshold_comes_from_calibration_data_alone() -> None:
    images, labels = inputs()
    held_out, held_labels = inputs(100, seed=1)
    with torch.no_grad():
        held, shown = Linear()(held_out), Linear()(images)
    scores = held[:, 0][held.argmax(1) == held_labels].sort().values
    threshold = scores[int(0.05 * len(scores))]
    accepted, correct = shown[:, 0] >= threshold, shown.argmax(1) == labels
    row = measure(Linear(), first_feature, "clean", (images, labels), calibration_data=(held_out, held_labels))
    assert row.deploy_threshold == pytest.approx(threshold.item())
    assert row.deploy_n == 200
    assert row.deploy_coverage == pytest.approx(100 * accepted.double().mean().item())
    assert row.deploy_acc == pytest.approx(100 * correct[accepted].double().mean().item())
    assert row.deploy_robust == pytest.approx(100 - 100 * (accepted & ~correct).double().mean().item())
    without = measure(Linear(), first_feature, "clean", (images, labels))
    assert pd.isna(without.deploy_threshold)
    assert pd.isna(without.deploy_robust)


def test_a_name_an_instance_and_a_function_of_the_same_certainty_agree() -> None:
    images, labels = inputs()

    def confidence(outputs: Outputs) -> Tensor:
        return outputs.logits.double().softmax(1).amax(1)

    rows = [
        measure(Linear(), rejector, "pgd5", (images, labels), budget=Budget("linf", Fraction(1, 20)))
        for rejector in ("confidence", Confidence(), confidence)
    ]
    for name in ("acc_all", "acc_tpr95", "auc", "aurc", "fpr95", "acc_tpr95_low", "auc_high"):
        assert len({row[name] for row in rows}) == 1, name


def test_the_same_seed_gives_the_same_row_and_the_global_random_state_is_left_alone() -> None:
    rows = []
    for world in (1, 2):
        torch.manual_seed(world)
        before = torch.get_rng_state()
        rows.append(measure(Deep().eval(), "confidence", "pgd3", inputs(), budget="linf:1/20"))
        assert torch.equal(torch.get_rng_state(), before)
    assert rows[0].drop("seconds").equals(rows[1].drop("seconds"))


def test_a_budget_of_zero_equals_clean() -> None:
    clean = measure(Linear(), "confidence", "clean", inputs())
    zero = measure(Linear(), "confidence", "pgd5", inputs(), budget="linf:0")
    columns = COLUMNS[COLUMNS.index("acc_all") : COLUMNS.index("distance")]
    assert clean[list(columns)].equals(zero[list(columns)])


# Networks of every kind.


def test_features_reach_the_rejectors_that_need_them() -> None:
    images, labels = inputs(60)
    known, known_labels = inputs(80, seed=1)
    (features, logits), (references, answers) = Featured()(images), Featured()(known)
    right = answers.argmax(1) == known_labels
    density = [
        (-(references[right & (known_labels == guess)] - point).square().sum(1)).exp().mean().log().item()
        for point, guess in zip(features.detach().double(), logits.argmax(1), strict=True)
    ]
    row = measure(Featured(), Kd(g=1.0), "clean", (images, labels), fit_data=(known, known_labels))
    assert row.auc == pytest.approx(roc_auc_score(logits.argmax(1) == labels, density))


def test_outputs_with_a_head_reach_the_rejectors_that_need_it() -> None:
    class Headed(Linear):
        def forward(self, images: Tensor) -> Outputs:  # type: ignore[override] # more than its base
            logits = super().forward(images)
            return Outputs(logits[:, :0], logits, logits[:, :1])

    images, labels = inputs()
    logits = Linear()(images).detach().double()
    by_hand = logits.softmax(1).amax(1) * logits[:, 0].sigmoid()
    row = measure(Headed(), "rr", "clean", (images, labels))
    assert row.auc == pytest.approx(roc_auc_score(logits.argmax(1) == labels, by_hand))


def state(network: nn.Module) -> dict[str, Any]:
    return {
        "modes": [module.training for module in network.modules()],
        "flags": [parameter.requires_grad for parameter in network.parameters()],
        "slopes": [parameter.grad for parameter in network.parameters()],
        "weights": [tensor.tolist() for tensor in network.state_dict().values()],
    }


@pytest.mark.parametrize("attack", ["clean", "pgd3", "adaptive(con+rcon,steps=2)"])
def test_a_network_in_train_mode_is_judged_in_eval_mode_and_left_as_it_was(attack: str) -> None:
    images, labels = inputs()
    network = Deep().train()
    network.body[1].eval()  # a frozen batch norm inside a network in train mode
    network.last.bias.requires_grad_(False)
    before = state(network)
    row = measure(network, "confidence", attack, (images, labels), budget="linf:1/20")
    assert state(network) == before
    quiet = measure(Deep().eval(), "confidence", attack, (images, labels), budget="linf:1/20")
    assert row.acc_all == quiet.acc_all
    assert row.note == ""


def test_a_network_is_left_as_it_was_even_when_the_evaluation_fails() -> None:
    def failing(outputs: Outputs) -> Tensor:
        raise ValueError("the user's own trouble")

    network = Deep().train()
    network.last.bias.requires_grad_(False)
    before = state(network)
    with pytest.raises(Exception, match="the user's own trouble"):
        rrbench.evaluate(network, failing, "pgd1", inputs(), budget="linf:1/20")
    assert state(network) == before


def test_the_users_images_are_left_as_they_were() -> None:
    images, labels = inputs()
    kept = images.clone()
    measure(Linear(), "confidence", "pgd3", (images, labels), budget="linf:1/20")
    assert torch.equal(images, kept)
    assert not images.requires_grad


def test_a_randomised_network_is_noted() -> None:
    assert "random" in measure(Drawn(), "confidence", "clean", inputs()).note
    assert measure(Linear(), "confidence", "clean", inputs()).note == ""


def test_an_oracle_is_noted() -> None:
    assert "oracle" in measure(Linear(), "t-con", "clean", inputs()).note


def test_a_rejector_is_fitted_to_each_network_anew() -> None:
    network, other = Featured(), Featured(power=6)
    data, fit_data = inputs(), inputs(300, seed=1)
    rejector = Kd(g=1.0)
    measure(network, rejector, "clean", data, fit_data=fit_data)
    again = measure(other, rejector, "clean", data, fit_data=fit_data)
    fresh = measure(other, Kd(g=1.0), "clean", data, fit_data=fit_data)
    assert (again.auc, again.acc_tpr95) == (fresh.auc, fresh.acc_tpr95)


# The frame.


def test_the_result_has_the_columns_of_the_csv_and_one_row() -> None:
    frame = rrbench.evaluate(Linear(), "confidence", "pgd2", inputs(), budget="linf:1/20", seed=3)
    assert list(frame.columns) == list(COLUMNS)
    (_, row), *_ = frame.iterrows()
    assert (row.dataset, row.network, row.rejector, row.attack) == ("own data", "Linear", "confidence", "pgd2")
    assert (row.seed, row.preset, row.n, row.precision) == (3, "quick", 200, "fp32")
    assert row.acc_tpr95_low <= row.acc_tpr95 <= row.acc_tpr95_high
    assert row.seconds > 0
    assert len(row.data_sha256) == 64
    assert row.version == rrbench.__version__


def test_settings_are_json_of_every_field() -> None:
    row = measure(Linear(), "confidence(tau=2)", "pgd2", inputs(), budget="linf:1/20")
    settings = json.loads(row.settings)
    assert settings["rejector"] == {"tau": 2.0}
    assert settings["attack"]["steps"] == 2


def test_adaptive_alone_gives_one_row_for_each_objective() -> None:
    frame = rrbench.evaluate(Linear(), "confidence", "adaptive(steps=2,restarts=1)", inputs(40), budget="linf:1/20")
    assert len(frame) == 5
    assert len(set(frame.attack)) == 5


def test_the_worst_case_over_attacks_is_no_weaker_than_one_of_them_or_refused() -> None:
    worst = accuracy_or_refusal(Linear(), "confidence", "worst-case", inputs(40), budget="linf:1/50")
    alone = measure(Linear(), "confidence", "pgd20", inputs(40), budget="linf:1/50").acc_all
    assert alone < 80
    assert worst is None or worst <= alone


def test_a_worst_case_says_which_attacks_it_goes_without() -> None:
    with pytest.warns(UserWarning, match="goes on without one of its attacks"):
        row = measure(Linear(), "confidence", "worst-case", inputs(10), budget="linf:1/50")
    assert "goes without autoattack (autoattack(standard) needs 4 classes" in row.note
    assert "pgd" not in row.note


def accuracy_or_refusal(*arguments: Any, **options: Any) -> float | None:
    try:
        return float(measure(*arguments, **options).acc_all)
    except UseError:
        return None


# Wrong use: one clear line each.


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
        (with_images(lambda images: (images * 255).byte()), "float"),
        (with_images(lambda images: images[:7]), "7 images"),
        (with_images(lambda images: images.repeat(1, 3, 2, 2)), "(2, 3, 8, 8)"),
        (with_images(lambda images: images[:0]), "images"),
        ((torch.zeros(0, *SHAPE), torch.zeros(0, dtype=torch.long)), "no images"),
        (with_labels(lambda labels: labels + 1), "labels must lie in 0..1 but span 1..2"),
        (with_labels(lambda labels: labels - 1), "labels must lie in 0..1"),
        (with_labels(lambda labels: labels.float()), "labels must be int64"),
        (with_labels(lambda labels: labels[:, None]), "labels must be int64 of shape (N,)"),
        (inputs(20)[0], "(images, labels)"),
        ((inputs(20)[0].numpy(), inputs(20)[1].numpy()), "torch tensors"),
        ((inputs(20)[0], inputs(20)[1].tolist()), "torch tensors"),
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
        ({}, 'needs a budget, such as budget="linf:8/255"'),
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


def test_nan_logits_are_one_clear_line() -> None:
    network = Linear()
    with torch.no_grad():
        network.weight[3] = float("nan")
    assert "NaN" in refusal(lambda: rrbench.evaluate(network, "confidence", "clean", inputs()))


@pytest.mark.parametrize(
    ("rejector", "line"),
    [
        (lambda outputs: outputs.logits, "scores for 200 inputs"),
        (lambda outputs: outputs.logits[:, 0] * float("nan"), "NaN"),
        (lambda outputs: None, "score"),
    ],
    ids=["shape", "nan", "none"],
)
def test_a_function_that_gives_no_certainty_is_one_clear_line(rejector: Any, line: str) -> None:
    assert line in refusal(lambda: rrbench.evaluate(Linear(), rejector, "clean", inputs()))
