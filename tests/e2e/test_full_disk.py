"""A disk that fills up, in a save or at any other time, ends the run with its own code; space mends it."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fault_matrix import FULL_DISK, recovery_of
from product import NVRX_RUN, Run, left_behind, make_run, same


def mount(folder: Path, options: str) -> None:
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=True, capture_output=True
    )


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk with room for one of the tiny recipe's checkpoints (0.6 MB) and not for two."""
    folder = tmp_path / "disk"
    folder.mkdir()
    try:
        mount(folder, "size=1000k")
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"a small disk cannot be mounted here (root needed): {error}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True, capture_output=True)


def fill(disk: Path) -> None:
    with contextlib.suppress(OSError), (disk / "filler").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def test_a_disk_that_fills_while_training_leaves_no_room_for_any_word_and_the_code_is_still_right(
    tmp_path: Path, small_disk: Path
) -> None:
    """Nothing can be written: no log, no ledger, no fault record, no outcome, and no checkpoint in the end."""
    mount(small_disk, "remount,size=8m")
    folder = small_disk / "run"
    settings = {
        "output.folder": str(folder), "training.steps": 400, "checkpoint.every": 40, "checkpoint.mode": "sync",
    }  # fmt: skip
    run = Run(make_run(tmp_path, settings).recipe, folder)
    command = subprocess.Popen(
        [NVRX_RUN, str(run.recipe)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path
    )
    end = time.monotonic() + 100
    while command.poll() is None and b'"StepEnded"' not in b"".join(
        path.read_bytes() for path in folder.glob("ledger/rank-*.jsonl")
    ):
        assert time.monotonic() < end
        time.sleep(0.01)
    fill(small_disk)
    _, said = command.communicate(timeout=150)
    assert command.returncode == 13, said
    assert "Traceback" not in said
    assert "No space left on device" in said.splitlines()[-1]
    assert not list(folder.glob("outcome/*"))
    assert left_behind(folder) == []


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["async", "sync"])
@pytest.mark.parametrize("layer", FULL_DISK)
def test_a_full_disk_ends_the_run_with_its_own_code_and_space_mends_it(
    tmp_path: Path, small_disk: Path, undisturbed: Run, layer: str, mode: str
) -> None:
    settings = {"recovery": recovery_of(layer), "checkpoint.folder": str(small_disk), "checkpoint.mode": mode}
    run = make_run(tmp_path, settings)
    done = run.command()
    assert done.returncode == FULL_DISK[layer], done.stdout + done.stderr
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr
    assert run.steps_saved(small_disk) == [4]
    launched = run.events("LifeStarted")
    assert len(launched) == 2, "a restart would meet the same disk"
    mount(small_disk, "remount,size=32m")
    run.finish()
    assert {event["step"] for event in run.events("Loaded")} == {0, 4}
    assert same(run.state(folder=small_disk), undisturbed.state())
