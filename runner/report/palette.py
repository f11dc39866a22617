"""Colours and sizes of all figures. The colours are Okabe and Ito's, told apart by colour-blind readers too."""

from __future__ import annotations

import io
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from runner.ledger.split import Kind

KIND_COLOUR: dict[Kind, str] = {
    "useful": "#009E73",
    "replayed": "#D55E00",
    "stall": "#E69F00",
    "detection": "#CC79A7",
    "teardown": "#882255",
    "startup": "#0072B2",
    "load": "#56B4E9",
    "idle": "#BBBBBB",
}
INK, FAINT, GRID = "#1F2933", "#66727F", "#E4E7EB"
OURS, PUBLISHED = "#0072B2", "#B9C4CE"
LAYER_NAME = {
    "none": "none",
    "inprocess": "in-process",
    "ft_launcher": "ft_launcher",
    "ft_launcher+inprocess": "ft_launcher + in-process",
    "kubernetes": "Kubernetes (imitated)",
}
STYLE: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.size": 9.5,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": "#9AA5B1",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "svg.fonttype": "none",  # text stays text: searchable, and small
    "svg.hashsalt": "nvrx-report",  # the same run gives the same file
}


def new_figure(width: float = 9.6, height: float = 3.2) -> Figure:
    """A figure of our size (inches) that no global state knows of. Make and fill it under `styled()`."""
    return Figure(figsize=(width, height), layout="constrained")


def kind_legend(figure: Figure, entries: Iterable[tuple[Kind, str]]) -> None:
    """A legend of kinds above the figure: (kind, text)."""
    patches = [Patch(color=KIND_COLOUR[kind], label=label) for kind, label in entries]
    figure.legend(
        handles=patches, loc="outside upper left", ncols=8, fontsize=8.5, handlelength=1, columnspacing=1.2
    )


def styled() -> AbstractContextManager[None]:
    """In this context figures are made and saved in our style; nobody else's is touched."""
    settings: Any = STYLE
    return mpl.rc_context(settings)


def as_svg(figure: Figure) -> str:
    """The figure as an `<svg>` element to embed in a page."""
    buffer = io.StringIO()
    with styled():
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def as_png(figure: Figure) -> bytes:
    """The figure as a PNG file, 144 dots an inch."""
    buffer = io.BytesIO()
    with styled():
        figure.savefig(buffer, format="png", dpi=144, metadata={"Software": None})
    return buffer.getvalue()
