"""Every NVRx release, side by side: wheels unpacked under `.cache/nvrx/`.

A wheel's only compiled part is not used here, so the wheel of any Python serves. Run as a script to fetch everything
ahead of the tests; `release_environ` fetches what is missing.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

VERSIONS = ("0.4.1", "0.5.0", "0.6.0", "0.7.0")
CACHE = Path(__file__).resolve().parents[1] / ".cache" / "nvrx"
_DEPENDENCIES = (
    "grpcio>=1.76,<2", "protobuf>=4.22", "httpx>=0.24", "pydantic-settings>=2", "fastapi>=0.100", "slowapi>=0.1.9",
    "uvicorn>=0.20", "nv-one-logger-core>=2.1", "nv-one-logger-training-telemetry>=2.3", "defusedxml",
)  # fmt: skip


class FetchFailedError(RuntimeError):
    """pip could not deliver a release; the message holds what it said."""


def _pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode != 0:
        raise FetchFailedError(f"{' '.join(command)}\n{done.stderr[-2000:]}")


def _fetch_dependencies() -> Path:
    folder = CACHE / "dependencies"
    if not (folder / ".complete").is_file():
        _pip("install", "-q", "--upgrade", "--target", str(folder), *_DEPENDENCIES)
        (folder / ".complete").touch()
    return folder


def _fetch_release(version: str) -> Path:
    folder = CACHE / version
    if (folder / ".complete").is_file():
        return folder
    wheels = CACHE / "wheels"
    _pip(
        "download", "-q", "--no-deps", "--only-binary=:all:", "--python-version", "3.12", "--dest", str(wheels),
        "--platform", "manylinux_2_31_x86_64", "--platform", "manylinux_2_39_x86_64",
        f"nvidia-resiliency-ext=={version}",
    )  # fmt: skip
    (wheel,) = wheels.glob(f"nvidia_resiliency_ext-{version}-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    (folder / ".complete").touch()
    return folder


def release_path(version: str) -> list[Path]:
    """Folders to put on PYTHONPATH for one release; fetched on the first call.

    Raises:
        FetchFailedError: the package index cannot be reached or does not have it.
    """
    if version == metadata.version("nvidia-resiliency-ext"):
        return []
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # parallel test processes fetch once
        release = _fetch_release(version)
        dependencies = _fetch_dependencies()
    return [release, dependencies]


def release_environ(version: str) -> dict[str, str]:
    """This process's environment with `version` first on the import path."""
    paths = [str(path) for path in release_path(version)]
    own = [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
    return {**os.environ, "PYTHONPATH": os.pathsep.join([*paths, *own])} if paths else dict(os.environ)


if __name__ == "__main__":
    for each in VERSIONS:
        print(each, *release_path(each))
