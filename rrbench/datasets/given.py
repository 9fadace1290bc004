"""Data that users give as objects: pairs of arrays or tensors, data sets, loaders. All become batches in [0, 1]."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, RandomSampler

from rrbench.datasets.check import check_batch, fingerprint
from rrbench.errors import UseError, first_line
from rrbench.lending import is_same
from rrbench.protocols import Batch, DataInfo, DataSource, Split

EXPECTED = "(images, labels), a Batch, a Dataset or a DataLoader"
CHANNELS = (1, 3)
AGAIN = 8  # images that are read again: of pictures mirrored by chance all eight stay once in 256 times
MOST_CLASSES = 10**6  # more are a mistake, such as folders named by dates, and no network could be built for them
WORDS: dict[Split, str] = {"test": "data", "train": "fit_data", "calibration": "calibration_data"}


@dataclass(frozen=True)
class OwnData(DataSource):
    """The inputs that a call was given; only `test` must be there."""

    batches: Mapping[Split, Batch]

    @cached_property
    def info(self) -> DataInfo:  # type: ignore[override] # computed, since the inputs decide it
        """What the inputs say of themselves."""
        return describe(self.batches)

    @property
    def splits(self) -> frozenset[Split]:
        """The splits that were given."""
        return frozenset(self.batches)

    def load(self, split: Split, roots: tuple[Path, ...]) -> Batch:
        """Return the inputs."""
        return self.batches[split]

    def content(self) -> str:
        """Hash all inputs, and their ids, which decide the folds of thresholds."""
        return self._sha256

    @cached_property
    def _sha256(self) -> str:
        digest = hashlib.sha256()
        for split, batch in sorted(self.batches.items()):
            digest.update(f"{split} {fingerprint(batch)}".encode() + batch.ids.cpu().numpy().tobytes())
        return digest.hexdigest()


def describe(batches: Mapping[Split, Batch], classes: int | None = None) -> DataInfo:
    """Return what networks must know; without `classes`, the labels say how many there are."""
    first = batches.get("train", batches["test"]).images
    found = max(int(batch.labels.max()) for batch in batches.values()) + 1
    if found > MOST_CLASSES:
        raise UseError(f"the labels go up to {found - 1}: that is more than {MOST_CLASSES} classes")
    sizes = {f"{split}_size": batch.size for split, batch in batches.items()}
    mean = first.double().mean((0, 2, 3)).tolist()
    std = first.double().std((0, 2, 3), correction=0).tolist()
    shape = (first.shape[1], first.shape[2], first.shape[3])
    return DataInfo(
        classes or max(found, 2), shape, tuple(mean), tuple(max(each, 1e-3) for each in std), flip=False, **sizes
    )


def own_data(data: object, fit_data: object = None, calibration_data: object = None) -> OwnData:
    """Return the given inputs as a data set; calibration inputs get negative ids, so that none counts as a test input.

    Refuses all that cannot be measured, except labels: how many classes there are is the network's to say.
    """
    given: dict[Split, object] = {"test": data, "train": fit_data, "calibration": calibration_data}
    batches: dict[Split, Batch] = {}
    for split, inputs in given.items():
        if inputs is None and split != "test":
            continue
        batch = read_batch(inputs)
        if split == "calibration" and not isinstance(inputs, Batch):
            batch = batch._replace(ids=-1 - batch.ids)
        check_batch(batch, None, WORDS[split])
        batches[split] = batch
    shape = tuple(batches["test"].images.shape[1:])
    for split, batch in batches.items():
        if tuple(batch.images.shape[1:]) != shape:
            shapes = f"{tuple(batch.images.shape[1:])}, and those of data {shape}"
            raise UseError(f"the images of {WORDS[split]} are {shapes}")
    return OwnData(batches)


def read_batch(given: object) -> Batch:
    """Return inputs with ids; a Batch stays as it is."""
    if isinstance(given, Batch):
        return given
    if isinstance(given, DataLoader | Dataset):
        given = _gathered(given)
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise UseError(f"data must be {EXPECTED}, not {type(given).__name__}")
    images, labels = to_images(given[0]), to_labels(given[1])
    return Batch(images, labels, torch.arange(labels.shape[0] if labels.dim() else 0))


def to_images(given: object) -> Tensor:
    """Return images as float32; bytes are divided by 255. NumPy images may be grey (N, H, W) or have channels last."""
    if isinstance(given, Tensor):
        images = given.detach()
    elif isinstance(given, np.ndarray):
        images = _tensor(channels_first(given))
    else:
        raise UseError(f"images must be a torch tensor or a NumPy array, not {type(given).__name__}")
    if images.dtype == torch.uint8:
        return images.float().div_(255)
    return images.float() if images.is_floating_point() else images


def channels_first(images: NDArray[Any]) -> NDArray[Any]:
    """Return images as (N, C, H, W); channels that come last are moved, grey images get one channel."""
    if images.ndim == 3:
        return images[:, None]
    if images.ndim == 4 and images.shape[1] not in CHANNELS and images.shape[3] in CHANNELS:
        return images.transpose(0, 3, 1, 2)
    return images


def to_labels(given: object) -> Tensor:
    """Return labels as int64; others than whole numbers stay, to be refused."""
    if isinstance(given, Tensor):
        labels = given.detach()
    else:
        try:
            labels = _tensor(np.asarray(given))
        except (TypeError, ValueError) as error:
            raise UseError(f"labels must be whole numbers: {first_line(error)}") from None
    return labels if labels.is_floating_point() or labels.dtype == torch.bool else labels.long()


def _tensor(array: NDArray[Any]) -> Tensor:
    """Make a tensor of an array; PyTorch takes neither read-only arrays nor all types of whole numbers."""
    if array.dtype.kind == "u" and array.dtype != np.uint8:
        array = array.astype(np.int64)
    array = np.ascontiguousarray(array)
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _gathered(given: DataLoader[Any] | Dataset[Any]) -> tuple[Tensor, Tensor]:
    """Return all images and labels; a loader that shuffles is read in the order of its data set."""
    if isinstance(given, DataLoader) and isinstance(given.sampler, RandomSampler):
        given = given.dataset
    pieces: list[tuple[Tensor, Tensor]] = []
    try:
        # A Dataset without __len__ counts up to its IndexError, as Python's own loops do.
        items: Any = (
            given
            if isinstance(given, DataLoader) or not hasattr(given, "__len__")
            else (given[index] for index in range(len(given)))
        )
        for item in items:
            image, label = item[0], item[1]
            if isinstance(given, DataLoader):
                pieces.append((to_images(image), to_labels(label)))
            else:
                pieces.append((_one_image(image)[None], to_labels([int(label)])))
        images, labels = zip(*pieces, strict=True)
        _check_steady(given.dataset if isinstance(given, DataLoader) else given)
        return torch.cat(images), torch.cat(labels)
    except UseError:
        raise
    except Exception as error:  # a user's data set may fail in any way
        raise UseError(f"cannot read the data set: {type(error).__name__}: {first_line(error)}") from None


def _check_steady(given: Dataset[Any]) -> None:
    """Refuse a data set whose first images are others when they are read again, as with random transforms."""
    try:
        pairs = [[_one_image(given[index][0]) for _ in range(2)] for index in range(min(AGAIN, len(given)))]  # type: ignore[arg-type]
    except Exception:  # a stream, or other items than (image, label): then it cannot be told
        return
    if not all(is_same(*pair) for pair in pairs):
        raise UseError("an image of the data set is another one when it is read again: leave random transforms out")


def _one_image(image: object) -> Tensor:
    """Return one image (C, H, W) of a tensor, an array or a picture of Pillow."""
    if isinstance(image, Tensor):
        return to_images(image)
    array = np.asarray(image)
    return to_images(channels_first(array[None]))[0]
