import csv
import dataclasses
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rrbench.errors import UseError
from rrbench.rows.row import ResultRow, to_csv, write_rows
from rrbench.rows.tables import budget_text, choose, is_of, number, pivot_table, render, results_table

BASE = ResultRow("digits", "small-cnn", "pgd-at", "pgd-at", "confidence", "clean", "", "", 0, "quick", 360)


def row(**changes: object) -> ResultRow:
    return dataclasses.replace(BASE, **changes)  # type: ignore[arg-type]


CLEAN = row(
    acc_all=98.3333,
    acc_tpr95=99.4,
    acc_tpr95_low=98.0,
    acc_tpr95_high=100.0,
    auc=0.97654,
    deploy_coverage=93.888,
    deploy_robust=99.444,
    deploy_joint=93.612,
)
ATTACKED = row(
    attack="pgd100",
    norm="linf",
    eps="3/20",
    acc_all=70.0,
    acc_tpr95=72.5,
    acc_tpr95_low=68.0,
    acc_tpr95_high=77.0,
    auc=0.6,
)
RECTIFIED = row(rejector="rr", trained_as="pgd-at+rr", acc_all=98.0, acc_tpr95=99.0)
FAILED = row(
    rejector="rr",
    trained_as="pgd-at+rr",
    attack="pgd100",
    norm="linf",
    eps="3/20",
    status="failed",
    error="NaN | here",
    n=None,
)
ROWS = [FAILED, RECTIFIED, ATTACKED, CLEAN]

TEXT = """\
digits, small-cnn, preset quick, seed 0, n=360
trained as  rejector    attack          budget     accuracy                 TPR-95    AUC  coverage  robust  joint
----------  ----------  --------------  ---------  --------  ---------------------  -----  --------  ------  -----
pgd-at      confidence  clean                         98.33  99.40 [98.00, 100.00]  0.977     93.89   99.44  93.61
pgd-at      confidence  pgd100 (blind)  linf:3/20     70.00   72.50 [68.00, 77.00]  0.600         -       -      -
pgd-at+rr   rr          clean                         98.00                  99.00      -         -       -      -

failed
trained as  rejector  attack  budget     error
----------  --------  ------  ---------  ----------
pgd-at+rr   rr        pgd100  linf:3/20  NaN | here
"""

MARKDOWN = """\
**digits, small-cnn, preset quick, seed 0, n=360**

| trained as | rejector | attack | budget | accuracy | TPR-95 | AUC | coverage | robust | joint |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
| pgd-at | confidence | clean |  | 98.33 | 99.40 [98.00, 100.00] | 0.977 | 93.89 | 99.44 | 93.61 |
| pgd-at | confidence | pgd100 (blind) | linf:3/20 | 70.00 | 72.50 [68.00, 77.00] | 0.600 | - | - | - |
| pgd-at+rr | rr | clean |  | 98.00 | 99.00 | - | - | - | - |

**failed**

| trained as | rejector | attack | budget | error |
| --- | --- | --- | --- | --- |
| pgd-at+rr | rr | pgd100 | linf:3/20 | NaN \\| here |"""


def test_the_results_as_text() -> None:
    shown = results_table(ROWS)
    assert shown.startswith(TEXT)
    assert shown.removeprefix(TEXT).splitlines() == [
        "TPR-95 [95 % interval over examples]: right among the accepted, if 95 % of the right ones are accepted; "
        "threshold from these inputs.",
        "coverage, robust, joint: the threshold is fixed on other, clean inputs, or brought by the rejector.",
        "coverage: accepted.",
        "robust: 100 minus what is accepted and wrong.",
        "joint: accepted and right when clean; not both accepted and wrong when attacked.",
    ]


def test_what_a_note_says_stands_below_once_with_the_rows_it_is_for() -> None:
    weak = [dataclasses.replace(ATTACKED, rejector=name, note="weak: it is") for name in ("rr", "kd", "lid", "gda")]
    shown = results_table([CLEAN, *weak, dataclasses.replace(RECTIFIED, note="oracle")]).splitlines()
    assert shown[-2:] == [
        "note for gda pgd100 linf:3/20, kd pgd100 linf:3/20, lid pgd100 linf:3/20 and 1 more: weak: it is",
        "note for rr clean: oracle",
    ]


