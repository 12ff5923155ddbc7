"""The demo's picture: bytes in each second of the three runs, with the limit as a line. On white, and on dark pages."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from demo.runs import Run
from deploy.local.bars import COLOURS, bars

#: The background of GitHub's dark pages, and colours that can be told apart on it.
_DARK = {"figure.facecolor": "#0d1117", "axes.facecolor": "#0d1117"}
_DARK_COLOURS = ("#56B4E9", "#2BC29A", "#F28E4A")
#: A second is labelled if it has at least this many times the limit.
_FAR_ABOVE = 2.0


def draw(runs: Sequence[Run], records: int, limit: float, path: Path) -> None:
    """One panel for each run, the same axes in all. records: how many each run wrote; limit: bytes per second.

    Writes `path`, and the same for dark pages beside it, with `-dark` in its name.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    _draw(runs, records, limit, path, COLOURS)
    with plt.style.context(["dark_background", _DARK]):
        _draw(runs, records, limit, dark(path), _DARK_COLOURS)


def dark(path: Path) -> Path:
    """Where the picture for dark pages is."""
    return path.with_stem(f"{path.stem}-dark")


def _draw(runs: Sequence[Run], records: int, limit: float, path: Path, colours: Sequence[str]) -> None:
    figure, panels = plt.subplots(len(runs), 1, sharex=True, sharey=True, figsize=(9, 7), layout="constrained")
    figure.suptitle(
        f"What reaches the broker, second by second: the same Spark job, {records:,} flights",
        x=0.01,
        ha="left",
        fontsize=12.5,
        fontweight="bold",
    )
    last = max(len(run.bins) for run in runs)
    highest = max(max(run.bins, default=0) for run in runs) / 1e6
    panels[-1].set_xlim(0.4, last + 0.6)
    panels[-1].set_ylim(0, 1.2 * max(highest, limit / 1e6))
    for panel, run, colour in zip(panels, runs, colours, strict=True):
        _panel(panel, run, limit, colour, last)
    panels[0].legend(loc="upper right", frameon=False, fontsize=10, handlelength=2.5)
    figure.supylabel("MB per second", fontsize=10)
    panels[-1].set_xlabel("second of the run, from its first data request")
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _panel(panel: Axes, run: Run, limit: float, colour: str, last: int) -> None:
    """`last`: the second in which the longest run ends."""
    bars(panel, run.bins, limit, colour)
    panel.set_title(run.plan.headline, loc="left", fontsize=11, fontweight="bold", color=colour)
    panel.set_title(summary(run), loc="right", fontsize=9)
    if run.bins:
        peak = max(range(len(run.bins)), key=run.bins.__getitem__)
        if run.bins[peak] > _FAR_ABOVE * limit:
            size = run.bins[peak] / 1e6
            panel.text(peak + 1, size, f"{size:.0f} MB", ha="center", va="bottom", fontsize=9, color=colour)
    ended = len(run.bins)
    if ended < last:
        panel.axvspan(ended + 0.5, last + 0.6, color="gray", alpha=0.12, linewidth=0)
        panel.text((ended + last + 1.1) / 2, limit / 1e6 * 1.5, "done", ha="center", va="bottom", fontsize=10)


def summary(run: Run) -> str:
    """The run in a line. The first second has a burst, the last is not whole: neither is in the range."""
    text = f"{run.total_bytes / 1e6:.0f} MB in {run.seconds:.0f} s"
    if between := run.bins[1:-1]:
        text += f"; after the first second {min(between) / 1e6:.2f} to {max(between) / 1e6:.2f} MB"
    return text
