import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from own_network import Linear, inputs
from rrbench.api import Job, RunOptions, prepare
from rrbench.compute.devices import describe
from rrbench.engines.estimate import RATES, Rates, attack_gradients, describe_plan, rates_here, training_gradients
from rrbench.files.arrays import save_arrays
from rrbench.measuring.materials import Materials
from rrbench.measuring.runner import Runner
from rrbench.measuring.store import Store
from rrbench.planning.cells import Plan
from rrbench.planning.plan import Request, make_plan
from rrbench.plugins.config import load_preset
from rrbench.plugins.own import holding
from rrbench.rows.record import CellRecord
from rrbench.rows.row import ResultRow

CPU = torch.device("cpu")


def plan(rejectors: Sequence[str], attacks: Sequence[str], preset: str = "quick", **more: Any) -> Plan:
    return make_plan(Request(rejectors, attacks, **more), load_preset(preset))


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    # Without the checkpoints of the package, so that every cost shows.
    return Runner(Materials(Store(tmp_path), CPU, "fp32", (), retrain=True))


def finished(runner: Runner, key: str, **changes: Any) -> None:
    row = ResultRow("digits", "small-cnn", "pgd-at", "pgd-at", "rr", "pgd10", "linf", "3/20", 0, "quick", 100)
    row = replace(row, **{"seconds": 1.0, "gradients": 10.0, "device": describe(CPU), **changes})
    runner.materials.store.save_cell(
        CellRecord(key, "", row, {"checkpoint": "", "tpr_rule": "quantile", "resamples": 0}, {})
    )


@pytest.mark.parametrize(
    ("rejector", "preset", "dataset", "expected"),
    [
        # epochs x (training images x (steps + updates) + images that choose the epoch x PGD-10's steps)
        ("confidence", "quick", "digits", 15 * (1077 * (7 + 1) + 360 * 10)),
        ("ccat", "quick", "digits", 15 * (1077 * (14 + 7 + 2) + 360 * 10)),
        ("confidence", "paper", "cifar10", 110 * (50_000 * (10 + 1) + 10_000 * 10)),
        ("confidence", "quick", "cifar10", 10 * (50_000 * (10 + 1) + 1_000 * 10)),
    ],
)
def test_a_training_costs_its_attack_its_updates_and_the_choice_of_epoch(
    rejector: str, preset: str, dataset: str, expected: int
) -> None:
    (training,) = plan([rejector], ["clean"], preset, datasets=[dataset]).checkpoints()
    assert training_gradients(training) == expected


@pytest.mark.parametrize(
    ("attack", "limit", "expected"),
    [
        ("clean", None, 0),
        ("pgd100", None, 360 * 100),
        ("pgd100x3", 50, 50 * 300),
        ("pgd100", 5000, 360 * 100),
        ("adaptive50(ce+rcon,eta=0.1:1)", None, 360 * 50 * 2),
        ("adaptive50x3(con+rr(multi),eta=1)", None, 360 * 150 * 9),
    ],
)
def test_an_attack_costs_steps_restarts_etas_and_targets_for_each_image(
    attack: str, limit: int | None, expected: int
) -> None:
    cell = plan(["rr"], [attack], limit=limit).cells[-1]
    assert attack_gradients(cell) == expected


@pytest.mark.parametrize(("every", "expected"), [(10, 36 * 100), (7, 52 * 100), (360, 100), (1, 360 * 100)])
def test_every_so_many_th_input_costs_its_share(every: int, expected: int) -> None:
    assert attack_gradients(plan(["rr"], ["pgd100"], every=every).cells[-1]) == expected


