"""Standard output that is full, closed or no longer read: one line or silence, and an exit code that says which."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from example_runs import training_run

from runner import cli
from runner.bench import cli as bench
from runner.report import cli as report
from runner.train import prepare_data

ROOT = Path(__file__).parents[2]
RECIPE = str(ROOT / "recipes" / "gpt2-sync-none.yaml")
SUITE = str(ROOT / "recipes" / "suites" / "laptop.yaml")
PRINTS = {
    **{
        name: (cli.main, (f"--{name}", RECIPE))
        for name in (
            "validate", "explain", "emit-command", "emit-manifest", "emit-data-job", "emit-sbatch", "checkpoints",
            "faults",
        )
    },
    "emit-schema": (cli.main, ("--emit-schema",)),
    "help": (cli.main, ("--help",)),
    "version": (cli.main, ("--version",)),
    "report": (report.main, ("{run}", "--text")),
    "report of several": (report.main, ("{run}", "{run}/../other", "--text")),
    "report as JSON": (report.main, ("{run}", "--json")),
    "costs": (report.main, ("{run}", "--costs", "{folder}/costs.json")),
    "bench": (bench.main, (SUITE, "--list", "--out", "{folder}/bench")),
}  # fmt: skip
FULL = "standard output cannot be written: No space left on device"

CLOSED = "standard output is closed; open it, e.g. with >/dev/null"


@pytest.fixture(autouse=True)
def _filled_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shipped recipe's examples, of which an emission would warn."""
    monkeypatch.setenv("IMAGE", "registry.example/nvrx-run:0.1.0")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("runs")
    training_run(base / "other", steps=20, every=10, faults=0)
    return training_run(base / "run", steps=40, every=10, faults=1)


def call(main: Callable[[list[str]], int], arguments: tuple[str, ...], **names: object) -> int:
    try:
        return int(main([argument.format(**names) for argument in arguments]))
    except SystemExit as end:
        return int(end.code or 0)


@pytest.mark.parametrize("what", PRINTS)
def test_a_full_device_is_one_line(
    what: str, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    main, arguments = PRINTS[what]
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert call(main, arguments, run=run, folder=tmp_path) == 1
    lines = [line for line in capsys.readouterr().err.splitlines() if "warning" not in line]
    assert len(lines) == 1 and lines[0].endswith(FULL), lines


@pytest.mark.parametrize("what", PRINTS)
def test_a_reader_that_has_seen_enough_is_no_error(
    what: str, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    main, arguments = PRINTS[what]
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        assert call(main, arguments, run=run, folder=tmp_path) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("nvrx-run --emit-manifest {recipe} > /dev/full", f"nvrx-run: {FULL}\n1\n"),
        ("nvrx-run --emit-manifest {recipe} >&-", f"nvrx-run: {CLOSED}\n1\n"),
        ("nvrx-run --explain {recipe} | head -n 0", "0\n"),
        ("nvrx-report {run} --text | head -n 1 > /dev/null", "0\n"),
        ("nvrx-report {run} --text > /dev/full", f"nvrx-report: {FULL}\n1\n"),
        ("nvrx-bench {suite} --list --out {out} > /dev/full", f"nvrx-bench: {FULL}\n1\n"),
        ("nvrx-run --validate {recipe}x 2> /dev/full > /dev/null", "2\n"),
    ],
)  # fmt: skip
def test_nothing_is_left_to_fail_when_the_process_ends(
    command: str, says: str, run: Path, tmp_path: Path
) -> None:
    line = command.format(recipe=RECIPE, run=run, suite=SUITE, out=tmp_path / "bench")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", f"{line}; echo ${{PIPESTATUS[0]}} >&2"],
        capture_output=True, text=True, timeout=60, check=True, env={**os.environ, "PATH": path},
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("", says)


