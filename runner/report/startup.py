"""Where the start-up of each life went."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from runner.ledger.events import LifeStarted, Loaded, PhaseEnded
from runner.ledger.history import NS
from runner.report.view import RunView

PHASES = ("data", "rendezvous", "model")
MOST_LIVES = 30


def startup_rows(view: RunView) -> tuple[Sequence[str], list[tuple[str, ...]]]:
    """Header and a row a life: seconds of each phase, of the rank that took longest.

    The first column of times is from the creation of the process (in process: from the restart) to the start of the
    life: interpreter, imports, and where nodes meet, the waiting for them.
    """
    spent: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for r in view.records:
        phases, e = spent[r.life], r.event
        if isinstance(e, LifeStarted):
            phases["process"] = max(phases["process"], r.stamp.t - e.process_started)
        elif isinstance(e, PhaseEnded):
            phases[e.phase] = max(phases[e.phase], e.seconds)
        elif isinstance(e, Loaded):
            phases["load"] = max(phases["load"], e.seconds)
    others = sorted({p for phases in spent.values() for p in phases} - {"process", "load", *PHASES})
    shown = ("process", *others, *PHASES, "load")
    rows = []
    for number, life in enumerate(view.history.lives[:MOST_LIVES], start=1):
        phases = spent[life.name]
        until_step = (life.work[0].end - life.started) / NS if life.work else None
        rows.append(
            (
                f"{number}" + (", in process" if life.in_process else ""),
                *(f"{phases[name]:.2f} s" if name in phases else "-" for name in shown),
                f"{until_step:.2f} s" if until_step is not None else "-",
                life.source or "-",
            )
        )
    names = {"process": "process and imports"}
    return ("life", *(names.get(name, name) for name in shown), "to first step", "state from"), rows
