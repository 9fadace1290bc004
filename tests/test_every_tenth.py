"""Multi-target and PGD-1000x10 on every tenth image: the text says what the scores give, and the estimates for all."""

from collections.abc import Callable, Iterator
from functools import cache
from typing import NamedTuple

import numpy as np

from published import CIFAR10, ROOT, rows
from rrbench.metrics.measures import auc
from rrbench.metrics.resampling import resampled
from rrbench.paper.cells import cells_of
from rrbench.rows.scores import Scores
from tenth import EBD, RR, SHOWN, TENTH, Victim, findings, flat, scores, text, tpr95

CIFAR100 = ROOT / "results" / "cifar100"
MULTI_TARGET, PGD_1000 = "multi-target", "pgd1000x10(until=repeat)"
# Hardly robust: what is said of the other networks is not said of these.
CCAT = {("ccat", "confidence"): "CCAT, confidence", ("ccat+rr", "rr"): "CCAT+RR, R-Con"}
OWN_FAR = {"CARL, margin", "ATRO, margin", *CCAT.values()}  # far from the paper's lines everywhere
# Attack in rows, and in the paper's cells; as it is shown; data set.
SHOWN_ATTACKS = (
    (MULTI_TARGET, "multitarget-100x20", "multi-target", "cifar10"),
    (PGD_1000, "pgd-1000x10", "PGD-1000x10", "cifar10"),
    (PGD_1000, "pgd-1000x10", "PGD-1000x10, CIFAR-100", "cifar100"),
)
RESAMPLES = 1000
WITHIN = 1.5  # points
Measure = Callable[[Scores, slice], float]


def area(given: Scores, chosen: slice) -> float:
    found = auc(given.certainty[chosen], given.correct[chosen])
    assert found is not None
    return found


RESAMPLED_AS: dict[Measure, str] = {tpr95: "acc_tpr95", area: "auc"}


def never_wrong(given: Scores, chosen: slice = slice(None)) -> float:
    """Return the share of inputs for which the attack saw no wrong image on its way."""
    return float(100 * np.isneginf(given.boldest_certainty[chosen]).mean())


class Estimate(NamedTuple):
    """An estimate from all images, and what it would be from each draw of as many, resampled."""

    value: float
    drawn: np.ndarray

    def half(self) -> float:
        """Return half of the 95 % interval: 1.96 deviations of the drawn estimates.

        Quantiles would not do: drawn estimates lie a little higher than the one from the images themselves.
        """
        return 1.96 * float(np.std(self.drawn))

    def ahead_of(self, other: "Estimate") -> "Estimate":
        """Return the difference; all estimates have the same draws."""
        return Estimate(self.value - other.value, self.drawn - other.drawn)


def estimate(attacked: Scores, yardstick: Scores, measure: Measure) -> Estimate:
    """Estimate an attack's number on all images from every tenth, by a yardstick that is measured on both."""
    tenth = slice(None, None, 10)
    assert (yardstick.ids[tenth] == attacked.ids).all()
    # All draws at once: one by one they would take seconds.
    ours, theirs = (
        resampled(RESAMPLED_AS[measure], given.certainty[chosen], given.correct[chosen], "quantile", RESAMPLES, seed=0)
        for given, chosen in ((attacked, slice(None)), (yardstick, tenth))
    )
    whole = measure(yardstick, slice(None))
    return Estimate(
        whole + measure(attacked, slice(None)) - measure(yardstick, tenth),
        whole + ours - theirs,
    )


def yardstick_of(victim: Victim, dataset: str) -> Scores:
    folder, attack = (CIFAR10, "pgd100x10") if dataset == "cifar10" else (CIFAR100, "pgd10")
    return scores(folder, victim, attack, dataset)


class Line(NamedTuple):
    """A line of the table."""

    name: str
    victim: str
    tenth: float  # measured on every tenth image
    paper: float
    estimate: float  # for all images
    half: float  # of the interval
    shown: str


@cache
def lines() -> tuple[Line, ...]:
    return tuple(_lines())


def _lines() -> Iterator[Line]:
    for attack, published, name, dataset in SHOWN_ATTACKS:
        for victim, shown in (SHOWN | CCAT).items():
            trained_as, rejector = victim
            paper = [
                cell.value
                for cell in cells_of("table4") + cells_of("table8")
                if (cell.dataset, cell.at, cell.rejector) == (dataset, trained_as.split("+")[0], rejector)
                and (cell.attack, cell.metric) == (published, "acc_tpr95")
            ]
            if not paper:
                continue
            attacked, yardstick = scores(TENTH, victim, attack, dataset), yardstick_of(victim, dataset)
            own = tpr95(attacked, slice(None))
            found = estimate(attacked, yardstick, tpr95)
            tenth, whole = tpr95(yardstick, slice(None, None, 10)), tpr95(yardstick, slice(None))
            cells = (
                f"{shown}, {name}",
                f"{own:.2f} ({paper[0]})",
                f"{tenth:.2f}",
                f"{whole:.2f}",
                f"{found.value:.2f} ± {found.half():.2f}",
                f"{100 * attacked.correct.mean():.1f}",
                f"{never_wrong(attacked):.1f}",
            )
            line = f"| {' | '.join(cells)} |"
            yield Line(cells[0], shown, own, float(paper[0]), found.value, found.half(), line)


