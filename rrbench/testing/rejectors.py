"""The contract of a rejector."""

import typing
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, replace
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rrbench.compute.draws import HashedDraws
from rrbench.compute.instrumented import Instrumented
from rrbench.compute.looking import without_looks
from rrbench.measuring import probes
from rrbench.names import settings_of
from rrbench.planning.cells import training_key
from rrbench.plugins.contract import check_class
from rrbench.plugins.guards import PROBED, certainties, check_alone, checked_loss, fit
from rrbench.plugins.registry import find
from rrbench.plugins.signs import UPRIGHT
from rrbench.protocols import Batch, Framework, Outputs, Rejector, Victim
from rrbench.testing.check import Check, expect
from rrbench.testing.problem import INFO, WIDTH, Plain, build_network, clear, empty, patterns
from rrbench.training.first_step import LEFT_OUT


@dataclass(frozen=True)
class RejectorCase:
    """A fitted rejector, its network, and the outputs for the patterns."""

    rejector: Rejector
    network: nn.Module
    batch: Batch
    outputs: Outputs

    def certainty(self, outputs: Outputs, labels: Tensor) -> Tensor:
        """Ask as the harness does: outputs that the rejector does not declare are sealed."""
        return self.rejector.oracle_certainty(self.rejector.shown(outputs), labels)


def make_case(given: Rejector) -> RejectorCase:
    """Make a rejector with the same settings and fit it."""
    rejector, batch = replace(given), patterns()
    network = build_network(rejector)
    with torch.no_grad():
        outputs: Outputs = network(batch.images)
    if rejector.has_fit():
        fit(rejector, outputs, batch.labels)
    return RejectorCase(rejector, network, batch, outputs)


def rejector_checks(rejector: Rejector) -> list[Check]:
    """Return the contract as checks of a rejector with these settings; the rejector is copied, never changed."""
    checks = {
        "its class says what it is": _says_what_it_is,
        "every input has one finite score": _scores,
        "the rest of the batch changes no score": _is_alone,
        "its certainty has a gradient that leads uphill, or none at all": _leads_uphill,
        "outputs that no sane network gives have finite scores and slopes": _stands_extremes,
        "its settings and what it fitted are all there is": _is_all_there_is,
        "only an oracle uses the label": _uses_no_label,
        "its loss and the slopes of the weights are finite": _has_finite_loss,
        "the framework's loss is in its loss, or it names those whose loss it replaces": _keeps_classifier_loss,
        "its head sees the features": _has_head,
        "settings of after_training change neither head nor loss": _is_after_training,
    }
    if rejector.inherits_training_of:
        checks["it trains as the rejector that it names"] = _trains_as_named
    if rejector.has_look():
        checks["its look asks for the gradients that it announces"] = _costs_what_it_says
    if rejector.is_probability:
        checks["a probability lies between 0 and 1"] = _is_probability
    if rejector.has_head():
        checks["the head that its certainty reads is trained"] = _trains_head
    else:  # a head is not trained here
        checks["its scores are not upside down"] = _is_upright
    return [Check(sentence, partial(check, rejector)) for sentence, check in checks.items()]


def _says_what_it_is(given: Rejector) -> None:
    kind = type(given)
    check_class(kind)
    expect(kind.scores, f"{kind.__name__} does not say what its certainty is: write scores = '...'")
    expect("fitted" not in repr(given), f"the repr of {kind.__name__} must hold its settings alone")
    key = training_key(given, "it")
    expect(" " not in key, f"a setting of {kind.__name__} has a space in its text: {key!r}")


def _scores(given: Rejector) -> None:
    case = make_case(given)
    found = certainties(case.rejector, case.outputs, case.batch.labels)
    is_one = len(set(found.tolist())) == 1
    expect(not is_one or given.is_constant, "all inputs have the same score")
    raw = case.certainty(case.outputs, case.batch.labels)
    expect(raw.is_floating_point(), f"certainty gives {raw.dtype}: return floats")


