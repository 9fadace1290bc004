"""Stores an attack's answers on disk once for all rejectors: a rejector that is added later needs no new attack.

attacks/<key>.npz         the network's outputs on the answers, and the first images if any of them was moved; cells
                          state the file's hash
attacks/<key>.whole.npz   features and all images: while other work needs them, or where `--keep` asks for them

An attack that serves only one rejector keeps less: the classes, their softmax, logits and head of the first images.
"""

from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rrbench.errors import UseError
from rrbench.files.arrays import load_arrays, save_arrays
from rrbench.files.disk import sha256
from rrbench.measuring.evaluation import KEPT_IMAGES, Attacked
from rrbench.measuring.measured_network import to_numpy
from rrbench.measuring.store import Store
from rrbench.metrics.measures import classes_of
from rrbench.protocols import Outputs
from rrbench.rows.narrow import IMAGES, widened
from rrbench.rows.scores import ATTACKS, OF_CLASS

FACTS = ("seconds", "gradients", "forwards", "vanished")  # single numbers
Arrays = dict[str, NDArray[Any]]


class Answers(NamedTuple):
    """An attack's outcome, and the file that keeps it."""

    attacked: Attacked
    file: str
    sha256: str


def save_answers(
    store: Store,
    key: str,
    attacked: Attacked,
    *,
    with_features: bool,
    with_images: bool,
    kept: Collection[str] = (),
    is_shared: bool = True,
) -> Answers:
    """Write an attack's outcome; write its features and all its images only if they are wanted.

    `kept`: the names that `--keep` gave in this run or an earlier one; these arrays stay after all later runs.
    `is_shared`: other rejectors may need the logits; if none can, all logits stay only until the rejector has its row.
    """
    said = _said(attacked)
    arrays: Arrays = {name: np.asarray(getattr(attacked, name)) for name in FACTS}
    arrays |= {
        "key": np.asarray(key),  # shows whether the file was renamed
        "lost": np.asarray(attacked.lost, dtype=np.str_),
        "is_still": to_numpy(attacked.is_still),
    }
    if attacked.signs:
        arrays["signs"] = np.asarray(attacked.signs, dtype=np.str_)
    if not bool(attacked.is_still[:KEPT_IMAGES].all()):  # else data/ has them, once for all networks
        arrays[IMAGES] = to_numpy(attacked.images[:KEPT_IMAGES])
    arrays |= said if is_shared else _short(said)
    if attacked.distances is not None and attacked.reached is not None:
        arrays |= {"distances": to_numpy(attacked.distances), "reached": to_numpy(attacked.reached)}
    # An older version stored images that were not moved, too; `is_still` tells which were.
    name, digest = store.add(ATTACKS, key, arrays, passing=("seconds", IMAGES))
    whole: Arrays = {} if is_shared else said
    if with_features:
        whole |= {"features": to_numpy(attacked.outputs.features)}
        whole |= {"boldest_features": to_numpy(attacked.boldest.features)}
    if with_images:
        whole |= {"images": to_numpy(attacked.images), "boldest_images": to_numpy(attacked.boldest_images)}
    _write_whole(store.whole_path(key), whole, digest, kept)
    return Answers(attacked, name, digest)


def _said(attacked: Attacked) -> Arrays:
    """Return the network's outputs on the answers and, if these differ, on the boldest images."""
    said = {"logits": to_numpy(attacked.outputs.logits), "head": to_numpy(attacked.outputs.head)}
    if not _is_same(attacked.boldest, attacked.outputs):
        said |= {"boldest_logits": to_numpy(attacked.boldest.logits), "boldest_head": to_numpy(attacked.boldest.head)}
    return said


def _short(said: Arrays) -> Arrays:
    """Return the arrays that stay if no other rejector can use the attack."""
    first = {name: said[name][:KEPT_IMAGES] for name in ("logits", "head")}
    return first | dict(zip(OF_CLASS, classes_of(said["logits"]), strict=True))


def without_logits(arrays: Arrays) -> Arrays:
    """Return a stored attack with classes instead of all logits: its rows stay, a new rejector needs a new attack."""
    if set(OF_CLASS) <= arrays.keys():
        return arrays
    outputs = {f"{prefix}{part}" for prefix in ("", "boldest_") for part in ("logits", "head")}
    return {name: array for name, array in arrays.items() if name not in outputs} | _short(arrays)


def _is_same(one: Outputs, other: Outputs) -> bool:
    return one is other or all(torch.equal(*parts) for parts in zip(one, other, strict=True))


