"""Which rows fill which cell: rows are planned by rrbench itself, then changed in one thing at a time."""

import csv
import dataclasses
import io
import json
import math
import statistics
from collections.abc import Callable

import pytest

from rrbench.errors import UseError
from rrbench.metrics.intervals import share_interval
from rrbench.names import added_to
from rrbench.paper.cells import PaperCell, cells_of, data, relabelled, table_names, toml
from rrbench.paper.fill import Filled, fill, fill_all
from rrbench.paper.matching import Rows, same
from rrbench.paper.planning import describe_missing, missing, plan_missing, plan_table
from rrbench.paper.tabulate import Selection, tables_from
from rrbench.paper.wanted import column, presets_for, wanted
from rrbench.plugins.catalogue import plugin_name
from rrbench.plugins.config import load_preset
from rrbench.plugins.registry import choose, table
from rrbench.protocols import DataSource
from rrbench.rows.row import ResultRow

Make = Callable[..., list[ResultRow]]


def cell(table: str, **words: str) -> PaperCell:
    (found,) = [cell for cell in cells_of(table) if all(cell.part(key) == value for key, value in words.items())]
    return found


RR = cell("table2", at="pgd-at", rejector="rr", budget="linf:8", metric="acc_tpr95")


def row_of(rows: list[ResultRow], rejector: str = "rr", attack: str = "pgd100x10", **words: str) -> ResultRow:
    words = {"trained_as": "pgd-at+rr", "eps": "8/255", "norm": "linf", "rejector": rejector, "attack": attack} | words
    (found,) = [row for row in rows if all(getattr(row, key) == value for key, value in words.items())]
    return found


def measure(rows: list[ResultRow], what: PaperCell = RR, preset: str | None = None) -> Filled:
    return fill(what, Rows(rows), preset)


@pytest.mark.parametrize(
    "words",
    [{}, {"preset": "official"}, {"dataset": "digits", "network": "small-cnn"}],
    ids=["paper", "official", "digits"],
)
def test_whatever_a_cell_wants_is_planned_under_exactly_that_name(rows_for: Make, words: dict[str, str]) -> None:
    selection = Selection("all", **words)
    rows = Rows(rows_for("all", **words))
    presets = {"official"} if words.get("preset") else {"paper"} if not words else {"quick"}
    for cells in selection.cells().values():
        for each in cells:
            for preset in presets:
                for one in wanted(each, preset):
                    # 2000 neighbours are more than digits has training images to refer to.
                    assert len(rows.find(one)) == (one.rejector != "lid(k=2000)" or one.dataset != "digits"), one


def test_what_does_not_fit_other_data_is_left_out_with_a_line() -> None:
    plan = plan_missing(Selection("table9", "digits", "small-cnn"), [], (0,))
    assert plan.dropped == ("rejector lid(k=2000): k must be at least 2, and at most the number of references",)
    assert len(plan.cells) == 24


def test_a_table_of_which_a_part_does_not_fit_is_filled_once_and_then_done(rows_for: Make) -> None:
    selection = Selection("table9", "digits", "small-cnn")
    rows = rows_for("table9", dataset="digits", network="small-cnn")
    plan = plan_table(selection, rows, (0,), lambda training: True)
    assert plan.cells == ()
    assert plan.dropped == ("rejector lid(k=2000): k must be at least 2, and at most the number of references",)
    text = describe_missing(selection, tables_from(selection.cells(), rows, ""))
    assert text.splitlines()[-2:] == [f"left out: {plan.dropped[0]}", "nothing left to run"]
    with pytest.raises(UseError, match="nothing to run: rejector lid"):
        plan_table(selection, [], (0,), lambda training: False)


