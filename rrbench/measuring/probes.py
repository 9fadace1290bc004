"""What looks robust and is not: a few passes over a few clean inputs, once for a network and once for a rejector.

All of it is done in float32, also where attacks work in short precision: a row's notes do not depend on that. A network
may work in bf16 inside itself, where an answer has 8 bits: steps are so long that they change an answer by a tenth, and
where two shapes of a batch are compared only what no rounding can do counts.
"""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from rrbench.compute.draws import HashedDraws
from rrbench.errors import CellError
from rrbench.lending import WRITES, is_written
from rrbench.protocols import Batch, Network, Outputs, Rejector

INPUTS = 8  # on which gradients are compared with steps
PASSES = 32  # chance in one pass of seven is missed by so many once in 140 times
CROWD = 64  # among which an image must get the answer that it gets alone
SAME = 1e-4  # of the largest answer: two passes of one shape differ by less
ROUNDING = 0.05  # of the largest answer: bf16 in two shapes, or with and without gradients, differs by less
CHANGE = 0.1  # of the spread of a value: a step is to change it by so much
LONGEST = 0.04  # such a step in the images, which are drawn that far into [0, 1]
NEAR = 0.01  # both, for a certainty, which is given its outputs exactly: neighbours change within longer steps
WRONG = 0.5  # of the change that a gradient foretells; half of the inputs of any shipped network stay below 0.15
FLAT = 0.9  # share of inputs without any slope
OVERLAP = 0.01  # share of the measured inputs; single images are twice in many data sets

UNSTEADY = {
    "random": "the network is random: two passes over the same inputs differ",
    "batch": "the network looks at the batch: alone, or beside others, an image gets another answer",
}


class Doubt(NamedTuple):
    """What a note says, and which rows it concerns: all, those of attacks by gradients, or adaptive ones.

    Of the adaptive ones all, or those on a rejector that reads features or head.
    """

    text: str
    concerns: Literal["all", "gradients", "certainty", "features", "head"] = "all"


def of_network(network: Network, test: Batch, outputs: Outputs) -> list[Doubt]:
    """Doubt a network, in eval mode and with its weights frozen; `outputs` are what it says of the test inputs.

    It raises where the network writes into its images.
    """
    found = []
    if are_probabilities(outputs.logits):
        found.append(Doubt("the logits are probabilities: return what comes before the softmax"))
    unsteady = unsteadiness(network, test.images)
    if unsteady:
        found.append(Doubt(UNSTEADY[unsteady]))
    else:
        found += _differentiated(lambda: _slopes_of_network(network, test.images))
    return found


def of_rejector(rejector: Rejector, outputs: Outputs, labels: Tensor) -> list[Doubt]:
    """Doubt a fitted rejector by what it says of the outputs on clean inputs."""
    outputs, labels = outputs.at(slice(INPUTS)), labels[:INPUTS]

    def certainty(given: Outputs) -> Tensor:
        return rejector.oracle_certainty(rejector.shown(given), labels[: len(given.logits)])

    with torch.no_grad():
        first = certainty(outputs)
        again = [certainty(outputs) for _ in range(PASSES)]
    if any(_apart([each], [first]) > SAME for each in again):
        return [Doubt("the certainty is random: asked twice for the same inputs it differs")]

    def climbing() -> list[Doubt]:
        with torch.enable_grad():
            found = certainty(Outputs(*(part.clone().requires_grad_() for part in outputs)))
        if _apart([found.detach()], [first]) > SAME:
            return [Doubt("the certainty answers otherwise where gradients are asked for", "certainty")]
        return _slopes_of_certainty(rejector, outputs, labels) if found.requires_grad else []

    return _differentiated(climbing)


def _differentiated(look: Callable[[], list[Doubt]]) -> list[Doubt]:
    """Look at gradients; what cannot be differentiated is no doubt: an attack that asks for it fails and says so."""
    try:
        return look()
    except CellError:
        raise
    except Exception:
        return []


