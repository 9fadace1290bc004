from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from rrbench.errors import UseError
from rrbench.plugins.config import Config, load_file, load_preset, preset_names

every_preset = pytest.mark.parametrize("name", ["quick", "paper", "official", "strong"])


def write(tmp_path: Path, text: str, preset: str = "quick") -> Config:
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return load_file(path, preset)


def refusal(tmp_path: Path, text: str) -> str:
    with pytest.raises(UseError) as caught:
        write(tmp_path, text)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_there_are_four_presets() -> None:
    assert preset_names() == ["official", "paper", "quick", "strong"]


@every_preset
def test_every_preset_is_complete_for_every_data_set(name: str) -> None:
    config = load_preset(name)
    assert config.preset == name
    assert config.values["about"]
    for dataset in ("digits", "cifar10", "cifar100", "cifar10-c", "cifar10-c-made"):
        assert config.dataset(dataset).network
        assert config.dataset(dataset).budgets
        assert config.step(dataset, "linf")
        assert config.step(dataset, "l2")
        assert config.recipe(dataset).epochs > 0


@every_preset
@pytest.mark.parametrize("dataset", ["cifar10", "cifar100", "cifar10-c", "cifar10-c-made"])
def test_cifar_is_attacked_at_8_255_in_steps_of_2_255(name: str, dataset: str) -> None:
    config = load_preset(name)
    assert config.dataset(dataset).budgets == ("linf:8/255",)
    assert config.dataset(dataset).network == "resnet18"
    assert config.step(dataset, "linf") == Fraction(2, 255)
    assert config.step(dataset, "l2") == Fraction(16, 255)


@every_preset
def test_digits_are_attacked_at_3_20_in_steps_of_3_200(name: str) -> None:
    config = load_preset(name)
    assert config.dataset("digits").budgets == ("linf:3/20",)
    assert config.dataset("digits").network == "small-cnn"
    assert config.step("digits", "linf") == Fraction(3, 200)
    assert config.settings("framework", "pgd-at", "digits") == {"eps": "3/20", "step": "3/80", "steps": 7}


def test_the_paper_preset_is_the_shared_recipe_of_the_paper() -> None:
    recipe = load_preset("paper").recipe("cifar10")
    assert (recipe.epochs, recipe.batch, recipe.learning_rate) == (110, 128, 0.1)
    assert (recipe.momentum, recipe.weight_decay) == (0.9, 5e-4)
    assert [drop * recipe.epochs for drop in recipe.drops] == [100, 105]
    assert (recipe.choose_by, recipe.choose_on) == ("pgd10", "test")


def test_the_schedule_keeps_its_shape_when_it_is_shortened() -> None:
    recipe = load_preset("paper").recipe("cifar10", {"epochs": 22})
    assert [drop * recipe.epochs for drop in recipe.drops] == [20, 21]


def test_only_the_paper_s_presets_choose_the_epoch_on_the_test_set() -> None:
    chosen = {name: load_preset(name).recipe("digits").choose_on for name in preset_names()}
    assert chosen == {"official": "test", "paper": "test", "quick": "calibration", "strong": "test"}


def test_the_presets_differ_where_the_text_and_the_code_of_the_paper_do() -> None:
    assert {name: load_preset(name).metrics.tpr_rule for name in preset_names()} == {
        "official": "official",
        "paper": "quantile",
        "quick": "quantile",
        "strong": "quantile",
    }
    for name, expected in (
        ("official", {"keep": "last", "select": "ce"}),
        ("quick", {"keep": "best", "select": "evade"}),
        ("strong", {"keep": "best", "select": "evade"}),
    ):
        assert load_preset(name).settings("attack", "pgd", "cifar10") == expected
    assert load_preset("paper").settings("attack", "pgd", "cifar10") == {"keep": "last", "select": "ce"}
    assert load_preset("quick").settings("attack", "adaptive", "digits")["eta"] == [0.1, 1]
    assert len(list(load_preset("paper").settings("attack", "adaptive", "digits")["eta"])) == 11  # type: ignore[call-overload]


def test_the_strong_preset_takes_the_paper_s_networks() -> None:
    strong, paper = load_preset("strong"), load_preset("paper")
    for dataset in ("digits", "cifar10", "cifar100"):
        assert strong.recipe(dataset) == paper.recipe(dataset)
        for framework in ("pgd-at", "trades", "ccat", "carl", "atro"):
            assert strong.settings("framework", framework, dataset) == paper.settings("framework", framework, dataset)