def _write_whole(path: Path, whole: Arrays, digest: str, kept: Collection[str]) -> None:
    """Write the large arrays, with the hash of the attack's file; without arrays, delete the file."""
    if not whole:
        path.unlink(missing_ok=True)
        return
    facts = {"of": np.asarray(digest), "kept": np.asarray(sorted(kept), dtype=np.str_)}
    save_arrays(path, whole | facts, compress=False)


def kept_of(store: Store, key: str) -> frozenset[str]:
    """Return the names that earlier runs asked to keep of an attack."""
    return frozenset(map(str, _read_whole(store.whole_path(key)).get("kept", ())))


def shrink(store: Store, key: str, wanted: Collection[str]) -> None:
    """Delete an attack's features and images, except those that this run or an earlier run was asked to keep."""
    path = store.whole_path(key)
    arrays = _read_whole(path)
    if not arrays:
        return
    kept = {word for word in {*map(str, arrays["kept"]), *wanted} if word in arrays}
    names = [name for word in sorted(kept) for name in (word, f"boldest_{word}")]
    _write_whole(path, {name: arrays[name] for name in names}, str(arrays["of"]), kept)


def load_answers(
    store: Store, key: str, device: torch.device, *, with_features: bool, with_images: bool
) -> Answers | None:
    """Read an attack's outcome; return None if a wanted array is missing or damaged."""
    wanted = {name for name, is_wanted in (("features", with_features), ("images", with_images)) if is_wanted}
    for name, digest, arrays, whole in _stored(store, key, wanted):
        with suppress(KeyError, TypeError, ValueError, RuntimeError):  # a file of another version or program
            return Answers(_attacked(arrays, whole, device), name, digest)
    return None


def has_answers(store: Store, key: str, *, with_images: bool = False) -> bool:
    """Tell whether the stored outputs serve a rejector without features and, if `with_images`, all images are there."""
    return any(_stored(store, key, {"images"} if with_images else frozenset()))


def _stored(store: Store, key: str, wanted: Collection[str]) -> Iterator[tuple[str, str, Arrays, Arrays]]:
    """Return (name, hash, arrays, large arrays) of each file of an attack that has all wanted large arrays."""
    for name in _candidates(store, key):
        arrays, digest = widened(load_arrays(store.root / name)), sha256(store.root / name)
        needed = {*wanted, "logits"} if set(OF_CLASS) <= arrays.keys() else set(wanted)
        whole = _whole(store.whole_path(key), digest) if needed else {}
        # Some published files lack costs (`vanished`) and boldest outputs: they serve only their own cells.
        if needed <= whole.keys() and "vanished" in arrays and str(arrays.get("key", key)) == key:
            yield name, digest, arrays, whole


def _candidates(store: Store, key: str) -> Iterator[str]:
    """Return the sound files of an attack; there are several if a second run of it gave other answers."""
    folder = store.root / ATTACKS
    paths = [folder / f"{key}.npz", *sorted(folder.glob(f"{key}-*.npz"))]
    names = [f"{ATTACKS}/{path.name}" for path in paths if path.is_file()]
    return (name for name in names if store.is_sound(name))


def _whole(path: Path, digest: str) -> Arrays:
    arrays = _read_whole(path)
    return arrays if str(arrays.get("of", "")) == digest else {}


def _read_whole(path: Path) -> Arrays:
    """Read the large arrays; a damaged file counts as missing, since no cell depends on it."""
    try:
        arrays = load_arrays(path)
    except UseError:
        return {}
    return arrays if {"of", "kept"} <= arrays.keys() and arrays["kept"].ndim == 1 else {}


def _attacked(arrays: Arrays, whole: Arrays, device: torch.device) -> Attacked:
    def tensor(name: str) -> Tensor | None:
        found = whole.get(name, arrays.get(name))
        return None if found is None else torch.from_numpy(found).to(device)

    def outputs(prefix: str) -> Outputs | None:
        features, logits, head = (tensor(f"{prefix}{part}") for part in Outputs._fields)
        if logits is None or head is None:
            return None
        return Outputs(logits.new_zeros(len(logits), 0) if features is None else features, logits, head)

    found, is_still = outputs(""), tensor("is_still")
    if found is None or is_still is None:
        raise KeyError("outputs or is_still")
    images, boldest_images = tensor(IMAGES), tensor("boldest_images")
    if images is None:  # none was moved, and who needs all images has asked for the large arrays
        images = torch.empty(0, device=device)
    return Attacked(
        outputs=found,
        boldest=outputs("boldest_") or found,
        images=images,
        boldest_images=images if boldest_images is None else boldest_images,
        **{name: float(arrays[name]) for name in FACTS},
        is_still=is_still,
        distances=tensor("distances"),
        reached=tensor("reached"),
        lost=tuple(map(str, arrays["lost"])),
        signs=tuple(map(str, arrays.get("signs", ()))),
    )
