"""Turns a request into a list of cells, ordered so that work is shared. Touches no file and no GPU."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import cast

from rrbench.errors import UseError
from rrbench.names import Choice, convert, long_form, parse, parse_budget, split_list
from rrbench.planning.cells import Cell, Given, Plan, Training, depends, training_key
from rrbench.planning.sample import Sample
from rrbench.plugins.config import ALL, Config
from rrbench.plugins.own import OWN
from rrbench.plugins.registry import build, check_names, choose, expand, find, plain_rejector, split_pair, table
from rrbench.protocols import (
    Attack,
    Budget,
    DataSource,
    Ensemble,
    Framework,
    MovedElsewhere,
    NetworkSource,
    Norm,
    Rejector,
)

CLEAN = "clean"  # always planned: all other rows are compared with it
ANY_HOME = "pgd-at"  # trains a rejector that runs on any framework, if the request names none
Named = str | Choice  # a text, or what a user's object was turned into


@dataclass(frozen=True)
class Request:
    """What the command line, a file or Python asked for; None means that the preset decides."""

    rejectors: Sequence[Named] | None = None
    attacks: Sequence[Named] | None = None
    datasets: Sequence[Named] | None = None
    network: str | Sequence[Named] | None = None
    frameworks: Sequence[str] | None = None
    budgets: Sequence[str] | None = None
    seeds: Sequence[int] = (0,)
    limit: int | None = None
    every: int | None = None
    recipe: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class _Planned:
    """An attack with what a cell says of it."""

    attack: Choice
    budget: Budget | None
    members: tuple[Choice, ...] = ()
    source: str | None = None  # of a transfer: the other network's name
    moved_on: Training | None = None  # of a transfer: that network, once data set, network and seed are known


def make_plan(request: Request, config: Config) -> Plan:
    """Check a configuration, and turn a request into cells."""
    check_names(config)
    return plan_cells(request, config)


def plan_cells(request: Request, config: Config) -> Plan:
    """Turn a request into cells; each pair that does not fit is dropped with one line; an empty plan is an error.

    The configuration has been checked: that takes longer than a small plan, and a paper's tables make hundreds.
    """
    if not request.seeds:
        raise UseError("no seed given")
    for seed in request.seeds:
        if convert(seed, int, "a seed") != seed or seed < 0:
            raise UseError(f"a seed is a whole number from 0 on, not {seed}")
    dropped: dict[str, None] = {}
    cells = list(dict.fromkeys(_cells(request, config, dropped)))
    if not cells:
        raise UseError("nothing to run: " + ("; ".join(dropped) or "no rejector or attack left"))
    return Plan(_ordered(cells), tuple(dropped))


def _cells(request: Request, config: Config, dropped: dict[str, None]) -> Iterator[Cell]:
    """Yield every victim under every attack; two names of one thing give the same cell twice."""
    sample = Sample.asked(request.limit, request.every)
    for text in request.datasets or (config.run.dataset,):
        dataset = _chosen("dataset", text, config, parse(text).name if isinstance(text, str) else OWN)
        source = build(DataSource, dataset)
        sample.check(source.info.test_size, dataset)
        attacks = _attacks(request, config, dataset, dropped)
        for network, seed in product(_networks(request, config, dataset), request.seeds):
            placed = [
                replace(each, moved_on=_moved_on(request, config, dataset, network, each, seed)) for each in attacks
            ]
            victims = _victims(request, config, dataset, network, seed, dropped)
            for training, _ in victims:
                sample.check_folds(source.splits_for(is_given=isinstance(training, Given)), dataset)
            for (training, rejector), planned in product(victims, placed):
                if planned.moved_on == training:
                    name = training.trained_as
                    dropped[f"{planned.attack} does not run on {name}: it needs another network"] = None
                    continue
                yield Cell(
                    dataset=dataset,
                    training=training,
                    rejector=rejector,
                    attack=planned.attack,
                    budget=planned.budget,
                    seed=seed,
                    sample=sample,
                    preset=config.preset,
                    metrics=config.metrics,
                    is_adaptive=depends(planned.attack, rejector),
                    members=planned.members,
                    moved_on=planned.moved_on,
                )


def _chosen(kind: str, given: Named, config: Config, dataset: str) -> Choice:
    """Return the choice of a text; a choice stays as it is."""
    return given if isinstance(given, Choice) else choose(kind, expand(kind, given), config, dataset)


def _networks(request: Request, config: Config, dataset: Choice) -> list[Choice]:
    """Return the networks, trained here or given."""
    given = request.network or config.dataset(dataset.name).network
    if not given:
        raise _silent(config, dataset.name)
    return [_chosen("network", each, config, dataset.name) for each in ([given] if isinstance(given, str) else given)]


def _victims(
    request: Request, config: Config, dataset: Choice, network: Choice, seed: int, dropped: dict[str, None]
) -> list[tuple[Training, Choice]]:
    """Return what is measured, each with a rejector: a given network, or the trainings of each framework."""
    if not build(NetworkSource, network).has_weights:
        pairs = _pairs(request, config, dropped)
        return [_training(request, config, dataset, network, *pair, seed) for pair in pairs]
    if request.frameworks is not None:
        raise UseError(f"{network} is trained already: leave out the frameworks ({', '.join(request.frameworks)})")
    given = Given.of(dataset, network, config.recipe(dataset.name))
    return [(given, rejector) for rejector in _given_rejectors(request, config, dataset)]


def _given_rejectors(request: Request, config: Config, dataset: Choice) -> list[Choice]:
    """Return the rejectors for a network that is trained already; of `all`, those that need no training."""
    given = list(request.rejectors if request.rejectors is not None else config.run.rejectors)
    if given == [ALL]:
        given = [name for name in table("rejector").classes if not _rejector_class(name).has_training()]
    for text in given:
        if isinstance(text, str) and "@" in text:
            raise UseError(f"{text!r}: @ names a training, and this model is trained already")
    own = [_own_pair(each)[0] for each in given]
    return list(dict.fromkeys(_chosen("rejector", each, config, dataset.name) for each in own))


def merged(cells: Iterable[Cell]) -> Plan:
    """Merge the cells of several plans into one plan."""
    return Plan(_ordered(list(dict.fromkeys(cells))), ())


def _ordered(cells: list[Cell]) -> tuple[Cell, ...]:
    """Keep the order of the request, but put cells of one checkpoint together, then cells of one attack.

    Transfers come last: two networks may each be attacked with images that were moved on the other.
    """
    trainings = {cell.training: index for index, cell in reversed(list(enumerate(cells)))}
    attacks = {(cell.attack, cell.budget): index for index, cell in reversed(list(enumerate(cells)))}
    return tuple(
        sorted(
            cells,
            key=lambda cell: (
                cell.moved_on is not None,
                trainings[cell.training],
                attacks[cell.attack, cell.budget],
            ),
        )
    )


def _pairs(request: Request, config: Config, dropped: dict[str, None]) -> list[tuple[Named, str]]:
    """Return the pairs of a rejector and a framework that fit together."""
    rejectors = list(request.rejectors if request.rejectors is not None else config.run.rejectors)
    frameworks = None if request.frameworks is None else [expand("framework", text) for text in request.frameworks]
    is_all = rejectors == [ALL]
    if is_all and frameworks == [ALL]:
        listed: list[tuple[Named, str]] = [
            (expand("rejector", name), framework) for name, framework in map(split_pair, config.run.all_pairs)
        ]
        named = {rejector for rejector, _ in listed}
        own = [_own_pair(name) for name in table("rejector")]
        return _unique(listed + [pair for pair in own if pair[0] not in named])
    pairs: list[tuple[Named, str]] = []
    for text in list(table("rejector")) if is_all else rejectors:
        own_text, own_framework = _own_pair(text)
        wanted = [own_framework] if frameworks is None else frameworks
        if wanted == [ALL]:
            wanted = list(table("framework").classes)
        for framework in wanted:
            reason = _misfit(text, framework)
            if reason is None:
                pairs.append((own_text, framework))
            else:
                dropped[reason] = None
    return _unique(pairs)


def _unique(pairs: list[tuple[Named, str]]) -> list[tuple[Named, str]]:
    return list(dict.fromkeys(pairs))


def _own_pair(text: Named) -> tuple[Named, str]:
    """Return a rejector with its alias replaced, and the framework it runs on when the request names none."""
    if isinstance(text, Choice):
        return text, _home(build(Rejector, text))
    rejector, at, framework = expand("rejector", text).partition("@")
    if at:
        return rejector, framework
    return rejector, _home(_rejector_class(rejector))


def _home(rejector: Rejector | type[Rejector]) -> str:
    return rejector.frameworks[0] if rejector.frameworks else ANY_HOME


def _rejector_class(text: str) -> type[Rejector]:
    return cast(type[Rejector], find("rejector", parse(text).name))


def _framework_class(text: str) -> type[Framework]:
    return cast(type[Framework], find("framework", parse(text).name))


def _misfit(text: Named, framework: str) -> str | None:
    """Say why a rejector cannot run on a framework."""
    name, admits = parse(framework).name, _framework_class(framework).rejectors
    if isinstance(text, Choice):
        rejector, allowed = text.name, build(Rejector, text).frameworks
    else:
        rejector, at, own_framework = expand("rejector", text).partition("@")
        rejector, allowed = parse(rejector).name, (own_framework,) if at else _rejector_class(rejector).frameworks
    if allowed and name not in allowed:
        return f"{text} does not run on {framework}: it needs {' or '.join(allowed)}"
    if admits and rejector not in admits:
        return f"{framework} trains its own rejector, {' or '.join(admits)}; {text} is left out"
    return None


def _training(
    request: Request,
    config: Config,
    dataset: Choice,
    network: Choice,
    rejector_given: Named,
    framework_text: str,
    seed: int,
) -> tuple[Training, Choice]:
    """Return the checkpoint that a pair needs, and the rejector as a choice."""
    other = build(DataSource, dataset).uses_networks_of
    home = choose("dataset", other, config, other) if other else dataset
    if "train" not in build(DataSource, home).splits:
        raise UseError(f"{home} has no training inputs: give a network that is trained already")
    rejector = _chosen("rejector", rejector_given, config, home.name)
    framework = choose("framework", framework_text, config, home.name)
    recipe = config.recipe(home.name, request.recipe)
    # The data set's own budget comes first: --budgets must not lead to another checkpoint.
    budgets = _budgets(home, config, config.dataset(home.name).budgets, request.budgets)
    if not budgets:
        raise _silent(config, home.name)
    budget = budgets[0]
    chooser = choose("attack", recipe.choose_by, config, home.name, {"step": config.step(home.name, budget.norm)})
    made = build(Rejector, rejector)
    key = training_key(made, type(made).__name__ if rejector.name == OWN else rejector.name)
    return Training(home, network, framework, rejector, key, recipe, chooser, budget, seed), rejector


def _moved_on(
    request: Request, config: Config, dataset: Choice, network: Choice, planned: _Planned, seed: int
) -> Training | None:
    """Return the checkpoint that a transfer names as rows do (pgd-at, pgd-at+rr); None for any other attack."""
    if planned.source is None:
        return None
    if build(NetworkSource, network).has_weights:
        raise UseError(f"{planned.attack}: {network} is given, and a transfer needs a network that is trained here")
    framework, *rest = split_list(planned.source, at="+") or [""]
    rejector = "+".join(rest) or next(iter(_framework_class(framework).rejectors), plain_rejector())
    reason = _misfit(rejector, framework)
    if reason is not None:
        raise UseError(f"{planned.attack}: {reason}")
    training, _ = _training(request, config, dataset, network, _own_pair(rejector)[0], framework, seed)
    if training.trained_as != planned.source:  # rows are found by this name, so only one spelling is allowed
        raise UseError(f"{planned.attack}: that network is called {training.trained_as}")
    return training


def _budgets(dataset: Choice, config: Config, *sources: Sequence[str] | None) -> list[Budget]:
    """Return the budgets of the first source that has any; none if no source has."""
    texts = next(filter(None, sources), ())
    shape = build(DataSource, dataset).info.shape
    norms_and_radii = [parse_budget(text, shape) for text in texts]
    return [Budget(cast(Norm, norm), radius) for norm, radius in norms_and_radii]


def _silent(config: Config, dataset: str) -> UseError:
    return UseError(f"preset {config.preset!r} says too little of data set {dataset!r}: give --network and --budgets")


def _attacks(request: Request, config: Config, dataset: Choice, dropped: dict[str, None]) -> list[_Planned]:
    """Return the attacks with their budgets: clean first; ensembles and transfers last, as they use others' images."""
    texts = list(request.attacks if request.attacks is not None else config.run.attacks)
    if texts == [ALL]:
        texts = list(config.run.all_attacks)
    if not texts:
        raise UseError("no attack given")
    budgets = _budgets(dataset, config, request.budgets, config.dataset(dataset.name).budgets)
    found = _planned([CLEAN, *texts], budgets, config, dataset, dropped)
    ensembles = [plan for plan in found if isinstance(build(Attack, plan.attack), Ensemble)]
    known = _planned(config.run.all_attacks, budgets, config, dataset, {}) if ensembles else []
    members = [plan for plan in known if build(Attack, plan.attack).needs_budget and not _takes_over(plan)]
    whole = [
        replace(plan, members=tuple(member.attack for member in members if member.budget == plan.budget))
        for plan in ensembles
    ]
    moved = [transfer for plan in found for transfer in _transfers(plan, config, dataset, dropped)]
    return [plan for plan in found if not _takes_over(plan)] + whole + moved


