"""Finds or makes what measuring needs: data, checkpoints, networks with their weights."""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rrbench import zoo
from rrbench.compute.devices import Precision, place
from rrbench.compute.looking import with_looks
from rrbench.datasets.check import check_batch, fingerprint
from rrbench.datasets.given import WORDS, OwnData
from rrbench.errors import CellError, StoppedError, UseError
from rrbench.files.checkpoints import Checkpoint, load_weights, read_checkpoint, read_trained, unpack_bits
from rrbench.files.disk import Files
from rrbench.files.headers import read_facts
from rrbench.lending import kept, surroundings_kept
from rrbench.measuring.measured_network import MeasuredNetwork, changes_itself
from rrbench.measuring.store import Store
from rrbench.names import Choice
from rrbench.networks.wrapped import check_network
from rrbench.planning.cells import Cell, Given, Plan, Training, all_trainings, attack_key, cell_key, identity
from rrbench.planning.deadline import Deadline
from rrbench.plugins.own import OWN
from rrbench.plugins.registry import build, is_ours
from rrbench.progress import Report, Silent
from rrbench.protocols import Batch, DataSource, NetworkSource, Rejector, Split
from rrbench.training.train import build_network, describe_training, epochs


@dataclass(frozen=True)
class Source:
    """The place of a training's checkpoint, also before it is trained."""

    path: Path
    key: str  # part of the keys of all work on the checkpoint
    is_given: bool = False  # the network brings its weights, and there is no file

    @property
    def is_there(self) -> bool:
        """Whether nothing needs to be trained."""
        return self.is_given or self.path.is_file()

    @property
    def is_shipped(self) -> bool:
        """Whether the checkpoint is one of those inside the package."""
        return self.path.parent == zoo.EMBEDDED


