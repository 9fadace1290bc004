"""Figures inside the page, as SVG."""

import io
import re
from collections.abc import Callable, Sequence
from functools import partial

from matplotlib.figure import Figure

from rrbench.errors import UseError
from rrbench.figures.accuracy_budget import METRICS, by_victim, draw_accuracy_budget
from rrbench.figures.risk_coverage import draw_risk_coverage
from rrbench.figures.style import NORMS, styled
from rrbench.metrics.columns import LABELS
from rrbench.report.html import Safe, element
from rrbench.report.results import Results
from rrbench.report.standings import Standing, main_budget
from rrbench.rows.paired import NEVER
from rrbench.rows.row import ResultRow

CURVES = 8  # more cannot be told apart in one plot


def show_plots(results: Results, rows: Sequence[ResultRow], standings: Sequence[Standing], prefix: str) -> Safe:
    """Draw the plots that the rows of one setting allow, one panel each so that it fits a phone.

    `prefix` keeps the ids of several settings apart.
    """
    parts = [*_risks(results, standings, prefix), *_budgets(rows, prefix)]
    return element("div", *parts, class_="plots") if parts else element("p", "The rows do not allow any plot.")


def _risks(results: Results, standings: Sequence[Standing], prefix: str) -> list[Safe]:
    """Draw risk against coverage, clean and at the summary's budget, for the first rejectors of its ranking."""
    budget = main_budget(standings) if standings else ""
    chosen = [each for each in standings if each.budget == budget]
    first = [each for each in chosen if each.is_ranked or each.is_oracle][:CURVES]
    # The control is worth a curve wherever it ranks.
    never = [each for each in chosen if each.rejector == NEVER and each not in first]
    first = [*first[: CURVES - len(never)], *never] or chosen[:CURVES]
    attacked = [results.cells[row] for each in first if (row := each.strongest.first) in results.cells]
    clean = [results.cells[row] for each in first if each.clean and (row := each.clean.first) in results.cells]
    text = "how often an answer is wrong, against how much is answered, as the threshold moves. Lower is better."
    more = f" The first {len(first)} of {len(chosen)} rejectors." if len(chosen) > len(first) else ""
    shown = {"clean": clean, budget: attacked}
    return [
        _plot(partial(draw_risk_coverage, cells), f"Risk against coverage, {where}: {text}{more}", f"{prefix}-{index}")
        for index, (where, cells) in enumerate(shown.items())
        if cells
    ]


def _budgets(rows: Sequence[ResultRow], prefix: str) -> list[Safe]:
    """Draw accuracy against budget for each norm with several radii; one radius is no curve."""
    try:
        attack, curves = by_victim(rows, None)
    except UseError:  # no row has a budget
        return []
    swept = {key: points for key, points in curves.items() if sum(bool(row.eps) for row in points) > 1}
    parts = []
    for norm in dict.fromkeys(norm for norm, _ in swept):
        used = [row for (own, _), points in swept.items() if own == norm for row in points]
        for metric in METRICS:
            label = LABELS[metric]
            text = f"{label[0].upper()}{label[1:]} in percent against the {NORMS[norm]} radius: {attack} throughout."
            draw = partial(draw_accuracy_budget, used, attack, (metric,), rows)
            parts.append(_plot(draw, text, f"{prefix}-{norm}-{metric}"))
    return parts


def _plot(draw: Callable[[], Figure], text: str, prefix: str) -> Safe:
    try:
        picture = inline_svg(draw(), prefix, text.partition(":")[0])
    except UseError as error:  # the rows do not allow this plot
        return element("p", f"{text.partition(':')[0]}: not drawn; {error}.")
    return element("figure", element("div", picture, class_="plot"), element("figcaption", text))


def inline_svg(figure: Figure, prefix: str, label: str) -> Safe:
    """Return a figure as an element of a page: with its own ids, no header, no style that affects the page."""
    buffer = io.BytesIO()
    with styled():
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue().decode()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{prefix}-", text)
    opening = element("svg", viewBox=_view_box(text), role="img", aria_label=label).removesuffix("</svg>")
    return Safe(opening + text[text.index(">") + 1 :].strip())


def _view_box(text: str) -> str:
    found = re.search(r'viewBox="([^"]*)"', text)
    assert found is not None
    return found[1]
