"""What was asked for -> a list of cells, ordered so that work is shared. Pure: touches no file and no GPU."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

from rrbench.cells import Cell, Plan, Training, depends, training_key
from rrbench.config import Config
from rrbench.errors import UseError
from rrbench.names import Choice, convert, long_form, parse, parse_budget
from rrbench.protocols import Attack, Budget, DataSource, Ensemble, Framework, Norm, Rejector
from rrbench.registry import build, check_names, choose, expand, find, table

CLEAN = "clean"  # planned always: the reference for every other row
ALL = "all"


@dataclass(frozen=True)
class Request:
    """What the command line, a file or Python asked for; None means the preset's word."""

    rejectors: Sequence[str] | None = None
    attacks: Sequence[str] | None = None
    datasets: Sequence[str] | None = None
    network: str | None = None
    frameworks: Sequence[str] | None = None
    budgets: Sequence[str] | None = None
    seeds: Sequence[int] = (0,)
    limit: int | None = None
    recipe: Mapping[str, object] = field(default_factory=dict)


def make_plan(request: Request, config: Config) -> Plan:
    """Turn wishes into cells; pairs that do not fit are dropped with a line, nothing left is an error."""
    dropped: dict[str, None] = {}
    cells: dict[Cell, None] = {}
    if not request.seeds:
        raise UseError("no seed given")
    for seed in request.seeds:
        convert(seed, int, "a seed")
    if request.limit is not None and convert(request.limit, int, "--limit") != max(request.limit, 1):
        raise UseError(f"--limit must be at least 1, not {request.limit}")
    check_names(config)
    for text in request.datasets or (config.run.dataset,):
        dataset = choose("dataset", expand("dataset", text), config, parse(text).name)
        pairs = _pairs(request, config, dropped)
        attacks = _attacks(request, config, dataset, dropped)
        network_text = request.network or config.dataset(dataset.name).network
        if not network_text:
            raise _silent(config, dataset.name)
        network = choose("network", expand("network", network_text), config, dataset.name)
        for seed in request.seeds:
            for rejector_text, framework_text in pairs:
                training, rejector = _training(request, config, dataset, network, rejector_text, framework_text, seed)
                for planned in attacks:
                    cell = Cell(
                        dataset,
                        training,
                        rejector,
                        planned.attack,
                        planned.budget,
                        seed,
                        request.limit,
                        config.preset,
                        config.metrics,
                        depends(planned.attack, rejector),
                        planned.members,
                    )
                    cells[cell] = None
    if not cells:
        raise UseError("nothing to run: " + ("; ".join(dropped) or "no rejector or attack left"))
    return Plan(_ordered(list(cells)), tuple(dropped))


def merged(cells: Iterable[Cell]) -> Plan:
    """Make one plan of the cells of several."""
    return Plan(_ordered(list(dict.fromkeys(cells))), ())


def _ordered(cells: list[Cell]) -> tuple[Cell, ...]:
    """Keep the order asked for, but bring together what shares a checkpoint, then what shares an attack."""
    trainings = {cell.training: index for index, cell in reversed(list(enumerate(cells)))}
    attacks = {(cell.attack, cell.budget): index for index, cell in reversed(list(enumerate(cells)))}
    return tuple(sorted(cells, key=lambda cell: (trainings[cell.training], attacks[cell.attack, cell.budget])))


def _pairs(request: Request, config: Config, dropped: dict[str, None]) -> list[tuple[str, str]]:
    """Return (rejector, framework) texts that fit."""
    rejectors = list(request.rejectors if request.rejectors is not None else config.run.rejectors)
    frameworks = None if request.frameworks is None else [expand("framework", text) for text in request.frameworks]
    is_all = rejectors == [ALL]
    if is_all and frameworks == [ALL]:
        listed = [(expand("rejector", name), framework) for name, framework in map(_split_pair, config.run.all_pairs)]
        named = {rejector for rejector, _ in listed}
        own = [_own_pair(name) for name in table("rejector")]
        return _unique(listed + [pair for pair in own if pair[0] not in named])
    pairs = []
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


def _split_pair(text: str) -> tuple[str, str]:
    rejector, _, framework = text.rpartition("@")
    if not rejector:
        raise UseError(f"[run] all_pairs: {text!r} should be rejector@framework")
    return rejector, framework


