"""Ready checkpoints: those inside this package (digits), and a folder of larger ones (`results/zoo`).

`index.json` beside them says for each: how it was trained, its SHA-256, the accuracy to expect, the command. It may
also list a network that was not kept: rows were measured on it, and only its hash, recipe and log are left.
"""

import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

from rrbench.errors import UseError, brief
from rrbench.files.decoding import from_json
from rrbench.files.disk import is_plain_name, read_json, write_json
from rrbench.files.headers import read_facts
from rrbench.names import show
from rrbench.plugins.catalogue import plugins
from rrbench.plugins.config import ADDED
from rrbench.rows.published import REPOSITORY, find_results

EMBEDDED = Path(__file__).resolve().parent
USUAL = Path("results/zoo")


@dataclass(frozen=True)
class Entry:
    """One checkpoint of a zoo."""

    file: str  # empty: the network was not kept
    sha256: str
    key: str  # of the training that made it
    dataset: str
    network: str
    trained_as: str
    seed: int
    epochs: int
    clean_accuracy: float
    robust_accuracy: float  # under the attack that chose the epoch, on the data that chose it
    command: str
    recipe: Mapping[str, Any] = field(default_factory=dict)
    log: Sequence[str] = ()  # a line for each epoch

    @property
    def is_kept(self) -> bool:
        """Whether the weights should exist."""
        return bool(self.file)

    @property
    def is_usual(self) -> bool:
        """Whether the recipe has none of the keys that were added to recipes later."""
        return ADDED.keys().isdisjoint(self.recipe)


def large_zoo() -> Path:
    """Return the folder of larger checkpoints: $RRBENCH_ZOO, else results/zoo, here or in the source checkout."""
    given = os.environ.get("RRBENCH_ZOO")
    return Path(given) if given else find_results(USUAL)


def zoo_prefix() -> str:
    """Return what a command with `--zoo` needs before it to be repeated: empty if that folder is the usual one.

    A manifest is published, and the folders above mean nothing elsewhere: of a path outside this folder only its name
    is written. The hashes in the rows say which networks were in it.
    """
    if not os.environ.get("RRBENCH_ZOO"):
        return ""
    folder = large_zoo()
    if folder.is_absolute():
        folder = folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else Path(folder.name)
    shown = os.fsencode(folder).decode(errors="replace")  # a manifest is UTF-8, and a path may be anything
    return "" if folder == USUAL else f"RRBENCH_ZOO={shlex.quote(shown)} "


def shown_zoo() -> str:
    """Name that folder, and where a copy of it is if it is not here."""
    folder = large_zoo()
    return str(folder) if folder.is_dir() else f"{folder} (results/zoo of {REPOSITORY} has some: set RRBENCH_ZOO to it)"


def entries(folder: Path) -> list[Entry]:
    """Read a zoo's index; a folder without one is an empty zoo."""
    path = folder / "index.json"
    if not path.is_file():
        return []
    try:
        found = [from_json(Entry, value, "an entry") for value in cast(list[object], read_json(path))]
    except TypeError as error:
        raise UseError(f"{path} is no zoo index: {error}") from None
    for entry in found:
        # A name that leads to another folder would make rrbench read other files as networks.
        if entry.is_kept and not is_plain_name(entry.file):
            raise UseError(f"{path} is no zoo index: it names {brief(entry.file)}, no file beside it")
        if not entry.is_kept and not (entry.sha256 and entry.recipe and entry.log):
            raise UseError(f"{path}: {entry.trained_as} is listed without a file, and without its hash, recipe or log")
    return found


def write_index(folder: Path, listed: Iterable[Entry]) -> None:
    """Write a zoo's index, sorted by file; networks that were not kept come last."""
    ordered = sorted(listed, key=lambda entry: (not entry.is_kept, entry.file, entry.trained_as, entry.sha256))
    write_json(folder / "index.json", [asdict(entry) for entry in ordered])


def find(key: str) -> tuple[Path, Entry] | None:
    """Find the embedded checkpoint with exactly this training key."""
    found = (entry for entry in entries(EMBEDDED) if entry.is_kept and entry.key == key)
    return next(((EMBEDDED / entry.file, entry) for entry in found), None)


def find_hash(sha256: str) -> tuple[Path, Entry] | None:
    """Find a checkpoint of either zoo by its hash: first one whose file exists, else one listed as not kept."""
    both = [(folder / entry.file, entry) for folder in (EMBEDDED, large_zoo()) for entry in entries(folder)]
    named = [(path, entry) for path, entry in both if entry.sha256 == sha256]
    there = [(path, entry) for path, entry in named if entry.is_kept and path.is_file()]
    return next(iter(there + [(path, entry) for path, entry in named if not entry.is_kept]), None)


def kept(folder: Path, dataset: str, network: str, seed: int) -> list[Entry]:
    """Return the checkpoints of a zoo for a data set, network and seed whose files exist, whatever trained them."""
    wanted = (dataset, network, seed)
    return [
        entry
        for entry in entries(folder)
        if (entry.dataset, entry.network, entry.seed) == wanted and (folder / entry.file).is_file()
    ]


def nearest(found: Iterable[Entry], recipe: Mapping[str, Any]) -> Entry | None:
    """Return the checkpoint with this recipe, else the longest training.

    Of two trainings of equal length the usual recipe is preferred: SGD, and weights that are not averaged.
    """
    return max(found, key=lambda entry: (entry.recipe == recipe, entry.epochs, entry.is_usual), default=None)


def shown_settings(framework: object) -> dict[str, str]:
    """Return all settings of a header's framework as text; one that is missing there was added later: its default."""
    match framework:
        case [str() as name, dict() as made]:
            card = plugins("framework").get(name)
            return {**(card.settings if card else {}), **{key: show(value) for key, value in made.items()}}
    return {}


def differences(listed: Sequence[tuple[Path, Entry]]) -> list[str]:
    """Say for each checkpoint what tells it from others of the same names: settings of its framework, and its recipe.

    Epochs are left out, as a line of the index shows them.
    """
    alike: dict[tuple[object, ...], list[int]] = {}
    for place, (_, entry) in enumerate(listed):
        alike.setdefault((entry.dataset, entry.network, entry.trained_as, entry.seed), []).append(place)
    found = [""] * len(listed)
    for places in alike.values():
        made = {place: _how_trained(*listed[place]) for place in places} if len(places) > 1 else {}
        names = sorted({name for settings in made.values() for name in settings} - {"epochs"})
        differing = [name for name in names if len({each[name] for each in made.values() if name in each}) > 1]
        for place, each in made.items():
            found[place] = ", ".join(f"{name}={each[name]}" for name in differing if name in each)
    return found


def _how_trained(folder: Path, entry: Entry) -> dict[str, str]:
    """Return framework settings and recipe of a checkpoint as text; a network that was not kept has only a recipe."""
    facts = read_facts(folder / entry.file) if entry.is_kept else {}
    recipe = entry.recipe or facts.get("recipe")
    told = {**ADDED, **recipe} if isinstance(recipe, Mapping) else {}
    return shown_settings(facts.get("framework")) | {name: show(value) for name, value in told.items()}
