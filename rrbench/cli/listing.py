"""`rrbench list`: lists the names that the command line accepts."""

from typing import Annotated

import typer

from rrbench.errors import UseError, one_line

KINDS = {
    "rejectors": "rejector",
    "attacks": "attack",
    "frameworks": "framework",
    "datasets": "dataset",
    "networks": "network",
}
BROUGHT = {"fit": "fit", "build_head": "head", "training_loss": "loss"}  # method: word shown
ONE_LINE = ("scores", "maximises", "minimises", "about")


def show(
    what: Annotated[
        str, typer.Argument(help="rejectors, attacks, datasets, networks, frameworks, presets, papers or zoo.")
    ],
) -> None:
    """List what is installed, plugins included: settings with their defaults, and where each comes from.

    Example: rrbench list rejectors
    """
    if what == "presets":
        _presets()
    elif what == "papers":
        _papers()
    elif what == "zoo":
        _zoo()
    elif what in KINDS:
        _plugins(KINDS[what])
    else:
        raise UseError(f"cannot list {what!r}; one of {', '.join([*KINDS, 'presets', 'papers', 'zoo'])}")


def _plugins(kind: str) -> None:
    from rrbench.plugins.catalogue import cards

    for card in cards(kind):
        if card.stands_for:
            print(f"{card.name}\n    the same as {card.stands_for}")
            continue
        settings = ", ".join(f"{key}={value}" if value else key for key, value in card.settings.items())
        print(f"{card.name}({settings})" if settings else card.name)
        about = next((card.attributes[key] for key in ONE_LINE if card.attributes.get(key)), "")
        facts = {
            "needs": card.attributes.get("needs", ""),
            "brings": ", ".join(word for method, word in BROUGHT.items() if method in card.methods),
            "trained with": card.attributes.get("frameworks", ""),
            "cost": card.attributes.get("cost", ""),
            "paper": card.attributes.get("paper", ""),
            "from": card.package if card.package != "rrbench" else "",
        }
        if about:
            print(f"    {about}")
        line = "; ".join(f"{key}: {value}" for key, value in facts.items() if value)
        if line:
            print(f"    {line}")


def _presets() -> None:
    from rrbench.plugins.config import load_preset, preset_names

    for name in preset_names():
        print(f"{name}\n    {load_preset(name).values.get('about', '')}")


def _papers() -> None:
    from rrbench.paper.cells import TEXT, cells_of, index
    from rrbench.rows.tables import render

    lines = [
        [entry.printed, entry.label, str(len(cells_of(entry.printed))) if entry.kind == "table" else "", entry.what]
        for entry in index()
    ]
    lines.append([TEXT, "", str(len(cells_of(TEXT))), "numbers in the paper's text"])
    print(render(["--paper", "LaTeX label", "cells", "what"], lines, "text", "arXiv 2105.14785, as printed"))


def _zoo() -> None:
    from rrbench import zoo
    from rrbench.rows.tables import render

    listed = [(folder, entry) for folder in (zoo.EMBEDDED, zoo.large_zoo()) for entry in zoo.entries(folder)]
    header = ["file", "data set", "network", "trained as", "seed", "epochs", "clean", "attacked", "sha256"]
    lines = [
        [
            entry.file or "(not kept)",
            entry.dataset,
            entry.network,
            entry.trained_as,
            str(entry.seed),
            str(entry.epochs),
            f"{entry.clean_accuracy:.2f}",
            f"{entry.robust_accuracy:.2f}",
            entry.sha256[:12],
        ]
        for _, entry in listed
    ]
    differing = zoo.differences(listed)
    if any(differing):
        header.append("trained with")
        lines = [[*line, more] for line, more in zip(lines, differing, strict=True)]
    # An index comes from others, and a terminal would obey the control codes in it.
    shown = [[one_line(cell) for cell in line] for line in lines]
    print(render(header, shown, "text") if lines else "no checkpoints")