def test_each_number_on_a_tenth_stands_beside_its_estimate_for_all_images() -> None:
    assert len(lines()) == 15
    shown = [line for line in text().splitlines() if "±" in line and line.startswith("|")]
    assert shown == [line.shown for line in lines()]


def test_by_a_yardstick_the_lines_of_pgd_at_and_trades_are_near_the_papers() -> None:
    near = [line for line in lines() if line.victim not in OWN_FAR and "CIFAR-100" not in line.name]
    assert len(near) == 8
    assert all(abs(line.estimate - line.paper) <= WITHIN < abs(line.tenth - line.paper) for line in near)
    outside = [line for line in near if abs(line.estimate - line.paper) > line.half]
    assert [line.name for line in outside] == ["PGD-AT+SNet, SNet, PGD-1000x10", "PGD-AT+RR, R-Con, PGD-1000x10"]
    apart = " and ".join(f"{line.paper - line.estimate - line.half:.2f}" for line in outside)
    assert (
        f"Six of the eight intervals hold the paper's number; PGD-1000x10's of SNet and RR end {apart} below it."
        in flat()
    )
    far = [line.estimate - line.paper for line in lines() if "CIFAR-100" in line.name]
    assert "SNet, EBD and RR are {:+.1f}, {:+.1f} and {:+.1f} points off by the estimate".format(*far) in flat()


def test_by_the_yardstick_the_areas_on_cifar_100_are_the_papers() -> None:
    said = []
    for victim in (("pgd-at+snet", "snet"), EBD, RR):
        found = scores(TENTH, victim, PGD_1000, "cifar100")
        by_yardstick = estimate(found, yardstick_of(victim, "cifar100"), area)
        (cell,) = [
            cell
            for cell in cells_of("table8")
            if (cell.dataset, cell.rejector, cell.metric) == ("cifar100", victim[1], "auc")
        ]
        assert abs(area(found, slice(None)) - float(cell.value)) > 0.02 > abs(by_yardstick.value - float(cell.value))
        said.append(f"{by_yardstick.value:.3f} ± {by_yardstick.half():.3f} ({cell.value})")
    assert f"SNet {said[0]}, EBD {said[1]} and RR {said[2]}" in flat()


def test_ebd_and_rr_are_level() -> None:
    said = []
    for attack, dataset in ((MULTI_TARGET, "cifar10"), (PGD_1000, "cifar10"), (PGD_1000, "cifar100")):
        ebd, rr = (
            estimate(scores(TENTH, victim, attack, dataset), yardstick_of(victim, dataset), tpr95)
            for victim in (EBD, RR)
        )
        difference = ebd.ahead_of(rr)
        assert abs(difference.value) < difference.half()
        said.append(f"{difference.value:+.1f} ± {difference.half():.1f}")
    assert f"{said[0]} under multi-target, {said[1]} under PGD-1000x10 and {said[2]} on CIFAR-100" in flat()


def test_the_tenth_is_harder_than_all_images() -> None:
    yardsticks = [scores(CIFAR10, victim, "pgd100x10") for victim in SHOWN]
    lower = [tpr95(each, slice(None)) - tpr95(each, slice(None, None, 10)) for each in yardsticks]
    assert f"its TPR-95 is {min(lower):.1f} to {max(lower):.1f} points lower on them" in flat()


def test_multi_target_finds_more_than_it_keeps() -> None:
    found = [scores(TENTH, victim, MULTI_TARGET) for victim in SHOWN]
    rivals = [scores(CIFAR10, victim, "gama-fw") for victim in SHOWN]
    unseen = [int(np.isneginf(each.boldest_certainty).sum()) for each in found]
    left = [int(each.correct[::10].sum()) for each in rivals]
    kept = [int(each.correct.sum()) for each in found]
    assert all(ours < answered for ours, answered in zip(unseen, kept, strict=True))
    assert all(theirs < answered for theirs, answered in zip(left, kept, strict=True))
    assert f"for all but {min(unseen)} to {max(unseen)} of 1,000 inputs" in flat()
    assert f"GAMA-FW leaves {min(left)} to {max(left)} of them right, by 100 gradients instead of 18,000" in flat()
    assert f"{min(kept)} to {max(kept)} are answered right" in flat()
    assert {row.gradients for row in rows("tenth") if row.attack == MULTI_TARGET} == {18_000}
    assert (
        f"For {min(unseen)} to {max(unseen)} of 1,000 inputs, every tenth one, it finds no wrong image." in findings()
    )
    assert f"{min(kept)} to {max(kept)} are answered right" in findings()


def test_pgd_1000_hardly_ever_ends_early() -> None:
    taken = [row.gradients or 0 for row in rows("tenth") if row.attack == PGD_1000]
    assert len(taken) == 6
    assert (
        f"PGD-1000x10 took {min(taken):,.0f} to {max(taken):,.0f} gradients an image with `until=repeat`, of 10,000"
        in flat()
    )
    docs = " ".join((ROOT / "docs" / "attack.md").read_text(encoding="utf-8").split())
    assert f"took {min(taken):,.0f} to {max(taken):,.0f} gradients an image instead of 10,000" in docs
