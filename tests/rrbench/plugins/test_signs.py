"""Signs that an attack is broken, found while it runs or from its answers: they are notes, and each has an oracle."""

import copy
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from math import sqrt
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import rrbench
from own_network import EPS, Linear, inputs, measure, refusal
from rrbench import Batch, Budget
from rrbench.plugins import signs
from rrbench.protocols import Attack, Draws, Moved, Outputs, Rejector, Victim
from rrbench_attacks.pgd import Pgd

pytestmark = pytest.mark.usefixtures("own_folder")
BUDGET = "linf:1/50"


@dataclass(frozen=True)
class Push(Attack):
    """Moves every pixel against the right answer by a share of the budget, as only a linear network allows."""

    maximises = "the wrong class of a linear network"
    share: float = 1.0

    def __call__(self, victim: Victim, batch: Batch, budget: Budget, draws: Draws) -> Moved:
        images = batch.images.clone().requires_grad_()
        with torch.enable_grad():
            logits = victim.network(images).logits
            gap = logits.gather(1, batch.labels[:, None])[:, 0] - logits.sum(1) / 2
            (slope,) = torch.autograd.grad(gap.sum(), images)
        return Moved(batch.images - self.share * budget.eps * slope.sign())

    def gradients_per_image(self, classes: int) -> int:
        return 1


# State.


@dataclass(frozen=True)
class Cached(Push):
    """Keeps its answers by the ids of the images, whatever the network or the budget."""

    cache: dict[int, Tensor] = field(default_factory=dict, repr=False, compare=False)

    def __call__(self, victim: Victim, batch: Batch, budget: Budget, draws: Draws) -> Moved:
        ids = batch.ids.tolist()
        if any(each not in self.cache for each in ids):
            self.cache.update(zip(ids, super().__call__(victim, batch, budget, draws).images, strict=True))
        return Moved(torch.stack([self.cache[each] for each in ids]))


def right_share(network: Linear, data: tuple[Tensor, Tensor], eps: float) -> float:
    """Compute by hand how many answers of a linear network are right after the best push."""
    fall = 2 * eps * float(network.weight.detach().abs().sum())
    return 100 * float((network.margins(*data) > fall).double().mean())


def test_what_an_attack_keeps_in_itself_does_not_go_from_one_cell_to_the_next() -> None:
    networks, attack, data = {"one": Linear(0), "other": Linear(1)}, Cached(), inputs()
    rows = rrbench.evaluate(networks, "confidence", attack, data, budget=["linf:1/200", BUDGET])
    assert len(rows) == 4
    for name, eps, found in zip(rows.trained_as, rows.eps, rows.acc_all, strict=True):
        assert found == pytest.approx(right_share(networks[name], data, float(Fraction(eps))))
    assert attack.cache == {}  # the user's own stays as it was


@dataclass(frozen=True)
class Locked(Cached):
    """Holds something that cannot be copied, beside its cache, and two attributes that share a weight."""

    def __post_init__(self) -> None:
        surrogate = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(surrogate.parameters(), lr=1.0)
        vars(self).update(lock=threading.Lock(), surrogate=surrogate, optimizer=optimizer)

    def __call__(self, victim: Victim, batch: Batch, budget: Budget, draws: Draws) -> Moved:
        own = vars(self)
        assert own["optimizer"].param_groups[0]["params"][0] is own["surrogate"].weight
        return super().__call__(victim, batch, budget, draws)


def test_what_cannot_be_copied_does_not_keep_the_rest_from_being_copied() -> None:
    networks, data = {"one": Linear(0), "other": Linear(1)}, inputs()
    rows = rrbench.evaluate(networks, "confidence", Locked(), data, budget=BUDGET)
    assert list(rows.acc_all) == pytest.approx([right_share(networks[name], data, EPS) for name in rows.trained_as])


@dataclass(frozen=True)
class Hooked(Push):
    """Reads the features of a surrogate by a hook, whose function knows only the attack that the user made."""

    def __post_init__(self) -> None:
        seen: dict[str, Tensor] = {}
        surrogate = nn.Flatten()
        surrogate.register_forward_hook(lambda module, given, output: seen.update(features=output))
        vars(self).update(surrogate=surrogate, read=lambda: seen["features"])

    def __call__(self, victim: Victim, batch: Batch, budget: Budget, draws: Draws) -> Moved:
        own = vars(self)
        own["surrogate"](batch.images)
        assert torch.equal(own["read"](), batch.images.flatten(1))
        return super().__call__(victim, batch, budget, draws)


@dataclass(frozen=True)
class Owned(Push):
    """The same, with the features in the attack itself."""

    def __post_init__(self) -> None:
        vars(self).update(surrogate=nn.Flatten(), seen={})
        vars(self)["surrogate"].register_forward_hook(lambda *passed: vars(self)["seen"].update(features=passed[2]))

    def __call__(self, victim: Victim, batch: Batch, budget: Budget, draws: Draws) -> Moved:
        own = vars(self)
        own["surrogate"](batch.images)
        assert torch.equal(own["seen"]["features"], batch.images.flatten(1))
        return super().__call__(victim, batch, budget, draws)