@dataclass
class Materials:
    """Finds data and checkpoints, and trains missing checkpoints."""

    store: Store
    device: torch.device
    precision: Precision
    roots: tuple[Path, ...]
    use_large_zoo: bool = False
    retrain: bool = False
    report: Report = field(default_factory=Silent)
    deadline: Deadline = field(default_factory=Deadline)
    _data: dict[tuple[Choice, Split], Batch] = field(default_factory=dict)
    _firsts: dict[tuple[Choice, Split, int], Batch] = field(default_factory=dict)

    def bare(self) -> "Materials":
        """Return a copy to send to another process: without data, silent, with absolute paths."""
        store, roots = Store(self.store.root.resolve()), tuple(root.resolve() for root in self.roots)
        return replace(self, store=store, roots=roots, report=Silent(), _data={}, _firsts={})

    def source(self, training: Training) -> Source:
        """Find a training's checkpoint: in the zoo of `--zoo`, in the embedded zoo, else in this work folder."""
        if isinstance(training, Given):
            return Source(Path(training.trained_as), training.key, is_given=True)
        if self.use_large_zoo:
            found = _in_zoo(training)
            if found is None:
                there = made_otherwise(zoo.large_zoo(), training, "there")
                shipped = made_otherwise(zoo.EMBEDDED, training, "that ships with rrbench")
                raise UseError("; ".join(filter(None, (*absences([training]), there, shipped))))
            return Source(found[0], found[1].sha256[:24])
        embedded = None if self.retrain else zoo.find(training.key)
        if embedded is not None:
            return Source(embedded[0], embedded[1].sha256[:24])
        key = self._training_key(training)
        return Source(self.store.checkpoint_files(key).chosen, key)

    def described(self, cells: Sequence[Cell]) -> list[dict[str, Any]]:
        """Return everything that decides the cells' rows, their checkpoints' keys included."""
        keys = {training: self.source(training).key for training in dict.fromkeys(all_trainings(cells))}
        return [
            cell.describe(keys[cell.training], self.precision, keys[cell.moved_on] if cell.moved_on else "")
            for cell in cells
        ]

    def keys(self, cells: Sequence[Cell]) -> list[str]:
        """Return the keys of the cells' rows."""
        return [cell_key(described) for described in self.described(cells)]

    def attack_key(self, cell: Cell) -> str:
        """Return the key of a cell's attack."""
        return attack_key(*self.described([cell]))

    def moved_on(self, cell: Cell) -> str:
        """Return the SHA-256 of the checkpoint that a transfer's images are moved on; empty for other attacks."""
        if cell.moved_on is None:
            return ""
        return self.read(cell.moved_on, self.source(cell.moved_on)).sha256

    def is_available(self, training: Training) -> bool:
        """Tell whether a checkpoint of exactly this recipe is there or can be trained; with `--zoo` none is trained."""
        if not self.use_large_zoo:
            return True
        found = _in_zoo(training)
        return found is not None and _is_of(found[1], training)

    def _training_key(self, training: Training) -> str:
        """Return the key of a checkpoint trained here: weights depend on the precision; a zoo's are used in any."""
        return training.key if self.precision == "fp32" else f"{training.key}-{self.precision}"

    def checkpoint(self, training: Training) -> Checkpoint:
        """Return a training's checkpoint; train it first if it is missing. Training stops when the time is over."""
        source = self.source(training)
        key = self._training_key(training)
        files = self.store.checkpoint_files(key)
        if source.path == files.chosen and not source.path.is_file():
            with self.store.lock(f"train-{key}", self.report, self.deadline):
                if not source.path.is_file():
                    self._train(training, files)
        return self.read(training, source)

    def begun(self, training: Training) -> str:
        """Say how far an unfinished training is; empty if it is finished or has not begun."""
        files = self.store.checkpoint_files(self._training_key(training))
        if self.source(training).path.is_file() or not files.resume.is_file():
            return ""
        done = read_checkpoint(files.resume).facts.get("epoch")
        return f"{training.trained_as} up to epoch {done} of {training.recipe.epochs}"

    def _train(self, training: Training, files: Files) -> None:
        """Train to the end of the recipe, or to the first epoch that ends after the deadline."""
        count = training.recipe.epochs
        if self.deadline.is_over():
            raise StoppedError(f"training {training.trained_as}")
        going = epochs(
            training,
            lambda split: self.data(training.dataset, split),
            files,
            device=self.device,
            precision=self.precision,
            report=self.report,
        )
        with surroundings_kept(), closing(going):
            for epoch in going:
                done = int(epoch.record["epoch"])
                if done < count and self.deadline.is_over():
                    raise StoppedError(f"training {training.trained_as} (epoch {done} of {count} is done)")

    def read(self, training: Training, source: Source) -> Checkpoint:
        """Read a checkpoint; a checkpoint from a zoo must have the SHA-256 of its index. A given network has none."""
        if isinstance(training, Given):
            return Checkpoint(source.path, build(NetworkSource, training.network).content(), {}, {})
        checkpoint = read_trained(source.path)
        is_own = source.path == self.store.checkpoint_files(self._training_key(training)).chosen
        if not is_own and not checkpoint.sha256.startswith(source.key):
            raise UseError(f"checkpoint {source.path} does not have the SHA-256 of its index: damaged or replaced")
        return checkpoint

    def first(self, dataset: Choice, split: Split, count: int | None) -> Batch:
        """Return the first inputs of a split; of a large folder only these are read."""
        source = build(DataSource, dataset)
        if count is None or not source.has_load_first():
            return self.data(dataset, split).at(slice(count))
        if (dataset, split, count) not in self._firsts:
            batch = source.load_first(split, self.roots, count)
            check_batch(batch, source.info.classes, _what(dataset, split))
            self._firsts[dataset, split, count] = batch.to(self.device)
        return self._firsts[dataset, split, count]

    def test(self, cell: Cell) -> Batch:
        """Return the inputs that a cell measures."""
        return cell.sample.of(self.first(cell.dataset, "test", cell.sample.limit))

    def data(self, dataset: Choice, split: Split) -> Batch:
        """Return a split of a data set on the device, loaded and checked once."""
        if (dataset, split) not in self._data:
            source = build(DataSource, dataset)
            batch = source.load(split, self.roots)
            check_batch(batch, source.info.classes, _what(dataset, split))
            # A copy: a data source may change its arrays later.
            self._data[dataset, split] = batch.to(self.device).copied()
        return self._data[dataset, split]

    def measured_network(self, cell: Cell, checkpoint: Checkpoint) -> MeasuredNetwork:
        """Build a cell's network and put the checkpoint's weights into it."""
        network = with_looks(self._network(cell, checkpoint), build(Rejector, cell.rejector))
        is_given, source = isinstance(cell.training, Given), build(DataSource, cell.dataset)
        there = source.splits_for(is_given=is_given)
        is_ours_alone = is_ours("dataset", cell.dataset.name) and not source.content()
        return MeasuredNetwork(
            network,
            lambda split: self._split(cell, split) if split in there else None,
            self.device,
            self.precision,
            cell.sample,
            may_have_learnt=not is_given and cell.training.dataset == cell.dataset and not is_ours_alone,
        )

    def _split(self, cell: Cell, split: Split) -> Batch:
        is_test = split == "test"
        return self.first(cell.dataset, split, cell.sample.limit) if is_test else self.data(cell.dataset, split)

    def _network(self, cell: Cell, checkpoint: Checkpoint) -> nn.Module:
        training, info = cell.training, build(DataSource, cell.training.dataset).info
        if isinstance(training, Given):
            # Not `place`: it would leave a user's network in another memory format.
            return build(NetworkSource, training.network).build(info, build(Rejector, cell.rejector)).to(self.device)
        network = build_network(training, info, build(Rejector, training.rejector))
        try:
            load_weights(network, checkpoint)
        except UseError as error:  # concerns this network and head: other checkpoints' cells go on
            raise CellError(str(error)) from None
        return place(network, self.device)

    def check_given(self, plan: Plan) -> None:
        """Refuse data that a given network cannot judge, before anything is measured or written."""
        has_several = len({cell.training.network for cell in plan.cells}) > 1
        for dataset, network in dict.fromkeys((cell.dataset, cell.training.network) for cell in plan.cells):
            source = build(NetworkSource, network)
            if not source.has_weights:
                continue
            data = build(DataSource, dataset)
            is_own = isinstance(data, OwnData)
            test = (data.load("test", ()) if is_own else self.first(dataset, "test", 2)).at(slice(2)).to(self.device)
            rejector = build(Rejector, next(cell.rejector for cell in plan.cells if cell.dataset == dataset))
            own = source.build(data.info, rejector).to(self.device)
            try:
                with kept(own, changes_itself, may_build=True):
                    classes = check_network(own, test, None, in_data=data.info.classes)
            except (CellError, UseError) as error:
                raise UseError(f"{network}: {error}" if has_several else str(error)) from None
            for split in data.splits if is_own else ():
                check_batch(data.load(split, ()), classes, WORDS[split])
            if data.info.classes > classes:
                raise UseError(
                    f"{dataset} has {data.info.classes} classes, and the network {network} has {classes} logits"
                )

    def check_inputs(self, plan: Plan) -> None:
        """Refuse a data set that gives other test inputs than those of its finished rows.

        A key knows an outsider's data set by its name and package alone. A file behind that name may have changed.
        """
        cells = [cell for cell in plan.cells if not _tells_inputs(cell.dataset)]
        if not cells:
            return
        measured: dict[str, set[str]] = {}
        for record, _ in self.store.cells():
            measured.setdefault(_inputs_of(record.cell), set()).add(record.row.data_sha256)
        asked = {_inputs_of(described): cell for described, cell in zip(self.described(cells), cells, strict=True)}
        for name, cell in asked.items():
            hashes = measured.get(name, set()) - {""}
            if hashes and fingerprint(self.test(cell)) not in hashes:
                raise UseError(
                    f"the test inputs of {cell.dataset} are others than those that {self.store.root} was measured on: "
                    "give another --out; if they are in a file, let its DataSource's content() return a hash of it"
                )


