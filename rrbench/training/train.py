"""Training -> checkpoint: the optimiser, the learning rate, the choice of epoch, and exact resume.

Every random number is derived from (seed, purpose, epoch, example), so a resumed run needs no generator state.
"""

import math
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from fractions import Fraction
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from rrbench.compute.batching import batch_size, forward, in_batches
from rrbench.compute.devices import Precision, describe, make_twin, place, tf32, tried_kernels
from rrbench.compute.draws import HashedDraws, derive
from rrbench.compute.eval_mode import Learning, frozen
from rrbench.compute.instrumented import Instrumented
from rrbench.compute.turns import TURNS
from rrbench.errors import CellError
from rrbench.files import provenance
from rrbench.files.checkpoints import pack_bits, write_checkpoint
from rrbench.files.disk import Files
from rrbench.planning.cells import Training, identity, plain, show_budget
from rrbench.plugins.config import Recipe
from rrbench.plugins.guards import checked
from rrbench.plugins.registry import build
from rrbench.progress import Advance, Report
from rrbench.protocols import Attack, Batch, DataInfo, DataSource, Framework, NetworkSource, Rejector, Split, Victim
from rrbench.training.average import Average
from rrbench.training.captured_steps import CapturedStep, Step
from rrbench.training.resume import State, Writer, resume

AHEAD = 16  # steps that may wait in the GPU's queue
_SEEDED = threading.Lock()  # all threads share PyTorch's random state
_OWN = threading.local()  # each thread's streams
_EXACT = threading.Lock()  # all threads share PyTorch's tf32 switch


class Epoch(NamedTuple):
    """A finished epoch."""

    record: dict[str, float]  # its number, loss and accuracies
    seconds: float


def epochs(
    training: Training,
    load: Callable[[Split], Batch],
    files: Files,
    *,
    device: torch.device,
    precision: Precision,
    report: Report,
    is_plain: bool = False,
) -> Generator[Epoch, None, None]:
    """Train one network to the end of its recipe, from where an earlier run ended; yield every epoch as it ends.

    Exhaust the iterator to get the checkpoints written; stop early and a later call resumes.

    `is_plain` trains without twin and captured steps, and alone: the reference that these are compared with.
    """
    with _switched(precision), _own_stream(device), ExitStack() as at_end:
        with TURNS.together():
            info = build(DataSource, training.dataset).info
            rejector = build(Rejector, training.rejector)
            framework = build(Framework, training.framework)
            network = place(build_network(training, info, rejector), device)
            model = Instrumented(network, precision, twin=None if is_plain else make_twin(network, precision, device))
            average = Average(network, training.recipe.average) if training.recipe.average else None
            state = State(network, make_optimizer(network, training.recipe), average)
            if files.resume.is_file():
                resume(state, files.resume, training)
                report.line(f"resuming {training.trained_as} after epoch {state.epoch}")
            data = load("train")
            judged = load(training.recipe.choose_on)
            kind = CapturedStep if device.type == "cuda" and not is_plain else Step
            parts = (framework, rejector, model, state.optimizer, info, data, report, training.trained_as)
            step = kind(*parts, average=average)
            at_end.enter_context(_released(step))
        seconds: list[float] = []
        to_train = training.recipe.epochs - state.epoch
        with (
            report.task(f"training {training.trained_as} on {training.dataset}", to_train) as advance,
            Writer(files.resume, training) as writer,
        ):
            while state.epoch < training.recipe.epochs:
                begin = time.perf_counter()
                loss = _epoch(training, state, step, advance)
                # If robust accuracy does not choose the epoch, one attack after the last epoch is enough.
                with_attack = framework.chooses_epoch or state.epoch + 1 == training.recipe.epochs
                # The first judgement compiles kernels; run alone, it compiles them once for all trainings.
                with TURNS.together() if seconds else TURNS.alone(), state.judged():
                    found = accuracies(training, model, rejector, judged, with_attack=with_attack)
                    record = {"epoch": state.epoch + 1, "loss": loss, **found}
                    _choose(state, framework, record)
                state.epoch += 1
                state.log.append(record)
                writer.save(state)
                seconds.append(time.perf_counter() - begin)
                yield Epoch(record, seconds[-1])
        if seconds:
            # Reported, but not written into the checkpoint: the same training must give the same file.
            report.line(f"trained {training.trained_as}: {sum(seconds) / len(seconds):.1f} s an epoch")
        for remark in _remarks(training, framework, state.log, state.best_epoch, info):
            report.line(f"{training.trained_as} {remark}")
        with TURNS.together():
            _finish(training, state, files, load("test"), precision)