def _takes_over(plan: _Planned) -> bool:
    """Tell whether an attack moves no images itself but uses those of other attacks."""
    return isinstance(build(Attack, plan.attack), Ensemble | MovedElsewhere)


def _transfers(plan: _Planned, config: Config, dataset: Choice, dropped: dict[str, None]) -> list[_Planned]:
    """Return a transfer with its attack, if that attack has a form of its norm; nothing if `plan` is no transfer."""
    transfer = build(Attack, plan.attack)
    if not isinstance(transfer, MovedElsewhere) or plan.budget is None:
        return []
    texts = variants(expand("attack", transfer.by))
    behind = _planned(texts, [plan.budget], config, dataset, dropped)
    if len(texts) > 1 or not all(map(_is_blind, behind)):
        raise UseError(f"{plan.attack}: by={transfer.by} is not one blind attack with a budget, such as pgd100")
    return [replace(plan, members=(member.attack,), source=transfer.source) for member in behind]


def _is_blind(plan: _Planned) -> bool:
    """Tell whether an attack moves images within a budget and does not look at the rejector."""
    attack = build(Attack, plan.attack)
    return attack.needs_budget and not attack.is_adaptive and not _takes_over(plan)


def _planned(
    texts: Sequence[Named], budgets: list[Budget], config: Config, dataset: Choice, dropped: dict[str, None]
) -> list[_Planned]:
    found: dict[_Planned, None] = {}
    for text in dict.fromkeys(texts):
        for variant in [text] if isinstance(text, Choice) else variants(expand("attack", text)):
            for attack, budget in _with_budgets(variant, budgets, config, dataset, dropped):
                found[_Planned(attack, budget)] = None
    return list(found)


