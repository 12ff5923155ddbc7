"""When counters are read and records are written: in short turns, whatever happens to the sink."""

import asyncio
import json
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from proxy.internal_clients.failures import LogFailed, LogRefused
from proxy.observability.tallies import Cell
from proxy.observability.topic_traffic import TrafficByTopic
from proxy.usage import emitter as emitter_module
from proxy.usage.emitter import Emitter
from proxy.usage.sink import FileSink
from tests.proxy.conversation import lines_of
from tests.proxy.usage.test_collector import Scene, totals

INTERVAL_SECONDS = 0.02
PATIENCE_SECONDS = 20.0


class ListSink:
    """Keeps records; fails as the test sets `error`; `block`: a write waits until it is set again."""

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []
        self.error: Exception | None = None
        self.free = asyncio.Event()
        self.free.set()
        self.has_called = asyncio.Event()
        self.is_closed = False

    async def write(self, records: Sequence[bytes]) -> None:
        self.has_called.set()
        await self.free.wait()
        if self.error is not None:
            raise self.error
        self.records += map(json.loads, records)

    async def close(self) -> None:
        self.is_closed = True


class Running:
    """An emitter over counters that the test increments."""

    def __init__(self) -> None:
        self.scene = Scene()
        self.sink = ListSink()
        self.metrics = self.scene.world.metrics.usage
        self.emitter = Emitter(self.scene.collector, self.sink, self.metrics, INTERVAL_SECONDS, self._now_ms, Random(1))

    def _now_ms(self) -> int:
        return self.scene.now_ms

    def start(self) -> None:
        self.emitter.start(asyncio.get_running_loop())

    async def until(self, is_so: Callable[[], object]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not is_so():  # noqa: ASYNC110 - plain counters have no event
                await asyncio.sleep(INTERVAL_SECONDS)


@pytest.fixture
def running() -> Running:
    """It begins with `start`."""
    return Running()


async def test_a_failure_loses_nothing_and_keeps_numbers(running: Running, caplog: pytest.LogCaptureFixture) -> None:
    running.sink.error = LogFailed("unreachable", "no broker")
    running.start()
    with caplog.at_level(logging.INFO, "proxy.usage"):
        running.scene.count("etl", "produce", 100)
        await running.until(lambda: running.metrics.errors["unreachable"] >= 2)
        assert running.metrics.pending == 1
        running.scene.count("etl", "produce", 10)
        running.sink.error = None
        await running.until(lambda: totals(running.sink.records) == running.scene.true)
        await running.emitter.close()
    assert [record["seq"] for record in running.sink.records] == list(range(len(running.sink.records)))
    assert [name for name, _ in lines_of(caplog.records)] == ["usage_records_not_written", "usage_stopped"]


async def test_a_refusal_loses_records_and_says_so(running: Running, caplog: pytest.LogCaptureFixture) -> None:
    running.sink.error = LogRefused("topic_compacted", "compacted")
    running.start()
    running.scene.count("etl", "produce", 100)
    await running.until(lambda: running.metrics.lost)
    assert running.metrics.errors["topic_compacted"] >= 1
    running.sink.error = None
    running.scene.count("etl", "fetch", 1)
    await running.until(lambda: totals(running.sink.records) == running.scene.true)
    assert running.sink.records[0]["seq"] >= 1, "a gap"
    await running.emitter.close()
    [refused] = [fields for name, fields in lines_of(caplog.records) if name == "usage_records_refused"]
    assert refused["message"] == "compacted"


async def test_while_a_write_takes_long_later_samples_replace_earlier_ones(running: Running) -> None:
    running.sink.free.clear()
    running.start()
    running.scene.count("etl", "produce", 1)
    await asyncio.wait_for(running.sink.has_called.wait(), PATIENCE_SECONDS)
    for size in range(2, 7):
        running.scene.count("etl", "produce", 1)
        await running.until(lambda: [each.counts[0] for each in running.scene.collector.series] == [size])  # noqa: B023
    await running.until(lambda: not running.scene.collector.series.changed)
    await running.until(lambda: running.metrics.pending == 2)
    running.sink.free.set()
    await running.until(lambda: len(running.sink.records) == 2)
    assert [record["bytes"] for record in running.sink.records] == [1, 6]
    await running.emitter.close()


async def test_the_end_waits_for_a_bounded_time(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emitter_module, "EXIT_SECONDS", 0.05)
    running.sink.free.clear()
    running.start()
    running.scene.count("etl", "produce", 1)
    await asyncio.wait_for(running.emitter.close(), PATIENCE_SECONDS)
    assert (running.metrics.sent, running.metrics.lost) == (0, 1)
    assert running.sink.is_closed


async def test_a_defect_in_one_reading_ends_no_other(running: Running, caplog: pytest.LogCaptureFixture) -> None:
    topics = running.scene.client("etl").topics = TrafficByTopic(Cell())
    topics["orders"] = None  # type: ignore[assignment]
    running.start()
    await running.until(lambda: running.metrics.errors["defect"] >= 2)
    running.scene.client("etl").topics = None
    running.scene.count("etl", "produce", 1)
    await running.until(lambda: running.sink.records)
    await running.emitter.close()
    assert next(name for name, _ in lines_of(caplog.records)) == "usage_failed"


# ---- files
async def test_a_file_may_be_rotated(tmp_path: Path) -> None:
    path = tmp_path / "usage.jsonl"
    sink = FileSink(path)
    await sink.write([b"1", b"2"])
    path.rename(tmp_path / "usage.jsonl.1")
    await sink.write([b"3"])
    await sink.close()
    assert (tmp_path / "usage.jsonl.1").read_bytes() == b"1\n2\n"
    assert path.read_bytes() == b"3\n"
    assert path.stat().st_mode & 0o007 == 0, "others may not read it"


async def test_a_pipe_that_nobody_reads_blocks_neither_a_write_nor_the_end(tmp_path: Path) -> None:
    path = tmp_path / "usage.jsonl"
    os.mkfifo(path)
    sink = FileSink(path)
    with pytest.raises(LogFailed, match="No such device or address"):
        await sink.write([b"1"])
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        await sink.write([b"1"])
        assert os.read(reader, 10) == b"1\n"
        with pytest.raises(LogFailed, match="Resource temporarily unavailable"):
            await sink.write([bytes(1_000_000)])
        assert len(os.read(reader, 1_000_000)) > 0
        await sink.write([b"2"])
        assert os.read(reader, 10) == b"\n2\n", "the line that was cut has ended"
    finally:
        os.close(reader)
