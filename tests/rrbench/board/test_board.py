"""`rrbench board`: its numbers are those of `rrbench table`, its order is by the worst case, its marks are deserved."""

import csv
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from outline import VOID, Outline
from rrbench import api
from rrbench.board import write_board
from rrbench.board.lines import Reach, find_lines
from rrbench.rows.notes import failure, without
from rrbench.rows.row import ResultRow, read_rows, to_csv

ROOT = Path(__file__).resolve().parents[3]
MakeRow = Callable[..., ResultRow]


class BoardLine(NamedTuple):
    """A line as a reader sees it."""

    arena: str
    names: dict[str, str]  # the data of its body
    fields: dict[str, str]  # {column: text}
    marks: list[str]
    opened: str


class Lines(HTMLParser):
    """Gathers the lines of a board."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[BoardLine] = []
        self.open: list[tuple[str, dict[str, str]]] = []
        self.arena = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {key: value or "" for key, value in attrs}
        if tag not in VOID:
            self.open.append((tag, given))
        if tag == "details" and given.get("class") == "arena":
            self.arena = ""
        if tag == "tbody" and "data-reach" in given:
            self.found.append(BoardLine(self.arena, given, {}, [], ""))
        if tag == "span" and given.get("class") == "mark":
            self.found[-1].marks.append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Skip what draws."""

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        tags = [tag for tag, _ in self.open]
        inside = [given.get("class") for _, given in self.open]
        if "arena" in inside and "h2" in tags:
            self.arena += data
        elif "mark" in inside:
            self.found[-1].marks[-1] += data
        elif "more" in inside:
            self.found[-1] = self.found[-1]._replace(opened=self.found[-1].opened + data)
        elif any("data-reach" in given for _, given in self.open):
            cell = next((given for tag, given in self.open if tag in ("td", "th")), {})
            fields = self.found[-1].fields
            label = cell.get("data-label", "rejector")
            fields[label] = fields.get(label, "") + data


def lines_of(path: Path) -> list[BoardLine]:
    return Lines(path.read_text(encoding="utf-8")).found


