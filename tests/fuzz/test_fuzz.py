"""Any input is accepted, or refused in one line: no traceback, no hang, no file outside its folder.

`RRBENCH_FUZZ=20000` is how many inputs to try in all; `make fuzz` does.
"""

import contextlib
import hashlib
import io
import json
import math
import os
import shutil
import struct
import warnings
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import MISSING, asdict
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from finished_run import one_cell, one_file, verify
from fuzz_box import Box, Tried, mostly, tries
from hostile_values import changed_bytes, changed_json, numbers, texts
from made_up_cifar import TinyCifar10
from rrbench import api, cli, zoo
from rrbench.datasets.check import check_batch
from rrbench.datasets.cifar10_c_made import FOLDER, Cifar10CMade, Mark
from rrbench.datasets.folder import Folder
from rrbench.datasets.npz import Npz
from rrbench.files.arrays import load_arrays
from rrbench.files.checkpoints import read_checkpoint, write_checkpoint
from rrbench.measuring.answers import has_answers, kept_of, load_answers, shrink
from rrbench.measuring.materials import check_accuracy, in_large_zoo
from rrbench.measuring.pack import enter
from rrbench.measuring.store import Store
from rrbench.names import parse_budget, radius_text, settings_of, show
from rrbench.planning.cells import Cell
from rrbench.planning.plan import Request, make_plan
from rrbench.plugins.config import load_file, load_preset
from rrbench.plugins.registry import build, choose, expand, table
from rrbench.progress import Silent
from rrbench.protocols import Calibration, DataSource, Rejector
from rrbench.report.gallery import answers
from rrbench.report.results import read_results
from rrbench.rows.scores import ATTACKS, DATA, SCORES
from rrbench.training.resume import State, Writer, resume
from rrbench.training.train import build_network
from small_run import small_run

QUICK = load_preset("quick")
KINDS = ("attack", "rejector", "framework", "network", "dataset")


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory, tried: Tried) -> Iterator[Box]:
    outer = tmp_path_factory.mktemp("outer")
    box, before = Box(outer, tried), os.getcwd()
    os.chdir(box.inner)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy's, of numbers that are no numbers; and the plugin broken on purpose
        yield box
    os.chdir(before)


