import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from rrbench.errors import UseError
from rrbench.names import Choice
from rrbench.planning.cells import identity
from rrbench.planning.plan import Request, make_plan
from rrbench.plugins.config import load_file, load_preset
from rrbench.plugins.registry import build, check_names, choose, expand, find, restore, table
from rrbench.protocols import Attack, Outputs, Rejector
from rrbench_attacks.pgd import Pgd
from rrbench_baselines.lid import Lid
from rrbench_baselines.rr import RR

QUICK = load_preset("quick")
Install = Callable[[Mapping[str, Callable[[], object]]], None]


@dataclass
class Sure(Rejector):
    scale: float = 1.0

    def certainty(self, outputs: Outputs) -> Tensor:
        return torch.full((len(outputs.logits),), self.scale)


@dataclass
class Unfinished(Rejector):
    scale: float = 1.0


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Replace the installed packages by {package: what loads its table of rejectors}."""

    def packages(tables: Mapping[str, Callable[[], object]]) -> None:
        entries = [
            SimpleNamespace(dist=SimpleNamespace(name=name), value=f"{name}:REJECTORS", load=load)
            for name, load in tables.items()
        ]
        monkeypatch.setattr(metadata, "entry_points", lambda group: entries if group == "rrbench.rejectors" else [])
        table.cache_clear()

    yield packages
    table.cache_clear()


def broken() -> object:
    raise RuntimeError("first line\nsecond line")


def test_the_installed_tables_are_merged_and_the_broken_plugin_loses_itself_only() -> None:
    table.cache_clear()
    with pytest.warns(UserWarning, match="is disabled") as caught:
        known = table("rejector")
    said = [str(warning.message) for warning in caught]
    assert [line for line in said if line.startswith("plugin 'outside-rrbench'")] == [
        "plugin 'outside-rrbench' is disabled: outside_rrbench.broken:REJECTORS: "
        "ImportError: this plugin is broken on purpose"
    ]
    assert {"confidence", "rr", "lid", "outside-gap"} <= set(known.classes)
    assert known.aliases["ccat"] == "confidence@ccat"
    assert set(known) == {*known.classes, *known.aliases}


def test_the_other_kinds_are_not_touched_by_the_broken_plugin() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert {"clean", "pgd", "adaptive", "outside-corner"} <= set(table("attack").classes)
        assert {"standard", "pgd-at", "trades", "ccat", "carl", "atro"} <= set(table("framework").classes)
        assert {"digits", "cifar10", "cifar100", "cifar10-c"} <= set(table("dataset").classes)
        assert {"small-cnn", "resnet18", "wrn34-10"} <= set(table("network").classes)


def test_a_name_in_two_tables_is_an_error_that_names_both_packages(install: Install) -> None:
    install({"ours": lambda: {"sure": Sure}, "theirs": lambda: {"sure": Sure}})
    with pytest.raises(UseError, match="rejector 'sure' is defined by both 'ours' and 'theirs'"):
        table("rejector")


def test_an_alias_clashes_like_any_other_name(install: Install) -> None:
    install({"ours": lambda: {"sure": Sure}, "theirs": lambda: {"other": Sure, "sure": "other(scale=2)"}})
    with pytest.raises(UseError, match="'sure' is defined by both 'ours' and 'theirs'"):
        table("rejector")


def test_a_plugin_whose_name_is_a_short_form_goes_without_it(install: Install) -> None:
    @dataclass
    class Stepping(Sure):
        steps: int = 1
        restarts: int = 1

    theirs = {"step7": Sure, "step7x2": "sure", "sure2": Sure, "sure": Sure}
    install({"ours": lambda: {"step": Stepping}, "theirs": lambda: theirs})
    with pytest.warns(UserWarning, match="goes without") as caught:
        known = table("rejector")
    assert [str(warning.message) for warning in caught] == [
        "plugin 'theirs' goes without 'step7': 'step7' is short for step(steps=7)",
        "plugin 'theirs' goes without 'step7x2': 'step7x2' is short for step(steps=7,restarts=2)",
    ]
    assert set(known) == {"step", "sure", "sure2"}


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("my idea", "'my idea' cannot be typed: use letters, digits and dashes"),
        ("sure(2)", "'sure(2)' cannot be typed: use letters, digits and dashes"),
        ("sure@pgd-at", "'sure@pgd-at' cannot be typed: use letters, digits and dashes"),
        ("all", "'all' stands for every rejector"),
        ("own", "'own' stands for objects that are given in Python"),
    ],
)
def test_a_name_that_nobody_can_use_is_left_out_and_the_other_names_stay(install: Install, name: str, why: str) -> None:
    install({"theirs": lambda: {name: Sure, "sure": Sure}})
    with pytest.warns(UserWarning, match="goes without") as caught:
        known = table("rejector")
    assert [str(warning.message) for warning in caught] == [f"plugin 'theirs' goes without {name!r}: {why}"]
    assert set(known) == {"sure"}


@pytest.mark.parametrize(
    ("load", "reason"),
    [
        (broken, "RuntimeError: first line"),
        (lambda: sys.exit(0), "a plugin tried to end the process (SystemExit: 0)"),
        (lambda: {"lid2": int}, "TypeError: 'lid2' is <class 'int'>, not a subclass of Rejector"),
        (lambda: {"lid2": Sure()}, "TypeError: 'lid2' is Sure"),
        (lambda: {"attack": Pgd}, "not a subclass of Rejector"),
        (lambda: {"half": Unfinished}, "TypeError: 'half' does not define certainty"),
        (lambda: {1: Sure}, "TypeError: the table's key 1 is no name"),
        (lambda: {"": Sure}, "TypeError: the table's key '' is no name"),
        (lambda: 3, "TypeError"),
        (lambda: None, "TypeError"),
    ],
)
def test_a_table_of_the_wrong_shape_is_disabled_with_one_line_and_nothing_else_is(
    install: Install, load: Callable[[], object], reason: str
) -> None:
    install({"bad": load, "good": lambda: {"sure": Sure}})
    with pytest.warns(UserWarning, match="is disabled") as caught:
        known = table("rejector")
    (message,) = (str(warning.message) for warning in caught)
    assert message.startswith("plugin 'bad' is disabled: bad:REJECTORS: ")
    assert reason in message
    assert "\n" not in message
    assert known.classes == {"sure": Sure}


def test_a_good_entry_beside_a_bad_one_goes_with_its_table(install: Install) -> None:
    install({"bad": lambda: {"fine": Sure, "half": Unfinished}, "good": lambda: {"fine": Sure}})
    with pytest.warns(UserWarning, match="'half' does not define certainty"):
        assert table("rejector").classes == {"fine": Sure}


@pytest.mark.parametrize(
    ("alias", "target"),
    [
        ("ccat", "confidence@ccat"),
        ("r-con-sub", "rr(form=difference)"),
        ("rr-nosg", "rr(stop_gradient=false)"),
        ("a-phi-only", "rr(form=head)"),
        ("confidence-in-lrr", "rr(form=confidence)"),
        ("rr", "rr"),
        ("rr(tau=0.5)", "rr(tau=0.5)"),
        ("unheard-of", "unheard-of"),
    ],
)
def test_an_alias_stands_for_its_target(alias: str, target: str) -> None:
    assert expand("rejector", alias) == target


def test_an_alias_takes_no_settings() -> None:
    with pytest.raises(UseError, match=r"'rr-nosg' is short for 'rr\(stop_gradient=false\)'; give settings to that"):
        expand("rejector", "rr-nosg(tau=2)")


def test_an_alias_is_the_same_choice_as_what_it_stands_for() -> None:
    alias = choose("rejector", expand("rejector", "r-con-sub"), QUICK, "digits")
    assert alias == choose("rejector", "rr(form=difference)", QUICK, "digits")
    assert str(alias) == "rr(form=difference)"
    assert build(Rejector, alias) == RR(form="difference")
    assert build(Rejector, choose("rejector", expand("rejector", "rr-nosg"), QUICK, "digits")) == RR(
        stop_gradient=False
    )


@pytest.mark.parametrize(
    ("kind", "text", "near"),
    [
        ("rejector", "rrr", "rr"),
        ("rejector", "confidense", "confidence"),
        ("rejector", "rr-nosgg", "rr-nosg"),
        ("attack", "pdg", "pgd"),
        ("framework", "trade", "trades"),
        ("dataset", "cifar", "cifar10"),
        ("network", "resnet50", "resnet18"),
    ],
)
def test_an_unknown_name_answers_with_near_ones(kind: str, text: str, near: str) -> None:
    with pytest.raises(UseError, match=rf"^unknown {kind} '{text}'; near: .*\b{near}\b"):
        choose(kind, text, QUICK, "digits")
    with pytest.raises(UseError, match=rf"^unknown {kind} '{text}'"):
        find(kind, text)


@pytest.mark.parametrize("preset", ["quick", "paper", "official", "strong"])
@pytest.mark.parametrize("dataset", ["digits", "cifar10", "cifar100"])
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_pgd100_is_100_steps_from_1_start_in_every_preset(preset: str, dataset: str, norm: str) -> None:
    config = load_preset(preset)
    step = config.step(dataset, norm)
    choice = choose("attack", "pgd100", config, dataset, {"step": step})
    assert str(choice) == "pgd100"
    attack = build(Attack, choice)
    assert isinstance(attack, Pgd)
    assert (attack.steps, attack.restarts, attack.step) == (100, 1, step)


def test_settings_come_from_the_class_then_the_plan_then_the_preset_then_the_text(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('[attack.pgd]\nstep = "3/255"\n')
    mine = load_file(path, "quick")
    extra = {"step": Fraction(2, 255), "not a setting of it": 1, "restarts": None}
    steps = [
        dict(choose("attack", "pgd10", QUICK, "cifar10").settings)["step"],
        dict(choose("attack", "pgd10", QUICK, "cifar10", extra).settings)["step"],
        dict(choose("attack", "pgd10", mine, "cifar10", extra).settings)["step"],
        dict(choose("attack", "pgd10(step=4/255)", mine, "cifar10", extra).settings)["step"],
    ]
    assert steps == [None, Fraction(2, 255), Fraction(3, 255), Fraction(4, 255)]


@pytest.mark.parametrize(
    ("dataset", "preset", "kd", "lid"),
    [
        ("cifar10", "paper", "kd(g=1)", "lid(k=20)"),
        ("cifar100", "paper", "kd", "lid"),
        ("digits", "quick", "kd", "lid(references=10000)"),
    ],
)
def test_the_label_is_measured_from_the_data_set_s_own_settings(dataset: str, preset: str, kd: str, lid: str) -> None:
    config = load_preset(preset)
    assert str(choose("rejector", "kd(g=1)", config, dataset)) == kd
    choice = choose("rejector", "lid(k=20,references=10000)", config, dataset)
    assert str(choice) == lid
    assert build(Rejector, choice) == Lid(k=20, references=10000)


def test_a_plugin_that_refuses_its_settings_says_why_in_one_line() -> None:
    with pytest.raises(UseError, match=r"^rejector lid\(k=1\): k must be at least 2[^\n]*$"):
        build(Rejector, choose("rejector", "lid(k=1)", load_preset("paper"), "cifar10"))
    with pytest.raises(UseError, match=r"^unknown rejector 'gone'"):
        build(Rejector, Choice("gone"))


def test_a_choice_comes_back_from_the_plain_values_of_a_cell_file() -> None:
    for kind, text in (("attack", "pgd10x2(step=2/255)"), ("attack", "adaptive(con+rr(multi),eta=0.1:1)")):
        choice = choose(kind, text, QUICK, "digits")
        assert restore(kind, identity(choice)) == choice
        assert build(Attack, restore(kind, identity(choice))) == build(Attack, choice)


def test_settings_of_another_version_are_not_guessed() -> None:
    name, values = identity(choose("rejector", "lid", QUICK, "digits"))
    assert isinstance(values, dict)
    for other in ({"k": values["k"]}, {**values, "layer": 3}):
        with pytest.raises(UseError, match="'lid' has other settings than when it was measured"):
            restore("rejector", [name, other])
    with pytest.raises(UseError, match="unknown rejector 'gone'"):
        restore("rejector", ["gone", {}])


@pytest.mark.parametrize("name", ["quick", "paper", "official", "strong"])
def test_the_presets_name_installed_plugins_and_their_settings_only(name: str) -> None:
    check_names(load_preset(name))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rejector": {"lidd": {"k": 3}}}, "unknown rejector 'lidd'; near: .*lid"),
        ({"attack": {"pgd": {"restart": 3}}}, "unknown setting of attack 'pgd' 'restart'; near: restarts"),
        ({"dataset": {"cifar11": {}}}, "unknown dataset 'cifar11'; near: cifar10"),
        ({"dataset": {"digits": {"framework": {"pgdat": {}}}}}, "unknown framework 'pgdat'; near: pgd-at"),
        ({"dataset": {"digits": {"framework": {"pgd-at": {"epsilon": 1}}}}}, "'pgd-at' 'epsilon'; near: eps"),
    ],
)
def test_a_section_for_nothing_that_is_installed_is_an_error(change: dict[str, object], message: str) -> None:
    with pytest.raises(UseError, match=message):
        check_names(replace(QUICK, values={**QUICK.values, **change}))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[run]\nattacks = ['pdg10']", "[run] attacks: unknown attack 'pdg10'; near: pgd"),
        ("[run]\nall_attacks = ['pgd10', 'selectiv-pgd']", "[run] all_attacks: unknown attack 'selectiv-pgd'"),
        ("[run]\nall_attacks = ['pgd(stepz=3)']", "[run] all_attacks: unknown setting of attack 'pgd' 'stepz'"),
        ("[run]\nall_attacks = ['adaptive(ce+rcn)']", "setting 'objective' cannot be 'ce+rcn'"),
        ("[run]\nrejectors = ['rrr']", "[run] rejectors: unknown rejector 'rrr'; near: rr"),
        ("[run]\nrejectors = ['rr@pgdat']", "[run] rejectors: unknown framework 'pgdat'; near: pgd-at"),
        ("[run]\nall_pairs = ['rrr@pgd-at']", "[run] all_pairs: unknown rejector 'rrr'; near: rr"),
        ("[run]\nall_pairs = ['rr@pgdat']", "[run] all_pairs: unknown framework 'pgdat'; near: pgd-at"),
        ("[run]\nall_pairs = ['rr']", "[run] all_pairs: 'rr' should be rejector@framework"),
        ("[run]\ndataset = 'digit'", "[run] dataset: unknown dataset 'digit'; near: digits"),
        (
            "[dataset.cifar10]\nnetwork = 'resnet'",
            "[dataset.cifar10] network: unknown network 'resnet'; near: resnet18",
        ),
        ("[dataset.cifar10.recipe]\nchoose_by = 'pdg10'", "choose_by for cifar10: unknown attack 'pdg10'; near: pgd"),
        ("[run]\nrejectors = ['rr@']", "[run] rejectors: cannot read ''"),
        ("[run]\nall_attacks = ['clean(3)']", "[run] all_attacks: attack 'clean' has no settings"),
        ("[run]\nall_attacks = ['pgd(3,steps=4)']", "[run] all_attacks: attack 'pgd' is given 'steps' twice"),
        ("[run]\nrejectors = ['kd(g=1e-3)@pgd-at(']", "[run] rejectors: cannot read"),
    ],
)
def test_a_wrong_name_in_a_file_is_an_error_also_where_the_run_does_not_use_it(
    tmp_path: Path, text: str, message: str
) -> None:
    (tmp_path / "mine.toml").write_text(text)
    config = load_file(tmp_path / "mine.toml", "quick")
    with pytest.raises(UseError) as caught:
        make_plan(Request(["confidence"], ["pgd10"], datasets=["digits"]), config)
    assert message in str(caught.value)


def test_all_aliases_and_names_without_a_setting_that_is_given_elsewhere_are_no_wrong_names(tmp_path: Path) -> None:
    for text in ("rejectors = ['all']\nattacks = ['all']", "rejectors = ['ccat', 'rr-nosg']\nattacks = ['adaptive']"):
        (tmp_path / "mine.toml").write_text(f"[run]\n{text}\n")
        check_names(load_file(tmp_path / "mine.toml", "quick"))


def test_a_name_is_judged_together_with_the_section_of_its_plugin(tmp_path: Path) -> None:
    text = "[run]\nrejectors = ['lid(k=25000)']\n"
    (tmp_path / "mine.toml").write_text(text)
    with pytest.raises(UseError, match=r"\[run\] rejectors: .*at most the number of references"):
        check_names(load_file(tmp_path / "mine.toml", "quick"))
    (tmp_path / "mine.toml").write_text(text + "[rejector.lid]\nreferences = 40000\n")
    check_names(load_file(tmp_path / "mine.toml", "quick"))
