"""`rrbench new`: its packages install, pass their own tests and run; with a known mistake they fail their tests."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from rrbench.errors import UseError
from rrbench.rows.row import read_rows
from rrbench.scaffold import Kind, write_plugin

# Names that no stranger's package has: one that is installed is refused.
IDEA, PUSH, WAY, DATA, NET = (f"{word}-of-the-tests" for word in ("idea", "push", "way", "data", "net"))
TRIALS: dict[Kind, tuple[str, str]] = {  # {kind: (name, options that try it)}
    "rejector": (IDEA, f"--rejectors {IDEA}"),
    "attack": (PUSH, f"--attacks {PUSH}"),
    "framework": (WAY, f"--frameworks {WAY}"),
    "dataset": (DATA, f"--dataset {DATA} --network small-cnn --budgets linf:1/10"),
    "network": (NET, f"--network {NET}"),
}
SHORT = """
[metrics]
resamples = 200

[recipe]
epochs = 4
choose_by = "pgd1"
"""

# The packages' own tests, then the contract and a run with them, in one process: importing torch takes seconds.
TRIAL = """
import sys, pytest
code = pytest.main(["-q", "-p", "no:cacheprovider", "--import-mode=importlib", *sys.argv[1].split(":")])
if code:
    sys.exit(int(code))
from rrbench.cli import main
for arguments in (*(["check", name] for name in sys.argv[2].split(":")), sys.argv[3:]):
    sys.argv[1:] = arguments
    try:
        main()
    except SystemExit as stop:
        if stop.code:
            raise
"""


def ask(program: str, *arguments: str, path: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a program in a process that finds packages at `path`."""
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(path), "OMP_NUM_THREADS": "1"},
    )


