"""The one place that knows what the launcher of each NVRx release accepts.

Seen in the releases themselves:

| | 0.4.1 | 0.5 | 0.6 | 0.7 |
|---|---|---|---|---|
| NIC monitor | on by default, needs NVML and InfiniBand | off | off | off |
| NIC health check before a rendezvous | - | - | on by default | on by default |
| ends the job after restarts without progress that it measures itself | - | - | 3 cycles | 3 cycles |
| wait for GPU memory after a stop | - | - | polls every 2 s | polls every 2 s |
| node order | by arrival | must be in `GROUP_RANK` | `GROUP_RANK` where set | `GROUP_RANK` where set |
| waits for the leader's port by itself | - | - | `store_connect_wait_seconds` | `store_connect_wait_seconds` |
| `--max-restarts` | per node | per job | per job | per job |
| `--ft-restart-policy=min-healthy` | accepted | accepted | refused | refused |

What a health check or a progress count of the launcher would end, the product's own settings decide instead, so that
one recipe means the same under every release.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from runner.errors import InputError

DISTRIBUTION = "nvidia-resiliency-ext"
SUPPORTED = "0.4.1 to 0.7"


@dataclass(frozen=True)
class LauncherRelease:
    """What one NVRx minor release's `ft_launcher` takes beyond the common arguments.

    Attributes:
        minor: second number of the version: 6 for 0.6.0.
        flags: arguments that this release needs or understands, for behaviour that is the same in all.
        waits_for_store: knows the rendezvous setting `store_connect_wait_seconds`.
        checks_nics: can look at InfiniBand links before a rendezvous.
    """

    minor: int
    flags: tuple[str, ...]
    waits_for_store: bool
    checks_nics: bool


_SINCE_0_6 = (
    "--ft-max-no-progress-cycles=0",
    "--ft-gpu-memory-poll-interval=0.2",
)
_RELEASES = {
    4: LauncherRelease(4, (), waits_for_store=False, checks_nics=False),
    5: LauncherRelease(5, (), waits_for_store=False, checks_nics=False),
    6: LauncherRelease(6, _SINCE_0_6, waits_for_store=True, checks_nics=True),
    7: LauncherRelease(7, _SINCE_0_6, waits_for_store=True, checks_nics=True),
}
NEWEST = "0.7"


def installed_nvrx() -> str | None:
    """Version of the NVRx that is installed beside this interpreter, without importing it; None where there is none."""
    from importlib import metadata  # slow to import, and not needed to emit a manifest

    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return None


def launcher_release(version: str) -> LauncherRelease:
    """The release that a version text belongs to (`0.4.1`, `0.7`, `0.6.0.dev1`, `0.7.0+cu13`).

    Raises:
        InputError: not a version, or a release that the product does not know.
    """
    match = re.match(r"0\.(\d+)(?:\.(\d+))?(?![\d])", version)
    minor, patch = (int(match[1]), match[2]) if match else (-1, None)
    if minor not in _RELEASES or (minor == 4 and patch == "0"):
        raise InputError(f"{DISTRIBUTION} {version} is not supported: install {SUPPORTED}")
    return _RELEASES[minor]