def test_the_plan_is_shown_with_what_is_shared_and_what_it_costs(runner: Runner) -> None:
    shown = describe_plan(plan(["confidence", "kd", "carl"], ["pgd10"], frameworks=["pgd-at"]), runner)
    table, total = shown.split("\n\n")
    assert table.splitlines() == [
        "what               attack or name  budget or data  seed  gradients  state",
        "-----------------  --------------  --------------  ----  ---------  -------------",
        "checkpoint         pgd-at          digits                  183,240  to be trained",
        "pgd-at confidence  clean                              0          0  to be run",
        "pgd-at kd          clean                              0          0  shared",
        "pgd-at confidence  pgd10           linf:3/20          0      3,600  to be run",
        "pgd-at kd          pgd10           linf:3/20          0          0  shared",
        "left out: carl does not run on pgd-at: it needs carl",
    ]
    assert total == (
        "4 cells on 1 checkpoint, 2 of them share an attack already run\n"
        f"186,840 gradient evaluations, about 35 s on {describe(CPU)}"
    )
    rates = RATES["small-cnn", "cpu"]
    assert round(183_240 / rates.training + 3_600 / rates.attack) == 35


def gradients_shown(planned: Plan, runner: Runner) -> dict[str, int]:
    """Return the gradients of each line that is no checkpoint and not clean, by `rejector attack`."""
    lines = [line.split() for line in describe_plan(planned, runner).splitlines() if line.startswith("pgd-at ")]
    return {f"{line[1]} {line[2]}": int(line[-4].replace(",", "")) for line in lines if "to be run" in " ".join(line)}


def test_a_worst_case_costs_what_its_members_cost_unless_they_have_rows_of_their_own(runner: Runner) -> None:
    alone = plan(["confidence", "energy"], ["worst-case"])
    worst = [cell for cell in alone.cells if str(cell.attack) == "worst-case"]
    cost = sum(attack_gradients(worst[0].member(choice)) for choice in worst[0].members)
    assert cost > 360 * 1000, "AutoAttack and PGD-100 are among them"
    shown = gradients_shown(alone, runner)
    # Members run inside a worst case are not stored, so both rejectors pay.
    assert {name: shown[name] for name in shown if "worst" in name} == {
        "confidence worst-case": cost,
        "energy worst-case": cost,
    }
    both = gradients_shown(plan(["confidence"], ["worst-case", "pgd100"]), runner)
    assert both["confidence pgd100"] == 360 * 100
    assert both["confidence worst-case"] == cost - 360 * 100
    every = gradients_shown(plan(["confidence"], ["worst-case", *map(str, worst[0].members)]), runner)
    assert every["confidence worst-case"] == 0
    assert sum(every.values()) == cost


def test_the_cost_of_a_worst_case_is_what_its_row_measures(bench: Any, tmp_path: Path) -> None:
    config = tmp_path / "few.toml"
    few = '[run]\nall_attacks = ["pgd3", "selective-pgd5", "worst-case"]\n'
    config.write_text(f"{bench.config.read_text()}\n{few}")
    job = bench.prepare("confidence", "worst-case", config=config)
    shown = gradients_shown(job.plan, job.runner)["confidence worst-case"]
    (row,) = [row for row in bench.measure("confidence", "worst-case", config=config) if row.attack == "worst-case"]
    assert shown == (row.gradients or 0) * 60 == 60 * (3 + 5)
    assert "pgd-at confidence worst-case linf:3/20 (8 gradients an image)" in bench.report.tasks


def test_an_attack_without_a_budget_takes_its_time_in_float32_unless_it_certifies_its_answers() -> None:
    rates = Rates(attack=1000.0, training=1.0, exact=10.0)
    planned = plan(["rr"], ["pgd10", "cw-l2(steps=5,searches=2)", "over-reject(steps=5,searches=2)"], limit=20)
    seconds = {cell.attack.name: rates.seconds(cell) for cell in planned.cells}
    fast, slow = 20 * 10 / 1000.0, 20 * 10 / 10.0
    assert seconds == {"clean": 0, "pgd": fast, "cw-l2": fast, "over-reject": slow}


def test_what_is_there_already_costs_nothing(runner: Runner) -> None:
    planned = plan(["confidence", "kd"], ["pgd10", "pgd20"])
    (training,) = planned.checkpoints()
    source = runner.materials.source(training)
    source.path.parent.mkdir(parents=True)
    source.path.write_bytes(b"weights")
    ten = next(cell for cell in planned.cells if str(cell.attack) == "pgd10")
    twenty = next(cell for cell in planned.cells if str(cell.attack) == "pgd20")
    finished(runner, ten.key(source.key, "fp32"), gradients=None)
    moved = runner.materials.store.attack_path(twenty.attack_key(source.key, "fp32"))
    save_arrays(moved, {"vanished": np.asarray(0.0)})
    lines = describe_plan(planned, runner).splitlines()[2:9]
    assert [line.rsplit("  ", 1)[1] for line in lines] == [
        "there",
        "to be run",
        "shared",
        "done",
        "shared",
        "attack stored",
        "shared",
    ]
    assert "\n0 gradient evaluations, about 0 s" in describe_plan(planned, runner)


