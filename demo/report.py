"""The demo's table and its three verdicts."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from demo.runs import Run
from demo.verify import Tally
from deploy.local.evenness import BIN_TOLERANCE, holds, measure

_BUSY_LOAD_PER_CORE = 2.5
TABLE_NOTES = (
    "seconds: first to last data request at the broker's socket. MB/s: over all seconds, including the first burst. "
    "throttled: how long requests were held or the client was asked to wait, summed over its requests (the proxy's "
    "metric throttle_seconds); n/a: no proxy counts it, and brokers keep no such sum. longest notice: the longest "
    "throttle_time_ms that Spark's Kafka client received, by its own metric."
)


@dataclass(frozen=True, slots=True)
class Check:
    """One PASS or FAIL, and the figures behind it."""

    what: str
    passed: bool
    evidence: str


@dataclass(frozen=True, slots=True)
class ScanResult:
    """What the relay in front of the proxy read along.

    hosts: what was looked for; control_sightings: how often the same scan saw them in a conversation without proxy.
    """

    hosts: Sequence[str]
    bytes_scanned: int
    connections: int
    sightings: int
    control_sightings: int


def results_table(runs: Sequence[Run], tallies: Mapping[str, Tally], width: int) -> Table:
    """One row for each run. tallies: by topic; width: columns of the terminal, 80 will do."""
    padding = (0, 1) if width >= 100 else 0
    table = Table(
        title="The same Spark job, three times", title_justify="left", box=SIMPLE_HEAD, pad_edge=False, padding=padding
    )
    table.add_column("run", no_wrap=True)
    for heading in ("records", "bytes", "seconds", "MB/s", "throttled", "longest\nnotice", "peak\nsecond"):
        table.add_column(heading, justify="right", no_wrap=True)
    for run in runs:
        rate = run.total_bytes / run.seconds / 1e6 if run.seconds else 0.0
        table.add_row(
            run.plan.title,
            f"{tallies[run.plan.topic].records:,}",
            f"{run.total_bytes:,}",
            f"{run.seconds:.1f}",
            f"{rate:.2f}",
            "n/a" if run.throttled_seconds is None else f"{run.throttled_seconds:.1f} s",
            f"{run.longest_notice_seconds:.2f} s",
            f"{max(run.bins, default=0) / 1e6:.2f} MB",
        )
    return table


def verdict_rows(verdicts: Sequence[Check]) -> Table:
    """One row for each verdict: PASS or FAIL, of what, and why."""
    rows = Table.grid(padding=(0, 2, 0, 0))
    for verdict in verdicts:
        outcome = Text("PASS", "bold green") if verdict.passed else Text("FAIL", "bold red")
        rows.add_row(outcome, Text(verdict.what), Text(verdict.evidence))
    return rows


def quota_held(run: Run, limit: float) -> Check:
    """The evenness contract: each second but the first and the last near the limit, and their mean nearer still."""
    what = "quota held"
    try:
        evenness = measure(run.sizes, limit, connections=run.connections)
    except ValueError as error:
        return Check(what, False, f"nothing to judge: {error}")
    near = sum(evenness.holding)
    if evenness.tolerance_bytes > BIN_TOLERANCE * limit:
        tolerance = f"{evenness.tolerance_bytes / 1e3:.0f} kB, one request per open data connection,"
    else:
        tolerance = f"{BIN_TOLERANCE:.0%}"
    worst = max(evenness.judged, key=lambda size: abs(size - limit))
    passed = holds([evenness])
    return Check(
        what,
        passed,
        f"{near} of {len(evenness.judged)} seconds within ±{tolerance} of {limit / 1e6:g} MB "
        f"(worst {worst / limit - 1:+.2%}), mean {evenness.mean / 1e6:.3f} MB/s ({evenness.mean_error:+.2%})"
        + ("" if passed else _starved(run.load_average)),
    )


def _starved(load_average: float) -> str:
    """Whoever waits for a processor sends too little now and too much later. The demo alone makes a load of about 3."""
    cores = os.cpu_count() or 1
    if load_average < _BUSY_LOAD_PER_CORE * cores:
        return ""
    return f"; load average {load_average:.1f} on {cores} cores: try again on a machine that is less busy"


def nothing_lost(tallies: Mapping[str, Tally], expected_records: int) -> Check:
    """Every key in every topic, with its checksum. Duplicates are named, and are no loss."""
    faults = [
        f"{topic}: {tally.missing:,} missing, {tally.wrong_checksum:,} with a wrong checksum, "
        f"{tally.unexpected:,} unexpected ({'; '.join(tally.examples)})"
        for topic, tally in tallies.items()
        if not tally.nothing_lost
    ]
    duplicates = sum(tally.duplicates for tally in tallies.values())
    return Check(
        "nothing lost",
        not faults,
        "; ".join(faults)
        or f"{len(tallies)} x {expected_records:,} keys read back, each with its checksum; duplicates {duplicates:,}",
    )


def no_address_seen(scan: ScanResult) -> Check:
    """No broker address in what clients received through the proxy. A scan that cannot find one proves nothing."""
    what = "no real broker address seen"
    hosts = ", ".join(scan.hosts)
    looked = f"in {scan.bytes_scanned / 1e6:,.1f} MB that clients received on {scan.connections} connections"
    if scan.control_sightings == 0:
        return Check(what, False, f"the scan is blind: it did not find {hosts} in a conversation without the proxy")
    if scan.bytes_scanned == 0:
        return Check(what, False, "nothing passed through the proxy")
    if scan.sightings:
        return Check(what, False, f"{hosts} seen {scan.sightings} times {looked}")
    return Check(what, True, f"{hosts} nowhere {looked}; without the proxy the same scan finds it")