def test_the_results_as_markdown() -> None:
    assert results_table(ROWS, "markdown") == MARKDOWN


def test_the_results_as_csv_are_one_table_with_every_column() -> None:
    shown = results_table(ROWS, "csv")
    assert shown + "\n" == to_csv([CLEAN, ATTACKED, RECTIFIED, FAILED])
    assert len(list(csv.DictReader(io.StringIO(shown)))) == 4


def test_each_data_set_and_preset_has_a_block_of_its_own() -> None:
    rows = [row(seed=1), row(), row(preset="paper"), row(dataset="cifar10", n=None)]
    titles = [line for line in results_table(rows).splitlines() if "preset" in line]
    assert titles == [
        "cifar10, small-cnn, preset quick, seed 0, n=?",
        "digits, small-cnn, preset paper, seed 0, n=360",
        "digits, small-cnn, preset quick, seeds 0, 1, n=360",
    ]


def test_seeds_share_a_line_of_mean_and_standard_deviation() -> None:
    values = {0: (97.0, 0.91), 1: (98.5, 0.94), 2: (96.1, None)}
    bounds = {"acc_tpr95": 99.0, "acc_tpr95_low": 98.0, "acc_tpr95_high": 100.0}
    rows = [row(seed=seed, acc_all=acc, auc=auc, **bounds) for seed, (acc, auc) in values.items()]
    alone = row(rejector="rr", acc_all=98.0, **bounds)
    shown = results_table([*rows, alone]).splitlines()
    mean, deviation = np.mean([97.0, 98.5, 96.1]), np.std([97.0, 98.5, 96.1], ddof=1)
    assert shown[0] == "digits, small-cnn, preset quick, seeds 0, 1, 2, n=360"
    assert shown[1].split()[4:6] == ["budget", "seeds"]
    one, other = shown[3:5]
    assert f"3  {mean:.2f} \u00b1 {deviation:.2f}" in one
    assert f"{0.925:.3f} \u00b1 {np.std([0.91, 0.94], ddof=1):.3f}" in one, "where it is defined"
    assert "99.00 \u00b1 0.00 " in one
    assert "1         98.00  99.00 [98.00, 100.00]" in other, "one seed has its interval"
    assert "over seeds, that is over trainings" in "".join(shown)
    assert "$\\pm$" in results_table(rows, "latex")
    assert len(results_table(rows, "csv").splitlines()) == 4


def test_lines_that_look_alike_say_in_what_they_differ() -> None:
    rows = [row(checkpoint_sha256=letter * 64, acc_all=90.0) for letter in "ab"]
    shown = results_table(rows).splitlines()
    assert shown[1].split()[4:6] == ["budget", "of"]
    assert [line.split()[3:5] for line in shown[3:5]] == [["checkpoint", "aaaaaaaa"], ["checkpoint", "bbbbbbbb"]]


def test_rows_of_two_precisions_say_which() -> None:
    rows = [row(precision=precision, acc_all=90.0) for precision in ("bf16", "fp32")]
    shown = results_table(rows).splitlines()
    assert shown[1].split()[4:6] == ["budget", "precision"]
    assert [line.split()[3] for line in shown[3:5]] == ["bf16", "fp32"]
    assert "precision" not in results_table(rows[:1])


def test_a_ranking_is_by_the_mean_over_seeds() -> None:
    def attacked(rejector: str, *joints: float) -> list[ResultRow]:
        made = {"rejector": rejector, "attack": "worst-case", "norm": "linf", "eps": "3/20"}
        return [row(**made, seed=seed, deploy_joint=joint) for seed, joint in enumerate(joints)]

    rows = [*attacked("kd", 50.0, 10.0), *attacked("rr", 40.0, 42.0), *attacked("none", 0.0, 0.0)]
    shown = results_table(rows, is_ranked=True).splitlines()[3:6]
    assert [line.split()[1] for line in shown] == ["rr", "kd", "none"]


