"""Result tables, cells and their arrays: any is accepted, or refused in one line, by all that reads them."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from finished_run import one_cell, one_file, verify
from fuzz_box import Box, tries
from hostile_values import archives, changed_bytes, changed_json, numbers, texts
from rrbench.files.arrays import load_arrays
from rrbench.measuring.answers import has_answers, kept_of, load_answers, shrink
from rrbench.measuring.store import Store
from rrbench.progress import Silent
from rrbench.report.gallery import answers
from rrbench.report.results import read_results
from rrbench.rows.scores import ATTACKS, DATA, SCORES
from small_run import small_run


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
