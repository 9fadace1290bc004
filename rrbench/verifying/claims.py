"""Compares a row's claims with other evidence: its cell's keys, its network's header, a zoo's index, its files.

Each function yields one line for each contradiction.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from numpy.typing import NDArray

from rrbench.errors import UseError
from rrbench.files.checkpoints import Checkpoint
from rrbench.names import Call, Choice, is_of, long_form, parse, resolve, spelled, split_list
from rrbench.planning.cells import (
    attack_key,
    called,
    cell_key,
    clean_key,
    data_key,
    header_key,
    identity,
    read_budget,
    training_key,
)
from rrbench.plugins.config import load_preset, preset_names
from rrbench.plugins.own import OWN
from rrbench.plugins.registry import build, choose, expand, plain_rejector, restore, table
from rrbench.plugins.revisions import installed, write
from rrbench.protocols import DataSource, Rejector
from rrbench.rows.record import CellRecord
from rrbench.rows.scores import ATTACKS, CLEAN, DATA, SCORES, file_in, files_in
from rrbench.verifying.restored import is_given
from rrbench.zoo import Entry

STATED = ("rejector", "attack", "framework")  # a row states their settings
COUNTED = ("gradients", "forwards")  # costs in an attack's file; its seconds belong to the first run
OF_ATTACK = ("key", *COUNTED)  # what `miscounted` reads of an attack's file


def miskeyed(record: CellRecord) -> Iterator[str]:
    """Say where the keys or the row do not follow from the cell's description."""
    row, cell = record.row, record.cell
    if record.key != cell_key(cell):
        yield f"its key is not that of what was measured, {cell_key(cell)}"
    if record.attack != attack_key(cell):
        yield f"its attack's key is not that of what was measured, {attack_key(cell)}"
    for name in ("seed", "precision", "preset"):
        if getattr(row, name) != cell[name]:
            yield f"its row says {name} {getattr(row, name)}, and {cell[name]} was measured"
    if row.revisions != write(cell["revisions"]):
        yield f"its row says the revisions {row.revisions}, and {write(cell['revisions'])} were measured"
    keys = {ATTACKS: record.attack, CLEAN: clean_key(cell), DATA: data_key(cell), SCORES: record.key}
    for folder, key in keys.items() if row.status == "ok" else ():
        # A second run of an attack with another result is stored beside the first.
        for name in files_in(record.files, folder):
            if not re.fullmatch(rf"{folder}/{key}(-[0-9a-f]{{8}})?\.npz", name):
                yield f"it names {name}, which is not its own"


def given_objects(record: CellRecord) -> dict[str, str]:
    """Return the names, by kind, of what a cell needs and was given in Python: it cannot be found again."""
    kinds = ("network", "dataset", "rejector", "attack")
    return {kind: str(record.cell[kind][1].get("name")) for kind in kinds if record.cell[kind][0] == OWN}


def misnamed(record: CellRecord) -> Iterator[str]:
    """Say where a row, which tables print, names something else than the measured cell."""
    stated = json.loads(record.row.settings)
    yield from _misnamed_plugins(record, stated)
    yield from _misnamed_training(record)
    yield from _misnamed_members(stated.get("members", []), record.cell["members"])
    yield from _misnamed_inputs(record, stated)
    yield from _misnamed_budget(record)


def _misnamed_plugins(record: CellRecord, stated: Mapping[str, Any]) -> Iterator[str]:
    """Compare names and settings of plugins."""
    # A given network was trained by no framework, and its row has the name of its class: `replay` compares that.
    for kind in ("dataset", "rejector", "attack") if is_given(record) else ("dataset", "network", *STATED):
        text, saved = getattr(record.row, kind), record.cell[kind]
        if not _means(kind, text, saved):
            yield f"its row says {kind} {text}, and {saved[0]} with other settings was measured"
            continue
        if kind in STATED and stated.get(kind) != saved[1]:
            yield f"its row states other settings of its {kind} than were measured"
        yield from _misspelt(kind, text, saved)


def _misnamed_training(record: CellRecord) -> Iterator[str]:
    """Compare the names that say how the network was trained."""
    row = record.row
    if is_given(record):
        name = record.cell["network"][1].get("name")
        if row.framework or (name and row.trained_as != name):
            yield f"its row says framework {row.framework} and trained_as {row.trained_as}, and {name} was given"
    elif row.trained_as != row.framework and not row.trained_as.startswith(f"{row.framework}+"):
        yield f"its row says framework {row.framework} and trained_as {row.trained_as}"
    else:
        yield from _misspelt_training(record)


def _misnamed_members(named: Sequence[str], measured: Sequence[Sequence[Any]]) -> Iterator[str]:
    """Compare the attacks of an ensemble."""
    if len(named) != len(measured) or not all(map(_is_attack, named, measured)):
        names = ", ".join(member[0] for member in measured) or "none"
        yield f"its row names the members {', '.join(map(str, named)) or 'none'}, and {names} were measured"
        return
    for text, member in zip(named, measured, strict=True):
        yield from _misspelt("attack", text, member)


