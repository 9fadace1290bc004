"""PGD and AutoAttack of rrbench and of other packages, on one network and the same images."""

import copy
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rrbench.bench.measurement import OURS, Measurement, timed
from rrbench.compute.batching import batch_size
from rrbench.compute.devices import Precision, describe, tf32
from rrbench.compute.draws import HashedDraws
from rrbench.compute.eval_mode import frozen
from rrbench.compute.instrumented import Instrumented
from rrbench.measuring.evaluation import certainties
from rrbench.measuring.measured_network import MeasuredNetwork, to_numpy
from rrbench.metrics.measures import measure, of_logits
from rrbench.plugins.config import Config
from rrbench.plugins.registry import build, choose
from rrbench.protocols import Attack, Batch, Budget, Rejector, Victim

STEPS = 20
SMALL, LARGE = 128, 1000  # batches of the others: the authors' own size, and on a GPU one that suits it
PACKAGE_BATCH = PACKAGE_IMAGES = 500  # of AutoAttack's package
PEERS = {"foolbox": "foolbox", "torchattacks": "torchattacks", "autoattack": "pyautoattack"}  # {peer: its package}

Loop = Callable[[nn.Module, Tensor, Tensor], Tensor]  # (logits, images, labels) -> moved images


def installed() -> frozenset[str]:
    """Return the peers whose packages are installed."""
    return frozenset(name for name, package in PEERS.items() if find_spec(package) is not None)


def usual_precision(device: torch.device) -> Precision:
    """Return the precision of convolutions if nobody chooses one: unlike on a CPU, PyTorch uses tf32 on a GPU."""
    has_tf32 = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
    return "tf32" if has_tf32 and torch.backends.cudnn.allow_tf32 else "fp32"


class Logits(nn.Module):
    """A network as other packages want it: images in, logits out."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits."""
        logits: Tensor = self.network(images).logits
        return logits


class Run(NamedTuple):
    """The images that an implementation made of a batch, and the cost."""

    images: Tensor
    seconds: float
    memory: float | None
    size: int  # of the batches


@dataclass(frozen=True)
class Arena:
    """The network, images and settings that all implementations share."""

    measured: MeasuredNetwork
    rejector: Rejector
    budget: Budget
    step: Fraction
    config: Config
    peak: float | None  # bf16 operations a second in one large matrix product
    operations: float  # for one gradient

    def ours(
        self, attack: str, batch: Batch, precision: Precision, *, short_back: bool = False, is_warmed: bool = True
    ) -> Run:
        """Run one of rrbench's attacks as `rrbench run` does; `short_back` does the backward pass in tf32."""
        built = build(Attack, choose("attack", attack, self.config, ""))
        counted = Instrumented(self.measured.attackable(precision), precision, exact=self.measured.network, watch=True)
        victim, draws = Victim(counted, self.rejector), HashedDraws(0)
        size = min(batch_size(self.measured.device, batch.images.shape[1:]), batch.size)
        with frozen(counted), tf32(short_back or precision == "tf32"):
            return self._run(batch, size, lambda part: built(victim, part, self.budget, draws).images, is_warmed)

    def theirs(self, loop: Loop, batch: Batch, size: int, *, is_warmed: bool = True) -> Run:
        """Run another package's loop in PyTorch's default precision, on the network as people usually load it."""
        network = copy.deepcopy(self.measured.network).to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        logits = Logits(network).eval()
        size = min(size, batch.size)
        return self._run(batch, size, lambda part: loop(logits, part.images, part.labels), is_warmed)

    @property
    def large(self) -> int:
        """The others' second batch: on a CPU as many as rrbench takes, so that the batch alone makes none faster."""
        device = self.measured.device
        return LARGE if device.type == "cuda" else batch_size(device, self.measured.test().images.shape[1:])

    def _run(self, batch: Batch, size: int, work: Callable[[Batch], Tensor], is_warmed: bool) -> Run:
        def all_of_it() -> Tensor:
            return torch.cat([work(batch.at(slice(start, start + size))) for start in range(0, batch.size, size)])

        if is_warmed:
            work(batch.at(slice(size)))
        return Run(*timed(all_of_it, self.measured.device), size)

    def line(self, what: str, name: str, precision: str, batch: Batch, run: Run, gradients: int | None) -> Measurement:
        """Say how fast and how strong a run was; `gradients` is for each image."""
        rate = gradients * batch.size / run.seconds if gradients else None
        right = self.measured.judge(run.images).logits.argmax(1) == batch.labels
        return Measurement(
            what=what,
            implementation=name,
            device=describe(self.measured.device),
            batch=run.size,
            precision=precision,
            gradients_per_second=rate,
            robust_accuracy=100 * float(right.double().mean()),
            share_of_peak=rate * self.operations / self.peak if rate and self.peak else None,
            seconds=run.seconds,
            peak_memory_gib=run.memory,
        )


