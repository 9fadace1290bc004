"""`transfer`: images that are moved on another network; values worked out by hand, keys, sharing, refusals."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import rrbench
from finished_run import one_cell, verify
from made_up_plugins import METRICS
from own_network import Linear, inputs
from plan_parts import attacks, plan
from rrbench import api, zoo
from rrbench.engines.estimate import describe_plan, seconds_of
from rrbench.errors import UseError
from rrbench.files.arrays import load_arrays
from rrbench.files.checkpoints import read_checkpoint, write_checkpoint
from rrbench.planning.cells import Cell, attack_key, cell_key
from rrbench.planning.units import units_of
from rrbench.plugins.registry import table
from rrbench.protocols import Batch, DataInfo, DataSource, NetworkSource, Outputs, Rejector, Split
from rrbench.rows.record import read_cell
from rrbench.rows.row import ResultRow
from rrbench.training.train import describe_training

pytestmark = pytest.mark.usefixtures("own_folder")

ROOT = Path(__file__).resolve().parents[3]
TRANSFER = "transfer(pgd-at,by=pgd3)"

# A network that says 0 and a lead linear in four pixels, and inputs of known leads.
EPS = 0.1
OTHER, VICTIM = torch.tensor([1.0, -2.0, 3.0, -4.0]), torch.tensor([1.0, 2.0, 3.0, -4.0])
LEADS = torch.tensor([0.3, 0.5, 0.7, 0.9, 1.1, -0.3, -0.7, -1.1])  # of class 1, by the victim
LABELS = (LEADS > 0).long()
IMAGES = (0.5 + LEADS[:, None] * VICTIM / VICTIM.square().sum()).view(-1, 1, 2, 2)


class Side(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(4))

    def forward(self, images: Tensor) -> Outputs:
        flat = images.flatten(1)
        lead = (flat - 0.5) @ self.weights
        return Outputs(flat, torch.stack([torch.zeros_like(lead), lead], 1), flat[:, :0])


@dataclass(frozen=True)
class Sides(NetworkSource):
    def build(self, info: DataInfo, rejector: Rejector) -> nn.Module:
        return Side()


@dataclass(frozen=True)
class Points(DataSource):
    info = DataInfo(2, (1, 2, 2), (0.0,), (1.0,), len(LABELS), len(LABELS), len(LABELS))

    def load(self, split: Split, roots: tuple[Path, ...]) -> Batch:
        first = {"test": 0, "train": 100, "calibration": 200}[split]
        return Batch(IMAGES.clone(), LABELS.clone(), torch.arange(first, first + len(LABELS)))


def by_attack(rows: list[ResultRow]) -> dict[str, ResultRow]:
    return {row.attack: row for row in rows}


# Values.


def test_on_linear_networks_the_images_and_the_accuracy_are_those_of_a_hand_calculation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Moving against OTHER by EPS takes EPS * sign(OTHER) @ VICTIM = 0.6 of a lead; the victim's own gradient 1.0."""
    monkeypatch.setitem(table("network").classes, "sides", Sides)
    monkeypatch.setitem(table("dataset").classes, "points", Points)
    last = "pgd50(keep=last,select=ce)"
    job = api.prepare(
        api.RunOptions(
            "confidence",
            f"{last},transfer(standard,by={last})",
            dataset="points",
            network="sides",
            frameworks="pgd-at",
            budgets="linf:1/10",
            out=tmp_path,
            device="cpu",
        )
    )
    weights = {"standard": OTHER, "pgd-at": VICTIM}
    for training in job.plan.trainings():
        facts = describe_training(training)
        write_checkpoint(job.materials.source(training).path, {"weights": weights[training.trained_as]}, facts)
    rows = by_attack(api.execute(job, ["a test"]))
    transfer = f"transfer(standard,by={last})"
    assert {name: row.acc_all for name, row in rows.items()} == {
        "clean": 100.0,
        last: 25.0,  # leads of 1.1 alone are above 1.0
        transfer: 62.5,  # and of 0.7, 0.9 and 1.1 above 0.6
    }
    record, _ = read_cell(one_cell(tmp_path, attack=transfer))
    (name,) = [name for name in record.files if name.startswith("attacks/")]
    away = torch.where(LABELS == 1, -EPS, EPS)[:, None] * OTHER.sign()
    assert np.allclose(load_arrays(tmp_path / name)["images"], IMAGES + away.view(-1, 1, 2, 2), atol=1e-6)
    assert rows[transfer].gradients == rows[last].gradients == 50


def test_from_a_network_of_the_very_same_weights_the_row_is_that_of_the_plain_attack(bench: Any) -> None:
    job = bench.prepare("rr", f"pgd3,{TRANSFER}")
    victim, other = (job.materials.source(training).path for training in job.plan.trainings())
    same = read_checkpoint(victim)
    bare = {name: tensor for name, tensor in same.tensors.items() if not name.startswith("head")}
    assert len(bare) < len(same.tensors)
    facts = {**read_checkpoint(other).facts, "clean_correct": same.facts["clean_correct"]}
    write_checkpoint(other, bare, facts)
    rows = by_attack(api.execute(job, ["a test"]))
    compared = (*METRICS, "note", "gradients", "forwards", "n")
    plain, moved = ({name: getattr(rows[each], name) for name in compared} for each in ("pgd3", TRANSFER))
    assert moved == plain
    assert plain["acc_all"] < 100


