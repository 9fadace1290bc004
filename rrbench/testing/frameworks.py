"""The contract of a framework."""

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rrbench.compute.draws import HashedDraws
from rrbench.compute.eval_mode import Learning
from rrbench.plugins.contract import check_class
from rrbench.protocols import Batch, Framework, Outputs, Rejector
from rrbench.testing.check import Check, expect
from rrbench.testing.problem import INFO, Plain, build_network, patterns, untrained
from rrbench.training.first_step import FirstStep

SHARE = 10.0
COUNT = 20  # images
LESSONS = 20  # steps of a training


def framework_checks(framework: Framework, rejector: Rejector | None = None) -> list[Check]:
    """Return the contract as checks of a framework; `rejector` is its own one, if it trains one."""
    partner = rejector or Plain()
    return [
        Check("its class says what it is", lambda: _says_what_it_is(framework)),
        Check("its loss is one finite number whose slopes reach the weights", lambda: _has_loss(framework, partner)),
        Check("the same draws give the same loss", lambda: _is_repeatable(framework, partner)),
        Check("the label of every image is in its loss", lambda: _uses_every_label(framework, partner)),
        Check("a network learns the labels by it", lambda: _teaches(framework, partner)),
        Check("the rejector's share is in its loss", lambda: _has_share(framework, partner)),
        Check("the rejector is given each image's own label", lambda: _gives_labels(framework, partner)),
    ]


def _says_what_it_is(framework: Framework) -> None:
    kind = type(framework)
    check_class(kind)
    expect(kind.minimises, f"{kind.__name__} does not say what its loss is: write minimises = '...'")
    count = framework.gradients_per_image()
    expect(count >= 1, f"gradients_per_image says {count}, and the weight update alone is 1")


def _few() -> Batch:
    return patterns().at(slice(COUNT)).copied()


def _follow(framework: Framework, rejector: Rejector, network: nn.Module, batch: Batch) -> Tensor:
    """Do a step as the first of a training is done, without the update; return the loss."""
    network.train()
    learning, step = Learning.of(network), FirstStep(framework, rejector, network)
    with torch.enable_grad():
        loss = step.loss(network, batch, HashedDraws(3))
        network.zero_grad()
        step.follow(loss)
    left = learning.left()
    expect(not left, f"it leaves {left}: put it back before returning the loss")
    return loss.detach()


def _loss(framework: Framework, rejector: Rejector, batch: Batch) -> float:
    return _follow(framework, rejector, build_network(rejector), batch).item()


def _has_loss(framework: Framework, rejector: Rejector) -> None:
    network = untrained(rejector)  # a hinge loss may be 0 where all answers are right
    _follow(framework, rejector, network, _few())
    slopes = [parameter.grad for parameter in network.parameters() if parameter.grad is not None]
    expect(any(slope.any() for slope in slopes), "its loss moves no weight")
    expect(all(slope.isfinite().all() for slope in slopes), "slopes of the weights are NaN or infinite")


def _is_repeatable(framework: Framework, rejector: Rejector) -> None:
    first, second = (_loss(framework, rejector, _few()) for _ in range(2))
    expect(first == second, f"it is {first:.6g}, then {second:.6g}: take random numbers from draws alone")


def _uses_every_label(framework: Framework, rejector: Rejector) -> None:
    # Labels, not images: through batch norm every image changes the loss, also one that is not learnt from.
    plain, unused = _loss(framework, rejector, _few()), []
    for index in range(COUNT):
        batch = _few()
        batch.labels[index] = (batch.labels[index] + 1) % INFO.classes
        if _loss(framework, rejector, batch) == plain:
            unused.append(index)
    which = f"{len(unused)} of {COUNT} images, the first at place {unused[0] if unused else 0}"
    expect(not unused, f"its loss does not change with the labels of {which}: use the whole batch")


def _teaches(framework: Framework, rejector: Rejector) -> None:
    _learn(framework, rejector, "a network that is trained by it")


def _learn(framework: Framework, rejector: Rejector, what: str) -> None:
    """Train a network, and expect that it is more often right than by chance; `what` names it in the message."""
    network, batch = untrained(rejector), patterns()
    for _ in range(LESSONS):
        _follow(framework, rejector, network, batch.copied())
        learning = [parameter for parameter in network.parameters() if parameter.grad is not None]
        with torch.no_grad():
            # Of at most this length, so that the loss may have any scale.
            length = nn.utils.clip_grad_norm_(learning, 1.0)
            expect(length.isfinite(), "slopes of the weights are NaN or infinite")
            for parameter in learning:
                parameter.sub_(0.5 * cast(Tensor, parameter.grad))
    with torch.no_grad():
        answers = network.eval()(batch.images).logits.argmax(1)
    right, chance = 100 * float((answers == batch.labels).double().mean()), 100 / INFO.classes
    said = f"{what} is right {right:.0f} times in 100 after {LESSONS} steps, and by chance {chance:.0f} times"
    expect(right > chance, f"{said}: use each image's own label, and a loss that falls as it learns")


def _sharing(rejector: Rejector, training_loss: object) -> Rejector:
    """Return the same rejector with a loss of its own."""
    base = type(rejector)
    kind: Any = type(base.__name__, (base,), {"training_loss": training_loss, "__module__": __name__})
    return cast(Rejector, dataclass(kind)())


def _has_share(framework: Framework, rejector: Rejector) -> None:
    def with_share(self: Rejector, outputs: Outputs, labels: Tensor, classifier_loss: Tensor) -> Tensor:
        return classifier_loss + SHARE

    added = _loss(framework, _sharing(rejector, with_share), _few()) - _loss(framework, rejector, _few())
    expect(added > SHARE / 2, "a rejector's own loss is not in it: return victim.training_loss(outputs, labels, loss)")


def _gives_labels(framework: Framework, rejector: Rejector) -> None:
    def alone(self: Rejector, outputs: Outputs, labels: Tensor, classifier_loss: Tensor) -> Tensor:
        return F.cross_entropy(outputs.logits, labels)

    _learn(framework, _sharing(rejector, alone), "a network that learns by the rejector's loss alone")
