"""Every number of results/FINDINGS.md, and of the READMEs' sentences, is that of the published rows and scores."""

from functools import cache
from statistics import fmean
from typing import Any

import numpy as np
import pytest

from published import CIFAR10, ROOT, cells_in, rows, victims_at, worst_line
from rrbench.figures.risk_coverage import at_its_boldest
from rrbench.figures.scored import read_scored
from rrbench.metrics.deployment import CleanScores, accepted_by, joint_where_kept
from rrbench.metrics.resampling import resampled_share
from rrbench.paper.cells import cells_of
from rrbench.paper.tabulate import Selection, paper_tables
from rrbench.rows.paired import Difference, ScoreFiles, all_but_note, differences, paired_difference, scored_rows
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


def own_gain(row: ResultRow) -> float:
    """Return joint less the accuracy that the same images leave if nothing is rejected."""
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


@cache
def gain_of(row: ResultRow) -> Difference:
    """Return what a rejector gains over never rejecting on its own network."""
    (found,) = differences([row], rows(), "never-reject", "deploy_joint", scores()) or ()  # type: ignore[misc]
    return found


def gain(name: str) -> str:
    found = gain_of(at(name))
    return f"{found.value:+.2f} [{found.low:+.2f}, {found.high:+.2f}]"


def gain_draws(row: ResultRow) -> Any:
    """Return the gain in each draw of examples."""
    file = scores()[all_but_note(row)]
    own = file.scores()
    both = (own.correct & own.clean_correct).astype(float)
    never = resampled_share(both, np.ones_like(both), file.resamples, 0)
    return file.drawn(own, "deploy_joint", file) - 100 * never


def gains_apart(one: ResultRow, other: ResultRow) -> str:
    """Return one gain less another, with its paired interval."""
    low, high = np.percentile(gain_draws(one) - gain_draws(other), (2.5, 97.5))
    return f"{own_gain(one) - own_gain(other):+.2f} [{low:+.2f}, {high:+.2f}]"


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
    assert f"leave {cpr.acc_all:.2f} % right without rejection." in findings()
    assert f"(with the thresholds held fixed). It answers {clean.deploy_coverage:.1f} % of clean inputs." in findings()
    assert f"Plain **confidence** gains {shown('confidence', 'never-reject')}" in findings()
    assert f"RR gains as much on its own network, {gain('RR')}, but needs that network." in findings()


def test_cpr_is_ahead_of_margin_on_the_same_images() -> None:
    (cpr,) = [row for row in rows("cifar10-looks") if (row.rejector, row.attack) == ("cpr", "worst-case")]
    looks = scored_rows(ROOT / "results" / "cifar10-looks")[all_but_note(cpr)].scores()
    margin = scores()[all_but_note(at("margin"))].scores()
    assert looks.ids.tolist() == margin.ids[:1000].tolist()
    is_joint = [_is_joint(found)[:1000].astype(float) for found in (looks, margin)]
    assert is_joint[0].mean() == pytest.approx((cpr.deploy_joint or 0) / 100)
    chosen = np.random.default_rng(0).integers(1000, size=(2000, 1000))
    low, high = np.percentile(100 * (is_joint[0] - is_joint[1])[chosen].mean(1), (2.5, 97.5))
    assert f"On these images margin has {100 * is_joint[1].mean():.2f}, so CPR is" in findings()
    assert f"{100 * (is_joint[0] - is_joint[1]).mean():+.2f} ahead [{low:+.2f}, {high:+.2f}]" in findings()


def _is_joint(found: Scores) -> Any:
    """Tell which inputs are answered right when clean and not answered wrong when attacked."""
    accepted, stays = (accepted_by(found.clean, each) for each in (found.certainty, found.clean_certainty))
    assert accepted is not None
    assert stays is not None
    return stays & found.clean_correct & (~accepted | found.correct)