@pytest.mark.parametrize("preset", ["paper", "official", "quick"])
def test_settings_read_from_source_text_are_those_of_the_registry(rows_for: Make, preset: str) -> None:
    """The rows' settings come from the registry; a setting unknown to the source text would be ignored."""
    from rrbench.paper.matching import expected_settings

    dataset = "digits" if preset == "quick" else None
    selection = Selection("all", dataset, None, preset)
    seen = {each for cells in selection.cells().values() for one in cells for each in wanted(one, preset)}
    config = load_preset(preset)
    for each in seen:
        home = {"framework": each.home, "rejector": each.home, "attack": each.dataset.partition("(")[0]}
        for kind, name in home.items():
            if getattr(each, kind) == "lid(k=2000)" and preset == "quick":
                continue  # more neighbours than digits has references
            step = {"step": config.step(name, each.norm)} if kind == "attack" and each.norm else None
            choice = choose(kind, getattr(each, kind), config, name, step)
            found, settings = expected_settings(kind, each)
            assert found == choice.name
            stated = json.loads(json.dumps({key: str(value) for key, value in choice.settings}))
            # A setting that was added to a framework later is left out of choices at its default.
            assert settings.keys() ^ stated.keys() <= added_to(table(kind).classes[found])


def test_test_sizes_and_networks_are_those_of_the_registry() -> None:
    names = toml("names.toml")
    for name in ("cifar10", "cifar100", "digits"):
        source = table("dataset").classes[name]
        assert issubclass(source, DataSource)
        assert source.info.test_size == names["dataset"][name]["test"]
    parts = names["dataset"]["cifar10-c"]["parts"]
    assert (parts["paper"]["test"], parts["official"]["test"]) == (10_000, 50_000)
    assert {entry["name"] for entry in names["arch"].values()} <= table("network").classes.keys()


def test_table_2_is_filled_cell_by_cell_from_made_up_rows(rows_for: Make) -> None:
    rows = rows_for("table2")
    assert len(rows) == 60
    tables = tables_from(Selection("table2").cells(), rows, "")
    by_key = {(row.trained_as, row.rejector, row.norm, row.eps): row for row in rows}
    trained = {"snet": "pgd-at+snet", "ebd": "pgd-at+ebd", "carl": "carl", "atro": "atro"}
    for each in tables.judged:
        own = each.cell
        trained_as = f"{own.at}+rr" if own.rejector == "rr" else trained.get(own.rejector, own.at)
        eps = {"": "", "8": "8/255", "16": "16/255", "128": "128/255"}[own.eps]
        row = by_key[trained_as, own.rejector, own.norm, eps]
        assert each.measured.value == getattr(row, own.metric)
        assert each.measured.low == getattr(row, f"{own.metric}_low")
        assert each.difference == pytest.approx(getattr(row, own.metric) - float(own.value))
    assert len(tables.grids[0].best) == 8


def test_plain_accuracy_comes_from_the_rows_of_any_rejector_of_the_checkpoint(rows_for: Make) -> None:
    rows = rows_for("text")
    found = measure(rows, cell("text", rejector="none", attack="pgd-10", eps="16"))
    row = row_of(rows, attack="pgd10", eps="16/255")
    assert found.value == row.acc_all
    low, high = share_interval((row.acc_all or 0) * 100, 10_000)
    assert (found.low, found.high) == pytest.approx((100 * low, 100 * high))


CHANGES: dict[str, dict[str, object]] = {
    "on more images": {"n": 10_001},
    "under preset quick": {"preset": "quick"},
    "of another radius": {"eps": "7/255"},
    "of another norm": {"norm": "l2"},
    "of another attack": {"attack": "pgd10"},
    "of another rejector": {"rejector": "ebd"},
    "of another checkpoint": {"trained_as": "pgd-at+rr(tau=0.5)"},
    "of another framework": {"framework": "trades"},
    "of another network": {"network": "wrn34-10"},
    "of another data set": {"dataset": "cifar100"},
    "without readable settings": {"settings": "no JSON"},
    "without settings": {"settings": "{}"},
    "of a rejector that nobody can read": {"rejector": "rr(("},
    "that failed": {"status": "failed", "n": None},
}


@pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES)
def test_a_row_fills_no_cell_when_it_is(rows_for: Make, changes: dict[str, object]) -> None:
    row = row_of(rows_for("table2"))
    assert measure([row]).value == row.acc_tpr95
    assert measure([dataclasses.replace(row, **changes)]).value is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "setting", "value"),
    [
        ("attack", "keep", "best"),
        ("attack", "step", "1/255"),
        ("attack", "steps", 99),
        ("rejector", "tau", 0.5),
        ("framework", "attack_mode", "eval"),
        ("recipe", "epochs", 10),
        ("recipe", "drops", ["1/2"]),
    ],
)
def test_a_setting_changed_behind_the_label_is_noticed(rows_for: Make, kind: str, setting: str, value: object) -> None:
    row = row_of(rows_for("table2"))
    settings = json.loads(row.settings)
    assert settings[kind][setting] != value
    settings[kind][setting] = value
    assert measure([dataclasses.replace(row, settings=json.dumps(settings))]).value is None
    del settings[kind][setting]  # it did not exist when the row was made
    assert measure([dataclasses.replace(row, settings=json.dumps(settings))]).value == row.acc_tpr95


def test_several_trainings_are_averaged_with_students_interval(rows_for: Make) -> None:
    row = row_of(rows_for("table2"))
    values = [57.0, 58.0, 60.0]
    rows = [
        dataclasses.replace(row, seed=seed, acc_tpr95=value, checkpoint_sha256=f"{seed}")
        for seed, value in enumerate(values)
    ]
    found = measure(rows)
    assert found.value == pytest.approx(58 + 1 / 3)
    assert (found.trainings, found.note) == (3, "3 trainings")
    half = 4.303 * statistics.stdev(values) / math.sqrt(3)
    assert (found.low, found.high) == pytest.approx((58 + 1 / 3 - half, 58 + 1 / 3 + half))


def test_two_networks_of_one_seed_are_not_averaged_and_the_cell_says_so(rows_for: Make) -> None:
    row = dataclasses.replace(row_of(rows_for("table2")), acc_tpr95=57.0)
    twin = dataclasses.replace(row, acc_tpr95=58.0, checkpoint_sha256="z" + row.checkpoint_sha256)
    third = dataclasses.replace(row, seed=1, acc_tpr95=60.0, checkpoint_sha256="1")
    left = "not counted, since of the same seed: 1 more"
    for rows in ([row, twin], [twin, row]):
        found = measure(rows)
        assert (found.value, found.trainings, found.note) == (57.0, 1, left)
        assert (found.low, found.high) == (row.acc_tpr95_low, row.acc_tpr95_high), "the row's own interval"
    found = measure([row, twin, third])
    assert (found.value, found.note) == (58.5, f"2 trainings; {left}")


def test_a_table_counts_the_seeds_that_all_its_measured_cells_have(rows_for: Make) -> None:
    names = {"kd": "kd", "rr": "rr", "confidence": "confidence"}
    lines = [cell("table2", at="pgd-at", rejector=name, budget="linf:8", metric="acc_tpr95") for name in names]
    planned = rows_for("table2")
    own = {name: row_of(planned, name, trained_as="pgd-at+rr" if name == "rr" else "pgd-at") for name in names}

    def filled(**seeds: tuple[int, ...]) -> list[tuple[float | None, int, str]]:
        rows = [
            dataclasses.replace(own[name], seed=seed, acc_tpr95=50.0 + seed, checkpoint_sha256=f"{name}{seed}")
            for name, each in seeds.items()
            for seed in each
        ]
        return [(each.value, each.trainings, each.note) for _, each in fill_all(lines, Rows(rows))]

    missing, one = (None, 0, ""), (50.0, 1, "")
    assert filled(kd=(0,), rr=(0, 1, 2)) == [
        one,
        (50.0, 1, "seeds 1, 2 are measured too, but not for every line"),
        missing,
    ]
    twice = (50.5, 2, "2 trainings")
    more = (50.5, 2, "2 trainings; seed 4 is measured too, but not for every line")
    assert filled(kd=(0, 1), rr=(0, 1, 4), confidence=(0, 1)) == [twice, more, twice]
    # No seed is common: that of most cells counts, of as many the first.
    extra = (50.0, 1, "seed 1 is measured too, but not for every line")
    assert filled(kd=(0,), rr=(0, 1), confidence=(3,)) == [one, extra, (53.0, 1, "of seed 3, unlike the table")]
    assert filled(kd=(0,), rr=(1, 3)) == [one, (52.0, 2, "2 trainings; of seeds 1, 3, unlike the table"), missing]


