"""What an installed wheel can do outside the checkout: the chain that pip takes, from the source archive on."""

import csv
import io
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from rrbench.paper.tabulate import Selection, paper_tables

ROOT = Path(__file__).resolve().parent.parent
PUBLISHED = {path.parent.name: path for path in (ROOT / "results").glob("*/rows.csv")}
Installed = Callable[..., subprocess.CompletedProcess[str]]


def build(source: Path, target: str, out: Path) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(out)]
    subprocess.run(command, cwd=source, check=True, capture_output=True, timeout=120)
    (built,) = out.iterdir()
    return built


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel made from the source archive alone."""
    folder = tmp_path_factory.mktemp("build")
    source = build(ROOT, "sdist", folder / "sdist")
    assert source.stat().st_size < 4e6
    with tarfile.open(source) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # came with Python 3.11.4
        archive.extractall(folder)
    return build(next(folder.glob("rrbench-*")), "wheel", folder / "wheel")


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Run a command of an environment that holds the wheel and sees what it depends on, in a folder of its own."""
    folder = tmp_path_factory.mktemp("elsewhere")
    venv.create(folder / "environment", symlinks=True)
    packages = folder / "environment" / Path(sysconfig.get_path("purelib")).relative_to(sys.prefix)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    # A .pth file inside a folder that a .pth names is not read: the checkout's editable install stays out of sight.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    (folder / "empty").mkdir()
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "RRBENCH_ZOO")}

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [folder / "environment" / "bin" / "python", "-m", "rrbench", *arguments],
            cwd=folder / "empty",
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return call


def test_a_wheel_holds_the_published_rows_and_nothing_else_of_the_results(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = [name for name in archive.namelist() if name.startswith("rrbench/results/")]
        assert sorted(held) == sorted(f"rrbench/results/{name}/rows.csv" for name in PUBLISHED)
        for name, path in PUBLISHED.items():
            assert archive.read(f"rrbench/results/{name}/rows.csv") == path.read_bytes()
    assert wheel.stat().st_size < 4e6


def test_the_page_of_the_package_is_the_readme_without_links_that_lead_nowhere_there(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        head, _, page = archive.read(name).decode().partition("\n\n")
    assert "Description-Content-Type: text/markdown" in head.splitlines()
    assert "License-Expression: MIT" in head.splitlines()
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    links = r"\]\((?!https?:)"
    assert re.findall(links, readme), "the repository's own page has such links"
    assert re.findall(links, page) == []
    kept = [line for line in page.splitlines() if line in readme.splitlines()]
    assert len(kept) > 0.9 * len(page.splitlines()) > 0.8 * len(readme.splitlines())
    assert "[docs/](docs/README.md) has a page per task" in readme
    assert "\ndocs/ has a page per task" in page


def test_a_table_of_the_paper_is_filled_outside_the_checkout_and_says_from_where(installed: Installed) -> None:
    answer = installed("table", "--paper", "table2", "--format", "csv")
    assert (answer.returncode, answer.stderr) == (0, "")
    here = paper_tables(Selection("table2"), [ROOT / "results"]).judged
    measured = [line["measured"] for line in csv.DictReader(io.StringIO(answer.stdout))]
    assert measured == ["" if each.measured.value is None else str(each.measured.value) for each in here]
    assert sum(map(bool, measured)) > 60
    count = sum(len(path.read_text(encoding="utf-8").splitlines()) - 1 for path in PUBLISHED.values())
    assert f"rows from rrbench 0.1.0 itself ({count:,} rows)" in installed("table", "--paper", "table1").stdout


def test_readme_s_paired_differences_are_printed_without_intervals_and_say_where_scores_are(
    installed: Installed,
) -> None:
    answer = installed("table", "results/cifar10", "--by", "attack", "--against", "confidence")
    assert answer.returncode == 0
    where = "results/cifar10 of rrbench's source repository"
    assert answer.stderr == (
        f"rrbench: results/cifar10 is not here: these are its rows from rrbench 0.1.0 itself, cifar10; "
        f"scores are in {where}\n"
    )
    assert f"no interval: no score files beside the rows; they are in {where}\n" in answer.stdout
    assert " (+0." in answer.stdout


def test_the_plot_that_needs_only_rows_is_drawn_outside_the_checkout(installed: Installed) -> None:
    drawn = installed("figure", "results/cifar10", "--paper", "accuracy-budget", "--out", "plot.svg")
    assert (drawn.returncode, drawn.stdout) == (0, "plot.svg\n")
