"""The colours of the page: readable, and told apart by everybody. In a browser: tests/deploy/operator."""

import math
import re
from itertools import combinations
from pathlib import Path

import pytest

import proxy.admin.answer_page

PAGE = (Path(proxy.admin.answer_page.__file__).parent / "page.html").read_text(encoding="utf-8")
LIGHT, DARK = (dict(re.findall(r"--(\w+): #(\w{6})", part)) for part in PAGE.split("prefers-color-scheme: dark")[:2])
THEMES = pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
#: Where the time of a client went and it waits.
HELD = ("limit", "broker", "broker_quota", "proxy", "slow_reader")
NOT_HELD = ("data", "client")
#: How people without one kind of cone see linear RGB (Viénot, Brettel and Mollon, 1999); `all`: with all three.
SIGHTS = {
    "all": ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
    "protanopia": ((0.11238, 0.88762, 0.0), (0.11238, 0.88762, 0.0), (0.00401, -0.00401, 1.0)),
    "deuteranopia": ((0.29275, 0.70725, 0.0), (0.29275, 0.70725, 0.0), (-0.02234, 0.02234, 1.0)),
}
_TO_XYZ = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
_WHITE = (0.9505, 1.0, 1.089)

Vector = tuple[float, ...]


def linear(colour: str) -> Vector:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    return tuple(each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in parts)


def through(matrix: tuple[Vector, ...], vector: Vector) -> Vector:
    return tuple(sum(a * b for a, b in zip(row, vector, strict=True)) for row in matrix)


def contrast(one: str, other: str) -> float:
    """As WCAG counts it, 1 to 21."""
    low, high = sorted(through(_TO_XYZ, linear(each))[1] for each in (one, other))
    return (high + 0.05) / (low + 0.05)


def lab(colour: str, sight: str) -> Vector:
    seen = through(SIGHTS[sight], linear(colour))
    x, y, z = (
        each ** (1 / 3) if each > 0.008856 else 7.787 * each + 16 / 116
        for each in (part / white for part, white in zip(through(_TO_XYZ, seen), _WHITE, strict=True))
    )
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def distance(one: str, other: str, sight: str) -> float:
    """CIE 1976: 2 is just seen, 20 is plain even in small pieces."""
    return math.dist(lab(one, sight), lab(other, sight))


@THEMES
def test_texts_are_readable(colours: dict[str, str]) -> None:
    for name in ("text", "soft", "bad", "held", "ok"):
        for back in ("card", "back"):
            assert contrast(colours[name], colours[back]) >= 4.5, (name, back)
    for level in ("bad", "held", "ok"):
        assert contrast(colours[level], colours["on"]) >= 4.5, level
    assert contrast(colours["draw"], colours["card"]) >= 3


@THEMES
@pytest.mark.parametrize("sight", SIGHTS)
def test_where_time_went_is_told_apart_by_everybody(colours: dict[str, str], sight: str) -> None:
    pairs = [*combinations(HELD, 2), *((held, idle) for held in HELD for idle in NOT_HELD), NOT_HELD]
    apart = {(one, other): distance(colours[one], colours[other], sight) for one, other in pairs}
    assert {pair: round(far) for pair, far in apart.items() if far < 20} == {}


def test_each_state_has_a_pattern_or_a_word_beside_its_colour() -> None:
    legend = dict(re.findall(r'<i class="(\w+)"></i>([^<]+)<', PAGE))
    assert set(legend) == {*HELD, *NOT_HELD}
    patterns = dict(re.findall(r"\.(\w+) { background: repeating-linear-gradient\((-?\d+deg)", PAGE))
    assert len(set(patterns.values())) == len(patterns) == 3
    assert len(set(legend.values())) == len(legend)


def test_the_page_makes_no_markup_of_text_and_loads_nothing() -> None:
    assert not re.findall(r"innerHTML|outerHTML|insertAdjacent|document\.write|DOMParser|setHTML", PAGE)
    assert not re.findall(r"""(?:src|href)=["'](?!/[a-z])|@import|url\(""", PAGE)
