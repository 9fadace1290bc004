"""The files under results/ are complete, and the README prints the numbers of their rows."""

import csv
import hashlib
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
import torch

from published import CIFAR10, ROOT, cells_in, rows, victims_at, worst_line
from rrbench import zoo
from rrbench.files.arrays import load_arrays
from rrbench.files.checkpoints import read_checkpoint
from rrbench.measuring.evaluation import metrics_of
from rrbench.measuring.store import Store
from rrbench.names import parse
from rrbench.paper.cells import cells_of
from rrbench.paper.judge import summary
from rrbench.paper.tabulate import PaperTables, Selection, paper_tables
from rrbench.plugins.registry import table
from rrbench.rows.currency import superseded
from rrbench.rows.record import CellRecord
from rrbench.rows.row import ResultRow
from rrbench.rows.scores import FOLDERS as FOLDERS_OF_ARRAYS
from rrbench.rows.scores import read_images, read_scores
from rrbench.rows.weak_attacks import with_weak_notes
from rrbench.verifying import verify
from rrbench.verifying.claims import miskeyed
from rrbench.verifying.recompute import wrong_metrics
from rrbench.verifying.tolerance import EXACT, ROUNDED, SHORT, Tolerance, disagreements

FOLDERS = sorted(path.parent for path in (ROOT / "results").glob("*/rows.csv"))
ZOO = ROOT / "results" / "zoo"
RECOMPUTED = 60  # one cell of so many: `rrbench verify` takes minutes for all
ASKED = 4  # of its 16 stored images: so many does its network see again


def whole_rows() -> list[ResultRow]:
    """Return the rows of the folders that hold no trials on a part of the images."""
    return [*rows(), *rows("cifar100"), *rows("cifar10-average"), *rows("cifar10-c-made")]


@cache
def tables(selection: Selection, folder: str = "cifar10") -> PaperTables:
    return paper_tables(selection, [ROOT / "results" / folder])


