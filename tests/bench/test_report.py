"""Figures, ratios, targets, and what is shown and kept of them."""

import io
import json
import re
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from bench.report import Figure, compare, document, show, write_json


def figure(peer: str, *rounds: float, unit: str = "µs") -> Figure:
    return Figure("some", "1 KiB", "CPU", unit, peer, rounds)


def test_ratios_are_within_a_row() -> None:
    compared = compare(
        [
            replace(figure("proxy", 3.0), ratio_target=1.4),
            figure("proxy", 30.0, unit="ms"),
            figure("haproxy", 2.0),
            figure("haproxy", 10.0, unit="ms"),
            figure("direct", 1.0),
        ],
        other="haproxy",
    )

    assert [each.ratio for each in compared] == [1.5, 3.0, None, None, None]
    assert [each.met for each in compared] == [False, None, None, None, None]


def rows_of(figures: list[Figure]) -> list[list[str]]:
    """The cells of each line of the table below its head; columns are two spaces apart at least."""
    output = io.StringIO()
    show(Console(file=output, width=120), "some", figures)
    lines = output.getvalue().splitlines()
    head = next(number for number, line in enumerate(lines) if "───" in line)
    return [re.split(r"  +", line.rstrip()) for line in lines[head + 1 :] if line.strip()]


def test_the_table_shows_peers_side_by_side_with_ratio_and_target() -> None:
    figures = compare(
        [
            replace(figure("one limit", 2.5), ratio_target=1.4),
            replace(figure("all limits", 30.0), ratio_target=1.6),
            figure("haproxy", 2.0),
        ],
        other="haproxy",
    )

    assert rows_of(figures) == [[" 1 KiB", "CPU, µs", "2.5", "1.25 ≤ 1.4", "30", "15.00 > 1.6", "2"]]


def test_the_table_shows_targets_of_values_and_variants_and_hides_what_is_not_for_it() -> None:
    plain = Figure("some", "a; half", "rate", "1/s", "proxy", (9.0,), target=10.0, at_least=True)
    figures = [
        figure("proxy", 1.0),
        replace(plain, scenario="1 KiB; half"),
        replace(plain, scenario="a; b"),
        replace(figure("proxy", 7.0), metric="hidden", is_shown=False),
    ]

    assert rows_of(figures) == [
        [" 1 KiB", "CPU, µs", "1"],
        ["", "half", "rate, 1/s", "9", "< 10"],
        [" a; b", "rate, 1/s", "9", "< 10"],
    ]


def test_a_document_gets_the_table_between_its_marks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- figures: begin -->\nold\n<!-- figures: end -->\nafter\n")
    figures = compare(
        [
            replace(figure("one limit", 2.5), ratio_target=1.4),
            replace(figure("all limits", 30.0), ratio_target=1.6),
            figure("haproxy", 2.0),
        ],
        other="haproxy",
    )

    document(page, figures, "some command")

    lines = page.read_text().splitlines()
    assert lines[:2] == ["before", "<!-- figures: begin -->"]
    assert re.fullmatch(r"`some command`: .*, on \d{4}-\d{2}-\d{2}\.", lines[2])
    assert lines[3:] == [
        "",
        "| scenario | metric | one limit | all limits | haproxy |",
        "| --- | --- | --- | --- | --- |",
        "| 1 KiB | CPU, µs | 2.5 (1.25 ≤ 1.4) | 30 (**15.00 > 1.6**) | 2 |",
        "<!-- figures: end -->",
        "after",
    ]


def test_the_file_keeps_every_round(tmp_path: Path) -> None:
    write_json(tmp_path / "figures.json", [figure("proxy", 3.0, 1.0, 2.0)])

    kept = json.loads((tmp_path / "figures.json").read_text())
    assert kept["machine"]["cores"] >= 1
    (only,) = kept["figures"]
    assert (only["value"], only["rounds"], only["met"]) == (2.0, [3.0, 1.0, 2.0], None)
