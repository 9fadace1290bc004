"""A sheet of pictures: one image under every corruption, at every severity."""

from pathlib import Path

from matplotlib.figure import Figure

from rrbench.datasets.cifar10_c import SEVERITIES, Corrupted
from rrbench.figures.style import panels, styled

IMAGE = 7  # a frog: it has colour and edges


def draw_sheet(kind: type[Corrupted], roots: tuple[Path, ...]) -> Figure:
    """Draw a line for each corruption, with severities 1 to 5; the clean image stands beside the first."""
    folder = kind.folder(roots)
    names = kind.present(folder)
    clean = kind.clean.read("test", roots).pixels
    index = min(IMAGE, len(clean) - 1)
    with styled():
        figure, axes = panels(len(names), SEVERITIES + 1, 0.5, 0.42)
        for line, name in enumerate(names):
            severities = range(1, SEVERITIES + 1)
            shown = [clean[index], *(kind.read(folder, name, [each]).pixels[index] for each in severities)]
            for column, pixels in enumerate(shown):
                place = axes[line * len(shown) + column]
                if column or line == 0:
                    place.imshow(pixels.transpose(1, 2, 0), interpolation="nearest")
                place.set_xticks([])
                place.set_yticks([])
                place.grid(False)
                for edge in place.spines.values():
                    edge.set_visible(False)
                if line == 0:
                    place.set_title(f"severity {column}" if column else "clean", fontsize=5)
                if column == 0:
                    place.set_ylabel(
                        name, fontsize=5, rotation=0, horizontalalignment="right", verticalalignment="center"
                    )
        figure.suptitle(f"{kind.name}: test image {index}", fontsize=6)
    return figure