def test_settings_for_one_data_set_come_last() -> None:
    paper = load_preset("paper")
    assert paper.settings("rejector", "kd", "cifar100")["g"] == 1.0
    assert paper.settings("rejector", "lid", "cifar100") == {"k": 20}
    for name in ("gda*", "gmm"):  # 500 images a class do not span 512 features
        assert paper.settings("rejector", name, "cifar100") == {"inverse": "ridge"}
        assert not paper.settings("rejector", name, "cifar10")
        assert load_preset("official").settings("rejector", name, "cifar100") == {"inverse": "fp32"}
    assert paper.settings("rejector", "kd", "cifar10") == {}
    assert load_preset("official").settings("rejector", "kd", "cifar100")["g"] == 0.01
    assert paper.settings("network", "resnet18", "cifar10") == {}
    assert paper.settings("rejector", "unheard-of", "cifar10") == {}


def test_a_preset_keeps_what_it_does_not_change_of_the_one_it_extends() -> None:
    paper, quick = load_preset("paper"), load_preset("quick")
    assert quick.run.rejectors == paper.run.rejectors
    assert quick.run.all_pairs == paper.run.all_pairs
    assert quick.run.attacks != paper.run.attacks
    assert quick.recipe("cifar10").batch == paper.recipe("cifar10").batch
    assert quick.recipe("cifar10").epochs == 10
    assert "extends" not in quick.values


def test_loading_one_preset_leaves_the_others_as_they_were() -> None:
    before = load_preset("paper")
    load_preset("quick")
    load_preset("official")
    assert load_preset("paper") == before


def test_a_file_changes_a_value_and_keeps_the_rest(tmp_path: Path) -> None:
    config = write(tmp_path, '[recipe]\nepochs = 3\n[rejector.lid]\nk = 7\n[dataset.digits.step]\nlinf = "1/100"\n')
    quick = load_preset("quick")
    assert config.preset == "quick"
    assert config.recipe("cifar10").epochs == 3
    assert config.recipe("digits") == replace(quick.recipe("digits"), epochs=3)
    assert config.settings("rejector", "lid", "cifar10") == config.settings("rejector", "lid", "cifar100") == {"k": 7}
    assert config.settings("rejector", "lid", "digits") == {"k": 7, "references": 1000}
    assert config.step("digits", "linf") == Fraction(1, 100)
    assert config.step("digits", "l2") == quick.step("digits", "l2")
    assert config.run == quick.run


@every_preset
def test_a_file_s_setting_for_all_data_sets_wins_over_every_one_of_the_preset_for_a_single_one(
    tmp_path: Path, name: str
) -> None:
    tried = 0
    for dataset, section in load_preset(name).values["dataset"].items():
        for key in section.get("recipe", {}):
            config = write(tmp_path, f"[recipe]\n{key} = 77\n", name)
            assert getattr(config.recipe(dataset), key) == 77
            tried += 1
        for kind in ("rejector", "framework", "attack"):
            for plugin, settings in section.get(kind, {}).items():
                for key, value in settings.items():
                    before = load_preset(name).settings(kind, plugin, dataset)
                    config = write(tmp_path, f'[{kind}."{plugin}"]\n{key} = 77\n', name)
                    assert before[key] == value
                    assert config.settings(kind, plugin, dataset) == {**before, key: 77} != before
                    tried += 1
    assert tried > 20, "the presets say something about digits and CIFAR-100"


def test_a_file_s_setting_for_one_data_set_wins_over_its_own_for_all_of_them(tmp_path: Path) -> None:
    config = write(
        tmp_path, "[recipe]\nepochs = 3\nbatch = 8\n[dataset.digits.recipe]\nepochs = 4\n[rejector.kd]\ng = 2\n"
    )
    assert (config.recipe("digits").epochs, config.recipe("digits").batch) == (4, 8)
    assert config.recipe("cifar10").epochs == 3
    assert config.settings("rejector", "kd", "digits") == {"g": 2, "references": 100}
    assert load_preset("quick").recipe("digits").epochs == 15, "the preset itself is as it was"


def test_a_file_extends_the_preset_it_names_before_the_one_of_the_command(tmp_path: Path) -> None:
    assert write(tmp_path, 'extends = "official"\n').metrics.tpr_rule == "official"
    assert write(tmp_path, 'extends = "official"\n').preset == "official"
    assert write(tmp_path, "", preset="paper") == load_preset("paper")


def test_a_data_set_that_the_preset_does_not_know_has_no_defaults() -> None:
    config = load_preset("quick")
    assert config.dataset("mine").network == ""
    assert config.dataset("mine").budgets == ()
    assert config.step("mine", "linf") is None
    assert config.recipe("mine") == config.recipe("cifar10")


def test_a_command_s_changes_win_over_the_preset_and_are_checked() -> None:
    config = load_preset("quick")
    assert config.recipe("digits", {"epochs": 2}).epochs == 2
    with pytest.raises(UseError, match="epochz"):
        config.recipe("digits", {"epochz": 2})
    with pytest.raises(UseError, match="at least 1 epoch"):
        config.recipe("digits", {"epochs": 0})


