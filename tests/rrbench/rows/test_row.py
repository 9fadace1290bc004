import csv
import dataclasses
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rrbench.errors import UseError
from rrbench.rows.row import (
    COLUMNS,
    FRACTIONS,
    LATER,
    PERCENTAGES,
    ResultRow,
    is_results,
    order,
    read_rows,
    to_csv,
    write_rows,
)

# DESIGN.md, "Store and rows".
DESIGN = """\
    dataset network framework trained_as rejector attack norm eps seed preset n
    acc_all acc_tpr95 auc coverage_tpr95 acc_tpr95_low acc_tpr95_high auc_low auc_high
    deploy_threshold deploy_n deploy_acc deploy_coverage deploy_robust
    deploy_robust_low deploy_robust_high deploy_joint deploy_joint_low deploy_joint_high aurc augrc fpr95 ece
    distance distance_success success  status error note settings seconds gradients device precision
    checkpoint_sha256 data_sha256 version commit
"""


def row(**changes: object) -> ResultRow:
    base = ResultRow("digits", "small-cnn", "pgd-at", "pgd-at+rr", "rr", "pgd100", "linf", "3/20", 0, "quick", 360)
    return dataclasses.replace(base, **changes)  # type: ignore[arg-type]


def saved(path: Path, *rows: ResultRow) -> Path:
    path.write_text(to_csv(rows), encoding="utf-8", newline="")
    return path


# Rows hold single lines: no carriage return, which Python's csv would leave unquoted.
TEXTS = st.text(st.sampled_from("ab 1/+-_.,;:'\"|=(){}[]\\\n\tß中"), max_size=6)
NUMBERS = st.none() | st.floats(allow_nan=False)
BY_TYPE: dict[str, st.SearchStrategy[object]] = {
    "str": TEXTS,
    "int": st.integers(-(2**63), 2**63 - 1),
    "int | None": st.none() | st.integers(1, 2**63 - 1),
    "float | None": NUMBERS,
}


@st.composite
def any_row(draw: st.DrawFn) -> ResultRow:
    values = {field.name: draw(BY_TYPE[str(getattr(field.type, "__name__", field.type))]) for field in FIELDS}
    values["eps"] = draw(st.just("") | st.fractions(0).map(str))
    values |= {name: draw(st.none() | st.floats(0, 1)) for name in PERCENTAGES | FRACTIONS}
    return ResultRow(**values)  # type: ignore[arg-type]


FIELDS = dataclasses.fields(ResultRow)


def test_the_columns_begin_with_those_of_the_design_in_its_order() -> None:
    design = DESIGN.split()
    assert list(COLUMNS[: len(design)]) == design
    assert to_csv([]).splitlines()[0].split(",") == list(COLUMNS)


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(any_row(), max_size=2))
def test_what_is_written_is_read_back_exactly(tmp_path_factory: pytest.TempPathFactory, rows: list[ResultRow]) -> None:
    path = saved(tmp_path_factory.getbasetemp() / "round_trip.csv", *rows)
    assert read_rows(path) == rows


def test_every_digit_of_a_number_survives(tmp_path: Path) -> None:
    numbers = [0.1, 1 / 3, 1e-300, 5e-324, 1.7976931348623157e308, -0.0, 100.0]
    rows = [row(seed=index, seconds=number) for index, number in enumerate(numbers)]
    assert [str(found.seconds) for found in read_rows(saved(tmp_path / "a.csv", *rows))] == list(map(str, numbers))


def test_an_undefined_value_is_an_empty_field(tmp_path: Path) -> None:
    line = to_csv([row(acc_all=100.0)]).splitlines()[1].split(",")
    record = dict(zip(COLUMNS, line, strict=True))
    assert record["acc_all"] == "100.0"
    assert record["auc"] == record["deploy_n"] == record["distance"] == ""
    (found,) = read_rows(saved(tmp_path / "a.csv", row(acc_all=100.0)))
    assert found.auc is None
    assert found.deploy_n is None
    assert found.error == ""


