"""Watches the first step of a training: a wrong framework or loss is wrong in every step, and one costs no time.

The step is the real one, so that no number changes. It is never captured: steps that warm up come before.
"""

from copy import copy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from rrbench.errors import CellError, first_line
from rrbench.plugins.guards import checked_loss
from rrbench.protocols import Batch, Draws, Framework, Outputs, Rejector, Victim

LEFT_OUT = "training_loss of {} leaves out classifier_loss: add it, or name in frameworks those whose loss it replaces"
A_CLASS = 5  # inputs a class: a random network answers none of them right less than once in a hundred times
RESTORED = 1e-5  # of a weight's largest value: who moves weights and subtracts the move again leaves rounding
AGAIN = "backward through the graph a second time"  # PyTorch's words


@dataclass
class FirstStep:
    """One step of a framework; `loss` and `follow` refuse what is surely wrong, `remarks` names what may be."""

    framework: Framework
    rejector: Rejector
    network: nn.Module  # whose weights learn
    _weights: dict[str, tuple[nn.Parameter, Tensor]] = field(default_factory=dict, init=False)
    _is_watching: bool = field(default=True, init=False)  # until the step's remarks were made
    _lessons: list[Tensor] = field(default_factory=list, init=False)  # for each pass: which rows have a gradient
    _is_heard: bool = field(default=False, init=False)  # the rejector's loss is part of the step's
    _is_asked: bool = field(default=False, init=False)  # the rejector was given the framework's own loss
    _is_kept: bool = field(default=False, init=False)  # and that is part of the step's
    _outputs: Outputs | None = field(default=None, init=False)  # of the first pass
    _columns: list[Tensor] = field(default_factory=list, init=False)  # for each pass: which columns of the head learn

    def loss(self, asked: nn.Module, batch: Batch, draws: Draws) -> Tensor:
        """Return the framework's loss; `asked` is the network that it is given, in its precision."""
        name = type(self.framework).__name__
        spied = copy(self.rejector)
        vars(spied)["training_loss"] = self._training_loss

        # Not a method: a framework may copy the network, for example for a teacher, and the copy would copy `self`.
        def note(module: nn.Module, given: tuple[Tensor, ...], outputs: Outputs) -> None:
            if module is asked and self._is_watching:
                self._note(given, outputs)

        hook = asked.register_forward_hook(note)
        try:
            loss = self.framework(Victim(asked, spied), batch, draws)
        finally:
            hook.remove()
        now = dict(self.network.named_parameters())
        for key, (weight, before) in self._weights.items():
            if now.get(key) is not weight or (weight.requires_grad and _has_moved(weight.detach(), before)):
                raise CellError(
                    f"{name} changes the network's weight {key!r}: return only the loss, and rrbench takes the step"
                )
        return _finite(name, checked_loss(name, loss))

    def follow(self, loss: Tensor) -> None:
        """Compute the gradients of the weights."""
        name = type(self.framework).__name__
        try:
            loss.backward()
        except RuntimeError as error:
            if AGAIN not in first_line(error):
                raise
            raise CellError(
                f"{name} calls backward on its loss: return only the loss, and rrbench takes the step"
            ) from None
        if all(weight.grad is None for weight, _ in self._weights.values()):
            raise CellError(f"no gradient of {name}'s loss reaches the network: compute it from victim.network(images)")

    def remarks(self, count: int, *, is_fresh: bool) -> list[str]:
        """Say what is unusual in a batch of `count` images; a trained network may have slopes that are exactly zero."""
        found = []
        name, own = type(self.framework).__name__, type(self.rejector).__name__
        if type(self.rejector).training_loss is not Rejector.training_loss and not self._is_heard:
            found.append(f"{name} leaves out the loss of {own}: return victim.training_loss(outputs, labels, loss)")
        unreached = self._unreached()
        if unreached:
            more = f" and {len(unreached) - 1} more" if unreached[1:] else ""
            found.append(f"no gradient reaches the weight {unreached[0]!r}{more}: training leaves it as it is")
        if self._is_asked and not self._is_kept and not self.rejector.frameworks:
            found.append(LEFT_OUT.format(own))
        found += self._untaught()
        taught = sum(int(rows.sum()) for rows in self._lessons)
        if is_fresh and 0 < taught < count:  # 0: it learns by features
            found.append(f"{name} learns from {taught} of the {count} images of its first batch")
        self._is_watching = False
        self._weights.clear()
        self._lessons.clear()
        self._columns.clear()
        self._outputs = None
        return found

    def _untaught(self) -> list[str]:
        """Say which columns of the head the certainty reads, though no loss reaches them while it reaches others."""
        if self._outputs is None or not self._columns:
            return []
        count, classes = self._outputs.logits.shape
        # Else chance may leave a column out of one batch: a column a class, or one that learns from right answers.
        if self._outputs.head.shape[1] >= classes or count < A_CLASS * classes:
            return []
        taught = torch.stack(self._columns).any(0)
        read = _read_by(self.rejector, self._outputs)
        missed = [] if read is None else (read & ~taught).nonzero()[:, 0].tolist()
        if not missed or not bool(taught.any()):
            return []
        columns = f"column{'s' * (len(missed) > 1)} {', '.join(map(str, missed))}"
        return [f"the certainty reads {columns} of the head, which no loss reaches in the first step"]

    def _unreached(self) -> list[str]:
        return [key for key, (weight, _) in self._weights.items() if weight.requires_grad and weight.grad is None]

    def _training_loss(
        self, outputs: Outputs, labels: Tensor, classifier_loss: Tensor, *more: Any, **named: Any
    ) -> Tensor:
        """Call the rejector's own, and check its answer if the framework gave it a right loss."""
        name = f"training_loss of {type(self.rejector).__name__}"
        loss = self.rejector.training_loss(outputs, labels, classifier_loss, *more, **named)
        if not self._is_watching:  # a framework may keep the rejector of its first step
            return loss
        is_number = isinstance(classifier_loss, Tensor) and classifier_loss.shape == ()
        if is_number and classifier_loss.requires_grad:
            loss = checked_loss(name, loss)
            if classifier_loss.isfinite():
                _finite(name, loss)
            self._is_asked = True
            classifier_loss.register_hook(self._keep)
        if isinstance(loss, Tensor) and loss.requires_grad:
            loss.register_hook(self._hear)
        return loss

    def _hear(self, slope: Tensor) -> None:
        self._is_heard = True

    def _keep(self, slope: Tensor) -> None:
        self._is_kept |= bool(slope)

    def _note(self, given: tuple[Tensor, ...], outputs: Outputs) -> None:
        """Note later which rows of a pass have a gradient; a pass that moves images is no lesson.

        Not by the features: in a head with batch norm, each row's slope reaches the features of all.
        """
        if not self._weights:  # after the first pass, as some layers set their weights in it
            self._weights = {key: (weight, weight.detach().clone()) for key, weight in self.network.named_parameters()}
        if not given or given[0].requires_grad:
            return
        rows = torch.zeros(len(given[0]), dtype=torch.bool, device=given[0].device)

        def taught(slope: Tensor) -> None:
            rows.logical_or_((slope != 0).flatten(1).any(1))

        columns = torch.zeros(outputs.head.shape[1], dtype=torch.bool, device=rows.device)

        def reached(slope: Tensor) -> None:
            columns.logical_or_((slope != 0).any(0))

        if len(columns) and outputs.head.requires_grad:
            outputs.head.register_hook(reached)
            self._columns.append(columns)
            self._outputs = self._outputs or Outputs(*(part.detach().clone() for part in outputs))
        self._lessons.append(rows)
        for part in (outputs.logits, outputs.head):
            if part.requires_grad:
                part.register_hook(taught)


def _read_by(rejector: Rejector, outputs: Outputs) -> Tensor | None:
    """Tell which columns of the head a certainty follows; None if it has no gradient."""
    head = outputs.head.clone().requires_grad_()
    try:
        with torch.enable_grad():
            certainty = rejector.certainty(rejector.shown(outputs._replace(head=head)))
            (slope,) = torch.autograd.grad(certainty.sum(), head)
    except Exception:  # a run says what is wrong with it
        return None
    return (slope != 0).any(0)


def _has_moved(weight: Tensor, before: Tensor) -> bool:
    """Tell whether a weight has another value, by more than rounding."""
    if weight.shape != before.shape or not weight.numel():
        return weight.shape != before.shape
    return not bool((weight - before).abs().max() <= RESTORED * before.abs().max())


def _finite(whose: str, loss: Tensor) -> Tensor:
    if not loss.isfinite():
        raise CellError(f"{whose} returns a loss of {loss.item()} in the first step")
    return loss
