"""What the documents say of columns of the paper that fit other attacks or inputs is that of the published rows."""

from functools import cache
from statistics import fmean

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from findings_rows import (
    findings,
    on_all,
    text,
)
from published import ROOT, cells_in, rows
from rrbench.paper.cells import cells_of
from rrbench.paper.tabulate import Selection, paper_tables
from rrbench.rows.scores import Scores, read_scores


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
    (alone,) = (row for row in rows() if (row.rejector, row.attack) == ("carl(sign=+logit)", "clean"))
    clean_auc = next(cell.value for cell in cells_of("table2") if (cell.at, cell.metric) == ("carl", "auc"))
    assert abs((alone.acc_tpr95 or 0) - float(published[0])) < 2
    assert abs((alone.auc or 0) - float(clean_auc)) < 0.05
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
        f"TPR-95 {alone.acc_tpr95:.2f} (the paper: {published[0]}) and AUC {alone.auc:.3f} ({clean_auc}), both within",
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
        if record.row.trained_as in LINES:
            corruption = record.cell["dataset"][1]["corruption"]
            found.setdefault((record.row.trained_as, corruption), []).append(read_scores(CORRUPTED, record.files))
    return found


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
    assert {each.cell.at for each in judged if each.verdict == "within"} == {"pgd-at", "trades", "ccat"}
    within = [each for each in judged if each.verdict == "within" and each.cell.at != "ccat"]
    assert f"{len(within)} of the {len(means)} cells of PGD-AT and TRADES are within tolerance" in findings()
    paper = {
        ("+".join([cell.at, cell.rejector]).removesuffix("+confidence"), "fog"): float(cell.value)
        for cell in cells_of("table3")
        if cell.attack == "corruption:fog"
    }
    assert all(abs(pooled[key] - paper[key]) < 1 for key in fog)
    for name, values in (("mean over severities", means), ("pooled", pooled), ("the paper", paper)):
        assert f"| {name} | {' | '.join(f'{values[key]:.2f}' for key in fog)} |" in text("results/README.md")


def test_densities_that_underflow_explain_kd_with_a_narrow_kernel_and_no_other_width() -> None:
    found, unmoved = {}, []
    for folder in ("cifar100", "cifar10"):
        for record, _ in cells_in(ROOT / "results" / folder):
            row = record.row
            if row.rejector.startswith("kd") and (row.attack, row.eps) in (("clean", ""), ("pgd10", "8/255")):
                scores = read_scores(ROOT / "results" / folder, record.files)
                density = np.exp(scores.certainty.astype(np.float64)).astype(np.float32)
                tied = roc_auc_score(scores.correct, density)
                assert roc_auc_score(scores.correct, scores.certainty) == pytest.approx(row.auc, abs=1e-6)
                if row.rejector == "kd(g=10)":
                    found[row.attack] = row.auc, tied, np.mean(density == 0)
                else:
                    unmoved.append(abs(tied - row.auc) < 0.001)
    assert len(unmoved) >= 14
    assert all(unmoved)
    published = [cell.value for cell in cells_of("table10") if cell.rejector == "kd(sigma=10)"]
    (clean, tied, zeros), (attacked, tied_attacked, _) = found["clean"], found["pgd10"]
    assert abs(tied - float(published[0])) < 0.005
    assert abs(tied_attacked - float(published[1])) < 0.005
    for said in (
        f"| with the logarithm, ours | {clean:.3f} | {attacked:.3f} |",
        f"| as densities in float32 | {tied:.3f} | {tied_attacked:.3f} |",
        f"| the paper | {' | '.join(published)} |",
        f"in float32 {100 * zeros:.0f} % of the clean inputs get 0",
    ):
        assert said in text("results/README.md"), said
    for said in (
        f"in float32 {100 * zeros:.0f} % of the clean inputs then get the density 0",
        f"an AUC of {tied:.3f} on clean inputs and {tied_attacked:.3f} under PGD-10",
        f"the paper says {' and '.join(published)} and the logarithm gives {clean:.3f} and {attacked:.3f};",
    ):
        assert said in text("rrbench/paper/footnotes.toml"), said
