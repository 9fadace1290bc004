"""Tells attacks that look at the rejector from blind ones. Imports no torch and no plugin."""

from rrbench.errors import UseError
from rrbench.plugins.catalogue import plugin_name, plugins
from rrbench.rows.row import ResultRow, stated


def looks(row: ResultRow) -> bool | None:
    """Tell whether a row's attack looks at the rejector; None if it is not installed and the row does not say."""
    settings = stated(row)
    said = settings.get("is_adaptive")  # a user's own attack, which has no card, says it in the row
    if isinstance(said, bool):
        return said
    if "members" in settings:
        return "moved_on" not in settings  # a transfer has one member, a blind attack; an ensemble looks
    try:
        card = plugins("attack").get(plugin_name("attack", row.attack))
    except UseError:
        return None
    answer = card.attributes.get("is_adaptive", "") if card else ""
    if answer in ("true", "false"):
        return answer == "true"
    # The answer is a setting's value, such as goal=adaptive.
    setting, _, value = answer.partition("=")
    chosen = settings.get("attack")
    if not value or not isinstance(chosen, dict) or setting not in chosen:
        return None
    return bool(chosen[setting] == value)


def keeps_answers(row: ResultRow) -> bool:
    """Tell whether a row's attack changes no prediction, only certainties."""
    try:
        card = plugins("attack").get(plugin_name("attack", row.attack))
    except UseError:
        return False
    return card is not None and card.attributes.get("keeps_answers") == "true"


def is_blind(row: ResultRow) -> bool:
    """Tell whether a row's attack is known to be blind: such a row flatters the rejector, but is not in doubt."""
    return bool(row.norm) and looks(row) is False


def attack_text(row: ResultRow) -> str:
    """Name a row's attack for people; a blind one is marked."""
    return f"{row.attack} (blind)" if is_blind(row) else row.attack
