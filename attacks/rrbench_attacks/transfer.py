"""Images moved on another network: they show whether the victim's gradients hide something."""

from dataclasses import dataclass

from rrbench.protocols import MovedElsewhere


@dataclass(frozen=True)
class Transfer(MovedElsewhere):
    """Shows the victim what a blind attack found on another network of the run; needs no gradient of the victim.

    An attack with the victim's own gradients should do more harm; if it does not, these gradients mislead.
    """

    paper = "Papernot et al. 2016, arXiv 1605.07277"
    maximises = "what its attack (by=pgd100) does, on the network it is moved on (source=pgd-at)"
    cost = "the gradients of that attack on that network, once for all victims"

    by: str = "pgd100"
