"""Figure 7: t-SNE of the features of correctly classified training images, standard and adversarial training."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from numpy.typing import NDArray

from rrbench.figures.request import PaperRequest
from rrbench.figures.scored import Scored, provenance_text
from rrbench.figures.style import finish, legend_below, look, panels, styled
from rrbench.files.arrays import load_arrays

FRAMEWORKS = ("standard", "pgd-at")
COMPONENTS, PERPLEXITY, LEARNING_RATE, ITERATIONS = 30, 40, 20.0, 3000  # as in the authors' code


def figure7(request: PaperRequest) -> Figure:
    """Draw a panel for each framework, with a colour and marker for each class."""
    kept = {framework: _kept(request, framework) for framework in FRAMEWORKS}
    absent = [framework for framework, cell in kept.items() if cell is None]
    if absent:
        raise request.missing(
            [f"the training features of {framework}" for framework in absent],
            frameworks=absent,
            rejectors=["confidence"],
            attacks=["clean"],
            more=" --keep features",
        )
    cells = [cell for cell in kept.values() if cell is not None]
    rows = [cell.row for cell in cells]
    with styled():
        figure, axes = panels(1, len(cells), width=3.2, height=3.5)
        for panel, cell in zip(axes, cells, strict=True):
            features, labels = correct_sample(load_arrays(_path(cell)), request.options.points)
            draw_classes(panel, embed(features, ITERATIONS), labels)
            panel.set_title(f"{cell.row.trained_as}, {len(labels)} images")
        legend_below(figure, axes, columns=10)
        finish(figure, f"t-SNE of correctly classified training images, {provenance_text(rows, with_n=False)}")
    return figure


def _kept(request: PaperRequest, trained_as: str) -> Scored | None:
    """Return a cell of a checkpoint whose training features were stored."""
    return next((cell for cell in request.cells if cell.row.trained_as == trained_as and _path(cell).is_file()), None)


def _path(cell: Scored) -> Path:
    return cell.store.training_path(cell.record.checkpoint)


def correct_sample(outputs: dict[str, NDArray[Any]], points: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return features and labels of at most `points` correctly classified images, a fixed random sample."""
    correct = np.flatnonzero(outputs["prediction"] == outputs["labels"])
    chosen = np.sort(np.random.default_rng(0).permutation(correct)[:points])
    return outputs["features"][chosen], outputs["labels"][chosen]


def embed(features: NDArray[Any], iterations: int) -> NDArray[np.float64]:
    """Reduce by PCA to 30 dimensions, then by t-SNE to two."""
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    reduced = PCA(min(COMPONENTS, *features.shape), random_state=0).fit_transform(features.astype(np.float64))
    # t-SNE needs a perplexity below the number of points; only toy samples are that small.
    perplexity = min(PERPLEXITY, max(1, (len(features) - 1) // 3))
    embedding = TSNE(perplexity=perplexity, learning_rate=LEARNING_RATE, max_iter=iterations, random_state=0)
    return np.asarray(embedding.fit_transform(reduced), dtype=np.float64)


def draw_classes(panel: Axes, places: NDArray[np.float64], labels: NDArray[Any]) -> None:
    """Draw each class in its own colour and marker."""
    for index, label in enumerate(np.unique(labels)):
        style, chosen = look(index), labels == label
        panel.scatter(
            places[chosen, 0], places[chosen, 1], s=7, c=style.color, marker=style.marker, linewidths=0, alpha=0.8,
            label=str(label), rasterized=True,
        )  # fmt: skip
        # The class is also written on its most central image, for readers who cannot see the colours.
        middle = np.median(places[chosen], axis=0)
        nearest = places[chosen][np.square(places[chosen] - middle).sum(axis=1).argmin()]
        outline = [withStroke(linewidth=2, foreground="white")]
        panel.text(float(nearest[0]), float(nearest[1]), str(label), ha="center", va="center", path_effects=outline)
    panel.set(xticks=[], yticks=[], xlabel="t-SNE 1", ylabel="t-SNE 2")
