"""The page: one HTML file that needs no network, no server and, except for sorting, no JavaScript."""

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

from rrbench.numbers import counted
from rrbench.report.document import document
from rrbench.report.gallery import show_gallery
from rrbench.report.html import Safe, element, joined
from rrbench.report.measurements import (
    distances_table,
    failures_table,
    meanings,
    notes_list,
    rows_table,
    weakest_table,
)
from rrbench.report.origin import show_commands, show_manifest
from rrbench.report.plots import show_plots
from rrbench.report.results import Results, Setting
from rrbench.report.standings import Standing, find_standings, is_worst_case, main_budget
from rrbench.report.summary import COVERS, are_blind, details, untried, verdict
from rrbench.rows.paired import ScoreFiles, scored_rows
from rrbench.rows.row import ResultRow
from rrbench.rows.tables import budget_text

FILES = (("rrbench.report", "page.css"), ("rrbench.report", "page.js"))
QUESTION = "How well do these defences reject what they would get wrong, when somebody attacks them?"
RANKS = (
    "Ranked by the first number, under attacks that all ranked rejectors met; who met fewer has no rank, and who knows "
    "the labels has none."
)
UNFOLDED = 60  # rows: with more, every budget is folded
GALLERIES = 12  # rejectors whose images are shown
LISTED = 6  # the summary lists so many rejectors; more are folded away
NO_ATTACK = "No attack with a budget was measured: nothing is said here of robustness."
BLIND = (
    "No attack here looked at the rejector. Attacks that do (adaptive, selective-pgd, worst-case) usually do more "
    "harm, so these numbers flatter."
)


class Section(NamedTuple):
    """A part of the page with a link in the navigation."""

    anchor: str
    heading: str
    content: Safe


def build_page(results: Results) -> str:
    """Return the whole file."""
    settings = dict(sorted(results.settings().items(), key=lambda item: _flattery(item[1])))
    standings = {setting: find_standings(rows) for setting, rows in settings.items()}
    scores = scored_rows(results.source) if results.has_cells else {}
    anchors = {setting: f"plot{index}" for index, setting in enumerate(settings)}

    def each(show: Callable[[Setting], Safe]) -> Safe:
        """Show every setting in turn, under its own heading if there are several."""
        parts = [joined([element("h3", str(one)), show(one)]) if len(settings) > 1 else show(one) for one in settings]
        return joined(parts) if parts else element("p", "Nothing was measured.")

    sections = [
        Section("summary", "Summary", each(lambda one: _summary(settings[one], standings[one], scores))),
        Section("weakest", "Each rejector at its weakest", each(lambda one: _weakest(standings[one]))),
        Section("plots", "Plots", each(lambda one: show_plots(results, settings[one], standings[one], anchors[one]))),
        Section("gallery", "Gallery", _gallery(results, standings, each)),
        Section("results", "All results", joined([each(lambda one: _rows(one, settings[one])), _columns(results)])),
        Section("doubts", "What to doubt", _doubts(results)),
        Section("manifest", "Manifest", show_manifest(results)),
        Section("reproduce", "Reproduce", show_commands(results)),
    ]
    return _document(results, sections)


def _flattery(rows: Sequence[ResultRow]) -> int:
    """Sort key of settings: first those with the worst case, then those whose attacks look at the rejector."""
    return 0 if any(map(is_worst_case, rows)) else 1 if not are_blind(rows) else 2


def _document(results: Results, sections: Sequence[Section]) -> str:
    links = [element("a", section.heading, href=f"#{section.anchor}") for section in sections]
    header = element(
        "header",
        element("h1", "rrbench report"),
        element("p", QUESTION, class_="question"),
        element("p", _facts(results), class_="aside"),
        element("nav", *links, aria_label="Sections"),
    )
    body = [
        element("section", element("h2", section.heading), section.content, id=section.anchor) for section in sections
    ]
    return document(f"rrbench report: {results.source.name}", header, joined(body), FILES)


def _facts(results: Results) -> str:
    """Say in a line what the page is about."""
    measured = results.measured
    places = dict.fromkeys(f"{row.dataset} ({row.network})" for row in results.rows)
    failed = f", {len(results.failed)} failed" if results.failed else ""
    gradients = sum((row.gradients or 0) * (row.n or 0) for row in measured)
    cost = f"; {gradients:,.0f} gradient evaluations" if gradients else ""
    return f"{', '.join(places)}: {counted(len(measured), 'cell')} measured{failed}{cost}."


