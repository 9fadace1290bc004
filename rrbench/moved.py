"""An attack's outputs on disk: a rejector added later needs no new attack, unless it needs features not kept."""

from collections.abc import Collection
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from rrbench.evaluation import KEPT_IMAGES, Attacked, to_numpy
from rrbench.protocols import Outputs
from rrbench.store import load_arrays, save_arrays


def save_moved(
    path: Path, attacked: Attacked, *, with_features: bool, with_images: bool, asked: Collection[str] = ()
) -> None:
    """Write what the network said of an attack's images; of these all, or enough for a gallery and a replay.

    `asked`: what `--keep` named, in this run or an earlier one; it stays whatever later runs need.
    """
    arrays = {
        "asked": np.asarray(sorted(asked), dtype=np.str_),
        "lost": np.asarray(attacked.lost, dtype=np.str_),
        "seconds": np.asarray(attacked.seconds),
        "gradients": np.asarray(attacked.gradients),
        "forwards": np.asarray(attacked.forwards),
        "vanished": np.asarray(attacked.vanished),
        "is_still": to_numpy(attacked.is_still),
        "images": to_numpy(attacked.images[: None if with_images else KEPT_IMAGES]),
    }
    if with_images:
        arrays["boldest"] = to_numpy(attacked.boldest_images)
    if attacked.distances is not None and attacked.reached is not None:
        arrays |= {"distances": to_numpy(attacked.distances), "reached": to_numpy(attacked.reached)}
    for name, outputs in (("moved", attacked.outputs), ("boldest", attacked.boldest)):
        for part, tensor in outputs._asdict().items():
            if part != "features" or with_features:
                arrays[f"{name}_{part}"] = to_numpy(tensor)
    save_arrays(path, arrays, compress=False)


def asked_of(path: Path) -> frozenset[str]:
    """Return what runs before asked to keep of an attack."""
    return frozenset(load_arrays(path).get("asked", ())) if path.is_file() else frozenset()


def ask(path: Path, wanted: Collection[str]) -> None:
    """Note what a run asks to keep of an attack that was run before, where it is still there."""
    if not wanted:
        return
    arrays = load_arrays(path)
    there = {"features": "moved_features" in arrays, "images": "boldest" in arrays}
    known = set(map(str, arrays.get("asked", ())))
    more = known.union(name for name in wanted if there[name])
    if more != known:
        save_arrays(path, arrays | {"asked": np.asarray(sorted(more), dtype=np.str_)}, compress=False)


def load_moved(path: Path, device: torch.device, *, with_features: bool, with_images: bool) -> Attacked | None:
    """Read it back, or return None where something that is wanted was not kept."""
    if not path.is_file():
        return None
    arrays = load_arrays(path)
    if (with_features and "moved_features" not in arrays) or (with_images and "boldest" not in arrays):
        return None

    def tensor(name: str) -> Tensor:
        return torch.from_numpy(arrays[name]).to(device)

    def outputs(name: str) -> Outputs:
        logits = tensor(f"{name}_logits")
        features = tensor(f"{name}_features") if f"{name}_features" in arrays else logits.new_zeros(len(logits), 0)
        return Outputs(features, logits, tensor(f"{name}_head"))

    return Attacked(
        outputs=outputs("moved"),
        boldest=outputs("boldest"),
        images=tensor("images"),
        boldest_images=tensor("boldest" if "boldest" in arrays else "images"),
        seconds=float(arrays["seconds"]),
        gradients=float(arrays["gradients"]),
        forwards=float(arrays["forwards"]),
        vanished=float(arrays["vanished"]),
        is_still=tensor("is_still"),
        distances=tensor("distances") if "distances" in arrays else None,
        reached=tensor("reached") if "reached" in arrays else None,
        lost=tuple(map(str, arrays.get("lost", ()))),
    )
