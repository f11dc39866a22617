"""The layers under every NVRx release, the tiny worker inside (0.4.1 is in the other tests).

The whole product under 0.6.0 and 0.7.0: tests/e2e/test_product_releases.py.
"""

from __future__ import annotations

import pytest
from tinylab import expected

VERSIONS = ["0.5.0", "0.6.0", "0.7.0"]


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_exceptions_are_mended_in_place(tiny, version):
    run = tiny("inprocess", "4:0:exception,7:1:exception", nvrx=version)
    assert run.wait() == 0, run.log.read_text()
    assert run.state == expected()
    assert len(run.attempts) == 3


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_soft_and_hard_faults_in_any_order(tiny, version):
    faults = "3:1:exception,5:0:sigkill,7:0:exception,7:0:exit_1,9:1:sigkill"
    run = tiny("ft_launcher+inprocess", faults, nvrx=version)
    assert run.wait(150) == 0, run.log.read_text()
    assert run.state == expected()
    assert len(run.attempts) == 6


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("what", ["hang", "native_hang", "sigstop", "exit_1"])
def test_ft_launcher_notices(tiny, version, what):
    run = tiny("ft_launcher", f"4:1:{what}", nvrx=version)
    assert run.wait(150) == 0, run.log.read_text()
    assert run.state == expected()
    assert len(run.attempts) == 2
