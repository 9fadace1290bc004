"""The answers of every built-in attack, rejector and framework on a tiny problem; a change needs a new revision.

`python tests/golden_cases.py` writes tests/golden/outputs.json anew, but for what changed under the same revision. A
plugin without a line below is asked as it is named, with its default settings.

The network and the images are made of hashed numbers, so that they are the same bits everywhere. The statistics move
with rounding by about 1e-6 (sums in another order, on x86_64 and aarch64 alike), now and then by the step of a pixel
whose gradient is next to nothing. TOLERANCE lies above both, and far below what a change of behaviour makes.
"""

import json
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rrbench.ascent import REVISION as ENGINE
from rrbench.compute.draws import HashedDraws
from rrbench.compute.looking import with_looks
from rrbench.plugins.config import load_preset
from rrbench.plugins.registry import build, choose, is_ours, table
from rrbench.protocols import (
    NO_BUDGET,
    Attack,
    Batch,
    Budget,
    Calibration,
    Ensemble,
    Framework,
    Moved,
    MovedElsewhere,
    Outputs,
    Rejector,
    Victim,
)
from rrbench_baselines.confidence import Confidence

PATH = Path(__file__).resolve().parent / "golden" / "outputs.json"
WRITE = "run `python tests/golden_cases.py`"
TOLERANCE = 2e-4  # of a number around 1; larger ones may be off by this share
WIDTH, CLASSES, SHAPE = 6, 4, (1, 6, 6)
LINF, L2 = Budget("linf", Fraction(1, 10)), Budget("l2", Fraction(1, 2))
CALIBRATION = Calibration(threshold=0.6, median=0.8, scale=0.3)
DRAWS = HashedDraws(5)

Golden = dict[
    str, Any
]  # {"revision": ..., "numbers": {statistic: value or values}} and more that tells behaviours apart


def hashed(stream: int, *shape: int) -> Tensor:
    """Return numbers in [-1, 1) that are the same on every machine."""
    return 2 * HashedDraws(stream).uniform(torch.arange(shape[0]), shape[1:], 0) - 1