def kept_networks() -> list[zoo.Entry]:
    return [entry for entry in zoo.entries(ZOO) if entry.is_kept]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_published_cells_are_the_rows_and_their_scores_give_the_metrics(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify, "read_images", lambda *of_cell: read_images(*of_cell)[:ASKED])
    store = Store(folder)
    verifier = verify.Verifier(store, (), torch.device("cpu"))
    verifier.check_rows(with_weak_notes(record.row for record, _ in cells_in(folder)))
    for index, (record, row_sha256) in enumerate(cells_in(folder)):
        assert record.row_sha256() == row_sha256
        assert store.unsound(record) == []
        assert list(miskeyed(record)) == []
        if index % RECOMPUTED == 0:
            verifier.check(record, row_sha256, rerun=False)
    findings = verifier.findings
    assert findings.problems == []
    # Without the data sets, which the tests do not have, nothing is confirmed; the metrics are recomputed all the same.
    assert findings.unchecked.total() == findings.cells == -(-len(cells_in(folder)) // RECOMPUTED)
    assert all(reason.startswith("data set cifar") for reason in findings.unchecked)


@pytest.mark.parametrize(("folder", "rejector", "most"), [("cifar10-looks", "pro", 1e-7), ("cifar10", "margin", 0.0)])
def test_a_clean_row_has_the_clean_certainties_but_for_the_last_bits_of_a_second_look_or_of_another_machine(
    folder: str, rejector: str, most: float
) -> None:
    root = ROOT / "results" / folder
    (record,) = [each for each, _ in cells_in(root) if (each.row.rejector, each.row.attack) == (rejector, "clean")]
    scores = read_scores(root, record.files)
    assert np.abs(scores.certainty - scores.clean_certainty).max() <= most
    assert list(wrong_metrics(record, scores)) == []
    elsewhere = scores._replace(clean_certainty=scores.clean_certainty * (1 + 1e-6))
    assert not [line for line in wrong_metrics(record, elsewhere) if "clean" in line]
    moved = scores.clean_certainty + np.where(np.arange(len(scores.labels)) == 3, 0.01, 0)
    assert "not the same, and it is clean" in next(wrong_metrics(record, scores._replace(clean_certainty=moved)))


@pytest.mark.parametrize(
    ("attack", "norm", "tolerance"),
    [("clean", "", ROUNDED), ("pgd10", "l2", SHORT), ("pgd10", "linf", SHORT)],
)
def test_two_published_runs_of_one_attack_on_two_machines_differ_by_less_than_the_tolerance_of_a_rerun(
    attack: str, norm: str, tolerance: Tolerance
) -> None:
    """An H200 in bf16 and a CPU in float32, on the first 250 images: judged in float32, clean ones hardly differ."""
    steps = ROOT / "results" / "cifar10-steps"

    def found(folder: Path, precision: str) -> dict[str, CellRecord]:
        records = [record for record, _ in cells_in(folder) if record.row.precision == precision]
        chosen = [each for each in records if (each.row.attack, each.row.norm) == (attack, norm)]
        eps = {"linf": "16/255", "l2": "128/255"}.get(norm, "")
        return {each.row.rejector: each for each in chosen if (each.row.trained_as, each.row.eps) == ("pgd-at", eps)}

    there, here = found(CIFAR10, "bf16"), found(steps, "fp32")
    both = here.keys() & there.keys()
    assert both >= {"confidence", "t-con"}
    for rejector in both:
        row, stored = here[rejector].row, read_scores(steps, here[rejector].files)
        whole, count = read_scores(CIFAR10, there[rejector].files), len(stored.labels)
        again = whole._replace(
            **{name: part[:count] for name, part in whole._asdict().items() if part.shape[:1] == whole.labels.shape},
            apart_certainty=stored.apart_certainty,  # images beyond the first 250
            apart_correct=stored.apart_correct,
        )
        resamples = here[rejector].cell["resamples"]
        columns = {**asdict(row), **vars(metrics_of(again, "quantile", resamples, row.seed))}
        differ = partial(disagreements, row, stored, again, columns, is_ensemble=False)
        assert list(differ(tolerance)) == [], rejector
        assert any("nothing may differ" in text for text in differ(EXACT))


def test_no_published_file_is_without_the_entry_that_explains_it() -> None:
    for folder in FOLDERS:
        named = {name for record, _ in cells_in(folder) for name in record.files}
        there = [path for name in FOLDERS_OF_ARRAYS for path in (folder / name).iterdir()]
        assert {path.relative_to(folder).as_posix() for path in there} == named
    assert {path.name for path in ZOO.glob("*.safetensors")} == {entry.file for entry in kept_networks()}
    text = (ROOT / "results" / "README.md").read_text(encoding="utf-8")
    for path in (ROOT / "results" / "figures").iterdir():
        assert f"--out results/figures/{path.name}" in text
    for folder in (path for path in (ROOT / "results").iterdir() if path.is_dir()):
        assert f"`{folder.name}/`" in text


def test_the_published_cells_take_little_space_since_nothing_is_stored_twice() -> None:
    files = [path for path in (ROOT / "results").rglob("*") if path.is_file() and ZOO not in path.parents]
    assert sum(path.stat().st_size for path in files) < 120e6
    logits = [load_arrays(path)["logits"] for path in (CIFAR10 / "attacks").iterdir()]
    assert len(logits) == 202
    # Most cells are short and keep the logits of their first images, and these may be those of another.
    whole = [found.tobytes() for found in logits if len(found) == 10_000]
    assert len(set(whole)) == len(whole) == 12
    assert len(list((CIFAR10 / "data").iterdir())) == 1


def test_one_published_row_is_superseded_and_none_comes_from_uncommitted_code() -> None:
    older = [row for folder in FOLDERS for row in rows(folder.name) if superseded(row)]
    assert [(row.rejector, row.attack, row.norm, superseded(row)) for row in older] == [
        ("snet", "pgd10", "l2", ["engine 1, now 2"])
    ]
    assert all(re.fullmatch("[0-9a-f]{12}", row.commit) for folder in FOLDERS for row in rows(folder.name))


@pytest.mark.parametrize("entry", kept_networks(), ids=lambda entry: entry.file)
def test_a_published_checkpoint_is_small_and_what_its_index_and_rows_say(entry: zoo.Entry) -> None:
    path = ZOO / entry.file
    assert path.stat().st_size < 12e6
    assert hashlib.sha256(path.read_bytes()).hexdigest() == entry.sha256
    facts = read_checkpoint(path).facts
    assert (facts["key"], facts["clean_accuracy"]) == (entry.key, entry.clean_accuracy)
    assert f"-{entry.epochs}epochs-" in entry.file
    assert len(entry.log) == entry.epochs
    here = [row for row in whole_rows() if (row.checkpoint_sha256, row.dataset) == (entry.sha256, entry.dataset)]
    assert {row.acc_all for row in here if row.attack == "clean"} == {entry.clean_accuracy}


def test_every_published_row_was_measured_on_a_listed_network_and_all_inputs() -> None:
    known = {entry.sha256 for entry in zoo.entries(ZOO)}
    assert all(row.checkpoint_sha256 in known and row.n == 10_000 and row.status == "ok" for row in whole_rows())


NAMES = {
    "R-Con": "rr", "confidence": "confidence", "EBD": "ebd", "SNet": "snet", "GMM": "gmm", "LID": "lid", "GDA*": "gda*",
    "GDA": "gda", "KD": "kd", "T-Con, an oracle": "t-con",
}  # fmt: skip
COLUMNS = (
    ("clean", "", ""),
    ("pgd100x10", "linf", "8/255"),
    ("pgd100x10", "linf", "16/255"),
    ("pgd100x10", "l2", "128/255"),
)


def test_the_papers_main_table_is_that_of_the_rows() -> None:
    text = (ROOT / "results" / "README.md").read_text(encoding="utf-8").split("### Table 2")[1].split("\n### ")[0]
    lines = re.findall(r"^\| (PGD-AT[^,|]*), ([^|]+) \|(( \d+\.\d\d[^|]*\|){4})$", text, re.MULTILINE)
    assert len(lines) == 11
    printed = [re.findall(r"\| (\d+\.\d\d)", "|" + cells) for _, _, cells, *_ in lines]
    for (trained_as, name, cells, *_), values in zip(lines, printed, strict=True):
        rejector = "rr(score=con)" if (trained_as, name) == ("PGD-AT+RR", "confidence") else NAMES[name]
        for index, (attack, norm, eps) in enumerate(COLUMNS):
            found = [
                f"{row.acc_tpr95:.2f}"
                for row in rows()
                if (row.preset, row.trained_as, row.rejector, row.attack, row.norm, row.eps)
                == ("paper", trained_as.lower(), rejector, attack, norm, eps)
            ]
            assert [values[index]] == found, (name, attack, eps)
            published = [
                cell.value
                for cell in cells_of("table2")
                if (cell.at, cell.rejector, cell.metric) == ("pgd-at", rejector, "acc_tpr95")
                and (cell.norm, cell.eps) == (norm, eps.removesuffix("/255"))
            ]
            assert re.findall(r"\((\d+\.\d\d)\)", cells.split("|")[index]) == published, (name, attack, eps)


RANKED = NAMES | {"T-Con": "t-con"}  # the others are called as in the rows


def named(name: str, trained_as: str) -> tuple[str, str]:
    """Return (trained as, rejector) of a line of a README."""
    is_on_rr = (name, trained_as) == ("confidence", "PGD-AT+RR")
    return trained_as.lower(), "rr(score=con)" if is_on_rr else RANKED.get(name, name.lower())


NUMBERS = r"\|(?P<before>[^+\n]*?)\|(?P<worst> \d+\.\d\d \| \d+\.\d\d \| \d+\.\d\d \[\d[^|]*\]) \|"


def published_blind(trained_as: str, rejector: str) -> str:
    """Return what the paper prints for PGD-100x10 at 8/255, in brackets; empty if it has no such line."""
    found = [
        f" ({cell.value})"
        for cell in cells_of("table2")
        if (cell.at, cell.rejector, cell.metric) == (trained_as.split("+")[0], rejector, "acc_tpr95")
        and (cell.norm, cell.eps) == ("linf", "8")
    ]
    return "".join(found)


def before_in_readme(victim: tuple[str, str]) -> list[str]:
    clean, blind = victims_at("clean", "")[victim], victims_at("pgd100")[victim]
    printed = f"{blind.acc_tpr95:.2f}{published_blind(*victim)}"
    return [f"{clean.acc_all:.2f}", f"{clean.deploy_coverage:.1f}", printed]


def before_in_results(victim: tuple[str, str]) -> list[str]:
    return [f"{victims_at('pgd100')[victim].deploy_robust:.2f}"]


@pytest.mark.parametrize(
    ("file", "head", "before"),
    [
        ("README.md", r"^\| (?P<name>[^|(]+) \((?P<trained_as>(PGD-AT|TRADES|ATRO|CARL)[^)]*)\) ", before_in_readme),
        (
            "results/README.md",
            r"^\| (?P<trained_as>(PGD-AT|TRADES|ATRO|CARL)[^,|]*), (?P<name>[^|]+) ",
            before_in_results,
        ),
    ],
)
def test_the_ranking_under_the_worst_case_is_that_of_the_rows(
    file: str, head: str, before: Callable[[tuple[str, str]], list[str]]
) -> None:
    text = (ROOT / file).read_text(encoding="utf-8").split("At 16/255, four victims")[0]
    lines = list(re.finditer(head + NUMBERS, text, re.MULTILINE))
    victims = [named(line["name"], line["trained_as"]) for line in lines]
    worst = victims_at("worst-case")
    assert len(worst) == 26
    assert victims == sorted(worst, key=lambda victim: (-(worst[victim].deploy_joint or 0), victims.index(victim)))
    for victim, line in zip(victims, lines, strict=True):
        assert [part.strip() for part in line["worst"].split("|")] == worst_line(worst[victim]), victim
        assert [part.strip() for part in line["before"].split("|")] == before(victim), victim


def test_every_rejector_that_a_published_network_carries_has_a_worst_case() -> None:
    looks = {row.rejector for row in rows("cifar10-looks") if row.attack == "worst-case"}
    attacked = {rejector for _, rejector in victims_at("worst-case")} | looks
    ours = {name for name, found in table("rejector").classes.items() if found.__module__.startswith("rrbench")}
    assert ours - {parse(name).name for name in attacked} == set()


def test_no_published_attack_is_stronger_than_the_worst_case() -> None:
    """Of preset `strong`, which the worst case is over; by 0.3 points at most, and here by none at all."""
    strong = [row for row in rows() if row.preset == "strong" and row.eps]
    for row in strong:
        same = {
            other.attack: other
            for other in strong
            if (other.trained_as, other.rejector, other.eps) == (row.trained_as, row.rejector, row.eps)
        }
        if "worst-case" in same:
            assert row.deploy_robust is not None
            assert row.deploy_robust >= (same["worst-case"].deploy_robust or 0) - 1e-9, (row.rejector, row.attack)


PEERS = {
    "rrbench, bf16": "rrbench",
    "torchattacks 3.5.1": "torchattacks",
    "a plain loop, weights frozen": "plain loop",
    "foolbox 3.3.4": "foolbox",
    "the paper authors' loop": "authors' loop",
}


def bench_on(device: str) -> list[dict[str, str]]:
    with (ROOT / "results" / "bench" / f"{device}.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_the_speeds_of_the_readme_are_those_of_the_bench_on_an_h200() -> None:
    measured = {(row["what"], row["implementation"], row["batch"]): row for row in bench_on("h200")}
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    lines = re.findall(r"^\| ([^|]+) \| (\d+) \| ([\d,]+)[^|]* \| ([^|]*)\| (\d+\.\d\d) \|$", text, re.MULTILINE)
    assert [name for name, *_ in lines] == list(PEERS)
    for name, batch, rate, ratio, accuracy in lines:
        row = measured["pgd20", PEERS[name], batch]
        assert (rate.replace(",", ""), accuracy) == (row["gradients_per_second"], row["robust_accuracy"])
        times = float(measured["pgd20", "rrbench", "5000"]["gradients_per_second"]) / float(row["gradients_per_second"])
        assert ratio.strip() == ("" if name == "rrbench, bf16" else f"{times:.1f} x")


def test_the_times_of_the_readme_are_those_of_the_bench() -> None:
    measured = {(row["what"], row["implementation"]): row for row in bench_on("h200")}
    alone, four, ours, package = (
        float(measured[key]["seconds"])
        for key in (
            ("training", "rrbench"),
            ("training", "rrbench, 4 side by side"),
            ("autoattack of 10000", "rrbench"),
            ("autoattack of 500", "pyautoattack"),
        )
    )
    plain = fmean(float(measured[f"epoch {epoch}", "plain step"]["seconds"]) for epoch in range(1, 11))
    fast, exact = measured["pgd20", "rrbench"], measured["pgd20", "rrbench in fp32"]
    left = measured["autoattack of 10000", "rrbench"]["robust_accuracy"]
    times = float(measured["autoattack of 500", "pyautoattack"]["ratio"])
    (both,) = {row["robust_accuracy"] for (what, _), row in measured.items() if what == "autoattack of 500"}
    cpu = bench_on("cpu")
    foolbox = min(float(row["ratio"]) for row in cpu if row["implementation"] == "foolbox")
    (plain_cpu,) = (row["ratio"] for row in cpu if row["implementation"] == "plain step")
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    for said in (
        f"({100 * float(fast['share_of_peak']):.0f} % of the card's matrix rate)",
        f"makes {int(exact['gradients_per_second']):,} gradients a second and leaves {exact['robust_accuracy']}.",
        f"included | {alone:.1f} s | the plain step {plain:.0f} s |",
        f"four trainings side by side | {four:.1f} s |",
        f"10,000 images | {ours:.0f} s, leaves {left} % |",
        f"first 500: {package:.0f} s, {times:.1f} x as long an image; both leave {both} %",
        f"PGD-20 is {foolbox:.2f} x as fast as foolbox",
        f"training {plain_cpu} x as fast as the plain step",
    ):
        assert said in text


def test_the_curves_of_the_results_are_those_of_the_bench_on_an_h200() -> None:
    rows = {(row["what"], row["implementation"]): row for row in bench_on("h200")}
    text = (ROOT / "results" / "README.md").read_text(encoding="utf-8")
    gaps = {}
    for name in ("PGD-10", "clean"):
        found = re.search(rf"\| {name}, ours \| (.*) \|\n\| the plain step \| (.*) \|$", text, re.MULTILINE)
        assert found is not None
        ours, plain = ([float(value) for value in line.split(" | ")] for line in found.groups())
        gaps[name] = [left - right for left, right in zip(ours, plain, strict=True)]
        if name == "PGD-10":  # the file has no other
            for way, curve in (("rrbench", ours), ("plain step", plain)):
                assert curve == [float(rows[f"epoch {epoch}", way]["robust_accuracy"]) for epoch in range(1, 11)]
    means = [f"{fmean(each):.2f}" for each in gaps.values()]
    most = [f"{max(map(abs, each)):.2f}" for each in gaps.values()]
    plain_seconds = fmean(float(rows[f"epoch {epoch}", "plain step"]["seconds"]) for epoch in range(1, 11))
    exact = int(rows["pgd20", "rrbench in fp32, back in tf32"]["gradients_per_second"])
    for said in (
        f"above by {means[0]} (PGD-10) and {means[1]} points (clean) in the mean",
        f"apart by {most[0]} and {most[1]} at most",
        f"of `curve`, {plain_seconds:.1f} s",
        f"it is {exact:,} gradients a second",
    ):
        assert said in " ".join(text.split())


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("table1", "12 cells: 10 within, 0 explained, 0 unexplained, 0 missing, 2 undefined"),
        ("table2", "120 cells: 55 within, 34 explained, 15 unexplained, 16 missing"),
        ("table4", "27 cells: 4 within, 7 explained, 3 unexplained, 13 missing"),
        ("table6", "16 cells: 16 within, 0 explained, 0 unexplained, 0 missing"),
        ("table9", "26 cells: 26 within, 0 explained, 0 unexplained, 0 missing"),
        ("table12", "48 cells: 8 within, 0 explained, 0 unexplained, 40 missing"),
        ("text", "16 cells: 7 within, 0 explained, 0 unexplained, 9 missing"),
    ],
)
def test_the_tables_are_as_results_readme_counts_them(name: str, counts: str) -> None:
    assert tables(Selection(name)).summary().startswith(f"{name}: {counts}")


