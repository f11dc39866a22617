"""`nvrx-bench`: suites, cells, and the imitated kubelet, with real processes that write real ledgers."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest
from suitelab import SUITES, written

from runner.bench import cli, kubelet
from runner.bench.cell import GRACE, CellResult, Stopped, failed_before, finished_before, make_anew, run_cell
from runner.bench.cli import main
from runner.bench.matrix import Cell, cells_of
from runner.bench.suite import Suite, load_suite
from runner.errors import InputError
from runner.ledger.goodput import account
from runner.ledger.history import NS
from runner.ledger.reader import read_run
from runner.recipe.load import check_file
from runner.report.view import read_label, view_run
from runner.system.lock import take_lock
from runner.system.process import alive

# Stands in for `nvrx-run`: counts its starts, trains two steps a start on one "rank", and crashes until the third.
PROGRAM = """
import sys, time
from pathlib import Path
from runner.ledger.events import *
from runner.ledger.writer import LedgerWriter
folder = Path(sys.argv[1]).parent / "run"
crashes = int(sys.argv[2])
folder.mkdir(exist_ok=True)
start = len(list(folder.glob("start-*")))
(folder / f"start-{start}").touch()
launcher, rank = LedgerWriter(folder, rank=-1, life="l"), LedgerWriter(folder, rank=0, life=str(start))
launcher.record(LaunchStarted(["x"], "none", {}))
rank.record(LifeStarted(1, 0, time.time(), False))
rank.record(Loaded(2 * start, "fresh" if start == 0 else "storage", 0.0))
for step in (2 * start + 1, 2 * start + 2):
    time.sleep(0.02)
    rank.record(StepEnded(step, 0.02, 0.0, 10, 1.0, 0.1, None))