def _summary(
    rows: Sequence[ResultRow], standings: Sequence[Standing], scores: Mapping[tuple[object, ...], ScoreFiles]
) -> Safe:
    if not standings:
        return element("p", NO_ATTACK)
    budget = main_budget(standings)
    chosen = [each for each in standings if each.budget == budget]
    parts = [element("p", *verdict(chosen, scores), class_="lead")]
    listed = element("ul", *[element("li", details(each)) for each in chosen], class_="findings")
    summary = element("summary", f"Each of the {len(chosen)} rejectors in words")
    parts.append(element("details", summary, listed) if len(chosen) > LISTED else listed)
    if are_blind(rows):
        parts.append(element("p", BLIND, class_="warning"))
    parts.append(element("p", COVERS, class_="aside"))
    return joined(parts)


def _weakest(standings: Sequence[Standing]) -> Safe:
    """Show a table for each budget; the one that the summary speaks of comes first, the others are folded."""
    if not standings:
        return element("p", NO_ATTACK)
    groups: dict[str, list[Standing]] = {}
    for standing in standings:
        groups.setdefault(standing.budget, []).append(standing)
    first = main_budget(standings)
    shown = {budget: joined([weakest_table(group), untried(group)]) for budget, group in groups.items()}
    others = [
        _folded(f"{budget}: {counted(len(groups[budget]), 'rejector')}", content)
        for budget, content in shown.items()
        if budget != first
    ]
    return joined([element("p", RANKS, class_="aside"), shown[first], *others])


def _folded(title: str, content: Safe) -> Safe:
    return element("details", element("summary", title), content)


def _gallery(
    results: Results, standings: Mapping[Setting, Sequence[Standing]], each: Callable[[Callable[[Setting], Safe]], Safe]
) -> Safe:
    if not results.has_cells:
        return element("p", "A CSV holds no images: give the work folder that made it, and they are shown here.")

    room = GALLERIES  # images take most of the page

    def show(one: Setting) -> Safe:
        nonlocal room
        found = standings[one]
        chosen = [each for each in found if each.budget == main_budget(found)] if found else []
        shown, room = chosen[:room], max(room - len(chosen), 0)
        left = len(chosen) - len(shown)
        more = "more rejector" if shown else "rejector"
        rest = element("p", f"{counted(left, more)} without pictures, to keep the page small.") if left else ""
        return joined([show_gallery(results, shown), rest])

    text = (
        "The first test inputs, chosen by nobody, each under the attack that harms its rejector most, and what the "
        "attack changed, magnified: grey is no change. Confidence is the network's largest probability; certainty is "
        "the rejector's score. Wrong and answered is the harm."
    )
    return joined([element("p", text, class_="aside"), each(show)])


def _rows(setting: Setting, rows: Sequence[ResultRow]) -> Safe:
    """Show a table for each budget; many are folded away."""
    groups: dict[str, list[ResultRow]] = {}
    for row in sorted(rows, key=lambda row: (bool(row.norm), row.norm != "linf", Fraction(row.eps or 0))):
        groups.setdefault(budget_text(row) or "clean", []).append(row)
    tables = {budget: rows_table(group, f"{setting}, {budget}") for budget, group in groups.items()}
    is_long = len(rows) > UNFOLDED
    parts = [
        _folded(f"{budget}: {counted(len(groups[budget]), 'row')}", content) if is_long else content
        for budget, content in tables.items()
    ]
    distances = [row for row in rows if row.distance is not None]
    return joined([*parts, *([distances_table(distances)] if distances else [])])


def _columns(results: Results) -> Safe:
    text = "Click a heading to sort. In brackets: 95 % intervals over test inputs, not over trainings."
    failed = [failures_table(results.failed)] if results.failed else []
    return joined([*failed, element("p", text, class_="aside"), meanings()])


def _doubts(results: Results) -> Safe:
    if not any(row.note for row in results.measured):
        return element("p", "No row carries a note: no attack looked broken or too weak beside the others.")
    text = "Notes that the rows carry: signs that an attack was broken or too weak, and what else a reader must know."
    return joined([element("p", text, class_="aside"), notes_list(results.measured)])
