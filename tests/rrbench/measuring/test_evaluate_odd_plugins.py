"""`rrbench.evaluate` with networks and plugins of odd make: what works, what is refused, and what is put back."""

import os
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

import rrbench
from own_network import Linear, inputs, measure, refusal
from rrbench import Batch, Budget, Outputs, UseError
from rrbench.protocols import Draws, Moved, Victim
from rrbench_attacks.over_reject import OverReject
from rrbench_attacks.pgd import Pgd
from rrbench_baselines.confidence import Confidence

pytestmark = pytest.mark.usefixtures("own_folder")


class Fitting(Confidence):
    """Is fitted, in a way that cannot be stored as it is."""

    is_probability = False
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


class Boasting(Pgd):
    """Searches for the smallest push, and says that it fooled every input."""

    needs_budget, norms = False, frozenset({"l2"})

    def __call__(self, victim: Victim, batch: Batch, budget: Budget, draws: Draws) -> Moved:
        return Moved(batch.images, None, torch.ones_like(batch.labels, dtype=torch.bool))


def test_inputs_that_an_attack_only_says_to_have_fooled_are_counted() -> None:
    row = measure(Linear(), "confidence", Boasting(1), inputs(200))
    assert f"{2 * row.acc_all:.0f} inputs that the attack says to have fooled are answered right" in row.note


def test_of_an_attack_whose_goal_is_a_refused_right_answer_that_is_not_said() -> None:
    rows = rrbench.evaluate(Linear(), "confidence", OverReject(), inputs(200))
    assert list(rows.norm) == ["l2", "linf"]
    assert list(rows.note) == ["", ""]
    assert (rows.success > 0.8).all(), "what it reached are right answers, and a note on them would be wrong"


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


def test_a_fit_may_give_one_tensor_two_names_and_a_sparse_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured() -> Any:
        return measure(Linear(), Fitting(), "clean", inputs(20), fit_data=inputs(30))

    assert measured().status == "ok"
    monkeypatch.setattr(Fitting, "how", "sparse")
    line = refusal(measured)
    assert line == "fit of Fitting writes a sparse tensor into self.fitted['mean']: write value.to_dense()"


class Drawing(Fitting):
    """Learns from inputs that it draws."""

    def fit(self, clean: Outputs, labels: Tensor) -> None:
        count, half = len(labels), len(labels) // 2
        chosen = {
            "torch": lambda: torch.randperm(count)[:half],
            "numpy": lambda: torch.from_numpy(np.random.permutation(count)[:half]),
            "own": lambda: torch.randperm(count, generator=torch.Generator().manual_seed(0))[:half],
            "all": lambda: torch.randperm(count).sort().values,
        }[self.how]()
        self.fitted = {"same": clean.logits[chosen].mean(0)}


@pytest.mark.parametrize("how", ["torch", "numpy", "own", "all"])
def test_a_fit_that_learns_something_else_each_time_is_refused(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Drawing, "how", how)

    def measured() -> Any:
        return measure(Linear(), Drawing(), "clean", inputs(20), fit_data=inputs(30))

    if how in ("own", "all"):  # seeded, or drawn without effect
        assert measured().status == "ok"
        return
    line = f"fit of Drawing takes random numbers from {how}, so each fit learns something else: "
    assert refusal(measured) == line + "take them from a generator that it seeds itself"


class Jittered(Dataset[tuple[Tensor, int]]):
    """Gives images that chance changes, or not."""

    def __init__(self, is_random: bool) -> None:
        self.images, self.labels = inputs(40)
        self.is_random = is_random

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if index >= len(self):
            raise IndexError
        image = self.images[index]
        return (image.flip(2) if self.is_random and torch.rand(1) < 0.5 else image), int(self.labels[index])


class Stream(IterableDataset[tuple[Tensor, int]]):
    """Has a length, and no items by number."""

    def __len__(self) -> int:
        return 40

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        images, labels = inputs(40)
        return iter(zip(images, labels.tolist(), strict=True))


