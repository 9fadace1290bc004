"""What results/README.md says of the attacks on every tenth image is what the stored scores give."""

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from published import CIFAR10, ROOT, cells_in, rows
from rrbench.files.arrays import load_arrays
from rrbench.metrics.measures import accept_at_tpr95, auc
from rrbench.metrics.resampling import resampled
from rrbench.paper.cells import cells_of
from rrbench.rows.row import ResultRow
from rrbench.rows.scores import ATTACKS, Scores, file_in, read_scores

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
# Attack in rows, and in the paper's cells; as it is shown; data set.
SHOWN_ATTACKS = (
    (MULTI_TARGET, "multitarget-100x20", "multi-target", "cifar10"),
    (PGD_1000, "pgd-1000x10", "PGD-1000x10", "cifar10"),
    (PGD_1000, "pgd-1000x10", "PGD-1000x10, CIFAR-100", "cifar100"),
)
RESAMPLES = 1000
WITHIN = 1.5  # points
Victim = tuple[str, str]
Measure = Callable[[Scores, slice], float]
RR, EBD = ("pgd-at+rr", "rr"), ("pgd-at+ebd", "ebd")


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


def tpr95(given: Scores, chosen: slice) -> float:
    correct = given.correct[chosen]
    accepted = accept_at_tpr95(given.certainty[chosen], correct, "quantile")
    assert accepted is not None
    return float(100 * correct[accepted].mean())


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
    assert f"for all but {min(unseen)} to {max(unseen)} of 1,000 inputs" in findings()
    assert f"{min(kept)} to {max(kept)} are answered right" in findings()


def distances(
    norm: str, dataset: str, rejector: str, start: str = "", folder: Path = TENTH
) -> tuple[ResultRow, np.ndarray]:
    """Return CW's row with the adaptive goal, and each image's distance: 0 where it failed."""
    (record,) = [
        record
        for record, _ in cells_in(folder)
        if (record.row.dataset, record.row.rejector) == (dataset, rejector)
        and record.row.attack == f"cw-{norm}(goal=adaptive{start})"
    ]
    arrays = load_arrays(folder / file_in(record.files, ATTACKS))
    assert (arrays["distances"][~arrays["reached"]] == 0).all()
    return record.row, arrays["distances"]


def test_the_normal_distances_are_near_the_papers() -> None:
    found = [row for row in rows("tenth") if row.attack in ("cw-l2", "cw-linf")]
    assert len(found) == 12
    off = []
    for row in found:
        (cell,) = [
            cell
            for cell in cells_of("table7")
            if (cell.dataset, cell.rejector, cell.attack) == (row.dataset, row.rejector, f"{row.attack}-normal")
        ]
        off.append(100 * ((row.distance or 0) / float(cell.value) - 1))
        (farther,) = (
            each
            for each in rows("tenth")
            if (each.dataset, each.rejector, each.attack) == (row.dataset, row.rejector, f"{row.attack}(goal=adaptive)")
        )
        assert (farther.distance or 0) > (row.distance or 0)
    assert f"from {-min(off):.0f} % below to {max(off):.0f} % above the paper's" in flat()
    least = min(100 * (row.success or 0) for row in found)
    assert f"it succeeds for {least:.1f} % of the images at least" in flat()