@pytest.fixture(scope="module")
def sound(box: Box, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, with its checkpoints; not to be changed."""
    return small_run(tmp_path_factory.mktemp("sound"))


@pytest.fixture(scope="module")
def runs(box: Box, sound: Path) -> Path:
    """The same in the box, but for the clean cells: there is less to read."""
    runs = Path(shutil.copytree(sound, box.inner / "runs"))
    for rejector in ("confidence", "rr"):
        one_cell(runs, rejector, "clean").unlink()
    return runs


@st.composite
def calls(draw: st.DrawFn) -> tuple[str, str]:
    """A kind of plugin and a text that is nearly one of its names."""
    kind = draw(st.sampled_from(KINDS))
    name = draw(mostly(st.sampled_from(list(table(kind))), texts()))
    known = settings_of(table(kind).classes[name]) if name in table(kind).classes else {}
    defaults = [f"{key}={show(default)}" for key, (_, default) in known.items() if default is not MISSING]
    pairs = st.tuples(st.sampled_from([*known, "steps"]), numbers()).map("=".join)
    strange = pairs | st.tuples(texts(), texts()).map("=".join) | texts()
    arguments = draw(st.lists(mostly(st.sampled_from(defaults or ["ce+rcon"]), strange), max_size=2, unique=True))
    name += draw(mostly(st.sampled_from(("", "", "5", "5x2")), numbers()))
    text = f"{name}({','.join(arguments)})" if arguments else name
    garbled = changed_bytes(text.encode(errors="replace")).map(lambda raw: raw.decode("latin"))
    return kind, draw(mostly(st.just(text), garbled))


@given(call=calls())
@tries(0.25)
def test_names(box: Box, call: tuple[str, str]) -> None:
    kind, text = call
    with box.trying("names"):
        choice = choose(kind, expand(kind, text), QUICK, "digits")
        assert choose(kind, str(choice), QUICK, "digits") == choice
        for _, value in choice.settings:
            for part in value if isinstance(value, tuple) else (value,):
                assert not isinstance(part, float | Fraction) or math.isfinite(float(part))


@given(
    norm=mostly(st.sampled_from(("linf", "l2")), texts()),
    colon=mostly(st.just(":"), st.sampled_from(("", "::"))),
    radius=numbers() | st.fractions(0, 8).map(str),
)
@tries(0.2)
def test_budgets(box: Box, norm: str, colon: str, radius: str) -> None:
    with box.trying("budgets"):
        read = parse_budget(norm + colon + radius, (1, 8, 8))
        assert 0 <= float(read[1]) <= {"linf": 1, "l2": 8}[read[0]]
        assert read[1] == Fraction(radius)
        assert parse_budget(f"{read[0]}:{radius_text(read[1])}") == read


PRESET = (Path(cli.__file__).parents[1] / "plugins" / "presets" / "quick.toml").read_text()
SECTIONS = (
    *("run", "metrics", "recipe", "attack", "attack.pgd", "rejector.rr", "framework.pgd-at", "nonsense", "dataset"),
    *("dataset.digits", "dataset.digits.step", "dataset.digits.recipe", "dataset.digits.framework.pgd-at"),
)
KEYS = (
    *("optimizer", "drop_factor"),
    *("epochs", "batch", "learning_rate", "drops", "choose_by", "choose_on", "resamples", "tpr_rule", "steps", "step"),
    *("rejectors", "attacks", "dataset", "budgets", "network", "tau", "linf", "l2", "eps", "extends", "about"),
)
SOUND = ("3", "0.1", '"1/9"', '"pgd1"', '"calibration"', '["linf:1/9"]', '["rr"]', '"digits"', '"none"')


def literals() -> st.SearchStrategy[str]:
    """What may stand at the right of a TOML key."""
    plain = (
        numbers() | texts().map(json.dumps) | numbers().map(json.dumps) | st.sampled_from(("[]", "{}", "1979-05-27"))
    )
    listed = st.lists(plain, max_size=3).map(lambda items: f"[{', '.join(items)}]")
    deep = st.integers(30, 3000).map(lambda depth: "[" * depth + "]" * depth)
    return mostly(st.sampled_from(SOUND), plain | listed | deep)


@st.composite
def configurations(draw: st.DrawFn) -> bytes:
    """A preset with lines changed or added, or bytes changed."""
    lines = PRESET.splitlines()
    for _ in range(draw(st.integers(1, 2))):
        index = draw(st.integers(0, len(lines) - 1))
        key, equals, _ = lines[index].partition(" = ")
        if equals and draw(st.booleans()):
            lines[index] = f"{key} = {draw(literals())}"
        else:
            keys = st.sampled_from(KEYS) | texts().map(json.dumps) | st.integers(2, 3000).map(lambda n: "a" + ".a" * n)
            lines += [f"[{draw(st.sampled_from(SECTIONS))}]"] * draw(st.booleans())
            lines.append(f"{draw(keys)} = {draw(literals())}")
    content = "\n".join(lines).encode(errors="surrogatepass")
    return draw(mostly(st.just(content), changed_bytes(content)))


@given(content=configurations())
@tries(0.15)
def test_configurations(box: Box, content: bytes) -> None:
    path = box.inner / "config.toml"
    path.write_bytes(content)
    with box.trying("TOML"):
        make_plan(Request(), load_file(path, "quick"))


@st.composite
def tables(draw: st.DrawFn, content: bytes) -> bytes:
    """A results file with fields changed, or bytes changed."""
    lines = [line.split(",") for line in content.decode().splitlines()]
    for _ in range(draw(st.integers(1, 3))):
        line = draw(st.sampled_from(lines))
        line[draw(st.integers(0, len(line) - 1))] = draw(numbers() | texts() | texts().map(json.dumps))
    changed = "\n".join(",".join(line) for line in lines).encode(errors="surrogatepass")
    return draw(st.just(changed) | changed_bytes(changed))


@given(data=st.data())
@tries(0.12)
def test_results(box: Box, sound: Path, data: st.DataObject) -> None:
    path = box.inner / "rows.csv"
    path.write_bytes(data.draw(tables((sound / "rows.csv").read_bytes())))
    words = data.draw(
        st.sampled_from(
            (
                *(
                    [],
                    ["--format", "html"],
                    ["--format", "csv"],
                    ["--by", "attack"],
                    ["--by", "budget", "--metric", "n"],
                ),
                ["--by", "seed", "--metric", "deploy_robust", "--format", "latex"],
            )
        )
    )
    with box.trying("CSV"):
        read_results(path)
        box.say("table", path, *words)
        box.say("table", "--paper", "table2", "--results", path, "--dataset", "digits", "--check")


def read_all(box: Box, runs: Path) -> None:
    """Have a work folder read by all that reads one."""
    store = Store(runs)
    try:
        verify(runs)
    finally:
        for record, _ in store.cells():
            store.harmed(record.key)
        results = read_results(runs)
        for cell in results.cells.values():
            answers(cell)
        store.rebuild_rows(Silent())
        box.say("table", runs, "--against", "confidence")


@given(data=st.data())
@tries(0.06)
def test_cells(box: Box, sound: Path, runs: Path, data: st.DataObject) -> None:
    path = one_cell(sound)
    content = path.read_bytes()
    changed = data.draw(changed_json(json.loads(content)) | changed_bytes(content))
    (runs / "cells" / path.name).write_bytes(changed)
    try:
        with box.trying("cell JSON"):
            read_all(box, runs)
    finally:
        (runs / "cells" / path.name).write_bytes(content)


@st.composite
def arrays(draw: st.DrawFn) -> NDArray[Any]:
    """An array of any kind and shape."""
    shape = tuple(draw(st.lists(st.sampled_from((0, 1, 2, 10, 24, 25)), max_size=4)))
    kind = draw(st.sampled_from(("f4", "f8", "f2", "i8", "i1", "u8", "b1", "c8", "U3", "S2", "M8[s]", "i4,f4")))
    fill = draw(st.sampled_from((0, 1, -1, 2**62, math.nan, math.inf, -math.inf, 1e300)))
    array = np.zeros(shape, dtype=kind)
    with contextlib.suppress(ValueError, OverflowError, TypeError):
        array[...] = fill
    return array


@st.composite
def archives(draw: st.DrawFn, there: dict[str, NDArray[Any]]) -> bytes:
    """An .npz of which some arrays are others, are missing or are strange."""
    changed = dict(there)
    for _ in range(draw(st.integers(1, 2))):
        name = draw(st.sampled_from(sorted(there)))
        how = draw(st.sampled_from(("other", "less", "cast", "value", "gone", "flat")))
        array = there[name]
        if how == "gone":
            changed.pop(name, None)
        elif how == "less" and array.ndim:
            changed[name] = array[: draw(st.integers(0, len(array)))]
        elif how == "flat":
            changed[name] = array.ravel()
        elif how == "cast" and array.dtype.kind in "fib":
            changed[name] = array.astype(draw(st.sampled_from(("f2", "f8", "i4", "i8", "U8", "b1", "c16"))))
        elif how == "value" and array.dtype.kind == "f":
            changed[name] = array + draw(st.sampled_from((math.nan, math.inf, -math.inf, 1e30)))
        else:
            changed[name] = draw(arrays())
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **changed)
    content = buffer.getvalue()
    return draw(st.just(content) | st.just(content) | changed_bytes(content))


@given(data=st.data())
@tries(0.04)
def test_archives(box: Box, sound: Path, runs: Path, data: st.DataObject) -> None:
    path = one_file(sound, data.draw(st.sampled_from((DATA, ATTACKS, SCORES))))
    name, kept = str(path.relative_to(sound)), {each.name: each.read_bytes() for each in (runs / "cells").iterdir()}
    content = data.draw(archives(load_arrays(path)))
    store, key = Store(runs), json.loads(kept[one_cell(sound).name])["attack"]
    (runs / name).write_bytes(content)
    for cell, text in kept.items():  # with the right hash
        value = json.loads(text)
        if name in value["files"]:
            value["files"][name] = hashlib.sha256(content).hexdigest()
        (runs / "cells" / cell).write_text(json.dumps(value))
    try:
        with box.trying("npz"):
            has_answers(store, key)
            load_answers(store, key, torch.device("cpu"), with_features=False, with_images=False)
            shutil.copyfile(runs / name, store.whole_path(key))
            kept_of(store, key)
            shrink(store, key, ())
            read_all(box, runs)
    finally:
        store.whole_path(key).unlink(missing_ok=True)
        shutil.copyfile(path, runs / name)
        for cell, text in kept.items():
            (runs / "cells" / cell).write_bytes(text)


class Little(Cifar10CMade):
    clean = TinyCifar10()


@given(data=st.data())
@tries(0.04)
def test_made_corruptions(box: Box, data: st.DataObject) -> None:
    mark = Mark(Little.name, "fog", Little.revision, 0, "", "", "")
    images = {f"severity{number}": np.zeros((20, 32, 32, 3), np.uint8) for number in (1, 2, 3, 4, 5)}
    text = data.draw(mostly(st.just(json.dumps(asdict(mark)).encode()), changed_json(asdict(mark))))
    there = {"mark": np.array(text.decode(errors="replace")), "labels": np.zeros(20, np.uint8), **images}
    path = box.inner / FOLDER / "fog.npz"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data.draw(archives(there)))
    with box.trying("made corruptions"):
        assert Little("fog").load("test", (box.inner,)).size == 100


IMAGES: dict[str, NDArray[Any]] = {
    "images": np.linspace(0, 1, 48, dtype=np.float32).reshape(3, 1, 4, 4),
    "labels": np.arange(3),
    "x_train": np.arange(192, dtype=np.uint8).reshape(12, 4, 4, 1),
    "y_train": np.arange(12) % 3,
}


@given(content=archives(IMAGES))
@tries(0.06)
def test_images_of_users(box: Box, content: bytes) -> None:
    Path("own.npz").write_bytes(content)
    with box.trying("own images"):
        _load_all(Npz("own.npz"))


def _load_all(source: DataSource) -> None:
    for split in source.splits:
        check_batch(source.load(split, ()), source.info.classes, split)
    assert len(source.content()) == 64


@given(data=st.data())
@tries(0.06)
def test_pictures_of_users(box: Box, data: st.DataObject) -> None:
    buffer = io.BytesIO()
    Image.fromarray(np.arange(192, dtype=np.uint8).reshape(8, 8, 3)).save(
        buffer, data.draw(st.sampled_from(("png", "jpeg", "tiff")))
    )
    shutil.rmtree("pictures", ignore_errors=True)
    for name in ("1", data.draw(st.sampled_from(("2", "cat", "20260101", ".hidden")))):
        for index in range(3):
            path = Path("pictures", name, f"{index}.png")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(buffer.getvalue() if index else data.draw(changed_bytes(buffer.getvalue())))
    with box.trying("pictures"):
        _load_all(Folder("pictures", size=data.draw(st.sampled_from((None, 1, 5)))))


@pytest.fixture(scope="module")
def job(box: Box) -> api.Job:
    """A plan whose checkpoint comes with the package."""
    return api.prepare(api.RunOptions("rr", "clean", out=box.inner / "net", device="cpu", limit=8))


def state_of(cell: Cell) -> State:
    """Return a training that is about to begin."""
    training = cell.training
    network = build_network(training, build(DataSource, training.dataset).info, build(Rejector, training.rejector))
    optimizer = SimpleNamespace(state=defaultdict(dict))  # all that is asked of one here; to import one takes seconds
    return State(network, cast(torch.optim.Optimizer, optimizer))


@pytest.fixture(scope="module")
def files(box: Box, job: api.Job) -> dict[str, bytes]:
    """One sound file of each kind."""
    (cell,) = job.plan.cells
    path = box.inner / "net.safetensors"
    with Writer(path, cell.training) as writer:
        writer.save(state_of(cell))
    found = {"resume": path.read_bytes(), "checkpoint": job.materials.source(cell.training).path.read_bytes()}
    write_checkpoint(path, {"mean": torch.ones(3)}, Calibration(0.5, 0.5, 1.0)._asdict())
    return {**found, "fitted": path.read_bytes()}


@st.composite
def checkpoints(draw: st.DrawFn, content: bytes) -> bytes:
    """A .safetensors file with its header changed, or bytes changed."""
    (size,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + size])
    if draw(st.booleans()):
        facts = draw(changed_json(json.loads(header["__metadata__"]["rrbench"])))
        changed = json.dumps({**header, "__metadata__": {"rrbench": facts.decode()}}).encode()
    else:
        changed = draw(changed_json(header))
    length = draw(st.just(len(changed)) | st.sampled_from((0, 1, 2**40, 2**63)))
    built = struct.pack("<Q", length) + changed + content[8 + size :]
    return draw(st.just(built) | st.just(built) | changed_bytes(content))


@given(data=st.data())
@tries(0.12)
def test_checkpoints(box: Box, job: api.Job, files: dict[str, bytes], data: st.DataObject) -> None:
    (cell,) = job.plan.cells
    path = box.inner / "net.safetensors"
    kind = data.draw(st.sampled_from(sorted(files)))
    path.write_bytes(data.draw(checkpoints(files[kind])))
    with box.trying("safetensors"):
        if kind == "resume":
            resume(state_of(cell), path, cell.training)
        elif kind == "fitted":
            job.runner.at_hand.read_fitted(path)
        else:
            checkpoint = read_checkpoint(path)
            check_accuracy(job.materials.measured_network(cell, checkpoint), cell, checkpoint)


@given(data=st.data())
@tries(0.06)
def test_zoos(box: Box, job: api.Job, data: st.DataObject) -> None:
    content = (zoo.EMBEDDED / "index.json").read_bytes()
    folder = box.inner / "zoo"
    folder.mkdir(exist_ok=True)
    (folder / "index.json").write_bytes(data.draw(changed_json(json.loads(content)[:2]) | changed_bytes(content)))
    (cell,) = job.plan.cells
    with box.trying("zoo indices"), pytest.MonkeyPatch.context() as patch:
        patch.setenv("RRBENCH_ZOO", str(folder))
        box.say("list", "zoo")
        in_large_zoo(cell.training)
        enter(folder, zoo.entries(zoo.EMBEDDED)[0])
