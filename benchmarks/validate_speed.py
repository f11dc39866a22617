"""How long `nvrx-run --validate` takes, beside `python -c "import pydantic, yaml"`, and `--emit-manifest` beside it.

    python benchmarks/validate_speed.py [--rounds 20]

Prints the least CPU time and the least wall time of each, and their ratios: at most 1.5 for one recipe and 3 for a
hundred. A manifest may take twice the time of the check of its recipe. The runs alternate, and the least of many is
taken, so that other work on the machine hardly shows.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BASE = [sys.executable, "-c", "import pydantic, yaml"]
LIMITS = {"one recipe": 1.5, "100 recipes": 3.0}
EMISSION = "its manifest"
EMISSION_LIMIT = 2.0  # beside the check of the recipe


def _measure(command: list[str]) -> tuple[float, float]:
    """CPU and wall seconds of one run."""
    start = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=ROOT) as child:
        _, status, usage = os.wait4(child.pid, 0)
        wall = time.perf_counter() - start
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"{command} exited with {child.returncode}")
    return usage.ru_utime + usage.ru_stime, wall


def main() -> int:
    """Measure; exit 1 where a ratio of wall times is above its limit."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    program = Path(sys.executable).parent / "nvrx-run"
    with tempfile.TemporaryDirectory() as folder:
        many = [str(Path(folder) / f"recipe-{index}.yaml") for index in range(100)]
        for path in many:
            shutil.copy(ROOT / "recipes" / "llama8b-sync-none.yaml", path)
        commands = {
            "import pydantic, yaml": BASE,
            "one recipe": [str(program), "--validate", str(ROOT / "recipes" / "llama8b-sync-none.yaml")],
            EMISSION: [str(program), "--emit-manifest", str(ROOT / "recipes" / "llama8b-sync-none.yaml")],
            "100 recipes": [str(program), "--validate", *many],
        }
        least = {name: (float("inf"), float("inf")) for name in commands}
        for _ in range(rounds):
            for name, command in commands.items():
                cpu, wall = _measure(command)
                least[name] = (min(least[name][0], cpu), min(least[name][1], wall))
    base_cpu, base_wall = least["import pydantic, yaml"]
    failed = False
    print(f"{'':24}{'CPU s':>8}{'ratio':>8}{'wall s':>8}{'ratio':>8}{'limit':>8}")
    for name, (cpu, wall) in least.items():
        limit = LIMITS.get(name)
        failed = failed or (limit is not None and wall / base_wall > limit)
        shown = f"{limit:8.1f}" if limit else ""
        print(f"{name:24}{cpu:8.3f}{cpu / base_cpu:8.2f}{wall:8.3f}{wall / base_wall:8.2f}{shown}")
    checked, emitted = least["one recipe"], least[EMISSION]
    ratio = emitted[1] / checked[1]
    print(
        f"manifest / check: CPU {emitted[0] / checked[0]:.2f}, wall {ratio:.2f}, limit {EMISSION_LIMIT:.1f}"
    )
    return int(failed or ratio > EMISSION_LIMIT)


if __name__ == "__main__":
    sys.exit(main())