def _tells_inputs(dataset: Choice) -> bool:
    """Tell whether a key knows the inputs of a data set: ours by the name, others by a hash of their content."""
    return is_ours("dataset", dataset.name) or bool(build(DataSource, dataset).content())


def _inputs_of(cell: Mapping[str, Any]) -> str:
    """Return what decides the test inputs of a cell that `Cell.describe` describes."""
    parts = cell["dataset"], cell["limit"], cell.get("every"), cell["revisions"].get("dataset")
    return json.dumps(parts, sort_keys=True)


def _what(dataset: Choice, split: Split) -> str:
    """Name a split in a message: as the argument that gave it, or as a part of a data set."""
    return WORDS[split] if dataset.name == OWN else f"{dataset} ({split})"


def _in_zoo(training: Training) -> tuple[Path, zoo.Entry] | None:
    """Find a checkpoint in the zoo of `--zoo`, else in the embedded zoo."""
    return _find(zoo.large_zoo(), training) or _find(zoo.EMBEDDED, training)


def in_large_zoo(training: Training) -> bool:
    """Tell whether `--zoo` would find a checkpoint of exactly this recipe, the embedded zoo left out."""
    found = _find(zoo.large_zoo(), training)
    return found is not None and _is_of(found[1], training)


def _find(folder: Path, training: Training) -> tuple[Path, zoo.Entry] | None:
    """Find the checkpoint of a zoo with a training's names, settings and revisions, by its recipe or any other."""
    named, made_by = _named(folder, training), identity(training.framework)
    fitting = [
        entry for entry, facts in named if facts.get("framework") == made_by and training.is_current(entry.key, facts)
    ]
    # A file without a header that can be read is taken last of all: reading it then says what is wrong with it.
    unread = [entry for entry, facts in named if "framework" not in facts and training.is_current(entry.key, facts)]
    best = zoo.nearest(fitting or unread, _recipe(training))
    return None if best is None else (folder / best.file, best)


