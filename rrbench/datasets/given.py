"""Data that users give as objects: pairs of arrays or tensors, data sets, loaders. All become batches in [0, 1]."""

import hashlib
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, RandomSampler, default_collate

from rrbench.datasets.check import check_batch, fingerprint, wrong_tensor
from rrbench.errors import UseError, brief, first_line, one_line
from rrbench.lending import is_same
from rrbench.protocols import Batch, DataInfo, DataSource, Split

EXPECTED = "(images, labels), a Batch, a Dataset or a DataLoader"
CHANNELS = (1, 3)
CHANNELS_FIRST = (0, 3, 1, 2)  # of images that have them last
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
        images = _plain(given, "images")  # never moved: a model of PyTorch takes its tensors as they are
    elif isinstance(given, np.ndarray):
        _check_mask(given, "images")
        array = given[:, None] if given.ndim == 3 else given
        try:
            images = _tensor(array.transpose(CHANNELS_FIRST) if _is_last(array.shape) else array)
        except TypeError:
            raise UseError(f"images must be bytes, or floats of 16, 32 or 64 bits, not {given.dtype}") from None
    else:
        raise UseError(f"images must be a torch tensor or a NumPy array, not {type(given).__name__}")
    if images.dtype == torch.uint8:
        return images.float().div_(255)
    return images.float() if images.is_floating_point() else images


def _is_last(shape: Sequence[int]) -> bool:
    """Tell whether images have their channels last: these are 1 or 3, and the second of four numbers is neither.

    One pixel of many channels is features rather than a column of grey pixels.
    """
    return len(shape) == 4 and shape[1] not in CHANNELS and shape[3] in CHANNELS and tuple(shape[2:]) != (1, 1)


def to_labels(given: object) -> Tensor:
    """Return labels as int64, also those of a column (N, 1); others than whole numbers stay, to be refused."""
    _check_mask(given, "labels")
    if isinstance(given, Tensor):
        labels = _plain(given, "labels")
    else:
        try:
            labels = _tensor(np.asarray(given))
        except (TypeError, ValueError) as error:
            raise UseError(f"labels must be whole numbers: {first_line(error)}") from None
    if labels.dim() == 2 and labels.shape[1] == 1:  # some tools store labels so
        labels = labels[:, 0]
    return labels if labels.is_floating_point() or labels.dtype == torch.bool else labels.long()


def _plain(tensor: Tensor, name: str) -> Tensor:
    if wrong := wrong_tensor(tensor, name):
        raise UseError(wrong)
    return tensor.detach()


def _check_mask(given: object, name: str) -> None:
    """Refuse an array with masked values: a tensor has no mask, and would show what is under it."""
    if np.ma.is_masked(given):
        raise UseError(f"{name} have masked values: fill them, as in {name}.filled(0)")


def _tensor(array: NDArray[Any]) -> Tensor:
    """Make a tensor of an array; PyTorch takes no read-only arrays, no bytes in reverse, not all whole numbers."""
    if array.dtype.kind == "u" and array.dtype != np.uint8:
        array = array.astype(np.int64)
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    array = np.ascontiguousarray(array)
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _gathered(given: DataLoader[Any] | Dataset[Any]) -> tuple[Tensor, Tensor]:
    """Return all images and labels; a loader that shuffles is read in the order of its data set."""
    if isinstance(given, DataLoader) and _only_shuffles(given):
        given = _in_order(given)
    pieces: list[tuple[Tensor, Tensor]] = []
    has_arrays = isinstance(given, DataLoader) and _stacks_arrays(given)
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
                pieces.append((to_images(image.numpy() if has_arrays else image), to_labels(label)))
            else:
                pieces.append((_one_image(image)[None], to_labels([_one_label(label)])))
        if not pieces:
            raise UseError("the data set has no images")
        images, labels = zip(*pieces, strict=True)
        _check_steady(given.dataset if isinstance(given, DataLoader) else given)
        return torch.cat(images), torch.cat(labels)
    except UseError:
        raise
    except Exception as error:  # a user's data set may fail in any way
        raise UseError(f"cannot read the data set: {type(error).__name__}: {first_line(error)}") from None


def _only_shuffles(loader: DataLoader[Any]) -> bool:
    """Tell whether a loader gives each input once: one that draws some, or some again, is measured as it draws."""
    sampler = loader.sampler
    if not isinstance(sampler, RandomSampler) or sampler.replacement:
        return False
    return len(sampler) == len(loader.dataset)  # type: ignore[arg-type] # what is shuffled has a length


def _in_order(loader: DataLoader[Any]) -> DataLoader[Any]:
    """Return a loader that puts the same batches together in the order of the data set, all of them."""
    return DataLoader(
        loader.dataset,
        loader.batch_size,
        collate_fn=loader.collate_fn,
        num_workers=loader.num_workers,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        generator=torch.Generator(),  # a loader draws a seed even if it does not shuffle, else from the global state
    )


def _stacks_arrays(loader: DataLoader[Any]) -> bool:
    """Tell whether a loader makes tensors of NumPy images: then these mean what they mean in their data set."""
    if loader.collate_fn is not default_collate:
        return False
    try:
        return isinstance(loader.dataset[0][0], np.ndarray)
    except Exception:  # a stream, or other items than (image, label): then it cannot be told
        return False


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
    array = image if isinstance(image, Tensor | np.ndarray) else np.asarray(image)
    return to_images(array[None])[0]


def _one_label(label: object) -> int:
    """Return one label. Not by `int`, which makes 2 of 2.97, and 3 of the text "3"."""
    value: Any = label[0] if isinstance(label, Tensor | np.ndarray) and tuple(label.shape) == (1,) else label
    try:
        return operator.index(value)
    except TypeError:
        shown = "masked" if value is np.ma.masked else one_line(brief(label))
        raise UseError(f"a label of the data set is {shown}: labels must be whole numbers") from None