@pytest.mark.parametrize("name", ["margin", "confidence", "RR", "EBD", "ATRO", "SNet", "CARL"])
def test_the_table_of_what_survives(name: str) -> None:
    elsewhere = (at(name).deploy_joint or 0) - (at("never-reject").deploy_joint or 0)
    line = f"| {name} | {joint(name, 'pgd100')} | {joint(name)} | {gain(name)} | {elsewhere:+.2f} |"
    assert line in findings()
    assert gain_of(at(name)).value == pytest.approx(own_gain(at(name)))
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
        f"never rejecting on PGD-AT, and gains {own_gain(at('ATRO')):.2f} on its own network.",
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


def test_what_is_said_of_atro_and_of_effort_against_margin() -> None:
    atro = {row.attack: row for row in rows() if row.rejector == "atro" and row.eps in ("", "8/255")}
    clean, attacked = (f"{atro[name].acc_tpr95:.2f}" for name in ("clean", "pgd100x10"))
    assert f"TPR-95 is {clean} on clean inputs and {attacked} under PGD-100x10" in findings()
    printed = {cell.eps: cell.value for cell in cells_of("table2") if (cell.at, cell.metric) == ("atro", "acc_tpr95")}
    assert f"the paper prints {printed['']} and {printed['8']}" in findings()
    robust = {row.attack: row.deploy_robust or 0 for row in rows("cifar10-effort")}
    doubled = [robust[f"apgd-reject{more}"] for more in ("(eta=1:10)", "100", "50x2")]
    assert f"takes {robust['apgd-reject'] - min(doubled):.1f} points from margin at most" in findings()


def test_what_is_below_never_rejecting_on_its_own_network_is_clearly_so() -> None:
    below = [row for row in victims_at("worst-case").values() if own_gain(row) < 0]
    assert [row.rejector for row in sorted(below, key=own_gain)] == ["kd", "gda", "coupled", "vim", "gda*", "lid"]
    assert all((gain_of(row).high or 0) < 0 for row in below)
    assert own_gain(at("GDA")) < -3 < own_gain(at("coupled"))


def test_refusing_at_random() -> None:
    """5 % of all inputs are refused; an attacked copy has its own draw, or the attacker tries until it is accepted."""
    right, both = (at("never-reject", "clean", "").acc_all or 0), (at("never-reject").deploy_joint or 0)
    fresh, tried = 0.95 * (both + 0.05 * (right - both)), 0.95 * both
    said = f"at random, clean and attacked ones independently, has {fresh:.2f}. If the attacker may try until an image"
    assert f"{said} is accepted, it is {tried:.2f}. KD and GDA are below both." in findings()
    assert (at("GDA").deploy_joint or 0) < tried


def test_on_rrs_network_confidence_is_ahead_at_a_strict_threshold() -> None:
    own, plain = (scores()[all_but_note(at(name))].scores() for name in ("RR", "rr(score=con)"))
    kept = np.array([0.9, 0.8])

    def apart(chosen: Any) -> Any:
        one, other = (
            joint_where_kept(_drawn(found.clean, chosen), found.certainty[chosen], found.correct[chosen], kept)
            for found in (own, plain)
        )
        return one - other

    rng = np.random.default_rng(0)
    draws = np.array([apart(rng.integers(10_000, size=10_000)) for _ in range(1000)])
    (low, lowest), (high, highest) = np.percentile(draws, (2.5, 97.5), axis=0)
    assert low < 0 < high, "level"
    value = apart(np.arange(10_000))[1]
    assert f"R-Con less confidence is {value:+.2f} [{lowest:+.2f}, {highest:+.2f}]" in findings()


def _drawn(clean: CleanScores, chosen: Any) -> CleanScores:
    return clean._replace(certainty=clean.certainty[chosen], correct=clean.correct[chosen], folds=clean.folds[chosen])


def test_carl_and_snet_on_their_own_networks() -> None:
    plain = [f"{at(name).acc_all:.2f}" for name in ("CARL", "SNet", "never-reject")]
    blind = at("CARL", "pgd100")
    gains, seems = [own_gain(at(name)) for name in ("CARL", "SNet")], own_gain(blind)
    for said in (
        f"on their own networks, {gains[0]:.2f} and {gains[1]:.2f}, but these are weaker than PGD-AT's",
        f"they have {plain[0]} and {plain[1]} at the worst case, PGD-AT {plain[2]}.",
        f"CARL seems to gain {seems:.2f} ({blind.deploy_joint:.2f}; without rejection {blind.acc_all:.2f})",
    ):
        assert said in text("results/README.md"), said
    assert f"without any rejection these have {plain[1]}, {plain[0]} and {at('ATRO').acc_all:.2f}." in findings()