TABLE3 = Selection("table3", dataset="cifar10-c-made")
TABLE11 = Selection("table11", network="resnet18")


@pytest.mark.parametrize(
    ("selection", "folder", "counts"),
    [
        (TABLE3, "cifar10-c-made", "90 cells: 43 within, 5 explained, 22 unexplained, 20 missing"),
        (Selection("table10"), "cifar100", "30 cells: 30 within, 0 explained, 0 unexplained, 0 missing"),
        (TABLE11, "cifar100", "64 cells: 49 within, 15 explained, 0 unexplained, 0 missing"),
    ],
    ids=["table3", "table10", "table11"],
)
def test_the_tables_of_other_data_are_as_results_readme_counts_them(
    selection: Selection, folder: str, counts: str
) -> None:
    summary = tables(selection, folder).summary()
    assert summary.startswith(f"{selection.paper}: {counts}")


def measured_beside_published(
    selection: Selection, folder: str
) -> dict[tuple[str, str], dict[tuple[str, str, str], str]]:
    """Return "ours (the paper's)" at TPR-95: {(framework, rejector): {(attack, norm, eps): text}}."""
    found: dict[tuple[str, str], dict[tuple[str, str, str], str]] = {}
    for each in tables(selection, folder).judged:
        cell, value = each.cell, each.measured and each.measured.value
        if cell.metric == "acc_tpr95" and value is not None:
            line = found.setdefault((cell.at, cell.rejector), {})
            line[cell.attack, cell.norm, cell.eps] = f"{value:.2f} ({cell.value})"
    return found