class Tiny(nn.Module):
    """One smooth hidden layer: nothing hangs on which side of a kink rounding puts a number."""

    def __init__(self, head: nn.Module | None = None, sureness: float = 1.0) -> None:
        super().__init__()
        self.backbone, self.classifier = nn.Linear(36, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.head = head
        for stream, parameter in enumerate(self.parameters()):
            parameter.data = (1.5 if parameter.dim() > 1 else 0.3) * hashed(320 + stream, *parameter.shape)
        self.classifier.weight.data *= sureness

    def forward(self, images: Tensor) -> Outputs:
        features = self.backbone(images.flatten(1) - 0.5).tanh()
        logits: Tensor = self.classifier(features)
        return Outputs(features, logits, self.head(features) if self.head else logits[:, :0])


def batch(size: int, first: int = 0) -> Batch:
    """Return images, three of four labelled as the network answers."""
    ids = torch.arange(first, first + size)
    images = HashedDraws(1).uniform(ids, SHAPE, 0)
    with torch.no_grad():
        answers = Tiny()(images).logits.argmax(1)
    return Batch(images, torch.where(ids % 4 == 3, (answers + 1) % CLASSES, answers), ids)


@dataclass
class LargestLogit(Rejector):
    """A certainty that is no probability."""

    def certainty(self, outputs: Outputs) -> Tensor:
        return outputs.logits.amax(1)


# Not eta=1: of a right answer cross-entropy and log confidence add up to 0, and rounding would choose the way.
ATTACKS = {
    "clean": ["clean"],
    "pgd": ["pgd4", "pgd3x2(keep=best,select=evade)", "pgd3(step=1/50,select=objective)"],
    "multi-target": ["multi-target(steps=3,restarts=1)"],
    "gama-pgd": ["gama-pgd(steps=5)"],
    "gama-fw": ["gama-fw(steps=5)"],
    "cw-l2": [
        "cw-l2(steps=8,searches=2,learning_rate=0.05,c0=1)",
        "cw-l2(goal=adaptive,steps=8,searches=2,learning_rate=0.05,c0=1,start=phase1)",
    ],
    "cw-linf": [
        "cw-linf(steps=8,searches=2,learning_rate=0.05,c0=1)",
        "cw-linf(steps=8,searches=2,learning_rate=0.05,c0=1,maximum=smooth,stop=batch)",
    ],
    "autoattack": ["autoattack(steps=3,queries=4)", "autoattack(original,steps=2,queries=4)"],
    "foolbox": ["foolbox(LinfPGD(steps:3))", "foolbox(L2PGD(steps:3))"],
    "adaptive": [
        f"adaptive({objective},eta=0.1:2,steps=3,restarts=1)"
        for objective in ("ce+rcon", "ce+rr", "con+rr", "con+rcon", "con+rr(multi)")
    ],
    "orthogonal-pgd": ["orthogonal-pgd(steps=4)", "orthogonal-pgd(steps=4,every=2,target=1)"],
    "selective-pgd": ["selective-pgd(steps=4)", "selective-pgd(steps=4,beyond=false)"],
    "rejection-loss": ["rejection-loss(steps=4,restarts=1)", "rejection-loss(form=and,steps=4,restarts=1)"],
    "apgd-reject": ["apgd-reject(steps=6)", "apgd-reject(steps=6,targets=2)"],
    "square-reject": ["square-reject(queries=12)"],
    "ace": ["ace"],
    "over-reject": ["over-reject(steps=6,searches=3,restarts=2)"],
    "transfer": ["transfer(standard,by=pgd3)"],
    "worst-case": ["worst-case"],
}
FAINT = "pgd4"  # also on a network so sure that its gradients are next to nothing
SURE = 20.0
REJECTORS = {
    "confidence": ["confidence", "confidence(tau=2)"],
    "t-con": ["t-con"],
    "kd": ["kd(g=0.5)"],
    "lid": ["lid(k=5,references=40)"],
    "gda": ["gda", "gda(inverse=ridge)"],
    "gda*": ["gda*"],
    "gmm": ["gmm"],
    "snet": ["snet"],
    "ebd": ["ebd"],
    "carl": ["carl"],
    "atro": ["atro"],
    "rr": ["rr", "rr(form=difference)", "rr(form=head)", "rr(form=confidence)", "rr(score=con)", "rr(tau=0.5)"],
    "coupled": ["coupled"],
    "never-reject": ["never-reject"],
    "energy": ["energy", "energy(tau=2)"],
    "max-logit": ["max-logit"],
    "max-logit-pnorm": ["max-logit-pnorm", "max-logit-pnorm(p=3)"],
    "entropy": ["entropy"],
    "margin": ["margin"],
    "doctor": ["doctor"],
    "rel-u": ["rel-u", "rel-u(tau=2,weight=0.7)"],
    "knn": ["knn", "knn(k=3,references=40)"],
    "vim": ["vim", "vim(dimensions=4)"],
    "cpr": ["cpr(eps=1/20,step=1/50,steps=3)"],
    "pro": ["pro(step=1/50)"],
}
FRAMEWORKS = {
    "standard": [("standard", "confidence"), ("standard", "rr")],
    "pgd-at": [("pgd-at(steps=3)", "confidence"), ("pgd-at(steps=3,step=1/50,eps=1/10)", "rr")],
    "trades": [("trades(steps=3)", "confidence"), ("trades(steps=3,step=1/50,eps=1/10)", "rr")],
    "ccat": [
        ("ccat(steps=4,scale=1,attack_mode=train)", "confidence"),
        ("ccat(steps=4,scale=1,attack_mode=train,eps=1/10)", "rr"),
        ("ccat(steps=4,scale=4,attack_mode=eval)", "confidence"),
    ],
    "carl": [("carl(steps=3,eps=1/10,penalty_reduction=sum)", "carl")],
    "atro": [("atro", "atro")],
}
CASES: Mapping[str, Mapping[str, Any]] = {"attack": ATTACKS, "rejector": REJECTORS, "framework": FRAMEWORKS}


def chosen(kind: str, text: str) -> Any:
    bases: Any = {"attack": Attack, "rejector": Rejector, "framework": Framework}
    return build(bases[kind], choose(kind, text, load_preset("paper"), "cifar10"))


def attack_numbers(text: str) -> dict[str, Any]:
    """Return the loss, the certainty and the distance at the answers, for each norm and a victim of either kind."""
    attack, inputs, network = chosen("attack", text), batch(8), Tiny()
    found: dict[str, Any] = {}
    for norm in sorted(attack.norms) or ["none"]:
        budget = {"linf": LINF, "l2": L2, "none": NO_BUDGET}[norm]
        budget = budget if attack.needs_budget or norm == "none" else Budget(budget.norm, None)
        for rejector in (Confidence(), LargestLogit()) if attack.is_adaptive else (Confidence(),):
            victim = Victim(network, rejector, CALIBRATION)
            with torch.enable_grad():
                moved = _answer(attack, victim, inputs, budget)
            name = f"{norm} {type(rejector).__name__}"
            found[name] = _moved_numbers(moved, victim, inputs)
    if text == FAINT:
        victim = Victim(Tiny(sureness=SURE), Confidence(), CALIBRATION)
        # Of its answers alone: among certainties of 1 rounding would choose the boldest.
        answers = _answer(attack, victim, inputs, L2)._replace(boldest=None)
        found["l2 sure"] = _moved_numbers(answers, victim, inputs)
    return found


def _answer(attack: Attack, victim: Victim, inputs: Batch, budget: Budget) -> Moved:
    if isinstance(attack, MovedElsewhere):  # on a surer network; the victim is only shown the images
        other = victim._replace(network=Tiny(sureness=SURE))
        return Moved(chosen("attack", attack.by)(other, inputs, budget, DRAWS).images)
    if not isinstance(attack, Ensemble):
        return attack(victim, inputs, budget, DRAWS)
    members = [chosen("attack", text) for text in ("pgd3", "adaptive(con+rcon,eta=1,steps=3,restarts=1)")]
    run = [lambda victim, part, member=member: member(victim, part, budget, DRAWS) for member in members]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return attack.combine(victim, inputs, run)


@torch.no_grad()
def _moved_numbers(moved: Moved, victim: Victim, inputs: Batch) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, images in (("answer", moved.images), ("boldest", moved.boldest)):
        if images is not None:
            outputs = victim.network(images)
            found[name] = {
                "loss": F.cross_entropy(outputs.logits, inputs.labels, reduction="none").tolist(),
                "certainty": victim.certainty(outputs, inputs.labels).tolist(),
                "distance": (images - inputs.images).flatten(1).abs().mean(1).tolist(),
            }
    if moved.reached is not None:
        found["reached"] = moved.reached.double().tolist()
    return found


def _with_head(rejector: Rejector) -> nn.Module:
    return with_looks(Tiny(rejector.build_head(WIDTH, CLASSES)), rejector)


def rejector_numbers(text: str) -> dict[str, Any]:
    """Return certainties of fixed inputs, and the share that the rejector adds to a loss."""
    rejector, inputs, train = chosen("rejector", text), batch(8), batch(120, first=50)
    network = _with_head(rejector)
    with torch.no_grad():
        rejector.fit(network(train.images), train.labels)
        outputs = network(inputs.images)
        certainty = rejector.oracle_certainty(outputs, inputs.labels)
    loss = rejector.training_loss(outputs, inputs.labels, F.cross_entropy(outputs.logits, inputs.labels))
    return {"certainty": certainty.tolist(), "loss": float(loss)}


def framework_numbers(case: tuple[str, str]) -> dict[str, Any]:
    """Return the loss of one step, and how long its gradient is in each part of the network."""
    framework, rejector, inputs = chosen("framework", case[0]), chosen("rejector", case[1]), batch(8)
    network = _with_head(rejector)
    loss = framework(Victim(network, rejector), inputs, DRAWS)
    loss.backward()
    lengths = {name: float(each.grad.norm()) for name, each in network.named_parameters() if each.grad is not None}
    return {"loss": float(loss.detach()), "gradients": lengths}


NUMBERS: Mapping[str, Callable[[Any], dict[str, Any]]] = {
    "attack": attack_numbers,
    "rejector": rejector_numbers,
    "framework": framework_numbers,
}


def ours(kind: str) -> list[str]:
    """Return the plugins of one kind that come with rrbench."""
    return [name for name in table(kind).classes if is_ours(kind, name)]


def cases(kind: str, name: str) -> list[Any]:
    """Return what one plugin is asked."""
    return list(CASES[kind].get(name, [(name, "confidence") if kind == "framework" else name]))


def golden(kind: str, name: str) -> Golden:
    """Return what one plugin says, and the revisions that say it."""
    plugin: Any = table(kind).classes[name]
    found: Golden = {"revision": plugin.revision}
    if kind == "attack":
        found["engine"] = ENGINE
        packages = [package for text in cases(kind, name) for package in chosen(kind, text).packages]
        found["packages"] = {package: metadata.version(package) for package in packages}
    found["numbers"] = {
        case if isinstance(case, str) else " with ".join(case): NUMBERS[kind](case) for case in cases(kind, name)
    }
    return found


@cache
def written() -> Mapping[str, Golden]:
    """Return what tests/golden/outputs.json holds."""
    return dict(json.loads(PATH.read_text(encoding="utf-8")))


def says(found: Golden) -> dict[str, Any]:
    """Return what a golden says of the code behind it."""
    return {key: value for key, value in found.items() if key != "numbers"}


def differences(found: object, expected: object, where: str = "") -> Iterator[str]:
    """Say where numbers differ by more than the tolerance."""
    if isinstance(found, dict) and isinstance(expected, dict) and found.keys() == expected.keys():
        for key in found:
            yield from differences(found[key], expected[key], f"{where} {key}")
    elif isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected):
        for index, pair in enumerate(zip(found, expected, strict=True)):
            yield from differences(*pair, f"{where}[{index}]")
    elif isinstance(found, float) and isinstance(expected, int | float):
        if not abs(found - expected) <= TOLERANCE * max(1.0, abs(expected)):
            yield f"{where.strip()} is {found:.6g}, and was {expected:.6g}"
    else:
        yield f"{where.strip()} is {found}, and was {expected}"


