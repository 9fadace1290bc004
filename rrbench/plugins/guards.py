"""Calls plugins and checks their answers: a wrong answer gives one line that names the class and what to write."""

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy, deepcopy
from dataclasses import replace
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rrbench.errors import CellError, brief
from rrbench.files.fingerprints import of_object
from rrbench.lending import is_same, is_written, surroundings_kept, writes_into
from rrbench.plugins.signs import moved_since, random_states
from rrbench.protocols import Attack, Batch, Budget, Moved, Norm, Outputs, Rejector, Victim

PROBED = 8  # inputs on which a rejector's certainty is tried alone and in a batch
ROUNDING = 1e-4  # share of a score and of the scores' spread that may change with the batch's shape
SLACK = 1e-6  # how far rounding may carry an image out of its budget
SPARED = 0.01  # share of a large batch that may change more: rounding ruins a few scores, such as distances near zero


@contextmanager
def _lent(rejector: Rejector, method: str, outputs: Outputs, labels: Tensor) -> Iterator[tuple[Outputs, Tensor]]:
    """Lend a rejector copies of tensors that other code reads too, and refuse it if it writes into them.

    If gradients are on, `certainty` gets copies with a history, like the outputs that an attack has.
    """
    name, outputs = type(rejector).__name__, Outputs(*(part.detach() for part in outputs))
    fitted, attributes = _copied(rejector), dict(vars(rejector))
    copies = Outputs(*(part.clone() for part in outputs))
    if method == "certainty" and torch.is_grad_enabled():
        copies = Outputs(*(part.requires_grad_().clone() for part in copies))
    lent = labels.clone()
    with surroundings_kept():
        yield rejector.shown(copies), lent
    for part, own, original in zip((*outputs._fields, "labels"), (*copies, lent), (*outputs, labels), strict=True):
        if is_written(own.detach(), original):
            raise CellError(writes_into(method, name, part))
    if method == "fit":
        return
    for key in fitted.keys() | rejector.fitted.keys():
        if key not in fitted or key not in rejector.fitted or not is_same(rejector.fitted[key], fitted[key]):
            rejector.fitted = fitted
            raise CellError(f"{method} of {name} changes self.fitted[{key!r}]: only fit may write there")
    written = _written(rejector, attributes)
    vars(rejector).clear()
    vars(rejector).update(attributes)  # a cached_property is computed anew for each call
    if written:
        raise CellError(
            f"{method} of {name} writes self.{written[0]}, so rows would depend on what was asked before: "
            f"compute it in __post_init__, or in fit as self.fitted[{written[0]!r}]"
        )


def _written(rejector: Rejector, own: Mapping[str, object]) -> list[str]:
    """Return the attributes that were set anew or deleted, but for `fitted` and what is computed from the others."""
    now, missing = vars(rejector), object()
    return sorted(
        key
        for key in now.keys() | own.keys()
        if now.get(key, missing) is not own.get(key, missing)
        and key != "fitted"
        and not isinstance(getattr(type(rejector), key, None), cached_property)
    )


def _copied(rejector: Rejector) -> dict[str, Tensor]:
    return {key: tensor.clone() for key, tensor in rejector.fitted.items()}


def lend_rejector(rejector: Rejector) -> Rejector:
    """Return a rejector for an attack, with a copy of what it has learnt."""
    own = copy(rejector)
    own.fitted = _copied(rejector)
    return own


def watch(victim: Victim) -> tuple[Victim, set[str]]:
    """Return the victim as an adaptive attack gets it, and a set that is empty until its rejector is looked at."""
    looks: set[str] = set()

    class Watched(Victim):
        """Notes who takes the rejector; copies with another network do, too."""

        @property
        def rejector(self) -> Rejector:
            """The rejector."""
            looks.add("rejector")
            return cast(Rejector, tuple.__getitem__(self, 1))

        def __iter__(self) -> Iterator[Any]:
            """Iterate as the tuple does, which takes the rejector."""
            looks.add("all parts")
            return super().__iter__()

    return Watched(*victim), looks


def check_returned(attack: Attack, lent: Rejector, rejector: Rejector) -> None:
    """Refuse an attack that changes what the rejector has learnt."""
    for key in rejector.fitted:
        if key not in lent.fitted or not is_same(lent.fitted[key], rejector.fitted[key]):
            names = type(attack).__name__, type(rejector).__name__
            raise CellError(f"{names[0]} changes what {names[1]} has learnt (self.fitted[{key!r}]): work on a copy")