def _is_alone(given: Rejector) -> None:
    case = make_case(given)
    for start in range(0, case.batch.size, PROBED):
        piece = slice(start, start + PROBED)
        check_alone(case.rejector, case.outputs.at(piece), case.batch.labels[piece])
    check_alone(case.rejector, case.outputs, case.batch.labels)


def _costs_what_it_says(given: Rejector) -> None:
    case = make_case(given)
    network = Instrumented(without_looks(case.network), "fp32")
    images = case.batch.images.clone().requires_grad_()
    with torch.enable_grad():
        outputs = without_looks(case.network)(images)
        case.rejector.look(network, images, outputs)
    asked, announced = network.gradients / case.batch.size, given.gradients_per_look()
    expect(asked <= announced, f"it asks for {asked:g} gradients an image and gradients_per_look says {announced}")


def _leads_uphill(given: Rejector) -> None:
    case = make_case(given)
    batch = case.batch.at(slice(0, 20))
    # These images differ from those that the rejector was fitted on.
    images = (0.1 + 0.8 * batch.images).requires_grad_()
    with torch.enable_grad():
        outputs = case.network(images)
        certainty = case.certainty(outputs, batch.labels)
    if not certainty.requires_grad:
        return  # Victim.certainty tells this to an attack that needs the gradient
    Victim(case.network, case.rejector).certainty(outputs, batch.labels)
    (gradient,) = torch.autograd.grad(certainty.sum(), images)
    expect(gradient.isfinite().all(), "the gradient of certainty is NaN or infinite somewhere")
    for doubt in probes.of_rejector(case.rejector, Outputs(*(part.detach() for part in outputs)), batch.labels):
        expect(False, doubt.text)


def extremes(outputs: Outputs) -> Outputs:
    """Return outputs that no normal network gives, in every combination."""
    sizes = torch.tensor([0.0, 1e-30, 30.0, -30.0, 1e4, -1e4, 1e6])
    rows = torch.cartesian_prod(sizes, sizes, sizes)
    wave = torch.tensor([1.0, -1.0, 0.5, 0.0])
    parts = [
        column[:, None] * wave.repeat(part.shape[1])[: part.shape[1]]
        for column, part in zip(rows.T, outputs, strict=True)
    ]
    return Outputs(*parts)


def _stands_extremes(given: Rejector) -> None:
    case = make_case(given)
    outputs = Outputs(*(part.requires_grad_() for part in extremes(case.outputs)))
    for label in (0, 1):
        labels = torch.full((len(outputs.logits),), label)
        with torch.enable_grad():
            certainty = case.certainty(outputs, labels)
        expect(certainty.isfinite().all(), "certainty is NaN or infinite for logits between -1e6 and 1e6")
        if certainty.requires_grad:
            for name, slope in zip(
                outputs._fields, torch.autograd.grad(certainty.sum(), outputs, allow_unused=True), strict=True
            ):
                is_fine = slope is None or slope.isfinite().all()
                expect(is_fine, f"its slope along the {name} is NaN or infinite for outputs between -1e6 and 1e6")


def _is_probability(given: Rejector) -> None:
    case = make_case(given)
    ids = torch.arange(2000)
    drawn = Outputs(
        *(10 * HashedDraws(index).normal(ids, (part.shape[1],), 0) for index, part in enumerate(case.outputs))
    )
    for outputs in (case.outputs, drawn, extremes(case.outputs)):
        certainties(case.rejector, outputs, torch.arange(len(outputs.logits)) % INFO.classes)  # refuses others


def _is_all_there_is(given: Rejector) -> None:
    case = make_case(given)
    expect(not given.fitted or given.has_fit(), "something is fitted, and there is no fit")
    again = replace(given)
    expect(again == case.rejector, "two of the same settings are not equal: are all settings fields of the dataclass?")
    again.fitted = {name: tensor.clone() for name, tensor in case.rejector.fitted.items()}
    labels = case.batch.labels
    found, expected = certainties(again, case.outputs, labels), certainties(case.rejector, case.outputs, labels)
    expect((found == expected).all(), "it scores otherwise when made anew from its settings and self.fitted")