def test_a_failed_cell_will_be_run_again(runner: Runner) -> None:
    planned = plan(["confidence"], ["pgd10"])
    cell = planned.cells[-1]
    finished(runner, cell.key(runner.materials.source(cell.training).key, "fp32"), status="failed")
    assert "3,600  to be run" in describe_plan(planned, runner)


def test_the_rate_is_the_median_of_what_this_folder_measured_on_this_device(runner: Runner) -> None:
    assert rates_here("small-cnn", runner.materials) == RATES["small-cnn", "cpu"]
    for index, seconds in enumerate([1.0, 2.0, 100.0]):
        finished(runner, f"cell{index}", seconds=seconds)
    finished(runner, "clean", gradients=0.0)
    finished(runner, "elsewhere", device="another", seconds=0.001)
    finished(runner, "other", network="resnet18", seconds=0.001)
    assert rates_here("small-cnn", runner.materials) == RATES["small-cnn", "cpu"]._replace(attack=10 * 100 / 2.0)
    assert rates_here("resnet18", runner.materials).attack == 10 * 100 / 0.001


def test_a_network_that_nobody_measured_is_taken_for_a_resnet_on_the_same_kind_of_device(runner: Runner) -> None:
    assert rates_here("mine", runner.materials) == RATES["resnet18", "cpu"]


@pytest.mark.parametrize(
    ("rate_of_this_machine", "shown"), [(1800, "about 2 s"), (12, "about 5 min"), (0.1, "about 10 h")]
)
def test_the_time_is_shown_in_its_unit(runner: Runner, rate_of_this_machine: float, shown: str) -> None:
    planned = plan(["confidence"], ["pgd10"])
    (training,) = planned.checkpoints()
    path = runner.materials.source(training).path
    path.parent.mkdir(parents=True)
    path.write_bytes(b"weights")
    finished(runner, "measured", gradients=10.0, seconds=10 * 100 / rate_of_this_machine)
    assert f"3,600 gradient evaluations, {shown} on" in describe_plan(planned, runner)


def test_the_time_with_several_workers_follows_the_schedule(runner: Runner) -> None:
    # Two checkpoints, each trained (183,240 gradients, 34.6 s) and then attacked (3,600, 0.3 s).
    assert RATES["small-cnn", "cpu"][:2] == (12_800, 5_300)
    shown = describe_plan(plan(["confidence", "rr"], ["pgd10"]), runner, [1, 2, 64])
    assert shown.splitlines()[-4:] == [
        f"373,680 gradient evaluations, about 70 s on {describe(CPU)}",
        "about 70 s with 1 worker",
        "about 35 s with 2 workers",
        "about 35 s with 64 workers",
    ]


def test_the_looks_of_a_rejector_take_their_time_where_the_attack_meets_them() -> None:
    seconds = {
        (str(cell.rejector), str(cell.attack)): RATES["small-cnn", "cpu"].seconds(cell)
        for cell in plan(["margin", "cpr", "cpr(steps=2)", "pro"], ["pgd10", "selective-pgd"]).cells
    }
    plain = seconds["margin", "selective-pgd"]
    assert plain > 0
    assert {rejector: seconds[rejector, "selective-pgd"] / plain for rejector, _ in seconds} == pytest.approx(
        {"margin": 1, "cpr": 1 + 10 + 1, "cpr(steps=2)": 1 + 2 + 1, "pro": 1 + 3 + 3}
    )
    assert len({found for (_, attack), found in seconds.items() if attack == "pgd10"}) == 1


