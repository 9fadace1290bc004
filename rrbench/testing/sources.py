"""The contracts of networks and data sets."""

from functools import partial
from pathlib import Path
from typing import get_args

import torch
from torch import nn

from rrbench.datasets.check import check_batch, fingerprint
from rrbench.errors import UseError
from rrbench.measuring import probes
from rrbench.networks.wrapped import check_network
from rrbench.plugins.contract import check_class
from rrbench.protocols import Batch, DataInfo, DataSource, NetworkSource, Outputs, Rejector, Split
from rrbench.testing.check import Check, expect
from rrbench.testing.problem import Headed, Plain

SPLITS: tuple[Split, ...] = get_args(Split)
INFO = DataInfo(classes=10, shape=(3, 32, 32), mean=(0.5,) * 3, std=(0.25,) * 3)


def network_checks(source: NetworkSource) -> list[Check]:
    """Return the contract as checks of an architecture."""
    return [
        Check("its class says what it is", lambda: check_class(type(source))),
        Check("it gives features, logits and the rejector's head", lambda: _has_parts(source)),
        Check("the same random state gives the same weights", lambda: _is_repeatable(source)),
        Check("the rest of the batch changes no answer, and the image has a gradient", lambda: _is_alone(source)),
    ]


def _build(source: NetworkSource, rejector: Rejector) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return source.build(INFO, rejector).eval()


def _batch() -> Batch:
    images = torch.rand(3, *INFO.shape, generator=torch.Generator().manual_seed(5))
    return Batch(images, torch.arange(3), torch.arange(3))


def _has_parts(source: NetworkSource) -> None:
    for rejector in (Plain(), Headed()):
        network = _build(source, rejector)
        check_network(network, _batch(), INFO.classes)
        with torch.no_grad():
            outputs: Outputs = network(_batch().images)
        expect(outputs.features.shape[1] > 0, "it gives no features: rejectors on features cannot use it")
        wanted = int(rejector.has_head())
        found = outputs.head.shape[1]
        expect(found == wanted, f"the head has {found} outputs, not {wanted}: call rejector.build_head")
        expect(all(part.isfinite().all() for part in outputs), "it gives NaN or infinite outputs")


def _is_repeatable(source: NetworkSource) -> None:
    first, second = (_build(source, Plain()).state_dict() for _ in range(2))
    is_same = first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)
    expect(is_same, "two networks from one random state differ: draw weights from torch's current state")


def _is_alone(source: NetworkSource) -> None:
    network, images = _build(source, Plain()), _batch().images.requires_grad_()
    with torch.enable_grad():
        logits = network(images).logits
        (gradient,) = torch.autograd.grad(logits.square().sum(), images)
    expect(gradient.isfinite().all() and gradient.any(), "no gradient reaches the images")
    outputs = Outputs(*(part.detach() for part in network(images)))
    for doubt in probes.of_network(network, _batch(), outputs):
        expect(False, doubt.text)


def dataset_checks(source: DataSource, roots: tuple[Path, ...] = ()) -> list[Check]:
    """Return the contract as checks of a data set; its images are checked if they are on this machine."""
    return [
        Check("its class says what it is", lambda: _says_what_it_is(source)),
        *(
            Check(f"its {split} images, where they are here, are what it says", partial(_loads, source, split, roots))
            for split in SPLITS
            if split in source.splits
        ),
        Check("the same test images come each time", lambda: _is_steady(source, roots)),
    ]


def _says_what_it_is(source: DataSource) -> None:
    check_class(type(source))
    info = source.info
    expect(info.classes > 1, f"it has {info.classes} classes")
    channels = info.shape[0]
    expect(len(info.mean) == len(info.std) == channels, f"mean and std need {channels} numbers each")
    expect(min(info.std) > 0, "std must be above 0")
    known = "test" in source.splits and source.splits <= set(SPLITS)
    expect(known, f"its splits are {', '.join(sorted(source.splits))}: they must be of {', '.join(SPLITS)}, with test")


def _loaded(source: DataSource, split: Split, roots: tuple[Path, ...]) -> Batch | None:
    try:
        return source.load(split, roots)
    except UseError:
        return None  # not on this machine, and the error said so


def _loads(source: DataSource, split: Split, roots: tuple[Path, ...]) -> None:
    batch, info = _loaded(source, split, roots), source.info
    if batch is None:
        return
    check_batch(batch, info.classes, split)
    shape = tuple(batch.images.shape[1:])
    expect(shape == info.shape, f"its {split} images are {shape}, and its info says {info.shape}")
    size = {"train": info.train_size, "calibration": info.calibration_size, "test": info.test_size}[split]
    expect(size in (0, batch.size), f"it has {batch.size} {split} images, and its info says {size}")


def _is_steady(source: DataSource, roots: tuple[Path, ...]) -> None:
    """Refuse splits that are drawn anew: each process would train on images that another one measures."""
    first, second = (_loaded(source, "test", roots) for _ in range(2))
    is_same = first is None or second is None or fingerprint(first) == fingerprint(second)
    expect(is_same, "two loads give other test images: draw splits from a fixed seed")
