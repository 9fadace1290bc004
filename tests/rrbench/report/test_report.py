"""`rrbench report`: its pictures and plots, and that the page keeps its promises."""

import base64
import dataclasses
import io
import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pytest
from scipy.special import softmax

from outline import Outline
from reported_rows import row, text_of
from rrbench.errors import UseError
from rrbench.figures.scored import read_scored
from rrbench.measuring.joining import join
from rrbench.metrics.columns import LABELS, MEANINGS
from rrbench.progress import Silent
from rrbench.report import write_report
from rrbench.report.gallery import FEWER, answers, class_name, magnified
from rrbench.report.origin import show_manifest
from rrbench.report.page import GALLERIES
from rrbench.report.picture import png
from rrbench.report.plots import show_plots
from rrbench.report.results import Results, read_results
from rrbench.report.standings import find_standings
from rrbench.rows.record import read_cell
from rrbench.rows.row import ResultRow, read_rows, to_csv
from rrbench.rows.sight import attack_text

ROOT = Path(__file__).resolve().parents[3]


def plots_of(rows: list[ResultRow]) -> list[str]:
    page = show_plots(Results(Path("rows.csv"), rows), rows, find_standings(rows), "p")
    return re.findall(r"<figcaption>(.*?)</figcaption>", page)


def test_a_figure_that_one_radius_cannot_fill_is_left_out() -> None:
    one = [row("a", "clean", 99), row("a", "pgd10", 90), row("b", "pgd10", 90)]
    assert plots_of(one) == []
    assert [text.partition(" against")[0] for text in plots_of([*one, row("a", "pgd10", 80, eps="1/4")])] == [
        "Accuracy in percent", "TPR-95 in percent", "Robust in percent",
    ]  # fmt: skip


def test_rejectors_that_were_measured_on_other_inputs_are_not_compared() -> None:
    rows = [row("a", "pgd10", 80.0, data_sha256="d" * 64), row("b", "pgd10", 90.0, data_sha256="f" * 64)]
    settings = Results(Path("runs"), rows).settings()
    assert [str(one).split(", ")[3] for one in settings] == [
        "400 test inputs (data dddddddd)",
        "400 test inputs (data ffffffff)",
    ]
    assert list(settings.values()) == [rows[:1], rows[1:]]
    alike = Results(Path("runs"), [rows[0], dataclasses.replace(rows[1], data_sha256="d" * 64)]).settings()
    assert [str(one).split(", ")[3] for one in alike] == ["400 test inputs"]


def test_a_change_is_magnified_around_grey() -> None:
    change = np.array([[[0.0, 8 / 255], [-4 / 255, 2 / 255]]])
    image, times = magnified(change)
    assert times == pytest.approx(255 / 16)
    assert image == pytest.approx(np.array([[[0.5, 1.0], [0.25, 0.625]]]))
    assert magnified(0 * change)[1] == 0


def test_classes_have_their_names() -> None:
    assert [class_name("cifar10", label) for label in (0, 9, 10)] == ["airplane", "truck", "10"]
    assert (class_name("cifar10-c(fog)", 6), class_name("cifar100", 99)) == ("frog", "worm")
    assert class_name("digits", 7) == "7"


