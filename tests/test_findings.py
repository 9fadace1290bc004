"""Every number of results/FINDINGS.md, and of the READMEs' sentences, is that of the published rows and scores."""

from functools import cache
from statistics import fmean

import numpy as np
import pytest

from published import CIFAR10, ROOT, cells_in, rows, victims_at, worst_line
from rrbench.figures.risk_coverage import at_its_boldest
from rrbench.figures.scored import read_scored
from rrbench.metrics.deployment import joint_where_kept
from rrbench.paper.cells import cells_of
from rrbench.paper.tabulate import Selection, paper_tables
from rrbench.rows.paired import ScoreFiles, paired_difference, scored_rows
from rrbench.rows.row import ResultRow
from rrbench.rows.scores import Scores, read_scores

NAMES = {"RR": "rr", "EBD": "ebd", "SNet": "snet"}  # others are called as in the rows, but for capitals
NETWORKS = {
    "rr": "pgd-at+rr",
    "rr(score=con)": "pgd-at+rr",
    "coupled": "pgd-at+rr",
    "ebd": "pgd-at+ebd",
    "snet": "pgd-at+snet",
    "atro": "atro",
    "carl": "carl",
}
KEPT = np.array([0.99, 0.95, 0.9, 0.8])


@cache
def text(file: str) -> str:
    return " ".join((ROOT / file).read_text(encoding="utf-8").split())


def findings() -> str:
    return text("results/FINDINGS.md")


def victim(name: str) -> tuple[str, str]:
    rejector = NAMES.get(name, name.lower())
    return NETWORKS.get(rejector, "pgd-at"), rejector


def at(name: str, attack: str = "worst-case", eps: str = "8/255") -> ResultRow:
    return victims_at(attack, eps)[victim(name)]


def joint(name: str, attack: str = "worst-case", eps: str = "8/255") -> str:
    return f"{at(name, attack, eps).deploy_joint:.2f}"


def own_gain(name: str, attack: str = "worst-case") -> float:
    """Return joint less the accuracy that the same images leave if nothing is rejected."""
    row = at(name, attack)
    assert row.deploy_joint is not None
    assert row.acc_all is not None
    return row.deploy_joint - row.acc_all


@cache
def scores() -> dict[tuple[object, ...], ScoreFiles]:
    """Return the score files of all rows once; the draws of a row stay with them."""
    return scored_rows(CIFAR10)


@cache
def less(one: str, other: str) -> tuple[str, str, str]:
    """Return the paired difference at the worst case and its interval, each with a sign."""
    found = paired_difference(at(one), at(other), "deploy_joint", scores())
    assert found is not None
    return f"{found.value:+.2f}", f"{found.low:+.2f}", f"{found.high:+.2f}"


def shown(one: str, other: str) -> str:
    value, low, high = less(one, other)
    return f"{value} [{low}, {high}]"


def under(attack: str, eps: str) -> dict[str, ResultRow]:
    """Return the rows of preset `paper` on plain PGD-AT under a blind attack, by rejector."""
    found = [row for row in rows() if (row.trained_as, row.preset, row.norm) == ("pgd-at", "paper", "linf")]
    return {row.rejector: row for row in found if (row.attack, row.eps) == (attack, eps)}


def test_what_the_recommended_rejectors_gain() -> None:
    value, low, high = less("margin", "never-reject")
    ahead, ahead_low, ahead_high = less("margin", "confidence")
    assert f"It gains {value} points over never rejecting [{low}, {high}] and {ahead} over confidence" in findings()
    assert f"over confidence [{ahead_low}, {ahead_high}], and answers" in findings()
    assert (
        f"answers {at('margin', 'clean', '').deploy_coverage:.1f} % of clean inputs, as confidence does" in findings()
    )
    looks = {row.attack: row for row in rows("cifar10-looks") if row.rejector == "cpr"}
    cpr, clean = looks["worst-case"], looks["clean"]
    assert f"Joint is {worst_line(cpr)[2]} on the first 1,000 images, where the same attacks leave" in findings()
    assert f"leave {cpr.acc_all:.2f} % right without rejection. It answers {clean.deploy_coverage:.1f} %" in findings()
    assert f"Plain **confidence** gains {shown('confidence', 'never-reject')}" in findings()


