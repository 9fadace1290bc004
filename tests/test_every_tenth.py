"""What results/README.md says of the attacks on every tenth image is what the stored scores give."""

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from published import CIFAR10, ROOT, cells_in, rows
from rrbench.metrics.measures import accept_at_tpr95
from rrbench.paper.cells import PaperCell, cells_of
from rrbench.rows.row import ResultRow
from rrbench.rows.scores import Scores, read_scores

TENTH, CIFAR100 = ROOT / "results" / "tenth", ROOT / "results" / "cifar100"
MULTI_TARGET, PGD_1000 = "multi-target", "pgd1000x10(until=repeat)"
SHOWN = {
    ("pgd-at+snet", "snet"): "PGD-AT+SNet, SNet",
    ("pgd-at+ebd", "ebd"): "PGD-AT+EBD, EBD",
    ("pgd-at+rr", "rr"): "PGD-AT+RR, R-Con",
    ("trades", "confidence"): "TRADES, confidence",
    ("trades+rr", "rr"): "TRADES+RR, R-Con",
    ("carl", "carl"): "CARL, margin",
    ("atro", "atro"): "ATRO, margin",
}
OWN_FAR = {"CARL, margin", "ATRO, margin"}  # far from the paper's lines everywhere
# Attack in rows, and in the paper's cells; as it is shown; data set, and its yardstick.
ATTACKS = (
    (MULTI_TARGET, "multitarget-100x20", "multi-target", "cifar10", "pgd100x10"),
    (PGD_1000, "pgd-1000x10", "PGD-1000x10", "cifar10", "pgd100x10"),
    (PGD_1000, "pgd-1000x10", "PGD-1000x10, CIFAR-100", "cifar100", "pgd10"),
)
RESAMPLES = 1000
WITHIN = 1.5  # points
Victim = tuple[str, str]


@cache
def text() -> str:
    section = (ROOT / "results" / "README.md").read_text(encoding="utf-8").split("### On every tenth image")[1]
    return section.split("\n### ")[0]


@cache
def flat() -> str:
    return " ".join(text().split())


@cache
def findings() -> str:
    return " ".join((ROOT / "results" / "FINDINGS.md").read_text(encoding="utf-8").split())


@cache
def scores(folder: Path, victim: Victim, attack: str, dataset: str = "cifar10", preset: str = "paper") -> Scores:
    (found,) = [
        record
        for record, _ in cells_in(folder)
        if (record.row.trained_as, record.row.rejector, record.row.attack) == (*victim, attack)
        and (record.row.dataset, record.row.preset, record.row.eps) == (dataset, preset, "8/255")
    ]
    return read_scores(folder, found.files)


def tpr95(given: Scores, chosen: slice | np.ndarray) -> float:
    correct = given.correct[chosen]
    accepted = accept_at_tpr95(given.certainty[chosen], correct, "quantile")
    assert accepted is not None
    return float(100 * correct[accepted].mean())


def never_wrong(given: Scores, chosen: slice = slice(None)) -> float:
    """Return the share of inputs for which the attack saw no wrong image on its way."""
    return float(100 * np.isneginf(given.boldest_certainty[chosen]).mean())


def with_half_interval(estimate: Callable[[np.ndarray], float], size: int) -> tuple[float, float]:
    """Return an estimate from all images, and half of its 95 % interval: 1.96 deviations over resampled images.

    Quantiles would not do: estimates from resampled images lie a little higher than the one from the images themselves.
    """
    generator = np.random.default_rng(0)
    resampled = [estimate(generator.integers(size, size=size)) for _ in range(RESAMPLES)]
    return estimate(np.arange(size)), 1.96 * float(np.std(resampled))


