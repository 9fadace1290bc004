"""Packed weights: how far rounding may move them, the same bits on every reading, and a zoo of them."""

import dataclasses
import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from rrbench import zoo
from rrbench.datasets.cifar import Cifar10
from rrbench.errors import UseError
from rrbench.files.checkpoints import read_checkpoint, write_checkpoint
from rrbench.files.disk import sha256
from rrbench.files.packing import SCALE, pack, unpack
from rrbench.measuring import pack as pack_module
from rrbench.measuring.pack import enter, file_name, free_name
from rrbench.networks.preact_resnet import PreActResNet18
from rrbench.planning.plan import Request, make_plan
from rrbench.plugins.config import load_preset
from rrbench.rows.row import read_rows
from rrbench.training import train
from rrbench.training.train import describe_training
from rrbench_baselines.rr import RR

# What is packed need not be good: few steps, and the epoch chosen by a weak attack.
BRIEF = """
[dataset.digits.recipe]
batch = 512
choose_by = "pgd1"
"""


def weights() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    kernel = torch.randn(64, 32, 3, 3, generator=generator) * torch.logspace(-3, 1, 64).view(-1, 1, 1, 1)
    kernel[5] = 0
    return {"kernel": kernel, "bias": torch.randn(64, generator=generator), "count": torch.tensor(7)}


def test_a_weight_moves_by_half_a_step_of_its_own_channel_at_most_and_the_largest_not_at_all() -> None:
    before, after = weights()["kernel"], unpack(pack(weights()))["kernel"]
    largest = before.flatten(1).abs().amax(1)
    moved = (after - before).flatten(1).abs().amax(1)
    assert bool((moved <= largest / 127 / 2 * 1.0001).all())
    torch.testing.assert_close(after.flatten(1).abs().amax(1), largest)
    assert torch.equal(after[5], torch.zeros(32, 3, 3))


def test_small_tensors_and_counters_stay_and_nothing_is_added() -> None:
    packed = pack(weights())
    assert packed["kernel"].dtype == torch.int8
    assert set(packed) == {"kernel", "kernel" + SCALE, "bias", "count"}
    back = unpack(packed)
    assert list(back) == ["kernel", "bias", "count"]
    assert torch.equal(back["bias"], weights()["bias"])
    assert torch.equal(back["count"], weights()["count"])


def test_packing_what_was_packed_changes_no_bit() -> None:
    once = unpack(pack(weights()))
    again = unpack(pack(once))
    torch.testing.assert_close(again["kernel"], once["kernel"], rtol=1e-6, atol=0)


def test_a_packed_resnet_is_under_twelve_megabytes_and_reads_back_to_the_same_bits(tmp_path: Path) -> None:
    network = PreActResNet18().build(Cifar10.info, RR())
    tensors = pack(network.state_dict())
    write_checkpoint(tmp_path / "net.safetensors", tensors, {"packed": "int8"})
    assert (tmp_path / "net.safetensors").stat().st_size < 12_000_000
    read = read_checkpoint(tmp_path / "net.safetensors").tensors
    expected = unpack(tensors)
    assert read.keys() == expected.keys() == network.state_dict().keys()
    assert all(torch.equal(read[name], expected[name]) for name in expected)


