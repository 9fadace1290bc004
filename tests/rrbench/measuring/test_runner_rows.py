"""The rows of whole runs: every number is judged in float32 and is what it must be, and every row says where from."""

import csv
import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from finished_run import verify
from made_up_plugins import by_attack, measured
from rrbench.compute.instrumented import Instrumented
from rrbench.datasets.check import fingerprint
from rrbench.datasets.digits import Digits
from rrbench.files.checkpoints import load_weights, read_checkpoint
from rrbench.measuring.measured_network import MeasuredNetwork
from rrbench.measuring.store import Store
from rrbench.plugins.registry import build
from rrbench.protocols import Batch, Outputs, Rejector
from rrbench.rows.row import COLUMNS
from rrbench.rows.scores import read_scores
from rrbench.training import train

pytestmark = pytest.mark.usefixtures("plugins")


def only_network(bench: Any) -> tuple[nn.Module, Batch]:
    """Return the network of the checkpoint pgd-at and the sixty inputs that are measured."""
    job = bench.prepare("confidence", "clean")
    training = job.plan.cells[0].training
    network = train.build_network(training, Digits.info, build(Rejector, training.rejector))
    load_weights(network, job.materials.checkpoint(training))
    return network.eval().requires_grad_(False), Digits().load("test").at(slice(60))


# Every number is judged in float32, and every row says where it comes from.


def test_final_images_are_judged_again_in_float32(bench: Any) -> None:
    # Weights trained in bf16 have a name of their own; here the same weights are wanted in both.
    for path in list((bench.out / "checkpoints").glob("*[0-9a-f].safetensors")):
        shutil.copy(path, path.with_name(f"{path.stem}-bf16.safetensors"))
    (row,) = (row for row in bench.measure("confidence", "pgd3", precision="bf16", keep="images") if row.norm)
    assert row.precision == "bf16"
    assert row.status == "ok"
    (record,) = (record for record, _ in Store(bench.out).cells() if record.row.norm)
    scores = read_scores(bench.out, record.files)
    network, batch = only_network(bench)
    images = torch.from_numpy(np.load(Store(bench.out).whole_path(record.attack))["images"])
    assert images.shape == batch.images.shape
    exact, short = network(images).logits, Instrumented(network, "bf16")(images).logits
    assert (exact - short).abs().max() > 1e-3, "this network must make the two differ, or this test proves nothing"
    np.testing.assert_allclose(scores.logits, exact, rtol=1e-4, atol=1e-5)
    assert row.acc_all == pytest.approx(100 * float((exact.argmax(1) == batch.labels).double().mean()))
    np.testing.assert_allclose(scores.certainty, exact.double().softmax(1).amax(1), rtol=1e-4)


def test_clean_answers_are_asked_for_once(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Tensor] = []
    judge = MeasuredNetwork.judge

    def counted(self: MeasuredNetwork, images: Tensor) -> Outputs:
        asked.append(images)
        return judge(self, images)

    monkeypatch.setattr(MeasuredNetwork, "judge", counted)
    clean, attacked = bench.measure("confidence", "clean,pgd1")
    network, batch = only_network(bench)
    assert clean.acc_all == pytest.approx(
        100 * float((network(batch.images).logits.argmax(1) == batch.labels).double().mean())
    )
    measured = [images for images in asked if images.shape == batch.images.shape]
    assert sum(bool(torch.equal(images, batch.images)) for images in measured) == 1
    assert len(measured) == 3, "the clean images, and of PGD the last ones and the wrong ones that it is surest of"
    assert attacked.acc_all < clean.acc_all


def test_weights_trained_in_another_precision_are_not_used_in_this_one(bench: Any) -> None:
    before = set((bench.out / "checkpoints").iterdir())
    bench.measure("confidence", "clean", frameworks="standard", precision="bf16", recipe={"epochs": 1})
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
        assert row.deploy_robust_low <= row.deploy_robust <= row.deploy_robust_high
        assert row.deploy_joint_low <= row.deploy_joint <= row.deploy_joint_high
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
    own = {"steps": 3} if attack == "pgd3" else {"steps": 2, "objective": "ce+rcon", "eta": [1.0]}
    return common | own


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


def test_rows_are_plain_and_complete(bench: Any) -> None:
    for row in bench.measure("confidence", "brighter"):
        for field in dataclasses.fields(row):
            assert isinstance(getattr(row, field.name), str | int | float | None), field.name


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
        assert (row.deploy_robust, row.deploy_coverage, row.deploy_acc, row.deploy_joint) == (100, 0, None, 0)
        assert row.deploy_threshold == 2


def test_an_oracle_is_noted_and_nobody_else(bench: Any) -> None:
    for row in bench.measure("confidence,t-con", "brighter"):
        assert ("oracle" in row.note) == (row.rejector == "t-con")


# Every tenth input is measured as it is among all of them.


def test_every_tenth_input_is_judged_as_in_a_run_over_all(bench: Any) -> None:
    whole = {(row.rejector, row.attack): row for row in bench.measure("confidence,kd", "pgd3", limit=None)}
    tenth = bench.measure("confidence,kd", "pgd3", limit=None, every=10)
    scores: dict[tuple[int | None, str, str], Any] = {}
    for record, _ in Store(bench.out).cells():
        scores[record.row.n, record.row.rejector, record.row.attack] = read_scores(bench.out, record.files)
    assert {row.n for row in whole.values()} == {360}
    assert len(tenth) == 4
    for row in tenth:
        assert (row.n, row.status) == (36, "ok")
        assert row.note.startswith("only every 10th test input")
        assert json.loads(row.settings)["every"] == 10
        some, all_of_them = (scores[n, row.rejector, row.attack] for n in (36, 360))
        assert some.ids.tolist() == all_of_them.ids[::10].tolist()
        assert some.labels.tolist() == all_of_them.labels[::10].tolist()
        np.testing.assert_allclose(some.logits, all_of_them.logits[::10], rtol=1e-3, atol=1e-3)
        assert row.acc_all == pytest.approx(100 * all_of_them.correct[::10].mean())
        # Thresholds come from the same calibration inputs, so what an input meets does not depend on the others.
        assert row.deploy_threshold == whole[row.rejector, row.attack].deploy_threshold
    assert all("every" not in json.loads(row.settings) for row in whole.values())


def test_a_run_over_every_tenth_input_is_confirmed_and_an_ensemble_takes_its_members_answers(
    bench: Any, tmp_path: Path
) -> None:
    config = tmp_path / "two.toml"
    config.write_text(bench.config.read_text() + '\n[run]\nall_attacks = ["pgd1", "pgd2", "worst-case"]\n')
    rows = bench.measure("confidence", "pgd1,worst-case", config=config, limit=None, every=10)
    assert [(row.attack, row.n) for row in rows] == [("clean", 36), ("pgd1", 36), ("worst-case", 36)]
    findings = verify(bench.out, rerun=True)
    assert findings.problems == []
    assert findings.confirmed == findings.rerun == 3
