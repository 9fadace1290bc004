"""Whole runs: nothing is done twice, every number is judged in float32, and what fails fails alone and says why."""

import csv
import dataclasses
import json
import re
import shutil
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rrbench import train
from rrbench.checkpoints import load_weights, pack_bits, read_checkpoint, unpack_bits, write_checkpoint
from rrbench.datasets.check import fingerprint
from rrbench.datasets.digits import Digits
from rrbench.devices import Instrumented
from rrbench.errors import UseError
from rrbench.metrics import Metrics
from rrbench.networks.small_cnn import SmallCnn
from rrbench.protocols import (
    Attack,
    Batch,
    Budget,
    DataInfo,
    Draws,
    Framework,
    Moved,
    NetworkSource,
    Outputs,
    Rejector,
    Victim,
)
from rrbench.registry import build, table
from rrbench.rows import COLUMNS, ResultRow, read_rows

METRICS = Metrics._fields


@dataclass(frozen=True)
class Brighter(Attack):
    """Adds eps to every pixel, and counts how often it is called."""

    norms = frozenset({"linf"})
    calls: ClassVar[list[int]] = []

    def __call__(self, victim: Victim, batch: Batch, budget: Budget, draws: Draws) -> Moved:
        self.calls.append(batch.size)
        return Moved((batch.images + budget.eps).clamp(0, 1))

    def gradients_per_image(self, classes: int) -> int:
        return 0


@dataclass(frozen=True)
class Watching(Brighter):
    """The same, but it says that it looks at the rejector."""

    is_adaptive = True


@dataclass(frozen=True)
class Misbehaving(Brighter):
    """Does one wrong thing."""

    how: str = ""
    works: ClassVar[bool] = False

    def __call__(self, victim: Victim, batch: Batch, budget: Budget, draws: Draws) -> Moved:
        images = (batch.images + budget.eps).clamp(0, 1)
        if self.works:
            return Moved(images)
        if self.how == "in place":
            batch.images.fill_(0.5)
            return Moved(batch.images)
        if self.how == "labels":
            batch.labels.copy_(victim.network(images).logits.argmax(1))
            return Moved(images)
        raising = {"value": ValueError, "attribute": AttributeError, "assertion": AssertionError, "os": OSError}
        if self.how in raising:
            raise raising[self.how]("a plugin's own trouble\nand a second line")
        wrong = {
            "far": (batch.images + 3 * budget.eps).clamp(0, 1),
            "boldly far": (batch.images + 3 * budget.eps).clamp(0, 1),
            "outside": batch.images - budget.eps,
            "nan": images * float("nan"),
            "few": images[:1],
            "flat": images.flatten(1),
        }[self.how]
        return Moved(images, wrong) if self.how == "boldly far" else Moved(wrong)


@dataclass
class Noise(Rejector):
    """Random certainty: a hash of the logits."""

    salt: int = 0

    def certainty(self, outputs: Outputs) -> Tensor:
        return (
            ((outputs.logits.double() @ torch.arange(1.0, 11, dtype=torch.float64)) * 1e4 + self.salt).sin() * 1e4 % 1
        )


@dataclass
class RejectAll(Rejector):
    """Refuses whatever it is shown."""

    own_threshold = 2.0

    def certainty(self, outputs: Outputs) -> Tensor:
        return outputs.logits.sum(1) * 0 + 1


@dataclass
class Wrong(Rejector):
    """Answers wrongly in one of several ways."""

    how: str = "nan"

    def certainty(self, outputs: Outputs) -> Tensor:
        return {
            "nan": outputs.logits.sum(1) * float("nan"),
            "shape": outputs.logits,
            "infinite": outputs.logits.sum(1) + float("inf"),
        }[self.how]


@dataclass
class Unfit(Rejector):
    """Cannot be fitted."""

    needs = frozenset({"fit"})

    def fit(self, clean: Outputs, labels: Tensor) -> None:
        raise ValueError("too few examples")

    def certainty(self, outputs: Outputs) -> Tensor:
        return outputs.logits.amax(1)


@dataclass(frozen=True)
class BrokenTraining(Framework):
    """Raises in its first step."""

    def __call__(self, victim: Victim, batch: Batch, draws: Draws) -> Tensor:
        raise AttributeError("a framework's own trouble")

    def gradients_per_image(self) -> int:
        return 1


