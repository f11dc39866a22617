"""What each recovery layer makes of each fault: the table of docs/recovery.md, as the tests check it."""

from __future__ import annotations

from typing import Literal

Verdict = Literal["in place", "respawn", "ends"]

TYPES = (
    "exception",
    "nan_loss",
    "hang",
    "exit_0",
    "exit_1",
    "native_hang",
    "sigstop",
    "sigkill",
    "oom_kill",
)
_SOFT = {"exception", "nan_loss", "hang", "exit_0", "exit_1"}

MATRIX: dict[str, dict[str, Verdict]] = {
    "none": dict.fromkeys(TYPES, "ends"),
    "inprocess": {kind: "in place" if kind in _SOFT else "ends" for kind in TYPES},
    "ft_launcher": dict.fromkeys(TYPES, "respawn"),
    "ft_launcher+inprocess": {kind: "in place" if kind in _SOFT else "respawn" for kind in TYPES},
}

NOTICED_BY = {
    "exception": "itself",
    "nan_loss": "itself, before the update",
    "hang": "`soft_timeout`, `rank_heartbeat_timeout` or `process_group_timeout`",
    "exit_0": "itself",
    "exit_1": "itself",
    "native_hang": "`hard_timeout`, `rank_heartbeat_timeout` or `process_group_timeout`",
    "sigstop": "`hard_timeout`, `rank_heartbeat_timeout` or `process_group_timeout`",
    "sigkill": "the launcher",
    "oom_kill": "the launcher",
}


def table() -> str:
    """The matrix in Markdown."""
    words = {"in place": "in place", "respawn": "respawn", "ends": "ends, 1"}
    rows = ["| fault | " + " | ".join(f"`{layer}`" for layer in MATRIX) + " | noticed by |"]
    rows.append("|---" * (len(MATRIX) + 2) + "|")
    for kind in TYPES:
        cells = " | ".join(words[MATRIX[layer][kind]] for layer in MATRIX)
        rows.append(f"| `{kind}` | {cells} | {NOTICED_BY[kind]} |")
    return "\n".join(rows)