@contextmanager
def _released(step: Step) -> Iterator[None]:
    """Release a training's steps when the training ends or fails."""
    try:
        yield
    finally:
        with TURNS.together():
            step.release()


@contextmanager
def _switched(precision: Precision) -> Iterator[None]:
    """Set PyTorch's switches, but wait while another training has tf32 off for its exact pass."""
    with ExitStack() as switches:
        with _EXACT:
            switches.enter_context(tf32(precision == "tf32"))
            switches.enter_context(tried_kernels(True))
        yield


@contextmanager
def _own_stream(device: torch.device) -> Iterator[None]:
    """Work on the thread's own stream: a capture needs one, and other trainings may share the GPU."""
    if device.type != "cuda":
        yield
        return
    with torch.cuda.device(device):
        with TURNS.together():
            stream, outer = _stream(), torch.cuda.current_stream()
            stream.wait_stream(outer)
        try:
            with torch.cuda.stream(stream):
                yield
        finally:
            with TURNS.together():
                outer.wait_stream(stream)


def _stream() -> torch.cuda.Stream:
    """Return this thread's own stream on the current GPU.

    A new stream for each training would not do: PyTorch reuses 32 streams, and may return one that is in use.
    """
    streams = _OWN.__dict__.setdefault("streams", {})
    device = torch.cuda.current_device()
    if device not in streams:
        streams[device] = torch.cuda.Stream()
    return cast(torch.cuda.Stream, streams[device])


def build_network(training: Training, info: DataInfo, rejector: Rejector) -> nn.Module:
    """Build a network with the weights that its seed gives; on the CPU, so that they are the same everywhere."""
    with _SEEDED, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(derive(training.seed, "initial weights"))
        return build(NetworkSource, training.network).build(info, rejector)


def learning_rate(recipe: Recipe, epoch: int, batch_index: int, batches: int) -> float:
    """Return the rate of one step; time is counted at the end of the step, so a drop comes one batch early."""
    share = (epoch + Fraction(batch_index + 1, batches)) / recipe.epochs
    return recipe.learning_rate * recipe.drop_factor ** sum(share >= drop for drop in recipe.drops)