def test_the_published_rows_make_a_small_page_with_the_worst_case_first(tmp_path: Path) -> None:
    """Images add at most 12 x 8 x 3 pictures of 4 kB; curves 400 points each."""
    write_report(ROOT / "results" / "cifar10" / "rows.csv", tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert len(text) < 3e6 - GALLERIES * FEWER * 3 * 4300
    assert text.index("preset strong") < text.index("preset paper")
    first = text_of(text[text.index("<tbody>") : text.index("</tbody>")])
    assert "worst-case" in first
    assert re.search(r"never-rejectpgd-at\d", first), "it has a rank"
    far = [each for each in read_rows(ROOT / "results" / "cifar10") if (each.preset, each.eps) == ("paper", "16/255")]
    assert f"<summary>linf:16/255: {len(far)} rows</summary>" in text


def test_a_report_is_made_without_importing_torch() -> None:
    probe = "import sys, rrbench.report; sys.exit('torch' in sys.modules or 'pandas' in sys.modules)"
    subprocess.run([sys.executable, "-c", probe], check=True, timeout=60)


@pytest.mark.parametrize("shape", [(8, 8, 1), (32, 32, 3), (5, 3, 3), (1, 1, 1)])
def test_pictures_are_png_without_loss(shape: tuple[int, int, int]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    read = matplotlib.image.imread(io.BytesIO(png(pixels)), format="png")
    assert np.array_equal(np.rint(255 * read).reshape(shape), pixels)


@pytest.mark.parametrize("is_short", [False, True])
def test_a_gallery_s_numbers_are_those_of_the_score_file(reported: Path, tmp_path: Path, is_short: bool) -> None:
    if is_short:  # its softmax values are rounded, and its first logits are not
        join([reported], tmp_path / "short", Silent(), is_short=True)
    for cell in read_scored(tmp_path / "short" if is_short else reported):
        scores, shown = cell.scores, answers(cell)
        assert len(shown) == 16
        for index, answer in enumerate(shown):
            assert answer.confidence == pytest.approx(softmax(scores.logits[index].astype(float)).max())
            assert (answer.prediction, answer.label) == (scores.logits[index].argmax(), scores.labels[index])
            assert answer.certainty == scores.certainty[index]
            is_right = "right" if answer.prediction == answer.label else "wrong"
            assert cell.row.deploy_threshold is not None
            is_kept = "answered" if answer.certainty >= cell.row.deploy_threshold else "rejected"
            assert answer.verdict == f"{is_right}, {is_kept}"


@pytest.fixture(scope="module")
def page(report_page: Path) -> str:
    return report_page.read_text(encoding="utf-8")


def test_the_page_is_well_formed_and_asks_for_nothing_outside_itself(page: str) -> None:
    outline = Outline(page)
    sources = outline.values("src", "href", "xlink:href", "srcset", "action")
    assert sources
    assert all(source.startswith(("data:image/png;base64,", "#")) for source in sources)
    assert not re.search(r"@import|url\((?!#)", page)
    assert "default-src 'none'" in page
    ids = Counter(outline.values("id"))
    assert max(ids.values()) == 1, "inline figures keep their ids apart"
    assert {source[1:] for source in sources if source.startswith("#")} <= set(ids)
    assert set(re.findall(r"url\(#([^)]*)\)", page)) <= set(ids)


def test_the_page_can_be_heard_and_read_without_a_picture(page: str) -> None:
    outline = Outline(page)
    tags = Counter(tag for tag, key, _ in outline.attributes if key == "alt")
    assert tags["img"] == page.count("<img ") > 0
    assert all(outline.values("alt"))
    assert page.count("<th ") == sum(key == "scope" for tag, key, _ in outline.attributes if tag == "th")
    assert ("html", "lang", "en") in outline.attributes


def test_the_page_shows_the_stored_images_and_every_row(page: str, reported: Path) -> None:
    shown = {source for source in Outline(page).values("src") if source.startswith("data:")}
    clean = next(cell for cell in read_scored(reported) if cell.row.attack == "clean")
    for image in clean.images[:16]:
        pixels = np.rint(255 * image).astype(np.uint8).transpose(1, 2, 0)
        assert "data:image/png;base64," + base64.b64encode(png(pixels)).decode() in shown
    rows = read_rows(reported)
    assert page.count('<tr><th scope="row">rr</th>') == 5 + 2, "five rows, and two budgets at its weakest"
    for each in rows:
        assert f"<td>{attack_text(each)}</td>" in page
    assert "rrbench run --attacks &#x27;pgd10,adaptive(con+rcon,eta=1,steps=10)&#x27;" in page, "as a shell reads it"
    assert "not of trainings" in page
    for column in ("acc_all", "deploy_coverage", "deploy_robust", "deploy_joint"):
        assert f">{LABELS[column]}</th>" in page
        assert f"<dt>{LABELS[column]} <code>{column}</code></dt><dd>percent: {MEANINGS[column]}" in page


def test_a_csv_makes_a_report_that_says_what_it_lacks(reported: Path, tmp_path: Path) -> None:
    shutil.copy(reported / "rows.csv", tmp_path / "rows.csv")
    write_report(tmp_path / "rows.csv", tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    Outline(text)
    assert "A CSV holds no images" in text
    assert "A CSV holds no manifest" in text
    assert "holds best" in text


def test_a_failed_cell_is_shown_with_its_reason(tmp_path: Path) -> None:
    failed = row("a", "pgd100", 0, status="failed", error="NaN <gradients>", n=None, deploy_robust=None, acc_all=None)
    (tmp_path / "rows.csv").write_text(to_csv([row("a", "clean", 99), failed]))
    write_report(tmp_path / "rows.csv", tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "NaN &lt;gradients&gt;" in text
    assert "1 cell measured, 1 failed" in text
    assert "No attack with a budget was measured" in text


def test_a_row_that_a_killed_run_left_out_of_its_csv_is_shown(reported: Path, tmp_path: Path) -> None:
    shutil.copytree(reported, tmp_path / "runs")
    (tmp_path / "runs" / "rows.csv").unlink()
    (tmp_path / "runs" / "manifest.json").unlink()
    results = read_results(tmp_path / "runs")
    assert len(results.measured) == 10
    assert "its manifest is still empty" in show_manifest(results)


def test_a_folder_whose_cells_all_failed_is_still_a_folder(reported: Path, tmp_path: Path) -> None:
    path = sorted((reported / "cells").iterdir())[0]
    record = read_cell(path)[0]
    broken = dataclasses.replace(record.row, status="failed", error="out of luck", n=None)
    (tmp_path / "cells").mkdir()
    content = dataclasses.asdict(dataclasses.replace(record, row=broken)) | {"row_sha256": ""}
    (tmp_path / "cells" / path.name).write_text(json.dumps(content))
    write_report(tmp_path, tmp_path / "report.html")
    assert "out of luck" in (tmp_path / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (to_csv([]), "holds no rows"),
        ("a,b\n1,2\n", "is no results file of rrbench"),
        (to_csv([row("a", "pgd10", 950.0)]), "acc_all of a under pgd10 is 950.0"),
    ],
)
def test_results_that_cannot_be_reported_are_one_line(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "rows.csv").write_text(content)
    with pytest.raises(UseError, match=message):
        write_report(tmp_path, tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


ODD = {
    "settings that cannot be read": {"settings": "["},
    "settings that are none": {"settings": "null"},
    "members and revisions that are none": {"settings": '{"members": 3}', "revisions": '{"members": 3, "packages": 3}'},
    "an interval from 100 to 100": {
        "deploy_robust": None, "acc_tpr95": 100.0, "acc_tpr95_low": 100.0, "acc_tpr95_high": 100.0,
    },
    "a formula that is none": {"trained_as": "$x_{$", "note": "<script>alert(1)</script>"},
}  # fmt: skip


@pytest.mark.parametrize("changes", ODD.values(), ids=ODD)
def test_an_odd_row_does_not_lose_the_report(tmp_path: Path, changes: dict[str, Any]) -> None:
    rows = [row("rr", attack, 90.0) for attack in ("clean", "pgd10", "adaptive(ce+rcon)")]
    (tmp_path / "rows.csv").write_text(to_csv([dataclasses.replace(each, **changes) for each in rows]))
    write_report(tmp_path, tmp_path / "report.html")
    assert "<script>alert" not in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_a_folder_without_its_score_files_is_reported_without_images(reported: Path, tmp_path: Path) -> None:
    shutil.copytree(reported / "cells", tmp_path / "cells")
    write_report(tmp_path, tmp_path / "report.html")
    assert "Not shown: there is no" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_a_manifest_that_is_none_is_one_line(reported: Path, tmp_path: Path) -> None:
    shutil.copytree(reported / "cells", tmp_path / "cells")
    (tmp_path / "manifest.json").write_text('{"runs": [1]}')
    with pytest.raises(UseError, match="is no manifest"):
        read_results(tmp_path)


def test_the_command_writes_the_same_page_again_and_refuses_in_one_line(
    page: str, reported: Path, tmp_path: Path, command: Callable[..., Any]
) -> None:
    answer = command("report", reported, "--out", tmp_path / "report.html")
    assert answer.code == 0
    assert str(tmp_path / "report.html") in answer.out
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == page
    answer = command("report", tmp_path / "nowhere")
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    (tmp_path / "file").write_text("in the way")
    answer = command("report", reported, "--out", tmp_path / "file" / "report.html")
    assert (answer.code, answer.err.count("\n")) == (2, 1)
