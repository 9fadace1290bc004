"""`rrbench.load_model`: networks of the zoo as plain modules."""

import foolbox
import pytest
import torch
from foolbox.models.pytorch import PyTorchModel
from sklearn.metrics import roc_auc_score

import rrbench
from rrbench import UseError
from rrbench.datasets.digits import Digits
from rrbench.zoo import EMBEDDED, entries, zoo_prefix

TEST = Digits().load("test")


@pytest.fixture(autouse=True)
def _alone(own_folder: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RRBENCH_ZOO", "no-such-folder")


@pytest.mark.parametrize("trained_as", ["pgd-at", "pgd-at+rr", "carl", "pgd-at+snet"])
def test_a_loaded_model_has_the_accuracy_that_the_zoo_states(trained_as: str) -> None:
    (entry,) = [entry for entry in entries(EMBEDDED) if entry.trained_as == trained_as]
    before = torch.get_rng_state()
    model = rrbench.load_model("digits", trained_as)
    assert torch.equal(torch.get_rng_state(), before)
    assert isinstance(model, torch.nn.Module)
    assert not any(module.training for module in model.modules())
    with torch.no_grad():
        logits, outputs = model(TEST.images), model.outputs(TEST.images)
    assert 100 * (logits.argmax(1) == TEST.labels).double().mean().item() == pytest.approx(
        entry.clean_accuracy, abs=1e-3
    )
    assert torch.equal(outputs.logits, logits)
    assert outputs.features.shape == (360, 64)
    assert (outputs.head.shape[1] > 0) == (trained_as != "pgd-at")


def test_foolbox_attacks_a_loaded_model_as_rrbench_does() -> None:
    model = rrbench.load_model("digits", "pgd-at+rr")
    batch = TEST.at(slice(120))
    attack = foolbox.attacks.LinfPGD(abs_stepsize=0.015, steps=20)
    _, _, success = attack(PyTorchModel(model, bounds=(0, 1)), batch.images, batch.labels, epsilons=3 / 20)
    left = 100 * (1 - success.float().mean().item())
    (ours,) = rrbench.evaluate(
        model, "confidence", "pgd20(step=3/200)", batch, budget="linf:3/20", progress=False
    ).acc_all
    assert 50 < left < 95
    assert abs(left - ours) < 3, "two of the 120 inputs may be decided by the start"


def test_rejectors_that_need_features_or_a_head_are_measured_on_a_loaded_model() -> None:
    model, batch = rrbench.load_model("digits", "pgd-at+rr"), TEST.at(slice(120))
    rows = rrbench.evaluate(model, ["kd", "rr"], "clean", batch, fit_data=Digits().load("train"), progress=False)
    assert list(rows.status) == ["ok", "ok"]
    with torch.no_grad():
        outputs = model.outputs(batch.images)
    certainty = outputs.logits.double().softmax(1).amax(1) * outputs.head[:, 0].double().sigmoid()
    assert rows.auc[1] == pytest.approx(roc_auc_score(outputs.logits.argmax(1) == batch.labels, certainty))


def test_a_hook_on_a_loaded_model_counts() -> None:
    model, batch = rrbench.load_model("digits", "pgd-at"), TEST.at(slice(120))
    model.register_forward_hook(lambda *call: call[2] * 0)
    rows = rrbench.evaluate(model, "confidence", "clean", batch, progress=False)
    assert rows.acc_all[0] == pytest.approx(100 * (batch.labels == 0).double().mean().item())


@pytest.mark.parametrize(
    ("names", "more", "line"),
    [
        (("digit", "pgd-at"), {}, "unknown data set 'digit'; near: digits"),
        (("digits", "pgd-at+r"), {}, "unknown checkpoint of digits 'pgd-at+r'; near: pgd-at+rr"),
        (("digits", "pgd-at"), {"network": "resnet18"}, "unknown network of digits pgd-at 'resnet18'"),
        (("digits", "pgd-at"), {"seed": 7}, "no checkpoint pgd-at of digits has seed 7; there is 0"),
        (("cifar10", "pgd-at"), {}, "a zoo is $RRBENCH_ZOO or no-such-folder"),
    ],
)
def test_what_is_not_in_a_zoo_is_one_clear_line(names: tuple[str, str], more: dict[str, object], line: str) -> None:
    with pytest.raises(UseError) as refused:
        rrbench.load_model(*names, **more)  # type: ignore[arg-type] # of several types
    assert line in str(refused.value)
    assert "\n" not in str(refused.value)


def test_outside_the_checkout_its_networks_are_found_as_its_rows_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RRBENCH_ZOO")
    model = rrbench.load_model("cifar10", "pgd-at+rr")
    assert model.outputs(torch.zeros(1, 3, 32, 32)).features.shape == (1, 512)
    assert zoo_prefix() == "", "the command finds it again"
