"""Every figure from a small digits run: the file exists, axes are labelled, and computed values are plotted."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import stored_scores
from figure_cells import DIGITS, NAMES, as_cifar, line, scores_of
from rrbench import figures
from rrbench.errors import UseError
from rrbench.figures import features
from rrbench.figures.accuracy_budget import by_victim, draw_accuracy_budget
from rrbench.figures.certainty import couple
from rrbench.figures.request import FigureOptions, paper_request
from rrbench.figures.risk_coverage import (
    GRID,
    POINTS,
    Curve,
    _shown,
    at_its_boldest,
    by_budget,
    curve_of,
    draw_risk_coverage,
)
from rrbench.figures.scored import Scored, Victim, victim_label
from rrbench.figures.style import finish, look, panels, save, styled, typeset
from rrbench.figures.temperature import sweep
from rrbench.metrics.measures import risk_coverage
from rrbench.rows.row import ResultRow, read_rows


@pytest.fixture(scope="module", autouse=True)
def _fewer_iterations() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(features, "ITERATIONS", 250)
        yield


@pytest.fixture(scope="module")
def drawn(folder: Path, _fewer_iterations: None) -> dict[str, Figure]:
    return {name: figures.draw(name, folder, DIGITS) for name in NAMES}


def points(panel: Axes, label: str) -> Any:
    found = next(item for item in panel.collections if item.get_label() == label)
    return np.asarray(found.get_offsets())


@pytest.mark.parametrize("name", NAMES)
def test_every_figure_can_be_written_and_its_axes_say_what_they_show(
    drawn: dict[str, Figure], name: str, tmp_path: Path
) -> None:
    figure = drawn[name]
    save(figure, tmp_path / f"{name}.png")
    figure.draw_without_rendering()  # at the resolution of the layout
    assert (tmp_path / f"{name}.png").stat().st_size > 2000
    assert figure.axes[0].get_ylabel()
    for panel in figure.axes:
        assert panel.get_xlabel()
        room = panel.get_window_extent()
        assert panel.yaxis.label.get_window_extent().height <= room.height, panel.get_ylabel()
        assert panel.xaxis.label.get_window_extent().width <= room.width, panel.get_xlabel()
        assert panel.lines or panel.collections or panel.patches
    title = figure.get_suptitle().replace("\n", " ")
    assert "digits, small-cnn, preset quick" in title
    assert "seed 0" in title


@pytest.mark.parametrize(("name", "temperatures"), [("figure1", [0]), ("figure3", [0, -1, -2, -3])])
def test_figures_1_and_3_show_who_passes_and_r_con(
    drawn: dict[str, Figure], cells: list[Scored], name: str, temperatures: list[int]
) -> None:
    scores = scores_of(cells, "pgd-at+rr", "pgd10").scores
    for panel, log2_tau in zip(drawn[name].axes, temperatures, strict=True):
        expected = couple(scores.labels, scores.logits, scores.head, 2.0**log2_tau)
        for passes, first in ((True, "passes"), (False, "filtered out")):
            for correct, second in ((True, "right"), (False, "wrong")):
                chosen = (expected.passes == passes) & (expected.correct == correct)
                both = np.stack([expected.confidence[chosen], expected.rectified[chosen]], axis=1)
                assert points(panel, f"{second}, {first}") == pytest.approx(both)
        assert f"{100 * expected.passes.mean():.1f} % pass" in panel.get_title()


def test_figure_5_at_temperature_1_is_the_row(drawn: dict[str, Figure], cells: list[Scored]) -> None:
    row = scores_of(cells, "pgd-at", "pgd10").row
    curve = line(drawn["figure5"].axes[0], "confidence")
    assert len(curve.get_xdata()) == 21
    assert curve.get_ydata()[list(curve.get_xdata()).index(0)] == pytest.approx(row.acc_tpr95)


def test_figure_5_shows_one_curve_for_right_inputs_where_both_scores_are_one(cells: list[Scored]) -> None:
    scores = scores_of(cells, "pgd-at", "pgd10").scores
    labels, logits = scores.labels, scores.logits
    confidence = sweep(labels, logits, logits.argmax(axis=1), "quantile")
    assert confidence.mean_right == pytest.approx(sweep(labels, logits, labels, "quantile").mean_right)


def test_figure_6_shows_confidence_over_xi_and_the_filter(drawn: dict[str, Figure], cells: list[Scored]) -> None:
    scores = scores_of(cells, "pgd-at+rr", "pgd10").scores
    expected = couple(scores.labels, scores.logits, scores.head, 0.5)
    both = np.stack([expected.xi, expected.confidence], axis=1)
    for panel, label, chosen in (
        (drawn["figure6"].axes[1], "right", expected.correct),
        (drawn["figure6"].axes[5], "wrong", ~expected.correct),
    ):
        assert points(panel, label) == pytest.approx(both[chosen])
        xi, bound = line(panel, "confidence = 1 / (2 - \u03be)").get_data()
        assert bound == pytest.approx(1 / (2 - xi))


def test_figure_7_shows_correctly_classified_training_images_by_class(drawn: dict[str, Figure]) -> None:
    for panel, framework in zip(drawn["figure7"].axes, ("standard", "pgd-at"), strict=True):
        assert panel.get_title() == f"{framework}, 50 images"
        assert sum(len(np.asarray(item.get_offsets())) for item in panel.collections) == 50


def test_the_sample_of_figure_7_is_right_and_repeats() -> None:
    labels = np.arange(40) % 4
    outputs = {
        "labels": labels,
        "prediction": np.where(np.arange(40) < 30, labels, -1),
        "features": np.arange(40.0)[:, None],
    }
    values, classes = features.correct_sample(outputs, 20)
    assert len(set(values[:, 0])) == 20
    assert values.max() < 30
    assert (values[:, 0] % 4 == classes).all()
    assert (features.correct_sample(outputs, 20)[0] == values).all()
    assert len(features.correct_sample(outputs, 999)[0]) == 30


def test_t_sne_keeps_far_classes_apart() -> None:
    rng = np.random.default_rng(0)
    centres = np.repeat(np.eye(40)[:3] * 50, 20, axis=0)
    places = features.embed(centres + rng.normal(size=centres.shape), iterations=250)
    distance = np.linalg.norm(places[:, None] - places[None], axis=2)
    np.fill_diagonal(distance, np.inf)
    assert (distance.argmin(axis=1) // 20 == np.arange(60) // 20).all()


def test_figure_8_shows_the_ece_of_the_rows(drawn: dict[str, Figure], cells: list[Scored]) -> None:
    for panel, attack in zip(drawn["figure8"].axes, ("clean", "pgd10"), strict=True):
        cell = scores_of(cells, "pgd-at", attack)
        assert cell.row.ece is not None
        assert panel.get_title().endswith(f"ECE {100 * cell.row.ece:.2f} %")
        bars = panel.containers[0]
        inside = sum(bar.get_height() > 0 for bar in bars)
        assert 0 < inside <= 15


def test_risk_coverage_shows_each_rejector_under_its_worst_attack(
    drawn: dict[str, Figure], cells: list[Scored]
) -> None:
    groups = by_budget(cells)
    assert list(groups) == ["", "linf:1/20", "linf:3/20"]
    for cell in groups["linf:3/20"]:
        same = [
            other.row.aurc or 0
            for other in cells
            if (other.row.trained_as, other.row.rejector, other.row.eps)
            == (cell.row.trained_as, cell.row.rejector, "3/20")
        ]
        assert cell.row.aurc == max(same)
    panel = drawn["risk-coverage"].axes[2]
    assert [item.get_label() for item in panel.lines] == [
        f"{cell.row.rejector} ({cell.row.trained_as})" for cell in groups["linf:3/20"]
    ]
    for item, cell in zip(panel.lines, groups["linf:3/20"], strict=True):
        coverage, risk = risk_coverage(*at_its_boldest(cell.scores))
        shown = coverage >= 0.05
        assert np.asarray(item.get_xdata()) == pytest.approx(100 * coverage[shown])
        assert np.asarray(item.get_ydata()) == pytest.approx(100 * risk[shown])
        assert cell.row.aurc is not None
        assert np.diff(coverage, prepend=0) @ risk >= cell.row.aurc - 1e-12  # never milder than the answers alone


def test_an_input_counts_by_the_boldest_wrong_image_that_the_attack_saw() -> None:
    """Of four inputs the second was wrong and sure on the way, though its answer is right."""
    labels, certainty = np.array([0, 0, 0, 0]), np.array([0.9, 0.2, 0.6, 0.4])
    boldest = np.array([-np.inf, 0.8, 0.7, -np.inf])
    scores = stored_scores.scores_of(np.array([0, 0, 1, 0]), labels, certainty, 0.5, boldest_certainty=boldest)
    shown, correct = at_its_boldest(scores)
    assert shown.tolist() == [0.9, 0.8, 0.7, 0.4]
    assert correct.tolist() == [True, False, False, True]


def test_the_band_holds_the_curve_nearly_everywhere(cells: list[Scored]) -> None:
    curve = curve_of(by_budget(cells, "pgd10")["linf:3/20"][0])
    at = curve.risk[np.searchsorted(curve.coverage, GRID - 1e-9)]
    assert ((curve.low <= at + 1e-12) & (at <= curve.high + 1e-12)).mean() > 0.9


def retrained(cells: list[Scored]) -> list[Scored]:
    """Return cells of other networks with the same names."""
    rows = [dataclasses.replace(cell.row, checkpoint_sha256="e" * 64) for cell in cells]
    return [
        dataclasses.replace(cell, record=dataclasses.replace(cell.record, row=row))
        for cell, row in zip(cells, rows, strict=True)
    ]


def test_two_networks_of_one_name_have_a_curve_each(cells: list[Scored]) -> None:
    own = [cell for cell in cells if cell.row.rejector == "rr"]
    both = [*own, *retrained(own)]
    mark = own[0].row.checkpoint_sha256[:8]
    (panel,) = [one for one in draw_risk_coverage(both, "pgd10").axes if "3/20" in one.get_title()]
    expected = {f"rr (pgd-at+rr, checkpoint {each})" for each in (mark, "eeeeeeee")}
    assert {str(each.get_label()) for each in panel.lines} & expected == expected
    _, curves = by_victim([cell.row for cell in both], "pgd10")
    assert {victim.mark for _, victim in curves} == {f"checkpoint {mark}", "checkpoint eeeeeeee"}
    for (_, victim), points in curves.items():
        assert {f"checkpoint {row.checkpoint_sha256[:8]}" for row in points} == {victim.mark}


def test_what_was_measured_again_is_drawn_once(cells: list[Scored]) -> None:
    rows = [cell.row for cell in cells if cell.row.rejector == "rr"]
    older = [
        dataclasses.replace(row, revisions=json.dumps(json.loads(row.revisions) | {"rejector": 0}), acc_tpr95=1.0)
        for row in rows
    ]
    assert by_victim([*older, *rows], "pgd10") == by_victim(rows, "pgd10")
    _, alone = by_victim(older, "pgd10")
    assert {row.acc_tpr95 for points in alone.values() for row in points} == {1.0}, "better an old row than none"


def test_curves_on_other_inputs_are_refused(cells: list[Scored]) -> None:
    rows = [cell.row for cell in cells]
    with pytest.raises(UseError, match="rows on different test inputs, all called digits"):
        by_victim([*rows[1:], dataclasses.replace(rows[0], data_sha256="f" * 64)], "pgd10")


def test_accuracy_against_budget_shows_the_rows_of_one_attack(drawn: dict[str, Figure], folder: Path) -> None:
    rows = read_rows(folder)
    name, curves = by_victim(rows, None)
    assert name in ("pgd10", "pgd3")
    named = [("pgd-at", "confidence"), ("pgd-at+ebd", "ebd"), ("pgd-at+rr", "rr")]
    assert {victim for _, victim in curves} == {Victim(*names, "") for names in named}
    (item,) = [one for one in drawn["accuracy-budget"].axes[1].lines if str(one.get_label()).startswith("rr ")]
    assert np.asarray(item.get_xdata()) == pytest.approx([0, 1 / 20, 3 / 20])
    for eps, value in zip(("", "1/20", "3/20"), np.asarray(item.get_ydata()), strict=True):
        attack = name if eps else "clean"
        (row,) = [row for row in rows if (row.rejector, row.attack, row.eps) == ("rr", attack, eps)]
        assert value == row.acc_tpr95
    clean = next(row for row in rows if row.rejector == "rr" and row.attack == "clean")
    assert f"clean coverage {clean.deploy_coverage:.1f} %" in str(item.get_label())


def test_one_attack_can_be_asked_for(folder: Path, cells: list[Scored]) -> None:
    assert {cell.row.attack for cell in by_budget(cells, "pgd3")["linf:3/20"]} == {"pgd3"}
    assert by_victim(read_rows(folder), "pgd3")[0] == "pgd3"
    for name in figures.OURS:
        with pytest.raises(UseError, match="unknown attack in these results: 'pgd4'; near: pgd"):
            figures.draw(name, folder, FigureOptions(attack="pgd4"))


def test_several_attacks_have_a_panel_each_in_the_order_of_their_names(folder: Path, cells: list[Scored]) -> None:
    groups = by_budget(cells, "pgd3,pgd10")
    assert list(groups) == ["", *(f"linf:{eps}, {attack}" for eps in ("1/20", "3/20") for attack in ("pgd3", "pgd10"))]
    victims = [(cell.row.trained_as, cell.row.rejector) for cell in groups["linf:3/20, pgd3"]]
    assert victims == [("pgd-at", "confidence"), ("pgd-at+ebd", "ebd"), ("pgd-at+rr", "rr")]
    assert {cell.row.attack for cell in groups["linf:3/20, pgd10"]} == {"pgd10"}
    figure = figures.draw("risk-coverage", folder, FigureOptions(attack="pgd3,pgd10", budget="linf:3/20"))
    titles = [panel.get_title() for panel in figure.axes]
    assert titles == ["clean", "\u2113\u221e 3/20, pgd3", "\u2113\u221e 3/20, pgd10"]
    assert len(figure.legends) == 1
    with pytest.raises(UseError, match="unknown attack in these results: 'pgd4'"):
        by_budget(cells, "pgd3,pgd4")
    with pytest.raises(UseError, match="accuracy-budget shows every budget"):
        figures.draw("accuracy-budget", folder, FigureOptions(budget="linf:3/20"))


def test_one_norm_can_be_asked_for(folder: Path, cells: list[Scored]) -> None:
    rows = [cell.row for cell in cells]
    rows += [dataclasses.replace(row, norm="l2") for row in rows if row.attack == "pgd3"]
    by_norm = {norm: {row.norm for row in rows if FigureOptions(norm=norm).admits(row)} for norm in ("linf", "l2")}
    assert by_norm == {"linf": {"", "linf"}, "l2": {"", "l2"}}
    for name in figures.OURS:
        with pytest.raises(UseError, match="unknown norm in these results: 'l2'; near: linf"):
            figures.draw(name, folder, FigureOptions(norm="l2"))
    with pytest.raises(UseError, match="--rejectors, --attack and --norm do not go with it"):
        figures.draw("figure5", folder, FigureOptions(norm="linf"))


def test_one_attack_throughout_is_in_the_titles_and_the_legend_is_one(cells: list[Scored]) -> None:
    figure = draw_risk_coverage(cells, "pgd3")
    assert [panel.get_title() for panel in figure.axes][-1] == "\u2113\u221e 3/20, pgd3"
    assert all(panel.get_legend() is None for panel in figure.axes)
    (legend,) = figure.legends
    names = {f"{cell.row.rejector} ({cell.row.trained_as})" for cell in by_budget(cells, "pgd3")["linf:3/20"]}
    assert names <= {text.get_text() for text in legend.get_texts()}


def test_who_was_never_attacked_so_is_not_shown_on_clean_inputs_either(cells: list[Scored]) -> None:
    some = [cell for cell in cells if cell.row.rejector != "rr" or cell.row.attack == "clean"]
    assert {cell.row.rejector for cell in by_budget(some, "pgd3")[""]} == {"confidence", "ebd"}
    clean = [cell for cell in cells if cell.row.attack == "clean"]
    assert {cell.row.rejector for cell in by_budget(clean)[""]} == {"confidence", "ebd", "rr"}


def test_where_attacks_differ_each_curve_names_its_own(cells: list[Scored]) -> None:
    mixed = [cell for cell in cells if cell.row.rejector != "rr" or cell.row.attack != "pgd10"]
    figure = draw_risk_coverage(mixed)
    assert figure.legends == []
    panel = figure.axes[-1]
    assert panel.get_title() == "\u2113\u221e 3/20"
    assert panel.get_legend() is not None
    assert [item.get_label() for item in panel.lines] == [
        f"{cell.row.rejector} ({cell.row.trained_as}): {cell.row.attack}" for cell in by_budget(mixed)["linf:3/20"]
    ]
    assert any(str(item.get_label()) == "rr (pgd-at+rr): pgd3" for item in panel.lines)


def test_radii_that_differ_by_ratios_are_spaced_by_ratios(cells: list[Scored]) -> None:
    rows = [cell.row for cell in cells if cell.row.rejector == "rr" and cell.row.attack in ("clean", "pgd10")]
    far = [dataclasses.replace(row, eps="1") for row in rows if row.eps == "3/20"]
    assert draw_accuracy_budget(rows).axes[0].get_xscale() == "linear"
    panel = draw_accuracy_budget([*rows, *far]).axes[0]
    assert panel.get_xscale() == "symlog"
    assert [label.get_text() for label in panel.get_xticklabels()][-1] == "1"


def test_rows_of_two_networks_are_not_drawn_together(cells: list[Scored]) -> None:
    row = ResultRow("digits", "other", "pgd-at", "pgd-at", "rr", "pgd10", "linf", "3/20", 0, "quick", 60)
    with pytest.raises(
        UseError, match="choose --dataset digits --network other or --dataset digits --network small-cnn"
    ):
        by_victim([row, cells[0].row], None)


def test_the_first_fifty_looks_differ_in_colour_and_without() -> None:
    looks = [look(index) for index in range(50)]
    assert len(set(looks)) == 50
    assert len({(one.linestyle, one.marker) for one in looks}) == 50


def test_an_oracle_is_called_one(cells: list[Scored]) -> None:
    assert victim_label(cells[0].row) == "confidence (pgd-at)"
    oracle = dataclasses.replace(cells[0].row, rejector="t-con", note="oracle: knows the labels")
    assert victim_label(oracle) == "t-con (pgd-at), oracle"


def test_on_cifar_only_rows_measured_as_the_paper_did_make_its_figures(cells: list[Scored]) -> None:
    cell = scores_of(cells, "pgd-at", "pgd10")
    quick, short, whole = as_cifar(cell, "quick", None), as_cifar(cell, "paper", 60), as_cifar(cell, "official", None)
    everything = [quick, short, as_cifar(cell, "paper", None, every=10), whole]
    assert list(paper_request("figure5", Path("runs"), everything, FigureOptions()).cells) == [whole]
    assert list(paper_request("figure5", Path("runs"), everything, FigureOptions(preset="quick")).cells) == [quick]
    assert list(paper_request("figure5", Path("runs"), everything, FigureOptions(budget="linf:1/20")).cells) == []
    assert list(paper_request("figure5", Path("runs"), [cell, whole], FigureOptions(dataset="digits")).cells) == [cell]


def test_a_point_that_other_rows_show_to_be_weak_is_hollow(cells: list[Scored]) -> None:
    row = scores_of(cells, "pgd-at", "pgd10").row
    outdone = dataclasses.replace(row, acc_all=90.0, acc_tpr95=91.0)
    settings = json.loads(row.settings)
    settings["attack"]["steps"] = 100
    stronger = dataclasses.replace(row, attack="pgd100", acc_all=20.0, acc_tpr95=21.0, settings=json.dumps(settings))
    for rows, expected in (([outdone], []), ([outdone, stronger], [90.0])):
        figure = draw_accuracy_budget(rows, "pgd10")
        hollow = [line for line in figure.axes[0].lines if line.get_markerfacecolor() == "white"]
        assert [float(value) for line in hollow for value in np.asarray(line.get_ydata())] == expected
        assert ("hollow" in figure.get_suptitle()) == bool(expected)


def test_labels_are_typeset_and_none_is_longer_than_its_axis(drawn: dict[str, Figure]) -> None:
    assert {panel.get_xlabel() for panel in drawn["accuracy-budget"].axes} == {"\u2113\u221e radius"}
    assert {panel.get_xlabel() for panel in drawn["figure5"].axes} == {"log\u2082 \u03c4"}
    assert {panel.get_xlabel() for panel in drawn["figure6"].axes} == {"\u03be-error"}
    assert [typeset(budget) for budget in ("linf:8/255", "l2:1/2", "l2", "")] == [
        "\u2113\u221e 8/255", "\u2113\u2082 1/2", "\u2113\u2082", "",
    ]  # fmt: skip
    with styled():
        figure, (panel,) = panels(1, 1, width=3.3, height=1.6)
        panel.set_ylabel("a label that is much longer than its axis")
        finish(figure, "a title " * 20)
    assert panel.get_ylabel().replace("\n", " ") == "a label that is much longer than its axis"
    assert panel.yaxis.label.get_window_extent().height <= panel.get_window_extent().height


def test_a_curve_of_ten_thousand_inputs_keeps_its_shape_in_few_points() -> None:
    rng = np.random.default_rng(0)
    coverage, risk = risk_coverage(rng.random(10_000), rng.random(10_000) < 0.8)
    row = ResultRow("digits", "small-cnn", "pgd-at", "pgd-at", "rr", "pgd10", "linf", "3/20", 0, "quick", 10_000)
    curve = Curve(row, coverage, risk, coverage, coverage)
    shown_coverage, shown_risk = _shown(curve)
    assert len(shown_coverage) <= POINTS + 1
    assert (shown_coverage[-1], shown_risk[-1]) == (coverage[-1], risk[-1])
    nearest = shown_risk[np.searchsorted(shown_coverage, coverage[coverage >= 0.05])]
    assert np.abs(nearest - risk[coverage >= 0.05]).max() < 0.01
