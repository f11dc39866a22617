"""The layers under every NVRx release, the tiny worker inside (0.4.1 is in the other tests)."""

from __future__ import annotations

import pytest
from tinylab import expected

VERSIONS = ["0.5.0", "0.6.0", "0.7.0"]


_SLOW = {version: pytest.param(version, marks=pytest.mark.slow) for version in VERSIONS}


@pytest.mark.parametrize("version", [_SLOW["0.5.0"], "0.6.0", _SLOW["0.7.0"]])
def test_exceptions_are_mended_in_place(tiny, version):
    run = tiny("inprocess", "4:0:exception,7:1:exception", nvrx=version)
    assert run.wait() == 0, run.log.read_text()
    assert run.state == expected()
    assert len(run.attempts) == 3


@pytest.mark.parametrize("version", [_SLOW["0.5.0"], _SLOW["0.6.0"], "0.7.0"])
def test_soft_and_hard_faults_in_any_order(tiny, version):
    run = tiny("ft_launcher+inprocess", "3:1:exception,5:0:sigkill,7:0:exception,9:1:sigkill", nvrx=version)
    assert run.wait(150) == 0, run.log.read_text()
    assert run.state == expected()
    assert len(run.attempts) == 5


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("what", ["hang", "native_hang", "sigstop", "exit_1"])
def test_ft_launcher_notices(tiny, version, what):
    run = tiny("ft_launcher", f"4:1:{what}", nvrx=version)
    assert run.wait(150) == 0, run.log.read_text()
    assert run.state == expected()
    assert len(run.attempts) == 2