def _misnamed_inputs(record: CellRecord, stated: Mapping[str, Any]) -> Iterator[str]:
    """Compare which test inputs were measured, and where they were moved."""
    cell = record.cell
    if stated.get("every") != cell.get("every"):
        yield f"its row says every {stated.get('every')}, and {cell.get('every')} was measured"
    if ("moved_on" in stated) != ("moved_on" in cell):
        yield "its row and its cell do not agree on whether images were moved on another network"
    elif "moved_on" in cell:
        by, members = cell["attack"][1]["by"], cell["members"]
        if len(members) != 1 or not _is_attack(by, members[0]):
            yield f"its images were moved by another attack than it names, {by}"


def _misnamed_budget(record: CellRecord) -> Iterator[str]:
    row, budget = record.row, read_budget(record.cell["budget"])
    radius = "" if budget is None or budget.radius is None else str(budget.radius)
    if (row.norm, row.eps) != (budget.norm if budget else "", radius):
        told = f"{row.norm}:{row.eps}".strip(":")
        yield f"its row says the budget {told or 'none'}, and {record.cell['budget'] or 'none'} was measured"


def _means(kind: str, text: str, saved: Sequence[Any]) -> bool:
    """Tell whether a text names a plugin with these settings; settings that it leaves out match."""
    name, values = saved
    if name == OWN:
        return bool(text == values.get("name"))
    classes, call = table(kind).classes, _call(kind, text)
    if call.name != name:
        return False
    if not is_of(classes[name], values):
        return True
    return bool(identity(resolve(kind, call, classes, values))[1] == values)


def _call(kind: str, text: str) -> Call:
    return long_form(kind, parse(expand(kind, text)), table(kind).classes)


def _misspelt(kind: str, text: str, saved: Sequence[Any]) -> Iterator[str]:
    """Say how rrbench spells the name of a measured plugin, if a row spells it otherwise: tables compare names."""
    (name, values), classes = saved, table(kind).classes
    if name != OWN and is_of(classes[name], values):
        canonical = spelled(kind, _call(kind, text), classes, values)
        if text != canonical:
            yield f"its row says {kind} {text}, which is spelled {canonical}"


def _misspelt_training(record: CellRecord) -> Iterator[str]:
    """Say how rrbench calls a network, if a row spells otherwise what a rejector did to the weights."""
    row = record.row
    text = row.trained_as.removeprefix(row.framework).removeprefix("+")
    try:
        key = training_key(build(Rejector, _trainer(text)), parse(text).name) if text else ""
    except UseError:  # that rejector is not installed here, or in another version
        return
    canonical = called(row.framework, record.cell["framework"][0], key)
    if row.trained_as != canonical:
        yield f"its row says trained_as {row.trained_as}, which is spelled {canonical}"


def _trainer(text: str) -> Choice:
    """Return the rejector that a training key names."""
    return resolve("rejector", parse(text), table("rejector").classes, {})


def _is_attack(text: str, saved: Sequence[Any]) -> bool:
    return _means("attack", text, saved)


def miscounted(record: CellRecord, attack: Mapping[str, NDArray[Any]]) -> Iterator[str]:
    """Say where an attack's file belongs to another attack, or its cost differs from the row's."""
    if "key" in attack and str(attack["key"]) != record.attack:
        yield f"{file_in(record.files, ATTACKS)} says that it is of another attack, {attack['key']}"
    for name in COUNTED:
        stated = getattr(record.row, name)
        if name in attack and stated != round(float(attack[name]), 3):
            yield f"its row says {stated} {name} an image, and its attack's file {float(attack[name]):.3f}"


def mislisted(record: CellRecord, entry: Entry) -> Iterator[str]:
    """Say where a row contradicts a zoo's index about its network, which the index lists as not kept."""
    if record.checkpoint != entry.sha256[: len(record.checkpoint)]:  # not named by its hash: trained in the work folder
        yield from _miskept(record, entry.key)
    yield from mistrained(record, asdict(entry))


def _miskept(record: CellRecord, key: str) -> Iterator[str]:
    """Say where a work folder stores a checkpoint under a key that is not its training's."""
    if record.checkpoint not in (key, f"{key}-{record.row.precision}"):
        yield f"its checkpoint is kept as {record.checkpoint}, and the key of its training is {key}"


def mistrained(record: CellRecord, header: Mapping[str, Any]) -> Iterator[str]:
    """Say where a row contradicts its network's header, or the index in place of the header."""
    row, cell = record.row, record.cell
    if not _is_called(row.trained_as, header):
        yield _contradiction("trained_as", row.trained_as, header.get("trained_as"))
    if row.seed != header.get("seed"):
        yield _contradiction("seed", row.seed, header.get("seed"))
    for kind, saved in (("dataset", cell["trained_on"]), ("network", cell["network"])):
        told = header.get(kind)
        # An index holds names, a header all settings.
        if not (_means(kind, told, saved) if isinstance(told, str) else told == saved):
            yield _contradiction(kind, saved[0], told)
    here, there = cell["framework"], header.get("framework", cell["framework"])
    if here != there:
        is_named_alike = here[0] == there[0]
        yield _contradiction("framework", here if is_named_alike else here[0], there if is_named_alike else there[0])
    if json.loads(row.settings).get("recipe") != header.get("recipe"):
        yield "its row states another recipe than its network was trained by"


