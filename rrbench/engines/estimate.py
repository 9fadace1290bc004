"""Estimates the cost of a plan before it runs: gradient evaluations, and time on this device."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, cast

from rrbench.compute.devices import describe
from rrbench.engines.trial import gradients_per_second
from rrbench.errors import UseError, no_exit, reason
from rrbench.measuring.answers import has_answers
from rrbench.measuring.materials import Materials
from rrbench.measuring.runner import Runner
from rrbench.names import Choice
from rrbench.numbers import counted, duration
from rrbench.planning.cells import Cell, Given, Plan, Training, attack_key, cell_key
from rrbench.planning.units import Unit, wall_seconds
from rrbench.plugins.registry import build, table
from rrbench.protocols import Attack, DataSource, Framework, Rejector
from rrbench.rows.row import ResultRow
from rrbench.rows.tables import render

Pair = tuple[Choice, Choice]  # a network and its data set: trainings that share both are equally fast


class Rates(NamedTuple):
    """Gradients per second."""

    attack: float  # rows in the work folder overrule this rate
    training: float  # of all trainings side by side together, the choice of epoch included
    exact: float  # of attacks that look for the smallest distortion: forward in float32, backward in tf32
    network: str = ""  # whose rates these are, if they are not known well
    remark: str = ""  # why a time from these rates may be far off

    def seconds(self, cell: Cell) -> float:
        """Return how long a cell's attack takes."""
        attack = build(Attack, cell.attack)
        is_exact = not attack.needs_budget and not attack.certifies
        # Blind attacks ask a network without looks.
        looks = _asked(cell.rejector, build(Rejector, cell.rejector), "gradients_per_look") if attack.is_adaptive else 0
        return attack_gradients(cell) * (1 + looks) / (self.exact if is_exact else self.attack)


# Measured by `rrbench bench` on two aarch64 cores (cpu, large networks with batches of 512) and on one H200 (cuda).
RATES = {
    ("small-cnn", "cpu"): Rates(12_800, 5_300, 12_800),
    ("resnet18", "cpu"): Rates(25, 25, 25),
    ("wrn34-10", "cpu"): Rates(3, 3, 3),
    ("resnet18", "cuda"): Rates(209_000, 136_000, 16_000),
    ("wrn34-10", "cuda"): Rates(17_300, 13_600, 1_000),  # on single batches, one training alone
}


def describe_plan(plan: Plan, runner: Runner, workers: Sequence[int] = ()) -> str:
    """Describe cells, shared and finished work, gradients and time; also the time with each count of `workers`."""
    materials = runner.materials
    sources = {training: materials.source(training) for training in plan.trainings()}
    rates = _rates(plan.cells, materials)
    lines, seen, seconds, total = [], set(), 0.0, 0
    for training, source in sources.items():
        gradients = 0 if source.is_there else training_gradients(training)
        total += gradients
        seconds += gradients / rates[_pair_of(training)].training
        state = "shipped" if source.is_shipped else "there" if source.is_there else "to be trained"
        lines.append(["checkpoint", training.trained_as, str(training.dataset), "", f"{gradients:,}", state])
    described = dict(zip(plan.cells, materials.described(plan.cells), strict=True))
    left = {cell: None for cell, told in described.items() if materials.store.measured(cell_key(told)) is None}
    costly = costly_cells(list(left), materials)
    for cell, told in described.items():
        key = attack_key(told)
        state = "done" if cell not in left else "shared" if key in seen else "to be run"
        is_stored = has_answers(materials.store, key)
        moving = costly.get(cell, []) if state == "to be run" else []
        gradients = sum(map(attack_gradients, moving))
        seen.add(key)
        total += gradients
        seconds += sum(map(rates[_pair_of(cell.training)].seconds, moving))
        lines.append(
            [
                f"{cell.training.trained_as} {cell.rejector}",
                str(cell.attack),
                cell.shown_budget,
                str(cell.seed),
                f"{gradients:,}",
                "attack stored" if is_stored and state == "to be run" else state,
            ]
        )
    shown = render(["what", "attack or name", "budget or data", "seed", "gradients", "state"], lines, "text")
    shared = sum(line[-1] == "shared" for line in lines)
    return (
        "\n".join([shown, *(f"left out: {line}" for line in plan.dropped)])
        + f"\n\n{counted(len(plan.cells), 'cell')} on {counted(len(sources), 'checkpoint')}, "
        + f"{shared} of them {'shares' if shared == 1 else 'share'} an attack already run"
        + f"\n{total:,} gradient evaluations, about {duration(seconds)} on {describe(materials.device)}"
        + "".join(f"\n{line}" for line in _with_workers(plan, runner, workers, rates))
        + "".join(f"\nthis is an estimate: {remark}" for remark in _remarks(rates.values()))
    )


