"""Figures as inline SVG. Colours are CSS classes, so light and dark share one figure; each mark has a tooltip."""

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Final

WIDTH: Final = 860
HEIGHT: Final = 250
_LEFT, _TOP, _RIGHT, _BOTTOM = 62, 12, 8, 26
_WIDEST_BAR: Final = 64
COLOURS: Final = 8
"""Classes c0 to c7 of the style; the last is for everything else."""


def stacked_bars(
    times: Sequence[str], series: Mapping[str, Sequence[float]], unit: str, title: str, colours: Sequence[int]
) -> str:
    """One bar for each time, a part for each series. values: one for each time; colours: one for each series.

    times: as "2026-01-31" or "2026-01-31 13:00". A negative value is left out.
    """
    tops = [sum(values[index] for values in series.values()) for index in range(len(times))]
    scale = _Scale(max(tops, default=0.0))
    step = (WIDTH - _LEFT - _RIGHT) / max(1, len(times))
    wide = min(step * 0.76, _WIDEST_BAR)
    marks = []
    base = [0.0] * len(times)
    for colour, (name, values) in zip(colours, series.items(), strict=True):
        for index, value in enumerate(values):
            if value <= 0:
                continue
            y, height = scale.y(base[index] + value), scale.y(base[index]) - scale.y(base[index] + value)
            base[index] += value
            tip = escape(f"{name}, {times[index]}: {number_text(value, unit)}")
            marks.append(
                f'<rect class="c{colour}" x="{_LEFT + (index + 0.5) * step - wide / 2:.1f}" y="{y:.1f}" '
                f'width="{wide:.1f}" height="{height:.2f}"><title>{tip}</title></rect>'
            )
    return _figure(
        title, unit, scale, "".join(marks), _labels(times, step), _legend(dict(zip(series, colours, strict=True)))
    )


def line(times: Sequence[str], values: Sequence[float], unit: str, title: str, colour: int = 1) -> str:
    """One line with its area filled; times as for `stacked_bars`."""
    scale = _Scale(max(values, default=0.0))
    step = (WIDTH - _LEFT - _RIGHT) / max(1, len(values))
    points = [(_LEFT + (index + 0.5) * step, scale.y(value)) for index, value in enumerate(values)]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    floor = scale.y(0)
    area = f"{points[0][0]:.1f},{floor:.1f} {path} {points[-1][0]:.1f},{floor:.1f}" if points else ""
    tips = "".join(
        f'<rect class="hit" x="{x - step / 2:.1f}" y="{_TOP}" width="{step:.2f}" height="{floor - _TOP:.1f}">'
        f"<title>{escape(f'{time}: {number_text(value, unit)}')}</title></rect>"
        for (x, _), time, value in zip(points, times, values, strict=True)
    )
    marks = f'<polygon class="c{colour} area" points="{area}"/><polyline class="s{colour}" points="{path}"/>{tips}'
    return _figure(title, unit, scale, marks, _labels(times, step), "")


def bars(names: Sequence[str], values: Sequence[float], texts: Sequence[str], title: str, colour: int = 2) -> str:
    """Horizontal bars, one below the other, each with its name and its value as text."""
    largest = max(values, default=0.0) or 1.0
    height = 24 * len(names) + 6
    label = 210
    rows = []
    for index, (name, value, text) in enumerate(zip(names, values, texts, strict=True)):
        y = 24 * index + 4
        width = (WIDTH - label - 130) * value / largest
        rows.append(
            f'<text class="name" x="{label - 8}" y="{y + 12}">{escape(_short(name, 30))}</text>'
            f'<rect class="c{colour}" x="{label}" y="{y}" width="{width:.1f}" height="16" rx="2">'
            f"<title>{escape(name)}</title></rect>"
            f'<text class="value" x="{label + width + 6:.1f}" y="{y + 12}">{escape(text)}</text>'
        )
    return (
        f'<figure><figcaption>{escape(title)}</figcaption><svg viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="{escape(title)}">{"".join(rows)}</svg></figure>'
    )


def duration_text(seconds: float) -> str:
    """90 → "1.5 min"."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if abs(seconds) >= size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:.3g} s"


def number_text(value: float, unit: str = "") -> str:
    """1234567, "B" → "1.23 MB": three digits and a factor of a thousand."""
    for size, letter in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g} {letter}{unit}"
    return f"{value:.3g} {unit}".rstrip()


class _Scale:
    """A vertical axis from 0 to a round number at or above `largest`."""

    def __init__(self, largest: float) -> None:
        power = 10 ** math.floor(math.log10(largest)) if largest > 0 else 1.0
        self.top = next(
            power * factor for factor in (1, 1.2, 1.6, 2, 2.4, 3, 4, 5, 6, 8, 10) if power * factor >= largest
        )

    def y(self, value: float) -> float:
        return _TOP + (HEIGHT - _TOP - _BOTTOM) * (1 - value / self.top)


def _figure(title: str, unit: str, scale: _Scale, marks: str, labels: str, legend: str) -> str:
    grid = []
    for quarter in range(5):
        value = scale.top * quarter / 4
        y = scale.y(value)
        grid.append(
            f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text class="tick" x="{_LEFT - 6}" y="{y + 4:.1f}">{number_text(value)}</text>'
        )
    return (
        f'<figure><figcaption>{escape(title)} <span class="unit">{escape(unit)}</span></figcaption>{legend}'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">'
        f"{''.join(grid)}{marks}{labels}</svg></figure>"
    )


def _labels(times: Sequence[str], step: float) -> str:
    """Of each day one label, of each hour if there are at most two days; of many some."""
    days = [time[:10] for time in times]
    names = [day[5:] for day in days] if len(set(days)) > 2 else [time[11:] or time[5:] for time in times]
    firsts = [index for index, name in enumerate(names) if index == 0 or names[index - 1] != name]
    every = max(1, math.ceil(len(firsts) / 14))
    return "".join(
        f'<text class="day" x="{_LEFT + (index + 0.5) * step:.1f}" y="{HEIGHT - 8}">{escape(names[index])}</text>'
        for index in firsts[::every]
        if index * step < WIDTH - _LEFT - _RIGHT - 30 or index == 0
    )


def _legend(colours: Mapping[str, int]) -> str:
    entries = "".join(
        f'<span><i class="b{colour}"></i>{escape(_short(name, 40))}</span>' for name, colour in colours.items()
    )
    return f'<div class="legend">{entries}</div>'


def _short(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"