def test_the_tables_of_corruptions_gama_and_cifar100_are_those_of_the_rows() -> None:
    text = (ROOT / "results" / "README.md").read_text(encoding="utf-8")
    corrupted = measured_beside_published(TABLE3, "cifar10-c-made")
    order = [("pgd-at", "rr"), ("pgd-at", "ebd"), ("pgd-at", "snet"), ("trades", "confidence"), ("trades", "rr")]
    lines = [corrupted[victim] for victim in (*order, ("carl", "carl"), ("atro", "atro"))]
    assert len(corrupted) == len(lines)
    assert {len(line) for line in lines} == {10}
    for attack in lines[0]:
        cells = " | ".join(line[attack] for line in lines)
        assert f"| `{attack[0].removeprefix('corruption:')}` | {cells} |\n" in text
    for (at, rejector), line in measured_beside_published(Selection("table4"), "cifar10").items():
        (frank_wolfe, plain), (row,) = (
            [line[attack, "linf", "8"] for attack in ("gama-fw-100", "gama-pgd-100")],
            [
                row
                for row in rows()
                if (row.framework, row.rejector, row.attack, row.preset) == (at, rejector, "gama-fw", "paper")
            ],
        )
        said = f"{row.acc_all:.2f} | {frank_wolfe} | {plain} | {row.deploy_robust:.2f}"
        assert re.search(rf"^\| [^|]+, [^|]+ \| {re.escape(said)} \|$", text, re.MULTILINE), (at, rejector)
    for (_, rejector), line in measured_beside_published(TABLE11, "cifar100").items():
        assert f"| {rejector.upper().replace('SNET', 'SNet')} | {' | '.join(line.values())} |\n" in text