class Named(Jittered):
    """Gives items by name."""

    def __getitem__(self, index: int) -> Any:
        return dict(zip(("image", "label"), super().__getitem__(index), strict=True))

    @staticmethod
    def pairs(items: list[dict[str, Any]]) -> tuple[Tensor, Tensor]:
        return torch.stack([item["image"] for item in items]), torch.tensor([item["label"] for item in items])


def test_a_data_set_with_random_transforms_is_refused() -> None:
    torch.manual_seed(0)
    line = "an image of the data set is another one when it is read again: leave random transforms out"
    for data in (Jittered(True), DataLoader(Jittered(True), batch_size=8)):
        with pytest.raises(UseError, match=f"^cannot read the data set: .*{line}$|^{line}$"):
            rrbench.evaluate(Linear(), "confidence", "clean", data)
    for data in (DataLoader(Stream(), batch_size=8), DataLoader(Named(False), batch_size=8, collate_fn=Named.pairs)):
        assert rrbench.evaluate(Linear(), "confidence", "clean", data).n[0] == 40, "it cannot be told, and is measured"
    steady = rrbench.evaluate(Linear(), "confidence", "clean", Jittered(False))
    assert steady.n[0] == 40
    assert steady.acc_all[0] == rrbench.evaluate(Linear(), "confidence", "clean", inputs(40)).acc_all[0]


def test_a_row_without_a_threshold_says_why() -> None:
    images, darker = inputs(20)[0], inputs(20)[0] * 0.8
    right, other = (Linear()(each).argmax(1) for each in (images, darker))
    none = measure(Linear(), "confidence", "clean", (images, 1 - right))
    apart = measure(Linear(), "confidence", "clean", (images, right), calibration_data=(darker, 1 - other))
    said = "0 of 20 clean inputs are answered right, no more than chance: check labels and scale"
    assert none.note == f"{said}; no threshold: no clean input is right"
    assert apart.note == "no threshold: no calibration input is right"
    assert pd.isna([none.deploy_joint, apart.deploy_joint]).all()


def test_a_network_of_torch_jit_is_measured_as_the_one_it_was_made_of() -> None:
    plain = nn.Sequential(nn.Flatten(), nn.Linear(16, 2)).eval()
    script = torch.jit.script(plain)
    models = (plain, script, torch.jit.freeze(script), torch.jit.trace(plain, inputs(2)[0]))
    rows = [measure(model, "confidence", "pgd2", inputs(20), budget="linf:1/50") for model in models]
    assert len({(row.status, row.acc_all, row.acc_tpr95) for row in rows}) == 1


def test_weights_that_are_not_made_yet_are_refused_in_one_line() -> None:
    network = nn.Sequential(nn.Flatten(), nn.LazyLinear(2)).eval()
    line = refusal(lambda: rrbench.evaluate(network, "confidence", "clean", inputs(20)))
    assert line.startswith("the network has weights that are not made yet")
    network(inputs(2)[0])
    assert measure(network, "confidence", "clean", inputs(20)).status == "ok"


class Unprepared(rrbench.Rejector):
    """Has an `__init__` that forgets that of its base."""

    def __init__(self) -> None:
        self.scale = 2.0

    def certainty(self, outputs: Outputs) -> Tensor:
        return self.scale * outputs.logits.amax(1)


def test_a_rejector_that_does_not_prepare_its_base_is_refused_in_one_line() -> None:
    line = refusal(lambda: rrbench.evaluate(Linear(), Unprepared(), "clean", inputs(20)))
    assert line == "Unprepared.__init__ does not call super().__init__(): write it there first"


class Still(rrbench.Attack):
    """Moves nothing, and is no dataclass."""

    def __call__(self, victim: Victim, batch: Batch, budget: Budget, draws: Draws) -> Moved:
        return Moved(batch.images)

    def gradients_per_image(self, classes: int) -> int:
        return 0


def test_an_attack_that_is_no_dataclass_has_its_class_as_its_name() -> None:
    attacks = [Still(), Still()]  # both alive: at two addresses
    rows = [rrbench.evaluate(Linear(), "confidence", attack, inputs(20), budget="linf:1/50") for attack in attacks]
    assert [list(each["attack"]) for each in rows] == [["Still"], ["Still"]]
    assert rows[0]["settings"][0] == rows[1]["settings"][0]
