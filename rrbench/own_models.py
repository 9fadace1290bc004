"""`rrbench.evaluate`: measures a user's own network and rejector under an attack, without plan or work folder."""

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence

import pandas as pd
import torch
from torch import Tensor, nn

from rrbench.compute.devices import find_precision
from rrbench.compute.eval_mode import mode
from rrbench.compute.looking import with_looks
from rrbench.datasets.check import check_batch
from rrbench.errors import CellError, UseError, no_exit
from rrbench.files.fingerprints import name_of, of_network, of_object
from rrbench.lending import kept
from rrbench.measuring.evaluation import begin_row, fresh_members, run_attack, scores_and_columns
from rrbench.measuring.measured_network import MeasuredNetwork, changes_itself
from rrbench.names import Choice, parse, parse_budget, settings_of
from rrbench.networks.wrapped import check_network, wrap
from rrbench.planning.cells import plain
from rrbench.planning.plan import variants
from rrbench.plugins.config import Config, load_preset
from rrbench.plugins.contract import check_class
from rrbench.plugins.registry import build, choose, expand, revision
from rrbench.plugins.revisions import revisions_beside_plugins
from rrbench.protocols import NO_BUDGET, Attack, Batch, Budget, Ensemble, MovedElsewhere, Outputs, Rejector, Split
from rrbench.rows.frames import to_frame
from rrbench.rows.weak_attacks import with_weak_notes

Data = Batch | tuple[Tensor, Tensor]


@dataclasses.dataclass
class Function(Rejector):
    """A rejector made of a plain function from Outputs to certainty."""

    needs = frozenset({"features"})  # a function cannot say which outputs it reads

    function: Callable[[Outputs], Tensor]

    def certainty(self, outputs: Outputs) -> Tensor:
        """Call the function."""
        return self.function(outputs)

    def __repr__(self) -> str:
        return getattr(self.function, "__name__", "function")


@no_exit("the network, the rejector or the attack", UseError)
def evaluate(
    network: nn.Module,
    rejector: str | Rejector | Callable[[Outputs], Tensor],
    attack: str | Attack,
    data: Data,
    *,
    budget: str | Budget | None = None,
    fit_data: Data | None = None,
    calibration_data: Data | None = None,
    seed: int = 0,
    preset: str = "quick",
    precision: str = "fp32",
) -> pd.DataFrame:
    """Measure your own network and rejector under an attack; return one row, or one per objective of `adaptive`.

    `network` takes images in [0, 1] and returns logits, (features, logits) or Outputs; its mode and its parameters'
    flags stay as they were. `rejector` is a name, a Rejector, or a function from Outputs to certainty (higher = keep).
    `data` is (images, labels). Rejectors with a fit, and adaptive attacks on certainties that are no probabilities,
    need `fit_data` (clean training inputs). `calibration_data` (clean held-out inputs) fixes the deployed threshold;
    without it, the clean inputs of `data` fix it by cross-fitting. Attacks with a budget need `budget`, such as
    "linf:8/255". An attack with several starts gives the network up to 512 rows at once (on a GPU: as many as fit),
    also if there are fewer inputs.

    >>> rrbench.evaluate(model, "confidence", "pgd100", (images, labels), budget="linf:8/255")  # doctest: +SKIP
    """
    config = load_preset(preset)
    network = wrap(network)
    # Work on the network's own device: moving a user's network would leave it moved.
    found = next((parameter.device for parameter in network.parameters()), torch.device("cpu"))
    batches = _batches(network, {"test": data, "train": fit_data, "calibration": calibration_data}, found)
    chosen, name = _rejector(rejector, config, refit=fit_data is not None)
    own = with_looks(network, chosen)
    measured = MeasuredNetwork(own, lambda split: batches[split], found, find_precision(precision, found))
    weights = of_network(network)
    rows = []
    for chosen_attack, attack_name, label in _attacks(attack, config):
        area = _budget(budget, chosen_attack, label, measured.test().images.shape[1:])
        choices = _members(config, area) if isinstance(chosen_attack, Ensemble) else []
        members = fresh_members(choices, area, seed)
        try:
            with kept(network, lambda what: f"the network's {what} was changed while {name} was measured"):
                victim = measured.victim(chosen, needs_scale=chosen_attack.is_adaptive)
                attacked = run_attack(
                    measured, victim, chosen_attack, attack_name, area, seed, lambda done: None, members
                )
                clean = measured.clean(victim.rejector)
                _, columns = scores_and_columns(
                    measured, victim, chosen_attack, area, attacked, config.metrics, seed, clean
                )
        except CellError as error:
            raise UseError(str(error)) from None
        row = begin_row(
            dataset="own data",
            network=type(_inner(network)).__name__,
            rejector=name,
            attack=label,
            budget=area if chosen_attack.norms else None,
            seed=seed,
            preset=preset,
            settings=_all_settings(chosen, chosen_attack),
            members=choices,
            revisions=_revisions(rejector, chosen, attack, chosen_attack, attack_name, choices),
            device=found,
            precision=measured.precision,
        )
        rows.append(dataclasses.replace(row, **columns, checkpoint_sha256=weights))
    return to_frame(with_weak_notes(rows))


