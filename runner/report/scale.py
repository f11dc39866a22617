"""Goodput at scales that nobody has at hand, simulated from costs that somebody measured.

    python -m runner.report.scale costs.json --figure docs/scaling.svg --doc docs/scaling.md

The costs file is JSON: `step` (seconds) and, for each layer, the fields of `LayerCosts`; `nvrx-report RUN... --costs`
writes one from runs. docs/scaling.md states the model and its limits.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from runner.arguments import Parser, a_path
from runner.errors import ExitCode, InputError, RunError
from runner.ledger.interval import GPU_HOURS_BETWEEN_FAULTS, Advice, Costs, FaultRates, advise
from runner.ledger.simulate import simulate
from runner.streams import complain, write_out
from runner.strictjson import parse

SCALES = (64, 256, 1024, 4096, 16384)
"""GPUs."""
RATES = (0.25, 1.0, 4.0)
"""Fault rates, as multiples of the Llama 3 fleet's."""
FIXED_SECONDS = 600.0
"""The interval of those who do not compute one."""
DAYS, SEEDS = 30, tuple(range(8))


@dataclass(frozen=True)
class LayerCosts:
    """What a layer's run pays at the scale at which it was measured; seconds.

    Attributes:
        memory: soft faults are mended from snapshots in memory. Else every fault costs `hard_recovery`.
        doubling: what each doubling of the ranks adds to a recovery (rendezvous and barriers grow with log2).
        ranks: at which it was measured.
    """

    save: float
    write: float
    snapshot: float
    soft_recovery: float
    hard_recovery: float
    memory: bool
    doubling: float = 0.0
    ranks: int = 2

    def at(self, devices: int, step: float) -> Costs:
        """The costs of a job of `devices` GPUs."""
        more = self.doubling * max(0.0, math.log2(devices / self.ranks))
        return Costs(
            step=step,
            save=self.save,
            write=self.write,
            snapshot=self.snapshot,
            soft_recovery=(self.soft_recovery if self.memory else self.hard_recovery) + more,
            hard_recovery=self.hard_recovery + more,
        )


@dataclass(frozen=True)
class CostsFile:
    """A costs file: where its numbers come from, the step, and the layers."""

    measured: str
    step: float
    layers: Mapping[str, LayerCosts]


@dataclass(frozen=True)
class Point:
    """One simulated job."""

    layer: str
    devices: int
    rate: float
    advised: bool
    advice: Advice
    goodput: float


def load_costs(path: Path) -> CostsFile:
    """Read a costs file.

    Raises:
        InputError: it cannot be read or lacks something; all mistakes of a layer named.
    """
    try:
        data = parse(path.read_bytes())
        layers = {name: _layer(name, entry) for name, entry in data["layers"].items()}
        return CostsFile(str(data.get("measured", "")), float(data["step"]), layers)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: no costs file: {error!r}; docs/scaling.md shows one") from error


def _layer(name: str, entry: Mapping[str, Any]) -> LayerCosts:
    known = {f.name for f in fields(LayerCosts)}
    needed = {"save", "write", "snapshot", "soft_recovery", "hard_recovery", "memory"}
    wrong = sorted((set(entry) - known) | (needed - set(entry)))
    if wrong:
        raise ValueError(f"layers.{name}: unknown or missing: {', '.join(wrong)}")
    return LayerCosts(**entry)


def simulate_all(
    costs: CostsFile, *, scales: Sequence[int] = SCALES, rates: Sequence[float] = RATES, days: int = DAYS
) -> list[Point]:
    """Every layer at every scale and fault rate, with the advised interval and with a fixed one."""
    points = []
    for layer, own in costs.layers.items():
        for devices in scales:
            for rate in rates:
                base = FaultRates.of_fleet(devices)
                faults = FaultRates(soft=base.soft / rate, hard=base.hard / rate)
                at_scale = own.at(devices, costs.step)
                advised = advise(at_scale, faults, snapshots=own.memory)
                every = max(1, math.ceil(max(FIXED_SECONDS, own.write) / costs.step))
                fixed = Advice(every, every if own.memory else None, 0.0, False)
                for advice in (advised, fixed):
                    goodput = _mean_goodput(at_scale, faults, advice, days)
                    points.append(Point(layer, devices, rate, advice is advised, advice, goodput))
    return points


def _mean_goodput(costs: Costs, faults: FaultRates, advice: Advice, days: int) -> float:
    steps = math.ceil(days * 86400 / costs.step)
    runs = [
        simulate(
            costs, faults, every=advice.every, snapshot_every=advice.snapshot_every, steps=steps, seed=seed
        )
        for seed in SEEDS
    ]
    return sum(run.goodput for run in runs) / len(runs)


