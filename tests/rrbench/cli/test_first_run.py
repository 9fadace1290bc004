"""What the first run in a work folder says beside its rows."""

import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from rrbench.cli.run import how_to_type, what_next
from spoken import lines

SHIPPED = "shipped with rrbench, not trained here: pgd-at+rr; --retrain trains here"


def test_a_first_run_says_that_its_networks_were_shipped_and_what_to_try_next_and_a_second_one_does_not(
    command: Any, own_folder: Path
) -> None:
    options = ["run", "--rejectors", "rr", "--limit", 8, "--attacks"]
    said = command(*options, "clean")
    assert lines(said.err)[0] == SHIPPED
    assert lines(said.err)[-len(what_next(Path("runs"))) :] == what_next(Path("runs"))
    assert said.out.endswith("\n1 row in runs/rows.csv\n")
    again = command(*options, "clean")
    assert again.out == said.out
    assert again.err == "", "nothing was measured, and the folder is known"
    more = command(*options, "pgd1")
    assert lines(more.err) == [SHIPPED, "pgd-at+rr rr pgd1 linf:3/20 (1 gradients an image)"]
    assert command(*options, "clean").out.endswith("\n1 of the 2 rows in runs/rows.csv\n")


def test_a_network_that_was_trained_here_is_not_called_shipped(command: Any, bench: Any) -> None:
    said = command("run", *bench.arguments(), "--rejectors", "confidence", "--attacks", "clean")
    assert "shipped" not in said.err
    assert "what to try next:" in said.err


def test_a_run_on_the_usual_data_is_suggested_only_where_these_were_measured(command: Any, own_folder: Path) -> None:
    said = command("run", "--dataset", "digits", "--rejectors", "rr", "--limit", 8, "--attacks", "clean")
    usual, other = what_next(Path("runs")), what_next(Path("runs"), is_usual=False)
    assert lines(said.err)[-len(usual) :] == usual
    assert [line.split()[1] for line in other[1:]] == ["report", "verify", "eval"]
    said = command(
        "run", "--network", "small-cnn", "--rejectors", "rr", "--limit", 8, "--attacks", "clean", "--out", "a"
    )
    assert lines(said.err)[-len(other) :] == what_next(Path("a"), is_usual=False), "the network may be another one"


def test_what_is_suggested_can_be_typed(command: Any, own_folder: Path) -> None:
    suggested = [shlex.split(line, comments=True)[1:] for line in what_next(Path("my runs"))[1:]]
    assert [words[0] for words in suggested] == ["report", "verify", "run", "eval"]
    assert suggested[0][1] == suggested[1][1] == "my runs"
    assert command(*suggested[2], "--dry-run").code == 0
    for words in suggested:
        known = command(words[0], "--help").out
        assert [word for word in words if word.startswith("--") and word not in known] == []


def test_it_says_how_to_type_the_command_only_where_the_shell_would_not_find_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "a clone" / ".venv"
    (place / "bin").mkdir(parents=True)
    monkeypatch.setattr(sys, "prefix", str(place))
    monkeypatch.setattr(sys, "executable", str(place / "bin" / "python"))
    monkeypatch.setattr(shutil, "which", lambda name: str(place / "bin" / name))
    assert how_to_type() == []
    for found in (None, str(tmp_path / "rrbench")):  # none, or that of another installation
        monkeypatch.setattr(shutil, "which", lambda name, found=found: found)
        assert how_to_type() == [f"to type rrbench: {shlex.quote(sys.executable)} -m rrbench"]
    (place / "bin" / "activate").touch()
    assert how_to_type() == [f"to type rrbench in this shell: source {shlex.quote(str(place / 'bin' / 'activate'))}"]
    monkeypatch.chdir(place.parent)
    assert how_to_type() == ["to type rrbench in this shell: source .venv/bin/activate"]
