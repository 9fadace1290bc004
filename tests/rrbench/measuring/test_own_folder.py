"""The work folder of `rrbench.evaluate`: several of each, what other commands read, what is found again."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

import rrbench
from own_network import Linear, first_feature, inputs, measure
from rrbench import Batch, Rejector, UseError
from rrbench.plugins import own
from rrbench.rows.row import read_rows
from rrbench_attacks.pgd import Pgd
from rrbench_baselines.confidence import Confidence

pytestmark = pytest.mark.usefixtures("own_folder", "one_thread")
CONFIG = '[run]\nall_attacks = ["pgd20", "selective-pgd(steps=20)", "worst-case"]\n'
MODELS = {"first": Linear(), "second": Linear(1)}


def as_bytes(count: int = 60, seed: int = 0) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    images, labels = inputs(count, seed)
    return (images * 255).round().byte().numpy(), labels.numpy()


def evaluated(**more: Any) -> pd.DataFrame:
    Path("few.toml").write_text(CONFIG)
    options: dict[str, Any] = {"budget": "linf:1/50", "fit_data": as_bytes(80, 1), "config": "few.toml"} | more
    rejectors: list[Any] = ["confidence", "energy", first_feature]
    return rrbench.evaluate(MODELS, rejectors, "pgd20,selective-pgd(steps=20),worst-case", as_bytes(), **options)


def test_two_models_three_rejectors_and_three_attacks_become_one_report_that_verify_confirms(
    command: Callable[..., Any],
) -> None:
    frame = evaluated()
    images, labels = (torch.from_numpy(part) for part in as_bytes())
    for name, network in MODELS.items():
        margins = network.margins(images.float() / 255, labels)
        left = 100 * (margins > 2 * 0.02 * network.weight.abs().sum()).double().mean().item()
        rows = frame[frame.trained_as == name]
        assert len(rows) == 9
        # No attack within the budget takes more, and each takes it all.
        assert list(rows.acc_all) == [pytest.approx(left)] * 9
    assert set(frame.status) == {"ok"}
    assert set(frame.network) == {"Linear"}
    assert len(read_rows(Path("runs"))) == 24, "the folder has the clean rows too"
    said = command("verify", "runs")
    assert said.code == 0, said.out
    assert said.out.splitlines() == [
        "not replayed: 24 cells, whose metrics were recomputed from stored scores; given in Python, so not here: "
        "network first, second; data set own data; rejector first_feature",
        "24 cells: 0 confirmed, 24 recomputed only, 0 not checkable; nothing found wrong",
    ]
    table = command("table", "runs", "--by", "attack", "--against", "confidence")
    assert table.code == 0, table.err
    assert "first" in table.out
    assert command("report", "runs", "--out", "report.html").code == 0
    page = Path("report.html").read_text()
    assert page.count("data:image/") > 3, "plots and attacked images"
    assert "second" in page
    (cell,) = [path for path in Path("runs/cells").iterdir() if _is_row(path, "second", "energy", "pgd20")]
    content = json.loads(cell.read_text())
    content["row"]["acc_all"] += 1
    cell.write_text(json.dumps(content))
    said = command("verify", "runs")
    assert said.code == 1
    assert "second energy pgd20" in said.out
    assert "23 recomputed only" in said.out


def _is_row(path: Path, trained_as: str, rejector: str, attack: str) -> bool:
    row = json.loads(path.read_text())["row"]
    return (row["trained_as"], row["rejector"], row["attack"]) == (trained_as, rejector, attack)


def test_finished_work_is_used_again_and_nothing_is_held_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    first = rrbench.evaluate(Linear(), "confidence", "pgd2", inputs(20), budget="linf:1/50")

    def fail(*given: object) -> Any:
        raise AssertionError("the attack is stored")

    monkeypatch.setattr(Pgd, "__call__", fail)
    again = rrbench.evaluate(Linear(), "confidence,energy", "pgd2", inputs(20), budget="linf:1/50")
    assert again.iloc[[0]].equals(first)
    assert list(again.rejector) == ["confidence", "energy"]
    assert own._HELD == {}
    with pytest.raises(UseError, match="the attack is stored"):
        rrbench.evaluate(Linear(1), "confidence", "pgd2", inputs(20), budget="linf:1/50")
    with pytest.raises(UseError, match="the attack is stored"):
        rrbench.evaluate(Linear(), "confidence", "pgd2", inputs(21), budget="linf:1/50")


def test_a_changed_function_of_the_same_name_gets_a_row_of_its_own() -> None:
    def score(outputs: rrbench.Outputs) -> Tensor:
        return outputs.logits[:, 0]

    first = measure(Linear(), score, "clean", inputs(40))

    def other(outputs: rrbench.Outputs) -> Tensor:
        return -outputs.logits[:, 0]

    other.__name__ = "score"
    second = measure(Linear(), other, "clean", inputs(40))
    assert first.auc == pytest.approx(1 - second.auc)
    assert len(read_rows(Path("runs"))) == 2


class Turned(Linear):
    """Answers the other class if its sign is -1."""

    def __init__(self, sign: float) -> None:
        super().__init__()
        self._sign = sign

    def forward(self, images: Tensor) -> Tensor:
        return self._sign * super().forward(images)


def hooked(sign: float) -> Linear:
    network = Linear()
    network.register_forward_hook(lambda module, given, answer: sign * answer)
    return network


@pytest.mark.parametrize("make", [Turned, hooked])
def test_networks_that_differ_only_in_a_hidden_attribute_or_a_hook_are_attacked_each(
    make: Callable[[float], Linear],
) -> None:
    images, _ = inputs(40)
    labels = Linear()(images).argmax(1)
    networks = {"right": make(1.0), "wrong": make(-1.0)}
    frame = rrbench.evaluate(networks, "confidence", "pgd2", (images, labels), budget="linf:1/1000")
    assert list(frame.acc_all) == [100, 0]


def test_a_hidden_attribute_that_has_changed_brings_no_old_row_back() -> None:
    images, _ = inputs(40)
    network, labels = Turned(1.0), Linear()(images).argmax(1)
    assert measure(network, "confidence", "clean", (images, labels)).acc_all == 100
    network._sign = -1.0
    assert measure(network, "confidence", "clean", (images, labels)).acc_all == 0
    network._sign = 1.0
    assert measure(network, "confidence", "clean", (images, labels)).acc_all == 100
    assert len(read_rows(Path("runs"))) == 2


def test_what_a_network_keeps_of_the_inputs_that_it_saw_cannot_bring_a_wrong_row() -> None:
    """Its hash is made before it answers. In the next call it is another network, as with a public attribute."""

    class Keeping(Linear):
        def forward(self, images: Tensor) -> Tensor:
            self._last = images.detach()
            return super().forward(images)

    data, network = inputs(40), Keeping()
    frame = rrbench.evaluate(network, "confidence,energy", "pgd2", data, budget="linf:1/50")
    plain = rrbench.evaluate(Linear(), "confidence,energy", "pgd2", data, budget="linf:1/50", out="other")
    assert len(set(frame.checkpoint_sha256)) == 1
    assert list(frame.acc_all) == list(plain.acc_all)
    again = rrbench.evaluate(network, "confidence,energy", "pgd2", data, budget="linf:1/50")
    assert list(again.acc_all) == list(plain.acc_all)
    fresh = rrbench.evaluate(Keeping(), "confidence,energy", "pgd2", data, budget="linf:1/50")
    assert fresh.equals(frame), "a network that was made anew finds its rows"


class Pair(NamedTuple):
    scale: float = 1.0

    def __call__(self, outputs: rrbench.Outputs) -> Tensor:
        return outputs.logits[:, 0] / self.scale


class Negated(Pair):
    def __call__(self, outputs: rrbench.Outputs) -> Tensor:
        return -outputs.logits[:, 0] / self.scale


def test_a_rejector_that_is_a_tuple_or_has_attributes_gets_a_row_of_its_own() -> None:
    def score(outputs: rrbench.Outputs) -> Tensor:
        factor: float = vars(score)["factor"]
        return factor * outputs.logits[:, 0]

    first, second = (measure(Linear(), {"r": each}, "clean", inputs(40)) for each in (Pair(), Negated()))
    assert first.auc == pytest.approx(1 - second.auc)
    thresholds = []
    for factor in (1.0, 5.0):
        vars(score)["factor"] = factor
        thresholds.append(measure(Linear(), score, "clean", inputs(40)).deploy_threshold)
    assert thresholds[1] == pytest.approx(5 * thresholds[0])


@pytest.mark.parametrize(
    "given",
    [
        lambda images, labels: (images, labels),
        lambda images, labels: (images.numpy().astype(np.float64), labels.numpy().astype(np.int16)),
        lambda images, labels: (images.numpy()[:, 0], labels.tolist()),
        lambda images, labels: (images.numpy().transpose(0, 2, 3, 1), labels),
        lambda images, labels: (images, labels[:, None]),
        lambda images, labels: (images.numpy().astype(">f8"), labels.numpy().astype(">i4")),
        lambda images, labels: ((images * 255).byte(), labels),
        lambda images, labels: Batch(images, labels, torch.arange(len(labels))),
        lambda images, labels: TensorDataset(images, labels),
        lambda images, labels: DataLoader(TensorDataset(images, labels), batch_size=7),
        lambda images, labels: DataLoader(TensorDataset(images, labels), batch_size=7, shuffle=True),
    ],
    ids=["torch", "numpy", "grey", "last", "column", "reversed", "bytes", "batch", "dataset", "loader", "shuffled"],
)
def test_the_same_inputs_in_any_form_are_the_same_data(given: Callable[[Tensor, Tensor], Any]) -> None:
    images, labels = inputs(30)
    images = (images * 255).round() / 255
    row = measure(Linear(), "confidence", "clean", given(images, labels))
    assert row.data_sha256 == measure(Linear(), "confidence", "clean", (images, labels), out="other").data_sha256
    assert row.acc_all == pytest.approx(100 * (Linear()(images).argmax(1) == labels).double().mean().item())


def test_a_row_that_fails_does_not_take_the_others_along() -> None:
    frame = rrbench.evaluate(Linear(), "confidence,kd", "clean", inputs(30), fit_data=inputs(30, 1))
    assert list(frame.status) == ["ok", "failed"]
    assert "needs features" in frame.error[1]


def test_models_without_a_name_get_that_of_their_class() -> None:
    data = inputs(20)
    assert list(rrbench.evaluate([Linear(), Linear(1)], "confidence", "clean", data).trained_as) == [
        "Linear 1",
        "Linear 2",
    ]
    assert measure(Linear(), "confidence", "clean", {"tiny": data}, name="mine")[
        ["trained_as", "dataset"]
    ].tolist() == [
        "mine",
        "tiny",
    ]
    with pytest.raises(UseError, match="as a dict"):
        rrbench.evaluate([Linear(), Linear(1)], "confidence", "clean", data, name="mine")


def test_several_data_sets_in_one_call_each_have_their_rows() -> None:
    data = {"one": inputs(20), "two": inputs(30, 1)}
    frame = rrbench.evaluate(Linear(), "confidence", "clean", data)
    assert dict(zip(frame.dataset, frame.n, strict=True)) == {"one": 20, "two": 30}


class Halved(Confidence):
    """Somebody's own rejector, with the settings of another."""

    def certainty(self, outputs: rrbench.Outputs) -> Tensor:
        return super().certainty(outputs) / 2