def test_rows_are_written_in_one_order_whatever_the_order_of_work(tmp_path: Path) -> None:
    rows = [
        row(attack="clean", norm="", eps=""),
        row(attack="adaptive(ce+rcon)"),
        row(eps="4/255"),
        row(eps="8/255"),
        row(eps="3/20"),
        row(seed=1, attack="clean", norm="", eps=""),
        row(rejector="rr(score=con)"),
        row(trained_as="pgd-at+snet", rejector="snet"),
        row(dataset="zebras"),
    ]
    write_rows(tmp_path / "a.csv", rows)
    write_rows(tmp_path / "b.csv", reversed(rows))
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()
    assert read_rows(tmp_path / "a.csv") == rows


def test_small_budgets_come_before_large_ones() -> None:
    eps = ["8/255", "16/255", "1/10", "1/2", "10"]
    rows = sorted([row(eps=text) for text in reversed(eps)], key=order)
    assert [found.eps for found in rows] == eps
    assert [Fraction(found.eps) for found in rows] == sorted(map(Fraction, eps))


def test_a_folder_stands_for_its_rows_file(tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.csv", [row()])
    assert read_rows(tmp_path) == read_rows(str(tmp_path)) == [row()]
    with pytest.raises(UseError, match="a file is named by a text or a Path, not by 7"):
        read_rows(7)  # type: ignore[arg-type]


def test_the_mark_that_excel_puts_first_is_no_letter_of_a_column(tmp_path: Path) -> None:
    path = tmp_path / "excel.csv"
    path.write_text(to_csv([row()]), encoding="utf-8-sig")
    assert is_results(path)
    assert read_rows(path) == [row()]


def test_a_file_of_an_older_version_is_read_with_empty_columns(tmp_path: Path) -> None:
    path = tmp_path / "old.csv"
    whole = csv.DictReader(to_csv([row(auc=0.5, deploy_joint=40.0)]).splitlines())
    lines = [{name: text for name, text in line.items() if name not in LATER} for line in whole]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(lines[0]))
        writer.writeheader()
        writer.writerows(lines)
    assert is_results(path)
    with pytest.warns(UserWarning, match=r"old\.csv is of an older version of rrbench, without deploy_joint, "):
        assert read_rows(path) == [row(auc=0.5)]


def test_columns_that_are_not_ours_are_ignored_in_any_order(tmp_path: Path) -> None:
    header, line = to_csv([row(auc=0.5)]).splitlines()
    path = tmp_path / "a.csv"
    turned = [",".join(["mine", *reversed(header.split(","))]), ",".join(["7", *reversed(line.split(","))])]
    path.write_text("\n".join(turned) + "\n")
    assert read_rows(path) == [row(auc=0.5)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is no results file of rrbench: it lacks"),
        ("a,b\n1,2\n", "is no results file of rrbench: it lacks acc_all, acc_tpr95, acc_tpr95_high"),
        (to_csv([row()])[:-30], "a row is cut off"),
        (to_csv([row()]).replace(",0,quick", ",zero,quick"), "cannot read"),
        (to_csv([row()]).replace("3/20", "abc"), "cannot read"),
        (to_csv([row()]).replace("3/20", "3/0"), "cannot read"),
        (to_csv([row(auc=0.25)]).replace("0.25", "high"), "cannot read"),
        (to_csv([row(auc=float("nan"))]), "auc of .* is nan"),
        (to_csv([row(auc=1.5)]), "auc of .* is 1.5"),
        (to_csv([row(acc_all=float("inf"))]), "acc_all of .* is inf"),
        (to_csv([row(n=0)]), "n of .* is 0"),
    ],
)
def test_a_file_that_holds_no_rows_is_one_line(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(content)
    with pytest.raises(UseError, match=rf"^[^\n]*{message}[^\n]*$"):
        read_rows(path)


def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UseError, match=r"^no results at [^\n]+$"):
        read_rows(tmp_path / "missing.csv")
    with pytest.raises(UseError, match=r"^no results at [^\n]+rows\.csv$"):
        read_rows(tmp_path)
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UseError, match=r"^cannot read [^\n]+$"):
        read_rows(tmp_path / "binary.csv")