def test_another_network_s_images_are_others(bench: Any) -> None:
    """So the test above could fail: these networks differ."""
    rows = by_attack(bench.measure("rr", f"pgd3,{TRANSFER}"))
    assert len({row.ece for row in rows.values()}) == 3


def test_a_rejector_that_asks_the_network_again_asks_the_victim(bench: Any) -> None:
    rows = bench.measure("confidence,cpr(steps=2)", "transfer(pgd-at+rr,by=pgd3)", frameworks="pgd-at")
    confidence, cpr = (row for row in rows if row.attack != "clean")
    assert confidence.acc_all == cpr.acc_all
    assert verify(bench.out, rerun=True).confirmed == 4


# Keys.


def transfer_cell(rejector: str = "rr", text: str = "transfer(pgd-at)") -> Cell:
    return next(cell for cell in plan([rejector], [text]).cells if str(cell.attack) == text)


def test_the_other_checkpoint_and_the_attack_behind_are_in_the_keys() -> None:
    cell = transfer_cell()
    described = [
        cell.describe("c", "fp32", "one"),
        cell.describe("c", "fp32", "two"),
        cell.describe("d", "fp32", "one"),
        transfer_cell(text="transfer(pgd-at,by=pgd20)").describe("c", "fp32", "one"),
        transfer_cell(text="transfer(trades)").describe("c", "fp32", "one"),
    ]
    assert len(set(map(cell_key, described))) == len(set(map(attack_key, described))) == 5


def test_rejectors_of_a_network_share_one_transfer_and_it_is_blind() -> None:
    cells = [cell for cell in plan(["confidence", "kd"], ["transfer(trades)"]).cells if cell.moved_on]
    assert len(cells) == 2
    assert not any(cell.is_adaptive for cell in cells)
    assert len({attack_key(cell.describe("c", "fp32", "one")) for cell in cells}) == 1


def test_a_cell_without_another_network_has_the_key_that_it_had() -> None:
    published = json.loads(min((ROOT / "results" / "cifar10" / "cells").iterdir()).read_text())
    assert (cell_key(published["cell"]), attack_key(published["cell"])) == (published["key"], published["attack"])
    (_, plain) = plan(["confidence"], ["pgd10"]).cells
    assert plain.describe("c", "fp32").keys() == published["cell"].keys()
    assert transfer_cell().describe("c", "fp32").keys() == published["cell"].keys() | {"moved_on"}


def test_what_is_moved_on_the_other_network_is_its_own_attack() -> None:
    own = next(cell for cell in plan(["kd"], ["pgd100"]).cells if str(cell.attack) == "pgd100")
    cell = transfer_cell()
    moved = cell.member(*cell.members)
    assert moved.training == own.training
    assert moved.attack_key("c", "fp32") == own.attack_key("c", "fp32")


# Sharing.


def test_what_the_other_network_s_own_row_moved_is_taken_over(bench: Any) -> None:
    bench.measure("rr,confidence,kd,ebd", f"pgd3,{TRANSFER}")
    plain = [label for label in bench.attacked() if "clean" not in label]
    assert plain == [f"{name} pgd3 linf:3/20" for name in ("pgd-at+rr rr", "pgd-at confidence", "pgd-at+ebd ebd")]
    assert list((bench.out / "attacks").glob("*.whole.npz")) == [], "whole images served, and are gone"


def test_one_run_on_the_other_network_serves_all_victims(bench: Any) -> None:
    rows = bench.measure("rr,ebd", TRANSFER)
    assert [label for label in bench.attacked() if "clean" not in label] == ["pgd-at confidence pgd3 linf:3/20"]
    assert [row.gradients for row in rows if row.attack == TRANSFER] == [3, 3]
    assert list((bench.out / "attacks").glob("*.whole.npz")) == []
    bench.measure("rr,ebd", TRANSFER)
    assert bench.attacked() == []


def test_the_other_network_is_trained_first_and_two_may_be_moved_on_each_other() -> None:
    planned = plan(["rr", "confidence"], ["transfer(pgd-at)", "transfer(pgd-at+rr)"])
    units = units_of(planned.cells, planned.trainings())
    assert [(unit.label, unit.after) for unit in units] == [
        ("training pgd-at+rr", ()),
        ("pgd-at+rr rr clean", (0,)),
        ("training pgd-at", ()),
        ("pgd-at confidence clean", (2,)),
        ("pgd-at+rr rr transfer(pgd-at) linf:3/20", (0, 2)),
        ("pgd-at confidence transfer(pgd-at+rr) linf:3/20", (2, 0)),
    ]
    alone = units_of(plan(["rr"], ["transfer(trades)"]).cells, plan(["rr"], ["transfer(trades)"]).trainings())
    assert [unit.label for unit in alone if unit.is_training] == ["training pgd-at+rr", "training trades"]


