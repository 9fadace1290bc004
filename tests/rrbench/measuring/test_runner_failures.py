"""Whole runs with something wrong in them: what fails fails alone and says why."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from made_up_plugins import Brighter, BrokenTraining, Fragile, Misbehaving, Noise, Unfit, by_attack, measured
from rrbench.datasets.check import fingerprint
from rrbench.datasets.digits import Digits
from rrbench.errors import UseError
from rrbench.files.checkpoints import pack_bits, read_checkpoint, unpack_bits, write_checkpoint
from rrbench.plugins.registry import table
from rrbench.protocols import Batch, Draws, Victim
from rrbench.rows.row import read_rows

pytestmark = pytest.mark.usefixtures("plugins")


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("far", "the attack left its budget: linf 0.3 > 0.1"),
        ("boldly far", "the attack left its budget"),
        ("outside", "the attack left the range [0, 1]"),
        ("nan", "NaN"),
        ("few", "misshapen"),
        ("flat", "misshapen"),
        ("value", "ValueError: a plugin's own trouble"),
        ("attribute", "AttributeError: a plugin's own trouble"),
        ("assertion", "AssertionError: a plugin's own trouble"),
        ("os", "OSError: a plugin's own trouble"),
    ],
)
def test_an_attack_that_misbehaves_is_a_failed_row_that_says_so(bench: Any, how: str, reason: str) -> None:
    rows = by_attack(bench.measure("confidence", f"misbehaving({how}),brighter", budgets="linf:1/10"))
    failed = rows.pop(f"misbehaving(how={how})", None) or rows.pop(f"misbehaving({how})")
    assert failed.status == "failed"
    assert reason in failed.error
    assert "\n" not in failed.error
    assert all(value is None for value in measured(failed).values())
    assert [row.status for row in rows.values()] == ["ok", "ok"]
    assert sorted(row.status for row in read_rows(bench.out)) == ["failed", "ok", "ok"]


@pytest.mark.parametrize("how", ["in place", "labels"])
def test_an_attack_cannot_change_the_data_it_is_judged_on(bench: Any, how: str) -> None:
    honest = by_attack(bench.measure("confidence", "brighter"))
    rows = bench.measure("confidence", f"misbehaving({how}),pgd1")
    data = fingerprint(Digits().load("test").at(slice(60)))
    for row in rows:
        if row.status == "ok":
            assert row.data_sha256 == data
        if row.attack.startswith("misbehaving") and how == "in place":
            assert row.status == "failed", "grey images are far outside the budget"
        if row.attack.startswith("misbehaving") and how == "labels":
            assert row.acc_all == honest["brighter"].acc_all


def test_a_failed_row_is_tried_again_by_the_next_run(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [row.status for row in bench.measure("confidence", "misbehaving(nan)")] == ["ok", "failed"]
    assert [row.status for row in bench.measure("confidence", "misbehaving(nan)")] == ["ok", "failed"]
    assert len(bench.attacked()) == 1
    monkeypatch.setattr(Misbehaving, "works", True)
    rows = bench.measure("confidence", "misbehaving(nan)")
    assert [(row.status, row.error) for row in rows] == [("ok", ""), ("ok", "")]
    assert [row.status for row in read_rows(bench.out)] == ["ok", "ok"]


@pytest.mark.parametrize(
    ("rejector", "reason"),
    [
        ("wrong(nan)", "gives NaN"),
        ("wrong(shape)", "scores for"),
        ("unfit", "too few examples"),
    ],
)
def test_a_rejector_that_misbehaves_fails_its_own_rows_alone(bench: Any, rejector: str, reason: str) -> None:
    rows = bench.measure(f"{rejector},confidence", "brighter")
    assert [row.status for row in rows if row.rejector == "confidence"] == ["ok", "ok"]
    failed = [row for row in rows if row.rejector != "confidence"]
    assert [row.status for row in failed] == ["failed", "failed"]
    assert all(reason in row.error for row in failed)
    assert Brighter.calls == [60]


def raising(error: BaseException) -> Any:
    def method(*given: object) -> None:
        raise error

    return method


EXITS = "a plugin tried to end the process (SystemExit: 0): it should raise an error"


@pytest.mark.parametrize(
    ("plugin", "method", "rejectors", "options"),
    [
        (Brighter, "__call__", "confidence", {}),
        (Unfit, "fit", "unfit", {}),
        (Noise, "certainty", "noise", {}),
        (BrokenTraining, "__call__", "confidence", {"frameworks": "broken"}),
        (Fragile, "build", "confidence", {"network": "fragile"}),
    ],
    ids=["attack", "fit", "certainty", "framework", "network"],
)
def test_a_plugin_that_exits_is_a_failed_row_and_an_interrupt_ends_the_run(
    bench: Any, monkeypatch: pytest.MonkeyPatch, plugin: type, method: str, rejectors: str, options: dict[str, str]
) -> None:
    monkeypatch.setattr(plugin, method, raising(SystemExit(0)))
    rows = by_attack(bench.measure(rejectors, "brighter", **options))
    assert (rows["brighter"].status, rows["brighter"].error) == ("failed", EXITS)
    assert rows["clean"].status == ("ok" if plugin is Brighter else "failed")
    assert len(read_rows(bench.out)) == 2
    monkeypatch.setattr(plugin, method, raising(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        bench.measure(rejectors, "brighter", **options)


def test_the_end_of_a_ray_worker_is_not_taken_for_a_plugins_exit(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray turns SIGTERM into a SystemExit with a mark: the unit must be handed to another worker, and not fail."""
    told = SystemExit(1)
    told.ray_terminate_msg = "The process receives a SIGTERM."  # type: ignore[attr-defined]
    monkeypatch.setattr(Brighter, "__call__", raising(told))
    with pytest.raises(SystemExit):
        bench.measure("confidence", "brighter")
    assert [row.attack for row in read_rows(bench.out)] == ["clean"]


