from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from rrbench import zoo
from rrbench.cells import Cell, Plan, Training, digest, plain, read_budget, show_budget
from rrbench.config import Config, load_file, load_preset
from rrbench.errors import UseError
from rrbench.plan import Request, make_plan, variants
from rrbench.protocols import Batch, Budget, DataInfo, DataSource, Split
from rrbench.registry import Table, table

QUICK, PAPER = load_preset("quick"), load_preset("paper")
FIVE = ["ce+rcon", "ce+rr", "con+rr", "con+rcon", "con+rr(multi)"]


def plan(
    rejectors: Sequence[str] = ("confidence",),
    attacks: Sequence[str] = ("pgd10",),
    config: Config = QUICK,
    **more: Any,
) -> Plan:
    return make_plan(Request(rejectors, attacks, **more), config)


def pairs(planned: Plan) -> list[tuple[str, str]]:
    return list(dict.fromkeys((str(cell.rejector), str(cell.training.framework)) for cell in planned.cells))


def trainings(planned: Plan) -> list[str]:
    return [training.trained_as for training in planned.checkpoints()]


def attacks(planned: Plan) -> list[str]:
    return list(dict.fromkeys(str(cell.attack) for cell in planned.cells))


def only(planned: Plan, attack: str = "pgd10") -> Cell:
    (cell,) = (cell for cell in planned.cells if str(cell.attack) == attack)
    return cell


# Table 2 of the published paper, one pair a line; then what has lines elsewhere.
TABLE_2 = [
    ("kd", "pgd-at"),
    ("lid", "pgd-at"),
    ("gda", "pgd-at"),
    ("gda*", "pgd-at"),
    ("gmm", "pgd-at"),
    ("carl", "carl"),
    ("atro", "atro"),
    ("confidence", "pgd-at"),
    ("confidence", "trades"),
    ("confidence", "ccat"),
    ("snet", "pgd-at"),
    ("ebd", "pgd-at"),
    ("rr", "pgd-at"),
    ("rr", "trades"),
    ("rr", "ccat"),
]
OTHERS = [
    ("t-con", "pgd-at"),
    ("coupled", "pgd-at"),
    ("rr(score=con)", "pgd-at"),
    ("rr(form=head)", "pgd-at"),
    ("rr(form=confidence)", "pgd-at"),
    ("rr(form=difference)", "pgd-at"),
    ("rr(stop_gradient=false)", "pgd-at"),
]
OUTSIDE = [("outside-gap", "pgd-at")]  # the plugin of the tests comes with everybody's


@pytest.mark.parametrize("config", [QUICK, PAPER], ids=["quick", "paper"])
def test_all_rejectors_on_all_frameworks_are_the_pairs_of_the_paper(config: Config) -> None:
    planned = plan(["all"], frameworks=["all"], config=config, datasets=["cifar10"])
    assert len(TABLE_2) == 15
    assert sorted(pairs(planned)) == sorted(TABLE_2 + OTHERS + OUTSIDE)
    assert planned.dropped == ()


def test_all_pairs_of_the_paper_need_these_checkpoints() -> None:
    found = trainings(plan(["all"], frameworks=["all"]))
    assert sorted(found) == sorted(
        [
            "pgd-at",
            "trades",
            "ccat",
            "carl",
            "atro",
            "pgd-at+snet",
            "pgd-at+ebd",
            "pgd-at+rr",
            "trades+rr",
            "ccat+rr",
            "pgd-at+rr(form=head)",
            "pgd-at+rr(form=confidence)",
            "pgd-at+rr(form=difference)",
            "pgd-at+rr(stop_gradient=false)",
        ]
    )


def test_every_pair_of_a_preset_s_own_list_must_name_a_framework() -> None:
    values = {**QUICK.values, "run": {**QUICK.values["run"], "all_pairs": ["rr"]}}
    with pytest.raises(UseError, match="'rr' should be rejector@framework"):
        plan(["all"], frameworks=["all"], config=replace(QUICK, values=values))


