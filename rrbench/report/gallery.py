"""Attacked images beside the clean ones and the change: each answer, its certainty, whether it would be accepted."""

import tomllib
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rrbench.errors import UseError
from rrbench.figures.scored import Scored
from rrbench.metrics.deployment import accepted_by
from rrbench.metrics.measures import classes_of
from rrbench.report.html import Safe, element, joined
from rrbench.report.picture import data_address
from rrbench.report.results import Results
from rrbench.report.standings import Standing
from rrbench.rows.row import ResultRow
from rrbench.rows.sight import attack_text

SHOWN = 16  # the first inputs of the test split, which every cell stores: nobody selected them
FEW, FEWER = 3, 8  # of more than so many rejectors only so many inputs, to keep the page small


class Answer(NamedTuple):
    """A victim's answer to one image."""

    image: NDArray[Any]  # (C, H, W)
    input: int
    label: int
    prediction: int
    confidence: float
    certainty: float
    is_accepted: bool | None  # None: no threshold was deployed

    @property
    def verdict(self) -> str:
        """Say whether the answer is right, and whether the deployed threshold accepts it."""
        is_right = "right" if self.prediction == self.label else "wrong"
        if self.is_accepted is None:
            return is_right
        return f"{is_right}, {'answered' if self.is_accepted else 'rejected'}"


def answers(cell: Scored) -> list[Answer]:
    """Return the images that a cell stores, with the answers to them."""
    scores = cell.scores
    images = cell.images[: min(SHOWN, len(scores.logits))]
    _, confidence = classes_of(scores.logits[:SHOWN])  # short folders store it rounded
    accepted = accepted_by(scores.clean, scores.certainty)
    return [
        Answer(
            image,
            int(scores.ids[index]),
            int(scores.labels[index]),
            int(scores.prediction[index]),
            float(confidence[index]),
            float(scores.certainty[index]),
            None if accepted is None else bool(accepted[index]),
        )
        for index, image in enumerate(images)
    ]


@cache
def _names() -> dict[str, list[str]]:
    # Read as a file: the room itself imports torch.
    return tomllib.loads((resources.files("rrbench") / "datasets" / "classes.toml").read_text(encoding="utf-8"))


def class_name(dataset: str, label: int) -> str:
    """Name a class; of a data set without names, by its number."""
    named = _names().get(dataset.partition("(")[0].removesuffix("-c"), [])
    return named[label] if 0 <= label < len(named) else str(label)


def show_gallery(results: Results, standings: Sequence[Standing]) -> Safe:
    """Show each rejector under the attack that harms it most; the first is unfolded."""
    parts: list[Safe] = []
    most = SHOWN if len(standings) <= FEW else FEWER
    for standing in standings:
        # An ensemble's images are stored too; the first seed represents all.
        attacked, clean = standing.strongest.first, standing.clean
        why = "no clean cell was measured beside it" if clean is None else "its images are not those of the clean cell"
        try:
            pairs = _pairs(results, standing)[:most]
        except UseError as error:  # a score file is gone or damaged; the rows are still valid
            pairs, why = [], str(error)
        threshold = (
            "" if attacked.deploy_threshold is None else f"; answered from certainty {attacked.deploy_threshold:.3g} on"
        )
        title = joined(
            [
                element("b", attacked.rejector),
                f" under {attack_text(attacked)}, {standing.budget}",
                element("span", f"{len(pairs)} inputs{threshold}", class_="aside"),
            ]
        )
        cards = [_card(before, after, attacked) for before, after in pairs]
        body = element("ul", *cards, class_="gallery") if cards else element("p", f"Not shown: {why}.")
        summary = element("summary", title)
        parts.append(Safe(f"<details{'' if parts else ' open'}>{summary}{body}</details>"))
    return joined(parts)


def _pairs(results: Results, standing: Standing) -> list[tuple[Answer, Answer]]:
    """Return (clean, attacked) for the inputs that both cells store."""
    row = standing.strongest.first
    clean = [each for each in standing.clean.rows if each.seed == row.seed] if standing.clean else []
    if not clean:
        return []
    before = {answer.input: answer for answer in answers(results.cells[clean[0]])}
    return [(before[after.input], after) for after in answers(results.cells[row]) if after.input in before]


def _card(before: Answer, after: Answer, row: ResultRow) -> Safe:
    label = class_name(row.dataset, after.label)
    title = element("p", f"input {after.input}: ", element("b", label))
    parts = [_figure(before, "clean", row.dataset), _figure(after, "attacked", row.dataset, row.attack)]
    return element("li", title, *parts, _change(before, after))


def _figure(answer: Answer, state: str, dataset: str, attack: str = "") -> Safe:
    by = f" by {attack}" if attack else ""
    label, said = (class_name(dataset, which) for which in (answer.label, answer.prediction))
    alt = f"input {answer.input} of class {label}, {state}{by}: {answer.verdict}"
    is_harm = answer.prediction != answer.label and answer.is_accepted is not False
    facts = [
        element("span", state, class_="state"),
        joined(["says ", element("b", said)]),
        f"confidence {answer.confidence:.3f}",
        f"certainty {answer.certainty:#.3g}",
        element("span", answer.verdict, class_="harm" if is_harm else "verdict"),
    ]
    return _picture(answer.image, alt, facts)


def _change(before: Answer, after: Answer) -> Safe:
    """Show what the attack changed, so magnified that the largest change is black or white."""
    image, times = magnified(after.image - before.image)
    facts = [element("span", "change", class_="state"), f"{times:.0f} times" if times else "none"]
    return _picture(image, f"what was changed in input {after.input}, magnified {times:.0f} times", facts)


def magnified(change: NDArray[Any]) -> tuple[NDArray[Any], float]:
    """Return a change as an image around grey, and how many times it is magnified; 0 if there is no change."""
    largest = float(np.abs(change).max(initial=0))
    times = 0.5 / largest if largest else 0.0
    return 0.5 + times * change, times


def _picture(image: NDArray[Any], alt: str, facts: Sequence[str]) -> Safe:
    size = {"width": str(image.shape[-1]), "height": str(image.shape[-2])}
    picture = Safe(element("img", src=data_address(image), alt=alt, **size).removesuffix("</img>"))
    return element("figure", picture, element("figcaption", *[element("span", fact) for fact in facts]))