def test_the_sentences_of_the_readme() -> None:
    worst, blind = (
        {name: f"{own_gain(at(name, attack)):.2f}" for name in ("margin", "confidence", "RR")}
        for attack in ("worst-case", "pgd100")
    )
    value, low, high = (float(part) for part in less("RR", "confidence"))
    apart = gains_apart(at("RR"), at("confidence")).replace("[", "points (").replace(", ", " to ").replace("]", ")")
    margin = gain_of(at("margin"))
    weaker = (at("never-reject").acc_all or 0) - (at("RR").acc_all or 0)
    for said in (
        f"confidence gains {blind['confidence']} points of joint under PGD-100 and {worst['confidence']} at the worst",
        f"case. RR gains {blind['RR']} and {worst['RR']} on its own network.",
        f"RR's gain less confidence's is {apart}.",
        f"so its joint is {-value:.2f} lower ({-high:.2f} to {-low:.2f}; one training each)",
        f"gains {worst['margin']} points ({margin.low:.2f} to {margin.high:.2f})",
        f"plain confidence gains {worst['confidence']} points over never rejecting.",
        f"gains {worst['RR']} on its own network, which is {weaker:.2f} weaker.",
        f"needs no training, gains {worst['margin']}.",
    ):
        assert said in text("README.md"), said


def test_what_the_page_on_metrics_says_of_cross_fitting() -> None:
    found = {name: under_pgd100x10(*victim(name)) for name in ("confidence", "RR", "EBD", "SNet")}
    widths = [(row.deploy_robust_high or 0) - (row.deploy_robust_low or 0) for row in found.values()]
    lead = paired_difference(found["RR"], found["confidence"], "deploy_robust", scores())
    assert lead is not None
    said = f"{min(widths):.1f} to {max(widths):.1f} points wide, and RR leads by {lead.value:.1f}"
    assert f"{said} [{lead.low:.1f}, {lead.high:.1f}]." in text("docs/metrics.md")


def under_pgd100x10(trained_as: str, rejector: str) -> ResultRow:
    wanted = (trained_as, rejector, "pgd100x10", "8/255", "paper")
    (row,) = [row for row in rows() if (row.trained_as, row.rejector, row.attack, row.eps, row.preset) == wanted]
    return row


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


def test_pgd10_at_l2_on_the_rejectors_of_features_is_as_said() -> None:
    names = ("kd", "lid", "gda", "gda*", "gmm")
    few = {
        row.rejector: f"{row.acc_tpr95:.2f}"
        for row in rows("cifar10-steps")
        if (row.attack, row.norm, row.n) == ("pgd10", "l2", 1000)
    }
    of_table = [
        cell for cell in cells_of("table2") if (cell.at, cell.norm, cell.metric) == ("pgd-at", "l2", "acc_tpr95")
    ]
    column = {cell.rejector: cell.value for cell in of_table}
    columns = ", ".join(column[name] for name in names[:-1]) + f" and {column['gmm']}"
    listed = ", ".join(f"{name.upper()} {few[name]}" for name in names[:-1]) + f" and GMM {few['gmm']}"
    whole = on_all("pgd-at", "l2", "128/255", "pgd10")
    easy = f"confidence has {few['confidence']} there and {whole.acc_tpr95:.2f} on all"
    said = f"leaves {listed} at TPR-95, where the column says {columns}. These images are easy: {easy}."
    assert said in text("results/README.md")
    numbers = ", ".join(few[name] for name in names[:-1]) + f" and {few['gmm']}"
    assert f"GDA* and GMM {numbers} where the column says {columns};" in text("rrbench/paper/footnotes.toml")


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