def test_text_columns_are_aligned_and_numbers_stand_to_the_right() -> None:
    shown = render(["name", "value"], [["a", "1.5"], ["longer", "-"], ["b", "100.25"]], "text", "title")
    assert shown == "title\nname     value\n------  ------\na          1.5\nlonger       -\nb       100.25"


def test_csv_quotes_what_needs_quotes() -> None:
    shown = render(["name", "value"], [['a,"b"', "1"], ["line\nbreak", "2"]], "csv")
    assert shown == 'name,value\n"a,""b""",1\n"line\nbreak",2'
    assert list(csv.reader(io.StringIO(shown)))[1] == ['a,"b"', "1"]


def test_a_table_without_lines_is_its_header() -> None:
    assert render(["name", "value"], [], "text") == "name  value\n----  -----"
    assert render(["name"], [], "markdown") == "| name |\n| --- |"
    assert results_table([]) == ""


def test_an_unknown_format_names_the_known_ones() -> None:
    with pytest.raises(UseError, match="unknown format 'pdf'; one of text, markdown"):
        results_table(ROWS, "pdf")


def test_a_pivot_shows_one_metric_by_attack() -> None:
    assert pivot_table(ROWS, "attack", "acc_tpr95", "csv") == (
        "trained_as,rejector,clean,pgd100 linf:3/20\npgd-at,confidence,99.40,72.50\npgd-at+rr,rr,99.00,failed"
    )


def test_a_pivot_names_what_varies_and_what_is_missing() -> None:
    rows = [CLEAN, ATTACKED, row(dataset="cifar10", acc_all=80.0)]
    assert pivot_table(rows, "attack", "acc_all", "csv") == (
        "dataset,rejector,clean,pgd100 linf:3/20\ncifar10,confidence,80.00,missing\ndigits,confidence,98.33,70.00"
    )


def test_a_pivot_keeps_two_budgets_of_one_attack_apart() -> None:
    rows = [ATTACKED, row(attack="pgd100", norm="l2", eps="1/2", acc_all=60.0)]
    assert pivot_table(rows, "attack", "acc_all", "csv") == (
        "rejector,pgd100 l2:1/2,pgd100 linf:3/20\nconfidence,60.00,70.00"
    )


def test_a_pivot_by_something_else_never_mixes_attacks_in_one_field() -> None:
    assert pivot_table([CLEAN, ATTACKED, row(seed=1, acc_all=97.0)], "seed", "acc_all", "csv") == (
        "rejector,attack,0,1\nconfidence,clean,98.33,97.00\nconfidence,pgd100 linf:3/20,70.00,missing"
    )
    assert pivot_table([CLEAN, RECTIFIED], "rejector", "acc_all", "csv") == (
        "trained_as,confidence,rr\npgd-at,98.33,missing\npgd-at+rr,missing,98.00"
    )


def test_a_pivot_by_budget_has_an_attack_once() -> None:
    larger = dataclasses.replace(ATTACKED, eps="1/5", acc_tpr95=60.0)
    shown = pivot_table([CLEAN, ATTACKED, larger], "budget", "acc_tpr95").splitlines()
    assert shown[1].split() == ["rejector", "attack", "clean", "linf:3/20", "linf:1/5"]
    assert [line.split() for line in shown[3:]] == [
        ["confidence", "clean", "99.40", "missing", "missing"],
        ["confidence", "pgd100", "(blind)", "missing", "72.50", "60.00"],
    ]
    assert pivot_table([ATTACKED, larger], "budget", "acc_all", "csv").splitlines()[0] == "rejector,linf:3/20,linf:1/5"
    with pytest.raises(UseError, match="unknown column 'budget'"):
        pivot_table([CLEAN], "budget", "budget")


def test_a_pivot_does_not_mix_presets_or_numbers_of_inputs() -> None:
    rows = [CLEAN, row(preset="paper", acc_all=97.0), row(n=16, acc_all=96.0)]
    assert pivot_table(rows, "attack", "acc_all", "csv") == (
        "preset,n,rejector,clean\npaper,360,confidence,97.00\nquick,16,confidence,96.00\nquick,360,confidence,98.33"
    )