@pytest.mark.parametrize("name", ["margin", "confidence", "RR", "EBD", "ATRO", "SNet", "CARL"])
def test_the_table_of_what_survives(name: str) -> None:
    on_its_own = f"{own_gain(name):+.2f}"
    line = f"| {name} | {joint(name, 'pgd100')} | {joint(name)} | {shown(name, 'never-reject')} | {on_its_own} |"
    assert line in findings()
    assert f"| never-reject | {joint('never-reject', 'pgd100')} | {joint('never-reject')} | | |" in findings()


def test_the_table_of_thresholds() -> None:
    scores = {cell.row: cell.scores for cell in read_scored(CIFAR10) if cell.row in victims_at("worst-case").values()}
    kept = {}
    for name in ("never-reject", "margin", "confidence", "RR", "EBD"):
        found = scores[at(name)]
        kept[name] = joint_where_kept(found.clean, *at_its_boldest(found), KEPT)
        assert f"| {name} | " + " | ".join(f"{value:.2f}" for value in kept[name]) + " |" in findings()
    assert all((kept["margin"] > other).all() for name, other in kept.items() if name != "margin")
    gain = kept["margin"][-1] - kept["never-reject"][-1]
    assert f"a fifth of the right clean answers gains {gain:.1f} points with margin" in findings()
    tpr95 = f"(TPR-95 at the worst case: {at('margin').acc_tpr95:.2f} and {at('confidence').acc_tpr95:.2f})"
    assert tpr95 in findings()
    refused = {name: f"{100 - (at(name).deploy_coverage or 0):.1f} %" for name in ("margin", "confidence")}
    assert f"{refused['margin']} of them, confidence {refused['confidence']}" in findings()


def test_the_other_numbers_of_the_findings() -> None:
    value, low, high = less("RR", "confidence")
    near, far, weak = under("pgd100x10", "8/255"), under("pgd100x10", "16/255"), under("pgd10", "16/255")
    tpr95 = {name: f"{row.acc_tpr95:.2f}" for name, row in far.items()}
    trades = [
        f"{victims_at('worst-case')[key].deploy_joint:.2f}" for key in (("trades", "confidence"), ("trades+rr", "rr"))
    ]
    for said in (
        f"RR minus confidence is {value} [{low}, {high}]",
        f"own network confidence has {joint('rr(score=con)')} and R-Con, RR's score, {joint('RR')}",
        f"On TRADES confidence has {trades[0]} and RR {trades[1]}",
        *(f"{name} {joint(name, eps='16/255')}" for name in ("never-reject", "confidence", "EBD", "RR")),
        *(
            f"{name} {joint(name)}"
            for name in ("margin", "confidence", "KNN", "max-logit", "DOCTOR", "Rel-U", "entropy")
        ),
        f"energy {joint('energy')}, ViM {joint('ViM')}",
        f"have {joint('RR')}, {joint('EBD')} and {joint('SNet')}",
        *(f"{name} ({joint(name)})" for name in ("KD", "GDA", "SNet", "ViM", "GDA*", "LID")),
        f"the coupled rejector ({joint('coupled')})",
        f"KD ({near['kd'].acc_tpr95:.2f}) and GDA ({near['gda'].acc_tpr95:.2f}) are below the accuracy without any "
        f"rejection ({near['kd'].acc_all:.2f})",
        f"({tpr95['kd']}, {tpr95['gda']}, {tpr95['gda*']}, {tpr95['gmm']} against {far['kd'].acc_all:.2f})",
        f"leaves confidence {tpr95['confidence']} at TPR-95, PGD-10 leaves {weak['confidence'].acc_tpr95:.2f}",
    ):
        assert said in findings(), said