@pytest.mark.parametrize("attack", [Hooked(), Owned()])
def test_a_hook_of_a_surrogate_writes_where_the_attack_reads(attack: Attack) -> None:
    data = inputs()
    row = measure(Linear(), "confidence", attack, data, budget=BUDGET)
    assert row.acc_all == pytest.approx(right_share(Linear(), data, EPS))


@dataclass(frozen=True)
class Shared(Push):
    """Keeps its answers in its class."""

    kept = {}  # type: ignore[var-annotated] # noqa: RUF012

    def __call__(self, victim: Victim, batch: Batch, budget: Budget, draws: Draws) -> Moved:
        if "images" not in self.kept:
            self.kept["images"] = super().__call__(victim, batch, budget, draws).images
        return Moved(self.kept["images"])


def test_what_an_attack_keeps_in_its_class_is_refused() -> None:
    networks = {"one": Linear(0), "other": Linear(1)}
    for _ in range(2):  # what the first cell left must not serve a later one
        line = refusal(lambda: rrbench.evaluate(networks, "confidence", Shared(), inputs(), budget=BUDGET))
        assert line.startswith("Shared changes Shared.kept, so rows would depend on what was attacked before")
    assert Shared.kept == {}


class Counting(Push):
    """Counts its calls in its class."""

    calls = [0]  # noqa: RUF012

    def __call__(self, victim: Victim, batch: Batch, budget: Budget, draws: Draws) -> Moved:
        self.calls[0] += 1
        return super().__call__(victim, batch, budget, draws)


def test_an_attack_may_count_its_calls_in_its_class() -> None:
    measure(Linear(), "confidence", Counting(), inputs(), budget=BUDGET)
    assert Counting.calls == [1]


# Descent.


@pytest.mark.parametrize(("worse", "better", "is_said"), [(0, 9, False), (0, 10, True), (8, 21, False), (8, 26, True)])
def test_more_right_answers_than_clean_are_said_beyond_chance(worse: int, better: int, is_said: bool) -> None:
    clean = torch.tensor([True] * worse + [False] * better + [True] * 50)
    now = torch.tensor([False] * worse + [True] * better + [True] * 50)
    assert (better - worse > 3 * sqrt(better + worse)) == is_said  # three standard deviations of a fair coin
    text = signs.helping(clean, now)
    assert text == (f"the attack helps: {better} wrong answers became right, {worse} right ones wrong" * is_said)


def test_an_attack_that_descends_is_noted() -> None:
    data = inputs()
    row = measure(Linear(), "confidence", Push(share=-1.0), data, budget=BUDGET)
    margins = Linear().margins(*data)
    gained = int(((margins <= 0) & (margins > -2 * EPS * Linear().weight.detach().abs().sum())).sum())
    assert gained >= 10
    assert row.note == f"the attack helps: {gained} wrong answers became right, 0 right ones wrong"
    assert measure(Linear(), "confidence", Push(), data, budget=BUDGET).note == ""


# Small moves.


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize(("share", "is_said"), [(0.0099, True), (0.011, False)])
def test_an_attack_that_hardly_moves_is_noted(norm: str, share: float, is_said: bool) -> None:
    longest = share if norm == "linf" else share / 4  # of 16 pixels
    row = measure(Linear(), "confidence", Push(share=longest), inputs(), budget=f"{norm}:1/50")
    text = f"the attack hardly moves: by at most {100 * share:.2g} % of its budget, and inputs stay right"
    assert row.note == text * is_said


def test_a_stored_attack_keeps_its_signs_for_other_rejectors() -> None:
    first = measure(Linear(), "confidence", Push(share=0.005), inputs(), budget=BUDGET)
    later = measure(Linear(), "energy", Push(share=0.005), inputs(), budget=BUDGET)
    assert later.seconds == first.seconds  # it was not run again
    assert first.note == later.note
    assert later.note.startswith("the attack hardly moves: by at most 0.5 %")


def test_an_attack_has_nothing_to_move_if_no_answer_is_right() -> None:
    images, labels = inputs()
    wrong = 1 - Linear()(images).argmax(1)
    assert "hardly" not in measure(Linear(), "confidence", Push(share=0.005), (images, wrong), budget=BUDGET).note
    assert not torch.equal(wrong, labels)


# Chance.


class Chancy(Pgd):
    """Starts from random images of its own."""

    source = "torch"

    def __call__(self, victim: Victim, batch: Batch, budget: Budget, draws: Draws) -> Moved:
        shape = batch.images.shape
        drawn = {
            "torch": lambda: torch.rand(shape),
            "numpy": lambda: torch.from_numpy(np.random.rand(*shape)).float(),
            "draws": lambda: draws.uniform(batch.ids, tuple(shape[1:]), 0),
        }[self.source]()
        return Moved(batch.images + budget.eps * (2 * drawn - 1))


@pytest.mark.parametrize("source", ["torch", "numpy", "draws"])
def test_an_attack_that_is_random_without_draws_is_noted(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Chancy, "source", source)
    row = measure(Linear(), "confidence", Chancy(1), inputs(), budget=BUDGET)
    text = f"the attack takes random numbers from {source}, not from draws: "
    text += "its images may change from run to run, or with the batch size"
    assert row.note == text * (source != "draws")


