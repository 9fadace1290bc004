"""`rrbench.evaluate` on a user's own network, against hand computations."""

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

import rrbench
from own_network import EPS, Featured, Linear, first_feature, inputs, measure
from rrbench import Batch, Budget, Outputs, UseError
from rrbench.rows.notes import members_met
from rrbench.rows.row import COLUMNS, members_of, read_rows
from rrbench_attacks.pgd import Pgd
from rrbench_baselines.confidence import Confidence
from rrbench_baselines.kd import Kd

pytestmark = pytest.mark.usefixtures("own_folder")


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
    assert row.deploy_joint == pytest.approx(100 * (accepted & correct).double().mean().item())
    assert row.deploy_joint_low < row.deploy_joint < row.deploy_joint_high


def test_without_calibration_data_the_inputs_fix_each_others_thresholds() -> None:
    images, labels = inputs()
    with torch.no_grad():
        shown = Linear()(images)
    certainty, correct, fold = shown[:, 0], shown.argmax(1) == labels, torch.arange(200) % 5
    accepted = torch.zeros(200, dtype=torch.bool)
    for each in range(5):
        others = certainty[correct & (fold != each)].sort().values
        accepted |= (fold == each) & (certainty >= others[int(0.05 * len(others))])
    row = measure(Linear(), first_feature, "clean", (images, labels))
    right = certainty[correct].sort().values
    assert row.deploy_threshold == pytest.approx(right[int(0.05 * len(right))].item())
    assert row.deploy_coverage == pytest.approx(100 * accepted.double().mean().item())
    assert row.deploy_robust == pytest.approx(100 - 100 * (accepted & ~correct).double().mean().item())


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
    images, _ = inputs()
    labels = Deep().eval()(images).argmax(1)  # if most were wrong, or all of one class, a note would say so
    labels[:80] = 1 - labels[:80]
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


def test_a_worst_case_says_which_attacks_it_goes_without(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="goes on without one of its attacks"):
        measure(Linear(), "confidence", "worst-case", inputs(10), budget="linf:1/50", out=tmp_path)
    (row,) = [row for row in read_rows(tmp_path) if row.attack == "worst-case"]
    assert "goes without autoattack: autoattack(standard) needs 4 classes" in row.note
    assert "pgd" not in row.note
    assert set(members_of(row)) - set(members_met(row)) == {"autoattack"}, "the board goes by what was met"


def accuracy_or_refusal(*arguments: Any, **options: Any) -> float | None:
    try:
        return float(measure(*arguments, **options).acc_all)
    except UseError:
        return None


class Sure(Linear):
    """Nearly always certain: the quartiles of its confidence are next to each other."""

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = super().forward(images)
        return 30 * logits


@pytest.mark.parametrize("objective", ["ce+rcon", "con+rcon"])
def test_an_adaptive_attack_on_a_plain_function_is_as_strong_as_on_its_namesake_and_as_pgd(objective: str) -> None:
    """Scaled by the interquartile range, these left 96.7 and 53.3 % where the namesake and PGD leave 10.0."""
    network, (images, _) = Sure(), inputs(200)
    parts = [(images[part], network(images[part]).argmax(1)) for part in (slice(60), slice(60, 120), slice(120, 200))]
    options = {"budget": "linf:1/20", "calibration_data": parts[1], "fit_data": parts[2]}

    def left(rejector: Any, attack: str) -> float:
        return float(measure(network, rejector, attack, parts[0], **options).deploy_robust)

    attack = f"adaptive({objective},steps=10)"
    plain = left(lambda outputs: outputs.logits.softmax(1).amax(1), attack)
    assert plain == pytest.approx(left("confidence", attack), abs=0.01)
    assert plain <= left("confidence", "pgd10")
    percent = left(lambda outputs: 100 * outputs.logits.softmax(1).amax(1) - 50, attack)
    assert percent == pytest.approx(plain, abs=0.01)


def test_ids_that_all_fall_into_one_fold_leave_no_threshold_and_a_note_says_so() -> None:
    images, labels = inputs()
    data = Batch(images, labels, 5 * torch.arange(len(labels)))
    row = measure(Linear(), first_feature, "clean", data)
    assert row.deploy_robust is None
    assert "no threshold: the other folds" in row.note
