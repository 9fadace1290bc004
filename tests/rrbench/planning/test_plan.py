"""The plan of a request: its pairs, checkpoints, attacks, budgets and settings."""

import json
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import pytest

from plan_parts import PAPER, QUICK, attacks, only, pairs, plan, trainings, without_strangers
from rrbench.errors import UseError
from rrbench.planning.cells import plain, read_budget, show_budget
from rrbench.planning.plan import Request, make_plan, variants
from rrbench.plugins.config import Config, load_preset
from rrbench.plugins.registry import Table, table
from rrbench.protocols import Batch, Budget, DataInfo, DataSource, Split

FIVE = ["ce+rcon", "ce+rr", "con+rr", "con+rcon", "con+rr(multi)"]


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
# Not in the paper; the plugin of the tests comes with everybody's.
MORE = ["energy", "max-logit", "max-logit-pnorm", "entropy", "margin", "doctor", "rel-u", "knn", "vim"]
MORE += ["cpr", "pro", "never-reject", "outside-gap"]


@pytest.mark.parametrize("config", [QUICK, PAPER], ids=["quick", "paper"])
def test_all_rejectors_on_all_frameworks_are_the_pairs_of_the_paper_and_every_other_on_its_own(config: Config) -> None:
    planned = without_strangers(plan(["all"], frameworks=["all"], config=config, datasets=["cifar10"]))
    assert len(TABLE_2) == 15
    assert sorted(pairs(planned)) == sorted(TABLE_2 + OTHERS + [(name, "pgd-at") for name in MORE])
    assert planned.dropped == ()


def test_all_pairs_of_the_paper_need_these_checkpoints() -> None:
    found = trainings(without_strangers(plan(["all"], frameworks=["all"])))
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


def test_the_strong_worst_case_has_an_attack_on_every_target_with_its_rejector_and_one_without() -> None:
    worst = plan(attacks=["worst-case"], config=load_preset("strong")).cells[-1]
    assert str(worst.attack) == "worst-case"
    members = {member.name: dict(member.settings) for member in worst.members}
    assert list(members) == ["autoattack", "pgd", "selective-pgd", "apgd-reject"]
    assert members["autoattack"]["version"] == "apgd"
    assert members["apgd-reject"]["targets"] == 9
    assert all(found.get("keep", "best") == "best" for found in members.values())


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


@pytest.mark.parametrize("preset", ["quick", "paper", "official", "strong"])
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

    monkeypatch.setattr("rrbench.plugins.registry.table", with_mine)


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
    described = cell.describe("c", "fp32")
    assert json.loads(json.dumps(described)) == described
    assert described["dataset"] == described["trained_on"] == ["digits", {}]
    assert described["budget"] == "linf:3/20"
    assert described["limit"] == 5
    assert described["attack"] == ["adaptive", {key: plain(value) for key, value in cell.attack.settings}]
    assert dict(described["attack"][1])["eta"] == [0.1, 1.0]
    assert dict(described["attack"][1])["step"] == "3/200"
    assert cell.label == "pgd-at+rr rr adaptive(con+rr(multi)) linf:3/20"