def test_an_unknown_preset_answers_with_near_ones() -> None:
    with pytest.raises(UseError, match="unknown preset 'papr'; near: paper"):
        load_preset("papr")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[recipes]\nepochs = 1", "'recipes'; near: recipe"),
        ("[recipe]\nepoch = 1", "unknown key in [recipe] 'epoch'; near: epochs"),
        ("[run]\nrejector = ['rr']", "unknown key in [run] 'rejector'; near: rejectors"),
        ("[metrics]\nrule = 'x'", "unknown key in [metrics] 'rule'"),
        ("[dataset.digits]\nbudget = ['linf:1/2']", "'budget'; near: budgets"),
        ("[dataset.cifar10.recipe]\nepoch = 1", "unknown key in [recipe] 'epoch'"),
        ("[dataset.digits.step]\nl1 = '1/2'", "'l1'; near: l2"),
        ("[dataset.digits.attacks.pgd]\nkeep = 'last'", "'attacks'; near: attack"),
        ("extends = 'mine'", "'mine'"),
        ("extends = 3", "'3'"),
        ("seed = 1", "'seed'"),
    ],
)
def test_unknown_keys_are_errors_even_where_the_run_would_not_use_them(tmp_path: Path, text: str, message: str) -> None:
    assert message in refusal(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("recipe = 3", "'recipe' must be a section"),
        ("dataset = 'digits'", "'dataset' must be a section"),
        ("[dataset]\ndigits = 3", "[dataset.digits] must be a section"),
        ("[dataset.digits]\nstep = '1/2'", "'step' must be a section"),
        ("[dataset.digits]\nrejector = 3", "'rejector' must be a section"),
        ("[dataset.digits.network]\nname = 'x'", "'network' must be a plain value"),
        ("[dataset.digits.rejector]\nlid = 3", "'lid' must be a section"),
        ("[rejector]\nlid = 3", "'lid' must be a section"),
        ("[extends]\nname = 'quick'", "'extends' must be a plain value"),
    ],
)
def test_a_section_and_a_plain_value_are_not_mixed_up(tmp_path: Path, text: str, message: str) -> None:
    assert message in refusal(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[recipe]\nepochs = 'many'", "[recipe] epochs cannot be 'many'; expected a whole number"),
        ("[recipe]\nepochs = 1.5", "[recipe] epochs cannot be 1.5"),
        ("[recipe]\nepochs = 0", "at least 1 epoch"),
        ("[recipe]\nlearning_rate = true", "[recipe] learning_rate cannot be True"),
        ("[recipe]\nchoose_on = 'train'", "expected one of test, calibration"),
        ("[metrics]\ntpr_rule = 'mine'", "expected one of quantile, official"),
        ("[dataset.digits.step]\nlinf = 0.1", "[dataset.digits.step] linf cannot be 0.1; expected a fraction"),
        ("[dataset.digits.step]\nlinf = 'x'", "expected a fraction"),
        ("[dataset.cifar10]\nbudgets = ['linf:x']", "cannot read the radius of budget 'linf:x'"),
        ("[recipe\n", "is not valid TOML"),
        ("a = 1\na = 2", "is not valid TOML"),
    ],
)
def test_a_wrong_value_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    assert message in refusal(tmp_path, text)


def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UseError, match=r"^cannot read the configuration [^\n]+$"):
        load_file(tmp_path / "missing.toml", "quick")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(UseError, match=r"^cannot read the configuration [^\n]+$"):
        load_file(tmp_path / "binary.toml", "quick")


@pytest.mark.parametrize(("where", "key"), [("dataset.digits", "budgets"), ("run", "attacks"), ("run", "rejectors")])
def test_a_text_in_place_of_a_list_is_refused_and_the_list_shown(tmp_path: Path, where: str, key: str) -> None:
    said = refusal(tmp_path, f'[{where}]\n{key} = "linf:1/20"\n')
    assert said == f'[{where}] {key} must be a list, such as {key} = ["linf:1/20"]'


def test_a_number_of_resamples_that_gives_no_interval_or_no_end_is_refused(tmp_path: Path) -> None:
    assert "resamples must not be negative, as -5 is" in refusal(tmp_path, "[metrics]\nresamples = -5\n")
    for wrong in (1, 19, 100_001, 10**8):
        asked = f"[metrics]\nresamples = {wrong}\n"
        assert f"resamples must be 0, or from 20 to 100000, not {wrong}" in refusal(tmp_path, asked)
    assert write(tmp_path, "[metrics]\nresamples = 0\n").metrics.resamples == 0