def variants(text: str) -> list[str]:
    """Return one text for each value of the setting that the attack expands over; only `text` if it gives a value."""
    call = long_form("attack", parse(text), table("attack").classes)
    over = cast(type[Attack], find("attack", call.name)).expand_over
    if over is None or call.positional is not None or over[0] in dict(call.keywords):
        return [text]
    rest = "".join(f",{key}={value}" for key, value in call.keywords)
    return [f"{call.name}({value}{rest})" for value in over[1]]


def _with_budgets(
    text: Named, budgets: list[Budget], config: Config, dataset: Choice, dropped: dict[str, None]
) -> list[tuple[Choice, Budget | None]]:
    """Pair an attack with every budget of its norms."""
    plain_choice = text if isinstance(text, Choice) else choose("attack", text, config, dataset.name)
    attack = build(Attack, plain_choice)
    if not attack.norms:
        return [(plain_choice, None)]
    if attack.needs_budget and not budgets:
        own = UseError(f"{plain_choice} needs a budget, such as linf:8/255")
        raise own if dataset.name == OWN else _silent(config, dataset.name)
    wanted = budgets if attack.needs_budget else [Budget(cast(Norm, norm), None) for norm in sorted(attack.norms)]
    fitting = [budget for budget in wanted if budget.norm in attack.norms]
    if not fitting:
        dropped[f"{text} has no {' or '.join(sorted({budget.norm for budget in wanted}))} form"] = None
    if isinstance(text, Choice):
        return [(text, budget) for budget in fitting]
    return [
        (choose("attack", text, config, dataset.name, {"step": config.step(dataset.name, budget.norm)}), budget)
        for budget in fitting
    ]
