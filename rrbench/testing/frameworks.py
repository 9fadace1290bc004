"""The contract of a framework."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rrbench.compute.draws import HashedDraws
from rrbench.plugins.contract import check_class
from rrbench.protocols import Batch, Framework, Outputs, Rejector, Victim
from rrbench.testing.check import Check, expect
from rrbench.testing.problem import Plain, build_network, patterns

SHARE = 10.0


def framework_checks(framework: Framework, rejector: Rejector | None = None) -> list[Check]:
    """Return the contract as checks of a framework; `rejector` is its own one, if it trains one."""
    partner = rejector or Plain()
    return [
        Check("its class says what it is", lambda: _says_what_it_is(framework)),
        Check("its loss is one finite number whose slopes reach the weights", lambda: _has_loss(framework, partner)),
        Check("the same draws give the same loss", lambda: _is_repeatable(framework, partner)),
        Check("the rejector's share is in its loss", lambda: _has_share(framework, partner)),
    ]


def _says_what_it_is(framework: Framework) -> None:
    kind = type(framework)
    check_class(kind)
    expect(kind.minimises, f"{kind.__name__} does not say what its loss is: write minimises = '...'")
    count = framework.gradients_per_image()
    expect(count >= 1, f"gradients_per_image says {count}, and the weight update alone is 1")


def _loss(framework: Framework, rejector: Rejector) -> tuple[Tensor, nn.Module]:
    network, batch = build_network(rejector), Batch(*(part[:20].clone() for part in patterns()))
    network.train()
    with torch.enable_grad():
        return framework(Victim(network, rejector), batch, HashedDraws(3)), network


def _has_loss(framework: Framework, rejector: Rejector) -> None:
    loss, network = _loss(framework, rejector)
    expect(isinstance(loss, Tensor) and loss.shape == (), "it must return the loss of the step, one number")
    expect(loss.isfinite(), f"its loss is {loss.item()}")
    loss.backward()
    slopes = [parameter.grad for parameter in network.parameters() if parameter.grad is not None]
    expect(any(slope.any() for slope in slopes), "its loss moves no weight")
    expect(all(slope.isfinite().all() for slope in slopes), "slopes of the weights are NaN or infinite")


def _is_repeatable(framework: Framework, rejector: Rejector) -> None:
    first, second = (_loss(framework, rejector)[0].item() for _ in range(2))
    expect(first == second, f"it is {first:.6g}, then {second:.6g}: take random numbers from draws alone")


def _has_share(framework: Framework, rejector: Rejector) -> None:
    @dataclass
    class Sharing(type(rejector)):  # type: ignore[misc]
        """The same rejector with a loss of its own."""

        def training_loss(self, outputs: Outputs, labels: Tensor, classifier_loss: Tensor) -> Tensor:
            return classifier_loss + SHARE

    added = _loss(framework, Sharing())[0].item() - _loss(framework, rejector)[0].item()
    expect(added > SHARE / 2, "a rejector's own loss is not in it: return victim.training_loss(outputs, labels, loss)")
