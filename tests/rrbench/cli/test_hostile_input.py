"""Input that nobody should give: numbers without end, files nested without end, names that cannot be: one line each."""

import dataclasses
import errno
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from finished_run import forge_arrays, one_cell, one_file, verify
from rrbench import cli
from rrbench.errors import UseError, brief, one_line
from rrbench.files.disk import parse_json, parse_toml
from rrbench.measuring.store import Store
from rrbench.numbers import read_fraction, read_whole
from rrbench.progress import Lines
from rrbench.rows.record import read_cell
from rrbench.rows.row import ResultRow, read_rows, row_of_json, to_csv
from rrbench.rows.scores import ATTACKS, CLEAN, DATA, SCORES, read_scores
from small_run import small_run

DEEP = 20_000
LONG = "a" * 5000
ROW = ResultRow("digits", "small-cnn", "pgd-at", "pgd-at", "rr", "pgd5", "linf", "3/20", 0, "quick", 360, acc_all=98.0)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run; not to be changed."""
    return small_run(tmp_path_factory.mktemp("measured"))


@pytest.fixture
def folder(measured: Path, tmp_path: Path) -> Path:
    """The same, of one's own."""
    return Path(shutil.copytree(measured, tmp_path / "runs"))


def refused(answer: Any) -> str:
    """Return the one line that a refusal is."""
    assert (answer.code, answer.out) == (2, "")
    (line,) = [line for line in answer.err.splitlines() if not line.startswith("rrbench: warning: plugin")]
    assert line.startswith("rrbench: ")
    assert len(line) < 500
    return str(line)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8/255", Fraction(8, 255)),
        (" 1e-3 ", Fraction(1, 1000)),
        ("-0.5", Fraction(-1, 2)),
        ("0", Fraction(0)),
        ("0e5", Fraction(0)),
        ("1e300", Fraction(10**300)),
        ("1e-300", Fraction(1, 10**300)),
        (3, Fraction(3)),
        (Fraction(1, 3), Fraction(1, 3)),
    ],
)
def test_a_fraction_is_read_exactly(text: str | int, value: Fraction) -> None:
    assert read_fraction(text) == value