def test_a_row_of_a_rejector_that_looks_tells_no_rate(runner: Runner) -> None:
    finished(runner, "a" * 24, rejector="cpr(steps=5)", seconds=27.0)
    assert rates_here("small-cnn", runner.materials) == RATES["small-cnn", "cpu"]
    finished(runner, "b" * 24, rejector="margin", seconds=2.0)
    assert rates_here("small-cnn", runner.materials).attack == 10 * 100 / 2.0


class Slow(Linear):
    """Takes 2 ms for each image: 500 gradients a second at most."""

    def forward(self, images: Tensor) -> Tensor:
        time.sleep(0.002 * len(images))
        return super().forward(images)


class Flat(Linear):
    """Has no gradient, so it cannot be timed."""

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images).detach()


@pytest.fixture
def held() -> Iterator[None]:
    with holding():
        yield


def job_of(out: Path, *networks: nn.Module) -> Job:
    """60 images of each network, attacked with 20 gradients each."""
    given = {type(network).__name__.lower(): network for network in networks}
    return prepare(
        RunOptions("confidence", "pgd20", dataset=inputs(60), network=given, budgets="linf:1/50", out=out, device="cpu")
    )


def shown_seconds(job: Job) -> tuple[float, list[str]]:
    """Return the estimated time, which must be shown in seconds, and what is said below it."""
    *_, total = describe_plan(job.plan, job.runner).split("\n\n")
    _, cost, *below = total.splitlines()
    found = re.search(r"about (\d+) s on", cost)
    assert found, cost
    return int(found[1]), below


@pytest.mark.usefixtures("held")
def test_the_time_of_a_network_of_the_user_s_own_follows_its_own_speed(tmp_path: Path) -> None:
    # As a ResNet-18 each would take 1,200 / 25 = 48 s.
    fast, below = shown_seconds(job_of(tmp_path, Linear()))
    assert fast <= 1
    assert below == ["this is an estimate: linear was timed on a few images, without an attack"]
    slow, _ = shown_seconds(job_of(tmp_path, Slow()))
    assert 2 <= slow <= 10
    both, below = shown_seconds(job_of(tmp_path, Linear(), Slow()))
    assert 2 <= both <= 11
    assert below == ["this is an estimate: linear, slow were timed on a few images, without an attack"]


@pytest.mark.usefixtures("held")
def test_a_network_that_cannot_be_timed_counts_as_a_resnet_and_the_plan_says_so(tmp_path: Path) -> None:
    seconds, below = shown_seconds(job_of(tmp_path, Flat()))
    assert seconds == 1200 / RATES["resnet18", "cpu"].attack
    assert below == ["this is an estimate: flat was counted as a ResNet-18, for timing failed"]


class Crowded(Linear):
    """Refuses one image, and more than eight."""

    def forward(self, images: Tensor) -> Tensor:
        if not 2 <= len(images) <= 8:
            raise RuntimeError("out of memory")
        return super().forward(images)


@pytest.mark.usefixtures("held")
def test_a_network_that_fails_on_large_batches_has_the_speed_of_smaller_ones(tmp_path: Path) -> None:
    seconds, below = shown_seconds(job_of(tmp_path, Crowded()))
    assert seconds <= 1
    assert below == ["this is an estimate: crowded was timed on a few images, without an attack"]


@pytest.mark.usefixtures("held")
def test_rows_of_a_given_network_tell_its_speed_and_that_of_no_other(tmp_path: Path) -> None:
    job = job_of(tmp_path, Linear())
    sha256 = job.materials.read(job.plan.cells[0].training, job.materials.source(job.plan.cells[0].training)).sha256
    finished(job.runner, "other", network="Linear", checkpoint_sha256="0" * 64, seconds=1000.0)
    assert shown_seconds(job)[0] <= 1
    finished(job.runner, "own", network="Linear", checkpoint_sha256=sha256, seconds=25.0)  # 40 gradients a second
    assert shown_seconds(job) == (30, [])


@pytest.mark.usefixtures("held")
def test_timing_leaves_a_network_as_it_was(tmp_path: Path) -> None:
    network = Linear().train()
    shown_seconds(job_of(tmp_path, network))
    assert network.training
    assert network.weight.requires_grad
    assert network.weight.grad is None
    assert torch.equal(network.weight, Linear().weight)
