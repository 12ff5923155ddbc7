"""README.md is short, has the commands that CI runs, and its figures of CPU are those of the benchmarks."""

import re

import pytest

from tests.docs.pages import ROOT, rows

README = (ROOT / "README.md").read_text(encoding="utf-8")
BENCH = rows((ROOT / "bench/README.md").read_text(encoding="utf-8"))
MOST_WORDS = 1_050
#: A row of the table in the README, its scenario in bench/README.md, requests (or GB) a second, columns of figures.
CPU = [
    ("1 MiB", "produce 1 MiB, depth 5 x 4", 0.5, 1),
    ("16 KiB in 6 partitions", "java 16 KiB, 6 partitions, depth 5 x 4; v12", 100e6 / 16_384, 2),
    ("1 KiB, one at a time", "produce 1 KiB, depth 1", 5_000, 2),
]


def test_it_can_be_read_in_a_few_minutes() -> None:
    assert len(README.split()) <= MOST_WORDS


@pytest.mark.parametrize("command", ["make demo", "make test"])
def test_the_commands_of_ci_are_in_it(command: str) -> None:
    assert f"\n    {command}\n" in README


@pytest.mark.parametrize(("name", "scenario", "a_second", "columns"), CPU, ids=[row[0] for row in CPU])
def test_what_a_request_costs_is_what_was_measured(name: str, scenario: str, a_second: float, columns: int) -> None:
    (row,) = [row for row in rows(README) if row[0] == name]
    (figures,) = [each[2:] for each in BENCH if each[0] == scenario and each[1].startswith("CPU")]
    measured = [float(figure.split()[0]) for figure in figures[:columns]]  # one limit, all limits
    unit = 1.0 if "GB" in row[1] else 1e-6
    shown = [float(number) for number in re.findall(r"([\d.]+) (?:s|µs)", row[1])]
    assert shown == [pytest.approx(each, rel=0.02) for each in measured]
    cores = [float(number) for number in re.findall(r"(0\.\d\d)\b", row[2])]
    assert cores == [pytest.approx(each * unit * a_second, abs=0.006) for each in measured]
