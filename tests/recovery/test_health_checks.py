"""Health checks are those that the recipe names, and what a release of NVRx does not have is refused by name."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata

import pytest
from nvrx_releases import release_environ

from runner.errors import InputError
from runner.recovery.nvrx import health_checks

_CODE = """
from runner.recovery.nvrx import health_checks
print([type(check).__name__ for check in health_checks(("cuda", "gpu", "nvlink"), 3)])
"""


def test_what_the_installed_release_lacks_is_refused_by_name() -> None:
    assert [type(check).__name__ for check in health_checks(("cuda",), 0)] == ["CudaHealthCheck"]
    if metadata.version("nvidia-resiliency-ext").startswith("0.4"):
        with pytest.raises(InputError, match=r"health_checks: nvlink needs NVRx 0\.5 or later"):
            health_checks(("cuda", "nvlink"), 0)


@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.5.0", "0.6.0", "0.7.0"])
def test_later_releases_have_them_all(version: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _CODE], env=release_environ(version), capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    names = "['CudaHealthCheck', 'ChainedGPUHealthCheck', 'ChainedNVLHealthCheck']"
    assert done.stdout.splitlines()[-1] == names
