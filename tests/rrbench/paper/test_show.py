"""The formats: every number of every cell, within 100 columns, in LaTeX and HTML that a parser accepts."""

import csv
import dataclasses
import io
import re
import shutil
import subprocess
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from rrbench.paper.cells import FIELDS, cells_of, table_names
from rrbench.paper.judge import judge
from rrbench.paper.show import MEASURED_FIELDS
from rrbench.paper.tabulate import PaperTables, Selection, tables_from
from rrbench.rows.row import ResultRow
from rrbench.rows.tables import LAYOUTS, render

Make = Callable[..., list[ResultRow]]
VOID = {"meta", "br"}
COMMANDS = {
    *("begin", "end", "centering", "scriptsize", "setlength", "tabcolsep", "caption", "label", "toprule", "midrule"),
    *("bottomrule", "shortstack", "textbf", "mathrm", "par", "raggedright", "textless", "textgreater", "textbar"),
    *("textasciitilde", "textasciicircum", "textbackslash"),
}


def filled(rows_for: Make, paper: str = "all") -> PaperTables:
    rows = rows_for(paper)
    # A few rows of another preset, a failed one, and some that are missing.
    rows[0] = dataclasses.replace(rows[0], status="failed", error="NaN & <no> gradients_50 %", n=None)
    return tables_from(Selection(paper).cells(), rows[:-3], "rows from nowhere")


@pytest.fixture(scope="module")
def tables(rows_for: Make) -> PaperTables:
    return filled(rows_for)


def test_text_fits_in_100_columns_and_shows_every_published_number(tables: PaperTables) -> None:
    for verdicts in (False, True):
        text = tables.show("text", with_verdicts=verdicts)
        assert max(map(len, text.splitlines())) <= 100
        assert "~" not in text
        for name in table_names():
            assert all(cell.value in text for cell in cells_of(name) if cell.value != "nan")
        assert text.count("overflow ") >= 4


def test_a_missing_cell_is_never_shown_as_the_papers() -> None:
    tables = tables_from(Selection("table2").cells(), [], "")
    lines = [line for line in tables.show("text").splitlines() if "RR" in line.split()[1:2]]
    assert lines
    assert all(re.search(r"missing +\d", line) and not re.search(r"\d\.\d+[* ] +\d", line) for line in lines)
    for record in csv.DictReader(io.StringIO(tables.show("csv"))):
        assert (record["measured"], record["difference"], record["verdict"]) == ("", "", "missing")


def test_a_line_of_text_says_ours_the_papers_the_difference_and_the_interval(rows_for: Make) -> None:
    rows = [
        dataclasses.replace(row, acc_tpr95=87.0, acc_tpr95_low=86.04, acc_tpr95_high=87.96)
        for row in rows_for("table5")
    ]
    text = tables_from(Selection("table5").cells(), rows, "").show("text")
    assert "RR log2 tau=-1  87.00* 86.86* +0.14 86.0..88.0" in text


def test_csv_has_one_line_a_cell_with_the_published_columns_first(tables: PaperTables) -> None:
    records = list(csv.DictReader(io.StringIO(tables.show("csv"))))
    assert len(records) == 629
    assert tuple(records[0]) == (*FIELDS, *MEASURED_FIELDS)
    published = [cell for name in table_names() for cell in cells_of(name)]
    found = {tuple(record[key] for key in FIELDS[:-1]): record for record in records}
    assert set(found) == {tuple(cell.part(key) for key in FIELDS[:-1]) for cell in published}
    for each in tables.judged:
        record = found[tuple(each.cell.part(key) for key in FIELDS[:-1])]
        assert record["verdict"] == each.verdict
        assert record["measured"] == ("" if each.measured.value is None else str(each.measured.value))
        assert record["bold"] == str(int(each.cell.bold))


def test_markdown_has_as_many_fields_in_every_line(tables: PaperTables) -> None:
    for grid in tables.grids:
        part = PaperTables((grid,), (), "").show("markdown")
        lines = [line for line in part.splitlines() if line.startswith("|")]
        assert {line.count("|") for line in lines} == {len(grid.titles) + len(grid.columns) + 1}
        assert len(lines) == len(grid.lines) + 2


def test_winners_are_marked_in_both(rows_for: Make) -> None:
    tables = filled(rows_for, "table8")
    best = {each.cell for grid in tables.grids for each in grid.judged if each.cell in grid.best}
    text = tables.show("markdown")
    bold = {(cell.value, cell.metric) for cell in cells_of("table8") if cell.bold}
    assert bold
    assert all(f"/ **{value}**" in text for value, _ in bold)
    assert len(re.findall(r"\| \*\*\d", text)) == len(best) > 0