def costly_cells(cells: Sequence[Cell], materials: Materials) -> dict[Cell, list[Cell]]:
    """Map each cell to the cells whose attacks must run for it.

    These are the cell itself or, for a transfer, the cell on the other network; for an ensemble also its members that
    are neither stored nor among `cells`. A cell is left out if its attack is stored or runs for an earlier cell.
    """
    found, keys = dict[Cell, list[Cell]](), list(map(attack_key, materials.described(cells)))
    planned, begun = frozenset(keys), set[str]()
    for cell, key in zip(cells, keys, strict=True):
        moving = [cell]
        is_there = key in begun or has_answers(materials.store, key)
        if cell.moved_on is not None and not is_there:
            begun.add(key)
            moving = [cell.member(*cell.members)]
            key = materials.attack_key(*moving)
            is_there = key in begun or has_answers(materials.store, key, with_images=True)
        if not is_there:
            begun.add(key)
            members = [] if cell.moved_on else [cell.member(choice) for choice in cell.members]
            found[cell] = moving + [member for member in members if not _is_at_hand(member, planned, materials)]
    return found


def _is_at_hand(member: Cell, planned: Collection[str], materials: Materials) -> bool:
    """Tell whether an ensemble need not run this member itself."""
    key = materials.attack_key(member)
    return key in planned or has_answers(materials.store, key, with_images=True)


def _with_workers(plan: Plan, runner: Runner, workers: Sequence[int], rates: Mapping[Pair, Rates]) -> list[str]:
    units = runner.units(plan) if workers else []
    seconds = seconds_of(units, runner.materials, rates)
    times = {count: duration(wall_seconds(units, seconds, count)) for count in workers}
    return [f"about {time} with {counted(count, 'worker')}" for count, time in times.items()]


def seconds_of(units: Sequence[Unit], materials: Materials, rates: Mapping[Pair, Rates] | None = None) -> list[float]:
    """Estimate how long each unit takes one worker; only gradients count. Without `rates` no network is tried."""
    if rates is None:
        rates = _rates((cell for unit in units for cell in unit.cells), materials, may_try=False)
    costly = costly_cells([unit.cells[0] for unit in units if not unit.is_training], materials)
    return [_seconds(unit, rates[_pair_of(unit.training)], costly) for unit in units]


def _seconds(unit: Unit, rates: Rates, costly: Mapping[Cell, Sequence[Cell]]) -> float:
    if unit.is_training:
        return training_gradients(unit.training) / rates.training
    return sum(map(rates.seconds, costly.get(unit.cells[0], ())))


def training_gradients(training: Training) -> int:
    """Count a training's gradient evaluations, the choice of epoch included."""
    info = build(DataSource, training.dataset).info
    step = _asked(training.framework, build(Framework, training.framework), "gradients_per_image")
    judge = _asked(training.chooser, build(Attack, training.chooser), "gradients_per_image", info.classes)
    judged = info.test_size if training.recipe.choose_on == "test" else info.calibration_size
    return training.recipe.epochs * (info.train_size * step + judged * judge)


def attack_gradients(cell: Cell) -> int:
    """Count an attack's gradient evaluations, as rows count them: without those inside a rejector's looks."""
    info = build(DataSource, cell.dataset).info
    size = cell.sample.size(info.test_size)
    return size * _asked(cell.attack, build(Attack, cell.attack), "gradients_per_image", info.classes)


