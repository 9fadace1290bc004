"""The summary in sentences: what was found, its bounds, and what the bounds do not cover."""

from collections.abc import Mapping, Sequence

from rrbench.report.html import Safe, element, joined
from rrbench.report.standings import Standing
from rrbench.rows.notes import FLAT, WEAK
from rrbench.rows.paired import NEVER, ScoreFiles, paired_difference
from rrbench.rows.row import ResultRow
from rrbench.rows.sight import attack_text, is_blind

Lead = tuple[float, float, float]  # points, with the interval
NAMED = 3  # rivals that a sentence names
UNRANKED = 4  # rejectors without a rank that a sentence names
LITTLE = 80.0  # percent of clean inputs: a rejector that answers fewer has bought robustness with refusals
COVERS = (
    "Intervals are 95 % and cover the choice of test inputs, not of trainings: another training with another seed may "
    "differ by more than they show. An attack gives an upper bound: a stronger one can only lower these numbers."
)


def verdict(standings: Sequence[Standing], scores: Mapping[tuple[object, ...], ScoreFiles]) -> list[Safe]:
    """Say which rejectors are best and worst at one budget, and whether the inputs separate them by paired `scores`."""
    defences = [each for each in standings if not each.is_oracle]
    if not defences:
        return [Safe("Only an oracle, which knows the labels, was attacked: nothing is said here of a defence.")]
    ranked = sorted((each for each in defences if each.is_ranked), key=lambda each: -each.value)
    if not ranked:
        return [Safe("No attack was tried on two rejectors, so none is ranked. "), *_unranked(defences)]
    best, worst = ranked[0], ranked[-1]
    budget = joined(["At ", element("code", best.budget)])
    if best is worst:
        alone = [budget, ", ", name(best), " is the only rejector: ", measured(best), f" {meaning(best)}. "]
        return [joined(alone), *_unranked(defences)]
    sentences = [
        joined(
            [
                budget,
                f", {_by_what(best, len(ranked))}, ",
                name(best),
                " holds best: ",
                measured(best),
                f" {meaning(best)}. ",
            ]
        ),
        joined([name(worst), " is the weakest: ", measured(worst), ". "]),
    ]
    leads = {each: _lead(best, each, scores) for each in ranked[1:]}
    second = leads[ranked[1]]
    if second is not None:
        # Adding 0 turns a rounded -0.0 into 0.0.
        lead, low, high = (f"{round(each, 1) + 0.0:.1f}" for each in second)
        bounds = f"{lead} points [{low}, {high}]"
        pair = ["The lead of ", name(best), " over ", name(ranked[1]), f" on the same inputs is {bounds}. "]
        sentences.append(joined(pair))
    sentences += _beside_never_rejecting(ranked)
    near = [each for each, lead in leads.items() if _is_near(best, each, lead)]
    if not near:
        return [*sentences, Safe("These inputs tell the best one apart from all others. "), *_unranked(defences)]
    others = joined([name(each) for each in near[:NAMED]], ", ")
    more = f" and {len(near) - NAMED} more" if len(near) > NAMED else ""
    text = ["These inputs alone do not settle the order of ", name(best), " and ", others, f"{more}. "]
    return [*sentences, joined(text), *_unranked(defences)]


def _by_what(standing: Standing, count: int) -> str:
    """Say which attacks decide the ranks."""
    if len(standing.shared) == 1:
        return f"all {count} under {standing.shared[0]}"
    return f"each under the strongest of the {len(standing.shared)} attacks that all {count} met"


def _beside_never_rejecting(ranked: Sequence[Standing]) -> list[Safe]:
    """Say how many rejectors are worth less than none; another network may be weaker, whatever its rejector does."""
    sentences = []
    for never in (each for each in ranked if each.rejector == NEVER):
        others = [each for each in ranked if each.trained_as == never.trained_as and each is not never]
        if not others:
            continue
        below = sum(each.value < never.value for each in others)
        count = "none is" if not below else f"{below} of {len(others)} {'is' if below == 1 else 'are'}"
        there = ("", "") if len(others) == len(ranked) - 1 else (f" on {never.trained_as}", " there")
        sentences.append(joined(["Never rejecting has ", measured(never), f"{there[0]}: {count} below it{there[1]}. "]))
    return sentences


def _unranked(defences: Sequence[Standing]) -> list[Safe]:
    """Name those without a rank."""
    absent = [each for each in defences if not each.is_ranked]
    if not absent:
        return []
    more = f" and {len(absent) - UNRANKED} more" if len(absent) > UNRANKED else ""
    listed = joined([name(each) for each in absent[:UNRANKED]], ", ")
    return [joined(["Not ranked, as they did not meet all these attacks: ", listed, f"{more}."])]