def complaint(kind: str, name: str, found: Golden, expected: Golden | None) -> str:
    """Say what is wrong with a plugin's revision, in one line; empty where nothing is."""
    if expected is None or says(found) != says(expected):
        return f"{kind} {name} {'is new' if expected is None else 'has a new revision'}: {WRITE}"
    changed = list(differences(found["numbers"], expected["numbers"]))
    if not changed:
        return ""
    engine = " (or REVISION in rrbench/ascent.py, where the engine changed)" if kind == "attack" else ""
    what = f"raise the revision of {kind} {name}{engine}, or restore the behaviour"
    return f"{what}: {changed[0]}" + (f" and {len(changed) - 1} more" if len(changed) > 1 else "")


def rounded(value: Any) -> Any:
    """Return numbers with as many digits as they are held to."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return float(f"{value:.7g}") if isinstance(value, float) else value


def main() -> int:
    """Write the goldens whose revision is new; what changed under its old one is refused."""
    before = written() if PATH.is_file() else {}
    after: dict[str, Golden] = {}
    refused: list[str] = []
    for kind in CASES:
        for name in ours(kind):
            key = f"{kind} {name}"
            try:
                found = golden(kind, name)
            except Exception as error:  # a newcomer's default settings may be too large for the tiny problem
                refused.append(f"{key} fails on the tiny problem: give it a line in {Path(__file__).name}: {error!r}")
                after |= {key: before[key]} if key in before else {}
                continue
            is_old = key in before and says(found) == says(before[key])
            problem = complaint(kind, name, found, before[key]) if is_old else ""
            refused += [problem] if problem else []
            after[key] = before[key] if is_old else rounded(found)
    PATH.write_text(json.dumps(after, indent=1) + "\n", encoding="utf-8")
    sys.stderr.write("".join(f"{line}\n" for line in refused))
    return int(bool(refused))


if __name__ == "__main__":
    sys.exit(main())
