"""Figures, ratios, targets, and what is shown and kept of them."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from bench.report import Figure, compare, show, write_json

CPU = ("1 KiB", "CPU", "µs")


def figure(peer: str, *rounds: float, unit: str = "µs") -> Figure:
    return Figure("some", "1 KiB", "CPU", unit, peer, rounds)


def test_a_figure_is_the_median_of_its_rounds() -> None:
    assert figure("proxy", 9.0, 1.0, 2.0).value == 2.0


@pytest.mark.parametrize(
    ("target", "at_least", "met"), [(None, False, None), (2.0, False, True), (1.9, False, False), (1.9, True, True)]
)
def test_targets_of_values(target: float | None, at_least: bool, met: bool | None) -> None:
    judged = Figure("some", "1 KiB", "CPU", "µs", "proxy", (2.0,), target=target, at_least=at_least)

    assert judged.met is met


def test_ratios_are_within_a_row() -> None:
    compared = compare(
        [
            figure("proxy", 3.0),
            figure("proxy", 30.0, unit="ms"),
            figure("haproxy", 2.0),
            figure("haproxy", 10.0, unit="ms"),
        ],
        subject="proxy",
        other="haproxy",
        ratio_targets={CPU: 1.4},
    )

    assert [each.ratio for each in compared] == [1.5, 3.0, None, None]
    assert [each.met for each in compared] == [False, None, None, None]


def test_a_ratio_target_with_nothing_to_set_against_is_not_judged() -> None:
    (alone,) = compare([figure("proxy", 3.0)], subject="proxy", other="haproxy", ratio_targets={CPU: 1.4})

    assert alone.met is None


def test_the_table_shows_peers_side_by_side() -> None:
    output = io.StringIO()
    figures = compare(
        [figure("proxy", 3.0), figure("haproxy", 2.0)], subject="proxy", other="haproxy", ratio_targets={CPU: 1.4}
    )

    show(Console(file=output, width=100), "some", figures)

    (row,) = [line for line in output.getvalue().splitlines() if "CPU" in line]
    assert [cell.strip() for cell in row.strip("│").split("│")] == [
        "1 KiB",
        "CPU, µs",
        "3",
        "2",
        "1.50",
        "≤ 1.4",
        "MISSED",
    ]


def test_the_file_keeps_every_round(tmp_path: Path) -> None:
    write_json(tmp_path / "figures.json", [figure("proxy", 3.0, 1.0, 2.0)])

    kept = json.loads((tmp_path / "figures.json").read_text())
    assert kept["machine"]["cores"] >= 1
    (only,) = kept["figures"]
    assert (only["value"], only["rounds"], only["met"]) == (2.0, [3.0, 1.0, 2.0], None)
