"""Commands that were refused: no part of the run, whose account must not change because somebody mistyped one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from runner.errors import ExitCode
from runner.ledger.codec import Record
from runner.ledger.events import LaunchEnded, LaunchStarted, StepEnded, StepsRolled

_REFUSED = frozenset({ExitCode.BAD_RECIPE, ExitCode.NO_LOADABLE_CHECKPOINT})


def without_refusals(records: Sequence[Record]) -> tuple[Record, ...]:
    """Records in order of time, without those of commands that ended as refused and made no step.

    Where a run has no others, they stay: they are all that is known of it.
    """
    ordered = sorted(records, key=lambda record: record.at)
    current: dict[str, list[int]] = defaultdict(list)  # node -> what its command has recorded so far
    left_out: set[int] = set()
    for index, record in enumerate(ordered):
        node = record.stamp.node
        if isinstance(record.event, LaunchStarted):
            current[node] = []
        current[node].append(index)
        if isinstance(record.event, LaunchEnded):
            mine = current.pop(node)
            steps = any(isinstance(ordered[i].event, StepEnded | StepsRolled) for i in mine)
            if record.event.exit_code in _REFUSED and not steps:
                left_out.update(mine)
    kept = tuple(record for index, record in enumerate(ordered) if index not in left_out)
    return kept or tuple(ordered)