def _batches(
    network: nn.Module, splits: Mapping[Split, Data | None], device: torch.device
) -> dict[Split, Batch | None]:
    """Return the given data as batches on the device, checked against the network and each other."""
    if splits["test"] is None:
        raise UseError("data must be (images, labels)")
    batches = {
        split: None if given is None else _batch(given, is_calibration=split == "calibration").to(device)
        for split, given in splits.items()
    }
    test = batches["test"]
    assert test is not None
    try:
        classes = _count_classes(network, test)
    except CellError as error:
        raise UseError(str(error)) from None
    for split, batch in batches.items():
        if batch is not None:
            given = {"test": "data", "train": "fit_data"}.get(split, "calibration_data")
            check_batch(batch, classes, given)
            if batch.images.shape[1:] != test.images.shape[1:]:
                shapes = f"{tuple(batch.images.shape[1:])}, and those of data {tuple(test.images.shape[1:])}"
                raise UseError(f"the images of {given} are {shapes}")
    return batches


def _inner(network: nn.Module) -> nn.Module:
    return next(network.children(), network)


def _batch(data: Data, *, is_calibration: bool) -> Batch:
    """Return inputs with ids; calibration inputs get negative ids, so that none is taken for a test input."""
    if isinstance(data, Batch):
        return data
    if not isinstance(data, tuple | list) or len(data) != 2:
        raise UseError("data must be (images, labels)")
    images, labels = data
    if not isinstance(images, Tensor) or not isinstance(labels, Tensor):
        raise UseError("data must be (images, labels), both torch tensors")
    ids = torch.arange(len(labels))
    return Batch(
        images, labels.long() if not labels.is_floating_point() else labels, -1 - ids if is_calibration else ids
    )


def _count_classes(network: nn.Module, test: Batch) -> int:
    """Return the number of logits; 1 for images of a wrong shape, which `check_batch` refuses later."""
    if test.images.dim() != 4 or not len(test.images):
        return 1
    with kept(network, changes_itself):
        check_network(network, test.at(slice(2)), None)
    with mode(network, "eval"), kept(network, changes_itself), torch.no_grad():
        return int(network(test.images[:2].clone()).logits.shape[1])


def _settings(plugin: Rejector | Attack) -> dict[str, object]:
    """Return a plugin's settings as JSON values; a value that JSON cannot hold becomes text."""
    values = {key: plain(getattr(plugin, key)) for key in settings_of(type(plugin))}
    return {
        key: value if isinstance(value, str | int | float | list | None) else name_of(value)
        for key, value in values.items()
    }


def _all_settings(rejector: Rejector, attack: Attack) -> dict[str, object]:
    """Return the settings that a row states."""
    found: dict[str, object] = {"rejector": _settings(rejector), "attack": _settings(attack)}
    found["is_adaptive"] = attack.is_adaptive  # the row must say it: the attack may not be installed
    return found


