"""What Kubernetes does with a job that has no recovery of its own, imitated on one machine.

The article's baseline: a fault ends one pod. Its peers hang in a collective until the process group's timeout ends
them, then the kubelet starts the containers again, with a back-off that doubles from 10 s to 5 min and starts anew
after ten minutes of quiet (CrashLoopBackOff). On one machine one launcher sees all workers die at once; so the wait
for the process group's timeout is kept by the clock: no restart before the last recorded event of a step plus that
timeout.
"""

from __future__ import annotations

from pathlib import Path

from runner.ledger.events import FaultFired, StepEnded
from runner.ledger.history import NS
from runner.ledger.reader import read_run

FIRST_BACKOFF, LONGEST_BACKOFF, QUIET = 10.0, 300.0, 600.0
"""Seconds: the first back-off, the longest, and how long a container must run for the back-off to start anew."""


def next_backoff(last: float | None, ran: float) -> float:
    """The back-off before the next start; `last` is the one before (None: none yet), `ran` how long it ran, seconds."""
    if last is None or ran >= QUIET:
        return FIRST_BACKOFF
    return min(2 * last, LONGEST_BACKOFF)


def peers_end_at(run: Path, group_timeout: float) -> float:
    """When the peers of a failed pod would have ended: wall clock, seconds since the epoch.

    A hang that the watchdog ended has waited for that long already: then this lies in the past.
    """
    if not (run / "ledger").is_dir():
        return 0.0  # it never came so far that there were peers
    signs = [r.at for r in read_run(run).records if isinstance(r.event, StepEnded | FaultFired)]
    return max(signs, default=0) / NS + group_timeout