def test_a_run_whose_plugin_exits_before_it_begins_ends_with_a_line_and_code_2(
    command: Any, bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Digits, "load", raising(SystemExit(0)))
    monkeypatch.setattr("rrbench.api.make_plan", raising(SystemExit(0)))
    answer = command("run", "--attacks", "brighter", *bench.arguments())
    assert (answer.code, answer.err.splitlines()[-1]) == (2, f"rrbench: {EXITS}")


def test_infinite_scores_are_measured_or_refused_in_words(bench: Any) -> None:
    for row in bench.measure("wrong(infinite)", "brighter"):
        assert row.status == "ok" or "infinite" in row.error


def rewrite(bench: Any, trained_as: str, **changes: Any) -> None:
    """Change a checkpoint of the work folder: `nan` its weights, or some of its facts."""
    for path in (bench.out / "checkpoints").glob("*.safetensors"):
        checkpoint = read_checkpoint(path)
        if checkpoint.facts["trained_as"] == trained_as:
            is_broken = changes.get("nan")
            tensors = {
                name: tensor * float("nan") if is_broken and name == "classifier.weight" else tensor
                for name, tensor in checkpoint.tensors.items()
            }
            facts = {key: value for key, value in changes.items() if key != "nan"}
            write_checkpoint(path, tensors, {**checkpoint.facts, **facts})


def test_nan_logits_fail_the_rows_of_their_checkpoint_and_the_others_finish(bench: Any) -> None:
    rewrite(bench, "pgd-at", nan=True)
    rows = bench.measure("confidence,ebd", "brighter")
    assert [(row.rejector, row.status) for row in rows] == [
        ("confidence", "failed"),
        ("confidence", "failed"),
        ("ebd", "ok"),
        ("ebd", "ok"),
    ]
    assert all("NaN" in row.error for row in rows[:2])
    assert sorted(row.status for row in read_rows(bench.out)) == ["failed", "failed", "ok", "ok"]