def test_what_is_said_of_atro_and_of_effort_against_margin() -> None:
    atro = {row.attack: row for row in rows() if row.rejector == "atro" and row.eps in ("", "8/255")}
    clean, attacked = (f"{atro[name].acc_tpr95:.2f}" for name in ("clean", "pgd100x10"))
    assert f"TPR-95 is {clean} on clean inputs and {attacked} under PGD-100x10" in findings()
    printed = {cell.eps: cell.value for cell in cells_of("table2") if (cell.at, cell.metric) == ("atro", "acc_tpr95")}
    assert f"the paper prints {printed['']} and {printed['8']}" in findings()
    robust = {row.attack: row.deploy_robust or 0 for row in rows("cifar10-effort")}
    doubled = [robust[f"apgd-reject{more}"] for more in ("(eta=1:10)", "100", "50x2")]
    assert f"takes {robust['apgd-reject'] - min(doubled):.1f} points from margin at most" in findings()


def test_what_is_below_never_rejecting_is_clearly_so() -> None:
    worst = victims_at("worst-case")
    reference = worst[victim("never-reject")].deploy_joint or 0
    below = [rejector for (_, rejector), row in worst.items() if (row.deploy_joint or 0) < reference]
    assert len(below) == 9
    below.remove("atro")  # level: its interval reaches above 0
    assert all(float(less(rejector, "never-reject")[2]) < 0 for rejector in below)


def test_carl_and_snet_on_their_own_networks() -> None:
    plain = [f"{at(name).acc_all:.2f}" for name in ("CARL", "SNet", "never-reject")]
    blind, seems = at("CARL", "pgd100"), own_gain("CARL", "pgd100")
    for said in (
        f"on their own networks, {own_gain('CARL'):.2f} and {own_gain('SNet'):.2f}, but these are weaker than PGD-AT's",
        f"they have {plain[0]} and {plain[1]} at the worst case, PGD-AT {plain[2]}.",
        f"CARL seems to gain {seems:.2f} ({blind.deploy_joint:.2f}; without rejection {blind.acc_all:.2f})",
    ):
        assert said in text("results/README.md"), said
    assert f"without any rejection they have {plain[0]} and {plain[1]}" in findings()


def test_the_sentences_of_the_readme() -> None:
    gained = {name: less(name, "never-reject") for name in ("margin", "confidence", "RR")}
    blind = {name: float(joint(name, "pgd100")) - float(joint("never-reject", "pgd100")) for name in gained}
    plain = {name: [part.lstrip("+") for part in parts] for name, parts in gained.items()}
    value, low, high = less("RR", "confidence")
    for said in (
        f"confidence gains {blind['confidence']:.2f} points of joint under PGD-100 and {plain['confidence'][0]} at the",
        f"interval {plain['confidence'][1]} to {plain['confidence'][2]}); RR gains {blind['RR']:.2f} and",
        f"and {plain['RR'][0]} ({plain['RR'][1]} to {plain['RR'][2]})",
        f"no advantage of RR over confidence: {value} points ({low} to {high})",
        f"gains {plain['margin'][0]} points ({plain['margin'][1]} to {plain['margin'][2]})",
        f"plain confidence gains {plain['confidence'][0]} points over never rejecting",
        f"that rrbench starts from, {plain['RR'][0]}.",
        f"needs no training, gains {plain['margin'][0]}.",
    ):
        assert said in text("README.md"), said


def on_all(trained_as: str, norm: str, eps: str, attack: str) -> ResultRow:
    (row,) = [
        row
        for row in rows()
        if (row.trained_as, row.norm, row.eps, row.attack, row.preset) == (trained_as, norm, eps, attack, "paper")
        and row.rejector == {"trades+rr": "rr", "carl": "carl"}.get(trained_as, "confidence")
    ]
    return row