def test_a_pivot_sums_up_several_seeds() -> None:
    rows = [CLEAN, row(seed=1, acc_all=97.0)]
    assert pivot_table(rows, "attack", "acc_all", "csv") == "rejector,clean\nconfidence,97.67 \u00b1 0.94"
    broken = row(seed=2, status="failed", error="NaN")
    assert pivot_table([*rows, broken], "attack", "acc_all", "csv").endswith(",97.67 \u00b1 0.94; failed")


@pytest.mark.parametrize(("by", "metric"), [("attak", "acc_all"), ("attack", "acc_al")])
def test_an_unknown_column_answers_with_near_ones(by: str, metric: str) -> None:
    with pytest.raises(UseError, match=r"unknown column '\w+'; near: (attack|acc_all)"):
        pivot_table(ROWS, by, metric)


def test_percentages_have_two_digits_and_fractions_three() -> None:
    measured = row(acc_all=12.345678, auc=0.98765, deploy_threshold=0.5, deploy_n=360)
    shown = {name: number(measured, name) for name in ("acc_all", "auc", "deploy_threshold", "deploy_n", "ece")}
    assert shown == {"acc_all": "12.35", "auc": "0.988", "deploy_threshold": "0.500", "deploy_n": "360", "ece": "-"}


@pytest.mark.parametrize(
    ("norm", "eps", "text"),
    [
        ("", "", ""),
        ("linf", "8/255", "linf:8/255"),
        ("l2", "", "l2"),
        ("linf", "0", "linf:0"),
        ("linf", "4/85", "linf:12/255"),
    ],
)
def test_a_budget_is_shown_as_it_is_typed(norm: str, eps: str, text: str) -> None:
    assert budget_text(row(norm=norm, eps=eps)) == text


def test_a_file_without_rows_is_one_line(command: Any, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text(to_csv([]))
    answer = command("table", tmp_path / "rows.csv")
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.endswith("rows.csv holds no rows: nothing to show\n")


def test_a_metric_alone_is_a_pivot_by_attack_and_a_wrong_one_is_refused(command: Any, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text(to_csv(ROWS))
    assert (
        command("table", tmp_path, "--metric", "auc").out
        == command("table", tmp_path, "--by", "attack", "--metric", "auc").out
    )
    assert command("table", tmp_path, "--metric", "nope").code == 2
    assert command("table", "--paper", "table1", "--metric", "auc").code == 2


def test_a_value_with_an_interval_shows_it() -> None:
    measured = row(deploy_joint=93.612, deploy_joint_low=91.0, deploy_joint_high=95.5)
    assert "93.61 [91.00, 95.50]" in results_table([measured])


def test_a_ranking_puts_each_budgets_best_joint_number_first() -> None:
    def attacked(rejector: str, eps: str, joint: float | None) -> ResultRow:
        return row(rejector=rejector, attack="worst-case", norm="linf", eps=eps, deploy_joint=joint)

    rows = [
        attacked("kd", "3/20", 41.0),
        attacked("rr", "3/20", None),
        attacked("lid", "3/20", 44.0),
        attacked("kd", "1/20", 60.0),
    ]
    ranked = results_table(rows, "csv", is_ranked=True).splitlines()[1:]
    assert [(line.split(",")[4], line.split(",")[7]) for line in ranked] == [
        ("kd", "1/20"),
        ("lid", "3/20"),
        ("kd", "3/20"),
        ("rr", "3/20"),
    ]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ("pgd", ["pgd10", "pgd100x10"]),
        ("pgd10", ["pgd10"]),
        ("pgd10,worst-case", ["pgd10", "worst-case"]),
        ("adaptive", ["adaptive(ce+rcon)"]),
        ("gama", []),
    ],
)
def test_rows_are_chosen_by_an_attacks_name_or_by_all_of_it(wanted: str, expected: list[str]) -> None:
    rows = [row(attack=name) for name in ("clean", "pgd10", "pgd100x10", "adaptive(ce+rcon)", "worst-case")]
    assert [each.attack for each in rows if is_of(each, wanted)] == expected