@pytest.mark.parametrize(
    "text",
    [
        *("1e99999999", "1e-99999999", "-1E+99999999", "1e309", "1e-400", "0e99999999", "1/0", "x", "", "nan", "inf"),
        *("1e", "9" * 5000, "1/" + "9" * 5000, "0." + "0" * 5000 + "1", 10**400, Fraction(1, 10**400)),
    ],
    ids=lambda text: brief(text, 20),
)
def test_a_fraction_beyond_what_can_be_computed_with_is_refused_at_once(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_fraction(text)


def test_whole_numbers_are_read_within_64_bits() -> None:
    assert [read_whole(text) for text in ("-3", " 7 ", 2**63 - 1, str(-(2**63)))] == [-3, 7, 2**63 - 1, -(2**63)]
    for text in (2**63, str(2**63), -(2**63) - 1, "9" * 5000, "1e3", "1.0", ""):
        with pytest.raises(ValueError, match=r"."):
            read_whole(text)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--budgets", "linf:1e-99999999"], "radius of budget 'linf:1e-99999999'"),
        (["--budgets", f"linf:{'9' * 5000}"], "radius of budget"),
        (["--attacks", "pgd5(step=1e99999999)"], "'step' cannot be '1e99999999'"),
        (["--attacks", "pgd5(step=1/1e99999999)"], "'step' cannot be"),
        (["--attacks", f"pgd{10**400}"], "'steps' cannot be"),
        (["--attacks", f"pgd{'9' * 5000}"], "'steps' cannot be"),
        (["--attacks", LONG], "unknown attack"),
        (["--rejectors", "rr(tau=1e99999999)"], "'tau' cannot be"),
        (["--rejectors", "rr(tau=1e99999999/2)"], "'tau' cannot be"),
        (["--rejectors", f"rr({'(' * 5000}{')' * 5000})"], "'score' cannot be"),
        (["--frameworks", "pgd-at(steps=-1)"], "steps must be at least 0, not -1"),
        (["--frameworks", "pgd-at(steps='x')"], "'steps' cannot be"),
        (["--frameworks", "pgd-at(eps=1e-99999999)"], "'eps' cannot be"),
        (["--seed", "abc"], "Invalid value for '--seed': 'abc'"),
        (["--seed", "a\nb"], r"Invalid value for '--seed': 'a\nb'"),
        (["--seed", str(10**400)], "seed"),
        (["--seed", "9" * 5000], "seed"),
        (["--seeds", f"0,{10**400}"], "seed"),
        (["--limit", str(10**400)], "limit"),
        (["--every", str(10**400)], "every"),
        (["--workers", str(10**400)], "--workers"),
        (["--stop-after", f"{'9' * 5000}h"], "--stop-after"),
        (["--config", LONG], "cannot read the configuration"),
        (["--device", "privateuseone"], "device 'privateuseone' cannot be used"),
        (["--device", "privateuseone", "--engine", "ray"], "device"),
        (["--device", "meta", "--engine", "ray"], "device"),
        (["--device", LONG], "device"),
        (["--nonsense"], "--nonsense"),
    ],
    ids=lambda value: brief(value, 60),
)
def test_hostile_options_of_run_are_one_line(command: Any, tmp_path: Path, arguments: list[str], words: str) -> None:
    assert words in refused(command("run", *arguments, "--out", tmp_path / "runs", "--dry-run"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "kind", ["cpu", "cuda", "xpu", "mps", "hpu", "mtia", "privateuseone", "vulkan", "lazy", "fpga"]
)
def test_a_device_works_or_is_refused_in_one_line(command: Any, tmp_path: Path, kind: str) -> None:
    answer = command("run", "--device", kind, "--dry-run", "--out", tmp_path / "runs")
    assert answer.code == 0 or "device" in refused(answer)


@pytest.mark.parametrize(
    "place", ["run --out", "table", "verify", "report", "board", "list zoo", "figure --paper figure1"]
)
def test_a_name_that_is_no_utf8_or_too_long_is_one_line(
    command: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, place: str
) -> None:
    monkeypatch.chdir(tmp_path)
    short = ["--rejectors", "confidence", "--attacks", "clean", "--limit", "5"] if "run" in place else []
    monkeypatch.setenv("RRBENCH_ZOO", LONG)
    if place != "list zoo":
        line = refused(command(*place.split(), os.fsdecode(b"bad\xffname"), *short))
        assert line == r"rrbench: 'bad\xffname' is not UTF-8"
        place += f" {LONG}"
    assert "name too long" in refused(command(*place.split(), *short)).lower()
    assert list(tmp_path.iterdir()) == []


CONFIGS = {
    "arrays": ("a = " + "[" * DEEP + "]" * DEEP, "nested"),
    "tables": ("[dataset.digits" + ".a" * DEEP + "]", "nested"),
    "settings": ("[attack.pgd.steps" + ".a" * 90 + "]", "nested"),
    "dotted": ("a" + ".a" * DEEP + " = 1", "nested"),
    "digits": ("[attack.pgd]\nsteps = " + "9" * 5000, "not valid TOML"),
    "hexadecimal": ("[attack.pgd]\nsteps = 0x" + "f" * 5000, "'steps' cannot be"),
    "10^400": (f"[attack.pgd]\nsteps = {10**400}", "'steps' cannot be"),
    "rate": (f"[recipe]\nlearning_rate = {10**400}", "learning_rate cannot be"),
    "exponent": ('[attack.pgd]\nstep = "1e99999999"', "'step' cannot be '1e99999999'"),
    "step of the data": ('[dataset.digits.step]\nlinf = "1e-99999999"', "linf cannot be '1e-99999999'"),
    "budget": ('[dataset.digits]\nbudgets = ["linf:1e-99999999"]', "radius of budget"),
    "unused": ('[framework.trades]\nsteps = "x"', "'steps' cannot be 'x'"),
    "below": ("[framework.pgd-at]\nsteps = -1", "steps must be at least 0"),
    "surrogate": ("[run]\ndataset = '\ud800'", "cannot read"),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_hostile_configuration_is_one_line(command: Any, tmp_path: Path, name: str) -> None:
    text, words = CONFIGS[name]
    path = tmp_path / "hostile.toml"
    path.write_bytes(text.encode(errors="surrogatepass"))
    assert words in refused(command("run", "--config", path, "--dry-run", "--out", tmp_path / "runs"))


def test_texts_nested_deep_are_refused_and_those_within_reason_read() -> None:
    assert parse_json("[" * 40 + "]" * 40)
    for text in ("[" * DEEP + "]" * DEEP, '{"a":' * DEEP + "1" + "}" * DEEP, "[" * 60 + "]" * 60):
        with pytest.raises(ValueError, match="nested"):
            parse_json(text)
    with pytest.raises(ValueError, match=r"."):
        parse_json("9" * 5000)
    with pytest.raises(ValueError, match="64 bits"):
        parse_json(str(10**30))
    with pytest.raises(ValueError, match="401 letters"):
        parse_json(str(10**400))
    with pytest.raises(ValueError, match="nested"):
        parse_toml("a=" + "{b=" * 60 + "1" + "}" * 60)


COLUMNS: list[dict[str, Any]] = [
    {"eps": "1e-99999999"},
    {"eps": "1e99999999"},
    {"eps": "-1"},
    {"n": 10**400},
    {"seed": "9" * 5000},
    {"seconds": "nan"},
    {"acc_all": "1e99999999"},
    {"acc_all": "9" * 5000},
    {"settings": "[" * DEEP},
]


@pytest.mark.parametrize("change", COLUMNS, ids=lambda change: brief(change, 40))
@pytest.mark.parametrize("place", ["csv", "cell"])
def test_a_hostile_number_of_a_row_is_one_line(command: Any, tmp_path: Path, change: Any, place: str) -> None:
    if place == "csv":
        (tmp_path / "rows.csv").write_text(to_csv([dataclasses.replace(ROW, **change)]))
    else:
        value = {"row": dataclasses.asdict(ROW) | change, "key": "k", "attack": "a", "cell": {}, "files": {}}
        (tmp_path / "cells").mkdir()
        (tmp_path / "cells" / "k.json").write_text(json.dumps(value | {"row_sha256": ""}))
    answer = command("table" if place == "csv" else "report", tmp_path)
    if "settings" in change and place == "csv":  # says nothing, as settings that cannot be read do
        assert answer.code == 0
    elif "settings" not in change:
        assert str(tmp_path) in refused(answer)


@pytest.mark.parametrize("content", ["[" * DEEP, '{"a":' * DEEP, f'{{"key": {10**400}}}', "9" * 5000, '{"key": "', ""])
def test_a_hostile_or_cut_cell_file_is_one_line(command: Any, tmp_path: Path, content: str) -> None:
    (tmp_path / "cells").mkdir()
    path = tmp_path / "cells" / "k.json"
    path.write_text(content)
    lines = [refused(command(word, tmp_path)) for word in ("report", "board")]
    answer = command("verify", tmp_path)
    assert (answer.code, answer.err) == (1, "verifying 0 cells\n")
    lines.append(answer.out.splitlines()[0])  # one of its findings: it goes on with the other cells
    for line in lines:
        assert str(path) in line
        assert "delete it to measure the cell again" in line


@pytest.mark.parametrize("name", ["../outside.npz", "/dev/zero", "data/../../x.npz", "x", "data/a/b.npz", "\0"])
def test_a_cell_that_names_a_file_elsewhere_is_refused_before_it_is_read(folder: Path, name: str) -> None:
    path = one_cell(folder)
    value = json.loads(path.read_text())
    path.write_text(json.dumps(value | {"files": {name: "0" * 64}}))
    with pytest.raises(UseError, match="no cell file"):
        read_cell(path)


SHAPES: dict[str, tuple[str, Callable[[dict[str, Any]], object]]] = {
    "few labels": (DATA, lambda arrays: arrays.update(labels=arrays["labels"][:-1])),
    "flat logits": (ATTACKS, lambda arrays: arrays.update(logits=arrays["logits"][:, 0])),
    "no class": (ATTACKS, lambda arrays: arrays.update(logits=arrays["logits"][:, :0])),
    "few logits": (ATTACKS, lambda arrays: arrays.update(logits=arrays["logits"][1:])),
    "text": (SCORES, lambda arrays: arrays.update(certainty=arrays["certainty"].astype(str))),
    "complex": (SCORES, lambda arrays: arrays.update(certainty=arrays["certainty"] * 1j)),
    "NaN": (SCORES, lambda arrays: arrays.update(certainty=arrays["certainty"] * np.nan)),
    "thresholds": (CLEAN, lambda arrays: arrays.update(own_threshold=arrays["clean_certainty"])),
    "clean NaN": (CLEAN, lambda arrays: arrays.update(clean_certainty=arrays["clean_certainty"] * np.nan)),
    "nobody": (SCORES, lambda arrays: arrays.update(certainty=arrays["certainty"][:0])),
    "labels beyond": (DATA, lambda arrays: arrays.update(labels=arrays["labels"] + 90)),
    "labels below": (DATA, lambda arrays: arrays.update(labels=arrays["labels"] - 90)),
    "numbers for right": (CLEAN, lambda arrays: arrays.update(clean_correct=arrays["clean_correct"].astype(float))),
    "few right": (CLEAN, lambda arrays: arrays.update(apart_correct=arrays["apart_correct"][:-1])),
    "few distances": (ATTACKS, lambda arrays: arrays.update(distances=np.ones(3), reached=np.ones(2, bool))),
    "a scalar head": (ATTACKS, lambda arrays: arrays.update(head=np.float32(1))),
}


@pytest.mark.parametrize("name", SHAPES)
def test_score_files_of_wrong_shapes_with_right_hashes_are_one_line(command: Any, folder: Path, name: str) -> None:
    holder, change = SHAPES[name]
    forge_arrays(folder, one_file(folder, holder), change)
    record, _ = read_cell(one_cell(folder))
    assert Store(folder).unsound(record) == []
    with pytest.raises(UseError, match="cell"):
        read_scores(folder, record.files)
    assert "hold" in refused(command("table", folder, "--against", "confidence"))
    assert any("hold" in problem for problem in verify(folder).problems)


ENTRY = {
    "file": "a", "sha256": "0" * 64, "key": "k", "dataset": "digits", "network": "small-cnn", "trained_as": "pgd-at",
    "seed": 0, "epochs": 3, "clean_accuracy": 90.0, "robust_accuracy": 50.0, "command": "a",
}  # fmt: skip


@pytest.mark.parametrize("name", ["../net.safetensors", "/etc/passwd", "a/b.safetensors", "..", "\0"])
def test_a_zoo_that_names_a_file_elsewhere_is_refused(
    command: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    (tmp_path / "index.json").write_text(json.dumps([ENTRY | {"file": name}]))
    monkeypatch.setenv("RRBENCH_ZOO", str(tmp_path))
    assert "no zoo index" in refused(command("list", "zoo"))


@pytest.mark.parametrize(
    "changes", [{"trained_as": "pgd-at\ud800\x1b[2J"}, {"recipe": {"batch": "\ud800\x1b[2J", "drops": {"a": [1, {}]}}}]
)
def test_a_zoo_with_control_codes_is_listed_without_them(
    command: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, changes: dict[str, Any]
) -> None:
    other = ENTRY | {"recipe": {"batch": 128, "drops": []}}
    (tmp_path / "index.json").write_text(json.dumps([other, ENTRY | {"file": "b"} | changes]))
    monkeypatch.setenv("RRBENCH_ZOO", str(tmp_path))
    answer = command("list", "zoo")
    assert answer.code == 0
    assert all(line.isprintable() for line in answer.out.splitlines())
    assert r"\ud800\x1b[2J" in answer.out


def test_a_full_device_for_the_output_is_one_line() -> None:
    for words in (["list", "attacks"], ["run", "--help"], ["--help"]):
        with Path("/dev/full").open("w") as full:
            done = subprocess.run([sys.executable, "-m", "rrbench", *words], stdout=full, stderr=subprocess.PIPE)
        assert done.returncode == 2
        assert done.stderr.decode().splitlines() == ["rrbench: cannot print: No space left on device"]


def test_a_reader_that_goes_away_ends_a_command_quietly() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "rrbench", "list", "attacks"], stdout=writing, stderr=subprocess.PIPE, check=False
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, b"")


class Full(io.StringIO):
    """Takes nothing."""

    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_progress_that_cannot_be_shown_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Full())
    Lines().line("not seen")
    with pytest.raises(SystemExit, match="2"):
        cli.stop("not seen either", 2)