def _uses_no_label(given: Rejector) -> None:
    case = make_case(given)
    labels = case.batch.labels
    same = torch.equal(case.certainty(case.outputs, labels), case.certainty(case.outputs, (labels + 1) % INFO.classes))
    expect(
        same != given.is_oracle, "it is no oracle and uses the label" if not same else "an oracle must use the label"
    )


def _has_finite_loss(given: Rejector) -> None:
    for share, shift in (("some", torch.arange(20) % 2), ("no", torch.tensor(0)), ("all", torch.tensor(1))):
        case = make_case(given)
        case.network.train()
        with torch.enable_grad():
            outputs = case.network(case.batch.images[:20])
            labels = (outputs.logits.argmax(1) + shift) % INFO.classes
            own = F.cross_entropy(outputs.logits, labels)
            answer = Victim(case.network, case.rejector).training_loss(outputs, labels, own)
        where = f"where {share} answers are wrong"
        loss = checked_loss("training_loss", answer)
        expect(loss.isfinite(), f"the loss is {loss.item()} {where}")
        loss.backward()
        slopes = [parameter.grad for parameter in case.network.parameters() if parameter.grad is not None]
        expect(any(slope.any() for slope in slopes), f"the loss moves no weight {where}")
        expect(all(slope.isfinite().all() for slope in slopes), f"slopes of the weights are NaN or infinite {where}")


def _keeps_classifier_loss(given: Rejector) -> None:
    case = make_case(given)
    labels = case.batch.labels
    with torch.enable_grad():
        outputs = case.network.train()(case.batch.images)
        own = F.cross_entropy(outputs.logits, labels)
        loss = checked_loss("training_loss", Victim(case.network, case.rejector).training_loss(outputs, labels, own))
    (slope,) = torch.autograd.grad(loss, own, retain_graph=True, allow_unused=True)
    if slope is not None and slope:
        expect(not slope < 0, "training_loss subtracts classifier_loss: add it")
        return
    # A loss may replace the framework's, as SNet's does; with other frameworks their loss would be lost without a word.
    expect(given.frameworks, LEFT_OUT.format(type(given).__name__))
    (wanted,) = torch.autograd.grad(own, outputs.logits, retain_graph=True)
    (taught,) = torch.autograd.grad(loss, outputs.logits, allow_unused=True)
    is_taught = taught is not None and (taught * wanted).sum() > 0
    expect(is_taught, "training_loss replaces classifier_loss and does not teach the labels")


def _has_head(given: Rejector) -> None:
    case = make_case(given)
    head = case.rejector.build_head(WIDTH, INFO.classes)
    if not given.has_head():
        expect(case.outputs.head.shape[1] == 0 or given.has_look(), "there is a head that nobody builds")
        return
    if head is None:
        return  # some settings build no head
    expect(isinstance(head, nn.Module), f"build_head gives a {type(head).__name__}: return an nn.Module")
    features = case.outputs.features.clone().requires_grad_()
    with torch.enable_grad():
        columns = head(features)
        is_table = columns.dim() == 2 and len(columns) == len(features) and columns.shape[1] > 0
        expect(is_table, f"the head gives {tuple(columns.shape)} for {len(features)} inputs: return (N, outputs)")
        (slope,) = torch.autograd.grad(columns.square().sum(), features)
    expect(slope.any(), "the head does not look at the features")
    expect(head.eval()(features[:1]).shape == (1, columns.shape[1]), "the head fails on a single input")