def test_without_frameworks_a_rejector_runs_on_its_own() -> None:
    planned = plan(["carl", "atro", "ccat", "rr", "snet", "outside-gap"])
    assert pairs(planned) == [
        ("carl", "carl"),
        ("atro", "atro"),
        ("confidence", "ccat"),
        ("rr", "pgd-at"),
        ("snet", "pgd-at"),
        ("outside-gap", "pgd-at"),
    ]
    assert planned.dropped == ()


def test_all_rejectors_without_frameworks_are_every_installed_one_on_its_own() -> None:
    planned = plan(["all"])
    assert ("carl", "carl") in pairs(planned)
    assert ("confidence", "ccat") in pairs(planned)
    assert {name for name, _ in pairs(planned)} == {
        *table("rejector").classes,
        *(text.partition("@")[0] for text in table("rejector").aliases.values()),
    }


@pytest.mark.parametrize(
    ("alias", "label", "trained_as"),
    [
        ("ccat", "confidence", "ccat"),
        ("r-con-sub", "rr(form=difference)", "pgd-at+rr(form=difference)"),
        ("rr-nosg", "rr(stop_gradient=false)", "pgd-at+rr(stop_gradient=false)"),
        ("a-phi-only", "rr(form=head)", "pgd-at+rr(form=head)"),
        ("confidence-in-lrr", "rr(form=confidence)", "pgd-at+rr(form=confidence)"),
    ],
)
def test_an_alias_is_planned_as_what_it_stands_for(alias: str, label: str, trained_as: str) -> None:
    cell = only(plan([alias]))
    assert (str(cell.rejector), cell.training.trained_as) == (label, trained_as)


def test_one_thing_under_two_names_is_measured_once() -> None:
    assert plan(["r-con-sub", "rr(form=difference)", "rr( form = difference , tau=1 )"]) == plan(["r-con-sub"])
    assert plan(attacks=["pgd10", "pgd10x1", "pgd(steps=10)", "clean"]) == plan()
    assert plan(seeds=(0, 0), budgets=["linf:3/20", "linf:6/40"]) == plan()
    assert pairs(plan(["confidence", "ccat"], frameworks=["ccat"])) == [("confidence", "ccat")]


def test_pairs_that_do_not_fit_are_dropped_with_a_line() -> None:
    planned = plan(["rr", "carl", "ccat", "snet"], frameworks=["pgd-at", "carl", "trades"])
    assert pairs(planned) == [("rr", "pgd-at"), ("rr", "trades"), ("carl", "carl"), ("snet", "pgd-at")]
    assert sorted(planned.dropped) == sorted(
        [
            "carl trains its own rejector, carl; rr is left out",
            "carl does not run on pgd-at: it needs carl",
            "carl does not run on trades: it needs carl",
            "ccat does not run on pgd-at: it needs ccat",
            "ccat does not run on carl: it needs ccat",
            "ccat does not run on trades: it needs ccat",
            "snet does not run on carl: it needs pgd-at or standard",
            "snet does not run on trades: it needs pgd-at or standard",
        ]
    )


def test_an_attack_without_a_form_for_the_norm_is_dropped_with_a_line() -> None:
    planned = plan(attacks=["outside-corner", "pgd10"], budgets=["l2:1/2"])
    assert attacks(planned) == ["clean", "pgd10"]
    assert planned.dropped == ("outside-corner has no l2 form",)
    assert attacks(plan(attacks=["outside-corner"], budgets=["l2:1/2", "linf:1/10"])) == ["clean", "outside-corner"]