def scale_table(points: Sequence[Point]) -> str:
    """Markdown: goodput at the Llama 3 rate, advised interval; in brackets the fixed one."""
    layers = list(dict.fromkeys(p.layer for p in points))
    scales = sorted({p.devices for p in points})
    found = {(p.layer, p.devices, p.advised): p for p in points if p.rate == 1.0}
    lines = ["| GPUs | a fault every | " + " | ".join(layers) + " |", "|---" * (len(layers) + 2) + "|"]
    for devices in scales:
        cells = [
            f"{100 * found[layer, devices, True].goodput:.1f} % ({100 * found[layer, devices, False].goodput:.1f} %)"
            for layer in layers
        ]
        hours = GPU_HOURS_BETWEEN_FAULTS / devices
        lines.append(f"| {devices:,} | {hours:,.1f} h | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def scale_svg(points: Sequence[Point]) -> str:
    """The figure. Needs matplotlib."""
    from matplotlib.lines import Line2D
    from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

    from runner.report.palette import LAYER_NAME, as_svg, new_figure, styled

    colours = dict(
        zip(
            dict.fromkeys(p.layer for p in points), ("#009E73", "#0072B2", "#CC79A7", "#D55E00"), strict=False
        )
    )
    rates = sorted({p.rate for p in points})
    with styled():
        figure = new_figure(9.6, 3.7)
        panels = figure.subplots(1, len(rates), sharey=True)
        for panel, rate in zip(panels, rates, strict=True):
            for layer, colour in colours.items():
                for advised, dash in ((True, "-"), (False, "--")):
                    line = [p for p in points if (p.layer, p.rate, p.advised) == (layer, rate, advised)]
                    panel.plot([p.devices for p in line], [100 * p.goodput for p in line], dash, color=colour,
                               marker="o" if advised else None, ms=3.5, lw=1.6 if advised else 1.1)  # fmt: skip
            panel.set_xscale("log", base=4)
            panel.set_xticks(sorted({p.devices for p in points}))
            panel.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
            panel.xaxis.set_minor_locator(NullLocator())
            panel.xaxis.set_minor_formatter(NullFormatter())
            panel.tick_params(axis="x", labelrotation=40)
            panel.set_title(f"{rate:g} x the Llama 3 fault rate", fontsize=9.5, loc="left")
            panel.set(xlabel="GPUs", ylim=(min(100 * p.goodput for p in points) - 2, 100.5))
        panels[0].set_ylabel("training goodput (%)")
        handles = [
            Line2D([], [], color=c, label=LAYER_NAME.get(layer, layer)) for layer, c in colours.items()
        ]
        handles += [
            Line2D([], [], color="#66727F", marker="o", ms=3.5, label="advised interval"),
            Line2D([], [], color="#66727F", ls="--", label=f"a save every {FIXED_SECONDS / 60:.0f} min"),
        ]
        figure.legend(handles=handles, loc="outside upper left", ncols=3, fontsize=8.5)
        return as_svg(figure)


def replace_between(text: str, marker: str, new: str) -> str:
    """`text` with what stands between `<!-- marker -->` and `<!-- /marker -->` replaced."""
    begin, end = f"<!-- {marker} -->\n", f"<!-- /{marker} -->"
    if begin not in text or end not in text:
        raise InputError(f"the document has no place for its table: {begin.strip()} ... {end}")
    head, _, rest = text.partition(begin)
    return head + begin + new + end + rest.partition(end)[2]


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point."""
    parser = Parser(
        "python -m runner.report.scale",
        "Simulate goodput at scale from the costs of runs.",
        "`nvrx-report RUN... --costs FILE` writes the costs.",
    )
    parser.add_argument("costs", type=a_path, help="costs file (JSON)")
    parser.add_argument("--figure", type=a_path, help="write the figure here (SVG; needs matplotlib)")
    parser.add_argument("--doc", type=a_path, help="put the table into this document, between its markers")
    arguments = parser.parse_args(argv)
    try:
        costs = load_costs(arguments.costs)
        points = simulate_all(costs)
        table = scale_table(points)
        write_out(table)
        if arguments.figure:
            arguments.figure.write_text(
                '<?xml version="1.0" encoding="utf-8"?>\n' + scale_svg(points), encoding="utf-8"
            )
        if arguments.doc:
            text = arguments.doc.read_text(encoding="utf-8")
            arguments.doc.write_text(
                replace_between(text, "scale", f"From: {costs.measured}\n\n{table}"), encoding="utf-8"
            )
    except OSError as error:
        complain(f"scale: {error.filename}: {error.strerror}")
        return int(ExitCode.BAD_RECIPE)
    except RunError as error:
        complain(f"scale: {error}")
        return int(error.exit_code)
    return ExitCode.DONE


if __name__ == "__main__":
    sys.exit(main())