def test_new_packages_install_pass_their_own_tests_keep_the_contract_and_run(command: Any, tmp_path: Path) -> None:
    target, out, packages = tmp_path / "installed", tmp_path / "runs", []
    for kind, (name, options) in TRIALS.items():
        answer = command("new", kind, name, "--folder", tmp_path)
        assert answer.code == 0
        package = tmp_path / name
        assert answer.out.splitlines()[1:] == [
            f"  pip install -e {package}",
            f"  rrbench check {name}",
            f"  rrbench run {options}",
            f"  python -m pytest {package}",
        ]
        assert f"    rrbench run {options}\n" in (package / "README.md").read_text()
        packages.append(str(package))
    install = ["pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--no-compile"]
    subprocess.run([sys.executable, "-m", *install, "--target", str(target), *packages], check=True, timeout=200)
    config = tmp_path / "short.toml"
    config.write_text(SHORT)
    run = f"run --config {config} --out {out} --device cpu --limit 100 --frameworks {WAY} --dataset {DATA}".split()
    run += f"--network {NET} --budgets linf:1/10 --rejectors {IDEA},{IDEA}(tau=2) --attacks {PUSH}(steps=2)".split()
    tests = ":".join(f"{package}/tests" for package in packages)
    done = ask(TRIAL, tests, ":".join(name for name, _ in TRIALS.values()), *run, path=target, folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    kept = [int(count) for count in re.findall(r"^(\d+) checks, all kept$", done.stdout, re.MULTILINE)]
    assert kept == [12, 15, 7, 5, 4]
    assert f"{sum(kept) + len(kept)} passed" in done.stdout, (
        "a package's own tests are its checks, and one of its table"
    )
    assert "4 rows in" in done.stdout
    assert "gradients an image" in done.stderr, "progress goes to stderr"
    assert "gradients an image" not in done.stdout
    rows = read_rows(out)
    assert {(row.dataset, row.network, row.framework) for row in rows} == {(DATA, NET, WAY)}
    assert {(row.rejector, row.n, row.status) for row in rows} == {(IDEA, 100, "ok"), (f"{IDEA}(tau=2)", 100, "ok")}
    moved = [row.auc for row in rows if row.attack != "clean"]
    assert moved[0] == moved[1] is not None, "a temperature does not change the order of gaps"
    clean = {row.acc_all for row in rows if row.attack == "clean"}
    assert min(filter(None, clean)) > 50, "the network learns the quarters"


CERTAINTY = """        first, second = (outputs.logits.double() / self.tau).topk(2, dim=1).values.unbind(1)
        return first - second
"""
FIT = """
    def fit(self, clean, labels):
        self.{where} = {value}
"""
ANSWER = "        return search("

# {name: (kind, what is replaced, by what, the line that its own tests print; none where the idea is right)}
IDEAS: dict[str, tuple[Kind, str, str, str]] = {
    "idea-entropy": (
        "rejector",
        CERTAINTY,
        "        p = (outputs.logits.double() / self.tau).softmax(1)\n"
        "        return (p * p.clamp_min(1e-300).log()).sum(1)\n",
        "",
    ),
    "idea-centred": (
        "rejector",
        CERTAINTY,
        "        return -(outputs.features - self.fitted['mean']).double().square().sum(1)\n"
        "    needs = frozenset({'features'})\n" + FIT.format(where="fitted", value="{'mean': clean.features.mean(0)}"),
        "",
    ),
    "idea-trained": (
        "rejector",
        CERTAINTY,
        CERTAINTY + "\n    def training_loss(self, outputs, labels, classifier_loss):\n"
        "        return classifier_loss + self.tau * outputs.logits.square().mean()\n",
        "",
    ),
    "own-key": (
        "rejector",
        CERTAINTY,
        CERTAINTY + "\n    def training_key(self):\n        return 'mine'\n",
        "delete it",
    ),
    "fewer-settings": (
        "rejector",
        CERTAINTY,
        CERTAINTY + "\n    after_training = frozenset({'tau'})\n"
        "    def training_loss(self, outputs, labels, classifier_loss):\n"
        "        return classifier_loss + self.tau * outputs.logits.square().mean()\n",
        "take tau out of after_training",
    ),
    "idea-featured": (
        "rejector",
        CERTAINTY,
        "        return outputs.features.square().sum(1)\n",
        "IdeaFeatured reads features: write needs = frozenset({'features'})",
    ),
    "idea-forgetful": (
        "rejector",
        CERTAINTY,
        "        return -(outputs.logits - self.mean).double().square().sum(1)\n"
        + FIT.format(where="mean", value="clean.logits.mean(0)"),
        "fit of IdeaForgetful writes self.mean: only self.fitted is kept",
    ),
    "idea-ranked": (
        "rejector",
        CERTAINTY,
        "        best = outputs.logits.double().amax(1)\n        return best - best.mean()\n",
        "the certainty of IdeaRanked depends on the batch",
    ),
    "idea-blind": (
        "attack",
        "    is_adaptive = True",
        "    is_adaptive = False",
        "IdeaBlind reads the rejector: write is_adaptive = True",
    ),
    "idea-bare": ("attack", ANSWER, "        return batch.images\n" + ANSWER, "write return Moved(images)"),
    "way-forgetful": (
        "framework",
        "return victim.training_loss(outputs, batch.labels, loss)",
        "return loss",
        "a rejector's own loss is not in it: return victim.training_loss(outputs, labels, loss)",
    ),
    "way-short": (
        "framework",
        "loss = F.cross_entropy(outputs.logits, batch.labels)",
        "loss = F.cross_entropy(outputs.logits[:8], batch.labels[:8])",
        "its loss does not change with the labels of 12 of 20 images, the first at place 8: use the whole batch",
    ),
    "other-way": (
        "framework",
        "loss = F.cross_entropy(outputs.logits, batch.labels)",
        "loss = F.multi_margin_loss(outputs.logits, batch.labels)",
        "",
    ),
    "data-drawn": (
        "dataset",
        "torch.Generator().manual_seed(0)",
        "None",
        "two loads give other test images: draw splits from a fixed seed",
    ),
    "data-bright": (
        "dataset",
        "images.clamp(0, 1), labels",
        "images.clamp(0, 1) * (255 if split == 'train' else 1), labels",
        "train: images must lie in [0, 1]",
    ),
    "net-headless": (
        "network",
        "return Composed(info, layers, features, rejector)",
        "net = Composed(info, layers, features, rejector)\n        net.head = None\n        return net",
        "the head has 0 outputs, not 1: call rejector.build_head",
    ),
    "other-net": ("network", "nn.ReLU()", "nn.Tanh()", ""),
    "other-climb": (
        "attack",
        "wrong + self.weight * victim.log_certainty(outputs, labels)[0]",
        "self.weight * victim.certainty(outputs, labels)",
        "",
    ),
}


def test_the_packages_own_tests_outlast_another_idea_and_fail_for_a_broken_one(tmp_path: Path) -> None:
    for name, (kind, old, new, _) in IDEAS.items():
        source = write_plugin(kind, name, tmp_path) / name.replace("-", "_") / f"{kind}.py"
        text = source.read_text()
        assert old in text, name
        source.write_text(text.replace(old, new))
    path = os.pathsep.join(str(tmp_path / name) for name in IDEAS)
    program = "import sys, pytest; sys.exit(int(pytest.main(sys.argv[1:])))"
    options = ["-q", "-rf", "--tb=short", "-p", "no:cacheprovider", "--import-mode=importlib", "."]
    done = ask(program, *options, path=Path(path), folder=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    failed = set(re.findall(r"^FAILED ([\w-]+)/tests/", done.stdout, re.MULTILINE))
    assert failed == {name for name, (*_, line) in IDEAS.items() if line}, done.stdout
    for name, (*_, line) in IDEAS.items():
        assert line in done.stdout, name


BASES: dict[Kind, str] = {
    "rejector": "Rejector",
    "attack": "Attack",
    "framework": "Framework",
    "dataset": "DataSource",
    "network": "NetworkSource",
}


@pytest.mark.parametrize("kind", BASES)
def test_a_new_package_is_small_and_leaves_no_gap_to_fill(kind: Kind, tmp_path: Path) -> None:
    package = write_plugin(kind, "my-second-idea", tmp_path)
    assert {str(path.relative_to(package)) for path in package.rglob("*") if path.is_file()} == {
        "pyproject.toml",
        "README.md",
        "my_second_idea/__init__.py",
        f"my_second_idea/{kind}.py",
        "tests/test_my_second_idea.py",
    }
    text = "".join(path.read_text() for path in package.rglob("*") if path.is_file())
    assert "@" not in text.replace("@dataclass", "").replace("@pytest", "")
    assert f"class MySecondIdea({BASES[kind]})" in text
    project = tomllib.loads((package / "pyproject.toml").read_text())["project"]
    assert project["entry-points"] == {f"rrbench.{kind}s": {"my-second-idea": f"my_second_idea:{kind.upper()}S"}}
    for path in package.rglob("*.py"):
        compile(path.read_text(), str(path), "exec")


def test_the_next_steps_can_be_pasted_though_the_folder_has_spaces(command: Any, tmp_path: Path) -> None:
    answer = command("new", "rejector", "spaced-idea", "--folder", tmp_path / "my plugins")
    assert f"pip install -e '{tmp_path}/my plugins/spaced-idea'" in answer.out


@pytest.mark.parametrize(
    "name",
    ["My-Idea", "my_idea", "my idea", "-idea", "idea-", "my--idea", "1idea", "", "../idea", "/tmp/idea", "idé", "a.b"],
)
def test_a_bad_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UseError, match="is no plugin name"):
        write_plugin("rejector", name, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["rr", "confidence", "ccat", "outside-gap"])
def test_a_name_that_is_taken_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UseError, match=r"a rejector .* is installed already"):
        write_plugin("rejector", name, tmp_path)


