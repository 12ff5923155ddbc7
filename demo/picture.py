"""The demo's picture: bytes in each second of the three runs, with the limit as a line."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from demo.runs import Run
from deploy.local.bars import COLOURS, bars


def draw(runs: Sequence[Run], records: int, limit: float, path: Path) -> None:
    """One panel for each run, the same axes in all. records: how many each run wrote; limit: bytes per second."""
    figure, panels = plt.subplots(len(runs), 1, sharex=True, sharey=True, figsize=(9, 7), layout="constrained")
    figure.suptitle(
        f"What reaches the broker in each second: the same Spark job, {records:,} flights",
        x=0.01,
        ha="left",
        fontsize=12.5,
        fontweight="bold",
    )
    for panel, run, colour in zip(panels, runs, COLOURS, strict=True):
        _panel(panel, run, limit, colour)
    panels[0].legend(loc="upper right", frameon=False, fontsize=10, handlelength=2.5)
    panels[-1].set_xlim(0.4, max(len(run.bins) for run in runs) + 0.6)
    panels[-1].set_xlabel("second of the run, from its first data frame")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _panel(panel: Axes, run: Run, limit: float, colour: str) -> None:
    bars(panel, run.bins, limit, colour)
    panel.set_title(run.plan.headline, loc="left", fontsize=11, fontweight="bold", color=colour)
    panel.set_title(summary(run), loc="right", fontsize=10)
    panel.set_ylabel("MB in that second")


def summary(run: Run) -> str:
    """The run in a line. The first second holds a burst, the last is not whole: neither is in the range."""
    text = f"{run.total_bytes / 1e6:.0f} MB in {run.seconds:.0f} s"
    if between := run.bins[1:-1]:
        text += f"; after the first second {min(between) / 1e6:.2f} to {max(between) / 1e6:.2f} MB"
    return text