def _unique(pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return list(dict.fromkeys(pairs))


def _own_pair(text: str) -> tuple[str, str]:
    """Return a rejector without its alias, and the framework it runs on when none is named."""
    rejector, at, framework = expand("rejector", text).partition("@")
    if at:
        return rejector, framework
    return rejector, (_rejector_class(rejector).frameworks or ("pgd-at",))[0]


def _rejector_class(text: str) -> type[Rejector]:
    return cast(type[Rejector], find("rejector", parse(text).name))


def _misfit(text: str, framework: str) -> str | None:
    """Say why a rejector cannot run on a framework."""
    rejector, at, own_framework = expand("rejector", text).partition("@")
    name = parse(framework).name
    admits = cast(type[Framework], find("framework", name)).rejectors
    allowed = (own_framework,) if at else _rejector_class(rejector).frameworks
    if allowed and name not in allowed:
        return f"{text} does not run on {framework}: it needs {' or '.join(allowed)}"
    if admits and parse(rejector).name not in admits:
        return f"{framework} trains its own rejector, {' or '.join(admits)}; {text} is left out"
    return None


def _training(
    request: Request,
    config: Config,
    dataset: Choice,
    network: Choice,
    rejector_text: str,
    framework_text: str,
    seed: int,
) -> tuple[Training, Choice]:
    """Return the checkpoint that a pair needs, and the rejector as a choice."""
    source = build(DataSource, dataset)
    home = choose("dataset", source.trains_as, config, source.trains_as) if source.trains_as else dataset
    rejector = choose("rejector", rejector_text, config, home.name)
    framework = choose("framework", framework_text, config, home.name)
    recipe = config.recipe(home.name, request.recipe)
    # The data set's own budget comes first here: --budgets must not lead to another checkpoint.
    budget = _budgets(home, config, config.dataset(home.name).budgets, request.budgets)[0]
    chooser = choose("attack", recipe.choose_by, config, home.name, {"step": config.step(home.name, budget.norm)})
    key = training_key(build(Rejector, rejector), rejector.name)
    return Training(home, network, framework, rejector, key, recipe, chooser, budget, seed), rejector


def _budgets(dataset: Choice, config: Config, *sources: Sequence[str] | None) -> list[Budget]:
    """Return the budgets of the first source that names any."""
    texts = next(filter(None, sources), None)
    if texts is None:
        raise _silent(config, dataset.name)
    shape = build(DataSource, dataset).info.shape
    norms_and_radii = [parse_budget(text, shape) for text in texts]
    return [Budget(cast(Norm, norm), radius) for norm, radius in norms_and_radii]


def _silent(config: Config, dataset: str) -> UseError:
    return UseError(f"preset {config.preset!r} says too little of data set {dataset!r}: give --network and --budgets")


@dataclass(frozen=True)
class _Planned:
    attack: Choice
    budget: Budget | None
    members: tuple[Choice, ...] = ()


def _attacks(request: Request, config: Config, dataset: Choice, dropped: dict[str, None]) -> list[_Planned]:
    """Return the attacks with their budgets: clean first, ensembles last, when what they share is there."""
    texts = list(request.attacks if request.attacks is not None else config.run.attacks)
    if texts == [ALL]:
        texts = list(config.run.all_attacks)
    if not texts:
        raise UseError("no attack given")
    budgets = _budgets(dataset, config, request.budgets, config.dataset(dataset.name).budgets)
    found = _planned([CLEAN, *texts], budgets, config, dataset, dropped)
    ensembles = [plan for plan in found if _is_ensemble(plan)]
    known = _planned(config.run.all_attacks, budgets, config, dataset, {}) if ensembles else []
    members = [plan for plan in known if build(Attack, plan.attack).needs_budget and not _is_ensemble(plan)]
    whole = [
        replace(plan, members=tuple(member.attack for member in members if member.budget == plan.budget))
        for plan in ensembles
    ]
    return [plan for plan in found if plan not in ensembles] + whole


def _is_ensemble(plan: _Planned) -> bool:
    return isinstance(build(Attack, plan.attack), Ensemble)


def _planned(
    texts: Sequence[str], budgets: list[Budget], config: Config, dataset: Choice, dropped: dict[str, None]
) -> list[_Planned]:
    found: dict[_Planned, None] = {}
    for text in dict.fromkeys(texts):
        for variant in variants(expand("attack", text)):
            for attack, budget in _with_budgets(variant, budgets, config, dataset, dropped):
                found[_Planned(attack, budget)] = None
    return list(found)


def variants(text: str) -> list[str]:
    """Return one text for each value of the setting that the attack expands over, where it is left out."""
    call = long_form("attack", parse(text), table("attack").classes)
    over = cast(type[Attack], find("attack", call.name)).expand_over
    if over is None or call.positional is not None or over[0] in dict(call.keywords):
        return [text]
    rest = "".join(f",{key}={value}" for key, value in call.keywords)
    return [f"{call.name}({value}{rest})" for value in over[1]]


def _with_budgets(
    text: str, budgets: list[Budget], config: Config, dataset: Choice, dropped: dict[str, None]
) -> list[tuple[Choice, Budget | None]]:
    """Pair an attack with every budget of its norms."""
    plain_choice = choose("attack", text, config, dataset.name)
    attack = build(Attack, plain_choice)
    if not attack.norms:
        return [(plain_choice, None)]
    wanted = budgets if attack.needs_budget else [Budget(cast(Norm, norm), None) for norm in sorted(attack.norms)]
    fitting = [budget for budget in wanted if budget.norm in attack.norms]
    if not fitting:
        dropped[f"{text} has no {' or '.join(sorted({budget.norm for budget in wanted}))} form"] = None
    return [
        (choose("attack", text, config, dataset.name, {"step": config.step(dataset.name, budget.norm)}), budget)
        for budget in fitting
    ]