def test_a_message_is_one_short_line() -> None:
    assert one_line("a\nb\x1b[31m\ud800") == r"a\nb\x1b[31m\ud800"
    assert one_line("Größe: 8/255") == "Größe: 8/255"
    assert len(one_line(LONG)) < 500
    assert brief("x") == "'x'"
    assert brief(16**5000) == "an int too large to show"
    assert len(brief(LONG)) < 100


def test_a_row_of_numbers_without_end_is_refused() -> None:
    values = dataclasses.asdict(ROW)
    assert row_of_json(values) == ROW
    for change in ({"seed": 2**63}, {"gradients": 10**400}, {"acc_all": float("nan")}, {"seed": True}):
        with pytest.raises((TypeError, ValueError), match=r"."):
            row_of_json(values | change)


def test_a_csv_with_a_field_without_end_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text(to_csv([dataclasses.replace(ROW, note="x" * 200_000)]))
    with pytest.raises(UseError, match="field larger than field limit"):
        read_rows(tmp_path)


@pytest.mark.parametrize("content", ['extends = "paper"\n[run]\ndataset = {}\n', "[recipe]\nepochs = {a = 1}\n"])
def test_a_table_in_place_of_a_value_is_one_line(command: Any, tmp_path: Path, content: str) -> None:
    path = tmp_path / "a.toml"
    path.write_text(content)
    assert refused(command("run", "--config", path, "--dry-run"))