def make_optimizer(network: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """Return SGD with momentum, or Adam; with weight decay on every parameter, as part of the gradient."""
    rate, decay = recipe.learning_rate, recipe.weight_decay
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(network.parameters(), lr=rate, momentum=recipe.momentum, weight_decay=decay)
    # Capturable: Adam counts its steps on the device, else a captured step would repeat the number of its capture.
    is_cuda = next(network.parameters()).is_cuda
    betas = (recipe.momentum, 0.999)
    return torch.optim.Adam(network.parameters(), lr=rate, betas=betas, weight_decay=decay, capturable=is_cuda)


def _epoch(training: Training, state: State, step: Step, advance: Advance) -> float:
    """Go once through the data and return the mean loss."""
    data = step.data
    diverged = f"training {training.trained_as} diverged in epoch {state.epoch + 1}"
    generator = torch.Generator().manual_seed(derive(training.seed, "order", state.epoch))
    with TURNS.together():
        order = torch.randperm(data.size, generator=generator).to(data.labels.device)
        pieces = order.split(training.recipe.batch)
        step.begin(training, state.epoch)
        step.network.train()
        # Once an epoch, since a step must be fast: a framework that forgets does so in every step.
        learning = Learning.of(step.network.network)
    for index, piece in enumerate(pieces):
        try:
            step.take(piece, learning_rate(training.recipe, state.epoch, index, len(pieces)))
        except (RuntimeError, ValueError):
            # A loss may refuse the NaN of a diverged network, in words that hide why: binary_cross_entropy does.
            if _answers_nan(step, piece):
                raise CellError(f"{diverged}: the network answers NaN or infinity") from None
            raise
        advance(1 / len(pieces))
        if index % AHEAD == AHEAD - 1 and data.labels.is_cuda:
            # Another training that captures its step waits for the GPU's whole queue: keep the queue short.
            torch.cuda.current_stream().synchronize()
    with TURNS.together():
        mean = float(step.total) / data.size
    if not math.isfinite(mean):
        raise CellError(f"{diverged}: the loss is {mean}")
    left = learning.left()
    if left:
        name = training.trained_as
        raise CellError(f"training {name}: {training.framework} leaves {left}: put it back before returning the loss")
    return mean


def _answers_nan(step: Step, piece: Tensor) -> bool:
    """Tell whether the network has diverged; if it cannot be asked any more, its first error says why."""
    with TURNS.together(), suppress(RuntimeError, ValueError), torch.no_grad():
        return not step.network(step.data.images[piece]).logits.isfinite().all()
    return False


def accuracies(
    training: Training, model: Instrumented, rejector: Rejector, judged: Batch, *, with_attack: bool = True
) -> dict[str, float]:
    """Return clean accuracy and, if asked, accuracy under the chooser's attack, in percent.

    The fast twin answers if there is one, since this is done after every epoch; rows are judged in float32.
    """
    attack = build(Attack, training.chooser)
    draws = HashedDraws(derive(training.seed, "choose", training.chooser.name))
    size = batch_size(judged.labels.device, judged.images.shape[1:])
    model.refresh()

    def attacked(piece: slice) -> tuple[Tensor, ...]:
        batch = judged.at(piece)
        answer = attack(Victim(model, rejector).seen_by(attack), batch.copied(), training.budget, draws)
        images = checked(attack, answer, batch, training.budget).images
        with torch.no_grad():
            return (model.climb(images).logits,)

    answers = {}
    with frozen(model):
        answers["clean_accuracy"] = forward(model.climb, judged.images, size).logits
        if with_attack:
            (under_attack,) = in_batches(judged.size, size, attacked)
            assert under_attack is not None
            answers["robust_accuracy"] = under_attack
    return {
        name: round(100 * float((logits.argmax(1) == judged.labels).double().mean()), 4)
        for name, logits in answers.items()
    }


def _choose(state: State, framework: Framework, record: Mapping[str, float]) -> None:
    """Keep the weights if this epoch is strictly the best so far, or always if accuracy chooses no epoch."""
    if not framework.chooses_epoch or record["robust_accuracy"] > state.best_score:
        state.best_epoch, state.best_score = int(record["epoch"]), record.get("robust_accuracy", -1.0)
        state.best = {name: tensor.detach().clone() for name, tensor in state.network.state_dict().items()}


def _remarks(
    training: Training, framework: Framework, log: Sequence[Mapping[str, float]], chosen: int, info: DataInfo
) -> Iterator[str]:
    """Say what is strange about a training that has ended."""
    best, last, chance = log[chosen - 1], log[-1], 100 / info.classes
    if best["clean_accuracy"] <= chance:
        yield (
            f"answers {best['clean_accuracy']:.1f} % of clean inputs right, no more than chance: "
            "does its loss use the labels as they are?"
        )
        return
    if not framework.chooses_epoch:
        return
    if best["robust_accuracy"] <= chance:
        yield (
            f"did not become robust: under {training.chooser} no epoch answers more than "
            f"{best['robust_accuracy']:.1f} % right, no more than chance"
        )
    if last["robust_accuracy"] < best["robust_accuracy"] / 2:
        yield (
            f"keeps epoch {chosen} of {len(log)}, chosen by {training.chooser}: {_reached(best)}; "
            f"the last epoch has {_reached(last)}: what the kept network holds may be chance"
        )


def _reached(record: Mapping[str, float]) -> str:
    return f"{record['robust_accuracy']:.1f} % right under it, {record['clean_accuracy']:.1f} % clean"


def _finish(training: Training, state: State, files: Files, test: Batch, precision: Precision) -> None:
    """Write both checkpoints, with the clean accuracy that a reader of the weights can check."""
    with state.judged():
        last = {name: tensor.detach().clone() for name, tensor in state.network.state_dict().items()}
    for path, weights, is_chosen in ((files.last, last, False), (files.chosen, state.best, True)):
        state.network.load_state_dict(weights)
        write_checkpoint(
            path,
            weights,
            describe_training(training)
            | clean_facts(state.network, test)
            | {
                "epoch": state.best_epoch if is_chosen else state.epoch,
                "log": state.log,
                "precision": precision,
                "device": describe(test.labels.device),
                "version": provenance.version(),
                "commit": provenance.commit(),
            },
        )
    files.resume.unlink(missing_ok=True)


def clean_facts(network: nn.Module, test: Batch) -> dict[str, Any]:
    """Return facts that a reader of the weights can check: which clean inputs are right, in exact float32."""
    with _EXACT, frozen(network), tf32(False):
        logits = forward(network, test.images, batch_size(test.labels.device, test.images.shape[1:])).logits
    correct = logits.argmax(1) == test.labels
    return {"clean_accuracy": round(100 * float(correct.double().mean()), 4), "clean_correct": pack_bits(correct)}


def describe_training(training: Training) -> dict[str, object]:
    """Return what made a checkpoint, as plain values for its header."""
    return {
        "key": training.key,
        "trained_as": training.trained_as,
        "dataset": identity(training.dataset),
        "network": identity(training.network),
        "framework": identity(training.framework),
        "training_key": training.training_key,
        "recipe": {name: plain(value) for name, value in training.recipe.facts().items()},
        "chooser": identity(training.chooser),
        "budget": show_budget(training.budget),
        "seed": training.seed,
    }