def fit(rejector: Rejector, clean: Outputs, labels: Tensor) -> Rejector:
    """Fit a rejector and return a fresh one that has only `fitted`, as every later run loads it."""
    name, own = type(rejector).__name__, dict(vars(rejector))
    unfitted = copy(rejector)
    unfitted.fitted = _copied(rejector)
    # Not `Chance`: it draws a number itself, which could change the weights of a network that another thread builds.
    before = random_states(labels.device)
    with _lent(rejector, "fit", clean, labels) as (outputs, lent):
        rejector.fit(outputs, lent)
    drawn = moved_since(before, labels.device)
    for key in _written(rejector, own):
        raise CellError(f"fit of {name} writes self.{key}: only self.fitted is kept, so write self.fitted[{key!r}]")
    if not isinstance(rejector.fitted, dict) or not rejector.fitted:
        raise CellError(f"fit of {name} leaves self.fitted empty: write into it all that certainty needs")
    for key, value in rejector.fitted.items():
        if not isinstance(key, str) or not isinstance(value, Tensor):
            kind = type(value).__name__
            raise CellError(f"fit of {name} writes a {kind} into self.fitted[{key!r}]: only tensors by name are kept")
        if value.layout != torch.strided:
            raise CellError(f"fit of {name} writes a sparse tensor into self.fitted[{key!r}]: write value.to_dense()")
    if drawn:
        with _lent(unfitted, "fit", clean, labels) as (outputs, lent):
            unfitted.fit(outputs, lent)
        again = unfitted.fitted
        if again.keys() != rejector.fitted.keys() or not all(map(is_same, again.values(), rejector.fitted.values())):
            raise CellError(
                f"fit of {name} takes random numbers from {' and '.join(drawn)}, so each fit learns something else: "
                "take them from a generator that it seeds itself"
            )
    # Copies: two names of one tensor cannot be stored.
    rejector.fitted = {key: value.detach().clone() for key, value in rejector.fitted.items()}
    try:
        fresh = replace(rejector)
    except TypeError:  # a user's own class, whose constructor takes other arguments
        return rejector
    fresh.fitted = rejector.fitted
    return fresh


@torch.no_grad()
def certainties(rejector: Rejector, outputs: Outputs, labels: Tensor) -> NDArray[np.float64]:
    """Return a rejector's scores; anything but one finite number for each input is an error."""
    with _lent(rejector, "certainty", outputs, labels) as (lent, lent_labels):
        certainty = rejector.oracle_certainty(lent, lent_labels)
    if not isinstance(certainty, Tensor):
        raise CellError(f"{rejector} gives {type(certainty).__name__} instead of a tensor of scores")
    if certainty.dtype == torch.bool or certainty.is_complex():
        raise CellError(f"{rejector} gives scores of {certainty.dtype}: return real numbers, as floats")
    if certainty.shape != labels.shape:
        raise CellError(f"{rejector} gives {tuple(certainty.shape)} scores for {len(labels)} inputs")
    bad = int((~certainty.isfinite()).sum())
    if bad:
        raise CellError(f"{rejector} gives NaN or infinite scores on {bad} inputs")
    scores = certainty.double().cpu().numpy()
    _check_declared(rejector, scores)
    return scores


def _check_declared(rejector: Rejector, scores: NDArray[np.float64]) -> None:
    """Refuse scores that a rejector's own facts exclude: attacks rely on these facts."""
    if not scores.size:
        return
    low, high = float(scores.min()), float(scores.max())
    found = f"its certainty goes from {low:.6g} to {high:.6g}"
    if rejector.is_constant and high - low > ROUNDING * max(1.0, abs(high)):
        raise CellError(f"is_constant of {type(rejector).__name__} is true, and {found}: delete is_constant")
    if rejector.is_probability and (low < -ROUNDING or high > 1 + ROUNDING):
        raise CellError(f"is_probability of {type(rejector).__name__} is true, and {found}: delete is_probability")


