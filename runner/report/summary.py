"""The table at the end of a run: plain text, standard library only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from runner.errors import ExitCode
from runner.ledger.codec import Record
from runner.ledger.goodput import Goodput, Recovery, account
from runner.ledger.history import NS, History
from runner.ledger.reader import RunLedger, read_run
from runner.ledger.refusals import without_refusals
from runner.ledger.saves import saves_of, snapshots_of
from runner.ledger.split import KINDS
from runner.ledger.stragglers import stragglers_of
from runner.recipe.units import format_size

MEANING = {
    "useful": "steps whose result was kept",
    "replayed": "steps whose result was lost and made again",
    "stall": "training waited for a save, or its commit",
    "detection": "from a fault until somebody knew",
    "teardown": "clearing the old life away",
    "startup": "imports, rendezvous, data, model",
    "load": "getting the state back",
    "idle": "no command was running, or it was stopped",
}
_BAR = 40
_MEANINGS: dict[int, str] = {
    ExitCode.BAD_RECIPE: " (refused)",
    ExitCode.NO_LOADABLE_CHECKPOINT: " (no loadable checkpoint)",
    ExitCode.RESTART_BUDGET_SPENT: " (restart budget spent)",
    ExitCode.NO_PROGRESS: " (no progress)",
    ExitCode.SAVE_FAILED: " (save failed)",
    ExitCode.PREEMPTED: " (stopped on request; the same command goes on)",
}
"""As in docs/exit-codes.md."""


def render(run_folder: Path) -> str:
    """The summary of the run in `run_folder`, ready to print; works while the run goes on.

    Raises:
        InputError: there is no ledger in it.
    """
    return render_ledger(read_run(Path(run_folder)))


def render_ledger(ledger: RunLedger, accounted: tuple[Goodput, History] | None = None) -> str:
    """The summary of a ledger that is already read, and perhaps accounted for."""
    if not ledger.records:
        return f"{ledger.folder}: nothing recorded yet"
    ledger = replace(ledger, records=without_refusals(ledger.records))
    goodput, history = accounted or account(ledger.records)[:2]
    blocks = [
        _head(ledger, goodput, history),
        _faults(goodput, history),
        _saves(ledger.records),
        _slow_ranks(ledger.records),
        _split(goodput),
    ]
    return "\n\n".join(block for block in blocks if block)


def seconds(nanoseconds: float) -> str:
    """A duration as people read it: `0.35 s`, `12.3 s`, `4 min 05 s`, `2 h 10 min`."""
    s = nanoseconds / NS
    if 0 < s < 0.01:
        return f"{1000 * s:.1f} ms"
    if s < 10:
        return f"{s:.2f} s"
    if s < 100:
        return f"{s:.1f} s"
    if s < 3600:
        return f"{int(s) // 60} min {int(s) % 60:02d} s"
    return f"{int(s) // 3600} h {int(s) % 3600 // 60:02d} min"


def percent(share: float) -> str:
    """A share of 1 as `93.41 %`."""
    return f"{100 * share:.2f} %"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns aligned with spaces: the first to the left, the others to the right."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]

    def line(row: Sequence[str]) -> str:
        cells = [row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))]
        return "  " + "  ".join(cells).rstrip()

    return "\n".join([line(header), "  " + "  ".join("-" * w for w in widths), *map(line, rows)])


def _head(ledger: RunLedger, goodput: Goodput, history: History) -> str:
    kept = [life for life in history.lives if life.work]
    state = "goes on (or was lost without an end)" if goodput.going_on else ending(history)
    rows = [
        ("run", str(ledger.folder)),
        ("state", state),
        (
            "wall time",
            f"{seconds(goodput.wall)} in {count(len(history.lives), 'life', 'lives')}, "
            + count(len(history.launches), "command", "commands"),
        ),
        ("steps", f"{goodput.useful_steps} useful, {goodput.replayed_steps} replayed"),
    ]
    if kept:
        first, last = kept[0].work[0], kept[-1].work[-1]
        rows.append(("loss", f"{first.loss:.4f} at step {first.last} -> {last.loss:.4f} at step {last.last}"))
    if goodput.useful_tokens_per_s is not None:
        rows.append(("useful tokens/s", f"{goodput.useful_tokens_per_s:,.0f}"))
    if goodput.mfu is not None:
        rows.append(("MFU", percent(goodput.mfu)))
    rows += [
        ("training goodput", f"{percent(goodput.training)}  (useful / wall)"),
        ("infra goodput", f"{percent(goodput.infra)}  (1 - downtime of faults / wall)"),
    ]
    if goodput.efficiency is not None:
        rows.append(
            ("efficiency", f"{percent(goodput.efficiency)}  (stepping time not spent on checkpoints)")
        )
    if ledger.unreadable:
        rows.append(("ledger", f"{ledger.unreadable} lines torn or damaged, left out"))
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name.ljust(width)}  {value}" for name, value in rows)


def count(number: int, one: str, many: str) -> str:
    """A number of things: `1 life`, `2 lives`."""
    return f"{number} {one if number == 1 else many}"


def ending(history: History) -> str:
    """How a run ended: `finished`, or its exit code and what that means."""
    code = history.launches[-1].exit_code if history.launches else None
    if code is None:
        return "ended"
    return "finished" if code == 0 else f"ended with exit code {code}{_MEANINGS.get(code, '')}"


def _faults(goodput: Goodput, history: History) -> str:
    if not goodput.recoveries:
        return "Faults: none"
    rows = []
    for r in goodput.recoveries:
        p = r.parts
        step = f"at step {r.faults[0][2]}" if r.faults else ""
        rows.append(
            (
                f"{_cut(r.cause, 58)} {step}".strip(),
                r.by,
                seconds(p["detection"]),
                seconds(p["teardown"]),
                *((seconds(p["idle"]),) if _any_idle(goodput) else ()),
                *(part_of(r, part) for part in ("startup", "load", "step")),
                seconds(r.total) if r.finished else "-",
                str(r.lost) if r.by != "none" else "-",
                f"{r.resumed} ({r.source or '?'})" if r.resumed is not None else "-",
            )
        )
    idle = ("idle",) if _any_idle(goodput) else ()
    header = (
        "fault", "mended by", "detection", "teardown", *idle, "start-up", "load", "1st step", "recovery",
        "steps lost", "resumed after",
    )  # fmt: skip
    return "Faults and recoveries\n" + table(header, rows)


def part_of(recovery: Recovery, part: str) -> str:
    """How long a part of a recovery took; a dash for what has not begun, where nothing came after the fault."""
    begun = recovery.by != "none" or recovery.parts[part] or part in ("detection", "teardown")
    return seconds(recovery.parts[part]) if begun else "-"


def _cut(text: str, most: int) -> str:
    """A text of at most so many characters, which shows where it was cut."""
    return text if len(text) <= most else text[: most - 3].rstrip() + "..."


def _any_idle(goodput: Goodput) -> bool:
    return any(r.parts["idle"] for r in goodput.recoveries)


def _saves(records: Sequence[Record]) -> str:
    saves, snapshots = saves_of(records), snapshots_of(records)
    rows = [
        (
            f"step {save.step}",
            save.mode,
            seconds(save.stalled * NS),
            seconds(save.written * NS) if save.written is not None else "-",
            format_size(save.bytes) if save.bytes is not None else "-",
            f"{save.outcome}: {_cut(save.reason, 60)}" if save.reason else save.outcome,
        )
        for save in saves
    ]
    if not rows and not snapshots.count:
        return ""
    shown = rows if len(rows) <= 12 else [*rows[:4], (f"... {len(rows) - 8} more",) + ("",) * 5, *rows[-4:]]
    text = "Checkpoints\n"
    text += table(("save", "mode", "stall", "write", "size", "outcome"), shown) if rows else "  none"
    if snapshots.count:
        text += f"\n  {snapshots.count} snapshots in memory a rank"
        if snapshots.timed:
            text += f"; training waited {seconds(snapshots.stalled * NS)} for those without a save"
    return text


def _slow_ranks(records: Sequence[Record]) -> str:
    rows = [
        (
            f"rank {slow.rank}",
            slow.part,
            f"{slow.slow} of {slow.compared}",
            seconds(slow.own * NS),
            seconds(slow.others * NS),
        )
        for slow in stragglers_of(records)
    ]
    return (
        "Slow ranks\n" + table(("rank", "what", "slow in", "own work a step", "the others"), rows)
        if rows
        else ""
    )


def _split(goodput: Goodput) -> str:
    wall = goodput.wall or 1
    shares = hundred([goodput.split[kind] for kind in KINDS])
    rows: list[tuple[str, str, str, str]] = []
    for kind, share in zip(KINDS, shares, strict=True):
        bar = "#" * round(_BAR * goodput.split[kind] / wall)
        rows.append(
            (kind, seconds(goodput.split[kind]), f"{share / 100:.2f} %", MEANING[kind].ljust(44) + bar)
        )
    rows.append(("wall time", seconds(goodput.wall), f"{sum(shares) / 100:.2f} %", " " * 44))
    widths = (max(len(r[0]) for r in rows), max(len(r[1]) for r in rows), max(len(r[2]) for r in rows))
    lines = [
        f"  {r[0].ljust(widths[0])}  {r[1].rjust(widths[1])}  {r[2].rjust(widths[2])}  {r[3]}".rstrip()
        for r in rows
    ]
    return "Where the wall time went\n" + "\n".join(lines)


def hundred(parts: Sequence[int]) -> list[int]:
    """Shares in hundredths of a per cent that sum to exactly 100.00 % (largest remainder); zeros for nothing."""
    total = sum(parts)
    if not total:
        return [0] * len(parts)
    exact = [10_000 * part for part in parts]
    floors = [e // total for e in exact]
    order = sorted(range(len(parts)), key=lambda i: (exact[i] % total, -i), reverse=True)
    for i in order[: 10_000 - sum(floors)]:
        floors[i] += 1
    return floors