def _trains_head(given: Rejector) -> None:
    case = make_case(given)
    head, labels = case.outputs.head, case.batch.labels
    heads = (head, head + 1, -head)
    before, *others = (case.certainty(case.outputs._replace(head=each), labels) for each in heads)
    if all(torch.equal(before, other) for other in others):
        return  # another score on a network that was trained with a head
    # Every second label is wrong: a loss may act on wrong answers alone.
    batch = case.batch._replace(labels=(labels + torch.arange(len(labels)) % 2) % INFO.classes)
    common = build_network(Plain()).state_dict()
    for name in given.frameworks or ("standard",):
        kind = cast(type[Framework], find("framework", name))
        if any(default is MISSING for _, default in settings_of(kind).values()):
            continue  # nothing says which settings it needs
        rejector = replace(given)
        network = build_network(rejector).train()
        weights = [weight for key, weight in network.named_parameters() if key not in common and weight.requires_grad]
        with torch.enable_grad():
            kind()(Victim(network, rejector), batch.copied(), HashedDraws(3)).backward()
        is_reached = any(weight.grad is not None and weight.grad.any() for weight in weights)
        mend = "use outputs.head in training_loss, or name in frameworks those whose loss trains it"
        expect(is_reached or not weights, f"with {name} no gradient reaches it: {mend}")


def _is_after_training(given: Rejector) -> None:
    for key in sorted(given.after_training):
        for other in _others(given, key):
            found = _difference(given, other)
            what = f"{key}={getattr(given, key)} and {key}={getattr(other, key)}"
            expect(not found, f"{what} have other {found}: take {key} out of after_training")


def _trains_as_named(given: Rejector) -> None:
    other = cast(type[Rejector], find("rejector", given.inherits_training_of))
    shared = settings_of(other).keys() & settings_of(type(given)).keys() - given.after_training
    found = _difference(given, other(**{key: getattr(given, key) for key in shared}))
    expect(not found, f"it has other {found} than {given.inherits_training_of!r}: delete inherits_training_of")


def _difference(one: Rejector, other: Rejector) -> str:
    """Say in what the trainings of two rejectors differ."""
    (weights, loss), (others, other_loss) = _trained(one), _trained(other)
    is_same = len(weights) == len(others) and all(map(torch.equal, weights, others))
    return "heads" if not is_same else "losses" if loss != other_loss else ""


def _others(given: Rejector, key: str) -> Iterator[Rejector]:
    """Return the rejector with other values of a setting, if some can be guessed."""
    hint, value = settings_of(type(given))[key][0], getattr(given, key)
    candidates = [option for option in typing.get_args(hint) if typing.get_origin(hint) is typing.Literal]
    if isinstance(value, bool):
        candidates = [not value]
    elif isinstance(value, int | float):
        candidates = [2 * value + 1, value / 2 if isinstance(value, float) else value + 1]
    for candidate in candidates:
        if candidate != value:
            try:
                yield replace(given, **{key: candidate})
            except ValueError:  # out of range
                continue


def _trained(given: Rejector) -> tuple[list[Tensor], float]:
    """Return what a rejector adds to a training: the first weights, and a loss on fixed inputs."""
    network, batch = build_network(replace(given)), patterns().at(slice(0, 20))
    network.train()
    outputs = network(batch.images)
    own = F.cross_entropy(outputs.logits, batch.labels)
    loss = checked_loss("training_loss", Victim(network, given).training_loss(outputs, batch.labels, own))
    return list(network.state_dict().values()), loss.item()


def _is_upright(given: Rejector) -> None:
    case = make_case(given)
    labels = case.batch.labels
    with torch.no_grad():
        easy, hard = (case.network(images) for images in (clear(case.batch).images, empty(case.batch).images))
    kept = case.certainty(easy, labels)[easy.logits.argmax(1) == labels]
    refused = case.certainty(hard, labels)[hard.logits.argmax(1) != labels]
    above = (kept[:, None] > refused).double() + 0.5 * (kept[:, None] == refused).double()
    share = float(above.mean())
    times = f"{100 * share:.0f} times in 100"
    expect(share >= UPRIGHT, f"a right answer scores above a wrong one to noise {times}: higher must mean keep")
