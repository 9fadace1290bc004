"""Figure 4: a row for each point, which rows are preferred, and a caption that names what is less than in the paper."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from figure_cells import DIGITS, as_cifar, line, scores_of
from published import ROOT
from rrbench import api, figures
from rrbench.errors import UseError
from rrbench.figures.adaptive import OBJECTIVES, figure4
from rrbench.figures.request import FigureOptions, paper_request, paper_settings
from rrbench.figures.scored import Scored
from rrbench.rows.row import ResultRow, read_rows


@pytest.fixture(scope="module")
def drawn(folder: Path) -> Figure:
    return figures.draw("figure4", folder, DIGITS)


def test_figure_4_shows_a_row_for_each_objective_and_eta(drawn: Figure, folder: Path) -> None:
    rows = [row for row in read_rows(folder) if row.attack.startswith("adaptive")]
    panel = drawn.axes[0]
    for objective in ("ce+rcon", "ce+rr", "con+rr", "con+rcon", "con+rr(multi)"):
        curve = line(panel, objective)
        assert list(curve.get_xdata()) == [0, 1]
        for eta, value in zip((0, 1), curve.get_ydata(), strict=True):
            (row,) = [row for row in rows if f"({objective}," in row.attack and f"eta={eta}" in row.attack]
            assert value == row.acc_tpr95
    references = [item for item in panel.lines if ": pgd" in str(item.get_label())]
    assert {str(item.get_label()).partition(" ")[0] for item in references} == {"rr", "confidence", "ebd"}
    for item in references:
        rejector = str(item.get_label()).partition(" ")[0]
        blind = [row for row in read_rows(folder) if row.eps == "3/20" and row.attack in ("pgd10", "pgd3")]
        assert np.asarray(item.get_ydata())[0] == min(row.acc_tpr95 or 0 for row in blind if row.rejector == rejector)


def caption(figure: Figure) -> str:
    return figure.get_suptitle().replace("\n", " ")


GRID_OF_THE_PAPER = "0, 0.01, 0.1, 0.5, 1, 2, 5, 10, 20, 50, 100"


def test_the_caption_of_figure_4_names_what_its_rows_have_less_of(
    drawn: Figure, folder: Path, tmp_path: Path, tiny: Path
) -> None:
    def said(rows: list[ResultRow], inputs: str) -> str:
        (settings,) = {json.dumps(json.loads(row.settings)["attack"] | {"objective": "", "eta": 0}) for row in rows}
        stated = json.loads(settings)
        other = ", ".join(f"{name}={stated[name]}" for name in ("keep", "select", "step"))
        return f"{inputs}, {stated['steps']} of 500 steps, {stated['restarts']} of 10 restarts, {other}"

    rows = [row for row in read_rows(folder) if row.attack.startswith("adaptive")]
    limited = said(rows, f"{rows[0].n} of 360 test inputs")
    other = "keep=best, select=evade, step=3/200"  # the preset is quick, and a quarter of the radius is 3/80
    assert limited == f"60 of 360 test inputs, 2 of 500 steps, 1 of 10 restarts, {other}"
    lines = "horizontal lines: 60 of 360 test inputs"
    assert caption(drawn).endswith(f"; reduced: {limited}; \u03b7 0, 1 instead of {GRID_OF_THE_PAPER}; {lines}")
    out = Path(shutil.copytree(folder, tmp_path / "runs"))
    attacks = "adaptive(eta=1,steps=3,restarts=2),adaptive(eta=10,steps=3,restarts=2)"
    job = api.RunOptions("rr", attacks, config=tiny, out=out, device="cpu", every=40, retrain=True)
    tenth = [row for row in api.execute(api.prepare(job), ["a test"]) if row.attack != "clean"]
    better = said(tenth, f"{tenth[0].n} of 360 test inputs (every 40th)")
    assert better == f"9 of 360 test inputs (every 40th), 3 of 500 steps, 2 of 10 restarts, {other}"
    again = figures.draw("figure4", out, DIGITS)
    text = caption(again)
    assert text.endswith(
        f"reduced: {limited} at \u03b7 0; {better} at \u03b7 1, 10; "
        f"\u03b7 0, 1, 10 instead of {GRID_OF_THE_PAPER}; {lines}"
    )
    assert "n = 60/9" in text
    panel = again.axes[0]
    for row in tenth:
        objective, _, eta = row.attack.partition("(")[2].removesuffix(")").partition(",eta=")
        curve = line(panel, objective)
        assert dict(zip(curve.get_xdata(), curve.get_ydata(), strict=True))[float(eta)] == row.acc_tpr95


def adaptive_cell(
    cells: list[Scored], objective: str, eta: float, every: int | None = None, seed: int = 0, **own: Any
) -> Scored:
    """Return a made-up cell of Figure 4 on CIFAR-10, as in the paper but for what is given."""
    cell = next(cell for cell in cells if cell.row.attack.startswith(f"adaptive2({objective},eta=0"))
    settings: dict[str, Any] = {"steps": 500, "restarts": 10, "keep": "last", "select": "ce", "step": None} | own
    stated = dict(cell.record.cell)
    stated["attack"] = ["adaptive", {**cell.attack[1], "eta": [eta], **settings}]
    n = 10_000 // (every or 1)
    found = as_cifar(dataclasses.replace(cell, record=dataclasses.replace(cell.record, cell=stated)), "paper", None)
    described = found.record.cell | ({"every": every} if every else {})
    steps = settings["steps"]
    row = dataclasses.replace(found.row, n=n, acc_tpr95=float(steps), gradients=n * steps + seed, seed=seed)
    return dataclasses.replace(found, record=dataclasses.replace(found.record, row=row, cell=described))


def drawn_from(chosen: list[Scored]) -> Figure:
    return figure4(paper_request("figure4", Path("runs"), chosen, FigureOptions()))


def test_full_rows_of_figure_4_win_over_reduced_ones_and_its_caption_says_where(cells: list[Scored]) -> None:
    etas = paper_settings("adaptive")["eta"]
    full = [adaptive_cell(cells, name, eta) for name in OBJECTIVES for eta in etas]
    tenth = [
        adaptive_cell(cells, name, eta, every=10, steps=100, restarts=5) for name in OBJECTIVES for eta in (0.1, 1, 10)
    ]
    assert "reduced" not in caption(drawn_from([*tenth, *full]))
    short = "1,000 of 10,000 test inputs (every 10th), 100 of 500 steps, 5 of 10 restarts"
    grid = f"\u03b7 0.1, 1, 10 instead of {GRID_OF_THE_PAPER}"
    assert caption(drawn_from(tenth)).endswith(f"n = 1000, seed 0; reduced: {short}; {grid}")
    some = [cell for cell in full if cell.attack[1]["eta"] == [1]]
    for chosen in ([*tenth, *some], [*some, *tenth]):
        assert caption(drawn_from(chosen)).endswith(
            f"n = 1000/10000, seed 0; reduced: {short} at \u03b7 0.1, 10; {grid}"
        )
    one = drawn_from([*tenth, some[0]])
    assert f"reduced: {short} at \u03b7 0.1, 1 ({', '.join(OBJECTIVES[1:])}), 10; " in caption(one)
    assert list(line(one.axes[0], OBJECTIVES[0]).get_ydata()) == [100, 500, 100]
    all_inputs = [adaptive_cell(cells, name, 1, steps=499) for name in OBJECTIVES]
    fewer_inputs = [adaptive_cell(cells, name, 1, every=2) for name in OBJECTIVES]  # less exact, but the whole attack
    assert "reduced: 5,000 of 10,000 test inputs (every 2nd); " in caption(drawn_from([*all_inputs, *fewer_inputs]))


def test_figure_4_leaves_out_an_eta_that_an_objective_lacks_and_is_refused_where_no_eta_is_left(
    cells: list[Scored],
) -> None:
    tenth = [
        adaptive_cell(cells, name, eta, every=10, steps=100, restarts=5) for name in OBJECTIVES for eta in (0.1, 10)
    ]
    assert caption(drawn_from(tenth[:-1])).endswith(f"\u03b7 0.1 instead of {GRID_OF_THE_PAPER}")
    wanted = (
        r"adaptive\(eta=0.1,steps=100,restarts=5\),adaptive\(eta=10,steps=100,restarts=5\)' .* --every 10 --out runs"
    )
    with pytest.raises(UseError, match=wanted):
        drawn_from(tenth[:-2])


def test_all_points_of_figure_4_are_of_the_network_with_the_smallest_seed(cells: list[Scored]) -> None:
    """A later seed must not win by its number of gradients, which is chance where cycles are left out."""
    both = [adaptive_cell(cells, name, 1, seed=seed, steps=500 - seed) for name in OBJECTIVES for seed in (0, 1)]
    for chosen in (both, both[::-1]):
        figure = drawn_from(chosen)
        assert {float(line(figure.axes[0], name).get_ydata()[0]) for name in OBJECTIVES} == {500.0}
        assert "seed 0;" in caption(figure)


def test_figure_4_prefers_the_settings_of_the_paper_and_names_others(cells: list[Scored]) -> None:
    etas = paper_settings("adaptive")["eta"]
    own = {"keep": "best", "step": "1/100", "steps": 501}
    other, until = (
        [adaptive_cell(cells, name, eta, **given) for name in OBJECTIVES for eta in etas]
        for given in (own, {"until": "repeat", "step": "2/255"})
    )
    assert caption(drawn_from(other)).endswith("seed 0; other settings: steps=501, keep=best, step=1/100")
    for chosen in ([*other, *until], [*until, *other]):
        assert caption(drawn_from(chosen)).endswith("seed 0")


def test_a_reference_on_fewer_inputs_is_shown_only_where_none_is_on_all_and_says_so(cells: list[Scored]) -> None:
    points = [adaptive_cell(cells, name, 1) for name in OBJECTIVES]
    found = as_cifar(scores_of(cells, "pgd-at", "pgd10"), "paper", None)
    tenth = as_cifar(replaced(found, n=1000, acc_tpr95=10.0), "paper", None, every=10)
    full = replaced(found, n=10_000, acc_tpr95=20.0)
    for chosen, value, label in (
        ([tenth], 10.0, "confidence (pgd-at): pgd10, 1,000 of 10,000 test inputs (every 10th)"),
        ([tenth, full], 20.0, "confidence (pgd-at): pgd10"),
    ):
        figure = figure4(paper_request("figure4", Path("runs"), [*points, *chosen], FigureOptions()))
        assert np.asarray(line(figure.axes[0], label).get_ydata())[0] == value


def test_what_all_references_have_less_of_stands_once_in_the_caption_and_the_legend_fits(cells: list[Scored]) -> None:
    points = [adaptive_cell(cells, name, 1) for name in OBJECTIVES]
    victims = [scores_of(cells, trained_as, "pgd10") for trained_as in ("pgd-at", "pgd-at+ebd", "pgd-at+rr")]
    few = [replaced(as_cifar(each, "paper", None, every=10), n=1000, acc_tpr95=10.0) for each in victims]
    figure = figure4(paper_request("figure4", Path("runs"), [*points, *few], FigureOptions()))
    assert caption(figure).endswith("; horizontal lines: 1,000 of 10,000 test inputs (every 10th)")
    labels = {str(item.get_label()) for item in figure.axes[0].lines}
    assert labels >= {"confidence (pgd-at): pgd10", "ebd (pgd-at+ebd): pgd10", "rr (pgd-at+rr): pgd10"}
    long = replaced(few[0], attack=f"pgd10({'x' * 90})")
    for drawn in (figure, figure4(paper_request("figure4", Path("runs"), [*points, long, few[1]], FigureOptions()))):
        (legend,) = drawn.legends
        extent = legend.get_window_extent()
        assert 0 <= extent.x0 < extent.x1 <= drawn.bbox.width


def test_the_references_are_under_an_attack_that_all_of_them_met(cells: list[Scored]) -> None:
    points = [adaptive_cell(cells, name, 1) for name in OBJECTIVES]
    victims = [scores_of(cells, trained_as, "pgd10") for trained_as in ("pgd-at", "pgd-at+rr")]
    both = [replaced(as_cifar(each, "paper", None), n=10_000, acc_tpr95=20.0) for each in victims]
    stronger = replaced(both[1], attack="pgd99", acc_tpr95=10.0)  # met by RR alone
    figure = figure4(paper_request("figure4", Path("runs"), [*points, *both, stronger], FigureOptions()))
    labels = {str(item.get_label()) for item in figure.axes[0].lines if "pgd" in str(item.get_label())}
    assert labels == {"confidence (pgd-at): pgd10", "rr (pgd-at+rr): pgd10"}


def test_the_lines_of_the_published_figure_4_can_be_told_apart() -> None:
    panel = figures.draw("figure4", ROOT / "results" / "tenth", FigureOptions()).axes[0]
    # Matplotlib calls dashes of one's own "--"; only its private pattern tells them apart.
    looks = {(item.get_color(), item.get_marker(), str(item._dash_pattern)) for item in panel.lines}  # type: ignore[attr-defined]
    assert len(looks) == len(panel.lines) == 14


def replaced(cell: Scored, **values: Any) -> Scored:
    return dataclasses.replace(
        cell, record=dataclasses.replace(cell.record, row=dataclasses.replace(cell.row, **values))
    )