def test_run_takes_objects_beside_names() -> None:
    images, labels = inputs(40)
    rejectors: list[str | Rejector] = ["energy", Confidence(tau=2.0), Halved(tau=2.0)]
    frame = rrbench.run(
        rejectors, [Pgd(2), "clean"], dataset=(images, labels), network=Linear(), budgets="linf:1/50", precision="fp32"
    )
    assert list(frame.rejector) == ["energy", "confidence(tau=2)", "Halved(tau=2.0)"] * 2
    own_rows = frame[frame.rejector != "energy"]
    assert own_rows.groupby("attack").auc.nunique().tolist() == [1, 1], "half a certainty ranks as the whole"
    trained = rrbench.run([Halved(), "confidence"], "clean", limit=40, device="cpu", out="digits")
    assert set(trained.trained_as) == {"pgd-at"}
    assert trained.auc.nunique() == 1


def test_run_refuses_objects_that_are_none_of_it() -> None:
    with pytest.raises(UseError, match="fit_data and calibration_data go with inputs"):
        rrbench.run("confidence", "clean", fit_data=inputs(5))
    with pytest.raises(UseError, match="is trained already: leave out the frameworks"):
        rrbench.run("confidence", "clean", dataset=inputs(5), network=Linear(), frameworks="trades")
    with pytest.raises(UseError, match="recipe is for networks that rrbench trains, and these are given: leave it out"):
        rrbench.run("confidence", "clean", dataset=inputs(5), network=Linear(), recipe={"epochs": 1})
    with pytest.raises(UseError, match="zoo is for networks that rrbench trains"):
        rrbench.run("confidence", "clean", dataset=inputs(5), network=Linear(), zoo=True)
    with pytest.raises(UseError, match="retrain is for networks that rrbench trains"):
        rrbench.run("confidence", "clean", dataset=inputs(5), network=Linear(), retrain=True)
    with pytest.raises(UseError, match="has no training inputs"):
        rrbench.run("confidence", "clean", dataset=inputs(5), network="small-cnn", budgets="linf:1/50")
    with pytest.raises(UseError, match="cannot be sent to other machines"):
        rrbench.run("confidence", "clean", dataset=inputs(5), network=Linear(), engine="ray")
    assert not Path("runs").exists()
