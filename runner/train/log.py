"""The log: structlog, as JSON lines in the run's folder for every rank, and readable on the leader's terminal."""

from __future__ import annotations

import errno
import io
import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

import structlog
from structlog.typing import EventDict, WrappedLogger

from runner.recipe.output import OutputSection
from runner.streams import complain, fit_for_output


def configure(output: OutputSection, folder: Path, rank: int) -> structlog.stdlib.BoundLogger:
    """Set up logging for this process and return its logger.

    Args:
        output: format and level.
        folder: the run's folder; lines are appended to `logs/rank-<rank>.jsonl`.
        rank: only rank 0 writes to standard output.
    """
    stream = _LogFile(folder / "logs" / f"rank-{rank}.jsonl")
    level = getattr(logging, output.log_level.upper())
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _Fork(stream, _console(output) if rank == 0 else None),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stdout),
        cache_logger_on_first_use=True,
    )
    # Libraries' own messages go to standard error, which the supervisor keeps in the run's folder.
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, force=True)
    logger: structlog.stdlib.BoundLogger = structlog.get_logger()
    return logger.bind(rank=rank)


def _console(output: OutputSection) -> Any:
    if output.log_format == "json":
        return structlog.processors.JSONRenderer()
    return structlog.dev.ConsoleRenderer(colors=sys.stdout.isatty(), pad_event_to=0, sort_keys=False)


class _LogFile:
    """A file of JSON lines. A full or lost disk takes lines, and nothing else: training could go on without them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: io.FileIO | None = None
        self._torn = self._told = False

    def write(self, event: EventDict) -> None:
        """Append a line; what is lost is told once, on standard error."""
        line = json.dumps(event, default=str).encode() + b"\n"
        try:
            if self._file is None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._file = io.FileIO(self._path, "a")
            data = b"\n" + line if self._torn else line
            written = self._file.write(data) or 0
            self._torn = written < len(data)
            if self._torn:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            if not self._told:
                self._told = True
                complain(f"log lines are lost: {self._path}: {error.strerror}")


class _Fork:
    """The last processor: the line to the file, and to the console where this rank has one."""

    def __init__(self, file: _LogFile, console: Any) -> None:
        self._file, self._console = file, console

    def __call__(self, logger: WrappedLogger, name: str, event: EventDict) -> str:
        self._file.write(event)
        if self._console is not None:
            event.pop("rank", None)
            self._show(self._console(logger, name, event))
        raise structlog.DropEvent  # all is written by now

    def _show(self, line: str) -> None:
        """To standard output, for as long as somebody reads it: `| head`, a closed terminal must not end a run."""
        try:
            sys.stdout.write(fit_for_output(line) + "\n")
            sys.stdout.flush()
        except OSError as error:
            self._console = None
            self._file.write({"event": "standard output is gone", "reason": str(error)})
