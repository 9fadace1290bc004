"""The files under results/ are complete and agree with one another, and the READMEs print the speeds of the bench."""

import csv
import hashlib
import re
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
import torch

from published import CIFAR10, ROOT, cells_in, rows
from rrbench import zoo
from rrbench.files.arrays import load_arrays
from rrbench.files.checkpoints import read_checkpoint
from rrbench.measuring.evaluation import metrics_of
from rrbench.measuring.store import Store
from rrbench.planning.plan import Request, make_plan
from rrbench.plugins.config import MetricSettings, load_preset
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
    return [*rows(), *rows("cifar100"), *rows("cifar10-average"), *rows("cifar10-seeds"), *rows("cifar10-c-made")]


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
    asked = (rejector, "clean", "strong")
    (record,) = [each for each, _ in cells_in(root) if (each.row.rejector, each.row.attack, each.row.preset) == asked]
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
        columns = {**asdict(row), **vars(metrics_of(again, MetricSettings("quantile", resamples), row.seed))}
        differ = partial(disagreements, row, stored, again, columns, is_ensemble=False, is_older=False)
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
    assert len(logits) == 241
    # Most cells are short and keep the logits of their first images, and these may be those of another.
    whole = [found.tobytes() for found in logits if len(found) == 10_000]
    assert len(set(whole)) == len(whole) == 12
    assert len(list((CIFAR10 / "data").iterdir())) == 1


def test_three_published_rows_are_superseded_and_none_comes_from_uncommitted_code() -> None:
    older = [row for folder in FOLDERS for row in rows(folder.name) if superseded(row)]
    assert [(row.rejector, row.attack, row.norm, superseded(row)) for row in older] == [
        ("snet", "pgd10", "l2", ["engine 1, now 2"]),
        *(("rr", attack, "linf", ["pyautoattack , now 0.2.0"]) for attack in ("autoattack", "worst-case")),
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


PEERS = {
    "rrbench, bf16": "rrbench",
    "torchattacks 3.5.1": "torchattacks",
    "a plain loop, weights frozen": "plain loop",
    "foolbox 3.3.4": "foolbox",
    "the paper authors' loop": "authors' loop",
}


@pytest.mark.parametrize(
    ("preset", "asked", "trained_as"),
    [
        ("paper", "ccat", "ccat"),
        ("paper", "ccat(attack_mode=train,scale=1)", "ccat(attack_mode=train,scale=1)"),
        ("official", "ccat", "ccat(attack_mode=train,scale=1)"),
    ],
)
def test_ccat_of_a_preset_is_the_network_that_the_results_name(preset: str, asked: str, trained_as: str) -> None:
    request = Request(["confidence"], ["clean"], datasets=["cifar10"], network="resnet18", frameworks=[asked])
    training = make_plan(request, load_preset(preset)).cells[0].training
    (entry,) = [each for each in zoo.entries(ZOO) if each.trained_as == trained_as]
    assert training.key == entry.key


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


def test_cw_of_the_readme_is_that_of_the_bench_on_an_h200() -> None:
    names = {
        "rrbench, bf16": "rrbench",
        "rrbench in float32, its backward pass in tf32": "rrbench in fp32, back in tf32",
        "foolbox in float32": "foolbox in fp32",
        "foolbox in PyTorch's default precision": "foolbox",
    }
    measured = {row["implementation"]: row for row in bench_on("h200-cw") if row["what"] == "cw-l2 of 200"}
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for shown, name in names.items():
        row = measured[name]
        times = float(row["seconds"]) / float(measured["rrbench"]["seconds"])
        cells = (
            shown,
            f"{float(row['images_per_second']):.1f}",
            "" if name == "rrbench" else f"{times:.1f} x",
            f"{100 * float(row['success']):.0f} %",
            f"{float(row['l2_distance']):.3f}",
        )
        assert "".join(f"| {cell} " if cell else "| " for cell in cells) + "|\n" in text


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
        f"makes {int(exact['gradients_per_second']):,} gradients a second and leaves {exact['robust_accuracy']}: ",
        f"included | {alone:.1f} s | the plain step {plain:.0f} s |",
        f"four trainings side by side | {four:.1f} s |",
        f"10,000 images | {ours:.0f} s, leaves {left} % |",
        f"first 500: {package:.0f} s, {times:.1f} x as long an image; both leave {both} %",
        f"PGD-20 is {foolbox:.2f} x as fast as foolbox",
        f"Training is slower: {plain_cpu} x the plain step",
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
