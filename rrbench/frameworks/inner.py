"""What frameworks that train on PGD's images share: the attack's settings, its start and its climb."""

from dataclasses import dataclass
from fractions import Fraction

from torch import Tensor, nn

from rrbench.ascent import Score, ascend, random_start
from rrbench.compute.eval_mode import Mode, mode
from rrbench.errors import CellError
from rrbench.protocols import Batch, Draws, Framework, Network, Outputs
from rrbench.ranges import above, at_least, at_most


@dataclass(frozen=True)
class InnerPgd(Framework):
    """A framework that contains PGD in the linf ball; the subclass chooses the objective."""

    eps: Fraction = Fraction(8, 255)
    step: Fraction = Fraction(2, 255)
    steps: int = 10
    attack_mode: Mode = "train"  # mode of batch norm during the attack

    def __post_init__(self) -> None:
        above(0, eps=self.eps, step=self.step)
        at_most(1, eps=self.eps)
        at_least(0, steps=self.steps)

    def uniform_start(self, batch: Batch, draws: Draws) -> Tensor:
        """Start at a random point of the ball."""
        return random_start(batch, "linf", float(self.eps), draws, 0)

    def climb(self, network: Network, batch: Batch, start: Tensor, objective: Score) -> Tensor:
        """Return the last image of the ascent; afterwards the network has its own mode again."""

        def value(outputs: Outputs) -> Tensor:
            return objective(outputs, batch.labels)

        with mode(network, self.attack_mode):
            return ascend(
                network,
                batch.images,
                start,
                value,
                norm="linf",
                radius=float(self.eps),
                step=float(self.step),
                steps=self.steps,
            )


def head_output(outputs: Outputs) -> Tensor:
    """Return the head's first output, (N,), for frameworks that train the head themselves."""
    if outputs.head.shape[1] == 0:
        raise CellError("this framework trains a head, and the rejector brings none")
    return outputs.head[:, 0]


def classifier_weights(network: Network) -> Tensor:
    """Return the weights of the classifier, for frameworks that penalise them."""
    named = network.named_parameters() if isinstance(network, nn.Module) else ()
    # The first: behind the network's own weights, a copy for fast gradients of images may follow.
    found = next((weight for name, weight in named if f".{name}".endswith(".classifier.weight")), None)
    if found is None:
        raise CellError("this framework penalises the classifier's weights, and the network has no `classifier`")
    return found
