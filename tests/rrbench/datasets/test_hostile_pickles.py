"""Pickles that are hostile or hold other data: none of their code runs, and each gives a one-line error."""

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from made_up_cifar import TinyCifar10, assert_holds, content, refuse, write_pickled


class Runs:
    """Unpickled the usual way, this creates a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.path}",)


def test_a_hostile_pickle_runs_nothing(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    hostile = pickle.dumps({b"data": Runs(trace), b"labels": [0] * 20})
    (tmp_path / "test_batch").write_bytes(hostile)
    assert "posix.system" in refuse(TinyCifar10(), tmp_path)
    assert not trace.exists()
    pickle.loads(hostile)
    assert trace.exists()  # the same bytes do run where nothing is restricted


@pytest.mark.parametrize(
    "name",
    [
        "builtins\neval",
        "builtins\ngetattr",
        "os\nsystem",
        "numpy\nload",
        "numpy.core.multiarray\nfromfile",
        "numpy._core.multiarray\n_reconstruct.__globals__",
        "rrbench.datasets.unpickle\nread_pickle",
        "copyreg\n_reconstructor",
    ],
)
def test_no_other_name_is_ever_looked_up(name: str, tmp_path: Path) -> None:
    (tmp_path / "test_batch").write_bytes(b"c" + name.encode() + b"\n(Vx\ntR.")
    assert name.replace("\n", ".") in refuse(TinyCifar10(), tmp_path)


def test_what_a_pickle_does_to_the_stand_ins_dies_with_it(tmp_path: Path) -> None:
    arrays = content(TinyCifar10)
    write_pickled(TinyCifar10, tmp_path, arrays)
    good = (tmp_path / "test_batch").read_bytes()
    # BUILD with slots on the class itself: sets ndarray.__setstate__ to 1.
    (tmp_path / "test_batch").write_bytes(b"cnumpy\nndarray\n(N}V__setstate__\nI1\nstb.")
    refuse(TinyCifar10(), tmp_path)
    (tmp_path / "test_batch").write_bytes(good)
    assert_holds(TinyCifar10(), tmp_path, arrays)


@pytest.mark.parametrize(
    "content_of_file",
    [
        b"",
        b"<html>404</html>",
        pickle.dumps([1, 2]),
        pickle.dumps({b"data": np.zeros((20, 3072), np.uint8)}),
        pickle.dumps({b"data": b"x", b"labels": [0]}),
        pickle.dumps({b"data": np.zeros((20, 3072)), b"labels": [0] * 20}, protocol=4),
        pickle.dumps({b"data": np.full((20, 3072), None), b"labels": [0] * 20}, protocol=4),
        pickle.dumps({b"data": np.zeros((20, 3071), np.uint8), b"labels": [0] * 20}, protocol=4),
        pickle.dumps({b"data": np.zeros((20, 3072), np.uint8), b"labels": ["a"] * 20}, protocol=4),
        pickle.dumps({b"data": np.zeros((20, 3072), np.uint8), b"labels": [[0], [1, 2]]}, protocol=4),
        pickle.dumps({b"data": np.zeros((20, 3072), np.uint8), b"labels": [0] * 19}, protocol=4),
        pickle.dumps({b"data": np.zeros((20, 3072), np.uint8), b"labels": [0] * 20}, protocol=4)[:-900],
    ],
)
def test_a_pickle_of_something_else_is_refused_in_one_line(content_of_file: bytes, tmp_path: Path) -> None:
    (tmp_path / "test_batch").write_bytes(content_of_file)
    assert str(tmp_path / "test_batch") in refuse(TinyCifar10(), tmp_path)
