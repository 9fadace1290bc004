"""A data set behind whose name the inputs have changed is refused; before, its old rows were shown."""

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from rrbench import api
from rrbench.errors import UseError
from rrbench.plugins.registry import table
from rrbench.protocols import Batch, DataInfo, DataSource, Split
from rrbench.rows.row import ResultRow

COUNT = 40


@dataclass(frozen=True)
class FromFile(DataSource):
    """Digits' classes and shape; brighter by what a file says."""

    file: str = ""
    info = DataInfo(10, (1, 8, 8), (0.5,), (0.5,), COUNT, COUNT, COUNT)

    def load(self, split: Split, roots: tuple[Path, ...]) -> Batch:
        first = {"test": 0, "train": 100, "calibration": 200}[split]
        images = torch.rand(COUNT, 1, 8, 8, generator=torch.Generator().manual_seed(first)) / 2
        brighter = float((roots[0] / "brighter.txt").read_text())
        return Batch(images + brighter, torch.arange(COUNT) % 10, torch.arange(first, first + COUNT))


@dataclass(frozen=True)
class Hashed(FromFile):
    def content(self) -> str:
        return self.file


def measure(folder: Path, brighter: float, dataset: str, attacks: str = "clean") -> list[ResultRow]:
    (folder / "brighter.txt").write_text(str(brighter))
    config = folder / "tiny.toml"
    recipe = 'epochs = 1\nbatch = 40\nchoose_by = "pgd1"\n'
    config.write_text(
        f"[metrics]\nresamples = 20\n[dataset.from-file.recipe]\n{recipe}[dataset.hashed.recipe]\n{recipe}"
    )
    options = api.RunOptions(
        "confidence", attacks, dataset=dataset, network="small-cnn", frameworks="standard", budgets="linf:1/10",
        config=config, out=folder / "runs", data_dir=folder, device="cpu",
    )  # fmt: skip
    return api.execute(api.prepare(options), ["a test"])


@pytest.fixture(autouse=True)
def sources(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(table("dataset").classes, "from-file", FromFile)
    monkeypatch.setitem(table("dataset").classes, "hashed", Hashed)


@pytest.mark.parametrize("attacks", ["clean", "clean,pgd1"], ids=["finished cells", "a new cell"])
def test_changed_inputs_behind_the_same_name_are_refused_in_one_line(tmp_path: Path, attacks: str) -> None:
    before = measure(tmp_path, 0.0, "from-file")
    with pytest.raises(UseError, match=r"^the test inputs of from-file are others than those that \S+ was measured on"):
        measure(tmp_path, 0.4, "from-file", attacks)
    assert measure(tmp_path, 0.0, "from-file") == before


def test_the_same_inputs_go_on_and_other_inputs_of_another_name_or_sample_are_others(tmp_path: Path) -> None:
    measure(tmp_path, 0.0, "from-file")
    assert len(measure(tmp_path, 0.0, "from-file", "clean,pgd1")) == 2
    first, other = measure(tmp_path, 0.0, "hashed(file=one)"), measure(tmp_path, 0.4, "hashed(file=other)")
    assert first[0].data_sha256 != other[0].data_sha256
