"""What a benchmark found: figures, the table that shows them, the JSON that keeps them."""

import json
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from types import MappingProxyType

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value of one peer: the median of `rounds`.

    `ratio` sets it against the value of the peer `ratio_to` in the same row. A target is met at or below it
    (`at_least`: at or above); `target` is for the value, `ratio_target` for the ratio, and no figure has both.
    """

    benchmark: str
    scenario: str
    metric: str
    unit: str
    peer: str
    rounds: tuple[float, ...]
    ratio: float | None = None
    ratio_to: str | None = None
    target: float | None = None
    ratio_target: float | None = None
    at_least: bool = False

    @property
    def value(self) -> float:
        """The median of the rounds."""
        return median(self.rounds)

    @property
    def row(self) -> tuple[str, str, str]:
        """What is the same for all peers: (scenario, metric, unit)."""
        return self.scenario, self.metric, self.unit

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None where there is none, or nothing to set against."""
        measured, target = (self.ratio, self.ratio_target) if self.target is None else (self.value, self.target)
        if measured is None or target is None:
            return None
        return measured >= target if self.at_least else measured <= target


def compare(
    figures: Iterable[Figure],
    *,
    subject: str,
    other: str,
    ratio_targets: Mapping[tuple[str, str, str], float] = MappingProxyType({}),
) -> list[Figure]:
    """Give each figure of `subject` its ratio to `other`'s in the same row, and the target of that ratio, if any.

    `ratio_targets` maps rows to the largest ratio wanted.
    """
    taken = list(figures)
    others = {figure.row: figure.value for figure in taken if figure.peer == other}
    return [
        replace(
            figure,
            ratio=figure.value / others[figure.row],
            ratio_to=other,
            ratio_target=ratio_targets.get(figure.row),
        )
        if figure.peer == subject and others.get(figure.row)
        else figure
        for figure in taken
    ]


def _number(value: float) -> str:
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value >= 100 or value < 0.01 else f"{value:.3f}".rstrip("0").rstrip(".")


def show(console: Console, title: str, figures: Sequence[Figure]) -> None:
    """Print one table: a row for each scenario and metric, a column for each peer, then ratio, target and verdict."""
    peers = list(dict.fromkeys(figure.peer for figure in figures))
    table = Table(title=title, title_justify="left")
    table.add_column("scenario")
    table.add_column("metric")
    for peer in peers:
        table.add_column(peer, justify="right")
    table.add_column("ratio", justify="right")
    table.add_column("target", justify="right")
    table.add_column("")
    rows: dict[tuple[str, str, str], dict[str, Figure]] = {}
    for figure in figures:
        rows.setdefault(figure.row, {})[figure.peer] = figure
    last_scenario = None
    for (scenario, metric, unit), by_peer in rows.items():
        if last_scenario not in (None, scenario):
            table.add_section()
        table.add_row(
            "" if scenario == last_scenario else scenario,
            f"{metric}, {unit}" if unit else metric,
            *(_number(by_peer[peer].value) if peer in by_peer else "" for peer in peers),
            *_verdict(list(by_peer.values())),
        )
        last_scenario = scenario
    console.print(table)


def _verdict(row: Sequence[Figure]) -> tuple[str, str, str]:
    """(ratio, target, verdict) of one row of the table, for whichever peer has them."""
    ratio = next((f"{figure.ratio:.2f}" for figure in row if figure.ratio is not None), "")
    judged = next((figure for figure in row if figure.met is not None), None)
    if judged is None:
        return ratio, "", ""
    target = judged.ratio_target if judged.target is None else judged.target
    sign = "≥" if judged.at_least else "≤"
    return ratio, f"{sign} {_number(target or 0.0)}", "[green]met[/]" if judged.met else "[red]MISSED[/]"


def machine() -> dict[str, str | int | None]:
    """What the figures were taken on."""
    models = [line.split(":", 1)[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    return {
        "cpu": models[0] if models else platform.processor(),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines() if Path(path).exists() else []


def write_json(path: Path, figures: Sequence[Figure]) -> None:
    """Write every figure with its rounds, and the machine."""
    rows = [asdict(figure) | {"value": figure.value, "met": figure.met} for figure in figures]
    path.write_text(json.dumps({"machine": machine(), "figures": rows}, indent=2) + "\n")