@dataclass
class Steep(Rejector):
    """Has a setting."""

    steepness: float = 1.0

    def certainty(self, outputs: Outputs) -> Tensor:
        return (self.steepness * outputs.logits).softmax(1).amax(1)


class Deaf(Pgd):
    """Is called adaptive, and never looks at the rejector."""

    is_adaptive = True


class Hearing(Deaf):
    """Asks once, in one of the ways there are."""

    how = "certainty"

    def __call__(self, victim: Victim, batch: Batch, budget: Budget, draws: Draws) -> Moved:
        outputs = victim.network(batch.images)
        asks: dict[str, Callable[[], object]] = {
            "certainty": lambda: victim.certainty(outputs, batch.labels),
            "log": lambda: victim.log_certainty(outputs, batch.labels),
            "rejector": lambda: victim.rejector.certainty(outputs),
            "other network": lambda: victim._replace(network=copy.copy(victim.network)).certainty(
                outputs, batch.labels
            ),
            "parts": lambda: Victim(*victim).certainty(outputs, batch.labels),
            "learnt": lambda: victim.rejector.fitted,
            "changed": lambda: self.ask_changed(victim, outputs),
        }
        asks[self.how]()
        return super().__call__(victim, batch, budget, draws)

    def ask_changed(self, victim: Victim, outputs: Outputs) -> None:
        """Ask a copy with another setting: it answers by that."""
        usual, other = Steep(), copy.copy(victim.rejector)
        assert isinstance(other, Steep)
        other.steepness = usual.steepness = 5.0
        assert torch.equal(other.certainty(outputs), usual.certainty(outputs))
        assert not torch.equal(other.certainty(outputs), victim.rejector.certainty(outputs))


def test_an_adaptive_attack_that_never_asks_for_the_certainty_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    line = "the attack never looks at the rejector, though it is called adaptive"
    assert measure(Linear(), "confidence", Deaf(2), inputs(), budget=BUDGET).note == line
    assert measure(Linear(), "never-reject", Deaf(2), inputs(), budget=BUDGET).note == "", "there is nothing to hear"
    assert measure(Linear(), "confidence", Pgd(2), inputs(), budget=BUDGET).note == ""
    for how in ("certainty", "log", "rejector", "other network", "parts", "learnt", "changed"):
        monkeypatch.setattr(Hearing, "how", how)
        assert measure(Linear(), Steep(), Hearing(2), inputs(), budget=BUDGET, fit_data=inputs(50)).note == "", how


class Seeded(Chancy):
    """Seeds the process for itself."""

    def __call__(self, victim: Victim, batch: Batch, budget: Budget, draws: Draws) -> Moved:
        torch.manual_seed(0)
        return super().__call__(victim, batch, budget, draws)


def test_the_note_on_chance_does_not_depend_on_the_cells_before() -> None:
    networks = {"one": Linear(0), "other": Linear(1)}
    rows = rrbench.evaluate(networks, "confidence", Seeded(1), inputs(), budget=["linf:1/200", BUDGET])
    assert len(rows) == 4
    assert all("takes random numbers from torch" in note for note in rows.note)


def test_who_draws_nothing_leaves_the_process_its_random_numbers() -> None:
    torch.manual_seed(3)
    np.random.seed(3)
    wanted = torch.rand(1), np.random.random()
    torch.manual_seed(3)
    np.random.seed(3)
    measure(Linear(), "confidence", Push(), inputs(), budget=BUDGET)
    assert (torch.rand(1), np.random.random()) == wanted


class Noisy(Linear):
    def forward(self, images: Tensor) -> Tensor:
        torch.rand(1)
        answer: Tensor = super().forward(images)
        return answer


class Drawing(torch.autograd.Function):
    """Draws only where the gradient is asked for."""

    @staticmethod
    def forward(ctx: Any, images: Tensor) -> Tensor:
        return images.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        torch.rand(1)
        return gradients[0]


class Behind(Linear):
    def forward(self, images: Tensor) -> Tensor:
        answer: Tensor = super().forward(Drawing.apply(images))  # type: ignore[no-untyped-call]
        return answer


def drawing(outputs: Outputs) -> Tensor:
    torch.rand(1)
    return outputs.logits.amax(1)


@dataclass(frozen=True)
class Asking(Push):
    """Asks the rejector, too."""

    is_adaptive = True

    def __call__(self, victim: Victim, batch: Batch, budget: Budget, draws: Draws) -> Moved:
        victim.certainty(victim.network(batch.images), batch.labels)
        return super().__call__(victim, batch, budget, draws)


@pytest.mark.parametrize(
    ("network", "rejector", "attack"),
    [(Noisy(), "confidence", Push()), (Behind(), "confidence", Push()), (Linear(), drawing, Asking())],
)
def test_an_attack_is_not_blamed_for_what_its_victim_draws(network: nn.Module, rejector: Any, attack: Attack) -> None:
    row = measure(network, rejector, attack, inputs(), budget=BUDGET, fit_data=inputs(100, seed=1))
    assert row.note == ""