def pgd(arena: Arena, peers: frozenset[str]) -> Iterator[Measurement | str]:
    """Measure PGD with the same steps and budget; each implementation first runs one batch that is not timed."""
    test, eps, step = arena.measured.test(), arena.budget.eps, float(arena.step)
    what, text = f"pgd{STEPS}", f"pgd{STEPS}(step={arena.step},keep=last,select=ce)"
    precision = arena.measured.precision
    ours = arena.ours(text, test, precision)
    yield arena.line(what, OURS, precision, test, ours, STEPS)
    exact = None
    if precision != "fp32":
        exact = arena.ours(text, test, "fp32")
        yield arena.line(what, f"{OURS} in fp32", "fp32", test, exact, STEPS)
        # For attacks whose answers must be exact: minimal distortion, and the worst of several.
        half = arena.ours(text, test, "fp32", short_back=True)
        yield arena.line(what, f"{OURS} in fp32, back in tf32", "fp32", test, half, STEPS)
    plain = _script(eps, step, is_frozen=True)
    loops: list[tuple[str, Loop, int]] = [
        ("authors' loop", _script(eps, step, is_frozen=False), SMALL),
        ("plain loop", plain, arena.large),
    ]
    if "foolbox" in peers:
        loops += [("foolbox", _foolbox(eps, step), size) for size in (SMALL, arena.large)]
    if "torchattacks" in peers:
        loops += [("torchattacks", _torchattacks(eps, step), size) for size in (SMALL, arena.large)]
    usual = usual_precision(arena.measured.device)
    for name, loop, size in loops:
        yield arena.line(what, name, usual, test, arena.theirs(loop, test, size), STEPS)
    if usual != "fp32":
        # Tells whether ours in float32 is slow by its own fault, such as its memory format.
        with tf32(False):
            run = arena.theirs(plain, test, arena.large)
        yield arena.line(what, "plain loop in fp32", "fp32", test, run, STEPS)
    if exact is not None:
        yield _agreement(arena, test, ours, exact)


def _agreement(arena: Arena, test: Batch, short: Run, exact: Run) -> str:
    """Say how far the metrics of an attack in lower precision are from those of the same attack in float32."""
    found = []
    for run in (short, exact):
        outputs = arena.measured.judge(run.images)
        certainty = certainties(arena.rejector, outputs, test.labels)
        metrics = measure(
            *of_logits(to_numpy(test.labels), to_numpy(outputs.logits)),
            certainty,
            rule="quantile",
            clean=None,
            resamples=0,
            seed=0,
        )
        found.append({name: getattr(metrics, name) for name in ("acc_all", "acc_tpr95", "auc")})
    shown = [{name: "undefined" if value is None else f"{value:.4g}" for name, value in each.items()} for each in found]
    texts = [f"{name} {shown[0][name]} against {shown[1][name]}" for name in shown[0]]
    return f"attacked in {arena.measured.precision} and in fp32, judged by {arena.rejector}: {', '.join(texts)}"


def _script(eps: float, step: float, *, is_frozen: bool) -> Loop:
    """Return PGD as papers' scripts write it; unless frozen, every step also computes the weights' gradients."""

    def run(logits: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        delta = (images + torch.empty_like(images).uniform_(-eps, eps)).clamp(0, 1) - images
        for _ in range(STEPS):
            delta.requires_grad_()
            loss = F.cross_entropy(logits(images + delta), labels)
            if is_frozen:
                (gradient,) = torch.autograd.grad(loss, delta)
            else:
                loss.backward()
                assert delta.grad is not None
                gradient = delta.grad
            moved = (delta.detach() + step * gradient.sign()).clamp(-eps, eps)
            delta = (images + moved).clamp(0, 1) - images
        return images + delta

    def held(logits: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        with frozen(logits):
            return run(logits, images, labels)

    return held if is_frozen else run


def _foolbox(eps: float, step: float) -> Loop:
    import foolbox

    attack = foolbox.attacks.LinfPGD(abs_stepsize=step, steps=STEPS, random_start=True)

    def run(logits: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        moved: Tensor = attack(foolbox_model(logits, images), images, labels, epsilons=eps)[1]
        return moved

    return run


def foolbox_model(logits: nn.Module, images: Tensor) -> Any:
    """Return a network as foolbox wants it, on the images' device."""
    import foolbox

    return foolbox.models.pytorch.PyTorchModel(logits, bounds=(0, 1), device=images.device)


def _torchattacks(eps: float, step: float) -> Loop:
    import torchattacks

    def run(logits: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        moved: Tensor = torchattacks.PGD(logits, eps=eps, alpha=step, steps=STEPS, random_start=True)(images, labels)
        return moved

    return run


def autoattack(arena: Arena, peers: frozenset[str], count: int) -> Iterator[Measurement | str]:
    """Measure AutoAttack `standard`: ours on all images, its package on the first `count`; the ratio is per image."""
    test, precision = arena.measured.test(), arena.measured.precision
    ours = arena.ours("autoattack(version=standard,steps=100,queries=5000)", test, precision, is_warmed=False)
    yield replace(arena.line(f"autoattack of {test.size}", OURS, precision, test, ours, None), ratio=1.0)
    if "autoattack" in peers:
        part = test.at(slice(count))
        what = f"autoattack of {part.size}"
        first = arena.line(what, f"{OURS}, of those", precision, part, ours._replace(images=ours.images[:count]), None)
        yield replace(first, seconds=None, peak_memory_gib=None)
        package = arena.theirs(_package(arena), part, PACKAGE_BATCH, is_warmed=False)
        faster = (package.seconds / part.size) / (ours.seconds / test.size)
        usual = usual_precision(arena.measured.device)
        yield replace(arena.line(what, "pyautoattack", usual, part, package, None), ratio=faster)


def _package(arena: Arena) -> Loop:
    from pyautoattack import AutoAttack

    norm = {"linf": "Linf", "l2": "L2"}[arena.budget.norm]

    def run(logits: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        with frozen(logits), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            device = arena.measured.device
            package: Any = AutoAttack(logits, norm=norm, eps=arena.budget.eps, device=device, seed=0)
            moved: Tensor = package.run_standard_evaluation(images, labels, batch_size=PACKAGE_BATCH)[0]
        return moved

    return run
