"""The results of `benchmarks.paper` as figures, one panel a network."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.lines import Line2D

from .paper_report import ABLATIONS, MAIN, Rows, networks, of, smallest

# Okabe and Ito's palette, which stays apart for all kinds of colour vision.
_STYLES: dict[str, tuple[str, str, str, Any]] = {
    "coop": ("Coop", "#0072B2", "o", "-"),
    "dte": ("DTE", "#E69F00", "s", "--"),
    "dtr": ("DTR", "#009E73", "^", "-."),
    "coop-no-partition": ("no partition", "#CC79A7", "v", "--"),
    "coop-copy-on-write": ("copy on write", "#56B4E9", "D", ":"),
    "coop-no-window": ("no window", "#D55E00", "X", "-."),
    "coop-size-term": ("with DTR's size term", "#000000", "P", ":"),
}
_NAMES = {
    "gpt3": "GPT-3 style, 2.7B",
    "bert_large": "BERT-Large (16)",
    "bilstm": "BiLSTM (2048)",
    "spos": "SPOS supernet (256)",
    "swin": "Swin-T (40)",
    "resnet50": "ResNet-50 (128)",
    "unet": "U-Net (5)",
    "inception_v3": "Inception V3 (96)",
}
_MOST_OVERHEAD = 2.0


def _overhead(row: Any) -> float:
    return row.overhead


def _milliseconds(row: Any) -> float:
    return row.search_seconds * 1e3


def _thousands(row: Any) -> float:
    return row.chunks_searched / 1e3


def _percent(row: Any) -> float:
    return row.fragmentation * 100


@dataclass(frozen=True)
class Curves:
    """One figure: a value of each row over the memory ratio."""

    policies: Sequence[str]
    value: Callable[[Any], float]
    label: str
    is_log: bool = False


_COOPS = ("coop", *ABLATIONS)
CURVES = {
    "overhead": Curves(MAIN, _overhead, "compute overhead"),
    "search": Curves(MAIN, _milliseconds, "search latency, ms", is_log=True),
    "chunks": Curves(MAIN, _thousands, "chunks searched, thousands", is_log=True),
    "fragmentation": Curves(MAIN, _percent, "fragmentation, %"),
    "ablation-overhead": Curves(_COOPS, _overhead, "compute overhead"),
    "ablation-fragmentation": Curves(_COOPS, _percent, "fragmentation, %"),
}


def draw(rows: Rows, folder: Path) -> None:
    """Writes all figures, as PNG."""
    for name, curves in CURVES.items():
        figure = _panels(rows, curves)
        figure.savefig(folder / f"{name}.png", dpi=110)
        plt.close(figure)
    figure = _bars(rows, (*MAIN, *ABLATIONS))
    figure.savefig(folder / "smallest.png", dpi=110)
    plt.close(figure)


def _panels(rows: Rows, curves: Curves) -> Any:
    figure, grid = plt.subplots(2, 4, figsize=(14, 6.4), sharex=True)
    for axes, network in zip(grid.flat, networks(rows), strict=False):
        for policy in curves.policies:
            found = [
                row for row in of(rows, network, policy).values() if row.searches > 0
            ]
            _, colour, marker, line = _STYLES[policy]
            axes.plot(
                [row.ratio for row in found],
                [curves.value(row) for row in found],
                color=colour,
                marker=marker,
                linestyle=line,
                markersize=4,
                linewidth=1.6,
            )
        axes.set_title(_NAMES[network], fontsize=11)
        axes.set_xlim(1.02, 0.08)
        axes.grid(alpha=0.3)
        if curves.is_log:
            axes.set_yscale("log")
        elif curves.value is _overhead:
            _, top = axes.get_ylim()
            axes.set_ylim(0.99, min(top, _MOST_OVERHEAD))
        else:
            axes.set_ylim(bottom=0)
    for axes in grid[:, 0]:
        axes.set_ylabel(curves.label)
    for axes in grid[-1]:
        axes.set_xlabel("memory ratio")
    _legend(figure, curves.policies)
    return figure


def _legend(figure: Any, policies: Sequence[str]) -> None:
    handles = [
        Line2D([], [], color=colour, marker=marker, linestyle=line, label=name)
        for name, colour, marker, line in map(_STYLES.__getitem__, policies)
    ]
    figure.legend(
        handles=handles, loc="upper center", ncols=len(handles), frameon=False
    )
    figure.tight_layout(rect=(0, 0, 1, 0.94))


def _bars(rows: Rows, policies: Sequence[str]) -> Any:
    """Smallest feasible budgets, networks side by side."""
    figure, axes = plt.subplots(figsize=(14, 4.6))
    names = networks(rows)
    width = 0.8 / len(policies)
    for i, policy in enumerate(policies):
        name, colour, *_ = _STYLES[policy]
        least = [smallest(rows, network, policy) for network in names]
        reached = [ratio if ratio <= 1 else 0.0 for ratio in least]
        places = [k + (i - (len(policies) - 1) / 2) * width for k in range(len(names))]
        bars = axes.bar(places, reached, width * 0.92, color=colour, label=name)
        axes.bar_label(
            bars,
            [f"{ratio:.2f}".lstrip("0") if ratio <= 1 else "none" for ratio in least],
            fontsize=7,
            rotation=90,
            padding=2,
        )
    axes.set_xticks(range(len(names)), [_NAMES[network] for network in names])
    axes.set_ylabel("smallest feasible memory ratio")
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    axes.margins(y=0.15)
    axes.legend(ncols=len(policies), frameon=False, loc="upper center",
                bbox_to_anchor=(0.5, 1.12))  # fmt: skip
    figure.tight_layout()
    return figure