class FragileNetwork(nn.Module):
    """Answers NaN for an image without a dark pixel."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, images: Tensor) -> Outputs:
        outputs: Outputs = self.inner(images)
        bright = images.flatten(1).amin(1, keepdim=True) >= 0.1
        return outputs._replace(logits=outputs.logits.masked_fill(bright, float("nan")))


@dataclass(frozen=True)
class Fragile(NetworkSource):
    def build(self, info: DataInfo, rejector: Rejector) -> nn.Module:
        return FragileNetwork(SmallCnn(width=4).build(info, rejector))


@pytest.fixture(autouse=True)
def plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    plugins: dict[str, dict[str, type]] = {
        "attack": {"brighter": Brighter, "watching": Watching, "misbehaving": Misbehaving},
        "rejector": {"noise": Noise, "reject-all": RejectAll, "wrong": Wrong, "unfit": Unfit},
        "framework": {"broken": BrokenTraining},
        "network": {"fragile": Fragile},
    }
    for kind, classes in plugins.items():
        for name, plugin in classes.items():
            monkeypatch.setitem(table(kind).classes, name, plugin)
    monkeypatch.setattr(Brighter, "calls", [])


def by_attack(rows: list[ResultRow]) -> dict[str, ResultRow]:
    return {row.attack: row for row in rows}


def measured(row: ResultRow) -> dict[str, object]:
    return {name: getattr(row, name) for name in METRICS}


def only_network(bench: Any) -> tuple[nn.Module, Batch]:
    """Return the network of the checkpoint pgd-at and the sixty inputs that are measured."""
    job = bench.prepare("confidence", "clean")
    training = job.plan.cells[0].training
    network = train.build_network(training, Digits.info, build(Rejector, training.rejector))
    load_weights(network, job.runner.checkpoint(training))
    return network.eval().requires_grad_(False), Digits().load("test").at(slice(60))


# Nothing is done twice.


def test_a_second_run_attacks_nothing_and_gives_the_same_rows(bench: Any) -> None:
    first = bench.measure("confidence", "brighter,pgd2")
    assert Brighter.calls == [60]
    assert len(bench.attacked()) == 3
    files = {path: path.stat().st_mtime_ns for path in (bench.out / "cells").iterdir()}
    assert bench.measure("confidence", "brighter,pgd2") == first
    assert Brighter.calls == [60]
    assert bench.report.tasks == []
    assert {path: path.stat().st_mtime_ns for path in (bench.out / "cells").iterdir()} == files


def test_one_attack_serves_all_rejectors_of_a_checkpoint(bench: Any) -> None:
    rows = bench.measure("confidence,t-con,noise,kd", "brighter,pgd2")
    assert Brighter.calls == [60]
    assert [task.split()[2] for task in bench.attacked()] == ["clean", "brighter", "pgd2"]
    assert len(rows) == 12
    assert {row.acc_all for row in rows if row.attack == "pgd2"} == {by_attack(rows)["pgd2"].acc_all}


def test_a_rejector_added_later_uses_the_stored_attack(bench: Any) -> None:
    together = bench.measure("confidence,noise", "brighter,pgd2")
    Brighter.calls.clear()
    shutil.rmtree(bench.out / "cells")
    shutil.rmtree(bench.out / "moved")
    bench.measure("confidence", "brighter,pgd2")
    assert Brighter.calls == [60]
    later = bench.measure("confidence,noise", "brighter,pgd2")
    assert Brighter.calls == [60]
    assert bench.attacked() == []
    assert [measured(row) for row in later] == [measured(row) for row in together]


def test_an_adaptive_attack_is_made_for_each_rejector(bench: Any) -> None:
    bench.measure("confidence,noise", "watching")
    assert Brighter.calls == [60, 60]
    bench.measure("confidence,noise,kd", "watching")
    assert Brighter.calls == [60, 60, 60]


def test_a_checkpoint_is_trained_once_and_shared_by_the_rejectors_with_its_key(empty: Any) -> None:
    rows = empty.measure("confidence,noise,ebd", "clean", recipe={"epochs": 1, "batch": 1077})
    assert [task.split()[1] for task in empty.trained()] == ["pgd-at", "pgd-at+ebd"]
    assert [row.trained_as for row in rows] == ["pgd-at", "pgd-at", "pgd-at+ebd"]
    empty.measure("confidence,noise,ebd", "clean", recipe={"epochs": 1, "batch": 1077})
    assert empty.trained() == []


def test_another_budget_seed_or_limit_is_another_cell(bench: Any) -> None:
    bench.measure("confidence", "brighter", budgets="linf:1/10")
    bench.measure("confidence", "brighter", budgets="linf:1/10,linf:2/20,linf:1/5")
    assert Brighter.calls == [60, 60], "1/10 and 2/20 are the same radius"
    bench.measure("confidence", "brighter", budgets="linf:1/10", limit=30)
    assert Brighter.calls == [60, 60, 30]
    assert [(row.attack, row.eps, row.n) for row in read_rows(bench.out)] == [
        ("clean", "", 30),
        ("clean", "", 60),
        ("brighter", "1/10", 30),
        ("brighter", "1/10", 60),
        ("brighter", "1/5", 60),
    ]


def test_a_run_that_died_before_writing_its_csv_writes_it_the_next_time(bench: Any) -> None:
    bench.measure("confidence", "brighter")
    before = (bench.out / "rows.csv").read_bytes()
    (bench.out / "rows.csv").unlink()
    bench.measure("confidence", "brighter")
    assert (bench.out / "rows.csv").read_bytes() == before


# Every number is judged in float32, and every row says where it comes from.


def test_final_images_are_judged_again_in_float32(bench: Any) -> None:
    # Weights trained in bf16 have a name of their own; here the same weights are wanted in both.
    for path in list((bench.out / "checkpoints").glob("*[0-9a-f].safetensors")):
        shutil.copy(path, path.with_name(f"{path.stem}-bf16.safetensors"))
    (row,) = (row for row in bench.measure("confidence", "pgd3", precision="bf16", keep="images") if row.norm)
    assert row.precision == "bf16"
    assert row.status == "ok"
    (scores,) = (
        np.load(bench.out / "scores" / f"{path.stem}.npz")
        for path in (bench.out / "cells").glob("*.json")
        if json.loads(path.read_text())["row"]["norm"]
    )
    network, batch = only_network(bench)
    images = torch.from_numpy(scores["images"])
    assert images.shape == batch.images.shape
    exact, short = network(images).logits, Instrumented(network, "bf16")(images).logits
    assert (exact - short).abs().max() > 1e-3, "this network must make the two differ, or this test proves nothing"
    np.testing.assert_allclose(scores["logits"], exact, rtol=1e-4, atol=1e-5)
    assert row.acc_all == pytest.approx(100 * float((exact.argmax(1) == batch.labels).double().mean()))
    np.testing.assert_allclose(scores["certainty"], exact.double().softmax(1).amax(1), rtol=1e-4)


def test_weights_trained_in_another_precision_are_not_used_in_this_one(bench: Any) -> None:
    before = set((bench.out / "checkpoints").iterdir())
    bench.measure("confidence", "clean", precision="bf16")
    made = {path.name for path in set((bench.out / "checkpoints").iterdir()) - before}
    assert len(made) == 2
    assert all("-bf16" in name for name in made)


def test_an_attack_leaves_what_the_network_says_of_its_images_by_hand(bench: Any) -> None:
    row = by_attack(bench.measure("confidence", "brighter", budgets="linf:1/4"))["brighter"]
    network, batch = only_network(bench)
    moved = network((batch.images + 0.25).clamp(0, 1)).logits
    assert row.acc_all == pytest.approx(100 * float((moved.argmax(1) == batch.labels).double().mean()))


def test_every_row_says_what_it_measured_and_where_it_comes_from(bench: Any) -> None:
    rows = bench.measure("confidence,kd(g=2)", "pgd3,adaptive(ce+rcon,steps=2,eta=1)")
    checkpoint = next((bench.out / "checkpoints").glob("*[0-9a-f].safetensors"))
    assert len(rows) == 6
    for row in rows:
        assert row.status == "ok", row.error
        assert (row.dataset, row.network, row.framework, row.trained_as) == ("digits", "small-cnn", "pgd-at", "pgd-at")
        assert (row.seed, row.preset, row.n, row.precision) == (0, "quick", 60, "fp32")
        assert row.acc_tpr95_low <= row.acc_tpr95 <= row.acc_tpr95_high
        assert row.auc_low <= row.auc <= row.auc_high
        assert row.deploy_n == 60
        assert row.seconds > 0
        assert row.gradients == {"clean": 0, "pgd3": 3}.get(row.attack, 2)
        assert row.data_sha256 == fingerprint(Digits().load("test").at(slice(60)))
        assert row.checkpoint_sha256 in {
            read_checkpoint(path).sha256 for path in checkpoint.parent.glob("*[0-9a-f].safetensors")
        }
        assert row.version
        assert row.device
        settings = json.loads(row.settings)
        assert settings["framework"]["eps"] == "3/20"
        assert settings["framework"]["steps"] == 1
        assert settings["rejector"] == ({"tau": 1.0} if row.rejector == "confidence" else {"g": 2.0, "references": 100})
        assert settings["attack"] == build_settings(row.attack)
    assert [(row.norm, row.eps) for row in rows if row.attack == "clean"] == [("", "")] * 2
    assert {(row.norm, row.eps) for row in rows if row.attack != "clean"} == {("linf", "3/20")}


def build_settings(attack: str) -> dict[str, object]:
    common = {"restarts": 1, "step": "3/200", "keep": "best", "select": "evade"}
    if attack == "clean":
        return {}
    return common | ({"steps": 3} if attack == "pgd3" else {"steps": 2, "objective": "ce+rcon", "eta": [1.0]})


def test_the_csv_holds_the_rows_in_a_fixed_order_whatever_the_order_of_work(bench: Any, tmp_path: Any) -> None:
    bench.measure("noise,confidence", "pgd2,brighter")
    first = (bench.out / "rows.csv").read_text()
    shutil.copytree(bench.out / "checkpoints", tmp_path / "other" / "checkpoints")
    bench.out = tmp_path / "other"
    bench.measure("confidence", "brighter")
    bench.measure("confidence,noise", "brighter,pgd2")
    second = (bench.out / "rows.csv").read_text()

    def timeless(text: str) -> list[dict[str, str]]:
        return [{**record, "seconds": ""} for record in csv.DictReader(text.splitlines())]

    assert timeless(first) == timeless(second)
    assert first.splitlines()[0] == ",".join(COLUMNS)
    assert [(row["rejector"], row["attack"]) for row in timeless(first)] == [
        (rejector, attack) for rejector in ("confidence", "noise") for attack in ("clean", "brighter", "pgd2")
    ]


def test_the_manifest_names_every_run(bench: Any) -> None:
    bench.measure("confidence", "clean")
    bench.measure("confidence", "misbehaving(nan)")
    runs = json.loads((bench.out / "manifest.json").read_text())["runs"]
    assert [(run["cells"], run["failed"]) for run in runs] == [(1, 0), (2, 1)]
    assert all(run["command"] == "'a test'" and run["packages"]["torch"] and run["version"] for run in runs)


# What the numbers must be.


@pytest.mark.parametrize("budget", ["linf:0", "l2:0"])
def test_a_budget_of_zero_equals_clean_in_every_metric(bench: Any, budget: str) -> None:
    for rejector in ("confidence", "kd"):
        rows = bench.measure(rejector, "pgd5,adaptive(con+rcon,steps=3)", budgets=budget)
        clean, *moved = map(measured, rows)
        assert len(moved) == 2
        assert all(row == clean for row in moved)


def test_a_budget_of_one_leaves_nothing_right(bench: Any) -> None:
    row = by_attack(bench.measure("confidence", "pgd40(step=1/20)", budgets="linf:1"))["pgd40(step=1/20)"]
    assert row.acc_all == 0
    assert (row.auc, row.acc_tpr95, row.fpr95) == (None, None, None)
    assert (row.status, row.error) == ("ok", "")


def test_a_wide_l2_budget_is_not_taken_for_a_breach_by_rounding(bench: Any) -> None:
    rows = bench.measure("confidence", "pgd12(step=2)", budgets="l2:3,l2:6")
    assert [row.error for row in rows] == ["", "", ""]


def test_random_scores_have_auc_one_half_within_their_interval(bench: Any) -> None:
    rejectors = ",".join(f"noise(salt={salt})" for salt in range(1, 21))
    rows = [row for row in bench.measure(rejectors, "pgd10", limit=None) if row.attack == "pgd10"]
    assert len(rows) == 20
    covered = [row.auc_low <= 0.5 <= row.auc_high for row in rows]
    assert sum(covered) >= 15, "95 % of the intervals should hold 0.5; less than 15 of 20 is one chance in 3,000"
    assert abs(float(np.mean([row.auc for row in rows])) - 0.5) < 0.03


def test_rejecting_everything_is_robust_and_useless(bench: Any) -> None:
    for row in bench.measure("reject-all", "brighter"):
        assert (row.deploy_robust, row.deploy_coverage, row.deploy_acc) == (100, 0, None)
        assert row.deploy_threshold == 2


def test_an_oracle_is_noted_and_nobody_else(bench: Any) -> None:
    for row in bench.measure("confidence,t-con", "brighter"):
        assert ("oracle" in row.note) == (row.rejector == "t-con")


# What fails fails alone and says why.


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("far", "the attack left its budget: linf 0.3 > 0.1"),
        ("boldly far", "the attack left its budget"),
        ("outside", "the attack left the range [0, 1]"),
        ("nan", "NaN"),
        ("few", "misshapen"),
        ("flat", "misshapen"),
        ("value", "ValueError: a plugin's own trouble"),
        ("attribute", "AttributeError: a plugin's own trouble"),
        ("assertion", "AssertionError: a plugin's own trouble"),
        ("os", "OSError: a plugin's own trouble"),
    ],
)
def test_an_attack_that_misbehaves_is_a_failed_row_that_says_so(bench: Any, how: str, reason: str) -> None:
    rows = by_attack(bench.measure("confidence", f"misbehaving({how}),brighter", budgets="linf:1/10"))
    failed = rows.pop(f"misbehaving(how={how})", None) or rows.pop(f"misbehaving({how})")
    assert failed.status == "failed"
    assert reason in failed.error
    assert "\n" not in failed.error
    assert all(value is None for value in measured(failed).values())
    assert [row.status for row in rows.values()] == ["ok", "ok"]
    assert sorted(row.status for row in read_rows(bench.out)) == ["failed", "ok", "ok"]


@pytest.mark.parametrize("how", ["in place", "labels"])
def test_an_attack_cannot_change_the_data_it_is_judged_on(bench: Any, how: str) -> None:
    honest = by_attack(bench.measure("confidence", "brighter"))
    rows = bench.measure("confidence", f"misbehaving({how}),pgd1")
    data = fingerprint(Digits().load("test").at(slice(60)))
    for row in rows:
        if row.status == "ok":
            assert row.data_sha256 == data
        if row.attack.startswith("misbehaving") and how == "in place":
            assert row.status == "failed", "grey images are far outside the budget"
        if row.attack.startswith("misbehaving") and how == "labels":
            assert row.acc_all == honest["brighter"].acc_all


def test_a_failed_row_is_tried_again_by_the_next_run(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [row.status for row in bench.measure("confidence", "misbehaving(nan)")] == ["ok", "failed"]
    assert [row.status for row in bench.measure("confidence", "misbehaving(nan)")] == ["ok", "failed"]
    assert len(bench.attacked()) == 1
    monkeypatch.setattr(Misbehaving, "works", True)
    rows = bench.measure("confidence", "misbehaving(nan)")
    assert [(row.status, row.error) for row in rows] == [("ok", ""), ("ok", "")]
    assert [row.status for row in read_rows(bench.out)] == ["ok", "ok"]


@pytest.mark.parametrize(
    ("rejector", "reason"),
    [
        ("wrong(nan)", "gives NaN"),
        ("wrong(shape)", "scores for"),
        ("unfit", "too few examples"),
    ],
)
def test_a_rejector_that_misbehaves_fails_its_own_rows_alone(bench: Any, rejector: str, reason: str) -> None:
    rows = bench.measure(f"{rejector},confidence", "brighter")
    assert [row.status for row in rows if row.rejector == "confidence"] == ["ok", "ok"]
    failed = [row for row in rows if row.rejector != "confidence"]
    assert [row.status for row in failed] == ["failed", "failed"]
    assert all(reason in row.error for row in failed)
    assert Brighter.calls == [60]


def test_infinite_scores_are_measured_or_refused_in_words(bench: Any) -> None:
    for row in bench.measure("wrong(infinite)", "brighter"):
        assert row.status == "ok" or "infinite" in row.error


def rewrite(bench: Any, trained_as: str, **changes: Any) -> None:
    """Change a checkpoint of the work folder: `nan` its weights, or some of its facts."""
    for path in (bench.out / "checkpoints").glob("*.safetensors"):
        checkpoint = read_checkpoint(path)
        if checkpoint.facts["trained_as"] == trained_as:
            is_broken = changes.get("nan")
            tensors = {
                name: tensor * float("nan") if is_broken and name == "classifier.weight" else tensor
                for name, tensor in checkpoint.tensors.items()
            }
            facts = {key: value for key, value in changes.items() if key != "nan"}
            write_checkpoint(path, tensors, {**checkpoint.facts, **facts})


def test_nan_logits_fail_the_rows_of_their_checkpoint_and_the_others_finish(bench: Any) -> None:
    rewrite(bench, "pgd-at", nan=True)
    rows = bench.measure("confidence,ebd", "brighter")
    assert [(row.rejector, row.status) for row in rows] == [
        ("confidence", "failed"),
        ("confidence", "failed"),
        ("ebd", "ok"),
        ("ebd", "ok"),
    ]
    assert all("NaN" in row.error for row in rows[:2])
    assert sorted(row.status for row in read_rows(bench.out)) == ["failed", "failed", "ok", "ok"]


def test_rows_that_failed_with_their_checkpoint_are_in_the_csv(bench: Any) -> None:
    rewrite(bench, "pgd-at", nan=True)
    bench.measure("confidence", "brighter")
    assert [row.status for row in read_rows(bench.out)] == ["failed", "failed"]


def test_nan_that_only_an_attack_brings_forth_fails_that_row(empty: Any) -> None:
    recipe = {"epochs": 1, "batch": 1077}
    rows = by_attack(empty.measure("confidence", "brighter,pgd1", network="fragile", recipe=recipe))
    assert [row.status for row in rows.values()] == ["ok", "failed", "ok"]
    assert "NaN" in rows["brighter"].error


def test_an_unexpected_accuracy_stops_the_cells_of_its_checkpoint(bench: Any) -> None:
    correct = unpack_bits(only_checkpoint(bench, "pgd-at").facts["clean_correct"])
    rewrite(bench, "pgd-at", clean_correct=pack_bits(~correct))
    rows = bench.measure("confidence,ebd", "brighter")
    assert [row.status for row in rows] == ["failed", "failed", "ok", "ok"]
    assert all(
        "clean accuracy" in row.error and "was expected: wrong data or preprocessing" in row.error for row in rows[:2]
    )
    assert Brighter.calls == [60], "only the checkpoint that fits is attacked"
    rewrite(bench, "pgd-at", clean_correct=pack_bits(correct))
    assert [row.status for row in bench.measure("confidence,ebd", "brighter")] == ["ok"] * 4


def only_checkpoint(bench: Any, trained_as: str) -> Any:
    found = [read_checkpoint(path) for path in (bench.out / "checkpoints").glob("*[0-9a-f].safetensors")]
    return next(checkpoint for checkpoint in found if checkpoint.facts["trained_as"] == trained_as)


def test_a_checkpoint_of_another_shape_is_refused_in_one_line(bench: Any) -> None:
    path = only_checkpoint(bench, "pgd-at").path
    checkpoint = read_checkpoint(path)
    wrong = {**checkpoint.tensors, "classifier.weight": torch.zeros(10, 3)}
    write_checkpoint(path, wrong, checkpoint.facts)
    with pytest.raises(UseError, match=r"does not fit this network: 'classifier.weight' is \(10, 3\), not \(10, 64\)"):
        bench.measure("confidence", "brighter")


def test_a_framework_that_raises_fails_its_own_rows_alone(bench: Any) -> None:
    rows = bench.measure("confidence", "brighter", frameworks="broken,pgd-at")
    assert [row.status for row in rows] == ["failed", "failed", "ok", "ok"]
    assert all("AttributeError: a framework's own trouble" in row.error for row in rows[:2])
    assert len(read_rows(bench.out)) == 4


def test_a_training_that_diverges_fails_its_rows(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True)
    class Diverging(BrokenTraining):
        def __call__(self, victim: Victim, batch: Batch, draws: Draws) -> Tensor:
            return F.cross_entropy(victim.network(batch.images).logits, batch.labels) * float("nan")

    monkeypatch.setitem(table("framework").classes, "broken", Diverging)
    (row,) = bench.measure("confidence", "clean", frameworks="broken")
    assert row.status == "failed"
    assert "diverged in epoch 1" in row.error


def test_keeping_all_images_is_done_or_refused_aloud_in_a_folder_that_has_few(bench: Any) -> None:
    def kept() -> set[int]:
        return {len(np.load(path)["images"]) for path in (bench.out / "scores").iterdir()}

    bench.measure("confidence", "brighter")
    assert kept() == {16}
    bench.measure("confidence", "brighter", keep="images")
    assert kept() == {60} or any("keep" in line for line in bench.report.lines)


def test_rows_of_earlier_code_are_named(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.measure("confidence", "brighter")
    earlier = {path.name for path in (bench.out / "cells").iterdir()}
    assert not any("earlier code" in line for line in bench.report.lines)
    monkeypatch.setattr("rrbench.cells.code", lambda kind, name: "edited")
    bench.measure("confidence", "brighter")
    (told,) = [line for line in bench.report.lines if "earlier code" in line]
    assert told.startswith(f"{len(earlier)} rows beside these are of earlier code")
    assert set(re.findall(r"cells/(\S+\.json)", told)) == earlier


def test_rows_of_another_limit_are_not_of_earlier_code(bench: Any) -> None:
    for limit in (360, None):  # as many as there are, either way
        bench.measure("confidence", "brighter", limit=limit)
    assert len(read_rows(bench.out)) == 4
    assert not any("earlier code" in line for line in bench.report.lines)


def test_what_one_run_kept_a_later_one_leaves_there(bench: Any) -> None:
    def kept() -> list[tuple[bool, int]]:
        found = [np.load(path) for path in sorted((bench.out / "moved").iterdir())]
        return [("moved_features" in arrays, len(arrays["images"])) for arrays in found]

    bench.measure("confidence", "brighter", keep="features,images")
    before = kept()
    assert (True, 60) in before
    bench.measure("kd", "brighter")
    assert kept() == before


def test_what_a_run_found_and_was_asked_to_keep_stays_too(bench: Any) -> None:
    bench.measure("confidence", "brighter", keep="images")
    for path in (bench.out / "moved").iterdir():
        arrays = dict(np.load(path))
        del arrays["asked"]  # as an earlier version wrote it
        np.savez(path, **arrays)
    bench.measure("confidence,t-con", "brighter", keep="images")
    bench.measure("confidence,kd", "brighter")
    assert {len(np.load(path)["images"]) for path in (bench.out / "moved").iterdir()} == {60}


def test_a_pair_that_does_not_fit_is_left_out_with_a_line_and_nothing_left_is_refused(bench: Any) -> None:
    with pytest.raises(UseError, match="nothing to run"):
        bench.prepare("carl", "clean", frameworks="pgd-at")
    job = bench.prepare("confidence,carl", "brighter", frameworks="pgd-at")
    assert {str(cell.rejector) for cell in job.plan.cells} == {"confidence"}
    assert len(job.plan.dropped) == 1
    bench.measure("confidence,carl", "brighter", frameworks="pgd-at")
    assert [line for line in bench.report.lines if line.startswith("left out")]


def test_rows_are_plain_and_complete(bench: Any) -> None:
    for row in bench.measure("confidence", "brighter"):
        for field in dataclasses.fields(row):
            assert isinstance(getattr(row, field.name), str | int | float | None), field.name
