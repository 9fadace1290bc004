"""What the cells of a plan share, and what changes the keys of rows, attacks and checkpoints."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from plan_parts import PAPER, QUICK, only, pairs, plan, trainings, without_strangers
from rrbench import zoo
from rrbench.names import settings_of
from rrbench.planning.cells import (
    Cell,
    Plan,
    Training,
    attack_key,
    clean_key,
    data_key,
    digest,
    identity,
    show_budget,
    victim_key,
)
from rrbench.plugins.config import ADDED, load_file
from rrbench.plugins.registry import build, restore
from rrbench.protocols import Attack, Framework
from rrbench.rows.currency import superseded
from rrbench.rows.row import ResultRow
from rrbench_baselines.atro import AtroTraining


def test_rectified_rejectors_share_one_checkpoint() -> None:
    planned = plan(["rr", "rr(score=con)", "coupled", "coupled(gamma=0.7)"])
    assert trainings(planned) == ["pgd-at+rr"]
    assert {cell.training.key for cell in planned.cells} == {planned.cells[0].training.key}


def test_settings_that_only_read_the_network_share_one_checkpoint() -> None:
    planned = plan(
        ["lid(k=500)", "lid(k=600)", "kd", "confidence(tau=2)", "t-con", "outside-gap"], datasets=["cifar10"]
    )
    assert trainings(planned) == ["pgd-at"]
    assert len(pairs(planned)) == 6


def test_settings_that_change_the_loss_have_checkpoints_of_their_own() -> None:
    planned = plan(["rr", "rr(tau=0.5)", "rr(weight=2)", "snet", "snet(coverage=0.5)"])
    assert trainings(planned) == [
        "pgd-at+rr",
        "pgd-at+rr(tau=0.5)",
        "pgd-at+rr(weight=2)",
        "pgd-at+snet",
        "pgd-at+snet(coverage=0.5)",
    ]


def test_an_attack_that_does_not_look_at_the_rejector_runs_once_for_all_of_a_checkpoint() -> None:
    planned = plan(["kd", "lid", "confidence", "t-con"], ["pgd10", "adaptive(ce+rcon)"])
    keys: dict[str, set[str]] = {}
    for cell in planned.cells:
        keys.setdefault(str(cell.attack), set()).add(cell.attack_key("a checkpoint", "fp32"))
    assert {attack: len(found) for attack, found in keys.items()} == {"clean": 1, "pgd10": 1, "adaptive(ce+rcon)": 4}
    assert len({key for found in keys.values() for key in found}) == 6
    assert len({cell.key("a checkpoint", "fp32") for cell in planned.cells}) == 12


def test_shared_work_comes_together() -> None:
    planned = plan(
        ["rr", "confidence", "rr(score=con)", "kd", "coupled"],
        ["pgd10", "adaptive(ce+rcon)", "pgd100"],
        datasets=["digits"],
        budgets=["linf:3/20", "linf:1/10"],
        seeds=(0, 1),
    )
    for key in (
        lambda cell: cell.training.key,
        lambda cell: (cell.training.key, show_budget(cell.budget), str(cell.attack)),
    ):
        assert runs_of(planned.cells, key) == len({key(cell) for cell in planned.cells})
    assert [training.seed for training in planned.checkpoints()] == [0, 0, 1, 1]
    assert [str(cell.rejector) for cell in planned.cells[:3]] == ["rr", "rr(score=con)", "coupled"]


def runs_of(cells: Sequence[Cell], key: Callable[[Cell], object]) -> int:
    """Count how often the key changes on the way through the cells."""
    found = [key(cell) for cell in cells]
    return 1 + sum(first != second for first, second in pairwise(found))


def test_a_checkpoint_s_cells_are_those_of_the_plan() -> None:
    planned = plan(["rr", "confidence", "coupled"], seeds=(0, 1))
    groups = planned.checkpoints()
    assert [cell for cells in groups.values() for cell in cells] == list(planned.cells)
    assert all(cell.training == training for training, cells in groups.items() for cell in cells)


def test_corrupted_images_are_judged_by_the_clean_data_set_s_checkpoint() -> None:
    planned = plan(["lid"], ["clean"], PAPER, datasets=["cifar10", "cifar10-c(fog)", "cifar10-c(fog,severity=3)"])
    assert len(planned.checkpoints()) == 1
    assert [str(cell.dataset) for cell in planned.cells] == ["cifar10", "cifar10-c(fog)", "cifar10-c(fog,severity=3)"]
    assert {str(cell.training.dataset) for cell in planned.cells} == {"cifar10"}
    assert len({cell.attack_key("c", "fp32") for cell in planned.cells}) == 3
    assert len({cell.rejector for cell in planned.cells}) == 1


ROW_KEY_CHANGES: dict[str, dict[str, Any]] = {
    "rejector": {"rejectors": ["kd"]},
    "rejector setting": {"rejectors": ["confidence(tau=2)"]},
    "limit": {"limit": 100},
    "every": {"every": 10},
    "eps": {"budgets": ["linf:1/10"]},
    "norm": {"budgets": ["l2:3/20"]},
    "seed": {"seeds": (1,)},
    "data set": {"datasets": ["cifar10"]},
    "preset": {"config": replace(QUICK, preset="mine")},
    "metrics": {
        "config": replace(QUICK, values={**QUICK.values, "metrics": {"tpr_rule": "official", "resamples": 90}})
    },
}


@pytest.mark.parametrize("change", ROW_KEY_CHANGES.values(), ids=ROW_KEY_CHANGES)
def test_a_row_s_key_changes_with_all_that_matters(change: dict[str, Any]) -> None:
    assert only(plan(**change)).key("c", "fp32") != only(plan()).key("c", "fp32")


def test_every_tenth_input_has_its_own_attack_fit_data_and_clean_scores() -> None:
    tenth, whole = (only(plan(every=every)).describe("c", "fp32") for every in (10, None))
    for key in (attack_key, victim_key, data_key, clean_key):
        assert key(tenth) != key(whole)
    assert only(plan(every=1)).describe("c", "fp32") == whole
    assert "every" not in whole, "the keys of rows that were published before it must stay"


def test_a_row_s_key_changes_with_attack_checkpoint_and_precision() -> None:
    base = only(plan())
    keys = {
        base.key("c", "fp32"),
        base.key("d", "fp32"),
        base.key("c", "bf16"),
        only(plan(attacks=["pgd11"]), "pgd11").key("c", "fp32"),
        only(plan(attacks=["pgd10x2"]), "pgd10x2").key("c", "fp32"),
        only(plan(attacks=["pgd10(step=1/99)"]), "pgd10(step=1/99)").key("c", "fp32"),
        only(plan(attacks=["pgd10(keep=last)"]), "pgd10(keep=last)").key("c", "fp32"),
        only(plan(), "clean").key("c", "fp32"),
    }
    assert len(keys) == 8


@pytest.mark.parametrize("name", ["rejector", "rejector setting", "preset", "metrics"])
def test_what_only_reads_an_attack_s_images_leaves_its_key_alone(name: str) -> None:
    cell = only(plan(**ROW_KEY_CHANGES[name]))
    assert cell.attack_key("c", "fp32") == only(plan()).attack_key("c", "fp32")


def test_an_adaptive_attack_s_key_changes_with_the_rejector_s_settings() -> None:
    keys = {
        cell.attack_key("c", "fp32")
        for cell in plan(["confidence", "confidence(tau=2)", "kd"], ["adaptive(ce+rcon)"]).cells
        if cell.is_adaptive
    }
    assert len(keys) == 3


TRAINING_KEY_CHANGES: dict[str, dict[str, Any]] = {
    "seed": {"seeds": (1,)},
    "epochs": {"recipe": {"epochs": 16}},
    "batch": {"recipe": {"batch": 32}},
    "chooser": {"recipe": {"choose_by": "pgd20"}},
    "chooser's data": {"recipe": {"choose_on": "test"}},
    "framework": {"frameworks": ["trades"]},
    "framework setting": {"frameworks": ["pgd-at(steps=8)"]},
    "rejector's loss": {"rejectors": ["rr"]},
    "network": {"network": "resnet18"},
    "network setting": {"network": "small-cnn(width=8)"},
    "data set": {"datasets": ["cifar10"]},
}


@pytest.mark.parametrize("change", TRAINING_KEY_CHANGES.values(), ids=TRAINING_KEY_CHANGES)
def test_a_checkpoint_s_key_changes_with_all_that_makes_its_weights(change: dict[str, Any]) -> None:
    assert only(plan(**change)).training.key != only(plan()).training.key
    assert only(plan(**change)).training != only(plan()).training


@pytest.mark.parametrize(
    "change",
    [
        {"rejectors": ["kd"]},
        {"rejectors": ["confidence(tau=2)"]},
        {"limit": 7},
        {"every": 7},
        {"budgets": ["linf:1/10"]},
        {"budgets": ["l2:1"]},
        {"frameworks": ["pgd-at(steps=7)"]},
        {"network": "small-cnn(width=16)"},
        {"recipe": {"epochs": 15}},
        {"config": replace(QUICK, preset="mine")},
    ],
    ids=str,
)
def test_a_checkpoint_s_key_changes_with_nothing_else(change: dict[str, Any]) -> None:
    assert only(plan(**change)).training.key == only(plan()).training.key
    assert only(plan(**change)).training == only(plan()).training


def test_the_order_in_which_things_are_asked_for_changes_no_key() -> None:
    def keys(planned: Plan) -> set[tuple[str, str]]:
        return {(cell.training.key, cell.key("c", "fp32")) for cell in planned.cells}

    forward = plan(["rr", "coupled", "kd"], ["pgd10", "adaptive"], seeds=(0, 1))
    backward = plan(["kd", "coupled", "rr"], ["adaptive", "pgd10"], seeds=(1, 0))
    assert keys(forward) == keys(backward)


def test_a_digest_depends_on_names_and_values_and_not_on_their_order() -> None:
    assert digest(a=1, b=[2, "x"]) == digest(b=[2, "x"], a=1)
    assert len({digest(a=1, b=2), digest(a=2, b=1), digest(a=1), digest(a="1", b=2), digest(a=12)}) == 5
    assert len(digest(a=1)) == 24


def test_every_checkpoint_of_the_first_benchmark_comes_with_the_package() -> None:
    # A preset, a setting or a default that changes here sends every user back to training.
    for training in without_strangers(plan(["all"], ["clean"], frameworks=["all"])).checkpoints():
        assert zoo.find(training.key), training.trained_as


def test_a_training_is_named_by_its_framework_and_its_rejector_s_loss() -> None:
    training: Training = only(plan(["rr"], frameworks=["trades(beta=3)"])).training
    assert training.trained_as == "trades(beta=3)+rr"
    assert only(plan(["atro"])).training.trained_as == "atro"


def test_a_setting_that_was_added_is_in_keys_and_names_only_if_it_is_not_the_default() -> None:
    trainings = {
        text: only(plan(["atro"], frameworks=[text])).training
        for text in ("atro", "atro(hinge=plain,penalty=0)", "atro(hinge=squared)", "atro(penalty=0.5,ce_weight=0)")
    }
    first, typed, squared, penalised = trainings.values()
    # As published: without the settings that came later.
    assert dict(first.framework.settings).keys() == {*settings_of(AtroTraining)} - AtroTraining.added
    assert (first, first.key, first.trained_as) == (typed, typed.key, typed.trained_as)
    assert dict(squared.framework.settings) == {**dict(first.framework.settings), "hinge": "squared"}
    made = build(Framework, first.framework)
    assert isinstance(made, AtroTraining)
    assert build(Framework, squared.framework) == replace(made, hinge="squared")
    assert len({first.key, squared.key, penalised.key}) == 3
    assert [each.trained_as for each in (squared, penalised)] == [
        "atro(hinge=squared)",
        "atro(ce_weight=0,penalty=0.5)",
    ]
    assert restore("framework", identity(squared.framework)) == squared.framework
    assert restore("framework", identity(first.framework)) == first.framework


def test_a_climb_that_ends_when_it_repeats_itself_is_another_attack_and_a_plain_one_is_as_published() -> None:
    texts = ("pgd100", "pgd100(until=end)", "pgd100(until=repeat)")
    plain, typed, repeating = (plan(["rr"], [text]).cells[-1] for text in texts)
    assert dict(plain.attack.settings).keys() == {"steps", "restarts", "step", "keep", "select"}
    assert (plain, str(plain.attack)) == (typed, "pgd100")
    assert str(repeating.attack) == "pgd100(until=repeat)"
    keys = {cell.attack_key("checkpoint", "fp32") for cell in (plain, typed, repeating)}
    assert len(keys) == 2
    for cell in (plain, repeating):  # a stored row without the setting climbs to the end
        assert restore("attack", identity(cell.attack)) == cell.attack
        assert vars(build(Attack, cell.attack))["until"] == ("repeat" if cell is repeating else "end")


def test_fewer_targets_are_another_attack_and_all_of_them_are_as_published() -> None:
    texts = ("multi-target", "multi-target(targets=none)", "multi-target(targets=3)")
    plain, typed, fewer = (plan(["rr"], [text]).cells[-1] for text in texts)
    assert dict(plain.attack.settings).keys() == {"steps", "restarts", "step", "keep", "select"}
    assert (plain, str(plain.attack)) == (typed, "multi-target")
    assert str(fewer.attack) == "multi-target(targets=3)"
    assert len({cell.attack_key("checkpoint", "fp32") for cell in (plain, typed, fewer)}) == 2
    for cell, targets in ((plain, None), (fewer, 3)):  # a stored row without the setting aims at every class
        assert restore("attack", identity(cell.attack)) == cell.attack
        assert vars(build(Attack, cell.attack))["targets"] == targets


def test_a_setting_that_a_file_gives_is_in_keys_and_not_in_names(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('[framework.atro]\nhinge = "squared"\n')
    training = only(plan(["atro"], config=load_file(path, "quick"))).training
    assert training.key == only(plan(["atro"], frameworks=["atro(hinge=squared)"])).training.key
    assert training.trained_as == "atro"


def test_a_recipe_has_what_was_added_to_recipes_only_if_it_is_not_usual() -> None:
    usual = only(plan()).training
    assert usual.recipe.facts().keys().isdisjoint(ADDED)
    for change in ({"optimizer": "adam"}, {"drop_factor": 0.5}):
        training = only(plan(recipe=change)).training
        assert training.recipe.facts() == {**usual.recipe.facts(), **change}
        assert training.key != usual.key


def test_the_revision_of_the_scale_counts_for_adaptive_attacks_on_what_is_no_probability_and_for_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cells = plan(["confidence", "kd"], ["pgd10", "adaptive(ce+rcon)"], datasets=["digits"]).cells

    def keys() -> dict[tuple[str, str], tuple[str, ...]]:
        return {
            (str(cell.rejector), str(cell.attack)): (
                cell.key("c", "fp32"),
                cell.attack_key("c", "fp32"),
                cell.victim_key("c"),
            )
            for cell in cells
        }

    before = keys()
    monkeypatch.setattr("rrbench.plugins.revisions.calibration", lambda: 99)
    after = keys()
    assert {name for name in before if before[name] != after[name]} == {("kd", "adaptive(ce+rcon)")}
    changed = zip(before["kd", "adaptive(ce+rcon)"], after["kd", "adaptive(ce+rcon)"], strict=True)
    assert all(old != new for old, new in changed)


@pytest.mark.parametrize(
    ("rejector", "attack", "revisions", "expected"),
    [
        ("kd", "adaptive(ce+rcon)", {}, ["calibration 1, now 2"]),
        ("kd", "adaptive(ce+rcon)", {"calibration": 2}, []),
        ("kd", "pgd10", {}, []),
        ("confidence", "adaptive(ce+rcon)", {}, []),
        ("<lambda>", "adaptive(ce+rcon)", {}, []),
    ],
)
def test_rows_measured_on_the_first_scale_are_superseded(
    rejector: str, attack: str, revisions: dict[str, int], expected: list[str]
) -> None:
    row = ResultRow("own data", "Net", "", "", rejector, attack, "linf", "1/20", 0, "quick", 60)
    assert superseded(replace(row, revisions=json.dumps(revisions | {"deployment": 2}))) == expected


def test_rows_of_another_way_to_fix_thresholds_are_superseded() -> None:
    row = ResultRow("own data", "Net", "", "", "confidence", "pgd10", "linf", "1/20", 0, "quick", 60)
    assert superseded(row) == ["deployment 1, now 2"]
    assert superseded(replace(row, status="failed")) == []
