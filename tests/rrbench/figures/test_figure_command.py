"""`rrbench figure`: the files it writes, wrong use in one line, and the command that measures what is missing."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from figure_cells import NAMES, scores_of
from rrbench import figures
from rrbench.errors import UseError
from rrbench.figures.request import FigureOptions, paper_request
from rrbench.figures.scored import Scored
from rrbench.figures.style import SUFFIXES


@pytest.mark.parametrize("name", NAMES)
def test_every_name_answers_and_a_missing_cell_comes_with_the_command_that_makes_it(
    command: Callable[..., Any], name: str, tmp_path: Path
) -> None:
    (tmp_path / "none" / "cells").mkdir(parents=True)
    answer = command("figure", tmp_path / "none", "--paper", name, "--dataset", "digits")
    assert answer.code == 2
    assert answer.out == ""
    assert len(answer.err.strip().splitlines()) == 1
    (words,) = re.findall(r"rrbench run .*", answer.err)
    if name in figures.PAPER:
        assert f"rrbench: {name} lacks " in answer.err
        planned = command(*shlex.split(words)[1:], "--dry-run", "--device", "cpu")
        assert planned.code == 0, planned.err


def test_the_figures_of_the_paper_are_of_cifar_10_unless_told_otherwise(
    command: Callable[..., Any], folder: Path
) -> None:
    answer = command("figure", folder, "--paper", "label:fig2")
    assert answer.code == 2
    assert "figure8 lacks pgd-at under clean, pgd-at under pgd10 (cifar10 resnet18 linf:8/255)" in answer.err
    assert "--preset paper --dataset cifar10" in answer.err


def test_the_command_writes_every_format_asked_for_and_the_same_bytes_again(
    command: Callable[..., Any], folder: Path, tmp_path: Path
) -> None:
    written = []
    for attempt in ("one", "two"):
        paths = [tmp_path / f"{attempt}{suffix}" for suffix in SUFFIXES]
        outs = [word for path in paths for word in ("--out", path)]
        answer = command("figure", "--results", folder, "--paper", "label:fig4", "--dataset", "digits", *outs)
        assert answer.code == 0, answer.err
        assert answer.out.split() == [str(path) for path in paths]
        written.append([path.read_bytes() for path in paths])
    assert [content[:4] for content in written[0]] == [b"%PDF", b"<?xm", b"\x89PNG"]
    assert written[0] == written[1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "which figure?"),
        (["--paper", "figure2"], "is a diagram"),
        (["--paper", "label:fig3"], "is a diagram"),
        (["--paper", "figure9"], "unknown figure 'figure9'; near: figure"),
        (["--paper", "label:fig9"], "unknown figure label 'fig9'"),
        (["--paper", "figure1", "--out", "a.jpg"], "cannot draw a.jpg: end the name in .pdf, .svg, .png"),
        (["--paper", "figure1", "--attack", "pgd10"], "do not go with it"),
        (["--paper", "accuracy-budget", "--budget", "linf:8/255"], "does not go with it"),
        (["--paper", "figure1", "--dataset", "unheard-of"], "give --network and --budget"),
        (["--paper", "figure1", "--results", "elsewhere"], "give the work folder once"),
        (["--paper", "risk-coverage", "--rejectors", "rr,kd"], "unknown rejector in these results: 'kd'"),
        (["--paper", "risk-coverage", "--rejectors", "rr@ccat"], "unknown rejector in these results: 'rr@ccat'"),
        (["--paper", "figure1", "--preset", "papr"], "unknown preset 'papr'; near: paper"),
        (["--paper", "risk-coverage", "--preset", "papr"], "unknown preset 'papr'; near: paper"),
        (["--paper", "risk-coverage", "--seed", "7"], "no such rows for risk-coverage"),
    ],
)
def test_wrong_use_is_one_line(command: Callable[..., Any], folder: Path, arguments: list[str], words: str) -> None:
    answer = command("figure", folder, *arguments)
    assert answer.code == 2
    assert words in answer.err
    assert len(answer.err.strip().splitlines()) == 1


@pytest.mark.parametrize("figure", ["figure4", "figure8", "risk-coverage", "accuracy-budget"])
def test_a_folder_that_there_is_not_is_named_and_not_to_be_filled(
    command: Callable[..., Any], figure: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for given in (["nope"], ["--results", "nope"]):
        answer = command("figure", *given, "--paper", figure)
        assert (answer.code, answer.err) == (2, "rrbench: no results at nope\n")
    assert "rrbench run " in command("figure", "--paper", figure).err  # nobody named runs/


def test_a_folder_without_cells_and_a_damaged_score_file_are_one_line(
    command: Callable[..., Any], cells: list[Scored], tmp_path: Path
) -> None:
    answer = command("figure", tmp_path, "--paper", "figure8")
    assert answer.code == 2
    assert "is no work folder" in answer.err
    cell = scores_of(cells, "pgd-at", "pgd10")
    broken = Scored(cell.record, type(cell.store)(tmp_path))
    for name in cell.record.files:
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(b"no archive")
    with pytest.raises(UseError, match=r"it is no \.npz file"):
        _ = broken.scores


def test_the_command_that_measures_what_is_missing_can_be_pasted() -> None:
    wanted = FigureOptions(dataset="cifar10-c(glass_blur)", network="small-cnn(width=8)", budget="linf:8/255")
    request = paper_request("figure5", Path("my runs"), [], wanted)
    error = request.missing(["x"], frameworks=["pgd-at"], rejectors=["rr", "gda*"], attacks=["pgd(steps=3)"])
    words = shlex.split(str(error).partition("to measure: ")[2])
    options = dict(zip(words[2::2], words[3::2], strict=True))
    assert words[:2] == ["rrbench", "run"]
    assert (options["--dataset"], options["--network"]) == (wanted.dataset, wanted.network)
    assert (options["--out"], options["--rejectors"]) == ("my runs", "rr,gda*")
    assert "'rr,gda*'" in str(error)  # a shell would look for such files
