"""The load against the null broker itself, and the arithmetic of what it finds."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from bench.connections import open_and_close
from bench.frames import Address
from bench.load import DepthOne, LoadError, check_answers, connect, greet, percentile, run_pipelined
from bench.null_broker import null_brokers
from bench.shapes import Cycle, Fetch, Produce, Shape

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


@pytest.mark.parametrize(
    ("quantile", "value"), [(0.0, 1), (0.01, 1), (0.5, 50), (0.501, 51), (0.99, 99), (0.991, 100), (1.0, 100)]
)
def test_percentiles_are_nearest_rank(quantile: float, value: int) -> None:
    assert percentile(tuple(range(100, 0, -1)), quantile) == value


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_the_null_broker_answers_what_is_expected(brokers: list[Address], shape: Shape) -> None:
    check_answers(brokers[0], shape)


def test_a_wrong_answer_is_found(brokers: list[Address]) -> None:
    shape = Produce(1024).build()
    answers = [shape.answers.frame(number) for number in range(4)]
    answers[3] = answers[3][:20] + bytes([answers[3][20] ^ 1]) + answers[3][21:]

    with pytest.raises(LoadError, match="answer 3"):
        check_answers(brokers[0], replace(shape, answers=Cycle(answers)))


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_a_pipelined_load_passes(brokers: list[Address], shape: Shape) -> None:
    ticks = iter((1000, 3000, 7000))
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

    assert [load.cpu_ns for load in loads] == [2000, 4000]
    for load in loads:
        assert load.requests > 0
        assert load.payload_bytes == int(load.requests * shape.payload_bytes)
    assert sum(load.elapsed_ns for load in loads) >= 600_000_000


def test_depth_one_times_each_request_until_it_is_over(brokers: list[Address]) -> None:
    asked = []

    def over() -> bool:
        asked.append(True)
        return len(asked) == 3

    with DepthOne(brokers[0], Produce(1024).build()) as producer:
        producer.warm_up(0.01)
        load = producer.run_until(over, longest_seconds=30)

    assert load.requests == len(load.latencies_ns) == 3 * 16
    assert min(load.latencies_ns) > 0


def test_every_null_broker_names_all_of_them(brokers: list[Address]) -> None:
    for address in brokers:
        with connect(address) as sock:
            assert greet(sock, "anyone") == {0: brokers[0], 1: brokers[1]}


def test_connections_come_and_go(brokers: list[Address]) -> None:
    per_second, cpu_us = open_and_close(brokers[0], seconds=0.3)

    assert per_second > 0
    assert cpu_us == 0
