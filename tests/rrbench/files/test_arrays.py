"""Arrays come back from a tightly packed file bit by bit, by NumPy too, and the file is smaller."""

from pathlib import Path

import numpy as np

from rrbench.files.arrays import load_arrays, packed, tightly_packed
from rrbench.rows.narrow import is_same


def test_a_tightly_packed_file_is_smaller_and_has_the_same_arrays(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    pixels = (np.arange(256) / 255 + np.array([[-8 / 255], [8 / 255]])).astype(np.float32).ravel()
    given = {
        "images": generator.choice(pixels, (4, 3, 32, 32)),  # as an attack leaves them: at the border of its ball
        "seconds": np.asarray(1.5),
        "lost": np.empty(0, dtype="<U1"),
        "key": np.asarray("a1b2"),
        "turned": np.asfortranarray(generator.random((5, 7))),
        "certainty": np.array([np.nan, -np.inf, -0.0]),
    }
    content = tightly_packed(given)
    assert content == tightly_packed(given)
    assert len(content) < 0.9 * len(packed(given))
    path = tmp_path / "tight.npz"
    path.write_bytes(content)
    with np.load(path) as read_by_numpy:
        for found in (load_arrays(path), dict(read_by_numpy)):
            assert list(found) == list(given)
            assert all(is_same(found[name], given[name]) for name in given)
