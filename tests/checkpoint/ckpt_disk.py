"""Small file systems for the checkpoint tests. Root only."""

from __future__ import annotations

import subprocess
from pathlib import Path


def mount(folder: Path, options: str) -> None:
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=True, capture_output=True
    )