def test_a_seed_without_a_value_is_measured_all_the_same(rows_for: Make) -> None:
    row = row_of(rows_for("table2"))
    other = dataclasses.replace(row, seed=1, checkpoint_sha256="1", acc_tpr95=60.0)
    rows = Rows([dataclasses.replace(row, acc_tpr95=None, auc=0.5), dataclasses.replace(other, auc=0.7)])
    auc = cell("table2", at="pgd-at", rejector="rr", budget="linf:8", metric="auc")
    found = [(each.value, each.note) for _, each in fill_all([RR, auc], rows)]
    assert found == [(60.0, "undefined in 1 more"), (pytest.approx(0.6), "2 trainings")]


def test_one_training_measured_twice_counts_once_and_the_more_exact_row_counts(rows_for: Make) -> None:
    row = row_of(rows_for("table2"))
    other = dataclasses.replace(row, precision="bf16", acc_tpr95=10.0)
    for rows in ([row, other], [other, row], [row, row]):
        assert (measure(rows).value, measure(rows).trainings) == (row.acc_tpr95, 1)


def test_rows_of_one_training_that_contradict_each_other_are_told_of(rows_for: Make) -> None:
    row = row_of(rows_for("table2"))
    assert measure([row, dataclasses.replace(row, seconds=1.0)]).note == ""
    other = dataclasses.replace(row, acc_tpr95=(row.acc_tpr95 or 0) + 2)
    assert measure([row, other]).note == "rows of one training differ by up to 2, the first counts"


def test_official_rows_fill_what_paper_rows_do_not_and_the_note_says_so(rows_for: Make) -> None:
    official = row_of(rows_for("table2", preset="official"))
    paper = dataclasses.replace(row_of(rows_for("table2")), acc_tpr95=33.0)
    assert (measure([official]).value, measure([official]).note) == (official.acc_tpr95, "preset official")
    assert (measure([official, paper]).value, measure([official, paper]).note) == (33.0, "")
    assert measure([official, paper], preset="official").value == official.acc_tpr95
    assert measure([official], preset="paper").value is None


def test_quick_rows_fill_other_data_but_never_the_papers(rows_for: Make) -> None:
    (digits,) = [
        one
        for one in relabelled(cells_of("table2"), "digits", "small-cnn")
        if (one.at, one.rejector, one.eps, one.metric, one.norm) == ("pgd-at", "rr", "8", "auc", "linf")
    ]
    assert presets_for(digits) == ("paper", "official", "quick")
    assert presets_for(RR) == ("paper", "official")
    rows = rows_for("table2", dataset="digits", network="small-cnn")
    assert {row.preset for row in rows} == {"quick"}
    assert measure(rows, digits).value == row_of(rows, eps="3/20").auc


def test_a_failed_row_and_an_undefined_metric_say_so(rows_for: Make) -> None:
    row = row_of(rows_for("table2"))
    failed = dataclasses.replace(row, status="failed", error="NaN gradients", n=None)
    assert measure([failed]).note == "failed: NaN gradients"
    undefined = measure([dataclasses.replace(row, acc_tpr95=None)])
    assert undefined.is_undefined
    assert undefined.value is None
    assert undefined.note.startswith("undefined")
    assert not measure([]).is_undefined
    # A failed row of one training does not hide that another was measured.
    assert measure([failed, dataclasses.replace(row, acc_tpr95=None)]).is_undefined
    # A mean over trainings says how many it leaves out.
    other = dataclasses.replace(row, acc_tpr95=None, seed=1, checkpoint_sha256="b" * 64)
    assert (measure([row, other]).value, measure([row, other]).note) == (row.acc_tpr95, "undefined in 1 more")


