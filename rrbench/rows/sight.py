"""Which rows come from an attack that looks at the rejector, and which are blind. Imports no torch and no plugin."""

from rrbench.errors import UseError
from rrbench.plugins.catalogue import plugin_name, plugins
from rrbench.rows.row import ResultRow, stated


def looks(row: ResultRow) -> bool | None:
    """Tell whether a row's attack looks at the rejector; None: it is not installed here, and the row does not say."""
    settings = stated(row)
    said = settings.get("is_adaptive")  # of somebody's own attack, of which there is no card
    if isinstance(said, bool):
        return said
    if "members" in settings:
        return "moved_on" not in settings  # a transfer is of one blind attack
    try:
        card = plugins("attack").get(plugin_name("attack", row.attack))
    except UseError:
        return None
    answer = card.attributes.get("is_adaptive", "") if card else ""
    if answer in ("true", "false"):
        return answer == "true"
    # By a setting, such as goal=adaptive.
    setting, _, value = answer.partition("=")
    chosen = settings.get("attack")
    if not value or not isinstance(chosen, dict) or setting not in chosen:
        return None
    return bool(chosen[setting] == value)


def keeps_answers(row: ResultRow) -> bool:
    """Tell whether a row's attack changes no prediction, and harms by certainty alone."""
    try:
        card = plugins("attack").get(plugin_name("attack", row.attack))
    except UseError:
        return False
    return card is not None and card.attributes.get("keeps_answers") == "true"


def is_blind(row: ResultRow) -> bool:
    """Tell whether a row's attack is known not to look at the rejector: it flatters, and that is no doubt."""
    return bool(row.norm) and looks(row) is False


def attack_text(row: ResultRow) -> str:
    """Name a row's attack for people, with a mark on a blind one."""
    return f"{row.attack} (blind)" if is_blind(row) else row.attack