def on_all_images(attacked: Scores, yardstick: Scores) -> tuple[float, float]:
    """Estimate an attack's number on all images from every tenth, by a yardstick that is measured on both."""
    tenth = slice(None, None, 10)
    assert (yardstick.ids[tenth] == attacked.ids).all()
    there, whole = np.arange(len(yardstick.ids))[tenth], tpr95(yardstick, slice(None))

    def estimate(places: np.ndarray) -> float:
        return whole + tpr95(attacked, places) - tpr95(yardstick, there[places])

    return with_half_interval(estimate, len(attacked.ids))


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
    for attack, published, name, dataset, measure in ATTACKS:
        for victim, shown in SHOWN.items():
            trained_as, rejector = victim
            paper = [
                cell.value
                for cell in cells_of("table4") + cells_of("table8")
                if (cell.dataset, cell.at, cell.rejector) == (dataset, trained_as.split("+")[0], rejector)
                and (cell.attack, cell.metric) == (published, "acc_tpr95")
            ]
            if not paper:
                continue
            attacked = scores(TENTH, victim, attack, dataset)
            yardstick = scores(CIFAR10 if dataset == "cifar10" else CIFAR100, victim, measure, dataset)
            own, (estimate, half) = tpr95(attacked, slice(None)), on_all_images(attacked, yardstick)
            tenth, whole = tpr95(yardstick, slice(None, None, 10)), tpr95(yardstick, slice(None))
            cells = (
                f"{shown}, {name}",
                f"{own:.2f} ({paper[0]})",
                f"{tenth:.2f}",
                f"{whole:.2f}",
                f"{estimate:.2f} ± {half:.2f}",
                f"{100 * attacked.correct.mean():.1f}",
                f"{never_wrong(attacked):.1f}",
            )
            line = f"| {' | '.join(cells)} |"
            yield Line(cells[0], shown, own, float(paper[0]), estimate, half, line)


def test_each_number_on_a_tenth_stands_beside_its_estimate_for_all_images() -> None:
    assert len(lines()) == 13
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


def test_ebd_and_rr_change_places() -> None:
    said = []
    for attack, dataset in ((MULTI_TARGET, "cifar10"), (PGD_1000, "cifar10"), (PGD_1000, "cifar100")):
        ebd, rr = (scores(TENTH, victim, attack, dataset) for victim in (("pgd-at+ebd", "ebd"), ("pgd-at+rr", "rr")))
        assert (ebd.ids == rr.ids).all()

        def ahead(places: np.ndarray, ebd: Scores = ebd, rr: Scores = rr) -> float:
            return tpr95(ebd, places) - tpr95(rr, places)

        said.append("{:+.1f} ± {:.1f}".format(*with_half_interval(ahead, len(ebd.ids))))
    assert f"by {said[0]}, {said[1]} and, on CIFAR-100, {said[2]} points" in flat()


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
    assert f"for all but {min(unseen)} to {max(unseen)} of 1,000 inputs" in findings()
    assert f"{min(kept)} to {max(kept)} are answered right" in findings()


def by_victim(attack: str) -> dict[tuple[str, str], ResultRow]:
    return {(row.dataset, row.rejector): row for row in rows("tenth") if row.attack == attack}


def published_distance(dataset: str, rejector: str, attack: str) -> PaperCell:
    (found,) = [
        cell for cell in cells_of("table7") if (cell.dataset, cell.rejector, cell.attack) == (dataset, rejector, attack)
    ]
    return found


def test_an_attack_on_the_rejector_too_goes_farther_and_rr_is_the_farthest_in_linf_only() -> None:
    sets, rejectors = ("cifar10", "cifar100"), ("snet", "ebd", "rr")
    for norm in ("l2", "linf"):
        normal, adaptive = by_victim(f"cw-{norm}"), by_victim(f"cw-{norm}(goal=adaptive)")
        assert len(normal) == len(adaptive) == 6
        assert all((normal[each].distance or 0) < (adaptive[each].distance or 0) for each in normal)
        for dataset in sets:
            farthest = max(rejectors, key=lambda name: adaptive[dataset, name].distance or 0)
            assert farthest == ("rr" if norm == "linf" else "snet")
            paper = max(
                rejectors, key=lambda name: float(published_distance(dataset, name, f"cw-{norm}-adaptive").value)
            )
            assert paper == "rr"
        successes = [100 * (row.success or 0) for row in normal.values()]
        assert min(successes) >= 99.3
    in_l2 = by_victim("cw-l2(goal=adaptive)")
    pairs = [[f"{in_l2[dataset, name].distance:.2f}" for name in ("snet", "rr")] for dataset in sets]
    assert f"SNet {pairs[0][0]}, RR {pairs[0][1]}; on CIFAR-100 {pairs[1][0]} and {pairs[1][1]}" in flat()
    assert f"In l2 SNet's are ({pairs[0][0]} and {pairs[0][1]} on CIFAR-10)" in findings()
    in_linf = by_victim("cw-linf(goal=adaptive)")
    pairs = [[f"{in_linf[dataset, name].distance:.1f}" for name in ("rr", "ebd")] for dataset in sets]
    assert f"RR {pairs[0][0]}, EBD {pairs[0][1]}; on CIFAR-100 {pairs[1][0]} and {pairs[1][1]}" in flat()
    missed = [100 - 100 * (in_l2[dataset, "snet"].success or 0) for dataset in sets]
    assert f"SNet's attack fails for {missed[0]:.1f} and {missed[1]:.1f} % of the images" in flat()


