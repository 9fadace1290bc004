"""Checkpoints and the index of a zoo: any is accepted, or refused in one line."""

import json
import struct
from collections import defaultdict
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fuzz_box import Box, tries
from hostile_values import changed_bytes, changed_json
from rrbench import api, zoo
from rrbench.files.checkpoints import read_checkpoint, write_checkpoint
from rrbench.measuring.materials import check_accuracy, in_large_zoo
from rrbench.measuring.pack import enter
from rrbench.planning.cells import Cell
from rrbench.plugins.registry import build
from rrbench.protocols import Calibration, DataSource, Rejector
from rrbench.training.resume import State, Writer, resume
from rrbench.training.train import build_network


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
