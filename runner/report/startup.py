"""Where the start-up of each life went."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from runner.ledger.events import LifeStarted, Loaded, PhaseEnded
from runner.ledger.history import NS
from runner.report.view import RunView

PHASES = ("data", "rendezvous", "model")
MOST_LIVES = 30
_LEAST = 0.005  # seconds: what would be shown as nothing


def startup_rows(view: RunView) -> tuple[Sequence[str], list[tuple[str, ...]]]:
    """Header and a row a life: seconds of each phase, of the rank that took longest.

    `launch` is from when the account's start-up begins (with the first life: the command's start) to the creation of
    the life's first process: the launcher, and the imports of the server that workers are forked from. The column after
    it is from the creation of the process (in process: from the restart) to the start of the life: interpreter, imports
    of its own, and where nodes meet, the waiting for them. `other` is what is left of the account's start-up, the next
    column; there is none where phases that different ranks were slowest in overlap.
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
    shown = ("launch", "process", *others, *PHASES, "other", "start-up", "load")
    whole: dict[int, float] = defaultdict(float)
    launch: dict[int, float] = defaultdict(float)
    for span in view.spans:
        if span.kind == "startup" and span.life < len(view.history.lives):
            started = view.history.lives[span.life].started
            whole[span.life] += span.duration / NS
            launch[span.life] += max(0, min(span.end, started) - span.start) / NS
    rows = []
    for number, life in enumerate(view.history.lives[:MOST_LIVES], start=1):
        phases, nth = spent[life.name], number - 1
        known = launch[nth] + sum(seconds for name, seconds in phases.items() if name != "load")
        parts = {**phases, "launch": launch[nth], "other": whole[nth] - known, "start-up": whole[nth]}
        if parts["other"] < _LEAST:
            del parts["other"]
        until_step = (life.work[0].end - life.started) / NS if life.work else None
        rows.append(
            (
                f"{number}" + (", in process" if life.in_process else ""),
                *(f"{parts[name]:.2f} s" if name in parts else "-" for name in shown),
                f"{until_step:.2f} s" if until_step is not None else "-",
                life.source or "-",
            )
        )
    names = {"process": "process and imports"}
    return ("life", *(names.get(name, name) for name in shown), "to first step", "state from"), rows