def test_rows_that_failed_with_their_checkpoint_are_in_the_csv(bench: Any) -> None:
    rewrite(bench, "pgd-at", nan=True)
    bench.measure("confidence", "brighter")
    assert [row.status for row in read_rows(bench.out)] == ["failed", "failed"]


def test_nan_that_only_an_attack_brings_forth_fails_that_row(empty: Any) -> None:
    recipe = {"epochs": 1, "batch": 1077}
    rows = by_attack(empty.measure("confidence", "brighter,pgd1", network="fragile", recipe=recipe))
    assert [row.status for row in rows.values()] == ["ok", "failed", "ok"]
    assert "NaN" in rows["brighter"].error


def test_an_unexpected_accuracy_stops_the_cells_of_its_checkpoint(bench: Any) -> None:
    correct = unpack_bits(only_checkpoint(bench, "pgd-at").facts["clean_correct"])
    rewrite(bench, "pgd-at", clean_correct=pack_bits(~correct))
    rows = bench.measure("confidence,ebd", "brighter")
    assert [row.status for row in rows] == ["failed", "failed", "ok", "ok"]
    assert all(
        "clean accuracy" in row.error and "was expected: wrong data or preprocessing" in row.error for row in rows[:2]
    )
    assert Brighter.calls == [60], "only the checkpoint that fits is attacked"
    rewrite(bench, "pgd-at", clean_correct=pack_bits(correct))
    assert [row.status for row in bench.measure("confidence,ebd", "brighter")] == ["ok"] * 4


def only_checkpoint(bench: Any, trained_as: str) -> Any:
    found = [read_checkpoint(path) for path in (bench.out / "checkpoints").glob("*[0-9a-f].safetensors")]
    return next(checkpoint for checkpoint in found if checkpoint.facts["trained_as"] == trained_as)


def test_a_checkpoint_of_another_shape_stops_its_own_cells_with_one_line(bench: Any) -> None:
    path = only_checkpoint(bench, "pgd-at").path
    checkpoint = read_checkpoint(path)
    wrong = {**checkpoint.tensors, "classifier.weight": torch.zeros(10, 3)}
    write_checkpoint(path, wrong, checkpoint.facts)
    rows = bench.measure("confidence,ebd", "brighter")
    assert [row.status for row in rows] == ["failed", "failed", "ok", "ok"]
    for row in rows[:2]:
        assert row.error.endswith("does not fit this network: 'classifier.weight' is (10, 3), not (10, 64)")


def test_a_framework_that_raises_fails_its_own_rows_alone(bench: Any) -> None:
    rows = bench.measure("confidence", "brighter", frameworks="broken,pgd-at")
    assert [row.status for row in rows] == ["failed", "failed", "ok", "ok"]
    assert all("AttributeError: a framework's own trouble" in row.error for row in rows[:2])
    assert len(read_rows(bench.out)) == 4


def test_a_training_that_diverges_fails_its_rows(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True)
    class Diverging(BrokenTraining):
        def __call__(self, victim: Victim, batch: Batch, draws: Draws) -> Tensor:
            return F.cross_entropy(victim.network(batch.images).logits, batch.labels) * float("nan")

    monkeypatch.setitem(table("framework").classes, "broken", Diverging)
    (row,) = bench.measure("confidence", "clean", frameworks="broken")
    assert row.status == "failed"
    assert row.error == "Diverging returns a loss of nan in the first step"


def test_a_pair_that_does_not_fit_is_left_out_with_a_line_and_nothing_left_is_refused(bench: Any) -> None:
    with pytest.raises(UseError, match="nothing to run"):
        bench.prepare("carl", "clean", frameworks="pgd-at")
    job = bench.prepare("confidence,carl", "brighter", frameworks="pgd-at")
    assert {str(cell.rejector) for cell in job.plan.cells} == {"confidence"}
    assert len(job.plan.dropped) == 1
    bench.measure("confidence,carl", "brighter", frameworks="pgd-at")
    assert [line for line in bench.report.lines if line.startswith("left out")]