def test_it_comes_after_the_other_network_s_own_attack_which_keeps_its_images() -> None:
    units = units_of(plan(["rr", "confidence"], ["transfer(pgd-at)", "pgd100"]).cells, ())
    (position,) = [index for index, unit in enumerate(units) if unit.is_member]
    assert units[position].label == "pgd-at confidence pgd100 linf:3/20"
    assert units[-1].label == "pgd-at+rr rr transfer(pgd-at) linf:3/20"
    assert units[-1].after == (position,)


def test_it_fails_alone_where_the_other_network_cannot_be_trained(bench: Any, plugins: None) -> None:
    rows = by_attack(bench.measure("rr", "pgd3,transfer(broken,by=pgd3)"))
    assert {name: row.status for name, row in rows.items()} == {
        "clean": "ok",
        "pgd3": "ok",
        "transfer(broken,by=pgd3)": "failed",
    }


def test_a_dry_run_counts_its_gradients_once(bench: Any) -> None:
    job = bench.prepare("rr,ebd", TRANSFER)
    text = describe_plan(job.plan, job.runner)
    assert "\n180 gradient evaluations" in text  # 3 for each of 60 inputs, for both victims together
    assert sum(seconds > 0 for seconds in seconds_of(job.runner.units(job.plan), job.materials)) == 1
    job = bench.prepare("rr,ebd,confidence", f"pgd3,{TRANSFER}")
    assert "\n540 gradient evaluations" in describe_plan(job.plan, job.runner)
    bench.measure("confidence", "pgd3")
    job = bench.prepare("rr", TRANSFER)
    assert "\n180 gradient evaluations" in describe_plan(job.plan, job.runner), "images of that row are not kept whole"
    bench.measure("confidence", "pgd2", keep="images")
    job = bench.prepare("rr", "transfer(pgd-at,by=pgd2)")
    assert "\n0 gradient evaluations" in describe_plan(job.plan, job.runner)


# Words and refusals.


def test_the_victim_s_own_network_is_left_out_with_a_line() -> None:
    planned = plan(["rr", "confidence"], ["transfer(pgd-at)"])
    assert planned.dropped == ("transfer(pgd-at) does not run on pgd-at: it needs another network",)
    moved = [cell for cell in planned.cells if cell.moved_on]
    assert [cell.training.trained_as for cell in moved] == ["pgd-at+rr"]


def test_it_joins_no_list_of_a_preset_and_no_worst_case(tmp_path: Path) -> None:
    assert not any(text.startswith("transfer") for text in attacks(plan(attacks=["all"])))
    (tmp_path / "list.toml").write_text('[run]\nall_attacks = ["pgd3", "transfer(trades)", "worst-case"]\n')
    job = api.prepare(api.RunOptions("rr", "worst-case", config=tmp_path / "list.toml", out=tmp_path, device="cpu"))
    assert [str(member) for member in job.plan.cells[-1].members] == ["pgd3"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("transfer", "attack 'transfer' needs 'source'"),
        ("transfer(source=)", "no name"),
        ("transfer(pgd-ad)", "unknown framework 'pgd-ad'; near: pgd-at"),
        ("transfer(pgd-at+nothing)", "unknown rejector 'nothing'"),
        ("transfer(pgd-at+carl)", "carl does not run on pgd-at"),
        ("transfer(pgd-at+kd)", "that network is called pgd-at"),
        ("transfer(pgd-at,by=foo)", "unknown attack 'foo'"),
        *(
            (f"transfer(pgd-at,by={by})", f"by={by} is not one blind attack with a budget, such as pgd100")
            for by in ("adaptive", "adaptive(ce+rcon)", "clean", "cw-l2", "worst-case", "transfer(trades)")
        ),
    ],
)
def test_what_cannot_be_is_refused_in_one_line_before_the_run(text: str, words: str) -> None:
    with pytest.raises(UseError) as refused:
        plan(["rr"], [text])
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_settings_inside_a_name_are_read_back() -> None:
    text = "transfer(pgd-at+rr(form=head),by=gama-pgd(steps=5))"
    (cell,) = [cell for cell in plan(["rr"], [text]).cells if cell.moved_on]
    assert str(cell.attack) == text
    assert cell.moved_on is not None
    assert cell.moved_on.trained_as == "pgd-at+rr(form=head)"


def test_evaluate_has_no_other_network() -> None:
    with pytest.raises(UseError) as refused:
        rrbench.evaluate(Linear(), "confidence", "transfer(pgd-at)", inputs(10), budget="linf:1/50")
    expected = "transfer(pgd-at): Linear is given, and a transfer needs a network that is trained here"
    assert str(refused.value) == expected


def test_the_zoo_asked_for_must_have_the_other_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = tmp_path / "zoo"
    shutil.copytree(zoo.EMBEDDED, kept)
    monkeypatch.setenv("RRBENCH_ZOO", str(kept))
    job = api.prepare(
        api.RunOptions("rr", "transfer(trades+rr(form=head))", out=tmp_path / "runs", device="cpu", zoo=True)
    )
    with pytest.raises(UseError, match=r"^no checkpoint trades\+rr\(form=head\) of digits"):
        api.execute(job, ["a test"])