def test_nothing_left_is_an_error_that_says_why() -> None:
    with pytest.raises(UseError, match=r"^nothing to run: carl does not run on pgd-at: it needs carl$"):
        plan(["carl"], frameworks=["pgd-at"])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rejectors": ["rrr"]}, "unknown rejector 'rrr'; near: rr"),
        ({"attacks": ["pdg10"]}, "unknown attack 'pdg10'"),
        ({"attacks": ["pgdd"]}, "unknown attack 'pgdd'; near: pgd"),
        ({"attacks": []}, "no attack given"),
        ({"frameworks": ["trade"]}, "unknown framework 'trade'; near: trades"),
        ({"datasets": ["digit"]}, "unknown dataset 'digit'; near: digits"),
        ({"datasets": ["cifar10-c"]}, "needs 'corruption'"),
        ({"datasets": ["cifar10-c(fogg)"]}, "fog"),
        ({"network": "resnet"}, "unknown network 'resnet'; near: resnet18"),
        ({"budgets": ["linf:x"]}, "cannot read the radius"),
        ({"rejectors": ["rr(tua=1)"]}, "unknown setting of rejector 'rr' 'tua'; near: tau"),
        ({"rejectors": ["rr(tau=warm)"]}, "expected a number"),
        ({"frameworks": ["pgd-at(stepz=3)"]}, "unknown setting of framework 'pgd-at' 'stepz'"),
        ({"frameworks": ["atro(cost=0.7)"], "rejectors": ["atro"]}, "cost 0.7 must lie between 0 and 1/2"),
        ({"seeds": ()}, "no seed given"),
        ({"limit": 0}, "--limit must be at least 1, not 0"),
        ({"recipe": {"epochs": 0}}, "at least 1 epoch"),
    ],
)
def test_wrong_words_are_refused_before_any_work(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(UseError) as caught:
        plan(**wrong)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_section_for_nothing_that_is_installed_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("[rejector.lidd]\nk = 3\n")
    with pytest.raises(UseError, match=r"unknown rejector 'lidd'; near: .*lid"):
        plan(config=load_file(tmp_path / "mine.toml", "quick"))


def test_clean_is_always_planned_and_comes_first_on_every_checkpoint() -> None:
    planned = plan(["confidence", "rr", "ebd"], ["pgd10", "adaptive", "pgd100"], seeds=(0, 1))
    for cells in planned.checkpoints().values():
        assert cells[0].attack.name == "clean"
        names = [cell.attack.name for cell in cells]
        assert names == sorted(names, key=lambda name: name != "clean")
    for cell in planned.cells:
        assert (cell.budget is None) == (cell.attack.name == "clean")
    assert attacks(plan(attacks=["pgd10", "clean"])) == ["clean", "pgd10"]
    assert attacks(plan(attacks=["clean"])) == ["clean"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("adaptive", [f"adaptive({objective})" for objective in FIVE]),
        ("adaptive(eta=1)", [f"adaptive({objective},eta=1)" for objective in FIVE]),
        ("adaptive20x2", [f"adaptive({objective},steps=20,restarts=2)" for objective in FIVE]),
        ("adaptive(ce+rcon)", ["adaptive(ce+rcon)"]),
        ("adaptive(objective=ce+rcon)", ["adaptive(objective=ce+rcon)"]),
        ("adaptive(con+rr(multi),eta=1)", ["adaptive(con+rr(multi),eta=1)"]),
        ("pgd10", ["pgd10"]),
    ],
)
def test_adaptive_without_an_objective_is_all_five(text: str, expected: list[str]) -> None:
    assert variants(text) == expected


def test_a_short_name_of_all_five_objectives_is_planned() -> None:
    assert attacks(plan(attacks=["adaptive20x2"])) == ["clean", *(f"adaptive20x2({objective})" for objective in FIVE)]


@pytest.mark.parametrize(("preset", "longest"), [("quick", "pgd100"), ("paper", "pgd100x10")])
def test_all_attacks_are_the_preset_s_list_with_the_worst_case_over_them_last(preset: str, longest: str) -> None:
    planned = plan(attacks=["all"], config=load_preset(preset))
    before = ["clean", "pgd10", longest, "multi-target", "gama-pgd", "gama-fw", "autoattack"]
    after = ["orthogonal-pgd", "selective-pgd", "rejection-loss", "apgd-reject"]
    budgeted = [*before, *(f"adaptive({objective})" for objective in FIVE), *after]
    minimal = ["cw-l2", "cw-l2(goal=adaptive)", "cw-linf", "cw-linf(goal=adaptive)", "over-reject"]
    assert attacks(planned) == [*budgeted, *minimal, "worst-case"]
    worst = planned.cells[-1]
    assert [str(member) for member in worst.members] == budgeted[1:]