def test_pgd10_on_trades_and_carl_is_as_results_readme_says() -> None:
    trades = [
        [
            f"{on_all(name, norm, eps, attack).acc_tpr95:.2f}"
            for attack in ("pgd10", "pgd100x10")
            for name in ("trades", "trades+rr")
        ]
        for norm, eps in (("linf", "16/255"), ("l2", "128/255"))
    ]
    carl = [
        on_all("carl", "", "", "clean"),
        *(
            on_all("carl", norm, eps, "pgd10")
            for norm, eps in (("linf", "8/255"), ("linf", "16/255"), ("l2", "128/255"))
        ),
    ]
    published = [cell.value for cell in cells_of("table2") if (cell.at, cell.metric) == ("carl", "acc_tpr95")]
    above = (carl[2].acc_tpr95 or 0) - float(published[2])
    longest = on_all("carl", "linf", "16/255", "pgd100x10")
    for said in (
        *(
            "On TRADES PGD-10 leaves confidence {} and RR {}, PGD-100x10 {} and {}, where".format(*each)
            for each in trades
        ),
        f"| accuracy without rejection, ours | {' | '.join(f'{row.acc_all:.2f}' for row in carl)} |",
        f'| TPR-95, the paper, "PGD-100x10" | {" | ".join(published)} |',
        f"| TPR-95, ours | {' | '.join(f'{row.acc_tpr95:.2f}' for row in carl)} |",
        f"Its {carl[2].acc_tpr95:.2f} is far nearer than the {longest.acc_tpr95:.2f} of PGD-100x10,",
        f"but {above:.1f} points above the paper's {published[2]}.",
    ):
        assert said in text("results/README.md"), said
    for said in (
        *("PGD-10 gives confidence {} and RR {} and PGD-100x10 {} and {}, where".format(*each) for each in trades),
    ):
        assert said in text("rrbench/paper/footnotes.toml"), said


CORRUPTED = ROOT / "results" / "cifar10-c-made"
LINES = ("pgd-at+rr", "pgd-at+ebd", "pgd-at+snet", "trades", "trades+rr")


@cache
def corrupted() -> dict[tuple[str, str], list[Scores]]:
    """Return {(line, corruption): scores at its five severities}."""
    found: dict[tuple[str, str], list[Scores]] = {}
    for record, _ in cells_in(CORRUPTED):
        corruption = record.cell["dataset"][1]["corruption"]
        found.setdefault((record.row.trained_as, corruption), []).append(read_scores(CORRUPTED, record.files))
    return {key: scores for key, scores in found.items() if key[0] in LINES}


def tpr95(scores: list[Scores]) -> float:
    """Return the accuracy at TPR-95 with one threshold for all inputs."""
    certainty = np.concatenate([each.certainty for each in scores])
    correct = np.concatenate([each.correct for each in scores])
    threshold = np.quantile(certainty[correct], 0.05, method="lower")
    return 100 * float(correct[certainty >= threshold].mean())


def test_pooling_the_severities_explains_fog_and_moves_nothing_else() -> None:
    assert [len(scores) for scores in corrupted().values()] == [5] * 50
    means = {key: fmean(tpr95([each]) for each in scores) for key, scores in corrupted().items()}
    pooled = {key: tpr95(scores) for key, scores in corrupted().items()}
    moved = {key: pooled[key] - means[key] for key in means}
    assert max(abs(each) for (_, corruption), each in moved.items() if corruption != "fog") <= 0.4
    fog = [(line, "fog") for line in LINES]
    assert (round(min(moved[key] for key in fog), 1), round(max(moved[key] for key in fog), 1)) == (1.5, 2.3)
    judged = paper_tables(Selection("table3", dataset="cifar10-c-made"), [CORRUPTED]).judged
    within = [each for each in judged if each.verdict == "within"]
    assert {each.cell.at for each in within} == {"pgd-at", "trades"}
    assert f"{len(within)} of the {len(means)} cells of PGD-AT and TRADES are within tolerance" in findings()
    paper = {
        ("+".join([cell.at, cell.rejector]).removesuffix("+confidence"), "fog"): float(cell.value)
        for cell in cells_of("table3")
        if cell.attack == "corruption:fog"
    }
    assert all(abs(pooled[key] - paper[key]) < 1 for key in fog)
    for name, values in (("mean over severities", means), ("pooled", pooled), ("the paper", paper)):
        assert f"| {name} | {' | '.join(f'{values[key]:.2f}' for key in fog)} |" in text("results/README.md")
