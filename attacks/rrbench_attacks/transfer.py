"""Images moved on another network: they tell whether gradients of the victim hide something."""

from dataclasses import dataclass

from rrbench.protocols import MovedElsewhere


@dataclass(frozen=True)
class Transfer(MovedElsewhere):
    """Shows the victim what a blind attack found on another network of the run; it asks the victim for no gradient.

    An attack by the victim's own gradients should do more harm: where it does not, these gradients mislead.
    """

    paper = "Papernot et al. 2016, arXiv 1605.07277"
    maximises = "what its attack (by=pgd100) does, on the network it is moved on (source=pgd-at)"
    cost = "the gradients of that attack on that network, once for all victims"

    by: str = "pgd100"