def test_a_zoo_is_packed_measured_and_run_from(tmp_path: Path, command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = tmp_path / "zoo"
    (tmp_path / "brief.toml").write_text(BRIEF)
    options = ["--epochs", 1, "--config", tmp_path / "brief.toml", "--out", tmp_path / "training"]
    options += ["--pack", packed, "--device", "cpu"]
    answer = command("train", "--framework", "standard", "--rejector", "rr,confidence", *options)
    assert answer.code == 0, answer.err
    assert answer.out.count("packed: clean accuracy") == 2
    listed = {entry.trained_as: entry for entry in zoo.entries(packed)}
    assert set(listed) == {"standard", "standard+rr"}
    for entry in listed.values():
        assert sha256(packed / entry.file) == entry.sha256
        assert entry.recipe["epochs"] == entry.epochs == len(entry.log) == 1
        assert entry.log[0].startswith("epoch 1, loss ")
        assert entry.command.startswith("rrbench ")
        assert any(tensor.dtype == torch.int8 for tensor in load_file(packed / entry.file).values())
    monkeypatch.setenv("RRBENCH_ZOO", str(packed))
    out = packed.parent / "runs"
    answer = command(
        "run", "--zoo", "--frameworks", "standard", "--rejectors", "rr,confidence", "--attacks", "pgd1", "--out", out
    )
    assert answer.code == 0, answer.err
    for path in (out / "cells").glob("*.json"):
        row = json.loads(path.read_text())["row"]
        entry = listed[row["trained_as"]]
        assert row["checkpoint_sha256"] == entry.sha256
        assert json.loads(row["settings"])["recipe"]["epochs"] == 1, "the row tells of the weights it was measured on"
        if row["attack"] == "clean":
            assert row["acc_all"] == pytest.approx(entry.clean_accuracy, abs=1e-3)
    assert command("verify", out).code == 0
    before = (packed / "index.json").read_bytes()
    damaged = packed / listed["standard"].file
    content = damaged.read_bytes()
    damaged.write_bytes(content[:1000])
    measured: list[str] = []
    measure = train.accuracies

    def noted(training: Any, *given: Any) -> dict[str, float]:
        measured.append(training.trained_as)
        return measure(training, *given)

    monkeypatch.setattr(pack_module, "accuracies", noted)
    assert command("train", "--framework", "standard", "--rejector", "rr,confidence", *options).code == 0
    assert (packed / "index.json").read_bytes() == before, "packed again it takes the place of itself"
    assert damaged.read_bytes() == content
    assert measured == ["standard"], "what is packed already is not measured again"
    (tmp_path / "file").write_bytes(b"no folder")
    options[options.index("--pack") + 1] = tmp_path / "file"
    answer = command("train", "--framework", "standard", "--rejector", "rr,confidence", *options)
    assert answer.code == 1
    assert answer.err.splitlines()[-1].count("but not packed: cannot write to") == 2


@pytest.mark.parametrize(
    ("framework", "rejector", "packed_with", "missing", "told"),
    [
        ("pgd-at", "confidence", ("steps = 1", "steps = 3"), "steps = 2", "steps=1 or with steps=3"),
        # Left out of keys where they have the default.
        ("carl", "carl", ('lesson = "clean"', ""), 'climbs = "margin"', "climbs=abstain-loss, lesson=clean"),
    ],
)
def test_networks_that_only_a_preset_s_setting_tells_apart_are_both_kept_and_found_by_it(
    framework: str,
    rejector: str,
    packed_with: tuple[str, str],
    missing: str,
    told: str,
    tmp_path: Path,
    command: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    packed, made = tmp_path / "zoo", dict[str, str]()
    monkeypatch.setenv("RRBENCH_ZOO", str(packed))

    def config(setting: str) -> Path:
        path = tmp_path / "settings.toml"
        path.write_text(f"[framework.{framework}]\n{setting}\n{BRIEF}")
        return path

    train_it = [
        "train",
        "--framework",
        framework,
        "--rejector",
        rejector,
        "--epochs",
        1,
        "--out",
        tmp_path / "training",
    ]
    for setting in packed_with:
        assert command(*train_it, "--config", config(setting), "--pack", packed, "--device", "cpu").code == 0
        (made[setting],) = {entry.sha256 for entry in zoo.entries(packed)} - {*made.values()}
    assert len(zoo.entries(packed)) == 2
    run = ["run", "--zoo", "--frameworks", framework, "--rejectors", rejector, "--attacks", "clean", "--limit", 50]
    for number, (setting, digest) in enumerate(made.items()):
        out = tmp_path / f"runs{number}"
        assert command(*run, "--config", config(setting), "--out", out).code == 0
        assert [row.checkpoint_sha256 for row in read_rows(out)] == [digest]
    answer = command(*run, "--config", config(missing), "--out", tmp_path / "no-runs")
    assert answer.code == 2
    said = answer.err.splitlines()[-1]
    assert f"no checkpoint {framework} of digits (small-cnn, seed 0) in {packed}; those there were trained with" in said
    assert told in said


def test_a_network_that_cannot_be_read_makes_room_only_for_its_own_training_and_is_taken_last(
    tmp_path: Path, command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = tmp_path / "zoo"
    monkeypatch.setenv("RRBENCH_ZOO", str(packed))
    options = ["--epochs", 1, "--out", tmp_path / "training", "--pack", packed, "--device", "cpu"]
    settings = {steps: tmp_path / f"{steps}.toml" for steps in (1, 2)}
    for steps, path in settings.items():
        path.write_text(f"[framework.pgd-at]\nsteps = {steps}\n{BRIEF}")
    assert command("train", "--config", settings[1], *options).code == 0
    (first,) = zoo.entries(packed)
    whole = (packed / first.file).read_bytes()
    (packed / first.file).write_bytes(whole[:1000])
    run = ["run", "--zoo", "--rejectors", "confidence", "--attacks", "clean", "--limit", 50, "--out", tmp_path / "runs"]
    answer = command(*run, "--config", settings[1])
    assert answer.code == 2
    assert "cannot be read" in answer.err.splitlines()[-1]
    assert command("train", "--config", settings[2], *options).code == 0
    assert len(zoo.entries(packed)) == 2, "another network is no reason to lose it"
    assert command(*run, "--config", settings[2]).code == 0
    assert command("train", "--config", settings[1], *options).code == 0
    assert (packed / first.file).read_bytes() == whole


def test_a_fraction_among_the_settings_makes_no_folder() -> None:
    plan = make_plan(Request(["rr"], ["clean"], frameworks=["pgd-at(step=1/20)"]), load_preset("quick"))
    (training,) = plan.checkpoints()
    assert file_name(training) == "digits-small-cnn-pgd-at-step-1of20--rr-15epochs-seed0.safetensors"


@pytest.mark.parametrize("rejector", ["rr", "rr(form=head)", "ebd(m_in=-5,m_out=-23)", "snet(coverage=0.8)"])
def test_a_packed_file_has_a_name_that_every_file_store_takes(rejector: str) -> None:
    plan = make_plan(Request([rejector], ["clean"]), load_preset("quick"))
    (training,) = plan.checkpoints()
    assert re.fullmatch(r"[A-Za-z0-9._-]+", file_name(training))


def test_settings_that_differ_in_sign_alone_have_files_of_their_own() -> None:
    plan = make_plan(Request(["ebd(m_in=5,m_out=-9)", "ebd(m_in=-5,m_out=-9)"], ["clean"]), load_preset("quick"))
    assert len({file_name(training) for training in plan.checkpoints()}) == 2


def test_an_index_that_names_a_file_elsewhere_is_refused_and_the_file_stays(tmp_path: Path) -> None:
    entry = zoo.Entry("../precious", "", "", "digits", "small-cnn", "pgd-at+rr", 0, 15, 99.0, 80.0, "", log=[])
    (tmp_path.parent / "precious").write_bytes(b"not of this zoo")
    zoo.write_index(tmp_path, [entry])
    with pytest.raises(UseError, match=r"names '../precious', no file beside it"):
        enter(tmp_path, dataclasses.replace(entry, file="pgd-at-rr.safetensors"))
    assert (tmp_path.parent / "precious").exists()


def test_a_training_whose_name_another_has_already_is_told_by_its_key(tmp_path: Path) -> None:
    (training,) = make_plan(Request(["rr"], ["clean"]), load_preset("quick")).checkpoints()
    name = file_name(training)
    assert free_name(tmp_path, training) == name
    other = zoo.Entry(name, "", "", "digits", "small-cnn", "pgd-at-rr", 0, 15, 99.0, 80.0, "")
    enter(tmp_path, other)
    assert free_name(tmp_path, training) == name.replace(".safetensors", f"-{training.key[:8]}.safetensors")
    recipe = describe_training(training)["recipe"]
    assert isinstance(recipe, dict)
    enter(tmp_path, dataclasses.replace(other, trained_as="pgd-at+rr", recipe={**recipe, "batch": 7}))
    assert free_name(tmp_path, training) != name
    enter(tmp_path, dataclasses.replace(other, trained_as="pgd-at+rr", recipe=recipe))
    assert free_name(tmp_path, training) == name


def test_a_training_packed_anew_replaces_its_file_of_an_older_name(tmp_path: Path) -> None:
    older = zoo.Entry(
        "pgd-at+rr.safetensors", "", "", "digits", "small-cnn", "pgd-at+rr", 0, 15, 99.0, 80.0, "", log=[]
    )
    for name in ("pgd-at+rr.safetensors", "other.safetensors"):
        (tmp_path / name).write_bytes(b"weights")
    other = dataclasses.replace(older, file="other.safetensors", seed=1)
    enter(tmp_path, older)
    enter(tmp_path, other)
    newer = dataclasses.replace(older, file="pgd-at-rr.safetensors")
    enter(tmp_path, newer)
    assert zoo.entries(tmp_path) == [other, newer]
    of_another_recipe = dataclasses.replace(newer, file="other-recipe.safetensors", recipe={"batch": 512})
    enter(tmp_path, dataclasses.replace(newer, recipe={"batch": 128}))
    enter(tmp_path, of_another_recipe)
    assert [entry.recipe for entry in zoo.entries(tmp_path)] == [{"batch": 512}, {}, {"batch": 128}]
    assert not (tmp_path / "pgd-at+rr.safetensors").exists()
    assert (tmp_path / "other.safetensors").exists()


def test_entries_of_several_at_once_are_all_kept_and_one_of_the_same_file_takes_its_place(tmp_path: Path) -> None:
    made = [
        zoo.Entry(f"{index:02}", "", "", "digits", "small-cnn", "rr", index, 1, 99.0, 80.0, "", log=["epoch 1"])
        for index in range(40)
    ]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda entry: enter(tmp_path, entry), made))
    assert zoo.entries(tmp_path) == made
    again = dataclasses.replace(made[7], clean_accuracy=50.0)
    enter(tmp_path, again)
    assert zoo.entries(tmp_path) == [*made[:7], again, *made[8:]]


def unkept(digest: str, **changes: Any) -> zoo.Entry:
    """A line of an index for a network that was not kept."""
    line = zoo.Entry(
        "", digest, "key", "digits", "small-cnn", "pgd-at", 0, 1, 99.0, 80.0, "", {"epochs": 1}, ["epoch 1"]
    )
    return dataclasses.replace(line, **changes)


def test_networks_that_are_not_kept_are_listed_beside_kept_ones_and_never_found(tmp_path: Path) -> None:
    kept = unkept("aa", file="kept.safetensors")
    (tmp_path / kept.file).write_bytes(b"weights")
    for entry in (unkept("cc"), kept, unkept("bb"), unkept("cc", clean_accuracy=50.0)):
        enter(tmp_path, entry)
    listed = [kept, unkept("bb"), unkept("cc", clean_accuracy=50.0)]
    assert zoo.entries(tmp_path) == listed, "one line each, the last word on it"
    assert (tmp_path / kept.file).exists()
    enter(tmp_path, unkept("aa"))
    assert zoo.entries(tmp_path) == listed, "what is kept stays so"
    assert zoo.kept(tmp_path, "digits", "small-cnn", 0) == [kept]
    (tmp_path / kept.file).unlink()
    assert zoo.kept(tmp_path, "digits", "small-cnn", 0) == []
    enter(tmp_path, unkept("bb", file="again.safetensors"))
    assert [(entry.file, entry.sha256) for entry in zoo.entries(tmp_path)] == [("again.safetensors", "bb"), ("", "cc")]


@pytest.mark.parametrize("lacking", [{"sha256": ""}, {"recipe": {}}, {"log": []}])
def test_a_network_that_is_not_kept_must_have_its_hash_recipe_and_log(tmp_path: Path, lacking: dict[str, Any]) -> None:
    zoo.write_index(tmp_path, [unkept("bb", **lacking)])
    with pytest.raises(UseError, match="pgd-at is listed without a file, and without its hash, recipe or log"):
        zoo.entries(tmp_path)


def test_training_lists_a_network_without_weights_and_rows_on_it_are_recomputed_only(
    tmp_path: Path, command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed, out = tmp_path / "zoo", tmp_path / "runs"
    monkeypatch.setenv("RRBENCH_ZOO", str(listed))
    (tmp_path / "one.toml").write_text("[dataset.digits.recipe]\nepochs = 1\n")
    options = ["--config", tmp_path / "one.toml", "--out", out, "--device", "cpu"]
    answer = command("train", "--framework", "standard", *options, "--list", listed)
    assert answer.code == 0, answer.err
    (entry,) = zoo.entries(listed)
    assert (entry.file, entry.trained_as, entry.epochs, len(entry.log)) == ("", "standard", 1, 1)
    assert entry.recipe["epochs"] == 1
    assert "(not kept)" in command("list", "zoo").out
    run = ["--rejectors", "confidence", "--attacks", "clean", "--frameworks", "standard", "--retrain"]
    assert command("run", *run, *options).code == 0
    assert command("verify", out).out == "1 cell: 1 confirmed, 0 recomputed only, 0 not checkable; all confirmed\n"
    for path in (out / "checkpoints").iterdir():
        assert sha256(path) == entry.sha256 or path.name.endswith(".last.safetensors")
        path.unlink()
    answer = command("verify", out)
    assert answer.code == 0
    assert answer.out == "1 cell: 0 confirmed, 1 recomputed only, 0 not checkable; nothing found wrong\n"