@pytest.mark.parametrize(("framework", "within"), [("atro", 0), ("carl", 1)])
def test_the_table_of_a_framework_with_its_own_rejector_is_that_of_the_rows_and_most_of_it_is_unexplained(
    framework: str, within: int
) -> None:
    judged = [each for each in paper_tables(Selection("table2"), [CIFAR10]).judged if each.cell.at == framework]
    assert Counter(each.verdict for each in judged) == Counter(within=within, unexplained=8 - within)
    text = (ROOT / "results" / "README.md").read_text(encoding="utf-8")
    for metric, head, digits in (("acc_tpr95", "TPR-95", 2), ("auc", "AUC", 3)):
        cells = [
            f"{each.measured.value:.{digits}f} ({each.cell.value})" for each in judged if each.cell.metric == metric
        ]
        assert f"| {head} | {' | '.join(cells)} |\n" in text


TABLE6 = {
    "A only, `rr(form=head)`": "a-phi-only",
    "RR": "rr",
    "confidence in the loss, `rr(form=confidence)`": "confidence-in-lrr",
    "RR, scored by confidence": "rr(con)",
}


def test_the_table_of_rrs_forms_is_that_of_the_rows() -> None:
    text = (ROOT / "results" / "README.md").read_text(encoding="utf-8").split("### Table 6")[1].split("\n### ")[0]
    judged = tables(Selection("table6")).judged
    for head, rejector in TABLE6.items():
        cells = [
            f"{each.measured.value:.{3 if each.cell.metric == 'auc' else 2}f} ({each.cell.value})"
            for each in judged
            if each.cell.rejector == rejector and each.measured
        ]
        assert f"| {head} | {' | '.join(cells)} |\n" in text, head


