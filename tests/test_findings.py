"""Every number of results/FINDINGS.md, and of the READMEs' sentences, is that of the published rows and scores."""

import numpy as np

from findings_rows import (
    at,
    findings,
    gain,
    gain_of,
    gains_apart,
    joint,
    less,
    own_gain,
    shown,
    text,
    under,
    under_pgd100x10,
    victim,
)
from published import CIFAR10, rows, scores, victims_at, worst_line
from rrbench.figures.risk_coverage import at_its_boldest
from rrbench.figures.scored import read_scored
from rrbench.metrics.deployment import joint_where_kept
from rrbench.paper.cells import cells_of
from rrbench.rows.paired import paired_difference

KEPT = np.array([0.99, 0.95, 0.9, 0.8])


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
    assert f"leave {cpr.acc_all:.2f} % right without rejection." in findings()
    assert f"(with the thresholds held fixed). It answers {clean.deploy_coverage:.1f} % of clean inputs." in findings()
    assert f"Plain **confidence** gains {shown('confidence', 'never-reject')}" in findings()
    assert f"RR gains as much on its own network, {gain('RR')}, but needs that network." in findings()


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
    tpr95 = f"({at('margin').acc_tpr95:.2f} and {at('confidence').acc_tpr95:.2f})"
    assert f"By it margin is behind confidence at the worst case {tpr95}" in findings()
    own = " and ".join(f"{at(name).acc_all:.2f}" for name in ("RR", "EBD"))
    assert f"On RR's and EBD's own networks never rejecting has {own}." in findings()
    off = max(abs(values[1] - (at(name).deploy_joint or 0)) for name, values in kept.items())
    assert f"So 95 % is up to {off:.2f} off the numbers elsewhere." in findings()
    refused = {name: f"{100 - (at(name).deploy_coverage or 0):.1f} %" for name in ("margin", "confidence")}
    assert f"{refused['margin']} of them, confidence {refused['confidence']}" in findings()


def test_the_other_numbers_of_the_findings() -> None:
    value, low, high = less("RR", "confidence")
    near, far, weak = under("pgd100x10", "8/255"), under("pgd100x10", "16/255"), under("pgd10", "16/255")
    tpr95 = {name: f"{row.acc_tpr95:.2f}" for name, row in far.items()}
    trades = [victims_at("worst-case")[key] for key in (("trades", "confidence"), ("trades+rr", "rr"))]
    on_trades = paired_difference(trades[1], trades[0], "deploy_joint", scores())
    assert on_trades is not None
    for said in (
        f"RR's gain less confidence's is {gains_apart(at('RR'), at('confidence'))}.",
        f"RR minus confidence is {value} [{low}, {high}]",
        f"own network confidence has {joint('rr(score=con)')} and R-Con, RR's score, {joint('RR')}",
        f"On TRADES confidence has {trades[0].deploy_joint:.2f} and RR {trades[1].deploy_joint:.2f}: RR minus "
        f"confidence is {on_trades.value:+.2f} [{on_trades.low:+.2f}, {on_trades.high:+.2f}], and its "
        f"gain less confidence's {gains_apart(trades[1], trades[0])}.",
        *(f"{name} {joint(name, eps='16/255')}" for name in ("never-reject", "confidence", "EBD", "RR")),
        "EBD and RR have {} and {} without".format(
            *(f"{at(each, eps='16/255').acc_all:.2f}" for each in ("EBD", "RR"))
        ),
        f"At the worst case it gains {own_gain(at('ATRO')):.2f} on its own network.",
        f"ATRO less never rejecting on PGD-AT is {shown('ATRO', 'never-reject')}.",
        *(
            f"{name} {joint(name)}"
            for name in ("margin", "confidence", "KNN", "max-logit", "DOCTOR", "Rel-U", "entropy")
        ),
        f"energy {joint('energy')}, ViM {joint('ViM')}",
        f"have {joint('RR')}, {joint('EBD')} and {joint('SNet')}",
        *(f"{name} ({joint(name)})" for name in ("KD", "GDA", "SNet", "CARL", "ATRO", "ViM", "GDA*", "LID")),
        f"the coupled rejector ({joint('coupled')})",
        f"KD ({near['kd'].acc_tpr95:.2f}) and GDA ({near['gda'].acc_tpr95:.2f}) are below the accuracy without any "
        f"rejection ({near['kd'].acc_all:.2f})",
        f"({tpr95['kd']}, {tpr95['gda']}, {tpr95['gda*']}, {tpr95['gmm']} against {far['kd'].acc_all:.2f})",
        f"leaves confidence {tpr95['confidence']} at TPR-95, PGD-10 leaves {weak['confidence'].acc_tpr95:.2f}",
    ):
        assert said in findings(), said


def test_what_is_said_of_atro_and_of_doubled_effort() -> None:
    atro = {row.attack: row for row in rows() if row.rejector == "atro" and row.eps in ("", "8/255")}
    clean, attacked = (f"{atro[name].acc_tpr95:.2f}" for name in ("clean", "pgd100x10"))
    assert f"TPR-95 is {clean} on clean inputs and {attacked} under PGD-100x10" in findings()
    printed = {cell.eps: cell.value for cell in cells_of("table2") if (cell.at, cell.metric) == ("atro", "acc_tpr95")}
    assert f"the paper prints {printed['']} and {printed['8']}" in findings()
    robust = {(row.rejector, row.attack): row.deploy_robust or 0 for row in rows("cifar10-effort")}
    rejectors = ("margin", "confidence", "rr")
    doubled = ("apgd-reject(eta=1:10)", "apgd-reject100", "apgd-reject50x2")
    taken = max(robust[name, "apgd-reject"] - robust[name, attack] for name in rejectors for attack in doubled)
    assert f"takes {taken:.1f} points from margin, confidence and RR at most" in findings()


def test_the_sentences_of_the_readme() -> None:
    worst, blind = (
        {name: f"{own_gain(at(name, attack)):.2f}" for name in ("margin", "confidence", "RR")}
        for attack in ("worst-case", "pgd100")
    )
    apart = gains_apart(at("RR"), at("confidence")).replace("[", "points (").replace(", ", " to ").replace("]", ")")
    margin = gain_of(at("margin"))
    for said in (
        f"confidence gains {blind['confidence']} points of joint under PGD-100 and {worst['confidence']} at the worst",
        f"case. RR gains {blind['RR']} and {worst['RR']} on its own network. Most of RR's fall",
        f"RR's gain less confidence's is {apart}.",
        f"gains {worst['margin']} points ({margin.low:.2f} to {margin.high:.2f})",
        f"needs no training, gains {worst['margin']}, on the one network measured.",
    ):
        assert said in text("README.md"), said


def test_what_the_page_on_metrics_says_of_cross_fitting() -> None:
    found = {name: under_pgd100x10(*victim(name)) for name in ("confidence", "RR", "EBD", "SNet")}
    widths = [(row.deploy_robust_high or 0) - (row.deploy_robust_low or 0) for row in found.values()]
    lead = paired_difference(found["RR"], found["confidence"], "deploy_robust", scores())
    assert lead is not None
    said = f"{min(widths):.1f} to {max(widths):.1f} points wide, and RR leads by {lead.value:.1f}"
    assert f"{said} [{lead.low:.1f}, {lead.high:.1f}]." in text("docs/metrics.md")