bad = start < crashes
if bad: print("nvrx-run: why it ended\\nnvrx-run: details in a log\\na summary")
rank.record(LifeEnded("error" if bad else "finished"))
launcher.record(LaunchEnded(int(bad)))
sys.exit(int(bad))
"""


def suite(**changes: object) -> Suite:
    data = {
        "name": "s",
        "recipe": "r.yaml",
        "experiments": [{"name": "e", "axes": {"a": {"v": {}}}}],
        **changes,
    }
    return Suite.model_validate(data)


def cell(restart: str = "never") -> Cell:
    return Cell(name="e-v", experiment="e", recipe="# a recipe\n", restart=restart, needs_gpus=0)  # type: ignore[arg-type]


def program(crashes: int) -> object:
    return lambda recipe: [sys.executable, "-c", PROGRAM, str(recipe), str(crashes)]


def run(
    folder: Path, crashes: int, *, restart: str = "kubernetes", timeout: float = 0.3, **changes: object
) -> CellResult:
    return run_cell(
        cell(restart),
        suite(**changes),
        folder,
        group_timeout=timeout,
        say=lambda text: None,
        command=program(crashes),
    )  # type: ignore[arg-type]


@pytest.mark.parametrize("path", sorted(SUITES.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_cell_of_every_shipped_suite_is_a_valid_recipe(path: Path, tmp_path: Path) -> None:
    cells = cells_of(load_suite(path), tmp_path)
    assert len(cells) >= 4
    for one in cells:
        recipe = tmp_path / f"{one.name}.yaml"
        recipe.write_text(one.recipe)
        loaded, problems = check_file(recipe)
        assert loaded is not None, (one.name, [problem.message for problem in problems])
        assert loaded.recipe.name == one.name
        assert loaded.recipe.output.folder == str(tmp_path / one.name / "run")


def test_the_fault_suites_give_every_layer_the_same_faults(tmp_path: Path) -> None:
    for name, experiment in (("article-faults", "layer"), ("laptop", "faults")):
        path = SUITES / f"{name}.yaml"
        seen = set()
        for one in cells_of(load_suite(path), tmp_path):
            if one.experiment == experiment:
                recipe = tmp_path / "recipe.yaml"
                recipe.write_text(one.recipe)
                loaded, _ = check_file(recipe)
                assert loaded is not None
                seen.add(repr(loaded.recipe.faults))
        assert len(seen) == 1


def test_the_article_suite_is_the_articles_experiment(tmp_path: Path) -> None:
    path = SUITES / "article-faults.yaml"
    cells = {one.name: one for one in cells_of(load_suite(path), tmp_path)}
    (tmp_path / "r.yaml").write_text(cells["layer-kubernetes"].recipe)
    loaded, _ = check_file(tmp_path / "r.yaml")
    assert loaded is not None
    recipe = loaded.recipe
    assert (recipe.training.steps, recipe.checkpoint.every) == (2000, 500)
    assert (recipe.faults.count, recipe.faults.seed, recipe.faults.types) == (5, 42, ("exception", "hang"))
    assert recipe.recovery.process_group_timeout == timedelta(seconds=60)
    assert cells["layer-kubernetes"].restart == "kubernetes"


def test_two_at_once_in_one_folder_would_remove_each_others_cells_so_the_second_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = written(tmp_path, "experiments: [{name: e, axes: {a: {v: {}}}}]\n"), tmp_path / "out"
    out.mkdir()
    with take_lock(out / ".lock", 0.0):
        assert main([str(path), "--out", str(out)]) == 2
        assert (
            f"--out: {out} is in use by another nvrx-bench (process {os.getpid()}" in capsys.readouterr().err
        )
        assert main([str(path), "--out", str(out), "--list"]) == 0  # which runs nothing
    assert [entry.name for entry in out.iterdir()] == [".lock"]


def test_looking_at_a_suite_writes_nothing(tmp_path: Path) -> None:
    path = written(tmp_path, "experiments: [{name: e, axes: {a: {v: {}}}}]\n")
    assert main([str(path), "--out", str(tmp_path / "out"), "--list"]) == 0
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("text", [
    "", "{", "null", "[]", '"x"', '{"status": "done"}', "[" * 100_000, "\xff",
    '{"status": "done", "recipe": "# a recipe\\n", "exit_codes": "x", "seconds": 1}',
])  # fmt: skip
def test_a_damaged_mark_of_a_done_cell_means_that_it_runs_again(tmp_path: Path, text: str) -> None:
    folder = tmp_path / "cell"
    (folder / "run" / "ledger").mkdir(parents=True)
    (folder / "cell.json").write_text(text, encoding="latin-1")
    assert finished_before(folder, cell()) is None and failed_before(folder, cell()) == ""
    read_label(folder / "cell.json")
    (folder / "cell.json.partial").touch()  # it was killed while it wrote the mark
    make_anew(folder)
    assert list(folder.iterdir()) == []


def test_a_done_cell_whose_run_was_removed_runs_again(tmp_path: Path) -> None:
    run(tmp_path / "cell", crashes=0)
    assert finished_before(tmp_path / "cell", cell()) is not None
    shutil.rmtree(tmp_path / "cell" / "run")
    assert finished_before(tmp_path / "cell", cell()) is None


def test_a_full_disk_under_the_results_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # of a write: without a path

    path, out = written(tmp_path, "experiments: [{name: e, axes: {a: {v: {}}}}]\n"), tmp_path / "out"
    monkeypatch.setattr(Path, "write_text", full)
    assert main([str(path), "--out", str(out)]) == 13
    assert capsys.readouterr().err == (
        f"nvrx-bench: {out}: No space left on device; make room, then run the same command\n"
    )


def test_no_cell_runs_where_one_is_no_recipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(
        f"name: s\nrecipe: {SUITES.parent / 'quickstart.yaml'}\nexperiments:\n"
        "  - name: e\n    axes: {a: {good: {}, bad: {training: {stepz: 3}}}}\n"
    )
    assert main([str(path), "--out", str(tmp_path / "out")]) == 2
    assert "stepz" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_setting_can_be_overridden_in_every_cell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = SUITES / "laptop.yaml"
    for one in cells_of(load_suite(path), tmp_path, ["training.steps=24", "checkpoint.every=12"]):
        (tmp_path / "recipe.yaml").write_text(one.recipe)
        loaded, problems = check_file(tmp_path / "recipe.yaml")
        assert loaded is not None, (one.name, problems)
        assert (loaded.recipe.training.steps, loaded.recipe.checkpoint.every) == (24, 12)
    for bad in ("training.steps", "=3", "a..b=1", "a.b=[1"):
        assert main([str(path), "--out", str(tmp_path / "out"), "--set", bad]) == 2
        assert f"--set {bad}" in capsys.readouterr().err


def test_the_back_off_is_the_kubelets() -> None:
    waits = []
    last = None
    for _ in range(8):
        last = kubelet.next_backoff(last, ran=30)
        waits.append(last)
    assert waits == [10, 20, 40, 80, 160, 300, 300, 300]
    assert kubelet.next_backoff(300, ran=601) == 10


def test_a_crashed_cell_is_restarted_as_a_kubelet_does_until_it_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubelet, "FIRST_BACKOFF", 0.2)
    result = run(tmp_path / "cell", crashes=2, timeout=0.5)
    assert (result.status, result.exit_codes) == ("done", [1, 1, 0])
    goodput, _, _ = account(read_run(tmp_path / "cell" / "run").records)
    assert goodput.useful_steps == 6 and goodput.restarts == {"command": 2}
    # each restart waited for the peers' timeout and the back-off: 0.5 + 0.2, then 0.5 + 0.4
    assert goodput.split["idle"] > 1.3 * NS
    view = view_run(tmp_path / "cell" / "run")
    assert (view.name, view.layer) == ("e-v", "kubernetes")


def test_a_cell_without_restarts_fails_with_its_exit_code_and_log(tmp_path: Path) -> None:
    result = run(tmp_path / "cell", crashes=1, restart="never")
    assert (result.status, result.exit_codes) == ("failed", [1])
    assert result.note == f"exit code 1: why it ended; see {tmp_path / 'cell' / 'log.txt'}"
    assert failed_before(tmp_path / "cell", cell()) == result.note


def test_restarts_have_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubelet, "FIRST_BACKOFF", 0.01)
    result = run(tmp_path / "cell", crashes=99, timeout=0.0, max_restarts=2)
    assert (result.status, len(result.exit_codes)) == ("failed", 3) and "restarts are spent" in result.note


def test_a_cell_over_its_time_is_stopped_with_all_it_started(tmp_path: Path) -> None:
    code = (
        "import os, subprocess, sys, time; child = subprocess.Popen(['sleep', '60'])\n"
        f"open({str(tmp_path / 'pids')!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}')\n"
        "asked = []\n"
        "def told(*_):\n"  # like nvrx-run: the first one asks for a save, which never comes
        "    asked.append(1)\n"
        "    if len(asked) > 1: child.kill(); sys.exit(1)\n"
        "import signal; signal.signal(signal.SIGTERM, told)\nwhile True: time.sleep(60)\n"
    )
    began = time.monotonic()
    result = run_cell(
        cell(), suite(timeout="1s"), tmp_path / "cell", group_timeout=0, say=print,
        command=lambda recipe: [sys.executable, "-c", code],
    )  # fmt: skip
    assert result.status == "failed" and "stopped after 1 s (the suite's timeout)" in result.note
    assert time.monotonic() - began < GRACE / 2
    for pid in (tmp_path / "pids").read_text().split():
        assert not alive(int(pid))


def test_a_stopped_bench_leaves_no_run_behind_and_the_cell_is_not_done(tmp_path: Path) -> None:
    def interrupt(number: int, frame: object) -> None:
        raise Stopped

    code = f"import os, time; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    old = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 1.5)
    try:
        with pytest.raises(Stopped):
            run_cell(
                cell(), suite(), tmp_path / "cell", group_timeout=0, say=print,
                command=lambda recipe: [sys.executable, "-c", code],
            )  # fmt: skip
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
    assert finished_before(tmp_path / "cell", cell()) is None


def test_a_killed_bench_takes_its_run_along(tmp_path: Path) -> None:
    sleep = f"import os, time; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    program = (
        "import sys\nfrom runner.bench.cell import _run\n"
        f"_run([sys.executable, '-c', {sleep!r}], open('/dev/null', 'ab'), 1e12)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program]) as bench:
        end = time.monotonic() + 30
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            assert time.monotonic() < end
            time.sleep(0.02)
        bench.kill()
    stat = Path("/proc") / (tmp_path / "pid").read_text() / "stat"
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        while stat.read_text().split()[2] != "Z":  # where nobody collects orphans
            assert time.monotonic() < end
            time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_second_interrupt_does_not_break_into_the_end_of_the_run(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    ended = []

    def bench(_: object) -> int:
        try:
            signal.raise_signal(number)
        finally:
            signal.raise_signal(number)
            ended.append(True)
        return 0

    monkeypatch.setattr(cli, "_bench", bench)
    before = {one: signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    try:
        for one in before:
            signal.signal(one, signal.SIG_DFL)
        assert main(["suite.yaml"]) == 130
        assert {signal.getsignal(one) for one in before} == {signal.SIG_DFL}, (
            "others may go on in this process"
        )
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
    assert ended


def test_a_done_cell_is_not_run_again_and_one_that_was_cut_off_starts_anew(tmp_path: Path) -> None:
    folder = tmp_path / "cell"
    run(folder, crashes=0)
    assert finished_before(folder, cell()) is not None
    changed = Cell("e-v", "e", "# another recipe\n", "never", 0)
    assert finished_before(folder, changed) is None
    (folder / "cell.json").unlink()  # as if it had been cut off
    assert finished_before(folder, cell()) is None
    time.sleep(0.01)
    run(folder, crashes=0)
    assert len(list((folder / "run").glob("start-*"))) == 1  # nothing of the first attempt is left
    assert json.loads((folder / "cell.json").read_text())["exit_codes"] == [0]


def test_a_folder_that_is_no_cell_is_never_removed(tmp_path: Path) -> None:
    folder = tmp_path / "cell"
    folder.mkdir()
    (folder / "thesis.tex").write_text("years of work")
    with pytest.raises(InputError, match=r"thesis\.tex"):
        run(folder, crashes=0)
    assert (folder / "thesis.tex").exists()


def test_cells_that_need_more_gpus_are_left_out_aloud(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main([str(SUITES / "article-async.yaml"), "--out", str(tmp_path), "--only", "gpus-8-*", "--list"])
        == 0
    )
    lines = capsys.readouterr().out.partition("\n\n")[0].splitlines()
    assert len(lines) > 2
    assert all("needs 8 GPUs" in line or "to run" in line for line in lines[2:])


def test_cells_without_their_gpus_are_called_left_out_in_the_end_as_in_the_list(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli, "gpu_count", lambda: 0)
    suite = [str(SUITES / "article-async.yaml"), "--out", str(tmp_path), "--only", "gpus-8-*"]
    for more in ([], ["--list"]):
        assert main([*suite, *more]) == 0
        out = capsys.readouterr().out
        states = [line for line in out.splitlines() if line.lstrip().startswith("gpus-8-")]
        assert len(states) > 1
        assert all("left out" in line for line in states)
        assert "skipped" not in out


def test_bench_report_and_live_reporting_start_without_torch_or_numpy() -> None:
    code = (
        "import sys, runner.bench.cli, runner.report.cli, runner.report.scale, runner.report.recipe_advice\n"
        "import runner.ledger.sinks.live, runner.ledger.sinks.prometheus, runner.report.summary\n"
        "heavy = {'torch', 'numpy', 'matplotlib', 'transformers', 'datasets', 'tensorboard', 'wandb', 'mlflow'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"


def test_a_recipe_given_as_a_suite_is_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    recipe = Path(__file__).resolve().parents[2] / "recipes" / "quickstart.yaml"
    assert main([str(recipe)]) == 2
    assert "this is a recipe, not a suite" in capsys.readouterr().err


def test_what_is_wrong_in_every_cell_is_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    suite = Path(__file__).resolve().parents[2] / "recipes" / "suites" / "laptop.yaml"
    assert main([str(suite), "--list", "--set", "foo.bar=1", "--out", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert err.count("`foo` is not a setting of a recipe") == 1
    assert "others:" in err


def test_that_nobody_can_read_the_progress_is_told_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    cli._say("[1/2] one ...")
    cli._say("[2/2] two ...")
    monkeypatch.undo()
    assert capsys.readouterr().err == (
        "nvrx-bench: standard output is closed; open it, e.g. with >/dev/null; the cells go on\n"
    )


def test_the_list_warns_of_cells_whose_layer_survives_no_fault_but_not_of_the_imitated_baseline(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    laptop = (SUITES / "laptop.yaml").read_text()
    suite = tmp_path / "laptop.yaml"
    suite.write_text(laptop.replace("recipe: ..", f"recipe: {SUITES.parent}"))
    assert main([str(suite), "--list", "--out", str(tmp_path / "out")]) == 0
    assert "R606" not in capsys.readouterr().out
    suite.write_text(suite.read_text().replace("restart: kubernetes", "restart: never"))
    assert main([str(suite), "--list", "--out", str(tmp_path / "out")]) == 0
    assert "cell faults-kubernetes:\n" in (out := capsys.readouterr().out) and "warning[R606]" in out
