"""Figures: marks as inline SVG that fills its width, text as HTML of one size on any screen. Colours are CSS classes,
so light and dark share one figure; each mark has a tooltip.
"""

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Final

_WIDEST_BAR: Final = 8.0
"""Percent of the figure's width; all positions are in percent."""
COLOURS: Final = 8
"""Classes c0 to c7 of the style; the last is for everything else."""


def stacked_bars(
    times: Sequence[str], series: Mapping[str, Sequence[float]], unit: str, title: str, colours: Sequence[int]
) -> str:
    """One bar for each time, a part for each series. values: one for each time; colours: one for each series.

    times: as "2026-01-31" or "2026-01-31 13:00". A negative value is left out.
    """
    top = _round_above(max((sum(column) for column in zip(*series.values(), strict=True)), default=0.0))
    step = 100 / max(1, len(times))
    wide = min(step * 0.76, _WIDEST_BAR)
    marks = []
    base = [0.0] * len(times)
    for colour, (name, values) in zip(colours, series.items(), strict=True):
        for index, value in enumerate(values):
            if value <= 0:
                continue
            base[index] += value
            tip = escape(f"{name}, {times[index]}: {number_text(value, unit)}")
            x, y = (index + 0.5) * step - wide / 2, 100 - 100 * base[index] / top
            marks.append(
                f'<rect class="c{colour}" x="{x:.2f}" y="{y:.2f}" width="{wide:.2f}" '
                f'height="{100 * value / top:.2f}"><title>{tip}</title></rect>'
            )
    legend = "".join(
        f'<span><i class="b{colour}"></i>{escape(_short(name, 40))}</span>'
        for colour, name in zip(colours, series, strict=True)
    )
    return _figure(title, unit, top, marks, times, f'<div class="legend">{legend}</div>')


def line(times: Sequence[str], values: Sequence[float], unit: str, title: str, colour: int = 1) -> str:
    """One line with its area filled; times as for `stacked_bars`."""
    top = _round_above(max(values, default=0.0))
    step = 100 / max(1, len(values))
    points = [((index + 0.5) * step, 100 - 100 * value / top) for index, value in enumerate(values)]
    path = " ".join(f"{x:.2f},{y:.2f}" for x, y in points)
    tips = [
        f'<rect class="hit" x="{x - step / 2:.2f}" y="0" width="{step:.2f}" height="100">'
        f"<title>{escape(f'{time}: {number_text(value, unit)}')}</title></rect>"
        for (x, _), time, value in zip(points, times, values, strict=True)
    ]
    area = f"{step / 2:.2f},100 {path} {100 - step / 2:.2f},100"
    marks = [f'<polygon class="c{colour} area" points="{area}"/><polyline class="s{colour}" points="{path}"/>', *tips]
    return _figure(title, unit, top, marks, times, "")


def bars(names: Sequence[str], values: Sequence[float], texts: Sequence[str], title: str, colour: int = 2) -> str:
    """Horizontal bars, one below the other, each with its name and its value as text."""
    largest = max(values, default=0.0) or 1.0
    rows = "".join(
        f'<span class="name">{escape(name)}</span><span class="bar"><i class="b{colour}" '
        f'style="width:{100 * value / largest:.1f}%"></i></span><span class="value">{escape(text)}</span>'
        for name, value, text in zip(names, values, texts, strict=True)
    )
    return f'<figure><figcaption>{escape(title)}</figcaption><div class="bars">{rows}</div></figure>'


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


def _round_above(largest: float) -> float:
    """The end of a vertical axis: a round number at or above `largest`."""
    power = 10 ** math.floor(math.log10(largest)) if largest > 0 else 1.0
    return next(power * factor for factor in (1, 1.2, 1.6, 2, 2.4, 3, 4, 5, 6, 8, 10) if power * factor >= largest)


def _figure(title: str, unit: str, top: float, marks: Sequence[str], times: Sequence[str], legend: str) -> str:
    heights = range(0, 101, 25)
    grid = "".join(f'<line class="grid" x1="0" x2="100" y1="{y}" y2="{y}"/>' for y in heights)
    ticks = "".join(f'<span class="tick" style="top:{y}%">{number_text(top * (100 - y) / 100)}</span>' for y in heights)
    return (
        f'<figure><figcaption>{escape(title)} <span class="unit">{escape(unit)}</span></figcaption>{legend}'
        f'<div class="plot">{ticks}<svg viewBox="0 0 100 100" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(title)}">{grid}{"".join(marks)}</svg>{_labels(times)}</div></figure>'
    )


def _labels(times: Sequence[str]) -> str:
    """Of each day one label, of each hour if there are at most two days; of many some. Narrow screens show a third."""
    days = [time[:10] for time in times]
    names = [day[5:] for day in days] if len(set(days)) > 2 else [time[11:] or time[5:] for time in times]
    firsts = [index for index, name in enumerate(names) if index == 0 or names[index - 1] != name]
    every = max(1, math.ceil(len(firsts) / 14))
    return "".join(
        f'<span class="day{" more" if number % 3 else ""}" style="left:{100 * (index + 0.5) / len(times):.2f}%">'
        f"{escape(names[index])}</span>"
        for number, index in enumerate(firsts[::every])
    )


def _short(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"