def test_rr_is_the_hardest_to_get_past_for_most_images_and_by_the_mean_in_linf_only() -> None:
    rejectors = ("snet", "ebd", "rr")
    for norm in ("linf", "l2"):
        for dataset, name in (("cifar10", "CIFAR-10"), ("cifar100", "CIFAR-100")):
            found = {rejector: distances(norm, dataset, rejector) for rejector in rejectors}
            means = {rejector: each.mean() for rejector, (_, each) in found.items()}
            medians = {rejector: float(np.median(each)) for rejector, (_, each) in found.items()}
            assert all(abs(means[rejector] - (row.distance or 0)) < 1e-6 for rejector, (row, _) in found.items())
            assert max(medians, key=lambda rejector: medians[rejector]) == "rr"
            assert max(means, key=lambda rejector: means[rejector]) == ("rr" if norm == "linf" else "snet")
            fails = " / ".join(f"{100 - 100 * (found[rejector][0].success or 0):.1f}" for rejector in rejectors)
            shares = " / ".join(f"{100 * (found[each][1] > found['rr'][1]).mean():.0f}" for each in ("snet", "ebd"))
            digits = 1 if norm == "linf" else 2
            numbers = [" / ".join(f"{of[each]:.{digits}f}" for each in rejectors) for of in (means, medians)]
            assert f"| {norm}, {name} | {numbers[0]} | {numbers[1]} | {fails} | {shares} |" in text()
    far = [int((distances("l2", "cifar10", rejector)[1] > 10).sum()) for rejector in ("snet", "rr")]
    assert f"(above 10: {far[0]} images of SNet, {far[1]} of RR, on CIFAR-10)" in flat()
    (_, snet), (_, rr) = (distances("l2", "cifar100", rejector) for rejector in ("snet", "rr"))
    worst = float(np.median(np.where(snet == 0, np.inf, snet)))
    assert worst > float(np.median(rr))
    assert f"SNet's median on CIFAR-100 is {worst:.2f}, above RR's" in flat()
    assert "by the mean in linf only" in findings()


def test_the_released_start_ends_as_far_but_for_an_image_that_ours_misses() -> None:
    row, theirs = distances("linf", "cifar10", "snet", ",start=phase1", ROOT / "results" / "cifar10-steps")
    ours = distances("linf", "cifar10", "snet")[1][::100]
    assert (row.n, row.settings.count('"every": 1000'), len(theirs)) == (10, 1, 10)
    missed = ours == 0
    assert missed.sum() == 1
    means = [f"{each.mean():.1f}" for each in (theirs, ours, theirs[~missed], ours[~missed])]
    assert f"it ends {means[0]} away in the mean, and ours {means[1]}" in flat()
    assert f"on the other nine the means are {means[2]} and {means[3]}" in flat()


def test_pgd_1000_hardly_ever_ends_early() -> None:
    taken = [row.gradients or 0 for row in rows("tenth") if row.attack == PGD_1000]
    assert len(taken) == 6
    assert (
        f"PGD-1000x10 took {min(taken):,.0f} to {max(taken):,.0f} gradients an image with `until=repeat`, of 10,000"
        in flat()
    )
    docs = " ".join((ROOT / "docs" / "attack.md").read_text(encoding="utf-8").split())
    assert f"took {min(taken):,.0f} to {max(taken):,.0f} gradients an image instead of 10,000" in docs


def robust(given: Scores, threshold: float) -> np.ndarray:
    """Tell of each image that it was not answered wrongly."""
    return given.correct | (given.certainty < threshold)


