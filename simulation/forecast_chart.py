"""A forecast as an SVG picture: the rate of each client by second, and how long its records wait."""

from collections.abc import Iterator, Sequence
from html import escape
from math import ceil, log10
from typing import Final, NamedTuple

from proxy.admin.plain_text import bytes_of, seconds_of
from simulation.forecast import Forecast

WIDTH: Final = 760
_LEFT, _RIGHT, _PANEL, _GAP = 76, 20, 190, 52
_LEGEND_ROW: Final = 22
_COLORS: Final = ("#2a78d6", "#d95926", "#1f9d6b", "#b0499e", "#b8860b", "#6f5fc7", "#3a9db5", "#8a6d5a")
_STYLE: Final = """
text { font: 13px system-ui, sans-serif; fill: #3d3d3a }
.title { font-weight: 600; fill: #1a1a18 }
.axis { stroke: #8a8a85; stroke-width: 1 }
.grid { stroke: #e3e2dd; stroke-width: 1 }
.back { fill: #ffffff }
polyline { fill: none; stroke-width: 2; stroke-linejoin: round }
@media (prefers-color-scheme: dark) {
  text { fill: #c4c3bd } .title { fill: #f2f1ec } .axis { stroke: #8a8a85 } .grid { stroke: #3a3a38 }
  .back { fill: #1b1b1a }
}"""


class _Panel(NamedTuple):
    title: str
    top: int
    lines: Sequence[Sequence[float]]
    unit: str


def svg_of(found: Forecast) -> str:
    """Both panels share the axis of time."""
    names = [each.client_id for each in found.clients]
    first = 34 + _LEGEND_ROW * ceil(len(names) / 4)
    second = first + _PANEL + _GAP
    height = second + _PANEL + 54
    panels = [
        _Panel("Rate, bytes per second", first + 8, [each.rates for each in found.clients], "B/s"),
        _Panel("Longest wait of a record until its delivery", second + 8, [each.waits for each in found.clients], "s"),
    ]
    size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size}>',
            f"<style>{_STYLE}</style>",
            f'<rect class="back" width="{WIDTH}" height="{height}"/>',
            *_legend(names),
            *(line for panel in panels for line in _panel(panel, found.seconds)),
            f'<text x="{(WIDTH + _LEFT - _RIGHT) / 2}" y="{height - 8}" text-anchor="middle">seconds</text>',
            "</svg>\n",
        ]
    )


def _legend(names: Sequence[str]) -> Iterator[str]:
    width = (WIDTH - _LEFT - _RIGHT) / 4
    for number, name in enumerate(names):
        x, y = _LEFT + number % 4 * width, 22 + number // 4 * _LEGEND_ROW
        shown = name if len(name) <= 18 else f"{name[:17]}…"
        yield f'<line x1="{x}" x2="{x + 18}" y1="{y - 4}" y2="{y - 4}" stroke-width="3" {_stroke(number)}/>'
        yield f'<text x="{x + 25}" y="{y}">{escape(shown)}</text>'


def _stroke(number: int) -> str:
    """After the last color they come again, dashed."""
    dashes = f' stroke-dasharray="{3 * (number // len(_COLORS))} 3"' if number >= len(_COLORS) else ""
    return f'stroke="{_COLORS[number % len(_COLORS)]}"{dashes}'


def _panel(panel: _Panel, seconds: int) -> Iterator[str]:
    right, bottom = WIDTH - _RIGHT, panel.top + _PANEL
    highest, step = _scale(max((value for line in panel.lines for value in line), default=0))
    yield f'<text class="title" x="{_LEFT}" y="{panel.top - 10}">{panel.title}</text>'
    for number in range(round(highest / step) + 1):
        y = bottom - number * step / highest * _PANEL
        shown = f"{bytes_of(number * step)}/s" if panel.unit == "B/s" else seconds_of(number * step)
        yield f'<line class="{"grid" if number else "axis"}" x1="{_LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{shown if number else 0}</text>'
    for second in range(0, seconds + 1, ceil(_scale(seconds)[1])):
        x = _LEFT + second / seconds * (right - _LEFT)
        yield f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{bottom}" y2="{bottom + 4}"/>'
        yield f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{second}</text>'
    for number, line in enumerate(panel.lines):
        points = " ".join(
            f"{_LEFT + (second + 0.5) / seconds * (right - _LEFT):.1f},{bottom - value / highest * _PANEL:.1f}"
            for second, value in enumerate(line)
        )
        yield f'<polyline {_stroke(number)} points="{points}"/>'


def _scale(largest: float) -> tuple[float, float]:
    """Up to where an axis goes, and the step of its figures: four to seven round ones."""
    largest = largest or 1
    power: float = 10.0 ** int(log10(largest) // 1)
    step = power * next(each for each in (0.2, 0.5, 1, 2, 5) if largest / power / each <= 6)
    return ceil(largest / step - 1e-9) * step, step