def test_the_worst_case_is_over_the_preset_s_list_whatever_else_is_asked_for() -> None:
    alone, beside = plan(attacks=["worst-case"]).cells[-1], plan(attacks=["worst-case", "pgd7"]).cells[-1]
    assert alone == beside
    assert "pgd100" in map(str, alone.members)


def test_a_request_for_nothing_in_particular_is_the_preset_s_benchmark() -> None:
    planned = make_plan(Request(), QUICK)
    assert {str(cell.dataset) for cell in planned.cells} == {"digits"}
    assert {str(cell.rejector) for cell in planned.cells} == {"confidence", "ebd", "rr"}
    assert attacks(planned) == ["clean", "pgd100", *(f"adaptive({objective})" for objective in FIVE)]
    assert {show_budget(cell.budget) for cell in planned.cells} == {"", "linf:3/20"}
    assert {str(cell.training.network) for cell in planned.cells} == {"small-cnn"}


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


@pytest.mark.parametrize("preset", ["quick", "paper", "official"])
@pytest.mark.parametrize(
    ("dataset", "budget", "step"),
    [
        ("cifar10", "linf:8/255", Fraction(2, 255)),
        ("cifar10", "linf:16/255", Fraction(2, 255)),
        ("cifar10", "l2:128/255", Fraction(16, 255)),
        ("cifar100", "linf:16/255", Fraction(2, 255)),
        ("digits", "linf:3/20", Fraction(3, 200)),
    ],
)
def test_the_step_does_not_grow_with_the_radius(preset: str, dataset: str, budget: str, step: Fraction) -> None:
    planned = plan(["rr"], ["pgd10", "adaptive(ce+rcon)"], load_preset(preset), datasets=[dataset], budgets=[budget])
    for cell in planned.cells[1:]:
        assert dict(cell.attack.settings)["step"] == step
        assert show_budget(cell.budget) == budget
    assert [str(cell.attack) for cell in planned.cells] == ["clean", "pgd10", "adaptive(ce+rcon)"]


def test_the_settings_of_a_data_set_reach_its_cells() -> None:
    found = {
        (dataset, cell.rejector.name): dict(cell.rejector.settings)
        for dataset in ("cifar10", "cifar100")
        for cell in plan(["kd", "lid"], ["clean"], PAPER, datasets=[dataset]).cells
    }
    assert found["cifar100", "kd"]["g"] == 1.0
    assert found["cifar100", "lid"]["k"] == 20
    assert found["cifar10", "kd"]["g"] == 1e-3
    assert found["cifar10", "lid"]["k"] == 600
    training = only(plan()).training
    assert dict(training.framework.settings)["eps"] == Fraction(3, 20)
    assert dict(training.framework.settings)["step"] == Fraction(3, 80)
    assert (str(training.framework), training.recipe.epochs, show_budget(training.budget)) == (
        "pgd-at",
        15,
        "linf:3/20",
    )
    assert (str(training.chooser), dict(training.chooser.settings)["step"]) == ("pgd10", Fraction(3, 200))


ROW_KEY_CHANGES: dict[str, dict[str, Any]] = {
    "rejector": {"rejectors": ["kd"]},
    "rejector setting": {"rejectors": ["confidence(tau=2)"]},
    "limit": {"limit": 100},
    "eps": {"budgets": ["linf:1/10"]},
    "norm": {"budgets": ["l2:3/20"]},
    "seed": {"seeds": (1,)},
    "data set": {"datasets": ["cifar10"]},
    "preset": {"config": replace(QUICK, preset="mine")},
    "metrics": {"config": replace(QUICK, values={**QUICK.values, "metrics": {"tpr_rule": "official", "resamples": 9}})},
}


@pytest.mark.parametrize("change", ROW_KEY_CHANGES.values(), ids=ROW_KEY_CHANGES)
def test_a_row_s_key_changes_with_all_that_matters(change: dict[str, Any]) -> None:
    assert only(plan(**change)).key("c", "fp32") != only(plan()).key("c", "fp32")


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


