"""The load against the null broker itself, and the arithmetic of what it finds."""

from collections.abc import Iterator

import pytest

from bench.connections import open_and_close
from bench.frames import Address
from bench.load import check_answers, run_pipelined
from bench.null_broker import null_brokers
from bench.processes import CpuTime
from bench.shapes import Fetch, Produce, Shape

SHAPES = [
    Produce(1024).build(),
    Produce(1024, version=12, rotation=12, is_idempotent=True, varies=True, one_by_one=True).build(),
    Produce(1 << 20).build(),
    Fetch(1 << 20, 50).build(),
]


@pytest.fixture(scope="module")
def brokers() -> Iterator[list[Address]]:
    with null_brokers(2, niceness=(0, 0)) as addresses:
        yield addresses


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_a_pipelined_load_passes(brokers: list[Address], shape: Shape) -> None:
    ticks = iter(CpuTime(total, total // 2, total // 4) for total in (1000, 3000, 7000))
    check_answers(brokers[0], shape)
    loads = run_pipelined(
        brokers[0],
        shape,
        connections=3,
        depth=5,
        seconds=0.3,
        windows=2,
        warm_up_seconds=0.01,
        cpu_clock=lambda: next(ticks),
    )

    assert [load.cpu for load in loads] == [CpuTime(2000, 1000, 500), CpuTime(4000, 2000, 1000)]
    for load in loads:
        assert load.requests > 0
        assert load.payload_bytes == int(load.requests * shape.payload_bytes)
    assert sum(load.elapsed_ns for load in loads) >= 600_000_000


def test_connections_come_and_go(brokers: list[Address]) -> None:
    per_second, cpu_us = open_and_close(brokers[0], seconds=0.3)

    assert per_second > 0
    assert cpu_us == 0
