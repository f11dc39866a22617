"""The writer works under every NVRx release."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from nvrx_releases import VERSIONS, release_environ

HERE = Path(__file__).parent


def releases() -> list[object]:
    """The newest two in every run of the tests; all others test the installed one; the rest is slow."""
    slow = [pytest.param(version, marks=pytest.mark.slow) for version in VERSIONS[:-2]]
    return [*slow, *VERSIONS[-2:]]


@pytest.mark.parametrize("version", releases())
def test_saves_survive_a_killed_writer_and_load(version: str, tmp_path: Path) -> None:
    environ = release_environ(version)
    environ["PYTHONPATH"] = os.pathsep.join([*filter(None, [environ.get("PYTHONPATH")]), str(HERE)])
    program = [sys.executable, str(HERE / "ckpt_release.py"), str(tmp_path)]
    done = subprocess.run(program, env=environ, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert said == {
        "version": version, "committed": [2, 4], "restored": True, "source": "storage", "failed": [2], "left": [],
    }  # fmt: skip