def _is_called(text: str, header: Mapping[str, Any]) -> bool:
    """Tell whether a network may be called so: settings that a file gave its framework may also be typed, in the name.

    An index, which has no settings, must have the very name.
    """
    if "framework" not in header:
        return bool(text == header.get("trained_as"))
    framework, made = next(iter(split_list(text, at="+")), ""), header["framework"]
    try:
        is_meant = _means("framework", framework, made)
    except UseError:
        return False
    return is_meant and text == called(framework, made[0], header["training_key"])


def elsewhere(record: CellRecord, header: Mapping[str, Any]) -> CellRecord:
    """Return the record of a transfer's attack on the other network, which has this header."""
    cell = {name: part for name, part in record.cell.items() if name != "moved_on"}
    rejector = _trainer(header["training_key"] or plain_rejector())
    cell |= {
        "checkpoint": record.cell["moved_on"],
        "framework": header["framework"],
        "rejector": identity(rejector),
        "is_adaptive": False,
        "attack": cell["members"][0],
        "members": [],
    }
    # A transfer's row describes the measured network; only its attack's settings describe the other one.
    row = replace(
        record.row,
        trained_as=record.cell["attack"][1]["source"],
        settings=json.dumps({"recipe": header.get("recipe")}),
    )
    return replace(record, cell=cell, row=row, attack=attack_key(cell))


def mistaken_source(record: CellRecord, checkpoint: Checkpoint, *, is_own: bool) -> Iterator[str]:
    """Say where a row contradicts the checkpoint of the network on which its images were moved."""
    other, header = elsewhere(record, checkpoint.facts), checkpoint.facts
    if checkpoint.sha256 != json.loads(record.row.settings)["moved_on"]:
        yield f"checkpoint {checkpoint.path.name} does not have the row's SHA-256"
    if not is_own and not checkpoint.sha256.startswith(other.checkpoint):
        yield f"checkpoint {checkpoint.path.name} is not {other.checkpoint}"
    yield from mistrained(other, header)
    yield from misheaded(other, header, is_own=is_own)


def _contradiction(name: str, here: object, there: object) -> str:
    return f"its row says {name} {here}, and the network was trained as {there}"


def misheaded(record: CellRecord, header: Mapping[str, Any], *, is_own: bool) -> Iterator[str]:
    """Say where a checkpoint's key does not follow from its header, or a work folder stores it under another key."""
    key = str(header.get("key"))
    if is_own:
        yield from _miskept(record, key)
    if key != header_key(header) and not _is_revised(header):
        yield f"the key of its checkpoint does not follow from its header, which gives {header_key(header)}"
    if len(header.get("log", ())) != header["recipe"]["epochs"]:
        yield f"its checkpoint has a log of {len(header.get('log', ()))} epochs, and a recipe of another number"


def _is_revised(header: Mapping[str, Any]) -> bool:
    """Tell whether a plugin behind a training has a later revision here; revisions are part of the key."""
    plugins = {kind: header[kind][0] for kind in ("dataset", "network", "framework")}
    plugins["attack"] = header["chooser"][0]
    if header["training_key"]:
        plugins["rejector"] = parse(header["training_key"]).name
    return any(installed(kind, name) != 1 for kind, name in plugins.items()) or _is_own_data(header["dataset"])


def _is_own_data(saved: Sequence[Any]) -> bool:
    """Tell whether a data set is a user's own: a hash of it is part of the key, and the header does not hold it."""
    try:
        return bool(build(DataSource, restore("dataset", saved)).content())
    except UseError:  # its files are not here
        return True


def of_preset(record: CellRecord) -> str:
    """Say why a row's preset cannot be believed: its settings come neither from its names nor from the preset."""
    row, cell = record.row, record.cell
    if row.preset not in preset_names():
        return f"preset {row.preset} is not known here"
    config = load_preset(row.preset)
    step = {"step": config.step(cell["dataset"][0], row.norm)} if row.norm else {}
    for kind, home, extra in (("attack", cell["dataset"][0], step), ("rejector", cell["trained_on"][0], {})):
        text = getattr(row, kind)
        if cell[kind][0] == OWN:
            continue
        if identity(choose(kind, expand(kind, text), config, home, extra))[1] != cell[kind][1]:
            return f"preset {row.preset} does not give {text} its settings: measured with a --config, or not so"
    return ""


def not_installed(record: CellRecord) -> str:
    """Name a plugin that a cell needs and that is not installed here."""
    for kind in ("dataset", "network", *STATED):
        name = record.cell[kind][0]
        if name not in table(kind).classes and name != OWN and not (kind == "framework" and is_given(record)):
            return f"{kind} {name} is not installed here"
    return ""