def check_alone(rejector: Rejector, outputs: Outputs, labels: Tensor) -> None:
    """Refuse a certainty that depends on the rest of the batch: rows would depend on the batch size."""
    total, count = len(labels), min(PROBED, len(labels))
    few, few_labels = outputs.at(slice(count)), labels[:count]
    _check_climbing(rejector, few, few_labels)
    parts = [torch.arange(count).flip(0)[:-1], *torch.arange(min(2, count)).split(1)]
    _check_parts(rejector, few, few_labels, parts if count > 1 else [])
    if total > count:  # it may look at the batch only if that is large
        _check_parts(rejector, outputs, labels, torch.arange(total).tensor_split(2), SPARED)


def _check_parts(
    rejector: Rejector, outputs: Outputs, labels: Tensor, parts: Sequence[Tensor], spared: float = 0
) -> None:
    """Refuse a certainty whose scores for all inputs together are not those for parts; a share of inputs is spared."""
    together = certainties(rejector, outputs, labels)
    spread = float(np.subtract(*np.quantile(together, [0.75, 0.25]))) if len(together) else 0.0
    for part in parts:
        rows = part.to(labels.device)
        found, expected = certainties(rejector, outputs.at(rows), labels[rows]), together[part.numpy()]
        off = np.abs(found - expected) - ROUNDING * (np.abs(expected) + spread)
        worst = int(off.argmax())
        if (off > 0).mean() > spared:
            raise CellError(
                f"the certainty of {type(rejector).__name__} depends on the batch: one input has "
                f"{expected[worst]:.6g} among {len(together)} and {found[worst]:.6g} among {len(part)}; "
                "compute each score from its own row alone, and without chance"
            )


def threshold_of(rejector: Rejector) -> float | None:
    """Return the threshold that a fitted rejector brings, if it brings one."""
    threshold = rejector.own_threshold
    if threshold is None:
        return None
    if not isinstance(threshold, int | float) or isinstance(threshold, bool) or not math.isfinite(threshold):
        raise CellError(
            f"own_threshold of {type(rejector).__name__} is {brief(threshold)}: write float(...), finite, or None"
        )
    return float(threshold)


def check_steady(rejector: Rejector, outputs: Outputs, labels: Tensor, said: NDArray[np.floating[Any]]) -> None:
    """Refuse a certainty that no longer says of clean inputs what it said: rows would depend on what was asked before.

    `said` holds what it said of these inputs, or of more that begin with these.
    """
    expected, now = said[: len(labels)], certainties(rejector, outputs, labels)
    if not np.allclose(now, expected, rtol=ROUNDING, atol=ROUNDING * float(np.ptp(said)) if said.size else 0):
        worst = int(np.abs(now - expected).argmax())
        raise CellError(
            f"the certainty of {type(rejector).__name__} has changed since the clean inputs were scored: one had "
            f"{expected[worst]:.6g}, and now {now[worst]:.6g}; compute each score from its own row alone"
        )


def _check_climbing(rejector: Rejector, outputs: Outputs, labels: Tensor) -> None:
    """Refuse a certainty that writes into its inputs only while gradients are on."""
    try:
        with torch.enable_grad(), _lent(rejector, "certainty", outputs, labels) as (lent, lent_labels):
            rejector.oracle_certainty(lent, lent_labels)
    except CellError:
        raise
    except Exception:  # it has no gradient; an attack that needs one reports that
        return


@contextmanager
def class_kept(attack: Attack) -> Iterator[None]:
    """Restore afterwards the values of an attack's classes, and refuse an attack that changed tensors or arrays there.

    Every cell gets its own attack, but attacks of one class share these values over networks and budgets. Only tensors
    count: an attack may count its calls.
    """
    before = {place: (_spare(value), _hash_of_tensors(value)) for place, value in _held_by_class(attack)}
    nothing = _hash_of_tensors(None)
    try:
        yield
    finally:
        after = {place: _hash_of_tensors(value) for place, value in _held_by_class(attack)}
        changed = [place for place in after if after[place] != (before[place][1] if place in before else nothing)]
        for base, key in changed:
            if (base, key) in before:
                setattr(base, key, before[base, key][0])
            else:
                delattr(base, key)
    for base, key in changed:
        raise CellError(
            f"{type(attack).__name__} changes {base.__name__}.{key}, so rows would depend on what was attacked before: "
            "keep it in self, of which every cell has its own; compute a constant in __post_init__"
        )