def ranking(path: Path) -> list[tuple[str, str, str]]:
    return [(line.fields["rank"], line.fields["rejector"], line.fields["network"]) for line in lines_of(path)]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A work folder with scores, and a worst case of two attacks."""
    out = tmp_path_factory.mktemp("measured") / "runs"
    config = out.parent / "list.toml"
    config.write_text(
        '[metrics]\nresamples = 100\n[run]\nall_attacks = ["pgd3", "selective-pgd(steps=3)", "worst-case"]\n'
    )
    words = ["rrbench", "run", "--rejectors", "confidence,rr,never-reject", "--attacks", "all"]
    options = api.RunOptions(words[3], words[5], config=config, out=out, device="cpu", limit=60)
    rows = api.execute(api.prepare(options), words)
    assert {row.status for row in rows} == {"ok"}
    return out


def printed(command: Callable[..., Any], *words: object) -> list[dict[str, str]]:
    """Return the lines of `rrbench table`, each as {heading: text}."""
    answer = command("table", *words, "--format", "markdown")
    assert answer.code == 0, answer.err
    rows = [
        line.removeprefix("| ").removesuffix(" |").split(" | ")
        for line in answer.out.splitlines()
        if line.startswith("| ")
    ]
    return [dict(zip(rows[0], row, strict=True)) for row in rows[2:]]


def test_the_numbers_are_those_of_the_table(measured: Path, tmp_path: Path, command: Callable[..., Any]) -> None:
    answer = command("board", measured, "--out", tmp_path / "board.html")
    assert answer.code == 0, answer.err
    assert "3 lines, 3 attacked to the worst case" in answer.out
    lines = {line.fields["rejector"]: line for line in lines_of(tmp_path / "board.html")}
    worst = printed(command, measured, "--attacks", "worst-case")
    assert [line.fields["rejector"] for line in lines.values()] == [row["rejector"] for row in worst], "ranked alike"
    for row in worst:
        fields = lines[row["rejector"]].fields
        assert fields["joint, worst case"] == row["joint"]
        assert fields["robust, worst case"].split()[0] == row["robust"]
        assert fields["network"] == f"small-cnn {row['trained as']}"
    for row in printed(command, measured, "--attacks", "clean"):
        fields = lines[row["rejector"]].fields
        assert (fields["accuracy, clean"], fields["coverage, clean"]) == (row["accuracy"], row["coverage"])
    for row in printed(command, measured, "--attacks", "pgd"):
        assert lines[row["rejector"]].fields["TPR-95, blind"] == row["TPR-95"]
    words = ("--attacks", "worst-case", "--metric", "joint", "--against", "never-reject")
    for row in printed(command, measured, *words):
        (told,) = (value for heading, value in row.items() if heading.startswith("worst-case"))
        joint, _, difference = told.partition(" (")
        fields = lines[row["rejector"]].fields
        assert fields["joint, worst case"].split()[0] == joint
        assert fields["against never-reject"] == (difference.removesuffix(")") or "-")
        assert difference.endswith("*)") is (row["rejector"] == "rr"), "never rejecting was measured on another network"
        assert ("[" in difference) is (row["rejector"] != "never-reject"), "paired"


def test_what_a_line_opens_to_is_what_its_own_commands_print(
    measured: Path, tmp_path: Path, command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(measured.parent)
    assert command("board", "runs", "--out", tmp_path / "board.html").code == 0
    line = next(each for each in lines_of(tmp_path / "board.html") if each.fields["rejector"] == "rr")
    page = (tmp_path / "board.html").read_text(encoding="utf-8")
    codes = re.findall(r"<pre><code>(.*?)</code>", page[page.index('data-rejector="rr"') :], re.DOTALL)
    commands = [each for each in unescape(codes[0]).splitlines() if not each.startswith("# ")]
    assert commands[:2] == ["rrbench verify runs", "rrbench verify runs --rerun"]
    shown = printed(command, *shlex.split(commands[2])[2:])
    assert [row["attack"] for row in shown] == ["clean", "pgd3 (blind)", "selective-pgd3", "worst-case"]
    for row in shown:
        numbers = "".join(
            value for heading, value in row.items() if heading not in ("trained as", "rejector", "budget")
        )
        assert numbers in line.opened
    assert "rrbench run --rejectors confidence,rr,never-reject --attacks all" in line.opened
    assert '"members": [' in line.opened


def test_the_worst_case_ranks_and_what_lacks_it_stands_below(made_board: Path) -> None:
    one, other = "small-cnn pgd-at", "small-cnn pgd-at+rr"
    assert ranking(made_board) == [
        ("1", "confidence", one), ("2", "rr", other), ("3", "never-reject", one), ("4", "energy", one),
        ("-", "kd", one), ("-", "confidence", other),
    ]  # fmt: skip
    below = lines_of(made_board)[4]
    assert below.fields["joint, worst case"] == "at most 99.00 pgd100 (blind)"
    assert below.fields["against never-reject"] == below.fields["robust, worst case"] == "-"
    assert below.marks == ["not yet attacked to the worst case"]
    page = made_board.read_text(encoding="utf-8")
    body = page[page.index('data-rejector="kd"') :]
    assert 'data-label="joint, worst case" class="number" data-sort=""' in body[: body.index("</tr>")], (
        "a script sorts what has no value last"
    )


def test_differences_from_never_rejecting_are_subtracted(made_board: Path) -> None:
    shown = [line.fields["against never-reject"] for line in lines_of(made_board)]
    assert shown == ["+5.00", "+2.00 to pgd-at", "-", "-5.00", "-", "-"], "60, 57 and 50 beside 55; rr has no own one"


def test_an_oracle_stands_last_and_a_worst_case_of_fewer_attacks_below_the_ranked(
    make_row: MakeRow, made_rows: list[ResultRow], write_rows: Callable[..., Path]
) -> None:
    few = json.dumps({"members": ["pgd100"]})
    lost = make_row(
        "doctor", "worst-case", 98.0, note=without(failure("selective-pgd", "NaN gradients; some look robust"))
    )
    oracle = make_row("t-con", "worst-case", 100.0, note="oracle: knows the labels")
    found = lines_of(write_rows([*made_rows, make_row("gmm", "worst-case", 97.0, settings=few), lost, oracle]))
    assert [line.fields["rank"] for line in found] == ["1", "2", "3", "4", *5 * "-"]
    assert [line.fields["rejector"] for line in found][4:] == ["doctor", "gmm", "kd", "confidence", "t-con"]
    assert [line.marks[0] for line in found[4:6]] == 2 * ["worst case without selective-pgd"]
    assert found[-1].marks[0] == "oracle: knows the labels, no defence"


MARKED = {
    "measured by uncommitted code": {"commit": "0123456789ab+"},
    "commit unknown": {"commit": ""},
    "has notes": {"note": "41 % of the gradients are zero"},
    "weak attack": {"note": "weak: pgd100 takes 3.0 points more"},
    "superseded": {"revisions": '{"deployment": 1}'},
}


@pytest.mark.parametrize(("mark", "changes"), MARKED.items(), ids=MARKED)
def test_what_makes_a_number_doubtful_is_marked(
    make_row: MakeRow, write_rows: Callable[..., Path], mark: str, changes: dict[str, Any]
) -> None:
    rows = [make_row("a", "clean", 90.0), make_row("a", "worst-case", 50.0)]
    assert lines_of(write_rows(rows))[0].marks == []
    assert lines_of(write_rows([rows[0], replace(rows[1], **changes)]))[0].marks == [mark]


def test_an_attack_that_beats_the_worst_case_and_cells_that_failed_are_marked(
    make_row: MakeRow, write_rows: Callable[..., Path]
) -> None:
    failed = make_row("a", "pgd100", None, status="failed", error="NaN <gradients>", n=None, deploy_n=None)
    rows = [
        make_row("a", "worst-case", 50.0),
        make_row("a", "adaptive(ce+rr)", 40.0, deploy_robust=49.0),
        failed,
        replace(failed, rejector="b"),
        replace(failed, eps="1/4"),
    ]
    path = write_rows(rows)
    (line,) = lines_of(path)
    assert line.marks == ["adaptive(ce+rr) leaves less than the worst case: 40.00", "1 failed"]
    assert "NaN <gradients>" in line.opened
    page = path.read_text(encoding="utf-8")
    assert len(re.findall("<tr>.*?</tr>", page[page.index('id="failed"') :])) == 1 + 3, "a heading, and all that failed"


def test_rows_of_two_presets_are_of_one_victim_and_other_data_are_not(
    make_row: MakeRow, write_rows: Callable[..., Path]
) -> None:
    rows = [
        make_row("a", "worst-case", 50.0),
        make_row("a", "clean", 90.0),
        make_row("a", "pgd100", 70.0, acc_tpr95=60.0, acc_tpr95_low=59.0, acc_tpr95_high=61.0),
        make_row("a", "pgd100x10", 71.0, preset="paper", precision="bf16", acc_tpr95=58.0, acc_tpr95_low=57.0,
                 acc_tpr95_high=59.0),
        make_row("a", "autoattack", 72.0, acc_tpr95=10.0, note="mixture: clean images wherever the attack failed"),
        make_row("a", "worst-case", 99.0, data_sha256="f" * 64),
        make_row("a", "worst-case", 98.0, n=50),
        make_row("a", "worst-case", 30.0, eps="1/4"),
    ]  # fmt: skip
    found = lines_of(write_rows(rows))
    assert [(line.arena, line.fields["joint, worst case"].split()[0]) for line in found] == [
        ("digits, linf:3/20, 50 inputs", "98.00"),
        ("digits, linf:3/20, 400 inputs, data dddddddd", "50.00"),
        ("digits, linf:3/20, 400 inputs, data ffffffff", "99.00"),
        ("digits, linf:1/4, 400 inputs", "30.00"),
    ]
    assert found[1].fields["TPR-95, blind"] == "58.00 [57.00, 59.00]", "a mixture cannot be compared"
    assert "Each attack of preset strong" in found[1].opened
    assert "Each attack of preset paper" in found[1].opened


def test_seeds_share_a_line(make_row: MakeRow, write_rows: Callable[..., Path]) -> None:
    rows = [
        make_row(rejector, "worst-case", joint, seed=seed, checkpoint_sha256=str(seed) * 64)
        for rejector, joints in {"a": (50.0, 54.0), "never-reject": (49.0, 51.0)}.items()
        for seed, joint in enumerate(joints)
    ]
    first = lines_of(write_rows(rows))[0]
    assert first.fields["joint, worst case"] == "52.00 \u00b1 2.83"
    assert first.fields["against never-reject"] == "+2.00 \u00b1 1.41"


def test_a_victim_that_nobody_attacked_has_a_line(make_row: MakeRow, write_rows: Callable[..., Path]) -> None:
    path = write_rows([make_row("a", "clean", 90.0), make_row("a", "cw-l2", None, eps="", norm="l2", distance=0.3)])
    (line,) = lines_of(path)
    assert (line.arena, line.marks) == ("digits, not attacked, 400 inputs", ["not attacked"])
    assert "1 row of attacks without a budget is on no line" in path.read_text(encoding="utf-8")


def test_two_folders_are_compared_and_a_row_that_both_have_counts_once(
    make_row: MakeRow, made_rows: list[ResultRow], write_rows: Callable[..., Path]
) -> None:
    theirs = [make_row("their-idea", "worst-case", 70.0), made_rows[0]]
    found = lines_of(write_rows(made_rows, theirs))
    assert (found[0].fields["rejector"], found[0].fields["against never-reject"]) == ("their-idea", "+15.00")
    assert "rrbench table folder1 --rejectors their-idea@pgd-at --budgets linf:3/20" in found[0].opened
    assert found[1].opened.count("clean99.00") == 1
    assert "folder1 --rejectors confidence@pgd-at" in found[1].opened, "it has one of its rows"


def test_the_published_rows_are_ranked_as_the_rows_say() -> None:
    """Sorted here from the CSV alone."""
    path = ROOT / "results" / "cifar10" / "rows.csv"
    with path.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if (row["attack"], row["eps"]) == ("worst-case", "8/255")]
    defences = [row for row in rows if row["rejector"] != "t-con"]  # that one knows the labels
    expected = sorted(defences, key=lambda row: -float(row["deploy_joint"]))
    arenas = find_lines(read_rows(path))
    first = next(iter(arenas.values()))
    ranked = [line for line in first if line.reach is Reach.WORST]
    assert len(ranked) == len(expected) > 10
    assert [(line.rejector, line.first.trained_as) for line in ranked] == [
        (row["rejector"], row["trained_as"]) for row in expected
    ]
    assert all(line.reach is not Reach.WORST for line in first[len(ranked) :])


def test_the_page_is_well_formed_needs_nothing_outside_and_can_be_heard(made_board: Path) -> None:
    page = made_board.read_text(encoding="utf-8")
    outline = Outline(page)
    assert outline.values("src", "href", "srcset", "action") == []
    assert not re.search(r"@import|url\(", page)
    assert "default-src 'none'" in page
    ids = outline.values("id")
    assert len(ids) == len(set(ids))
    assert outline.values("aria-sort") == ["ascending"], "the first order is by rank"
    assert page.count("<th ") == sum(key == "scope" for tag, key, _ in outline.attributes if tag == "th")


EVIL = "<script>alert(1)</script>'\"&<img src=x onerror=alert(2)>"


@pytest.mark.parametrize(
    "column", ["rejector", "trained_as", "network", "dataset", "note", "commit", "preset", "device"]
)
def test_nothing_a_row_says_becomes_markup(make_row: MakeRow, write_rows: Callable[..., Path], column: str) -> None:
    rows = [
        make_row("a", "clean", 90.0),
        make_row("a", "worst-case", 50.0),
        make_row("a", "pgd10", None, status="failed"),
    ]
    changes: dict[str, Any] = {column: EVIL}
    path = write_rows([replace(row, **changes) for row in rows])
    page = path.read_text(encoding="utf-8")
    outline = Outline(page)
    assert page.count("<script>") == 2, "those of the page"
    assert not any(tag == "img" for tag, _, _ in outline.attributes)
    (line,) = lines_of(path)
    assert EVIL in "".join((line.arena, *line.fields.values(), line.opened))


ODD = {
    "settings that cannot be read": {"settings": "["},
    "members that are none": {"settings": '{"members": 3}'},
    "a lost attack that is none": {"note": "goes without ((("},
    "no joint number": {"deploy_joint": None},
    "no number at all": {"deploy_joint": None, "deploy_robust": None, "acc_all": None, "acc_tpr95": None},
    "a name that no shell likes": {"rejector": "a' ; b\nc"},
}


@pytest.mark.parametrize("changes", ODD.values(), ids=ODD)
def test_an_odd_row_does_not_lose_the_board(
    make_row: MakeRow, write_rows: Callable[..., Path], changes: dict[str, Any]
) -> None:
    rows = [make_row("rr", attack, 90.0) for attack in ("clean", "pgd10", "worst-case")]
    assert len(lines_of(write_rows([replace(row, **changes) for row in rows]))) == 1


def test_a_manifest_that_anybody_wrote_does_not_lose_the_board(measured: Path, tmp_path: Path) -> None:
    shutil.copytree(measured, tmp_path / "runs")
    runs = json.loads((tmp_path / "runs" / "manifest.json").read_text())["runs"]
    odd = [{"commit": [1]}, {**runs[0], "command": "rrbench run 'never"}, {**runs[0], "command": "x --rejectors a)"}]
    (tmp_path / "runs" / "manifest.json").write_text(json.dumps({"runs": odd}))
    write_board([("runs", tmp_path / "runs")], tmp_path / "board.html")
    assert "rrbench run 'never" in lines_of(tmp_path / "board.html")[0].opened


def test_what_cannot_be_read_or_written_is_one_line(
    made_rows: list[ResultRow], tmp_path: Path, command: Callable[..., Any]
) -> None:
    good, file = tmp_path / "good.csv", tmp_path / "file"
    good.write_text(to_csv(made_rows))
    file.write_text("in the way")
    (tmp_path / "empty").mkdir()
    (tmp_path / "none.csv").write_text(to_csv([]))
    (tmp_path / "cut.csv").write_text(good.read_text()[:-40])
    (tmp_path / "cells").mkdir()
    (tmp_path / "cells" / "0.json").write_text("{")
    for words, said in (
        ([tmp_path / "nowhere"], "no results at"),
        ([good, tmp_path / "nowhere"], "no results at"),
        ([tmp_path / "empty"], "no results at"),
        ([tmp_path / "none.csv"], "holds no rows"),
        ([tmp_path / "cut.csv"], "cannot read"),
        ([tmp_path], "delete it to measure the cell again"),
        ([good, "--out", tmp_path / "board.pdf"], "a board is HTML"),
        ([good, "--out", file / "board.html"], str(file)),
    ):
        answer = command("board", *words, *([] if "--out" in words else ["--out", tmp_path / "board.html"]))
        assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1), words
        assert said in answer.err
    assert not (tmp_path / "board.html").exists()


def test_a_board_is_made_without_importing_torch() -> None:
    probe = "import sys, rrbench.board; sys.exit('torch' in sys.modules or 'pandas' in sys.modules)"
    subprocess.run([sys.executable, "-c", probe], check=True, timeout=60)
