"""What each recovery layer makes of each fault: the table of docs/recovery.md, as the tests check it."""

from __future__ import annotations

from typing import Any, Literal

from product import LAYERS
from tiny_recipe import changed

Verdict = Literal["in place", "respawn", "ends"]

TYPES = (
    "exception",
    "nan_loss",
    "hang",
    "exit_0",
    "exit_1",
    "native_hang",
    "stuck_collective",
    "sigstop",
    "sigkill",
    "oom_kill",
    "cuda_error",
    "loader_death",
    "loader_hang",
)
KINDS = ("exception", "hang", "native_hang", "sigkill")  # run through all phases
PHASES = ("start", "restore", "snapshot", "save")  # besides the middle of a step
_HARD = {"native_hang", "sigstop", "sigkill", "oom_kill"}

MATRIX: dict[str, dict[str, Verdict]] = {
    "none": dict.fromkeys(TYPES, "ends"),
    "inprocess": {kind: "ends" if kind in _HARD else "in place" for kind in TYPES},
    "ft_launcher": dict.fromkeys(TYPES, "respawn"),
    "ft_launcher+inprocess": {kind: "respawn" if kind in _HARD else "in place" for kind in TYPES},
}

FULL_DISK = dict.fromkeys(MATRIX, 13)  # exit codes

NOTICED_BY = {
    "exception": "itself",
    "nan_loss": "itself, before the update",
    "hang": "`soft_timeout`, `rank_heartbeat_timeout` or `process_group_timeout`",
    "exit_0": "itself",
    "exit_1": "itself",
    "native_hang": "`hard_timeout`, `rank_heartbeat_timeout` or `process_group_timeout`",
    "stuck_collective": "`soft_timeout`, `rank_heartbeat_timeout` or `process_group_timeout`",
    "sigstop": "`hard_timeout`, `rank_heartbeat_timeout` or `process_group_timeout`",
    "sigkill": "the launcher",
    "oom_kill": "the launcher",
    "cuda_error": "itself",
    "loader_death": "itself",
    "loader_hang": "itself, after `dataset.worker_timeout`",
}


START_TIMEOUT = "20s"  # where a hang at the start is to be waited for; imports on a busy machine must fit in


def recovery_of(layer: str) -> dict[str, Any]:
    """The layer with timeouts that a test can wait for."""
    changes = {"process_group_timeout": "12s" if layer == "none" else "90s"}
    if "inprocess" in layer:
        changes |= {
            "inprocess.soft_timeout": "8s",
            "inprocess.hard_timeout": "12s",
            "inprocess.barrier_timeout": "60s",
            "inprocess.heartbeat_timeout": "20s",
        }
    if "ft_launcher" in layer:
        changes["ft_launcher.rank_heartbeat_timeout"] = "12s" if layer == "ft_launcher" else "45s"
    return changed(LAYERS[layer], changes)


def settings_of(layer: str, *kinds: str) -> dict[str, Any]:
    """What a run under `layer` needs besides the tiny recipe so that these faults can strike."""
    settings: dict[str, Any] = {"recovery": recovery_of(layer)}
    if any(kind.startswith("loader") for kind in kinds):
        settings |= {"dataset.workers": 2, "dataset.worker_timeout": "5s"}
    return settings


def table() -> str:
    """The matrix in Markdown."""
    words = {"in place": "in place", "respawn": "respawn", "ends": "ends, 1"}
    rows = ["| fault | " + " | ".join(f"`{layer}`" for layer in MATRIX) + " | noticed by |"]
    rows.append("|---" * (len(MATRIX) + 2) + "|")
    for kind in TYPES:
        cells = " | ".join(words[MATRIX[layer][kind]] for layer in MATRIX)
        rows.append(f"| `{kind}` | {cells} | {NOTICED_BY[kind]} |")
    rows.append(
        f"| full disk in a save | {' | '.join(f'ends, {code}' for code in FULL_DISK.values())} | the save |"
    )
    return "\n".join(rows)
