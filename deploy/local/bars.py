"""Bytes in each second as bars, with the limit as a line: one panel of a picture."""

from collections.abc import Sequence

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

#: Of Okabe and Ito's palette: told apart with any colour vision.
COLOURS = ("#0072B2", "#009E73", "#D55E00")


def bars(panel: Axes, bins: Sequence[int], limit: float, colour: str) -> None:
    """bins: bytes in each second; limit: bytes per second. Line and grid have the colour of the style's axes."""
    seconds = range(1, len(bins) + 1)
    panel.bar(seconds, [size / 1e6 for size in bins], width=0.84, color=colour)
    line = mpl.rcParams["axes.edgecolor"]
    panel.axhline(limit / 1e6, color=line, linewidth=1.2, linestyle=(0, (5, 3)), label=f"limit {limit / 1e6:g} MB/s")
    panel.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=24))
    panel.grid(axis="y", color=line, alpha=0.15, linewidth=0.7)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)
