"""`rrbench bench`: the columns it promises, ratios by hand, and implementations that all do the same attack."""

import csv
import io
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rrbench.api import RunOptions, prepare
from rrbench.bench import attacks, compare, training
from rrbench.bench.measurement import Measurement, timed, to_csv, to_text, with_ratios
from rrbench.bench.plot import draw
from rrbench.compute.instrumented import Instrumented
from rrbench.errors import UseError
from rrbench.measuring.materials import Materials
from rrbench.planning.cells import Training
from rrbench.progress import PassedOn
from rrbench.protocols import Outputs
from rrbench.training.captured_steps import Step
from rrbench.training.train import Epoch

COLUMNS = (
    "what,implementation,device,batch,precision,gradients_per_second,ratio,robust_accuracy,share_of_peak,seconds,"
    "peak_memory_gib,images_per_second,success,l2_distance"
)
LINES = [
    Measurement("pgd20", "rrbench", "a gpu", 5000, "bf16", 160_000.0, None, 45.0, 0.45, 1.25, 9.5),
    Measurement("pgd20", "foolbox", "a gpu", 1000, "fp32", 20_000.0, None, 45.1, 0.06, 10.0, 5.6),
    Measurement("training", "rrbench", "a gpu", 128, "bf16", seconds=8.0),
    Measurement("training", "plain step", "a gpu", 128, "bf16", seconds=36.0),
    Measurement("autoattack of 500", "pyautoattack", "a gpu", 500, "fp32", ratio=11.0, seconds=130.0),
    Measurement("matrix product", "torch", "a gpu", 8192, "bf16", share_of_peak=1.0, seconds=0.001),
]


def test_a_ratio_is_ours_over_theirs_in_speed_and_one_that_is_given_stays() -> None:
    assert [each.ratio for each in with_ratios(LINES)] == [1.0, 8.0, 1.0, 4.5, 11.0, None]


def test_the_csv_has_the_promised_columns_and_reads_back() -> None:
    text = to_csv(with_ratios(LINES))
    assert text.splitlines()[0] == COLUMNS
    read = list(csv.DictReader(io.StringIO(text)))
    assert [row["ratio"] for row in read] == ["1.00", "8.00", "1.00", "4.50", "11.00", ""]
    assert read[1]["gradients_per_second"] == "20000"
    assert read[5]["robust_accuracy"] == ""


def test_the_screen_shows_columns_that_say_something() -> None:
    header, _, *lines = to_text(LINES).splitlines()
    assert " ".join(header.split()) == ("what implementation batch precision gradients/s ratio accuracy of peak s GiB")
    assert [line.split()[:2] for line in lines[:2]] == [["pgd20", "rrbench"], ["pgd20", "foolbox"]]


def test_time_is_taken_of_the_work_alone() -> None:
    found, seconds, memory = timed(lambda: "done", torch.device("cpu"))
    assert (found, memory) == ("done", None)
    assert 0 <= seconds < 1


@pytest.fixture(scope="module")
def arena(tmp_path_factory: pytest.TempPathFactory) -> attacks.Arena:
    job = prepare(RunOptions("rr", "pgd20", frameworks="pgd-at", out=tmp_path_factory.mktemp("bench"), limit=48))
    return compare.make_arena(job, peak=1e9)


def test_every_implementation_does_the_same_attack(arena: attacks.Arena) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)  # of their random starts
        lines = [each for each in attacks.pgd(arena, frozenset({"foolbox"})) if isinstance(each, Measurement)]
    assert [each.implementation for each in lines] == [
        "rrbench",
        "authors' loop",
        "plain loop",
        "foolbox",
        "foolbox",
    ]
    accuracies = [each.robust_accuracy or 0.0 for each in lines]
    assert max(accuracies) - min(accuracies) <= 100 * 2 / 48
    assert all(each.seconds and each.gradients_per_second == pytest.approx(20 * 48 / each.seconds) for each in lines)
    shares = [(each.gradients_per_second or 0) * arena.operations / 1e9 for each in lines]
    assert [each.share_of_peak for each in lines] == pytest.approx(shares)


