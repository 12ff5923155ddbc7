"""The picture: bytes in each second, a row for each enforcement, a column for each library."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt

from bench.enforcement.outcome import BROKER, LIMIT, SELF_LIMITED, Outcome
from deploy.local.bars import COLOURS, bars

#: Where a panel ends, over the limit: what is higher is cut, with its value in it.
_TOP = 2.4
#: What is no mode of the proxy.
_COLOUR = {SELF_LIMITED: COLOURS[1], BROKER: COLOURS[2]}


def draw(outcomes: Sequence[Outcome], path: Path) -> None:
    """The same axes in all panels; of several rounds the last. Writes a PNG."""
    cells = {(each.enforcement, each.library): each.bins for each in outcomes}
    rows = list(dict.fromkeys(enforcement for enforcement, _ in cells))
    columns = list(dict.fromkeys(library for _, library in cells))
    size = (1.5 + 3.6 * len(columns), 1.2 + 1.5 * len(rows))
    figure, panels = plt.subplots(
        len(rows), len(columns), sharex=True, sharey=True, squeeze=False, figsize=size, layout="constrained"
    )
    figure.suptitle("What reaches the broker in each second", x=0.01, ha="left", fontsize=12.5, fontweight="bold")
    for row, enforcement in enumerate(rows):
        for column, library in enumerate(columns):
            panel, bins = panels[row, column], cells.get((enforcement, library), ())
            bars(panel, bins, LIMIT, _COLOUR.get(enforcement, COLOURS[0]))
            for second, value in enumerate(bins, 1):
                if value > _TOP * LIMIT:
                    place = (second, (_TOP - 0.05) * LIMIT / 1e6)
                    panel.text(*place, f"{value / 1e6:.0f}", color="white", ha="center", va="top", rotation=90, size=8)
            if row == 0:
                panel.set_title(library, fontsize=11, fontweight="bold")
        title = enforcement if enforcement in _COLOUR else f"mode {enforcement}"
        panels[row, 0].set_ylabel(f"{title}\nMB in that second", fontsize=9)
    panels[0, 0].set_ylim(0, _TOP * LIMIT / 1e6)
    panels[0, 0].set_xlim(0.4, max(map(len, cells.values())) + 0.6)
    panels[0, 0].legend(loc="upper right", frameon=False, fontsize=9, handlelength=2.5)
    for panel in panels[-1]:
        panel.set_xlabel("second of the run", fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)
