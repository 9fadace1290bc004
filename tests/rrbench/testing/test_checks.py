"""The checks of `rrbench check`: a right plugin passes all, and each mistake breaks the check for it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from failing_checks import failures
from made_up_plugins import Brighter
from rrbench.plugins.registry import table
from rrbench.protocols import Batch, Budget, Draws, Moved, Outputs, Rejector, Victim
from rrbench.testing import attack_checks, rejector_checks
from rrbench_baselines.coupled import Coupled
from rrbench_baselines.cpr import Cpr
from wrong_attacks import Climbing, Meddling, Misanswering, Peeping
from wrong_rejectors import (
    Backwards,
    Calm,
    CalmAtTau,
    Centred,
    Chancy,
    Crowded,
    Deaf,
    Forgetful,
    Headed,
    HeadedByErrors,
    Headless,
    HeadTooWide,
    Leaky,
    Near,
    NearInFit,
    NearInTraining,
    Ranked,
    Remembering,
    Sure,
    Unheard,
    UnheardSign,
)


def scored(kind: type[Rejector]) -> Rejector:
    return made(kind.__name__, kind)


@pytest.mark.parametrize("kind", [Sure, Calm, CalmAtTau, Centred, Headed, HeadedByErrors, Deaf])
def test_a_right_rejector_keeps_them_all(kind: type[Rejector]) -> None:
    assert failures(rejector_checks(scored(kind))) == {}


@pytest.mark.parametrize(
    ("kind", "sentence", "line"),
    [
        (Near, "every input has one finite score", "Near reads features: write needs = frozenset({'features'})"),
        (
            NearInTraining,
            "its loss and the slopes of the weights are finite",
            "NearInTraining reads features: write needs = frozenset({'features'})",
        ),
        (NearInFit, "only an oracle uses the label", "NearInFit reads features: write needs = frozenset({'features'})"),
        (Headless, "every input has one finite score", "Headless needs head, and builds none: write build_head"),
        (Forgetful, "every input has one finite score", "fit of Forgetful writes self.mean: only self.fitted is kept"),
        (Ranked, "the rest of the batch changes no score", "the certainty of Ranked depends on the batch"),
        (Crowded, "the rest of the batch changes no score", "the certainty of Crowded depends on the batch"),
        (Chancy, "the rest of the batch changes no score", "the certainty of Chancy depends on the batch"),
        (
            Leaky,
            "settings of after_training change neither head nor loss",
            "weight=0.1 and weight=1.2 have other losses: take weight out of after_training",
        ),
        (
            HeadTooWide,
            "settings of after_training change neither head nor loss",
            "width=1 and width=3 have other heads: take width out of after_training",
        ),
        *(
            (
                kind,
                "the head that its certainty reads is trained",
                "with standard no gradient reaches it: use outputs.head in training_loss, or name in frameworks those",
            )
            for kind in (Unheard, UnheardSign)
        ),
        (Backwards, "its scores are not upside down", "times in 100: higher must mean keep"),
        (Remembering, "its settings and what it fitted are all there is", "when made anew from its settings"),
    ],
)
def test_a_rejector_s_mistake_breaks_the_check_that_is_about_it(kind: type[Rejector], sentence: str, line: str) -> None:
    assert line in failures(rejector_checks(scored(kind)))[sentence]


def made(name: str, base: type[Rejector] = Sure, **members: Any) -> Rejector:
    """Make a rejector that is as right as its base but for `members`."""
    kind: Any = dataclass(type(name, (base,), {"scores": "something", "__module__": __name__, **members}))
    rejector: Rejector = kind()
    return rejector


def test_a_look_that_takes_more_than_it_says_is_told() -> None:
    sentence = "its look asks for the gradients that it announces"
    line = "it asks for 11 gradients an image and gradients_per_look says 10"
    assert failures(rejector_checks(made("Understated", Cpr, gradients_per_look=lambda self: 10)))[sentence] == line
    assert sentence not in failures(rejector_checks(Cpr()))


def constant(self: Rejector, outputs: Outputs) -> Tensor:
    return outputs.logits.sum(1) * 0 + 1


def exponential(self: Rejector, outputs: Outputs) -> Tensor:
    return outputs.logits.amax(1).exp()


def in_place(self: Rejector, outputs: Outputs) -> Tensor:
    return outputs.logits.mul_(2).detach().amax(1)


def lying_slope(self: Rejector, outputs: Outputs) -> Tensor:
    best = outputs.logits.amax(1)
    return 2 * best.detach() - best


def looking(self: Rejector, outputs: Outputs, labels: Tensor) -> Tensor:
    return outputs.logits.gather(1, labels[:, None]).squeeze(1)


@pytest.mark.parametrize(
    ("rejector", "sentence", "line"),
    [
        (made("Constant", certainty=constant), "every input has one finite score", "all inputs have the same score"),
        (
            made("Exponential", certainty=exponential),
            "outputs that no sane network gives have finite scores and slopes",
            "certainty is NaN or infinite for logits between -1e6 and 1e6",
        ),
        (
            made("InPlace", certainty=in_place),
            "every input has one finite score",
            "writes into the logits that it is given",
        ),
        (
            made("LyingSlope", certainty=lying_slope),
            "its certainty has a gradient that leads uphill, or none at all",
            "the gradient of the certainty is wrong",
        ),
        (
            made("Likely", is_probability=True, certainty=lambda self, outputs: outputs.logits.amax(1)),
            "a probability lies between 0 and 1",
            "is_probability of Likely is true, and its certainty goes from",
        ),
        (
            made("Steady", is_constant=True),
            "every input has one finite score",
            "is_constant of Steady is true, and its certainty goes from",
        ),
        (made("Looking", oracle_certainty=looking), "its class says what it is", "write is_oracle = True"),
        (made("Looking", oracle_certainty=looking), "only an oracle uses the label", "is no oracle and uses the label"),
        (made("Silent", scores=""), "its class says what it is", "write scores = '...'"),
        (made("Old", training_key=lambda self: "old"), "its class says what it is", "delete it"),
        (
            made("NoLoss", training_loss=lambda self, outputs, labels, loss: loss * torch.tensor(torch.nan)),
            "its loss and the slopes of the weights are finite",
            "the loss is nan",
        ),
        (
            made("Flat", build_head=lambda self, width, classes: nn.Sequential(nn.Linear(width, 1), nn.Flatten(0))),
            "its head sees the features",
            "for 100 inputs: return (N, outputs)",
        ),
    ],
)
def test_other_mistakes_of_rejectors(rejector: Rejector, sentence: str, line: str) -> None:
    assert line in failures(rejector_checks(rejector))[sentence]


def test_who_says_that_it_trains_as_another_is_held_to_it() -> None:
    class Other(Coupled):
        def rectified(self, confidence: Tensor, outputs: Outputs) -> Tensor:
            return super().rectified(confidence, outputs) / 2

    sentence = "it trains as the rejector that it names"
    assert sentence in map(str, rejector_checks(Coupled()))
    assert failures(rejector_checks(Coupled())) == {}
    found = failures(rejector_checks(dataclass(Other)()))
    assert found[sentence] == "it has other losses than 'rr': delete inherits_training_of"


# Attacks.


def told(kind: type, **settings: Any) -> Any:
    named: Any = type(kind.__name__, (kind,), {"maximises": "something", "__module__": __name__})
    return dataclass(frozen=True)(named)(**settings)


@pytest.mark.parametrize("attack", [told(Brighter), told(Climbing), told(Peeping, how="nothing")])
def test_a_right_attack_keeps_them_all(attack: Any) -> None:
    assert failures(attack_checks(attack)) == {}


@pytest.mark.parametrize("how", ["certainty", "rejector", "log", "threshold", "unpacked"])
def test_a_blind_attack_that_looks_at_the_rejector_breaks_them(how: str) -> None:
    found = failures(attack_checks(told(Peeping, how=how)))
    line = "Peeping reads the rejector: write is_adaptive = True"
    assert found["every input is answered in budget and in range"] == line


@pytest.mark.parametrize("how", ["bare", "tuple", "none"])
def test_an_answer_of_another_form_breaks_them(how: str) -> None:
    found = failures(attack_checks(told(Misanswering, how=how)))
    assert "write return Moved(images)" in found["every input is answered in budget and in range"]


@pytest.mark.parametrize(
    ("how", "what"),
    [("data", "weight"), ("hook", "hooks"), ("forward", "method 'forward'"), ("module", "modules")],
)
def test_an_attack_that_changes_the_network_breaks_them(how: str, what: str) -> None:
    lines = failures(attack_checks(told(Meddling, how=how))).values()
    assert any(line.startswith(f"it changes the network's {what}") for line in lines)


def test_an_attack_that_keeps_something_in_its_class_breaks_them() -> None:
    class Memory:
        seen: Tensor | None = None

    class Remembers(Memory, Brighter):
        def __call__(self, victim: Victim, batch: Batch, budget: Budget, draws: Draws) -> Moved:
            Memory.seen = batch.images
            return super().__call__(victim, batch, budget, draws)

    found = failures(attack_checks(told(Remembers)))
    line = "Remembers changes Memory.seen, so rows would depend on what was attacked before: "
    assert found["every input is answered in budget and in range"].startswith(line)
    assert Memory.seen is None


def attacking(answer: Callable[[Victim, Batch, Budget, Draws], Tensor], cost: int = 0) -> Any:
    """Make an attack of a function that moves images."""

    @dataclass(frozen=True)
    class Made(Brighter):
        maximises = "something"

        def __call__(self, victim: Victim, batch: Batch, budget: Budget, draws: Draws) -> Moved:
            return Moved(answer(victim, batch, budget, draws).clamp(0, 1))

        def gradients_per_image(self, classes: int) -> int:
            return cost

    return Made()


def sloped(victim: Victim, batch: Batch, budget: Budget, draws: Draws) -> Tensor:
    images = batch.images.clone().requires_grad_()
    with torch.enable_grad():
        victim.network(images).logits.sum().backward()
    assert images.grad is not None
    return batch.images + budget.eps * images.grad.sign()


@pytest.mark.parametrize(
    ("attack", "sentence", "line"),
    [
        (
            attacking(lambda victim, batch, budget, draws: batch.images + 2 * budget.eps),
            "every input is answered in budget and in range",
            "left its budget",
        ),
        (
            attacking(lambda victim, batch, budget, draws: batch.images + budget.eps * (torch.rand(1) - 0.5)),
            "the same draws give the same images, and nothing else is touched",
            "use draws alone",
        ),
        (
            attacking(lambda victim, batch, budget, draws: batch.images.mul_(0.99)),
            "the same draws give the same images, and nothing else is touched",
            "it changes the batch that it is given",
        ),
        (
            attacking(sloped, cost=1),
            "the same draws give the same images, and nothing else is touched",
            "it leaves gradients on the network's weights",
        ),
        (
            attacking(lambda victim, batch, budget, draws: batch.images + budget.eps * batch.images.mean()),
            "another split into batches gives the same images",
            "depends on the rest of its batch",
        ),
        (
            attacking(lambda victim, batch, budget, draws: batch.images + 1e-9 + 0.01),
            "a radius of zero gives the clean images",
            "it moves images by a radius of 0",
        ),
        (
            attacking(sloped, cost=7),
            "it asks for the gradients that it announces",
            "it asks for 1 gradients an image and gradients_per_image says 7",
        ),
    ],
)
def test_an_attack_s_mistake_breaks_the_check_that_is_about_it(attack: Any, sentence: str, line: str) -> None:
    assert line in failures(attack_checks(attack))[sentence]


# The command.


def test_the_command_prints_a_line_for_each_and_ends_with_1_where_one_fails(
    command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(table("rejector").classes, "ranked", type(scored(Ranked)))
    monkeypatch.setitem(table("rejector").classes, "sure", type(scored(Sure)))
    right, wrong = command("check", "sure"), command("check", "ranked")
    assert (right.code, wrong.code) == (0, 1)
    assert right.out.startswith("rejector sure\n  ok      its class says what it is\n")
    assert right.out.endswith("12 checks, all kept\n")
    assert "  FAILED  the rest of the batch changes no score: the certainty of Ranked depends on the batch" in wrong.out
    assert wrong.out.endswith("12 checks, 2 failed\n")
    assert len(wrong.out.splitlines()) == 14


def test_the_command_takes_settings_aliases_and_names_of_several_kinds(command: Any) -> None:
    answer = command("check", "carl")
    assert [line for line in answer.out.splitlines() if line[0] != " "] == [
        "rejector carl",
        "framework carl(steps=2)",
        "19 checks, all kept",
    ]
    assert "rejector rr(form=difference)" in command("check", "r-con-sub").out
    # Settings say which kind is meant.
    assert command("check", "carl(weight=1)").out.startswith("framework carl(steps=2,weight=1)\n")
    assert command("check", "carl(wait=1)").code == 2
    assert command("check", "outside-corner").out.startswith("attack outside-corner\n")


def test_an_unknown_name_is_one_line_with_near_ones(command: Any) -> None:
    answer = command("check", "outside-gapp")
    assert answer.code == 2
    assert answer.err.splitlines()[-1].startswith("rrbench: unknown plugin 'outside-gapp'; near: outside-gap")