MEASURED = [
    CLEAN,
    ATTACKED,
    RECTIFIED,
    row(attack="pgd100", norm="linf", eps="4/85"),
    row(rejector="rr", attack="worst-case", norm="linf", eps="3/20", framework="trades"),
]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ({"rejectors": "rr"}, [2, 4]),
        ({"rejectors": "rr@trades"}, [4]),
        ({"attacks": "pgd"}, [1, 3]),
        ({"budgets": "linf:12/255"}, [0, 2, 3]),
        ({"budgets": "linf:3/20", "rejectors": "confidence"}, [0, 1]),
        ({"budgets": "linf:3/20,linf:4/85", "attacks": "pgd100,clean"}, [0, 1, 2, 3]),
        ({}, [0, 1, 2, 3, 4]),
    ],
)
def test_rows_are_chosen_by_rejector_attack_and_budget(words: dict[str, str], expected: list[int]) -> None:
    assert choose(MEASURED, **words) == [MEASURED[index] for index in expected]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--rejectors", "ebd"], "unknown rejector in these results: 'ebd'; near: "),
        (["--attacks", "worst"], "unknown attack in these results: 'worst'; near: worst-case"),
        (["--budgets", "linf:1/3"], "unknown budget in these results: 'linf:1/3'; near: linf:"),
        (["--budgets", "8/255"], "cannot read budget '8/255'"),
        (["--rejectors", "confidence", "--attacks", "worst-case"], "no row has all of these"),
        (["--paper", "table2", "--budgets", "linf:8/255"], "--paper takes its rows from --results"),
    ],
)
def test_a_choice_that_fits_no_row_is_one_line(command: Any, tmp_path: Path, words: list[str], said: str) -> None:
    (tmp_path / "rows.csv").write_text(to_csv(MEASURED))
    answer = command("table", *([] if "--paper" in words else [tmp_path]), *words)
    assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1)
    assert said in answer.err


def test_differences_are_from_a_rejector_that_is_not_shown_and_over_seeds(command: Any, tmp_path: Path) -> None:
    rows = [
        row(rejector=name, seed=seed, acc_tpr95=value)
        for name, values in {"confidence": (70.0, 72.0), "rr": (71.0, 74.0)}.items()
        for seed, value in enumerate(values)
    ]
    (tmp_path / "rows.csv").write_text(to_csv(rows))
    answer = command("table", tmp_path, "--rejectors", "rr", "--against", "confidence")
    assert answer.code == 0
    lines = [line for line in answer.out.splitlines() if line.startswith(("rr", "confidence"))]
    assert lines == ["rr        72.50 \u00b1 2.12 (+1.50 \u00b1 0.71)"]
    assert "mean \u00b1 standard deviation over seeds" in answer.out


def test_a_metric_may_be_named_by_its_label_or_its_column(command: Any, tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.csv", ROWS)
    by_label = command("table", tmp_path, "--metric", "Joint")
    assert by_label.code == 0
    assert by_label.out.startswith("joint\n")
    assert "93.61" in by_label.out
    assert by_label == command("table", tmp_path, "--metric", "deploy_joint")
    assert "unknown column 'jiont'" in command("table", tmp_path, "--metric", "jiont").err


@pytest.mark.parametrize(
    ("networks", "said"),
    [
        ("aa", "\u00b1: standard deviation over seeds of the attack, on one network. Lines"),
        ("ab", "\u00b1: standard deviation over seeds, that is over trainings. Lines"),
    ],
)
def test_seeds_of_an_attack_on_one_network_are_not_called_trainings(networks: str, said: str) -> None:
    rows = [row(seed=seed, acc_all=90.0 + seed, checkpoint_sha256=64 * each) for seed, each in enumerate(networks)]
    assert said in results_table(rows)
    others = [
        row(rejector="rr", seed=seed, acc_all=80.0, checkpoint_sha256=64 * each) for seed, each in enumerate("cd")
    ]
    mixed = "over trainings, or over seeds of the attack where all rows have one network"
    assert (mixed in results_table([*rows, *others])) == (networks == "aa")
