"""Finds what only looks robust: a few passes over a few clean inputs, once for a network and once for a rejector.

Probes work in float32, also if attacks use short precision: a row's notes do not depend on the precision. A network may
use bf16 inside, where an answer has 8 bits. So steps are long enough to change an answer by a tenth, and batches of
different shapes must differ by more than rounding.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from rrbench.compute.draws import HashedDraws
from rrbench.compute.eval_mode import frozen
from rrbench.errors import CellError
from rrbench.lending import WRITES, is_written, surroundings_kept
from rrbench.protocols import Batch, Network, Outputs, Rejector

INPUTS = 8  # inputs on which gradients are compared with small steps
PASSES = 32  # if one pass in seven differs, so many passes miss it once in 140 times
CROWD = 64  # images in a batch in which an image must get the same answer as alone
SAME = 1e-4  # of the largest answer: two passes of the same shape differ by less
ROUNDING = 0.05  # of the largest answer: bf16 in two shapes, or with and without gradients, differs by less
CHANGE = 0.1  # of the spread of a value: a step should change the value by so much
LONGEST = 0.04  # longest step in the images, which are first moved this far inside [0, 1]
NEAR = 0.01  # CHANGE and LONGEST of a certainty: its inputs are exact, and longer steps change nearest neighbours
WRONG = 0.5  # of the change: an error above it is wrong; the median of every shipped network is below 0.15
FLAT = 0.9  # share of inputs with a gradient of zero
OVERLAP = 0.01  # share of the inputs: many data sets hold a few images twice, CIFAR in its train and test split
FEW = 2  # copies: one or two may be chance
DARK = 0.5  # the brightest pixel of all images: below it, bytes that do not end at 255 may have been given
BETWEEN = 0.01  # how far rounding or a small constant may carry probabilities beyond [0, 1], and their sum from 1
APART = 0.5  # between the largest and the smallest probability of an input; logits in [0, 1] are a flat softmax
ENOUGH = 20  # inputs that fix a threshold: of fewer, 95 % of the right ones are all of them

UNSTEADY = {
    "random": "the network is random: two passes over the same inputs differ",
    "batch": "the network looks at the batch: alone, or beside others, an image gets another answer",
}


class Doubt(NamedTuple):
    """The text of a note, and the rows that it concerns: all rows, or rows of attacks by gradients or adaptive attacks.

    `certainty` and `head` concern all adaptive attacks, `features` only those on a rejector that needs features.
    """

    text: str
    concerns: Literal["all", "gradients", "certainty", "features", "head"] = "all"


@surroundings_kept()
def of_network(network: Network, test: Batch, outputs: Outputs) -> list[Doubt]:
    """Return doubts about a network in eval mode with frozen weights; `outputs` are its outputs on the test inputs.

    Raise CellError if the network writes into its images.
    """
    found = []
    if are_probabilities(outputs.logits):
        found.append(Doubt("the logits are probabilities: return what comes before the softmax"))
    elif look_like_probabilities(outputs.logits):
        what = "if they come from softmax or sigmoid, return what comes before it"
        found.append(Doubt(f"the logits lie in [0, 1] as probabilities do: {what}"))
    unsteady = unsteadiness(network, test.images)
    if unsteady:
        found.append(Doubt(UNSTEADY[unsteady]))
    else:
        found += _differentiated(lambda: _slopes_of_network(network, test.images))
    return found


@surroundings_kept()
def of_rejector(rejector: Rejector, outputs: Outputs, labels: Tensor) -> list[Doubt]:
    """Return doubts about a fitted rejector, from its certainties on clean inputs."""
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
    """Call `look`; an error in a gradient is no doubt: an attack that needs the gradient fails and says so."""
    try:
        return look()
    except CellError:
        raise
    except Exception:
        return []


def of_answers(outputs: Outputs, labels: Tensor) -> list[Doubt]:
    """Return a doubt if the network does not know the images: then a rejector seems to do wonders or nothing."""
    count, classes = outputs.logits.shape
    right = int((outputs.logits.argmax(1) == labels).sum())
    if count < ENOUGH or right > count / classes:
        return []
    return [Doubt(f"{right} of {count} clean inputs are answered right, no more than chance: check labels and scale")]


def of_data(test: Batch, apart: Batch | None, classes: int) -> list[Doubt]:
    """Return doubts if classes are missing or images dark, or if inputs that fix the threshold are few or measured."""
    found = _dark(test, "no pixel")
    if apart is not None and apart.size >= ENOUGH and not found:
        found += _dark(apart, "no pixel of the inputs that fix the threshold")
    there, chosen = len(test.labels.unique()), classes * (1 - (1 - 1 / classes) ** test.size)
    if (
        test.size >= ENOUGH and there <= chosen / 2
    ):  # as where a file holds one class after the other, and only its first inputs are measured
        found.append(Doubt(f"only {there} of the {classes} classes are among the inputs"))
    copies = test.size - len(_hashes(test.images).unique())
    if copies > max(FEW, OVERLAP * test.size):
        found.append(Doubt(f"{copies} of the inputs are copies of others: the intervals may be too narrow"))
    if apart is None:
        return found
    if apart.size < ENOUGH:
        found.append(Doubt(f"the threshold was fixed on {apart.size} inputs alone: too few to know what it keeps"))
    count = _shared(test, apart)
    if count:
        found.append(Doubt(f"the threshold was fixed on {count} of the inputs that it is measured on"))
    return found


def of_ids(test: Batch, calibration: Batch) -> list[Doubt]:
    """Return a doubt if calibration inputs have ids of measured inputs and are other images: they fix no threshold.

    An image of the same label may be the measured one in another form: CIFAR-10-C has the ids of the clean images.
    """
    known = dict(zip(test.ids.tolist(), test.labels.tolist(), strict=True))
    given = zip(calibration.ids.tolist(), calibration.labels.tolist(), strict=True)
    count = sum(number in known and known[number] != label for number, label in given)
    if not count:
        return []
    return [Doubt(f"{count} calibration inputs have ids of measured inputs of other labels: they fix no threshold")]


def of_fit(test: Batch, apart: Batch | None, train: Batch) -> list[Doubt]:
    """Return doubts if a rejector was fitted on dark images, on inputs that are measured or that fix its threshold."""
    found = [] if _dark(test, "") else _dark(train, "no pixel of the inputs of the fit")
    for batch, use in ((test, "that it is measured on"), (apart, "that fix its threshold")):
        count = 0 if batch is None else _shared(batch, train)
        if count:
            found.append(Doubt(f"the rejector was fitted on {count} of the inputs {use}"))
    return found


def of_training(test: Batch, train: Batch) -> list[Doubt]:
    """Return a doubt if the network was trained on inputs that are measured."""
    count = _shared(test, train)
    return [Doubt(f"the network was trained on {count} of the inputs that it is measured on")] if count else []


def _dark(batch: Batch, what: str) -> list[Doubt]:
    """Say if all images are dark; `what` begins the sentence."""
    brightest = float(batch.images.max()) if batch.size else 1.0
    if brightest >= DARK:
        return []
    scale = f"{brightest:.3g}, or {255 * brightest:.3g} of 255"
    return [Doubt(f"{what} is above {scale}: if they were bytes that do not end at 255, give floats in [0, 1]")]


def _shared(batch: Batch, others: Batch) -> int:
    """Return how many images of a batch are among others; 0 if they are few, as in many data sets."""
    if batch.images.shape[1:] != others.images.shape[1:]:
        return 0
    count = int(torch.isin(_hashes(batch.images), _hashes(others.images)).sum())
    return count if count > OVERLAP * batch.size else 0


def ask_once(network: nn.Module, rejector: Rejector | None, batch: Batch) -> None:
    """Ask the network, and the rejector if there is one, with the gradient, for what it takes of the process."""
    lent = batch.copied()
    images = lent.images.requires_grad_()
    # What it raises, it raises in the attack too: here only the random numbers matter.
    with surroundings_kept(), frozen(network), torch.enable_grad(), suppress(Exception):
        outputs = network(images)
        answers = [*outputs]
        if rejector is not None:
            answers.append(rejector.oracle_certainty(rejector.shown(outputs), lent.labels))
        torch.autograd.grad([each.sum() for each in answers if each.requires_grad], images, allow_unused=True)


def are_probabilities(logits: Tensor) -> bool:
    """Tell whether every row is a probability distribution, perhaps rounded to half precision (bf16: 0.003 off)."""
    return bool((logits >= 0).all() and ((logits.sum(1) - 1).abs() < BETWEEN).all())


def look_like_probabilities(logits: Tensor) -> bool:
    """Tell whether all values lie in [0, 1] and mostly differ as probabilities do: of sigmoids, or of clamped softmax.

    As logits of ten classes they would say of no answer that it is sure by more than 23 %.
    """
    low, high = logits.amin(1), logits.amax(1)
    if len(logits) < ENOUGH:  # a few small logits may lie there by chance
        return False
    is_inside = bool((low >= -BETWEEN).all() and (high <= 1 + BETWEEN).all())
    return is_inside and float((high - low > APART).double().mean()) > 0.5


@torch.no_grad()
def unsteadiness(network: Network, images: Tensor) -> Literal["", "random", "batch"]:
    """Tell whether two passes over the same inputs differ, or an image's answers alone and in a batch."""
    crowd = images[:CROWD]
    one = crowd[-1:]  # the last, as noise that is seeded anew in each pass is the same for the first
    few = min(INPUTS, max(1, len(crowd) // 2))
    among = network(crowd.clone())
    if _apart(network(crowd.clone()), among) > SAME:
        return "random"
    # Both batches have the same shape: so in every precision the rounding is the same.
    if _apart(network(torch.cat([crowd[:few], 1 - crowd[few:]])).at(slice(few)), among.at(slice(few))) > SAME:
        return "batch"
    try:
        alone = network(one.clone())
        is_random = any(_apart(network(one.clone()), alone) > SAME for _ in range(PASSES))
    except Exception:  # the network answers a batch, but not a single image
        return "batch"
    if is_random:
        return "random"
    return "batch" if _apart(alone, among.at(slice(-1, None))) > ROUNDING else ""


def _apart(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """Return the largest difference over all parts, as a share of the part's largest expected value."""
    shares = [
        float((one - other).abs().max() / other.abs().max().clamp_min(1e-30))
        for one, other in zip(found, expected, strict=True)
        if other.numel()
    ]
    return max(shares, default=0.0)


def _slopes_of_network(network: Network, images: Tensor) -> list[Doubt]:
    """Compare the gradients of features, logits and head with the changes that small steps in the images make."""
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
        if not columns or not climbing.logits.requires_grad:  # without a gradient an attack fails and says so
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
    """Compare the gradient of the certainty with the changes that small steps in the outputs make."""
    is_read = [part.shape[1] > 0 and (name != "features" or name in rejector.needs) for name, part in _named(outputs)]
    parts = [part for part, read in zip(outputs, is_read, strict=True) if read]
    # Add outputs nearer to the mean, which are less sure: a very sure answer may be flat only by rounding.
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
    """Compare the change that the gradient of `value` predicts for small steps with the real change.

    Return (N,) errors, and (N,) whether the gradient is zero. A step should change the value by the share `change` of
    its spread, and is no longer than `longest`. An error is a share of the change: 0 if the gradient is right, 1 if it
    is zero and the value changes. It is the larger error of two steps: one along the gradient's signs, and one along
    all coordinates, also those without a gradient.
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
        # Rounding and curvature move the mean of both sides too: subtract that much from the error.
        slack = ((above + below) / 2 - values).abs() + rounding * values.abs()
        scale = torch.maximum(done.abs(), length * size).clamp_min(1e-30)
        found.append(((done - said).abs() - slack).clamp_min(0) / scale)
    return torch.maximum(*found), (gradient == 0).flatten(1).all(1)


def _signs(at: Tensor) -> Tensor:
    """Return a fixed direction of 1 and -1 for each input; the directions differ."""
    ids = torch.arange(len(at), device=at.device)
    return (HashedDraws(0).uniform(ids, tuple(at.shape[1:]), 0) < 0.5).to(at.dtype) * 2 - 1


def _hashes(images: Tensor) -> Tensor:
    """Return a number for each image, the same for equal images: integer sums do not depend on their order."""
    bits = images.float().contiguous().view(torch.int32).flatten(1)
    places = torch.arange(1, bits.shape[1] + 1, device=bits.device)
    weights = places * 0x9E3779B97F4A7C1 + places * places * 0x2545F4914F6CDD1  # overflows the same on every device
    return torch.cat([(piece.long() * weights).sum(1) for piece in bits.split(256)])
