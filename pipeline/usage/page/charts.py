"""Figures as inline SVG. Colours are CSS classes, so light and dark share one figure; each mark has a tooltip."""

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Final

WIDTH: Final = 860
HEIGHT: Final = 250
_LEFT, _TOP, _RIGHT, _BOTTOM = 62, 12, 8, 26
COLOURS: Final = 8
"""Classes c0 to c7 of the style; the last is for everything else."""


def stacked_bars(days: Sequence[str], series: Mapping[str, Sequence[float]], unit: str, title: str) -> str:
    """One bar for each day, a part for each series (at most COLOURS; the nth has colour n). values: one for each day.

    A negative value is left out.
    """
    tops = [sum(values[index] for values in series.values()) for index in range(len(days))]
    scale = _Scale(max(tops, default=0.0))
    step = (WIDTH - _LEFT - _RIGHT) / max(1, len(days))
    marks = []
    base = [0.0] * len(days)
    for number, (name, values) in enumerate(series.items()):
        for index, value in enumerate(values):
            if value <= 0:
                continue
            y, height = scale.y(base[index] + value), scale.y(base[index]) - scale.y(base[index] + value)
            base[index] += value
            tip = escape(f"{name}, {days[index]}: {number_text(value)} {unit}")
            marks.append(
                f'<rect class="c{number}" x="{_LEFT + index * step + step * 0.12:.1f}" y="{y:.1f}" '
                f'width="{step * 0.76:.1f}" height="{height:.2f}"><title>{tip}</title></rect>'
            )
    return _figure(title, unit, scale, "".join(marks), _day_labels(days, step), _legend(list(series)))


def line(times: Sequence[str], values: Sequence[float], unit: str, title: str, colour: int = 1) -> str:
    """One line with its area filled; times name the points."""
    scale = _Scale(max(values, default=0.0))
    step = (WIDTH - _LEFT - _RIGHT) / max(1, len(values))
    points = [(_LEFT + (index + 0.5) * step, scale.y(value)) for index, value in enumerate(values)]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    floor = scale.y(0)
    area = f"{points[0][0]:.1f},{floor:.1f} {path} {points[-1][0]:.1f},{floor:.1f}" if points else ""
    tips = "".join(
        f'<rect class="hit" x="{x - step / 2:.1f}" y="{_TOP}" width="{step:.2f}" height="{floor - _TOP:.1f}">'
        f"<title>{escape(f'{time}: {number_text(value)} {unit}')}</title></rect>"
        for (x, _), time, value in zip(points, times, values, strict=True)
    )
    marks = f'<polygon class="c{colour} area" points="{area}"/><polyline class="s{colour}" points="{path}"/>{tips}'
    return _figure(title, unit, scale, marks, _day_labels([each[:10] for each in times], step), "")


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


def number_text(value: float) -> str:
    """1234567 → "1.23 M": three digits and a factor of a thousand."""
    for size, letter in ((1e15, " P"), (1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


class _Scale:
    """A vertical axis from 0 to a round number at or above `largest`."""

    def __init__(self, largest: float) -> None:
        power = 10 ** math.floor(math.log10(largest)) if largest > 0 else 1.0
        self.top = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= largest)

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


def _day_labels(days: Sequence[str], step: float) -> str:
    """Of each day one label, and of many days some."""
    firsts = [index for index, day in enumerate(days) if index == 0 or days[index - 1] != day]
    every = max(1, math.ceil(len(firsts) / 14))
    return "".join(
        f'<text class="day" x="{_LEFT + (index + 0.5) * step:.1f}" y="{HEIGHT - 8}">{escape(days[index][5:10])}</text>'
        for index in firsts[::every]
        if index * step < WIDTH - _LEFT - _RIGHT - 30 or index == 0
    )


def _legend(names: Sequence[str]) -> str:
    entries = "".join(
        f'<span><i class="b{number}"></i>{escape(_short(name, 40))}</span>' for number, name in enumerate(names)
    )
    return f'<div class="legend">{entries}</div>'


def _short(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"
