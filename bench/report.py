"""What a benchmark found: figures, the table that shows them, the JSON that keeps them."""

import json
import os
import platform
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value of one peer: the median of `rounds`.

    `ratio` sets it against the value of the peer `ratio_to` in the same row. A target is met at or below it
    (`at_least`: at or above); `target` is for the value, `ratio_target` for the ratio, and no figure has both.
    `is_shown`: in the table; the file has all figures.
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
    is_shown: bool = True

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


def compare(figures: Iterable[Figure], *, other: str) -> list[Figure]:
    """Give each figure its ratio to that of the peer `other` in the same row, if there is one.

    Figures of `other` itself, and of no peer ("direct"), have none.
    """
    taken = list(figures)
    others = {figure.row: figure.value for figure in taken if figure.peer == other}
    return [
        replace(figure, ratio=figure.value / others[figure.row], ratio_to=other)
        if figure.peer not in (other, "direct") and others.get(figure.row)
        else figure
        for figure in taken
    ]


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def show(console: Console, title: str, figures: Sequence[Figure]) -> None:
    """Print one table: a row for each scenario and metric; for each peer its value, and ratio and target if it has any.

    A scenario "NAME; VARIANT" after one "NAME" is shown as its variant, indented.
    """
    shown = [figure for figure in figures if figure.is_shown]
    rows: dict[tuple[str, str, str], dict[str, Figure]] = {}
    for figure in shown:
        rows.setdefault(figure.row, {})[figure.peer] = figure
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("scenario")
    table.add_column("metric")
    judged = {}
    for peer in dict.fromkeys(figure.peer for figure in shown):
        table.add_column(peer, justify="right", no_wrap=True)
        verdicts = [figure for figure in shown if figure.peer == peer and _verdict(figure)]
        judged[peer] = bool(verdicts)
        if verdicts:
            other = next((figure.ratio_to for figure in verdicts if figure.ratio_to), "")
            table.add_column(f"/ {other}" if other else "target", no_wrap=True)
    last, base = "", ""
    for (scenario, metric, unit), by_peer in rows.items():
        name, _, variant = scenario.partition("; ")
        if last and name != base:
            table.add_section()
        label = "" if scenario == last else f"  {variant}" if variant and name == base else scenario
        last, base = scenario, name
        cells = [label, f"{metric}, {unit}" if unit else metric]
        for peer, has_verdict in judged.items():
            cell = by_peer.get(peer)
            cells.append("" if cell is None else _number(cell.value))
            if has_verdict:
                cells.append("" if cell is None else _verdict(cell))
        table.add_row(*cells)
    console.print(table)


def _verdict(figure: Figure) -> str:
    """The ratio and how it compares with its target, or how the value does: "1.31 ≤ 1.4", "3.25; > 45" in red."""
    ratio = "" if figure.ratio is None else f"{figure.ratio:.2f}"
    if figure.met is None:
        return ratio
    target = figure.ratio_target if figure.target is None else figure.target
    sign = ("≥" if figure.met else "<") if figure.at_least else ("≤" if figure.met else ">")
    if ratio and figure.target is not None:
        ratio += ";"
    text = f"{ratio} {sign} {_number(target or 0.0)}".strip()
    return f"[green]{text}[/]" if figure.met else f"[bold red]{text}[/]"


BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"


def document(path: Path, figures: Sequence[Figure], command: str) -> None:
    """Replace what is between BEGIN and END in a Markdown file by a table of the figures, with command, machine
    and date. Raises ValueError."""
    text = path.read_text()
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ValueError(f"{path} must have one {BEGIN} and one {END}")
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    about = machine()
    date = datetime.now(UTC).date()
    head = f"`{command}`: {about['cpu']}, {about['cores']} cores, Python {about['python']}, on {date}."
    path.write_text(f"{before}{BEGIN}\n{head}\n\n{markdown(figures)}\n{END}{after}")


def markdown(figures: Sequence[Figure]) -> str:
    """The table of `show` in Markdown: value, ratio and target in one cell; what misses its target is bold.

    Rows in which every figure is 0, and none misses its target, are left out.
    """
    telling = {figure.row for figure in figures if figure.value or figure.met is False}
    shown = [figure for figure in figures if figure.is_shown and figure.row in telling]
    peers = list(dict.fromkeys(figure.peer for figure in shown))
    rows: dict[tuple[str, str, str], dict[str, str]] = {}
    for figure in shown:
        verdict = re.sub(r"\[green\]|\[/\]", "", _verdict(figure)).replace("[bold red]", "**")
        verdict += "**" if "**" in verdict else ""
        rows.setdefault(figure.row, {})[figure.peer] = (
            f"{_number(figure.value)} {f'({verdict})' if verdict else ''}".strip()
        )
    lines = [["scenario", "metric", *peers], ["---"] * (2 + len(peers))]
    lines += [
        [scenario, f"{metric}, {unit}" if unit else metric, *(cells.get(peer, "") for peer in peers)]
        for (scenario, metric, unit), cells in rows.items()
    ]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


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