def untried(standings: Sequence[Standing]) -> Safe:
    """Say which attacks were not tried on whom; empty if all met all."""
    whom: dict[tuple[Safe, ...], list[str]] = {}
    for attack in sorted({attack for each in standings for attack in each.untried}):
        whom.setdefault(tuple(name(each) for each in standings if attack in each.untried), []).append(attack)
    parts = []
    for names, attacks in whom.items():
        tried = [name(each) for each in standings if attacks[0] not in each.untried]
        is_rare = len(tried) < len(names)
        shown = joined([element("code", attack) for attack in attacks], ", ")
        parts.append(joined([shown, " only on " if is_rare else " not on ", joined(tried if is_rare else names, ", ")]))
    return element("p", "Tried ", joined(parts, "; "), ".", class_="aside") if parts else Safe("")


def _lead(best: Standing, other: Standing, scores: Mapping[tuple[object, ...], ScoreFiles]) -> Lead | None:
    """Return the best rejector's lead with its paired interval; None if the inputs cannot be paired."""
    if len(best.strongest.rows) > 1 or len(other.strongest.rows) > 1:
        return None
    difference = paired_difference(best.strongest.first, other.strongest.first, best.metric, dict(scores))
    if difference is None or difference.low is None or difference.high is None:
        return None
    return difference.value, difference.low, difference.high


def _is_near(best: Standing, other: Standing, lead: Lead | None) -> bool:
    """Tell whether another sample of inputs might swap the two: by their paired difference, else by overlap."""
    return lead[1] <= 0 if lead is not None else other.interval[1] >= best.interval[0]


def details(standing: Standing) -> Safe:
    """Describe one rejector in a line: its strongest attack, its cost, and what makes its number doubtful."""
    attacked = standing.strongest
    tried = "the only attack" if standing.attacks == 1 else f"the strongest of {standing.attacks} attacks"
    parts: list[str] = [name(standing), ": ", measured(standing), " under "]
    parts += [element("code", attack_text(attacked.first)), f", {tried}"]
    if standing.single is not attacked:
        single = standing.single.mean(standing.metric)
        assert single is not None
        parts += [
            " (the strongest single one: ",
            element("code", attack_text(standing.single.first)),
            f", {percent(single)})",
        ]
    parts.append(".")
    if standing.harder is not None:
        less = standing.harder.mean(standing.metric)
        assert less is not None
        harder = element("code", attack_text(standing.harder.first))
        parts += [" Not for its rank, as not all met it: ", harder, f" leaves {percent(less)}."]
    before = standing.clean.mean("deploy_coverage") if standing.clean else None
    after, accuracy = attacked.mean("deploy_coverage"), attacked.mean("deploy_acc")
    if before is not None and after is not None:
        right = f", {percent(accuracy)} of these right" if accuracy is not None else ""
        parts.append(
            f" It answers {percent(before)} of the clean inputs and {percent(after)} of the attacked ones{right}."
        )
        if before < LITTLE:
            parts.append(" So few clean answers make robustness cheap.")
    if len(attacked.rows) > 1:
        values = attacked.values(standing.metric)
        parts.append(f" Mean of {len(values)} seeds, from {min(values):.1f} to {max(values):.1f}.")
    if standing.is_oracle:
        parts.append(" It is an oracle that knows the labels: a bound, no defence.")
    doubts = [note.removeprefix(WEAK) for note in attacked.notes if note.startswith(WEAK) or note.endswith(FLAT)]
    if doubts:
        parts.append(f" Doubtful: {'; '.join(doubts)}.")
    return joined(parts)


def are_blind(rows: Sequence[ResultRow]) -> bool:
    """Tell whether all attacks with a budget are known to be blind; one that is not installed may not be."""
    return all(is_blind(row) for row in rows if row.eps)


def name(standing: Standing) -> Safe:
    """Name a rejector, and its checkpoint if there is one."""
    rejector = element("b", standing.rejector)
    return joined([rejector, f" ({standing.trained_as})"]) if standing.trained_as else rejector


def meaning(standing: Standing) -> str:
    """Say what the percentage counts."""
    first = standing.strongest.first
    if standing.metric == "deploy_joint":
        return f"of {first.deploy_n} inputs are answered right when clean, and not answered wrong when attacked"
    if standing.metric == "deploy_robust":
        return f"of {first.deploy_n} inputs are not answered wrong"
    return "of the kept answers are right (95 % of the right ones kept, threshold from the attacked inputs)"


def measured(standing: Standing) -> Safe:
    """Print the value and its interval."""
    low, high = standing.interval
    return joined([element("strong", percent(standing.value)), f" [{low:.1f}, {high:.1f}]"])


def percent(value: float) -> str:
    """Print a percentage in running text."""
    return f"{value:.1f} %"