@pytest.mark.parametrize("name", ["pgd", "clean", "outside-corner"])
def test_an_attack_s_name_that_is_taken_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UseError, match=r"an attack .* is installed already"):
        write_plugin("attack", name, tmp_path)


@pytest.mark.parametrize(
    ("kind", "name", "line"),
    [
        ("framework", "trades", "a framework 'trades' is installed already"),
        ("dataset", "digits", "a data set 'digits' is installed already"),
        ("network", "resnet18", "a network 'resnet18' is installed already"),
        ("attack", "pgd7", r"'pgd7' is short for pgd\(steps=7\); choose another name"),
        ("attack", "pgd100x10", r"'pgd100x10' is short for pgd\(steps=100,restarts=10\)"),
        ("dataset", "all", "'all' stands for every data set"),
        ("rejector", "own", "'own' stands for objects that are given in Python"),
        ("network", "composed", "'composed' would hide Composed, which its file imports; choose another name"),
        ("dataset", "batch", "'batch' would hide Batch, which its file imports"),
        ("rejector", "scikit-learn", "a package 'scikit-learn' is installed already, and yours would replace it"),
    ],
)
def test_a_name_that_means_something_already_is_refused(tmp_path: Path, kind: Kind, name: str, line: str) -> None:
    with pytest.raises(UseError, match=line):
        write_plugin(kind, name, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("kind", "name"), [("rejector", "pgd7"), ("attack", "clean2"), ("framework", "pgd-at7")])
def test_digits_at_the_end_of_a_name_are_no_short_form_where_nothing_has_steps_and_restarts(
    tmp_path: Path, kind: Kind, name: str
) -> None:
    assert write_plugin(kind, name, tmp_path).is_dir()


@pytest.mark.parametrize("name", ["class", "import", "lambda"])
def test_a_word_of_python_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UseError, match="is a word of Python"):
        write_plugin("rejector", name, tmp_path)


@pytest.mark.parametrize("name", ["torch", "rrbench", "numpy", "json"])
def test_a_name_that_would_hide_another_package_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UseError):
        write_plugin("rejector", name, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_or_file_is_never_touched(tmp_path: Path) -> None:
    (tmp_path / IDEA).mkdir()
    (tmp_path / IDEA / "work.py").write_text("months of it")
    (tmp_path / "other-idea-of-the-tests").write_text("a file")
    for name in (IDEA, "other-idea-of-the-tests"):
        with pytest.raises(UseError, match="exists already"):
            write_plugin("rejector", name, tmp_path)
    assert (tmp_path / IDEA / "work.py").read_text() == "months of it"
    assert (tmp_path / "other-idea-of-the-tests").read_text() == "a file"
    assert len(list(tmp_path.rglob("*"))) == 3


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UseError, match="cannot write"):
        write_plugin("rejector", IDEA, tmp_path / "file")
