"""Gradients a second as bars, one for each implementation."""

from collections.abc import Sequence
from pathlib import Path

from rrbench.bench.measurement import OURS, Measurement


def draw(measurements: Sequence[Measurement], path: Path) -> None:
    """Draw the lines that have a rate; ours are dark and others light, so that they differ in grey too."""
    from matplotlib.figure import Figure

    from rrbench.figures.style import save

    rated = [each for each in measurements if each.gradients_per_second]
    names = [f"{each.what}: {each.implementation}, batch {each.batch}, {each.precision}" for each in rated]
    figure = Figure(figsize=(8, 1 + 0.32 * len(rated)), layout="constrained")
    axes = figure.subplots()
    colours = ["#0b3c5d" if each.implementation.startswith(OURS) else "#a9bcd0" for each in rated]
    bars = axes.barh(names, [each.gradients_per_second or 0.0 for each in rated], color=colours)
    axes.bar_label(bars, [f"{each.gradients_per_second:,.0f}" for each in rated], padding=3, fontsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.set_xlabel(f"gradients a second ({rated[0].device})" if rated else "gradients a second")
    axes.spines[["top", "right"]].set_visible(False)
    save(figure, path)
