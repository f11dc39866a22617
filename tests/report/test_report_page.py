"""`nvrx-report`: the page in a real browser, the files beside it, the command."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib")
from browserlab import chromium, look_at
from example_runs import training_run
from PIL import Image

from runner.report import cli
from runner.report.cli import main
from runner.report.view import view_run

needs_browser = pytest.mark.skipif(
    chromium() is None, reason="no Chromium here (Debian: apt-get install chromium)"
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("runs")
    for layer in ("inprocess", "ft_launcher", "kubernetes"):
        training_run(base / layer, layer=layer, steps=200, every=50, faults=2)
    (base / "kubernetes" / "cell.json").write_text('{"name": "kubernetes", "baseline": "kubernetes"}')
    for mode in ("sync", "async"):
        for every in (20, 50):
            training_run(base / f"{mode}-{every}", mode=mode, every=every, steps=200, faults=0)
    return base


def check_page(seen: dict[str, Any]) -> None:
    assert seen["fetched"] == []  # self-contained
    assert seen["overflow"] <= 0 and max(seen["tables_cut"]) <= 0
    assert seen["double_ids"] == [] and seen["dangling"] == []
    assert "nan" not in seen["text"].lower().split() and "None" not in seen["text"]
    for figure in seen["figures"]:
        assert figure["width"] > 900 and figure["height"] > 100 and figure["shapes"] > 5, figure["id"]
        assert figure["outside"] == 0, f"{figure['id']}: text is cut off"
        assert figure["label"]
    anchors = [link for link in seen["links"] if link["href"].startswith("#")]
    assert len(anchors) >= 4 and all(link["reached"] for link in anchors), anchors
    picture = Image.open(seen["screenshot"])
    assert picture.width == 1200 and len(picture.convert("RGB").getcolors(1 << 24) or []) > 50


@needs_browser
def test_the_page_of_a_run_shows_text_figures_and_links_in_a_browser(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(runs / "inprocess"), "--out", str(tmp_path / "report")]) == 0
    assert "Where the wall time went" in capsys.readouterr().out
    seen = look_at(tmp_path / "report", tmp_path, "run.png")
    check_page(seen)
    account = json.loads((tmp_path / "report" / "report.json").read_text())
    assert seen["title"] == "Run inprocess"
    for text in (f"{100 * account['training_goodput']:.2f} %", "200\nuseful steps", "wall time", "100.00 %"):
        assert text in seen["text"]
    assert [figure["id"] for figure in seen["figures"]] == [
        "figure-split", "figure-loss", "figure-timeline", "figure-step_time",
    ]  # fmt: skip
    timeline = seen["figures"][2]["texts"]
    assert {"job", "rank 0", "rank 3", "useful", "detection"} <= set(timeline)
    assert {"loss", "step", "fault"} <= set(seen["figures"][1]["texts"])
    files = {link["download"]: link["content"] for link in seen["links"] if "download" in link}
    assert json.loads(files["report.json"]) == account
    for name in ("steps.csv", "recoveries.csv", "saves.csv"):
        assert files[name] == (tmp_path / "report" / name).read_text()


@needs_browser
def test_the_page_of_several_runs_shows_the_three_figures_with_published_values(
    runs: Path, tmp_path: Path
) -> None:
    assert main([*(str(path) for path in sorted(runs.iterdir())), "--out", str(tmp_path / "report")]) == 0
    seen = look_at(tmp_path / "report", tmp_path, "comparison.png")
    check_page(seen)
    texts = {figure["id"]: figure["texts"] for figure in seen["figures"]}
    assert set(texts) == {"figure-layers", "figure-efficiency_by_interval", "figure-efficiency_by_scale"}
    assert {"31", "25.5", "11.5", "87", "270"} <= set(texts["figure-layers"])
    assert {"14.7", "29.6", "99.8"} <= set(texts["figure-efficiency_by_interval"])
    assert {"59.0", "99.2", "60.3"} <= set(texts["figure-efficiency_by_scale"])
    assert "Kubernetes (imitated)" in seen["text"]


def test_what_was_imitated_is_said_of_our_runs_and_not_of_the_published_ones(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    views = [view_run(path) for path in sorted(runs.iterdir())]
    page = cli.write_report(views, tmp_path).read_text()
    ours, _, published = page.partition("Published values</h2>")
    assert "Kubernetes (imitated)" in ours
    assert "Kubernetes restart" in published
    assert "imitated" not in published
    rows = [line for line in cli.side_by_side(views).splitlines() if line.split()[:1] == ["kubernetes"]]
    assert ["none, Kubernetes (imitated)" in row for row in rows] == [True]


@pytest.mark.parametrize("here", [1, 2])
def test_a_page_names_the_runs_that_are_missing_from_it(runs: Path, tmp_path: Path, here: int) -> None:
    views = [view_run(path) for path in sorted(runs.iterdir())[:here]]
    missing = [("faults-none", "failed: exit code 1 <again>")]
    text = cli.write_report(views, tmp_path / "report", missing=missing).read_text()
    assert "Not here" in text and "faults-none" in text and "exit code 1 &lt;again&gt;" in text
    assert "Not here" not in cli.write_report(views, tmp_path / "report").read_text()


def test_tables_and_figures_lie_beside_the_page_and_agree_with_the_split(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "report"
    assert main([str(runs / "ft_launcher"), "--out", str(out)]) == 0
    account = json.loads((out / "report.json").read_text())
    assert sum(account["split_s"].values()) == pytest.approx(account["wall_s"], abs=1e-6)
    steps = list(csv.DictReader(io.StringIO((out / "steps.csv").read_text())))
    assert sum(int(row["kept"]) for row in steps) == account["useful_steps"] == 200
    assert len(steps) == account["useful_steps"] + account["replayed_steps"]
    recoveries = list(csv.DictReader(io.StringIO((out / "recoveries.csv").read_text())))
    assert [float(row["total_s"]) for row in recoveries] == pytest.approx(
        [recovery["total_s"] for recovery in account["recoveries"]]
    )
    for name in ("loss", "split", "timeline", "step_time"):
        assert (out / "figures" / f"{name}.svg").read_text().startswith("<svg")
        assert Image.open(out / "figures" / f"{name}.png").width > 1000


def test_the_same_run_gives_the_same_figures(runs: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        assert main([str(runs / "inprocess"), "--out", str(tmp_path / name)]) == 0
    for path in (tmp_path / "a" / "figures").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / "figures" / path.name).read_bytes()


def test_a_run_that_goes_on_has_a_page(runs: Path, tmp_path: Path) -> None:
    going_on = tmp_path / "run"
    (going_on / "ledger").mkdir(parents=True)
    for path in (runs / "inprocess" / "ledger").iterdir():
        data = path.read_bytes()
        (going_on / "ledger" / path.name).write_bytes(
            data[: int(len(data) * 0.6)]
        )  # torn in the middle of a line
    assert main([str(going_on)]) == 0
    assert "was lost without an end" in (going_on / "report" / "index.html").read_text()


def test_a_run_without_any_step_has_a_page_whatever_its_folder_is_called(tmp_path: Path) -> None:
    tmp_path = tmp_path / os.fsdecode(b"\xfcber")
    tmp_path.mkdir()
    from ledgerlab import Lab

    lab = Lab()
    lab.launch()
    lab.wait(1)
    lab.launched(2)
    assert main([str(lab.write(tmp_path)), "--out", str(tmp_path / "report")]) == 0
    assert "ended with exit code 2" in (tmp_path / "report" / "index.html").read_text()


def test_json_is_for_scripts_and_text_writes_nothing(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(runs / "async-20"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["useful_steps"] == 200
    assert main([str(runs / "async-20"), str(runs / "sync-20"), "--text"]) == 0
    assert "efficiency" in capsys.readouterr().out
    assert not (runs / "async-20" / "report").exists()


def test_a_folder_that_is_no_run_is_one_clear_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path / "nowhere")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "no ledger" in error
    (tmp_path / "cell" / "run" / "ledger").mkdir(parents=True)
    assert main([str(tmp_path / "cell")]) == 2
    assert f"did you mean {tmp_path}/cell/run?" in capsys.readouterr().err


def test_runs_of_one_name_are_told_apart_by_their_folders(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(runs / "async-20", tmp_path / "async-20")
    assert main([str(runs / "async-20"), str(tmp_path / "async-20"), "--text"]) == 0
    said = capsys.readouterr().out
    assert f"  {runs}/async-20 " in said and f"  {tmp_path}/async-20 " in said


def test_the_base_install_prints_the_summary_and_says_what_the_page_needs(runs: Path, tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "for name in ('matplotlib', 'torch', 'numpy', 'rich'): sys.modules[name] = None\n"
        "import importlib.util, runner.report.cli as cli\n"
        "find = importlib.util.find_spec\n"
        "cli.find_spec = lambda name: None if name == 'matplotlib' else find(name)\n"
        "sys.exit(cli.main(sys.argv[1:]))\n"
    )
    command = [sys.executable, "-c", code, str(runs / "inprocess")]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, env={**os.environ, "PYTHONPATH": "."}
    )
    assert (
        done.returncode == 0 and "training goodput" in done.stdout and "pip install matplotlib" in done.stdout
    )
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "x")], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2 and "pip install" in done.stderr


def test_two_reports_at_once_into_one_folder_do_not_disturb_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `--watch` and a second call do."""
    page, write = tmp_path / "index.html", Path.write_bytes

    def write_while_another_does(path: Path, data: bytes) -> int:
        written = write(path, data)
        if data == b"one":
            with monkeypatch.context() as other:
                other.setattr(os, "getpid", lambda: 1)
                cli._replace(page, b"two")
        return written

    monkeypatch.setattr(Path, "write_bytes", write_while_another_does)
    cli._replace(page, b"one")
    assert page.read_bytes() == b"one" and list(tmp_path.iterdir()) == [page]


def test_a_full_disk_leaves_no_half_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space"):
        cli._replace(tmp_path / "index.html", b"half")
    assert list(tmp_path.iterdir()) == []