def _revisions(
    rejector: object,
    chosen: Rejector,
    attack: object,
    chosen_attack: Attack,
    attack_name: str,
    members: Sequence[Choice],
) -> dict[str, object]:
    """Return the revisions that decide a row; for an object instead of a name, a hash of its code and values."""
    found: dict[str, object] = {
        "attack": revision("attack", attack_name) if isinstance(attack, str) else of_object(attack),
        "rejector": of_object(rejector),
    }
    if isinstance(rejector, str):
        found["rejector"] = revision("rejector", parse(expand("rejector", rejector)).name)
    return found | revisions_beside_plugins(
        is_moving=bool(chosen_attack.norms),
        is_scaled=chosen_attack.is_adaptive and not chosen.is_probability,
        members=[revision("attack", member.name) for member in members],
        packages=[*chosen_attack.packages, *(name for member in members for name in build(Attack, member).packages)],
    )


def _rejector(
    given: str | Rejector | Callable[[Outputs], Tensor], config: Config, *, refit: bool
) -> tuple[Rejector, str]:
    """Return the rejector and its name; a user's Rejector is copied, and fitted again if `refit`."""
    if isinstance(given, Rejector):
        _check_class(given)
        own = copy.copy(given)
        own.fitted = {} if refit else dict(given.fitted)
        return own, repr(given)
    if isinstance(given, type):
        raise UseError(
            f"a rejector is a name, a Rejector or a function, not the class {given.__name__}: make one of it"
        )
    if isinstance(given, str):
        if "@" in given:
            raise UseError(f"{given!r}: @ names a training, and this model is trained already")
        choice = choose("rejector", expand("rejector", given).partition("@")[0], config, "")
        return build(Rejector, choice), str(choice)
    if callable(given):
        rejector = Function(given)
        return rejector, repr(rejector)
    raise UseError(f"a rejector is a name, a Rejector or a function, not {type(given).__name__}")


def _check_class(plugin: Rejector | Attack) -> None:
    """Refuse a plugin that would also be refused as an installed plugin."""
    try:
        check_class(type(plugin))
    except TypeError as error:
        raise UseError(str(error)) from None


def _attacks(given: str | Attack, config: Config) -> list[tuple[Attack, str, str]]:
    """Return (attack, its name, its label); several if a name such as `adaptive` stands for several attacks."""
    if isinstance(given, Attack):
        _check_class(given)
        return [(given, type(given).__name__.lower(), repr(given))]
    if not isinstance(given, str):
        raise UseError(f"an attack is a name or an Attack, not {type(given).__name__}")
    choices = [choose("attack", text, config, "") for text in variants(expand("attack", given))]
    return [(build(Attack, choice), choice.name, str(choice)) for choice in choices]


def _members(config: Config, budget: Budget) -> list[Choice]:
    """Return the members of an ensemble: every attack of the preset's list that takes a budget of this norm."""
    texts = [variant for text in config.run.all_attacks for variant in variants(expand("attack", text))]
    choices = [choose("attack", text, config, "") for text in texts]
    return [
        choice
        for choice in choices
        if (attack := build(Attack, choice)).needs_budget
        and budget.norm in attack.norms
        and not isinstance(attack, Ensemble | MovedElsewhere)
    ]


def _budget(given: str | Budget | None, attack: Attack, label: str, shape: Sequence[int]) -> Budget:
    if given is not None and attack.norms and not attack.needs_budget:
        raise UseError(f"{label} looks for the smallest distortion and takes no budget")
    if isinstance(given, Budget):
        budget = given
    elif given is not None:
        norm, radius = parse_budget(given, shape)
        budget = Budget("linf" if norm == "linf" else "l2", radius)
    elif not attack.norms:
        return NO_BUDGET
    elif not attack.needs_budget:
        return Budget("l2" if "l2" in attack.norms else "linf", None)
    else:
        raise UseError(f'{label} needs a budget, such as budget="linf:8/255"')
    if attack.norms and budget.norm not in attack.norms:
        raise UseError(f"{label} has no {budget.norm} form")
    return budget if attack.norms else NO_BUDGET