def _asked(choice: Choice, plugin: object, count: str, *facts: int) -> int:
    """Ask a plugin for its cost; if it fails, refuse it in one line."""
    try:
        with no_exit():
            return cast(int, getattr(plugin, count)(*facts))
    except Exception as error:  # whatever a plugin raises
        raise UseError(f"{choice}: {count}: {reason(error)}") from None


def known_rates(network: str, kind: str) -> Rates:
    """Return the measured rates of a network on `cpu` or `cuda`; a network without rates counts as a ResNet-18."""
    return RATES.get((network, kind), RATES["resnet18", kind])


def _pair_of(training: Training) -> Pair:
    return training.network, training.dataset


def _rates(cells: Iterable[Cell], materials: Materials, *, may_try: bool = True) -> dict[Pair, Rates]:
    found = dict[Pair, Rates]()
    for cell in cells:
        for training in cell.trainings:
            if _pair_of(training) not in found:
                found[_pair_of(training)] = _rates_of(training, cell.rejector, materials, may_try=may_try)
    return found


def _remarks(found: Iterable[Rates]) -> list[str]:
    networks: dict[str, dict[str, None]] = {}
    for each in found:
        if each.remark:
            networks.setdefault(each.remark, {})[each.network] = None
    return [f"{', '.join(names)} {'was' if len(names) == 1 else 'were'} {remark}" for remark, names in networks.items()]


def _rates_of(training: Training, rejector: Choice, materials: Materials, *, may_try: bool) -> Rates:
    """Return the rates of a network; one that RATES does not have may be tried on a few images."""
    name, kind = training.network.name, _device_kind(materials)
    if (name, kind) in RATES:
        return rates_here(name, materials)
    if own := _median_speed(materials, lambda row: _is_of(row, training)):
        return Rates(own, own, own)
    known = known_rates(name, kind)
    if not may_try:
        return known
    shown = training.trained_as if isinstance(training, Given) else str(training.network)
    tried = partial(gradients_per_second, training, rejector, materials.device, materials.precision)
    fast = tried(is_exact=False)
    exact = fast if materials.precision == "fp32" else tried(is_exact=True)
    if fast is None or exact is None:
        return known._replace(network=shown, remark="counted as a ResNet-18, for timing failed")
    return Rates(fast, fast, exact, shown, "timed on a few images, without an attack")


def _is_of(row: ResultRow, training: Training) -> bool:
    """Tell whether a row measured this network; many given networks share the name of their class."""
    if isinstance(training, Given):
        return row.checkpoint_sha256.startswith(training.key)
    return row.network.startswith(training.network.name)


def rates_here(network: str, materials: Materials) -> Rates:
    """Return the rates on this device: for attacks the median of the work folder's rows; else those of RATES."""
    own = _median_speed(materials, lambda row: row.network.startswith(network))
    known = known_rates(network, _device_kind(materials))
    return known._replace(attack=own) if own else known


def _device_kind(materials: Materials) -> str:
    return "cuda" if materials.device.type == "cuda" else "cpu"


def _median_speed(materials: Materials, is_of: Callable[[ResultRow], bool]) -> float | None:
    """Return the median speed of the work folder's attacks on a network on this device; None without any."""
    device = describe(materials.device)
    rows = [record.row for record, _ in materials.store.cells() if is_of(record.row)]
    speeds = sorted(speed for row in rows if row.device == device and (speed := _speed(row)))
    return speeds[len(speeds) // 2] if speeds else None


def _speed(row: ResultRow) -> float | None:
    if not (row.gradients and row.seconds and row.n):
        return None
    rejector = cast(type[Rejector] | None, table("rejector").classes.get(row.rejector.partition("(")[0]))
    if rejector is not None and rejector.has_look():  # its looks are in its seconds, but not in its gradients
        return None
    return row.gradients * row.n / row.seconds
