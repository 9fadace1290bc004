"""Mistakes of plugin authors: each is harmless, or gives one line that names the class and the remedy."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rrbench
from rrbench.engines.estimate import describe_plan
from rrbench.errors import UseError
from rrbench.planning.cells import training_key
from rrbench.plugins.guards import check_alone
from rrbench.plugins.registry import table
from rrbench.protocols import Outputs
from rrbench.rows.row import ResultRow
from wrong_attacks import Climbing, Misanswering, Nearest, Peeping
from wrong_rejectors import (
    Calm,
    CalmAtTau,
    Centred,
    Chancy,
    Clamping,
    Crowded,
    Deaf,
    Forgetful,
    Headed,
    Headless,
    Hoarding,
    Imaginary,
    LossOfItsOwn,
    Near,
    NearInFit,
    NearInTraining,
    Ranked,
    Sure,
    Truthful,
    Unlearnt,
    Untensored,
)

pytestmark = pytest.mark.usefixtures("own_folder")


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    rejectors = [Sure, Calm, CalmAtTau, Headed, Centred, Forgetful, Untensored, Unlearnt, Near]
    rejectors += [NearInTraining, NearInFit, Headless, Ranked, Crowded, Chancy, Truthful, Imaginary]
    rejectors += [Deaf, Clamping, Hoarding, LossOfItsOwn]
    attacks: list[type] = [Peeping, Misanswering, Nearest, Climbing]
    for kind, classes in (("rejector", rejectors), ("attack", attacks)):
        for plugin in classes:
            monkeypatch.setitem(table(kind).classes, plugin.__name__.lower(), plugin)


def one_line(rows: list[ResultRow], rejector: str | None = None) -> str:
    """Return why the rows of one rejector failed, all for one reason, while every other row is right."""
    wrong = [row for row in rows if row.status != "ok"]
    assert wrong
    assert {row.rejector for row in wrong} == ({rejector} if rejector else {row.rejector for row in wrong})
    (error,) = {row.error for row in wrong}
    assert "\n" not in error
    return error


# Trainings.


def test_a_loss_has_a_checkpoint_of_its_own_without_a_word(bench: Any) -> None:
    rows = bench.measure("calm,confidence", "clean")
    assert [(row.rejector, row.trained_as, row.status) for row in rows] == [
        ("calm", "pgd-at+calm", "ok"),
        ("confidence", "pgd-at", "ok"),
    ]
    assert bench.trained() == ["training pgd-at+calm on digits"]
    assert rows[0].checkpoint_sha256 != rows[1].checkpoint_sha256


def test_two_weights_of_a_loss_share_no_checkpoint(bench: Any) -> None:
    plan = bench.prepare("calm(weight=0),calm(weight=50),calm,calm(tau=2),calmattau,calmattau(tau=2)", "clean").plan
    assert [training.trained_as for training in plan.checkpoints()] == [
        "pgd-at+calm(weight=0)",
        "pgd-at+calm(weight=50)",
        "pgd-at+calm",
        "pgd-at+calm(tau=2)",
        "pgd-at+calmattau",
    ]


def test_who_overrides_a_loss_must_say_anew_what_does_not_matter_to_it() -> None:
    @dataclass
    class Calmer(CalmAtTau):
        def training_loss(self, outputs: Outputs, labels: Tensor, classifier_loss: Tensor) -> Tensor:
            return classifier_loss + self.tau * outputs.logits.square().mean()

    assert training_key(CalmAtTau(tau=2.0), "calm") == "calm"
    assert training_key(Calmer(tau=2.0), "calmer") == "calmer(tau=2)"


def test_a_head_has_a_checkpoint_of_its_own_without_a_word(bench: Any) -> None:
    rows = bench.measure("headed,confidence", "clean")
    assert [(row.trained_as, row.status) for row in rows] == [("pgd-at+headed", "ok"), ("pgd-at", "ok")]


def test_a_head_that_does_not_fit_its_checkpoint_stops_its_own_rows_alone(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert bench.measure("headed", "clean")[0].status == "ok"
    monkeypatch.setattr(Headed, "build_head", lambda self, width, classes: nn.Sequential(nn.Linear(width, 1)))
    rows = bench.measure("headed,confidence", "pgd1")
    assert [row.status for row in rows if row.rejector == "confidence"] == ["ok", "ok"]
    assert "does not fit this network: it lacks tensor 'head.0.bias'" in one_line(rows, "headed")


# What is fitted.


def test_a_fit_is_called_without_a_word(bench: Any) -> None:
    rows = bench.measure("centred", "pgd1")
    assert [row.status for row in rows] == ["ok", "ok"]
    assert all(row.auc is not None and row.auc > 0.5 for row in rows)


@pytest.mark.parametrize(
    ("rejector", "line"),
    [
        ("forgetful", "fit of Forgetful writes self.mean: only self.fitted is kept, so write self.fitted['mean']"),
        ("untensored", "fit of Untensored writes a float into self.fitted['mean']: only tensors by name are kept"),
        ("unlearnt", "fit of Unlearnt leaves self.fitted empty: write into it all that certainty needs"),
    ],
)
def test_what_a_fit_would_lose_is_refused(bench: Any, rejector: str, line: str) -> None:
    assert one_line(bench.measure(f"{rejector},confidence", "pgd1"), rejector) == line


def test_what_a_fit_keeps_elsewhere_is_missed_in_the_first_row_already(bench: Any) -> None:
    assert one_line(bench.measure("hoarding,confidence", "pgd1"), "hoarding") == "KeyError: 'mean'"


def test_a_rejector_that_writes_into_the_outputs_harms_no_other(bench: Any) -> None:
    alone = bench.measure("confidence", "pgd1")
    bench.out = bench.out / "beside"
    rows = bench.measure("clamping,confidence", "pgd1")
    line = "certainty of Clamping writes into the logits that it is given: work on a copy"
    assert one_line(rows, "clamping") == line
    others = [row for row in rows if row.rejector == "confidence"]
    assert [(row.auc, row.deploy_robust) for row in others] == [(row.auc, row.deploy_robust) for row in alone]


def test_a_method_that_is_set_on_the_object_is_refused_before_any_work(bench: Any) -> None:
    with pytest.raises(UseError, match=r"LossOfItsOwn sets self\.training_loss: write it as a method"):
        bench.measure("lossofitsown", "clean")


def test_a_fact_that_raises_is_one_line(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Peeping, "is_adaptive", property(lambda self: 1 / 0))
    with pytest.raises(UseError, match=r"Peeping\.is_adaptive raises ZeroDivisionError: division by zero"):
        bench.measure("confidence", "peeping")


# What is undeclared cannot be read.


@pytest.mark.parametrize(
    ("rejector", "line"),
    [
        ("near", "Near reads features: write needs = frozenset({'features'})"),
        ("nearintraining", "NearInTraining reads features: write needs = frozenset({'features'})"),
        ("nearinfit", "NearInFit reads features: write needs = frozenset({'features'})"),
        ("headless", "Headless needs head, and builds none: write build_head"),
    ],
)
def test_undeclared_outputs_are_named_when_they_are_read(bench: Any, rejector: str, line: str) -> None:
    rows = bench.measure(f"{rejector},confidence", "pgd1,adaptive(ce+rcon,steps=1)")
    assert one_line(rows, rejector) == line
    assert len([row for row in rows if row.status == "ok"]) == 3


@pytest.mark.parametrize("how", ["certainty", "rejector", "log", "threshold", "has calibration", "unpacked"])
def test_a_blind_attack_that_looks_at_the_rejector_is_named(bench: Any, how: str) -> None:
    rows = bench.measure("confidence,t-con", f"peeping(how={how}),pgd1")
    assert one_line(rows) == "Peeping reads the rejector: write is_adaptive = True"
    assert [row.status for row in rows if not row.attack.startswith("peeping")] == ["ok"] * 4


def test_a_blind_attack_is_blind_in_python_too(bench: Any) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 3))
    data = (torch.rand(20, 3, 2, 2), torch.arange(20) % 3)
    with pytest.raises(rrbench.UseError, match="Peeping reads the rejector: write is_adaptive = True"):
        rrbench.evaluate(model, "confidence", Peeping(), data, budget="linf:1/20")


def test_a_class_that_would_not_be_installed_is_refused_in_python_too() -> None:
    class Adaptive(Climbing):
        norms = "linf"  # type: ignore[assignment]

    data = (torch.rand(20, 3, 2, 2), torch.arange(20) % 3)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 3))
    with pytest.raises(rrbench.UseError, match=r"Adaptive\.norms must be of linf and l2"):
        rrbench.evaluate(model, "confidence", Adaptive(), data, budget="linf:1/20")


def test_a_plugin_that_cannot_say_what_it_costs_is_one_line(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Climbing, "gradients_per_image", lambda self, classes: 1 // 0)
    job = bench.prepare("confidence", "climbing")
    with pytest.raises(rrbench.UseError, match=r"^climbing: gradients_per_image: ZeroDivisionError: "):
        describe_plan(job.plan, job.runner)


def test_an_attack_that_looks_at_nothing_is_left_alone(bench: Any) -> None:
    assert [row.status for row in bench.measure("confidence", "peeping(how=nothing)")] == ["ok", "ok"]


# Answers.


@pytest.mark.parametrize(
    ("rejector", "line"),
    [
        ("ranked", "the certainty of Ranked depends on the batch: one input has "),
        ("crowded", "the certainty of Crowded depends on the batch: one input has "),
        ("chancy", "the certainty of Chancy depends on the batch: one input has "),
    ],
)
def test_a_certainty_that_looks_at_the_batch_is_refused(bench: Any, rejector: str, line: str) -> None:
    rows = bench.measure(f"{rejector},confidence", "pgd1")
    assert one_line(rows[:1], rejector).startswith(line)
    assert {row.status for row in rows if row.rejector == rejector} == {"failed"}
    assert {row.status for row in rows if row.rejector == "confidence"} == {"ok"}
    assert all("compute each score from its own row alone" in row.error for row in rows if row.error)


@pytest.mark.parametrize(("rejector", "kind"), [("Truthful", "bool"), ("Imaginary", "complex64")])
def test_a_certainty_that_is_no_real_number_is_refused(bench: Any, rejector: str, kind: str) -> None:
    rows = bench.measure(f"{rejector.lower()},sure", "climbing")
    line = f"{rejector}() gives scores of torch.{kind}: return real numbers, as floats"
    assert {row.error for row in rows if row.rejector == rejector.lower()} == {line}
    assert {row.status for row in rows if row.rejector == "sure"} == {"ok"}


def test_a_few_scores_of_a_large_batch_may_be_off_by_rounding() -> None:
    class Rounded(Sure):
        def certainty(self, outputs: Outputs) -> Tensor:
            near = torch.arange(len(outputs.logits)) % 200 == 100  # one in 200, and none of the first
            return super().certainty(outputs) + near * 0.01 * (len(outputs.logits) > 300)

    logits = torch.randn(400, 3, generator=torch.Generator().manual_seed(0))
    given = Outputs(torch.empty(400, 0), logits, torch.empty(400, 0))
    check_alone(Rounded(), given, torch.zeros(400, dtype=torch.long))


@pytest.mark.parametrize(
    ("how", "line"),
    [
        ("bare", "Misanswering returns a Tensor instead of Moved: write return Moved(images)"),
        ("tuple", "Misanswering returns a tuple instead of Moved: write return Moved(images)"),
        ("none", "Misanswering returns a NoneType instead of Moved: write return Moved(images)"),
        ("list", "Misanswering returns misshapen images: a list for a batch of (60, 1, 8, 8)"),
        ("boldest", "Misanswering returns misshapen boldest: (60, 1, 7, 8) for a batch of (60, 1, 8, 8)"),
        (
            "double",
            "Misanswering returns images in torch.float64 on cpu, not torch.float32 on cpu: make them of batch.images",
        ),
        ("reached", "Misanswering returns a misshapen reached: it must hold one truth value an input"),
    ],
)
def test_an_answer_of_another_form_is_named(bench: Any, how: str, line: str) -> None:
    rows = bench.measure("confidence", f"misanswering(how={how}),pgd1")
    assert one_line(rows) == line
    assert sorted(row.status for row in rows) == ["failed", "ok", "ok"]


def test_the_smallest_push_must_say_where_it_was_found(bench: Any) -> None:
    line = "Nearest looks for the smallest push: write Moved(images, boldest, reached)"
    assert one_line(bench.measure("confidence", "nearest")) == line


def test_an_outsider_s_adaptive_attack_is_told_of_a_certainty_without_gradient(bench: Any) -> None:
    rows = bench.measure("deaf,sure", "climbing")
    assert one_line(rows, "deaf") == "the certainty of Deaf() has no gradient: it cannot be attacked by following one"
    assert [row.status for row in rows] == ["ok", "ok", "failed", "ok"]
