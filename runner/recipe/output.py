"""`output`: the run's folder and what is shown."""

from __future__ import annotations

from typing import Literal

from runner.recipe.fields import Section


class OutputSection(Section):
    """The folder is the run: the same command with the same folder resumes it."""

    folder: str | None = None
    """The run's folder: checkpoints, ledger, logs. Default: `runs/<name>`. Must be seen by all nodes."""
    log_format: Literal["console", "json"] = "console"
    """Format of the log on standard output. The run's folder always gets JSON lines."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe level shown."""
    progress: Literal["auto", "on", "off"] = "auto"
    """Progress bar. `auto`: on a terminal."""
