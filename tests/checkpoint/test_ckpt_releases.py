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
    """The newest in every run of the tests, the installed one is tested by all others, the rest in the slow ones."""
    slow = [pytest.param(version, marks=pytest.mark.slow) for version in VERSIONS[:-1]]
    return [*slow, VERSIONS[-1]]


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
