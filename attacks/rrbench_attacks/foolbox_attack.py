"""Any attack of foolbox by name (Rauber et al., 2020, arXiv 1707.04131): `foolbox(LinfDeepFool)`.

Write its arguments with colons: `foolbox(LinfPGD(steps:50,rel_stepsize:1/10))`.
"""

import inspect
import itertools
import logging
import os
import typing
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from rrbench.ascent import project
from rrbench.errors import CellError, UseError, first_line
from rrbench.names import convert, parse, unknown
from rrbench.protocols import Attack, Batch, Budget, Draws, Moved, Victim
from rrbench_attacks.autoattack import Logits, lent

ORDERS = {"linf": float("inf"), "l2": 2.0}


@dataclass(frozen=True)
class Foolbox(Attack):
    """One foolbox attack at the cell's budget; it answers for every input, successful or not.

    An attack that looks for the smallest distortion runs as foolbox runs it at a budget: an image farther away is moved
    back into the budget. The attack's norm decides its budgets; an attack without its own norm takes both.

    Random numbers for each image come from `draws`, so answers do not depend on the batch. Numbers that an attack draws
    in any other shape (hop-skip-jump, the boundary attack) come from one seed; those answers may depend on the batch.
    """

    paper = "Rauber et al. 2020, arXiv 1707.04131"
    maximises = "what the attack of that name in foolbox does, at the cell's budget"
    cost = "the attack's steps, roughly: foolbox does not say"
    packages = ("foolbox",)

    name: str  # without the ending `Attack`; arguments in brackets

    def __post_init__(self) -> None:
        if not self.norms:
            distance = getattr(self.build("l2"), "distance", None)
            raise ValueError(
                f"it works in {f'the {distance}' if distance else 'no distance at all'}; budgets are in linf or l2"
            )

    @cached_property
    def norms(self) -> frozenset[str]:
        """The norms of the attack's distance."""
        distances = {norm: getattr(self.build(norm), "distance", None) for norm in ORDERS}
        return frozenset(norm for norm, distance in distances.items() if distance and distance.p == ORDERS[norm])

    def build(self, norm: str) -> Any:
        """Make the foolbox attack; the error for a wrong name or argument lists near ones."""
        foolbox = load()
        call = parse(self.name.replace(":", "="))
        if call.positional is not None:
            raise UseError(f"cannot read foolbox attack {self.name!r}: write {call.name}(argument:value,...)")
        known = {name.removesuffix("Attack"): kind for name, kind in vars(foolbox.attacks).items() if is_attack(kind)}
        name = call.name.removesuffix("Attack")
        if name not in known:
            raise unknown("foolbox attack", name, known)
        parameters = inspect.signature(known[name]).parameters
        hints = typing.get_type_hints(known[name].__init__)
        writable = {key: hints[key] for key in parameters if plain_types(hints.get(key)) and key != "tensorboard"}
        arguments: dict[str, object] = {}
        for key, text in call.keywords:
            if key not in writable:
                raise unknown(f"argument of foolbox attack {name!r}", key, writable)
            arguments[key] = read(text, writable[key], f"foolbox attack {name!r}: argument {key!r}")
        if "distance" in parameters:
            arguments["distance"] = getattr(foolbox.distances, norm)
        try:
            return known[name](**arguments)
        except ImportError as error:
            raise ValueError(f"it needs a package that is not installed: {error}") from None

    def __call__(self, victim: Victim, batch: Batch, budget: Budget, draws: Draws) -> Moved:
        """Run the attack and move its answers into the budget; without a radius they are as near as it gets."""
        attack, device = self.build(budget.norm), batch.images.device
        eps = None if budget.radius is None else budget.eps
        with lent(victim.network, draws, device), unlogged(), torch.enable_grad():
            model = load().PyTorchModel(Logits(victim.network), bounds=(0, 1), device=device)
            images = tied(batch.images.contiguous(), batch.ids, draws)
            try:
                _, moved, success = attack(model, images, batch.labels, epsilons=eps)
            except (ValueError, TypeError, AssertionError, NotImplementedError) as error:
                raise CellError(f"foolbox attack {self.name} failed: {first_line(error)}") from error
        answer = moved.raw.detach().clamp(0.0, 1.0)
        if eps is None:
            return Moved(answer, answer, success.raw)
        answer = project(answer, batch.images, budget.norm, eps)
        return Moved(answer, answer)

    def gradients_per_image(self, classes: int) -> int:
        """Return the product of the steps; an attack that uses only answers makes forward passes instead."""
        attack = self.build(min(self.norms))
        steps = getattr(attack, "steps", getattr(attack, "repeats", 1))
        if "DeepFool" in self.name:
            return int(steps * (min(attack.candidates or classes, classes) - 1))
        searches = attack.binary_search_steps if hasattr(attack, "initial_const") else 1
        return int(steps * searches)


def load() -> Any:
    """Import foolbox, which takes seconds, without GitPython's warning that git is missing."""
    os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import foolbox

    return foolbox


def is_attack(value: object) -> bool:
    """Tell whether a member of `foolbox.attacks` is an attack."""
    return inspect.isclass(value) and issubclass(value, load().attacks.Attack) and not inspect.isabstract(value)


def plain_types(hint: object) -> list[object]:
    """Return the types of a hint whose values can be written as text."""
    options = typing.get_args(hint) if typing.get_origin(hint) is typing.Union else (hint,)
    return [option for option in options if option in (bool, int, float) or typing.get_origin(option) is Literal]


def read(text: str, hint: object, where: str) -> object:
    """Convert an argument's text to its type."""
    if text == "none" and type(None) in typing.get_args(hint):
        return None
    options = plain_types(hint)
    words = [word for option in options for word in typing.get_args(option)]
    if not words:
        return convert(text, options[0], where)
    if text not in words:
        raise UseError(f"{where} cannot be {text!r}; expected one of {', '.join(map(str, words))}")
    return text


def tied(images: Tensor, ids: Tensor, draws: Draws) -> Any:
    """Wrap images for foolbox: random numbers that it draws from them for each image come from `draws`."""
    from eagerpy.tensor.pytorch import PyTorchTensor

    numbers = itertools.count()

    class Tied(PyTorchTensor):
        """Results computed from it have its type, too."""

        def uniform(self, shape: Any, low: float = 0.0, high: float = 1.0) -> Any:
            if not is_per_image(shape):
                return super().uniform(shape, low, high)
            return type(self)(draws.uniform(ids, tuple(shape[1:]), next(numbers)) * (high - low) + low)

        def normal(self, shape: Any, mean: float = 0.0, stddev: float = 1.0) -> Any:
            if not is_per_image(shape):
                return super().normal(shape, mean, stddev)
            return type(self)(draws.normal(ids, tuple(shape[1:]), next(numbers)) * stddev + mean)

    def is_per_image(shape: Any) -> bool:
        return isinstance(shape, tuple) and len(shape) > 1 and shape[0] == len(ids)

    return Tied(images)


@contextmanager
def unlogged() -> Iterator[None]:
    """Stop foolbox's messages from setting up logging for the whole program."""
    handler = logging.NullHandler()
    logging.root.addHandler(handler)
    try:
        yield
    finally:
        logging.root.removeHandler(handler)