def test_figure_4_by_tpr_95_by_a_fixed_threshold_and_beside_a_blind_attack() -> None:
    tenth = slice(None, None, 10)
    found = {
        row.attack.removeprefix("adaptive100x5"): row for row in rows("tenth") if row.attack.startswith("adaptive")
    }
    assert len(found) == 25
    lowest = min(found.values(), key=lambda row: row.acc_tpr95 or 0)
    assert lowest is found["(con+rr,eta=10)"]
    low, high = lowest.acc_tpr95_low, lowest.acc_tpr95_high
    assert f"TPR-95 is lowest under `con+rr` at η 10: {lowest.acc_tpr95:.2f} [{low:.1f}, {high:.1f}]" in flat()
    blind = {name: tpr95(scores(CIFAR10, victim, "gama-fw"), tenth) for victim, name in SHOWN.items()}
    order = ("PGD-AT+RR, R-Con", "TRADES, confidence", "TRADES+RR, R-Con", "PGD-AT+SNet, SNet", "ATRO, margin",
             "PGD-AT+EBD, EBD", "CARL, margin")  # fmt: skip
    assert sorted(blind, key=lambda name: blind[name]) == list(order)
    *most, last = (f"{blind[name]:.2f}" for name in order)
    assert (
        f"leaves RR {most[0]}, and TRADES, TRADES+RR, SNet, ATRO, EBD and CARL {', '.join(most[1:])} and {last}"
        in flat()
    )
    strongest = min(found.values(), key=lambda row: row.deploy_robust or 0)
    assert strongest is found["(con+rr,eta=1)"] is min(found.values(), key=lambda row: row.deploy_joint or 0)
    plain, alone = found["(ce+rr,eta=0)"], found["(con+rr,eta=0)"]
    threshold = plain.deploy_threshold
    assert threshold is not None
    assert {row.deploy_threshold for row in found.values()} == {threshold}
    numbers = [f"{row.deploy_robust:.1f}" for row in (plain, alone, strongest)]
    own = scores(TENTH, RR, "adaptive100x5(con+rr,eta=1)")
    assert f"{100 * robust(own, threshold).mean():.1f}" == numbers[2]
    gama = 100 * robust(scores(CIFAR10, RR, "gama-fw"), threshold)[tenth].mean()
    assert (
        f"plain cross-entropy (η 0) leaves RR {numbers[0]} robust, `con` alone {numbers[1]}, `con+rr` at η 1, the "
        f"strongest of the 25, {numbers[2]}, and GAMA-FW {gama:.1f}"
    ) in flat()
    assert (
        f"{numbers[0]} robust, the strongest of 25 attacks {numbers[2]}, and the blind GAMA-FW {gama:.1f}" in findings()
    )
    apart = (plain.acc_tpr95 or 0) - (strongest.acc_tpr95 or 0)
    assert f"tells the first and the third apart by {apart:.1f} points" in flat()
    clean = next(row for row in rows("tenth") if (row.attack, row.trained_as) == ("clean", "pgd-at+rr"))
    harmless = [found[f"({name},eta={eta})"].acc_all or 0 for name in ("ce+rcon", "con+rcon") for eta in (10, 100)]
    assert (
        f"leave {min(harmless):.1f} to {max(harmless):.1f} % right, where {clean.acc_all} % are right without" in flat()
    )
    weak = sum("weak" in row.note for row in found.values())
    assert f"{weak} of the 25 rows carry the note `weak`" in flat()


def test_autoattack_leaves_as_much_of_these_images_when_it_runs_on_all() -> None:
    alone = scores(TENTH, RR, "autoattack(version=standard)").correct
    among, of_the_text = (scores(CIFAR10, RR, "autoattack", preset=name).correct[::10] for name in ("strong", "paper"))
    left = [f"{100 * each.mean():.1f} %" for each in (alone, among, of_the_text)]
    assert (
        f"leaves RR {left[0]} right when it runs on these images alone, and {left[1]} of them when it runs on all"
        in flat()
    )
    assert f"The version of the paper's text leaves {left[2]} of them right." in flat()


def test_autoattacks_package_leaves_as_much_as_ours() -> None:
    left, apart = list[list[str]](), list[int]()
    for victim in (RR, EBD):
        package = scores(TENTH, victim, "autoattack(version=package)").correct
        ours = scores(CIFAR10, victim, "autoattack", preset="strong").correct[::10]
        assert abs(100 * (package.mean() - ours.mean())) <= 0.3
        left.append([f"{100 * each.mean():.1f} %" for each in (package, ours)])
        apart.append(int((package != ours).sum()))
    (rr, our_rr), (ebd, our_ebd) = left
    assert f"on these 1,000 images, leaves RR {rr} right and EBD {ebd}." in flat()
    assert f"(preset `strong`), leaves {our_rr} and {our_ebd} of them right." in flat()
    assert f"They differ on {apart[0]} images of RR and on {apart[1]} of EBD." in flat()
    package_rows = [row for row in rows("tenth") if row.attack == "autoattack(version=package)"]
    assert {(row.precision, row.n) for row in package_rows} == {("fp32", 1000)}
