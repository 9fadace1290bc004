"""How much corruptions change the images."""

from pathlib import Path

import numpy as np

from rrbench.datasets.cifar10_c import SEVERITIES, Corrupted


def mean_changes(kind: type[Corrupted], roots: tuple[Path, ...]) -> dict[str, list[float]]:
    """Return, for each corruption that is there, the mean absolute change of a pixel at every severity, of 255."""
    folder, clean = kind.folder(roots), kind.clean.read("test", roots).pixels.astype(np.int16)
    return {
        name: [
            float(np.abs(kind.read(folder, name, [severity]).pixels - clean).mean())
            for severity in range(1, SEVERITIES + 1)
        ]
        for name in kind.present(folder)
    }
