"""Hangs in a start-up, with the real product: at imports and before the model is built, under every layer."""

from __future__ import annotations

from pathlib import Path

import pytest
from fault_matrix import MATRIX, START_TIMEOUT, settings_of
from fault_times import note_times, seconds_of_faults
from product import Run, make_run, same

from runner.errors import ExitCode
from runner.faults.records import read_records
from runner.ledger.reader import read_run

pytestmark = pytest.mark.slow

LONGEST = 50  # seconds to the first step after it, or to the end of the command
SOON = {"recovery.start_timeout": START_TIMEOUT}


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("kind", ["hang", "native_hang", "sigstop"])
@pytest.mark.parametrize("layer", MATRIX)
def test_a_hang_before_the_model_is_built_ends_as_the_table_says(
    tmp_path: Path, undisturbed: Run, layer: str, kind: str, rank: int
) -> None:
    settings = settings_of(layer, kind) | {
        "faults.at": [{"step": 1, "rank": rank, "type": kind, "phase": "start"}],
        "recovery.process_group_timeout": "90s",  # nobody else notices first
        **SOON,
    }
    if "inprocess" in layer:
        watches = {"soft_timeout": "60s", "hard_timeout": "70s", "barrier_timeout": "100s"}
        settings |= {f"recovery.inprocess.{name}": value for name, value in watches.items()}
        settings |= {"recovery.ft_launcher.rank_heartbeat_timeout": "80s"} if "ft" in layer else {}
    run = make_run(tmp_path, settings)
    done = run.command()
    (seconds,) = seconds_of_faults(run.folder).values()
    assert seconds < LONGEST
    note_times(run.folder, layer)
    if MATRIX[layer][kind] == "ends":
        assert done.returncode == ExitCode.CRASHED, done.stdout + done.stderr
        assert f"nvrx-run: rank {rank} hung in start-up (model): not done after" in done.stderr
        assert "Traceback" not in done.stderr
        run.finish()
    else:
        assert done.returncode == 0, done.stdout + done.stderr
        processes = {record.stamp.pid for record in read_run(run.folder).records if record.stamp.rank >= 0}
        assert len(processes) == 2 if MATRIX[layer][kind] == "in place" else len(processes) > 2
    causes = [record for record in read_records(run.folder) if not record.consequence]
    assert {(cause.kind, cause.rank) for cause in causes} == {("hang", rank)}, causes
    # A frozen process writes nothing.
    assert all(("injector.py" in cause.stacks) == (kind != "sigstop") for cause in causes), causes
    assert same(run.state(), undisturbed.state())


# Runs in every Python process of the command that finds it on its path.
HOOK = """
import os, pathlib, sys, time

class Hangs:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r} and ({where}) and not pathlib.Path({marker!r}).exists():
            pathlib.Path({marker!r}).touch()
            while True:
                time.sleep(0.1)

sys.meta_path.insert(0, Hangs())
"""


def hook(folder: Path, module: str, where: str) -> dict[str, str]:
    """Environment in which the import of `module` hangs, once, in the process that `where` is true of."""
    (folder / "site").mkdir()
    text = HOOK.format(module=module, where=where, marker=str(folder / "hung"))
    (folder / "site" / "sitecustomize.py").write_text(text)
    return {"PYTHONPATH": str(folder / "site")}


@pytest.mark.parametrize("layer", MATRIX)
def test_workers_do_without_a_fork_server_that_hangs_in_its_imports(
    tmp_path: Path, undisturbed: Run, layer: str
) -> None:
    run = make_run(tmp_path, settings_of(layer) | SOON)
    done = run.finish(**hook(tmp_path, "structlog", "'--fork-server' in sys.orig_argv"))
    assert "the fork server hung in its imports and was killed" in done.stderr
    assert same(run.state(), undisturbed.state())


@pytest.mark.parametrize("layer", ["inprocess", "ft_launcher+inprocess"])
def test_a_worker_that_hangs_in_an_import_is_killed_and_named(
    tmp_path: Path, undisturbed: Run, layer: str
) -> None:
    run = make_run(tmp_path, settings_of(layer) | SOON)
    # What a worker imports that its fork server has not.
    environment = hook(tmp_path, "runner.recovery.inprocess", "os.environ.get('RANK') == '1'")
    done = run.command(**environment)
    if layer == "inprocess":
        assert done.returncode == ExitCode.CRASHED
        assert "nvrx-run: rank 1 hung in start-up (imports): not done after" in done.stderr, done.stderr
        run.finish(**environment)
    else:
        assert done.returncode == 0, done.stdout + done.stderr
    (cause,) = [record for record in read_records(run.folder) if not record.consequence]
    assert (cause.kind, cause.rank) == ("hang", 1)
    assert "sitecustomize.py" in cause.stacks
    assert same(run.state(), undisturbed.state())