def _named(folder: Path, training: Training) -> list[tuple[zoo.Entry, Mapping[str, Any]]]:
    """Return a zoo's checkpoints of a training's framework and rejector, each with its header.

    The framework's settings do not count: `carl(weight=1)` may be `carl` there, if a file gave that setting.
    A file that cannot be read counts only if the index gives exactly this name.
    """
    listed = zoo.kept(folder, str(training.dataset), str(training.network), training.seed)
    headed = ((entry, read_facts(folder / entry.file)) for entry in listed)
    return [(entry, facts) for entry, facts in headed if _is_named(entry, facts, training)]


def _is_named(entry: zoo.Entry, facts: Mapping[str, Any], training: Training) -> bool:
    match facts:
        case {"framework": [name, _], "training_key": training_key}:
            return (name, training_key) == (training.framework.name, training.training_key)
    return entry.trained_as == training.trained_as


def made_otherwise(folder: Path, training: Training, where: str) -> str:
    """Say how the checkpoints of the same names in a zoo, which do not fit, were made; empty if there is none."""
    wanted, told = zoo.shown_settings(identity(training.framework)), []
    for _, facts in _named(folder, training):
        made = zoo.shown_settings(facts.get("framework"))
        differing = [f"{name}={value}" for name, value in sorted(made.items()) if wanted.get(name) != value]
        told.append(f"with {', '.join(differing)}" if differing else "by other code or on other data")
    which = f"the one {where} was" if len(told) == 1 else f"those {where} were"
    return f"{which} trained {' or '.join(sorted(set(told)))}" if told else ""


def _is_of(entry: zoo.Entry, training: Training) -> bool:
    """Tell whether an entry has a training's recipe; the embedded zoo's index has keys and no recipes."""
    return entry.key == training.key or entry.recipe == _recipe(training)


def _recipe(training: Training) -> dict[str, Any]:
    recipe = describe_training(training)["recipe"]
    assert isinstance(recipe, dict)
    return recipe


def absences(trainings: Iterable[Training], wanted: str = "") -> list[str]:
    """Say which checkpoints the zoo of `--zoo` lacks, in one line for each data set, network and seed."""
    lacking: dict[tuple[Choice, Choice, int], list[str]] = {}
    for training in trainings:
        lacking.setdefault((training.dataset, training.network, training.seed), []).append(training.trained_as)
    return [
        f"no checkpoint {', '.join(dict.fromkeys(names))} of {dataset} ({network}, seed {seed}{wanted}) "
        f"in {zoo.shown_zoo()}"
        for (dataset, network, seed), names in lacking.items()
    ]


def check_accuracy(measured: MeasuredNetwork, cell: Cell, checkpoint: Checkpoint) -> None:
    """Refuse a checkpoint that classifies differently than when it was written: data or preprocessing are wrong."""
    if "clean_correct" not in checkpoint.facts or cell.dataset != cell.training.dataset:
        return
    test = measured.test()
    correct = (measured.outputs("test").logits.argmax(1) == test.labels).cpu()
    try:
        expected = unpack_bits(checkpoint.facts["clean_correct"])[cell.sample.at][: len(correct)]
    except (ValueError, AttributeError):
        raise CellError(
            f"checkpoint {checkpoint.path.name} has a damaged header: what was right cannot be read"
        ) from None
    differ = int((correct[: len(expected)] != expected).sum())
    if len(expected) < len(correct) or differ > 1 + 0.005 * len(correct):
        raise CellError(
            f"checkpoint {checkpoint.path.name} gives {100 * float(correct.double().mean()):.2f} % clean accuracy "
            f"and {100 * float(expected.double().mean()):.2f} % was expected: wrong data or preprocessing"
        )
