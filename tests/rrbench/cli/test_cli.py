"""The command line: help with examples, wrong use in one line, results on stdout, progress on stderr, exit codes."""

import json
import os
import re
import subprocess
import sys
import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest
import typer

from rrbench import api, cli, zoo
from rrbench.files.checkpoints import read_checkpoint, write_checkpoint
from rrbench.files.disk import sha256
from rrbench.plugins.config import preset_names
from rrbench.plugins.registry import table
from rrbench.protocols import Attack, Batch, Budget, Draws, Moved, Victim
from rrbench.verifying import verify
from spoken import lines


def commands(group: Any, prefix: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    for name, item in group.commands.items():
        found += commands(item, (*prefix, name)) if hasattr(item, "commands") else [(*prefix, name)]
    return found


ROOT = Path(__file__).resolve().parents[3]
COMMANDS = commands(typer.main.get_command(cli.app))


def test_every_command_of_the_contract_is_there() -> None:
    assert {
        "run",
        "train",
        "table",
        "figure",
        "report",
        "board",
        "list",
        "verify",
        "bench",
        "data",
        "new",
        "check",
    } <= {path[0] for path in COMMANDS}


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_the_help_of_every_command_shows_an_example_of_itself(command: Any, path: tuple[str, ...]) -> None:
    answer = command(*path, "--help")
    assert answer.code == 0
    text = " ".join(answer.out.split())
    (example,) = re.findall(r"Example: (rrbench .*?)(?= Arguments| Options|$)", text)
    assert example.startswith(" ".join(("rrbench", *path)))
    options = set(re.findall(r"--[a-z-]+", example.partition("&&")[0]))
    assert all(f"{option} " in text.replace(example, "") for option in options)


def test_the_help_of_rrbench_names_its_commands_and_a_first_step(command: Any) -> None:
    answer = command("--help")
    assert answer.code == 0
    assert all(path[0] in answer.out for path in COMMANDS)
    assert "rrbench run" in answer.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--rejectors", "konfidence"], ["unknown rejector 'konfidence'", "confidence"]),
        (["--rejectors", "rr(taw=1)"], ["unknown setting of rejector 'rr' 'taw'", "tau"]),
        (["--rejectors", "rr(tau=x)"], ["tau", "'x'"]),
        (["--rejectors", "rr(tau=1"], ["rr(tau=1"]),
        (["--rejectors", ""], ["empty"]),
        (["--rejectors", "kd(g=-1)"], ["g must be above 0"]),
        (["--rejectors", "carl", "--frameworks", "pgd-at"], ["nothing to run", "carl"]),
        (["--attacks", "pgb10"], ["unknown attack 'pgb10'", "pgd"]),
        (["--attacks", "adaptive(ce+rcoon)"], ["objective", "ce+rcon"]),
        (["--dataset", "digit"], ["unknown dataset 'digit'", "digits"]),
        (["--network", "small"], ["unknown network 'small'", "small-cnn"]),
        (["--frameworks", "pgdat"], ["unknown framework 'pgdat'", "pgd-at"]),
        (["--preset", "quik"], ["unknown preset 'quik'", "quick"]),
        (["--device", "gpu"], ["device 'gpu'"]),
        (["--device", "cuda:99"], ["device 'cuda:99'"]),
        (["--device", "meta", "--rejectors", "confidence", "--attacks", "clean"], ["device 'meta'"]),
        (["--precision", "fp8"], ["unknown precision 'fp8'", "bf16"]),
        (["--budgets", "8/255"], ["linf:8/255"]),
        (["--budgets", "l3:1"], ["l3:1", "linf:8/255"]),
        (["--budgets", "linf:much"], ["linf:much", "fraction"]),
        (["--budgets", "linf:1/0"], ["linf:1/0"]),
        (["--budgets", "linf:-1"], ["negative"]),
        (["--budgets", "l2:128"], ["'l2:128' exceeds 8", "l2:128/255 perhaps?"]),
        (["--out", ""], ["--out is empty"]),
        (["--rejectors", "rr", "--rejectors", "ebd"], ["--rejectors is given 2 times: give it once", "commas"]),
        (["--keep", "everything"], ["--keep takes images, features; not everything"]),
        (["--limit", "0"], ["--limit must be at least 1, not 0"]),
        (["--network", "small-cnn(width=0)"], ["network small-cnn(width=0): width must be at least 1"]),
        (["--limit", "-3"], ["--limit must be at least 1, not -3"]),
        (["--every", "0"], ["--every must be at least 1, not 0"]),
        (["--every", "10", "--limit", "9"], ["give --limit or --every, not both"]),
        (["--seeds", "0,one"], ["--seeds '0,one'"]),
        (["--seeds", ""], ["--seeds"]),
        (["--seeds", "0,-1"], ["a seed is a whole number from 0 on, not -1"]),
        (["--seed", "-1"], ["a seed is a whole number from 0 on, not -1"]),
        (["--seed", "1", "--seeds", "2"], ["not both"]),
        (["--config", "nowhere.toml"], ["nowhere.toml"]),
        (["--zoo", "--retrain"], ["exclude"]),
        (["--zoo", "--dataset", "cifar10"], ["no checkpoint"]),
    ],
    ids=lambda value: " ".join(value)[:30] if isinstance(value, list) else "",
)
def test_a_wrong_word_is_one_line_on_stderr_and_exit_2(
    command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RRBENCH_ZOO", str(tmp_path))
    folder = [] if "--out" in arguments else ["--out", tmp_path / "runs"]
    answer = command("run", *folder, *arguments)
    assert answer.code == 2
    assert answer.out == ""
    (line,) = lines(answer.err)
    assert line.startswith("rrbench: ")
    for word in words:
        assert word in line
    assert not (tmp_path / "runs" / "cells").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "--framework", "pgdat"],
        ["train", "--rejector", "konfidence"],
        ["train", "--epochs", "0"],
        ["train", "--epochs", "-1"],
        ["table", "nowhere"],
        ["table", "nowhere.csv"],
        ["report", "--out", "report.pdf"],
        ["board", "nowhere"],
        ["list", "nothing"],
        ["verify", "nowhere"],
        ["data", "get", "nothing"],
        ["new", "rejector", "My_Idea"],
        ["new", "rejector", "all"],
        ["run", "--dataset", "cifar10", "--data-dir", "nowhere", "--attacks", "clean"],
    ],
    ids=" ".join,
)
def test_every_command_refuses_in_one_line(
    command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("RRBENCH_DATA", raising=False)
    answer = command(*arguments)
    assert answer.code == 2
    assert "Traceback" not in answer.err
    assert lines(answer.err)[-1].startswith("rrbench: ")
    assert answer.out == ""


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["run", "--limit", "many"], "Invalid value for '--limit': 'many' is not a valid int; see rrbench run --help"),
        (["run", "--limt", "3"], "No such option: --limt (Possible options: --limit); see rrbench run --help"),
        (["run", "--rejectors"], "Option '--rejectors' requires an argument"),
        (["nothing"], "No such command 'nothing'; see rrbench --help"),
        (["list"], "Missing argument 'what'; see rrbench list --help"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_is_no_option_at_all_is_one_line_too(command: Any, arguments: list[str], reason: str) -> None:
    answer = command(*arguments)
    assert (answer.code, answer.out, lines(answer.err)) == (2, "", [f"rrbench: {reason}"])


def test_without_a_command_there_is_the_help(command: Any) -> None:
    for arguments in ([], ["data"]):
        answer = command(*arguments)
        assert answer.code == 2
        assert answer.err.strip() == command(*arguments, "--help").out.strip()


def files(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_a_dry_run_says_what_it_would_cost_and_writes_nothing(command: Any, empty: Any, tmp_path: Path) -> None:
    before = files(tmp_path)
    arguments = ["run", *empty.arguments(), "--rejectors", "confidence,t-con", "--attacks", "pgd10"]
    answer = command(*arguments, "--dry-run")
    assert answer.code == 0
    assert files(tmp_path) == before
    assert "4 cells on 1 checkpoint, 2 of them share an attack already run" in answer.out
    # Training: 2 epochs of 1,077 images at 1 + 1 gradients and 360 at 1; the attack: 60 images at 10.
    training = 2 * (1077 * 2 + 360)
    (checkpoint,) = (line for line in answer.out.splitlines() if line.startswith("checkpoint"))
    assert f"{training:,}" in checkpoint
    assert checkpoint.endswith("to be trained")
    assert f"{training + 600:,} gradient evaluations" in answer.out


def test_a_dry_run_knows_what_is_done(command: Any, bench: Any) -> None:
    arguments = ["run", *bench.arguments(), "--rejectors", "confidence", "--attacks", "pgd2"]
    assert command(*arguments).code == 0
    before = files(bench.out)
    answer = command(*arguments, "--dry-run")
    assert files(bench.out) == before
    assert "\n0 gradient evaluations" in answer.out
    answer = command(*[word.replace("confidence", "confidence,t-con") for word in arguments], "--dry-run")
    assert "4 cells on 1 checkpoint" in answer.out
    assert "\n0 gradient evaluations" in answer.out


def test_results_go_to_stdout_and_progress_to_stderr(command: Any, bench: Any) -> None:
    arguments = ["run", *bench.arguments(), "--rejectors", "confidence,carl", "--frameworks", "pgd-at"]
    answer = command(*arguments, "--attacks", "pgd2")
    assert answer.code == 0
    said = lines(answer.err)
    assert any(line.startswith("left out: carl") for line in said)
    assert any(line.startswith("pgd-at confidence pgd2 linf:3/20 (2 gradients an image)") for line in said)
    assert not any("gradients an image" in line or "left out" in line for line in answer.out.splitlines())
    assert f"2 rows in {bench.out / 'rows.csv'}" in answer.out
    assert command("table", bench.out).out.strip() in answer.out
    again = command(*arguments, "--attacks", "pgd2")
    assert again.out == answer.out
    assert [line for line in lines(again.err) if not line.startswith("left out")] == []
    more = command(*arguments, "--attacks", "pgd1")
    assert f"2 of the 3 rows in {bench.out / 'rows.csv'}" in more.out


@dataclass(frozen=True)
class Raising(Attack):
    def __call__(self, victim: Victim, batch: Batch, budget: Budget, draws: Draws) -> Moved:
        raise ValueError("a plugin's own trouble")

    def gradients_per_image(self, classes: int) -> int:
        return 0


def test_a_failed_cell_is_exit_1_and_its_row_says_why(
    command: Any, bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(table("attack").classes, "raising", Raising)
    arguments = ["run", *bench.arguments(), "--rejectors", "confidence", "--attacks", "raising,pgd1"]
    answer = command(*arguments)
    assert answer.code == 1
    assert lines(answer.err)[-1] == "rrbench: 1 of 3 cells failed; their rows say why"
    assert "ValueError: a plugin's own trouble" in answer.out
    assert "Traceback" not in answer.err
    assert "3 rows" in answer.out


def test_nan_logits_of_one_checkpoint_are_exit_1_and_the_other_cells_are_measured(command: Any, bench: Any) -> None:
    for path in (bench.out / "checkpoints").glob("*[0-9a-f].safetensors"):
        checkpoint = read_checkpoint(path)
        if checkpoint.facts["trained_as"] == "pgd-at+ebd":
            bias = checkpoint.tensors["classifier.bias"] * float("nan")
            write_checkpoint(path, {**checkpoint.tensors, "classifier.bias": bias}, checkpoint.facts)
    answer = command("run", *bench.arguments(), "--rejectors", "ebd,confidence", "--attacks", "pgd1")
    assert answer.code == 1
    assert lines(answer.err)[-1] == "rrbench: 2 of 4 cells failed; their rows say why"
    assert "NaN" in answer.out
    assert "4 rows in" in answer.out


def test_an_interruption_is_one_line_that_says_how_to_go_on(
    command: Any, bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(api, "execute", interrupted)
    answer = command("run", *bench.arguments())
    assert answer.code == 130
    assert lines(answer.err) == ["rrbench: interrupted; run the same command again to go on"]


def test_an_interrupted_command_that_begins_anew_does_not_promise_to_go_on(
    command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(verify, "verify_folder", interrupted)
    answer = command("verify", tmp_path)
    assert answer.code == 130
    assert lines(answer.err) == ["rrbench: interrupted"]


def test_train_says_where_the_checkpoint_is_and_the_second_time_trains_nothing(command: Any, empty: Any) -> None:
    arguments = ["train", "--config", empty.config, "--out", empty.out, "--device", "cpu", "--epochs", 1]
    answer = command(*arguments, "--framework", "standard")
    assert answer.code == 0
    assert "training standard on digits" in answer.err
    first, path, digest = answer.out.splitlines()
    assert re.match(r"standard on digits: epoch 1 of 1, clean accuracy [\d.]+ %, pgd1 [\d.]+ % \(calibration\)", first)
    assert Path(path).is_file()
    assert digest == f"sha256 {sha256(Path(path))}"
    again = command(*arguments, "--framework", "standard")
    assert again.out == answer.out
    assert "training" not in again.err


@pytest.mark.parametrize("kind", ["rejector", "attack", "framework", "dataset", "network"])
def test_list_names_everything_that_can_be_named(command: Any, kind: str) -> None:
    answer = command("list", f"{kind}s")
    assert answer.code == 0
    shown = [line.partition("(")[0] for line in answer.out.splitlines() if not line.startswith(" ")]
    for name in table(kind):
        assert name in shown


def test_list_shows_presets_and_the_zoo(command: Any) -> None:
    answer = command("list", "presets")
    assert answer.code == 0
    assert [line for line in answer.out.splitlines() if not line.startswith(" ")] == preset_names()
    answer = command("list", "zoo")
    assert answer.code == 0
    for entry in zoo.entries(zoo.EMBEDDED):
        assert entry.file in answer.out
        assert entry.sha256[:12] in answer.out


def test_the_embedded_zoo_is_whole_and_small() -> None:
    entries = zoo.entries(zoo.EMBEDDED)
    assert entries
    assert {entry.file for entry in entries} == {path.name for path in zoo.EMBEDDED.glob("*.safetensors")}
    for entry in entries:
        assert sha256(zoo.EMBEDDED / entry.file) == entry.sha256
        assert (zoo.EMBEDDED / entry.file).stat().st_size < 200_000
        assert entry.command


@pytest.mark.parametrize(("field", "value"), [("epochs", None), ("sha256", 7), ("clean_accuracy", "high")])
def test_an_index_with_a_wrong_value_is_one_line(
    command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, field: str, value: object
) -> None:
    listed = [asdict(entry) for entry in zoo.entries(zoo.EMBEDDED)]
    listed[0][field] = value
    (tmp_path / "index.json").write_text(json.dumps(listed))
    monkeypatch.setenv("RRBENCH_ZOO", str(tmp_path))
    answer = command("list", "zoo")
    assert answer.code == 2
    reason = f"rrbench: {tmp_path / 'index.json'} is no zoo index: {field} of an entry is {value!r}"
    assert answer.err.splitlines()[-1] == reason


QUICK = """
import sys, warnings
from rrbench.cli import main
for arguments in (["--help"], ["run", "--help"], ["list", "rejectors"], ["list", "attacks"], ["list", "zoo"],
                  ["table", sys.argv[1]], ["table", sys.argv[1], "--by", "attack", "--metric", "auc"]):
    sys.argv[1:], kept = arguments, sys.argv[1:]
    try:
        main()
    except SystemExit as stopped:
        assert stopped.code in (0, None), arguments
    sys.argv[1:] = kept
    heavy = {"torch", "pandas", "sklearn", "matplotlib"} & sys.modules.keys()
    assert not heavy, (arguments, heavy)
"""


def test_help_list_and_table_import_nothing_heavy(bench: Any) -> None:
    bench.measure("confidence", "clean")
    done = subprocess.run(
        [sys.executable, "-c", QUICK, str(bench.out)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_reader_that_has_seen_enough_gets_no_traceback() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "rrbench", "list", "rejectors"],
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    os.close(writing)
    assert done.stderr == ""
    assert done.returncode in (0, 1)


def test_the_version_is_the_one_of_pyproject(command: Any) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    answer = command("--version")
    assert (answer.code, answer.out, answer.err) == (0, f"rrbench {project['version']}\n", "")