EFFORT = {
    "`apgd-reject` as in `strong`": "apgd-reject",
    "with eta=1:10": "apgd-reject(eta=1:10)",
    "with 100 steps": "apgd-reject100",
    "with 2 starts": "apgd-reject50x2",
    "`selective-pgd`": "selective-pgd",
    "AutoAttack's APGD, blind": "autoattack",
    "PGD-100, blind": "pgd100",
}


def test_the_column_of_effort_against_margin_is_that_of_the_rows() -> None:
    text = (ROOT / "results" / "README.md").read_text(encoding="utf-8").split("How much effort is enough")[1]
    found = {row.attack: f"{row.deploy_robust:.1f}" for row in rows("cifar10-effort")}
    for head, attack in EFFORT.items():
        (printed,) = re.findall(rf"^\| {re.escape(head)}[^|]*\| \d+ \| (\d+\.\d) \|", text, re.MULTILINE)
        assert printed == found[attack], attack


@pytest.mark.parametrize(("name", "folder"), [("PGD-AT", "cifar10"), ("PGD-AT, weights averaged", "cifar10-average")])
def test_the_table_of_averaged_weights_is_that_of_the_rows(name: str, folder: str) -> None:
    found = {
        row.attack: f"{row.acc_all:.2f}"
        for row in rows(folder)
        if (row.preset, row.trained_as, row.rejector) == ("strong", "pgd-at", "never-reject")
        and row.eps in ("", "8/255")
    }
    text = (ROOT / "results" / "README.md").read_text(encoding="utf-8")
    assert f"| {name} | {found['clean']} | {found['pgd100']} | {found['autoattack']} |\n" in text


def test_the_main_table_has_as_many_explained_cells_as_the_readmes_say() -> None:
    own = [each for each in tables(Selection("table2")).judged if each.cell.at == "pgd-at"]
    assert not any(each.verdict == "explained" and (each.difference or 0) >= 0 for each in own)
    counts = summary("PGD-AT", own).removeprefix(f"PGD-AT: {len(own)} cells: ")
    text = (ROOT / "results" / "README.md").read_text(encoding="utf-8")
    assert f"### Table 2: of the {len(own)} cells that PGD-AT's networks carry, {counts}\n" in text
    attacked = [each for each in own if each.cell.eps]
    explained = sum(each.verdict == "explained" for each in attacked)
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"{explained} of the {len(attacked)} attacked cells of the main table" in text