def _held_by_class(attack: Attack) -> Iterator[tuple[tuple[type, str], object]]:
    """Return the values, but for methods and the like, in each class of an attack, with their places."""
    for base in type(attack).__mro__:
        if base not in Attack.__mro__:
            for key, value in list(vars(base).items()):
                if not key.startswith("__") and not callable(value) and not hasattr(value, "__get__"):
                    yield (base, key), value


def _hash_of_tensors(value: object) -> str:
    """Hash the tensors and arrays in a value, or in containers in it."""

    def inside(part: object, depth: int) -> Iterator[object]:
        if isinstance(part, Tensor | np.ndarray):
            yield part
        elif depth and isinstance(part, Mapping | list | tuple | set | deque):
            for each in part.values() if isinstance(part, Mapping) else part:
                yield from inside(each, depth - 1)

    return of_object(list(inside(value, 4)))


def _spare(value: object) -> object:
    """Return a copy of a value; the value itself if it cannot be copied, as a module of Python cannot."""
    try:
        return deepcopy(value)
    except Exception:
        return value


def checked(attack: Attack, answer: object, batch: Batch, budget: Budget) -> Moved:
    """Return an attack's answer if it has the right form; else raise an error."""
    name = type(attack).__name__
    if not isinstance(answer, Moved):
        raise CellError(f"{name} returns a {type(answer).__name__} instead of Moved: write return Moved(images)")
    for what, images in (("images", answer.images), ("boldest", answer.boldest)):
        if images is None and what == "boldest":
            continue
        if not isinstance(images, Tensor) or images.shape != batch.images.shape:
            shape = tuple(images.shape) if isinstance(images, Tensor) else f"a {type(images).__name__}"
            raise CellError(f"{name} returns misshapen {what}: {shape} for a batch of {tuple(batch.images.shape)}")
        if images.dtype != batch.images.dtype or images.device != batch.images.device:
            kinds = f"{images.dtype} on {images.device}, not {batch.images.dtype} on {batch.images.device}"
            raise CellError(f"{name} returns {what} in {kinds}: make them of batch.images")
    reached = answer.reached
    if reached is None:
        if budget.radius is None:
            raise CellError(f"{name} looks for the smallest push: write Moved(images, boldest, reached)")
    elif not isinstance(reached, Tensor) or reached.shape != batch.labels.shape or reached.dtype != torch.bool:
        raise CellError(f"{name} returns a misshapen reached: it must hold one truth value an input")
    boldest = None if answer.boldest is None else answer.boldest.detach()
    return answer._replace(images=answer.images.detach(), boldest=boldest)


def check_budget(moved: Tensor, images: Tensor, budget: Budget) -> None:
    """Refuse images outside the budget or outside [0, 1]: the images of every attack are checked."""
    if moved.shape != images.shape or not bool(moved.isfinite().all()):
        raise CellError("the attack returned NaN, infinite or misshapen images")
    if float(moved.min()) < 0 or float(moved.max()) > 1:
        raise CellError("the attack left the range [0, 1]")
    if budget.radius is None:
        return
    size = sizes(moved, images, budget.norm)
    if float(size.max()) > budget.eps + SLACK * max(1.0, budget.eps):
        raise CellError(f"the attack left its budget: {budget.norm} {float(size.max()):.6g} > {budget.eps:.6g}")


def sizes(moved: Tensor, images: Tensor, norm: Norm) -> Tensor:
    """Return how far each image was moved, in the units of a budget."""
    delta = (moved - images).flatten(1)
    return delta.abs().amax(1) if norm == "linf" else torch.linalg.vector_norm(delta, dim=1)


def checked_loss(whose: str, loss: object) -> Tensor:
    """Return the loss of a step if weights can learn from it; its value is not read, so that no step waits for it."""
    if not isinstance(loss, Tensor):
        raise CellError(f"{whose} returns a {type(loss).__name__} instead of a loss: return one number as a tensor")
    if loss.shape != ():
        raise CellError(f"{whose} returns a loss of shape {tuple(loss.shape)}: return one number, as loss.mean() is")
    if not loss.is_floating_point():
        raise CellError(f"{whose} returns a loss of {loss.dtype}: return a real number, as a float")
    if not loss.requires_grad:
        raise CellError(
            f"{whose} returns a loss without a gradient: compute it from the network's outputs, "
            "without detach(), item() or no_grad()"
        )
    return loss
