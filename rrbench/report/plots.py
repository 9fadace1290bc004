"""Figures inside the page, as SVG."""

import io
import re
from collections.abc import Callable, Sequence

from matplotlib.figure import Figure

from rrbench.errors import UseError
from rrbench.figures.accuracy_budget import draw_accuracy_budget
from rrbench.figures.risk_coverage import draw_risk_coverage
from rrbench.figures.style import styled
from rrbench.report.html import Safe, element, joined
from rrbench.report.results import Results
from rrbench.rows.row import ResultRow


def show_plots(results: Results, rows: Sequence[ResultRow], prefix: str) -> Safe:
    """Draw the plots that the rows of one setting allow; `prefix` keeps the ids of several settings apart."""
    parts: list[Safe] = []
    cells = [results.cells[row] for row in rows if row in results.cells]
    if cells:
        text = (
            "Risk against coverage: how often an answer is wrong, against how much is answered, as the threshold "
            "moves. Lower is better. Under a budget each rejector is shown under the attack that harms its curve most."
        )
        parts.append(_plot(lambda: draw_risk_coverage(cells), text, f"{prefix}-risk"))
    text = (
        "Accuracy against budget: what is left as the attack may move further. "
        "One attack throughout, so that the points compare; it need not be a rejector's strongest."
    )
    parts.append(_plot(lambda: draw_accuracy_budget(rows), text, f"{prefix}-budget"))
    return joined(parts)


def _plot(draw: Callable[[], Figure], text: str, prefix: str) -> Safe:
    try:
        picture = inline_svg(draw(), prefix, text.partition(":")[0])
    except UseError as error:  # the rows do not allow this plot
        return element("p", f"{text.partition(':')[0]}: not drawn; {error}.")
    scroll = element(
        "div", picture, class_="scroll plot", role="region", aria_label=text.partition(":")[0], tabindex="0"
    )
    return element("figure", scroll, element("figcaption", text))


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
