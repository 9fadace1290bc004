"""An attack's outputs on disk come back as they were, with what was lost and what runs before asked to keep."""

from pathlib import Path

import pytest
import torch

from rrbench.evaluation import Attacked
from rrbench.moved import asked_of, load_moved, save_moved
from rrbench.protocols import Outputs

CPU = torch.device("cpu")


@pytest.fixture
def attacked() -> Attacked:
    outputs = Outputs(torch.rand(20, 3), torch.rand(20, 2), torch.rand(20, 0))
    images = torch.rand(20, 1, 2, 2)
    return Attacked(outputs, outputs, images, images, 1.5, 10.0, 11.0, 0.25, torch.zeros(20).bool(), lost=("a: b, c",))


def test_what_is_saved_whole_comes_back_whole(tmp_path: Path, attacked: Attacked) -> None:
    path = tmp_path / "moved.npz"
    save_moved(path, attacked, with_features=True, with_images=True, asked={"images"})
    found = load_moved(path, CPU, with_features=True, with_images=True)
    assert found is not None
    for name in ("images", "boldest_images", "is_still"):
        assert torch.equal(getattr(found, name), getattr(attacked, name))
    for part in Outputs._fields:
        assert torch.equal(getattr(found.outputs, part), getattr(attacked.outputs, part))
    assert (found.seconds, found.gradients, found.forwards, found.vanished) == (1.5, 10.0, 11.0, 0.25)
    assert found.lost == ("a: b, c",)
    assert asked_of(path) == {"images"}


def test_what_was_not_kept_is_not_found(tmp_path: Path, attacked: Attacked) -> None:
    path = tmp_path / "moved.npz"
    assert asked_of(path) == frozenset()
    assert load_moved(path, CPU, with_features=False, with_images=False) is None
    save_moved(path, attacked._replace(lost=()), with_features=False, with_images=False)
    assert load_moved(path, CPU, with_features=True, with_images=False) is None
    assert load_moved(path, CPU, with_features=False, with_images=True) is None
    found = load_moved(path, CPU, with_features=False, with_images=False)
    assert found is not None
    assert len(found.images) == 16
    assert found.lost == ()
    assert asked_of(path) == frozenset()