class Nesting(HTMLParser):
    """Checks that tags close in order, and counts the fields of each line."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fields: list[int] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.fields.append(0)
        if tag in ("td", "th"):
            self.fields[-1] += 1

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_html_is_one_whole_page_with_every_field(tables: PaperTables) -> None:
    page = tables.show("html")
    assert page.startswith("<!doctype html>")
    parser = Nesting()
    parser.feed(page)
    assert parser.open == []
    expected = [len(grid.titles) + len(grid.columns) for grid in tables.grids for _ in range(len(grid.lines) + 1)]
    assert parser.fields == expected
    assert "NaN & <no> gradients_50 %" in parser.text
    assert "http" not in page


def check_latex(source: str) -> None:
    """Check what would stop LaTeX: environments, braces, dollars, the columns of each line, bare specials."""
    body = "\n".join(line for line in source.splitlines() if not line.startswith("%"))
    assert body.isascii()
    bare = re.sub(r"\\[\\{}$&%#_ ]", " ", body)
    depth = 0
    for character in bare:
        depth += (character == "{") - (character == "}")
        assert depth >= 0
    assert depth == 0
    assert bare.count("$") % 2 == 0
    assert not re.search(r"[#%~]", bare)
    outside_math = re.sub(r"\$[^$]*\$", "", bare)
    assert not re.search(r"[_^]", re.sub(r"\\label\{[^}]*\}", "", outside_math))
    stack: list[str] = []
    for kind, name in re.findall(r"\\(begin|end)\{(\w+)\}", body):
        if kind == "begin":
            stack.append(name)
        else:
            assert stack.pop() == name
    assert stack == []
    commands = set(re.findall(r"\\([A-Za-z]+)", body.replace(r"\\", " ")))
    assert commands <= COMMANDS
    for columns, inside in re.findall(r"\\begin\{tabular\}\{@\{\}([lr]+)@\{\}\}(.*?)\\end\{tabular\}", body, re.S):
        flat = re.sub(r"\\shortstack\{(?:[^{}]|\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\})*\}", "S", inside)
        lines = [line for line in flat.splitlines() if line.endswith(r"\\")]
        assert lines
        assert {len(re.findall(r"(?<!\\)&", line)) + 1 for line in lines} == {len(columns)}


def compile_latex(source: str, folder: Path) -> None:
    document = "\\documentclass{article}\n\\usepackage{booktabs}\n\\begin{document}\n%s\n\\end{document}\n"
    (folder / "tables.tex").write_text(document % source)
    done = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "tables.tex"],
        cwd=folder, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:]


def test_latex_compiles_with_booktabs_alone(tables: PaperTables, tmp_path: Path) -> None:
    """With pdflatex it is compiled; everywhere its structure is checked, so that nothing is skipped."""
    own = render(["rejector", "value"], [["a_b & c", "1.0"], ["[x] 5 % #1 ~^\\{}", "2"]], "latex", "$title_")
    for source in (tables.show("latex"), tables.show("latex", with_verdicts=True), own):
        check_latex(source)
        if shutil.which("pdflatex"):
            compile_latex(source, tmp_path)


def test_the_latex_check_sees_what_latex_would_refuse() -> None:
    good = render(["a", "b"], [["x", "1"]], "latex")
    check_latex(good)
    for wrong in (
        good.replace("x & 1", "x & 1 & 2"),
        good.replace("x &", "x_y &"),
        good.replace("{table}", "{tabel}", 1),
    ):
        with pytest.raises(AssertionError):
            check_latex(wrong)
    with pytest.raises(AssertionError):
        check_latex(good.replace("x &", "{x &"))


def test_footnotes_and_remarks_are_below_with_their_letters(tables: PaperTables) -> None:
    (grid,) = [grid for grid in tables.grids if grid.name == "table1"]
    text = PaperTables((grid,), (), "").show("text")
    assert re.search(r"^[a-z]: failed: NaN & <no> gradients_50 %", text, re.M)
    (two,) = [grid for grid in tables.grids if grid.name == "table2"]
    shown = PaperTables((two,), (), "").show("text", with_verdicts=True)
    assert "Evidence: released code: exp(-sigma d^2)" in " ".join(shown.split())
    assert judge([]) == []


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_format_answers_for_other_data_without_a_published_number(layout: str) -> None:
    tables = tables_from(Selection("table5", "digits", "small-cnn").cells(), [], "")
    text = tables.show(layout)
    assert "86.86" not in text
    assert "digits" in text
