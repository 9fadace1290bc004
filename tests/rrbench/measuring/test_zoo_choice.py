"""Which network `--zoo` takes: the user's before the shipped one, by all settings, however these were given."""

import dataclasses
import json
import os
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

import rrbench
from rrbench import zoo
from rrbench.files.checkpoints import read_checkpoint, write_checkpoint
from rrbench.files.disk import sha256
from rrbench.files.headers import LONGEST, read_facts
from rrbench.frameworks.pgd_at import PgdAt
from rrbench.rows.row import read_rows
from spoken import lines

RUN = ["run", "--rejectors", "confidence", "--attacks", "clean", "--limit", 50, "--device", "cpu"]
# What is chosen need not be good, and is chosen by any recipe: few steps, and the epoch chosen by a weak attack.
BRIEF = """
[dataset.digits.recipe]
epochs = 1
batch = 512
choose_by = "pgd1"
"""


@pytest.fixture
def packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder that `--zoo` means; it is empty."""
    monkeypatch.setenv("RRBENCH_ZOO", str(tmp_path / "zoo"))
    return tmp_path / "zoo"


def configured(path: Path, text: str) -> list[object]:
    """Write a configuration and return its option."""
    path.write_text(text)
    return ["--config", path]


def brief(folder: Path) -> list[object]:
    return configured(folder / "brief.toml", BRIEF)


def one_step(folder: Path, recipe: str = BRIEF) -> list[object]:
    """Return the option of a configuration that gives PGD-AT one step."""
    return configured(folder / "one-step.toml", f"{recipe}[framework.pgd-at]\nsteps = 1\n")


def train(command: Any, packed: Path, *more: object) -> str:
    """Train for one epoch, pack, and return the SHA-256."""
    before = {entry.sha256 for entry in zoo.entries(packed)}
    config = [] if "--config" in more else brief(packed.parent)
    answer = command("train", "--out", packed.parent / "training", "--pack", packed, *config, *more)
    assert answer.code == 0, answer.err
    (made,) = {entry.sha256 for entry in zoo.entries(packed)} - before
    return made


def measured_on(folder: Path) -> list[str]:
    return [row.checkpoint_sha256 for row in read_rows(folder)]


def test_a_network_of_the_user_comes_before_the_shipped_one_by_any_recipe(
    command: Any, packed: Path, tmp_path: Path
) -> None:
    assert "0  shipped\n" in command(*RUN, "--zoo", "--dry-run", "--out", tmp_path / "runs").out
    made = train(command, packed)
    assert "0  there\n" in command(*RUN, "--zoo", "--dry-run", "--out", tmp_path / "runs").out
    answer = command(*RUN, "--zoo", "--out", tmp_path / "runs")
    assert answer.code == 0, answer.err
    assert measured_on(tmp_path / "runs") == [made]
    assert "shipped with" not in answer.err


def test_a_shipped_network_in_place_of_the_user_s_is_said_with_the_reason(
    command: Any, packed: Path, tmp_path: Path
) -> None:
    train(command, packed, *one_step(tmp_path))
    answer = command(*RUN, "--zoo", "--out", tmp_path / "runs")
    (shipped,) = [entry for entry in zoo.entries(zoo.EMBEDDED) if entry.trained_as == "pgd-at"]
    assert measured_on(tmp_path / "runs") == [shipped.sha256]
    told = f"shipped with rrbench, as {packed} has none that fits: pgd-at (the one there was trained with steps=1)"
    assert [line for line in lines(answer.err) if line.startswith("shipped")] == [told]
    answer = command(*RUN, "--zoo", "--frameworks", "trades", "--out", tmp_path / "runs")
    assert f"shipped with rrbench, as {packed} has none that fits: trades" in lines(answer.err)


def test_a_refusal_says_how_the_shipped_network_was_trained_and_a_run_that_trains_does_not(
    command: Any, packed: Path, tmp_path: Path
) -> None:
    two_steps = ["--frameworks", "pgd-at(steps=2)"]
    answer = command(*RUN, *two_steps, "--zoo", "--out", tmp_path / "runs")
    assert answer.code == 2
    absent = "no checkpoint pgd-at(steps=2) of digits (small-cnn, seed 0) in"
    shipped = "the one that ships with rrbench was trained with steps=7"
    assert absent in lines(answer.err)[-1]
    assert lines(answer.err)[-1].endswith(f"; {shipped}")
    train(command, packed, *one_step(tmp_path))
    answer = command(*RUN, *two_steps, "--zoo", "--out", tmp_path / "runs")
    assert lines(answer.err)[-1] == f"rrbench: {absent} {packed}; the one there was trained with steps=1; {shipped}"
    answer = command(*RUN, *two_steps, *brief(tmp_path), "--out", tmp_path / "runs")
    assert answer.code == 0
    assert "ships with" not in answer.err
    assert "shipped with" not in answer.err


@pytest.mark.parametrize("is_packed_typed", [False, True])
def test_settings_of_a_file_and_typed_ones_name_the_same_network(
    is_packed_typed: bool, command: Any, packed: Path, tmp_path: Path
) -> None:
    of_a_file, name = one_step(tmp_path), "pgd-at(steps=1)"
    made = train(command, packed, *(["--framework", name] if is_packed_typed else of_a_file))
    asked = of_a_file if is_packed_typed else ["--frameworks", name]
    answer = command(*RUN, *asked, "--zoo", "--out", tmp_path / "runs")
    assert answer.code == 0, answer.err
    assert measured_on(tmp_path / "runs") == [made]
    answer = command("verify", tmp_path / "runs", "--rerun")
    assert (answer.code, "1 confirmed" in answer.out) == (0, True), answer.out


def test_a_network_of_a_later_revision_is_found_by_any_recipe_and_one_of_an_earlier_not(
    command: Any, packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PgdAt, "revision", 2)
    made = train(command, packed)
    assert command(*RUN, "--zoo", "--out", tmp_path / "runs").code == 0
    assert measured_on(tmp_path / "runs") == [made]
    monkeypatch.setattr(PgdAt, "revision", 3)
    answer = command(*RUN, "--zoo", "--out", tmp_path / "runs")
    assert answer.code == 2
    assert "the one there was trained by other code or on other data" in lines(answer.err)[-1]
    (entry,) = zoo.entries(packed)
    (packed / entry.file).write_bytes(b"damaged: its revision cannot be told")
    answer = command(*RUN, "--zoo", "--out", tmp_path / "runs")
    assert answer.code == 2
    assert "no checkpoint pgd-at" in lines(answer.err)[-1]


def test_the_list_says_what_tells_networks_of_one_name_apart_and_no_more(
    command: Any, packed: Path, tmp_path: Path
) -> None:
    assert "trained with" not in command("list", "zoo").out
    train(command, packed, *one_step(tmp_path, recipe="[recipe]\nepochs = 1\n"))
    head, _, *listed = command("list", "zoo").out.splitlines()
    ends = {line.split()[0]: line[head.index("trained with") :] for line in listed}
    (entry,) = zoo.entries(packed)
    assert {name: end for name, end in ends.items() if end} == {
        "digits-small-cnn-pgd-at-15epochs-seed0.safetensors": "steps=7",
        entry.file: "steps=1",
    }


def test_a_network_with_a_rejector_of_other_settings_is_another_network(
    command: Any, packed: Path, tmp_path: Path
) -> None:
    train(command, packed, "--rejector", "rr(form=head)")
    rectified = [word if word != "confidence" else "rr" for word in RUN]
    answer = command(*rectified, "--zoo", "--out", tmp_path / "runs")
    (shipped,) = [entry for entry in zoo.entries(zoo.EMBEDDED) if entry.trained_as == "pgd-at+rr"]
    assert measured_on(tmp_path / "runs") == [shipped.sha256]
    assert f"shipped with rrbench, as {packed} has none that fits: pgd-at+rr" in lines(answer.err)


def test_a_file_that_cannot_be_read_is_refused_by_its_name_and_not_taken_for_another(
    command: Any, packed: Path, tmp_path: Path
) -> None:
    train(command, packed)
    (entry,) = zoo.entries(packed)
    (packed / entry.file).write_bytes(b"damaged")
    answer = command(*RUN, "--zoo", "--out", tmp_path / "runs")
    assert entry.file in answer.err
    answer = command(*RUN, "--frameworks", "pgd-at(steps=2)", "--zoo", "--out", tmp_path / "runs")
    assert "no checkpoint pgd-at(steps=2)" in lines(answer.err)[-1]


@pytest.mark.parametrize("name", ["framework", "training_key"])
def test_a_network_whose_header_leaves_out_how_it_was_trained_passes_for_no_training(
    name: str, command: Any, packed: Path, tmp_path: Path
) -> None:
    train(command, packed)
    (entry,) = zoo.entries(packed)
    checkpoint = read_checkpoint(packed / entry.file)
    facts = {key: value for key, value in checkpoint.facts.items() if key not in (name, "packed")}
    write_checkpoint(checkpoint.path, checkpoint.tensors, facts)
    zoo.write_index(packed, [dataclasses.replace(entry, sha256=sha256(checkpoint.path), epochs=99)])
    told = f"checkpoint {checkpoint.path} does not say how it was trained: its header lacks {name}"
    asked = one_step(tmp_path) if name == "framework" else []
    answer = command(*RUN, *asked, "--zoo", "--out", tmp_path / "runs")
    assert (answer.code, lines(answer.err)[-1]) == (2, f"rrbench: {told}")
    with pytest.raises(rrbench.UseError, match=re.escape(told)):
        rrbench.load_model("digits", "pgd-at")  # it takes the longest training


def test_shipped_networks_may_be_named_as_the_zoo_and_are_then_as_asked(
    command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RRBENCH_ZOO", str(zoo.EMBEDDED))
    answer = command(*RUN, "--zoo", "--out", tmp_path / "runs")
    assert answer.code == 0
    assert "none that fits" not in answer.err


def test_a_header_too_long_and_a_pipe_are_no_headers(tmp_path: Path) -> None:
    text = json.dumps({"__metadata__": {"rrbench": json.dumps({"seed": 3})}})
    path = tmp_path / "network.safetensors"
    for size, facts in ((len(text), {"seed": 3}), (LONGEST, {"seed": 3}), (LONGEST + 1, {})):
        path.write_bytes(size.to_bytes(8, "little") + text.ljust(size).encode())
        assert read_facts(path) == facts
    os.mkfifo(tmp_path / "pipe")
    assert read_facts(tmp_path / "pipe") == {}


@pytest.mark.parametrize(
    ("given", "prefix"),
    [
        (None, ""),
        ("results/zoo", ""),
        ("packed", "RRBENCH_ZOO=packed "),
        ("../packed/", "RRBENCH_ZOO=../packed "),
        ("my zoo", "RRBENCH_ZOO='my zoo' "),
        ("{here}/packed", "RRBENCH_ZOO=packed "),
        ("{here}/results/zoo", ""),
        ("/home/somebody/results/zoo", "RRBENCH_ZOO=zoo "),  # not the usual one
        (os.fsdecode(b"bad\xffname"), "RRBENCH_ZOO='bad\N{REPLACEMENT CHARACTER}name' "),
    ],
)
def test_a_command_is_told_with_its_zoo_and_without_the_folders_above(
    given: str | None, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RRBENCH_ZOO", raising=False)
    if given is not None:
        monkeypatch.setenv("RRBENCH_ZOO", given.format(here=tmp_path))
    assert zoo.zoo_prefix() == prefix


def test_the_manifest_holds_a_command_that_finds_the_same_zoo_again(
    command: Any, packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = train(command, packed)
    monkeypatch.chdir(tmp_path)
    for more in ([], ["--zoo"]):
        assert command(*RUN, *more, "--out", "runs").code == 0
    plain, told = [run["command"] for run in json.loads(Path("runs/manifest.json").read_text())["runs"]]
    assert plain.startswith("rrbench run ")
    monkeypatch.delenv("RRBENCH_ZOO")
    shutil.rmtree("runs")
    setting, _, *words = shlex.split(told)
    monkeypatch.setenv(*setting.split("=", 1))
    assert command(*words).code == 0
    assert measured_on(Path("runs")) == [made]