def test_pgd_1000_hardly_ever_ends_early() -> None:
    taken = [row.gradients or 0 for row in rows("tenth") if row.attack == PGD_1000]
    assert len(taken) == 6
    assert (
        f"PGD-1000x10 took {min(taken):,.0f} to {max(taken):,.0f} gradients an image with `until=repeat`, of 10,000"
        in flat()
    )
    docs = " ".join((ROOT / "docs" / "attack.md").read_text(encoding="utf-8").split())
    assert f"took {min(taken):,.0f} to {max(taken):,.0f} gradients an image instead of 10,000" in docs


def test_figure_4_shows_objectives_that_tpr_95_does_not_tell_apart() -> None:
    found = {
        row.attack.removeprefix("adaptive100x5"): row for row in rows("tenth") if row.attack.startswith("adaptive")
    }
    assert len(found) == 25
    weakest = min(found.values(), key=lambda row: row.acc_tpr95 or 0)
    assert weakest is found["(con+rr,eta=10)"]
    low, high = weakest.acc_tpr95_low, weakest.acc_tpr95_high
    assert f"TPR-95 is lowest under `con+rr` at η 10: {weakest.acc_tpr95:.2f} [{low:.1f}, {high:.1f}]" in flat()
    others = sorted(
        (row for row in rows("tenth") if row.attack == MULTI_TARGET and row.trained_as != "pgd-at+rr"),
        key=lambda row: row.acc_tpr95 or 0,
    )
    assert [row.trained_as for row in others] == ["trades", "pgd-at+snet", "trades+rr", "atro", "pgd-at+ebd", "carl"]
    *most, last = (f"{row.acc_tpr95:.2f}" for row in others)
    assert f"have {', '.join(most)} and {last}, each with an interval as wide" in flat()
    strongest = min(found.values(), key=lambda row: row.deploy_robust or 0)
    assert strongest is found["(con+rr,eta=1)"] is min(found.values(), key=lambda row: row.deploy_joint or 0)
    plain = found["(ce+rr,eta=0)"]
    assert (
        f"robust falls from {plain.deploy_robust:.1f} under plain cross-entropy (η 0) to {strongest.deploy_robust:.1f} "
        f"under `con+rr` at η 1, joint from {plain.deploy_joint:.1f} to {strongest.deploy_joint:.1f}; "
        f"TPR-95 falls by {(plain.acc_tpr95 or 0) - (strongest.acc_tpr95 or 0):.1f} points only"
    ) in flat()
    assert (
        f"robust falls from {plain.deploy_robust:.1f} under plain cross-entropy to {strongest.deploy_robust:.1f} "
        "under the best of the five"
    ) in findings()
    clean = next(row for row in rows("tenth") if (row.attack, row.trained_as) == ("clean", "pgd-at+rr"))
    harmless = [found[f"({name},eta={eta})"].acc_all or 0 for name in ("ce+rcon", "con+rcon") for eta in (10, 100)]
    assert (
        f"leave {min(harmless):.1f} to {max(harmless):.1f} % right, where {clean.acc_all} % are right without" in flat()
    )


def test_autoattack_leaves_as_much_of_these_images_when_it_runs_on_all() -> None:
    rr = "pgd-at+rr", "rr"
    alone = scores(TENTH, rr, "autoattack(version=standard)").correct
    among, of_the_text = (scores(CIFAR10, rr, "autoattack", preset=name).correct[::10] for name in ("strong", "paper"))
    left = [f"{100 * each.mean():.1f} %" for each in (alone, among, of_the_text)]
    assert (
        f"leaves RR {left[0]} right when it runs on these images alone, and {left[1]} of them when it runs on all"
        in flat()
    )
    assert f"The version of the paper's text leaves {left[2]} of them right." in flat()
