"""Data that are given as objects: which values are taken, and which are refused in one line."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
)

from own_network import refusal
from rrbench import Batch
from rrbench.datasets.given import own_data
from rrbench.datasets.npz import Npz

pytestmark = pytest.mark.usefixtures("own_folder")
COUNT = 12
BYTES = np.arange(COUNT * 5 * 7 * 3, dtype=np.uint16).reshape(COUNT, 5, 7, 3).astype(np.uint8)  # channels last
LABELS = np.arange(COUNT) % 4
IMAGES = torch.from_numpy(BYTES.transpose(0, 3, 1, 2) / 255).float()


class Pairs(Dataset[Any]):
    """Images and labels, each as it is."""

    def __init__(self, images: Any, labels: Any = LABELS) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return self.images[index], self.labels[index]


class Stream(IterableDataset[Any]):
    """Nothing at all."""

    def __iter__(self) -> Iterator[Any]:
        return iter(())


def read(given: object) -> Batch:
    return own_data(given).batches["test"]


def said(given: object) -> str:
    return refusal(lambda: own_data(given))


@pytest.mark.parametrize(
    "given",
    [
        (BYTES, LABELS),
        Pairs(BYTES),
        DataLoader(Pairs(BYTES), batch_size=5),
        DataLoader(Pairs(BYTES / 255), batch_size=5),
        DataLoader(Pairs(BYTES), batch_size=5, shuffle=True),
    ],
    ids=["numpy", "dataset", "loader", "of floats", "shuffled"],
)
def test_channels_of_numpy_images_may_come_last_in_every_form(given: object) -> None:
    batch = read(given)
    assert torch.allclose(batch.images, IMAGES, rtol=0, atol=1e-7)
    assert batch.images.is_contiguous(), "a network may call `view`"
    assert batch.labels.tolist() == LABELS.tolist()


def stacked(items: list[tuple[NDArray[Any], int]]) -> tuple[Tensor, Tensor]:
    return torch.stack([torch.from_numpy(pixels) for pixels, _ in items]), torch.tensor([label for _, label in items])


def test_tensors_are_taken_as_they_are() -> None:
    images = torch.rand(6, 12, 5, 1)  # such as twelve leads of a heart
    own = DataLoader(Pairs(images.numpy(), LABELS[:6]), collate_fn=stacked)
    for given in ((images, LABELS[:6]), Pairs(images, LABELS[:6]), DataLoader(Pairs(images, LABELS[:6])), own):
        assert torch.equal(read(given).images, images)


@pytest.mark.parametrize("shape", [(6, 3, 5, 3), (6, 1, 4, 1), (6, 4, 5, 7), (6, 64, 1, 1)])
def test_channels_that_may_come_first_stay(shape: tuple[int, ...]) -> None:
    images = torch.rand(shape)
    for given in (images, images.numpy(), Pairs(images, LABELS[:6]), DataLoader(Pairs(images, LABELS[:6]))):
        pair = given if isinstance(given, Dataset | DataLoader) else (given, LABELS[:6])
        assert torch.equal(read(pair).images, images)


def test_a_batch_stays_as_it_is() -> None:
    images = torch.rand(6, 12, 5, 3)
    assert torch.equal(read(Batch(images, torch.zeros(6, dtype=torch.int64), torch.arange(6))).images, images)


@pytest.mark.parametrize(
    ("labels", "shown"),
    [
        (0.99 * LABELS, "np.float64(0.0)"),
        ([label + 0.5 for label in LABELS.tolist()], "0.5"),
        ([float(label) for label in LABELS], "0.0"),
        ([str(label) for label in LABELS], "'0'"),
        (torch.from_numpy(LABELS).float(), "tensor(0.)"),
        ([None] * COUNT, "None"),
        (np.eye(COUNT, dtype=np.int64), "array("),
    ],
)
def test_a_label_of_a_data_set_that_is_no_whole_number_is_refused(labels: Any, shown: str) -> None:
    line = said(Pairs(IMAGES, labels))
    assert line.startswith(f"a label of the data set is {shown}")
    assert line.endswith(": labels must be whole numbers")


@pytest.mark.parametrize(
    "labels",
    [
        LABELS.tolist(),
        LABELS.astype(np.uint8),
        LABELS.astype(">i4"),
        torch.from_numpy(LABELS),
        torch.from_numpy(LABELS).to(torch.uint8),
        LABELS[:, None],
        torch.from_numpy(LABELS)[:, None],
    ],
    ids=["int", "bytes", "byte order", "torch", "torch bytes", "column", "torch column"],
)
def test_whole_numbers_are_labels_in_every_form(labels: Any) -> None:
    column = [[label] for label in LABELS.tolist()] if isinstance(labels, list) else labels
    is_odd = isinstance(labels, np.ndarray) and not labels.dtype.isnative  # PyTorch's loader takes no such label
    forms: list[Any] = [(IMAGES, labels), (IMAGES, column), Pairs(IMAGES, labels)]
    for given in forms if is_odd else [*forms, DataLoader(Pairs(IMAGES, labels), batch_size=5)]:
        assert read(given).labels.tolist() == LABELS.tolist()


@pytest.mark.parametrize("kind", [">f2", ">f4", ">f8", "<f8"])
def test_the_order_of_bytes_does_not_matter(kind: str) -> None:
    images = IMAGES.numpy().astype(kind)
    batch = read((images, LABELS.astype(">i8")))
    assert torch.allclose(batch.images, IMAGES, rtol=0, atol=1e-3 if kind == ">f2" else 1e-7)
    assert torch.equal(read(Pairs(images)).images, batch.images)
    np.savez("odd.npz", images=images, labels=LABELS.astype(">u2"))
    stored = Npz("odd.npz").load("test", ())
    assert torch.equal(stored.images, batch.images)
    assert stored.labels.tolist() == batch.labels.tolist() == LABELS.tolist()


KINDS = "must be bytes, or floats of 16, 32 or 64 bits, not"


@pytest.mark.parametrize(
    ("images", "line"),
    [
        (IMAGES.numpy().astype(np.longdouble), f"images {KINDS} {np.dtype(np.longdouble)}"),
        (IMAGES.numpy().astype(object), f"images {KINDS} object"),
        (IMAGES.numpy().astype("datetime64[s]"), f"images {KINDS} datetime64[s]"),
        (IMAGES.numpy().astype("U"), f"images {KINDS} <U32"),
    ],
    ids=["long", "object", "date", "text"],
)
def test_arrays_that_are_no_images_are_one_line(images: NDArray[Any], line: str) -> None:
    assert said((images, LABELS)) == line
    assert said(Pairs(images)) == line
    if images.dtype != object:
        np.savez("odd.npz", images=images, labels=LABELS)
        assert refusal(lambda: Npz("odd.npz").load("test", ())) == f"odd.npz (images): {line}"


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda part: part.to_sparse(), "sparse_coo"),
        (lambda part: part.to("meta"), "meta, which holds no values"),
        (lambda part: torch.nested.nested_tensor(list(part.unbind())), "nested"),
        (lambda part: torch.quantize_per_tensor(part.float(), 1.0, 0, torch.quint8), "quantized"),
    ],
    ids=["sparse", "meta", "nested", "quantized"],
)
@pytest.mark.filterwarnings("ignore")  # of PyTorch, as it will drop some of these
def test_tensors_without_plain_values_are_one_line(change: Callable[[Tensor], Tensor], what: str) -> None:
    labels = torch.from_numpy(LABELS)
    assert said((change(IMAGES), labels)) == f"images must be a plain dense tensor, not {what}"
    assert said((IMAGES, change(labels))) == f"labels must be a plain dense tensor, not {what}"
    ids = torch.arange(COUNT)
    for name, batch in {
        "images": Batch(change(IMAGES), labels, ids),
        "labels": Batch(IMAGES, change(labels), ids),
        "ids": Batch(IMAGES, labels, change(ids)),
    }.items():
        assert said(batch) == f"data: {name} must be a plain dense tensor, not {what}"


def test_masked_values_are_refused_since_the_mask_would_be_lost() -> None:
    images, mask = IMAGES.numpy(), IMAGES.numpy() > 0.5
    line = "images have masked values: fill them, as in images.filled(0)"
    assert said((np.ma.masked_array(images, mask=mask), LABELS)) == line
    assert said(Pairs(np.ma.masked_array(images, mask=mask))) == line
    labels = np.ma.masked_array(LABELS, mask=LABELS > 2)
    assert said((IMAGES, labels)) == "labels have masked values: fill them, as in labels.filled(0)"
    assert said(Pairs(IMAGES, labels)) == "a label of the data set is masked: labels must be whole numbers"
    assert torch.equal(read((np.ma.masked_array(images), LABELS)).images, IMAGES), "nothing is masked"


@pytest.mark.parametrize(
    "given",
    [
        Pairs(IMAGES[:0], LABELS[:0]),
        Subset(TensorDataset(IMAGES, torch.from_numpy(LABELS)), []),
        DataLoader(Pairs(IMAGES[:0], LABELS[:0])),
        DataLoader(Pairs(IMAGES), batch_size=COUNT + 1, drop_last=True),
        Stream(),
        DataLoader(Stream()),
    ],
)
def test_data_without_images_are_one_line(given: object) -> None:
    assert said(given) == "the data set has no images"


def seeded(count: int, **more: Any) -> RandomSampler:
    return RandomSampler(range(COUNT), num_samples=count, generator=torch.Generator().manual_seed(0), **more)


@pytest.mark.parametrize(
    "sampler",
    [lambda: seeded(5), lambda: seeded(20, replacement=True), lambda: seeded(20), lambda: SubsetRandomSampler([7, 3])],
    ids=["some", "replaced", "again", "subset"],
)
def test_what_a_sampler_draws_is_what_is_measured(sampler: Callable[[], Any]) -> None:
    drawn = [7, 3] if isinstance(sampler(), SubsetRandomSampler) else list(sampler())
    batch = read(DataLoader(Pairs(IMAGES), batch_size=3, sampler=sampler()))
    if isinstance(sampler(), SubsetRandomSampler):
        assert sorted(batch.labels.tolist()) == sorted(LABELS[drawn].tolist())
    else:
        assert torch.equal(batch.images, IMAGES[drawn])
        assert batch.labels.tolist() == LABELS[drawn].tolist()


def joined(items: list[tuple[dict[str, NDArray[Any]], int]]) -> tuple[Tensor, Tensor]:
    """Do what the items need, as users' functions do."""
    images = torch.stack([torch.from_numpy(item["pixels"]) for item, _ in items])
    return images.permute(0, 3, 1, 2) / 255, torch.tensor([label for _, label in items])


def test_a_loader_that_shuffles_is_read_in_order_by_its_own_function_and_no_random_state_moves() -> None:
    pairs = Pairs([{"pixels": pixels} for pixels in BYTES])
    torch.manual_seed(0)
    before = torch.get_rng_state()
    loader = DataLoader(pairs, batch_size=5, shuffle=True, drop_last=True, collate_fn=joined)
    batch = read(loader)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.allclose(batch.images, IMAGES, rtol=0, atol=1e-7), "all images, also those of the last batch"
    assert batch.labels.tolist() == LABELS.tolist()