@pytest.mark.parametrize("what", [("--text",), ("--json",), ("--costs", "costs.json")])
def test_a_folder_for_what_is_not_written_is_refused(
    what: tuple[str, ...], run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(report.main, ("{run}", "--out", "page", *what), run=run) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and f"argument {what[0]}: not allowed with argument --out" in error


def test_a_run_is_not_compared_with_itself(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(report.main, ("{run}", "{run}", "--text"), run=run) == 2
    assert capsys.readouterr().err == f"nvrx-report: {run} is given twice; name each run once\n"
    (tmp_path / "link").symlink_to(run)
    assert call(report.main, ("{run}", "{folder}/link"), run=run, folder=tmp_path) == 2
    error = f"nvrx-report: {run} and {tmp_path}/link are one folder; name each run once\n"
    assert capsys.readouterr().err == error


@pytest.mark.parametrize("seconds", ["nan", "inf", "-inf", "-1", "0", "1e9", "soon"])
def test_an_interval_that_no_clock_has_is_one_line(
    seconds: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(report.main, ("{run}", f"--watch={seconds}"), run=run) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert f"--watch: {seconds} is not a number of seconds above 0, at most 86400" in error


@pytest.mark.parametrize(
    ("main", "arguments"),
    [
        (cli.main, ("--emit-manifest", RECIPE, "-o", "")),
        (cli.main, ("--export", RECIPE, "latest", "-o", "")),
        (cli.main, ("--validate", "")),
        (cli.main, ("",)),
        (report.main, ("",)),
        (report.main, ("{run}", "--out", "")),
        (report.main, ("{run}", "--costs", "")),
        (bench.main, ("",)),
        (bench.main, (SUITE, "--list", "--out", "")),
    ],
)
def test_an_empty_path_does_not_stand_for_the_working_folder(
    main: Callable[[list[str]], int],
    arguments: tuple[str, ...],
    run: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert call(main, arguments, run=run) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "a path is empty" in error


@pytest.mark.parametrize("kind", ["pipe", "socket", "device"])
@pytest.mark.parametrize("main", [cli.main, bench.main])
def test_what_is_no_file_is_refused_before_it_is_opened(
    main: Callable[[list[str]], int], kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    if kind == "pipe":
        os.mkfifo("it")
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind("it")
    else:
        Path("it").symlink_to("/dev/zero")
    options = () if main is bench.main else ("--validate",)
    assert call(main, (*options, "it")) == 2
    output = "".join(capsys.readouterr())
    assert f"it is a {kind}, not a file" in output and "Traceback" not in output


def test_a_suite_given_as_a_recipe_is_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(cli.main, ("--validate", SUITE)) == 2
    findings = [line for line in capsys.readouterr().out.splitlines() if "error[" in line]
    assert len(findings) == 1 and "is a suite of nvrx-bench, not a recipe" in findings[0]


@pytest.mark.parametrize(
    ("main", "arguments"),
    [
        (cli.main, (RECIPE,)),
        (cli.main, ("--emit-command", RECIPE)),
        (cli.main, ("--export", RECIPE, "latest")),
        (bench.main, (SUITE, "--list")),
    ],
)
def test_a_working_folder_that_was_removed_is_one_line(
    main: Callable[[list[str]], int], arguments: tuple[str, ...], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    assert call(main, arguments) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.endswith("the working folder is not there any more; cd to one that is")


def test_a_run_whose_streams_are_closed_opens_no_file_in_their_place(tmp_path: Path) -> None:
    code = (
        "import sys; from runner.streams import go_on_unread; go_on_unread(); print('lost'); sys.stdout.flush()\n"
        "with open('opened', 'w') as file: file.write(str(file.fileno()))"
    )
    line = f'cd {tmp_path} && "$0" -c "$1" <&- >&- 2>&-'
    subprocess.run(["bash", "-c", line, sys.executable, code], check=True, timeout=60)
    assert int((tmp_path / "opened").read_text()) > 2


@pytest.mark.parametrize(
    ("main", "arguments"),
    [
        (report.main, ("{run}", "--out")),
        (report.main, ("{run}", "--costs")),
        (bench.main, (SUITE, "--out")),
        (cli.main, ("--emit-manifest", RECIPE, "-o")),
    ],
)
def test_a_place_that_cannot_be_written_is_one_line(
    main: Callable[[list[str]], int], arguments: tuple[str, ...], run: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    (tmp_path / "file").touch()
    assert call(main, (*arguments, f"{tmp_path}/file/below"), run=run) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "cannot be written: Not a directory" in error
    assert ".partial" not in error  # a name that nobody gave


def test_an_interrupt_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object) -> int:
        signal.raise_signal(signal.SIGINT)
        return 0

    monkeypatch.setitem(cli._ACTIONS, "explain", interrupt)
    monkeypatch.setattr(prepare_data, "_prepare", interrupt)
    before = signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # ignored where a shell runs us behind others
    try:
        for main, arguments, program in (
            (cli.main, ("--explain", RECIPE), "nvrx-run"),
            (prepare_data.main, (RECIPE,), "nvrx-data"),
        ):
            assert call(main, arguments) == 130
            assert capsys.readouterr().err == f"{program}: interrupted\n"
    finally:
        signal.signal(signal.SIGINT, before)