def test_short_precision_is_held_against_float32_whole_and_with_a_short_way_back(
    arena: attacks.Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    switches: list[tuple[bool, bool]] = []

    def noted(network: Instrumented, images: torch.Tensor) -> Outputs:
        outside = torch.backends.cudnn.allow_tf32
        assert network.watch  # as in a run
        switches.append((network.precision == "fp32", outside))
        return climb(network, images)

    climb = Instrumented.climb
    monkeypatch.setattr(Instrumented, "climb", noted)
    short = replace(arena, measured=replace(arena.measured, precision="bf16"))
    lines = [each for each in attacks.pgd(short, frozenset()) if isinstance(each, Measurement)]
    names = ["rrbench", "rrbench in fp32", "rrbench in fp32, back in tf32"]
    assert [(each.implementation, each.precision) for each in lines[:3]] == list(
        zip(names, ["bf16", "fp32", "fp32"], strict=True)
    )
    assert list(dict.fromkeys(switches)) == [(False, False), (True, False), (True, True)]
    assert len({each.robust_accuracy for each in lines[1:3]}) == 1  # a CPU has no tf32


def test_where_others_use_tf32_a_plain_loop_runs_without_it_too(
    arena: attacks.Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    switches: list[bool] = []

    def noted(logits: attacks.Logits, images: torch.Tensor) -> torch.Tensor:
        switches.append(torch.backends.cudnn.allow_tf32)
        return forward(logits, images)

    forward = attacks.Logits.forward
    monkeypatch.setattr(attacks.Logits, "forward", noted)
    monkeypatch.setattr(attacks, "usual_precision", lambda device: "tf32")
    lines = [each for each in attacks.pgd(arena, frozenset()) if isinstance(each, Measurement)]
    assert [(each.implementation, each.precision) for each in lines[-2:]] == [
        ("plain loop", "tf32"),
        ("plain loop in fp32", "fp32"),
    ]
    assert (switches[0], switches[-1]) == (True, False)
    assert torch.backends.cudnn.allow_tf32


def test_peers_leave_no_trace_on_the_network(arena: attacks.Arena) -> None:
    before = {name: tensor.clone() for name, tensor in arena.measured.network.state_dict().items()}
    list(attacks.pgd(arena, frozenset()))
    assert all(parameter.grad is None for parameter in arena.measured.network.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in arena.measured.network.state_dict().items())


def test_the_operations_of_a_gradient_are_counted_by_hand(arena: attacks.Arena) -> None:
    # 3x3 convolutions of 1 -> 16 on 8x8, 16 -> 32 on 4x4, 32 -> 64 on 2x2, then 64 -> 10, there and back.
    products = 9 * (1 * 16 * 64 + 16 * 32 * 16 + 32 * 64 * 4) + 64 * 10
    head = 64 * 32 + 32  # forward only: the loss is on the logits
    assert arena.operations == 2 * (2 * products + head)


def test_an_epoch_is_timed_alone_and_plainly_at_the_first_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = {"batch": 512, "drops": ["1/2"]}
    job = prepare(RunOptions("rr", "clean", frameworks="pgd-at(steps=2)", out=tmp_path, recipe=recipe))
    (example,) = job.plan.checkpoints()
    seen: set[tuple[float, bool]] = set()
    take = Step.take

    def noted(step: Step, positions: torch.Tensor, rate: float) -> None:
        seen.add((rate, torch.backends.cudnn.benchmark))
        take(step, positions, rate)

    monkeypatch.setattr(Step, "take", noted)
    ours, plain = training.training(job.materials, example)
    assert seen == {(example.recipe.learning_rate, True)}  # both with kernels that cuDNN tried
    assert (ours.implementation, plain.implementation) == ("rrbench", "plain step")
    for each in (ours, plain):
        assert each.seconds is not None
        assert each.gradients_per_second == pytest.approx(1077 * 3 / each.seconds)


def test_the_curve_has_both_ways_epoch_by_epoch_and_says_how_far_they_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "CURVE", 2)
    twins: list[object] = []
    monkeypatch.setattr("rrbench.training.train.make_twin", lambda network, *rest: twins.append(network))
    said: list[str] = []
    recipe, report = {"batch": 512, "choose_by": "pgd1"}, PassedOn(said.append)
    job = prepare(RunOptions("rr", "clean", frameworks="pgd-at(steps=1)", out=tmp_path, recipe=recipe, report=report))
    (example,) = job.plan.checkpoints()
    told = training.curve(job.materials, example)
    first = next(told)
    # A run that is cut short keeps the epochs it has seen.
    assert not any("trained" in line for line in said)
    *lines, clean, robust = [first, *told]
    assert sum("trained" in line for line in said) == 2
    assert [(line.what, line.implementation) for line in lines if isinstance(line, Measurement)] == [
        ("epoch 1", "rrbench"), ("epoch 2", "rrbench"), ("epoch 1", "plain step"), ("epoch 2", "plain step"),
    ]  # fmt: skip
    values = [line.robust_accuracy for line in lines if isinstance(line, Measurement)]
    # On a CPU there is no other way than the plain one, and the same seed gives the same numbers.
    assert values[:2] == values[2:]
    for text, metric in ((clean, "clean_accuracy"), (robust, "robust_accuracy")):
        assert str(text).startswith(f"{metric} less the plain step's over 2 epochs: mean +0.00, largest +0.00 points")
    assert str(values[:2]) in str(robust)
    assert len(twins) == 1  # the plain way asks for none


def together(*trainings: Iterator[Epoch]) -> list[Future[float]]:
    barrier = threading.Barrier(len(trainings))
    with ThreadPoolExecutor(len(trainings)) as pool:
        return [pool.submit(training.in_step, each, barrier) for each in trainings]


def test_trainings_that_are_timed_together_begin_every_epoch_together() -> None:
    seen, lock = list[tuple[str, int]](), threading.Lock()

    def train(name: str, pause: float) -> Iterator[Epoch]:
        for number in range(3):
            with lock:
                seen.append((name, number))
            time.sleep(pause)
            yield Epoch({"epoch": number}, seconds=pause * (number + 1))

    found = together(train("fast", 0.01), train("slow", 0.05))
    assert [each.result() for each in found] == pytest.approx([0.03, 0.15])
    assert [number for _, number in seen] == [0, 0, 1, 1, 2, 2]


def test_of_trainings_side_by_side_the_mean_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = prepare(RunOptions("rr", "clean", frameworks="pgd-at", out=tmp_path))
    (example,) = job.plan.checkpoints()

    def train(materials: Materials, each: Training, folder: Path) -> Iterator[Epoch]:
        yield from (Epoch({}, seconds=100.0), Epoch({}, seconds=1.0 + each.seed))

    monkeypatch.setattr(training, "_train", train)
    assert training._epoch_seconds(job.materials, example, 4) == (2.5, None)


def test_nobody_waits_for_a_training_that_failed() -> None:
    def train(lasts: int) -> Iterator[Epoch]:
        for number in range(lasts):
            yield Epoch({"epoch": number}, seconds=1.0)
        if lasts < 3:
            raise UseError("the loss is nan")

    found = together(train(3), train(1), train(3))
    assert isinstance(found[1].exception(), UseError)
    assert [found[index].exception() for index in (0, 2)] == [None, None]


def test_the_plot_draws_what_has_a_rate(tmp_path: Path) -> None:
    draw(LINES, tmp_path / "bench.svg")
    text = (tmp_path / "bench.svg").read_text()
    assert "160,000" in text
    assert "20,000" in text


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--parts", "pgd,sprint"], "--parts takes pgd, training, autoattack, cw, curve; not sprint"),
        (["--parts", ","], "--parts takes pgd, training, autoattack, cw, curve; not nothing"),
        (["--count", "0"], "--count must be at least 1, not 0"),
        (["--plot", "speed.xyz"], "cannot draw speed.xyz: end the name in .pdf, .svg, .png"),
        (["--peers", "art"], "--peers takes foolbox, torchattacks, autoattack; not art"),
    ],
)
def test_a_wrong_word_is_one_line(command: Callable[..., Any], options: list[str], reason: str) -> None:
    answer = command("bench", *options)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.splitlines()[-1] == f"rrbench: {reason}"


def test_a_peer_that_is_not_installed_is_one_line(command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rrbench.bench.attacks.find_spec", lambda package: None)
    answer = command("bench", "--peers", "torchattacks")
    assert (answer.code, answer.err.splitlines()[-1]) == (2, "rrbench: not installed: torchattacks")


def test_what_was_found_before_the_end_is_told_and_kept(
    command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def cut_short(*given: object) -> Iterator[Measurement | str]:
        yield LINES[0]
        yield "both agree"
        raise UseError("the power went")

    monkeypatch.setattr("rrbench.bench.compare.compare", cut_short)
    answer = command("bench", "--parts", "pgd", "--out", str(tmp_path), "--csv", str(tmp_path / "bench.csv"))
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.splitlines()[-3:] == ["measured pgd20, rrbench", "both agree", "rrbench: the power went"]
    assert (tmp_path / "bench.csv").read_text() == to_csv(with_ratios(LINES[:1]))