def of_data(test: Batch, apart: Batch | None) -> list[Doubt]:
    """Doubt a threshold whose inputs are said to be kept apart, and are measured too."""
    if apart is None or apart.images.shape[1:] != test.images.shape[1:]:
        return []
    count = int(torch.isin(_hashes(test.images), _hashes(apart.images)).sum())
    if count <= OVERLAP * test.size:
        return []
    return [Doubt(f"the threshold was fixed on {count} of the inputs that it is measured on")]


def are_probabilities(logits: Tensor) -> bool:
    """Tell whether every row is a distribution."""
    return bool((logits >= 0).all() and ((logits.sum(1) - 1).abs() < SAME).all())


@torch.no_grad()
def unsteadiness(network: Network, images: Tensor) -> Literal["", "random", "batch"]:
    """Tell whether passes over the same inputs differ, or else an image's answers alone and beside others."""
    crowd, one = images[:CROWD], images[:1]
    few = min(INPUTS, max(1, len(crowd) // 2))
    among = network(crowd.clone())
    if _apart(network(crowd.clone()), among) > SAME:
        return "random"
    # The same shape: whatever the precision, the rounding is the same too.
    if _apart(network(torch.cat([crowd[:few], 1 - crowd[few:]])).at(slice(few)), among.at(slice(few))) > SAME:
        return "batch"
    try:
        alone = network(one.clone())
        is_random = any(_apart(network(one.clone()), alone) > SAME for _ in range(PASSES))
    except Exception:  # among others it answers
        return "batch"
    if is_random:
        return "random"
    return "batch" if _apart(alone, among.at(slice(1))) > ROUNDING else ""


def _apart(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """Return the largest difference, as a share of the largest value of its part."""
    shares = [
        float((one - other).abs().max() / other.abs().max().clamp_min(1e-30))
        for one, other in zip(found, expected, strict=True)
        if other.numel()
    ]
    return max(shares, default=0.0)


def _slopes_of_network(network: Network, images: Tensor) -> list[Doubt]:
    """Compare the gradients of features, logits and head at the images with what small steps do."""
    at = LONGEST + (1 - 2 * LONGEST) * images[:INPUTS]
    with torch.no_grad():
        plain = network(at.clone())
    with torch.enable_grad():
        lent = at.clone().requires_grad_()
        climbing = network(lent)
    if is_written(lent.detach(), at):
        raise CellError(WRITES)
    if _apart(Outputs(*(part.detach() for part in climbing)), plain) > ROUNDING:
        return [Doubt("the network answers otherwise where gradients are asked for", "gradients")]
    found = []
    concerned: dict[str, Literal["gradients", "features", "head"]]
    concerned = {"logits": "gradients", "features": "features", "head": "head"}
    for part, concerns in concerned.items():
        columns = getattr(plain, part).shape[1]
        if not columns or not climbing.logits.requires_grad:  # an attack by gradients fails then and says so
            continue
        weights = HashedDraws(0).normal(torch.arange(1, device=at.device), (columns,), 0)[0]

        def value(given: Tensor, part: str = part, weights: Tensor = weights) -> Tensor:
            answer: Tensor = getattr(network(given), part)
            return answer @ weights

        errors, _ = slope_errors(value, at, LONGEST, CHANGE)
        if float(errors.median()) > WRONG:
            found.append(Doubt(f"the gradient of the {part} is wrong: a small step does not do what it says", concerns))
    return found


def _slopes_of_certainty(rejector: Rejector, outputs: Outputs, labels: Tensor) -> list[Doubt]:
    """Compare the gradient of certainty at the outputs with what small steps in these do."""
    is_read = [part.shape[1] > 0 and (name != "features" or name in rejector.needs) for name, part in _named(outputs)]
    parts = [part for part, read in zip(outputs, is_read, strict=True) if read]
    # Nearer to each other they are less sure: where a sure answer is flat by rounding alone, these are not.
    parts = [torch.cat([part, part.mean(0) + 0.3 * (part - part.mean(0))]) for part in parts]
    sizes = [part.square().mean().sqrt().clamp_min(1e-30) for part in parts]
    widths, both = [part.shape[1] for part in parts], torch.cat([labels, labels])

    def value(scaled: Tensor) -> Tensor:
        split = iter([part * size for part, size in zip(scaled.split(widths, 1), sizes, strict=True)])
        given = [
            next(split) if read else part.repeat(2, 1)[: len(scaled)]
            for part, read in zip(outputs, is_read, strict=True)
        ]
        return rejector.oracle_certainty(rejector.shown(Outputs(*given)), both)

    at = torch.cat([part / size for part, size in zip(parts, sizes, strict=True)], 1)
    errors, is_flat = slope_errors(value, at, NEAR, NEAR)
    if float(is_flat.double().mean()) >= FLAT:
        return [Doubt("the certainty has a gradient of zero: an adaptive attack cannot follow it", "certainty")]
    if float(errors.median()) > WRONG:
        return [Doubt("the gradient of the certainty is wrong: a small step does not do what it says", "certainty")]
    return []


def _named(outputs: Outputs) -> list[tuple[str, Tensor]]:
    return list(outputs._asdict().items())


def slope_errors(value: Callable[[Tensor], Tensor], at: Tensor, longest: float, change: float) -> tuple[Tensor, Tensor]:
    """Compare what the gradient of `value` says of small steps with what these do: (N,) errors, (N,) where it is zero.

    Steps are to change the value by the share `change` of its spread, and are no longer than `longest`.

    An error is a share of the change: 0 where the gradient is right, 1 where it says nothing. It is the larger one of
    two steps: along the gradient's signs, and across all coordinates, also those that have no gradient.
    """
    with torch.enable_grad():
        start = at.detach().clone().requires_grad_()
        values = value(start)
        slope = torch.autograd.grad(values.sum(), start, allow_unused=True)[0] if values.requires_grad else None
    gradient = torch.zeros_like(at) if slope is None else slope.detach()
    rounding = 8 * torch.finfo(values.dtype).eps
    values, flat = values.detach().double(), gradient.flatten(1).double()
    wanted = change * values.std(correction=0).clamp_min(SAME * values.abs().max())
    found = []
    for direction, size in ((gradient.sign(), flat.abs().sum(1)), (_signs(at), flat.norm(dim=1))):
        length = (wanted / size.clamp_min(1e-30)).clamp_max(longest)
        step = length.to(at.dtype).view(-1, *[1] * (at.dim() - 1)) * direction
        with torch.no_grad():
            above, below = value(at + step).double(), value(at - step).double()
        said, done = (flat * step.flatten(1).double()).sum(1), (above - below) / 2
        # Rounding and bends show in the mean of both sides too: what they may have done does not count.
        slack = ((above + below) / 2 - values).abs() + rounding * values.abs()
        scale = torch.maximum(done.abs(), length * size).clamp_min(1e-30)
        found.append(((done - said).abs() - slack).clamp_min(0) / scale)
    return torch.maximum(*found), (gradient == 0).flatten(1).all(1)


def _signs(at: Tensor) -> Tensor:
    """Return a fixed direction of 1 and -1, another for each input."""
    ids = torch.arange(len(at), device=at.device)
    return (HashedDraws(0).uniform(ids, tuple(at.shape[1:]), 0) < 0.5).to(at.dtype) * 2 - 1


def _hashes(images: Tensor) -> Tensor:
    """Return a number for each image, equal for equal ones: sums of whole numbers do not depend on their order."""
    bits = images.float().contiguous().view(torch.int32).flatten(1)
    places = torch.arange(1, bits.shape[1] + 1, device=bits.device)
    weights = places * 0x9E3779B97F4A7C1 + places * places * 0x2545F4914F6CDD1  # wraps round, on every device alike
    return torch.cat([(piece.long() * weights).sum(1) for piece in bits.split(256)])
