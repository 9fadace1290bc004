"""`rrbench data make cifar10-c` and `rrbench data check` of corruptions, as a user calls them."""

import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from data_calls import call, refuse
from made_up_cifar import TinyCifar10, content, write_npz
from rrbench.datasets import DATASETS
from rrbench.datasets.changes import mean_changes
from rrbench.datasets.cifar10_c import Corrupted
from rrbench.datasets.cifar10_c_made import FOLDER, Cifar10CMade
from rrbench.verifying.corruptions import falls

ZOO = Path(__file__).resolve().parents[3] / "results" / "zoo"


@pytest.fixture(autouse=True)
def nothing_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("RRBENCH_DATA", raising=False)
    monkeypatch.setattr(Corrupted, "clean", TinyCifar10())


@pytest.fixture
def data(tmp_path: Path) -> Path:
    write_npz(TinyCifar10, tmp_path, content(TinyCifar10))
    return tmp_path


@pytest.fixture
def small(data: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two corruptions only, to save time."""
    monkeypatch.setattr(Cifar10CMade, "corruptions", ("frost", "frost_texture", "contrast"))
    return data


def test_it_says_what_it_made_where_and_that_it_is_not_the_published(small: Path) -> None:
    result = call("make", "cifar10-c", "--data-dir", small, "--threads", "1")
    assert result.exit_code == 0, result.output
    first, last = result.stdout.splitlines()
    assert first.startswith(f"made in {small / FOLDER} (")
    assert first.endswith("s): frost_texture, contrast")
    assert last == (
        "frost is from a texture that was drawn; name the data set cifar10-c-made: these are not the published files"
    )
    again = call("make", "cifar10-c", "--data-dir", small)
    assert again.stdout.splitlines()[0] == f"already in {small / FOLDER}: frost_texture, contrast"
    listed = call("list", "--data-dir", small).stdout.splitlines()
    assert listed[-1].endswith(f"found in {small / FOLDER}")
    assert listed[-2].endswith("not found")
    assert "cifar10-c-made: ok, frost_texture, contrast; made, not" in call("check", "--data-dir", small).stdout


def test_photographs_are_counted(small: Path, tmp_path: Path) -> None:
    (tmp_path / "frost").mkdir()
    Image.new("RGB", (200, 200)).save(tmp_path / "frost" / "a.png")
    result = call("make", "cifar10-c", "--data-dir", small, "--frost", tmp_path / "frost")
    assert "frost is from 1 photographs" in result.stdout
    assert (small / FOLDER / "frost.npz").is_file()


def test_what_is_wrong_is_told_in_one_line(data: Path, tmp_path: Path) -> None:
    assert "near: cifar10-c" in refuse("make", "cifar10")
    assert "at least 1" in refuse("make", "cifar10-c", "--data-dir", data, "--threads", "0")
    assert "rrbench data get cifar10" in refuse("make", "cifar10-c", "--data-dir", tmp_path / "none")
    (tmp_path / "empty").mkdir()
    assert "holds no photograph" in refuse("make", "cifar10-c", "--data-dir", data, "--frost", tmp_path / "empty")
    (tmp_path / "empty" / "a.jpg").write_text("no picture")
    assert "a.jpg" in refuse("make", "cifar10-c", "--data-dir", data, "--frost", tmp_path / "empty")
    (data / FOLDER).write_text("")
    assert f"cannot write {data / FOLDER}" in refuse("make", "cifar10-c", "--data-dir", data)


@pytest.mark.parametrize("package", ["skimage", "scipy", "PIL"])
def test_without_the_extra_one_line_says_what_to_install(
    package: str, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("rrbench.datasets.corruptions")]:
        monkeypatch.delitem(sys.modules, name)
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, package, None)
    message = refuse("make", "cifar10-c", "--data-dir", data)
    (asked,) = re.findall("pip install (.*)$", message)
    assert {word.partition(">=")[0] for word in shlex.split(asked)} == {"scipy", "scikit-image", "pillow"}


def test_help_says_the_cost_and_where_it_writes() -> None:
    text = " ".join(call("make", "--help").stdout.split())
    for said in ("CIFAR-10-C-made", "1.5 GB", "minutes on two cores", "not the published files", "--frost"):
        assert said in text


def test_check_prints_the_change_of_every_severity_and_draws_a_sheet(small: Path, tmp_path: Path) -> None:
    call("make", "cifar10-c", "--data-dir", small)
    sheet = tmp_path / "sheet.png"
    result = call("check", "cifar10-c-made", "--data-dir", small, "--out", sheet)
    assert result.exit_code == 0, result.output
    clean = content(TinyCifar10)["x_test"].astype(int)
    with np.load(small / FOLDER / "contrast.npz") as file:
        expected = [np.abs(file[f"severity{each}"] - clean).mean() for each in range(1, 6)]
    assert mean_changes(Cifar10CMade, (small,))["contrast"] == pytest.approx(expected)
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("contrast ")]
    assert line.split()[1:] == [f"{value:.1f}" for value in expected]
    with Image.open(sheet) as picture:
        width, height = picture.size
    assert width > height  # six columns, two lines
    assert result.stdout.splitlines()[-1] == str(sheet)


def test_check_of_the_published_files_prints_the_same(data: Path) -> None:
    (data / "CIFAR-10-C").mkdir()
    arrays = content(TinyCifar10)
    np.save(data / "CIFAR-10-C" / "labels.npy", np.tile(arrays["y_test"], 5))
    np.save(data / "CIFAR-10-C" / "fog.npy", np.tile(arrays["x_test"], (5, 1, 1, 1)))
    lines = call("check", "cifar10-c", "--data-dir", data).stdout.splitlines()
    assert lines[0] == "cifar10-c: ok, 1 of 19 corruptions"
    assert lines[-1].split() == ["fog", *["0.0"] * 5]


def test_check_measures_the_standard_network_of_the_zoo(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RRBENCH_ZOO", str(ZOO))
    monkeypatch.setattr(Cifar10CMade, "corruptions", ("contrast",))
    call("make", "cifar10-c", "--data-dir", small)
    result = call("check", "cifar10-c-made", "--data-dir", small, "--zoo", "--limit", "2", "--device", "cpu")
    assert result.exit_code == 0, result.output
    _, table = result.stdout.split("Accuracy of the zoo's standard network in %, the first 2 images; ")
    (line,) = [line for line in table.splitlines() if line.startswith("contrast  ")]
    assert set(line.split()[1:]) <= {"0.0", "50.0", "100.0"}
    assert "steps from one severity to the next" in table
    monkeypatch.setenv("RRBENCH_ZOO", str(small))
    assert "no checkpoint standard of cifar10" in refuse(
        "check", "cifar10-c-made", "--data-dir", small, "--zoo", "--device", "cpu"
    )


def test_every_step_without_a_fall_is_listed() -> None:
    falling, rising = [90.0, 80, 70, 60, 50], [90.0, 80, 80, 85, 50]
    assert falls(95, {"fog": falling}) == ["Accuracy falls in 5 of 5 steps from one severity to the next."]
    assert falls(90, {"snow": rising}) == [
        "Accuracy falls in 2 of 5 steps from one severity to the next; it does not for",
        "snow from clean to 1: 90.0 to 90.0",
        "snow from severity 2 to 3: 80.0 to 80.0",
        "snow from severity 3 to 4: 80.0 to 85.0",
    ]


def test_options_of_check_that_do_not_fit_are_refused(data: Path) -> None:
    assert "need the name of a data set" in refuse("check", "--zoo", "--data-dir", data)
    assert "cifar10 holds none" in refuse("check", "cifar10", "--zoo", "--data-dir", data)
    assert "--limit is for --zoo" in refuse("check", "cifar10-c-made", "--limit", "3", "--data-dir", data)
    assert "near: cifar10-c-made" in refuse("check", "cifar10-c-mad", "--data-dir", data)
    assert "end the name in" in refuse("check", "cifar10-c-made", "--out", "a.txt", "--data-dir", data)
    assert "rrbench data make cifar10-c" in refuse("check", "cifar10-c-made", "--data-dir", data)
    assert "rrbench data get cifar100" in refuse("check", "cifar100", "--data-dir", data)
    assert call("check", "digits").stdout.startswith("digits: ok")
    assert "cifar10-c-made" in DATASETS