@dataclass(frozen=True)
class Mine(DataSource):
    info = DataInfo(2, (1, 8, 8), (0.5,), (0.5,), train_size=10, calibration_size=10, test_size=10)

    def load(self, split: Split, roots: tuple[Path, ...]) -> Batch:
        raise NotImplementedError


@pytest.fixture
def mine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A data set of which no preset has heard, and other texts for a network and a framework."""
    additions = {
        "dataset": Table("dataset", {"mine": Mine}, {}, {}),
        "network": Table("network", {}, {"tiny": "small-cnn(width=4)"}, {}),
        "framework": Table("framework", {}, {"quick-at": "pgd-at(steps=2)"}, {}),
    }

    def with_mine(kind: str) -> Table:
        known, added = table(kind), additions.get(kind, Table(kind, {}, {}, {}))
        return Table(kind, {**known.classes, **added.classes}, {**known.aliases, **added.aliases}, known.owners)

    monkeypatch.setattr("rrbench.registry.table", with_mine)


@pytest.mark.usefixtures("mine")
def test_a_data_set_that_no_preset_knows_needs_a_network_and_a_budget() -> None:
    for more in ({}, {"network": "small-cnn"}, {"budgets": ["linf:1/10"]}):
        with pytest.raises(UseError, match="too little of data set 'mine': give --network and --budgets"):
            plan(datasets=["mine"], **more)
    cell = only(
        plan(datasets=["mine"], network="small-cnn", budgets=["linf:1/10", "l2:1"], attacks=["outside-corner"]),
        "outside-corner",
    )
    assert show_budget(cell.budget) == show_budget(cell.training.budget) == "linf:1/10"


@pytest.mark.usefixtures("mine")
def test_networks_and_frameworks_may_have_other_names_too() -> None:
    training = only(plan(network="tiny", frameworks=["quick-at"])).training
    assert (str(training.network), str(training.framework)) == ("small-cnn(width=4)", "pgd-at(steps=2)")


@pytest.mark.parametrize(
    "budget", [None, Budget("linf", Fraction(8, 255)), Budget("l2", None), Budget("l2", Fraction(0))]
)
def test_a_budget_is_read_back_as_it_is_shown(budget: Budget | None) -> None:
    assert read_budget(show_budget(budget)) == budget


def test_a_cell_describes_itself_in_values_that_json_can_hold() -> None:
    cell = only(plan(["rr"], ["adaptive(con+rr(multi),eta=0.1:1)"], limit=5), "adaptive(con+rr(multi))")
    described = cell.describe()
    assert described["dataset"] == described["trained_on"] == ["digits", {}]
    assert described["budget"] == "linf:3/20"
    assert described["limit"] == 5
    assert described["attack"] == ["adaptive", {key: plain(value) for key, value in cell.attack.settings}]
    assert dict(described["attack"][1])["eta"] == [0.1, 1.0]
    assert dict(described["attack"][1])["step"] == "3/200"
    assert cell.label == "pgd-at+rr rr adaptive(con+rr(multi)) linf:3/20"


def test_a_digest_depends_on_names_and_values_and_not_on_their_order() -> None:
    assert digest(a=1, b=[2, "x"]) == digest(b=[2, "x"], a=1)
    assert len({digest(a=1, b=2), digest(a=2, b=1), digest(a=1), digest(a="1", b=2), digest(a=12)}) == 5
    assert len(digest(a=1)) == 24


def test_every_checkpoint_of_the_first_benchmark_comes_with_the_package() -> None:
    # A preset, a setting or a default that changes here sends every user back to training.
    for training in plan(["all"], ["clean"], frameworks=["all"]).checkpoints():
        assert zoo.find(training.key), training.trained_as


def test_a_training_is_named_by_its_framework_and_its_rejector_s_loss() -> None:
    training: Training = only(plan(["rr"], frameworks=["trades(beta=3)"])).training
    assert training.trained_as == "trades(beta=3)+rr"
    assert only(plan(["atro"])).training.trained_as == "atro"