CORRUPTED = cell("table3", at="pgd-at", rejector="rr", attack="corruption:fog")


def test_corruptions_are_averaged_over_severities_in_paper_and_pooled_in_official(rows_for: Make) -> None:
    rows = [row for row in rows_for("table3") if row.trained_as == "pgd-at+rr" and "(fog" in row.dataset]
    assert [row.dataset for row in rows] == [f"cifar10-c(fog,severity={severity})" for severity in range(1, 6)]
    found = measure(rows, CORRUPTED)
    assert found.value == pytest.approx(statistics.fmean(row.acc_tpr95 or 0 for row in rows))
    assert found.low == pytest.approx((found.value or 0) - 1)
    assert measure(rows[:4], CORRUPTED).value is None
    assert measure(rows[:4], CORRUPTED).note == "4 of 5 parts measured"
    # All were measured, and their mean has no value.
    assert measure([*rows[:4], dataclasses.replace(rows[4], acc_tpr95=None)], CORRUPTED).is_undefined
    pooled = [row for row in rows_for("table3", preset="official") if row.dataset == "cifar10-c(fog)"]
    (rr,) = [row for row in pooled if row.trained_as == "pgd-at+rr"]
    assert (rr.n, measure([rr], CORRUPTED).value) == (50_000, rr.acc_tpr95)


def test_a_corruption_has_no_form_on_digits() -> None:
    (first, *_) = relabelled(cells_of("table3"), "digits", "small-cnn")
    assert measure([], first).note == "digits has no corrupted form"


def test_minimal_distortions_fill_table_7(rows_for: Make) -> None:
    rows = rows_for("table7", dataset="cifar10")
    own = cell("table7", dataset="cifar10", rejector="ebd", attack="cw-l2-adaptive")
    row = row_of(rows, "ebd", "cw-l2(goal=adaptive)", trained_as="pgd-at+ebd", norm="l2", eps="")
    assert column(own) == "distance"
    assert (measure(rows, own).value, measure(rows, own).low) == (row.distance, None)


def test_exactly_the_missing_rows_are_planned(rows_for: Make) -> None:
    selection = Selection("table2")
    rows = rows_for("table2")
    assert plan_missing(selection, rows, (0,)).cells == ()
    gone = row_of(rows)
    failed = [dataclasses.replace(row, status="failed") if row is gone else row for row in rows]
    for there in ([row for row in rows if row is not gone], failed):
        (planned,) = plan_missing(selection, there, (0,)).cells
        assert (planned.training.trained_as, str(planned.attack)) == ("pgd-at+rr", "pgd100x10")
    assert {seed: len(lacking) for seed, lacking in missing(selection, rows, (0, 1)).items()} == {0: 0, 1: 60}


def test_settings_are_compared_as_values() -> None:
    assert same("1e-3", "0.001")
    assert same("2/4", "1/2")
    assert same("0:0.1", "0.0:1e-1")
    assert not same("1", "2")
    assert not same("0:1", "0")
    assert not same("none", "true")
    assert plugin_name("attack", "pgd100x10(keep=best)") == "pgd"
    assert plugin_name("attack", "cw-l2(goal=adaptive)") == "cw-l2"
    assert table_names()[0] == "table1"


def test_the_tables_need_exactly_the_39_trainings_behind_the_paper(rows_for: Make) -> None:
    runs = list(csv.DictReader(io.StringIO(data("published/runs.csv"))))
    found = {(row.dataset.partition("-c(")[0], row.network, row.framework, row.trained_as) for row in rows_for("all")}
    assert sorted(key[:3] for key in found) == sorted((run["dataset"], run["arch"], run["framework"]) for run in runs)
    assert len(found) == 39
