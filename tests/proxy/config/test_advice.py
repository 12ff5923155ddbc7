"""Settings for a limit: the rule of the warnings holds for them, and given ones are kept."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer
from hypothesis import given
from hypothesis import strategies as st

from proxy.command.commands import main
from proxy.config.advice import advice, text_of
from proxy.config.floor import JAVA, LIBRDKAFKA, smallest_share
from quotas.modes import MODES

pytestmark = pytest.mark.claim("telemetry", "with the settings of advise the rule of the smallest useful limit holds")

NONE_GIVEN = {"buffer_memory": None, "batch_size": None, "delivery_timeout": None, "request_cost": None} | {
    "record_size": 1_000
}


def advised(rate: int, producers: int = 1, mode: str = "auto", consumers: int | None = None, **given: Any) -> Any:
    return advice({**NONE_GIVEN, "rate": rate, "producers": producers, "mode": mode, "consumers": consumers, **given})


def test_the_rule_is_that_of_the_warnings() -> None:
    assert smallest_share(5 << 20, 30, 32 << 20, 120) == JAVA == 349_525
    assert smallest_share(5_000_000, 30, 1 << 30, 300) == LIBRDKAFKA == 3_579_139


@given(
    rate=st.integers(50_000, 2_000_000_000),
    producers=st.integers(1, 40),
    mode=st.sampled_from(MODES),
    consumers=st.none() | st.integers(1, 100),
    request_cost=st.none() | st.integers(1, 1 << 20),
)
def test_with_these_settings_no_request_times_out_and_no_record_expires(
    rate: int, producers: int, mode: str, consumers: int | None, request_cost: int | None
) -> None:
    share = rate / producers
    if share < 50_000:
        return
    for library, each in advised(rate, producers, mode, consumers, request_cost=request_cost).items():
        producer = each["producer"]
        buffer = producer.get("buffer.memory") or 1024 * producer["queue.buffering.max.kbytes"]
        assert 4 * buffer / share <= producer["delivery.timeout.ms"] / 1000 + 1, "a record waits for its turn in time"
        assert producer["linger.ms"] / 1000 + each["smallest_limit"] / rate < 60
        assert each["smallest_limit"] <= rate
        assert (request_cost or 1) <= producer["batch.size"] <= buffer
        request_timeout = producer.get("request.timeout.ms") or producer["socket.timeout.ms"]
        assert producer["linger.ms"] + request_timeout <= producer["delivery.timeout.ms"], "Java requires it"
        if library == "librdkafka" or mode in {"pause", "delay"}:
            assert 2 * min(5 << 20, buffer) / share <= request_timeout / 1000 + 1, "what is in flight is held"
        else:
            assert request_timeout == 30_000


def test_two_default_jobs_of_spark_need_what_the_page_says() -> None:
    """32 MiB within 120 s each; where they are held, 5 MiB in flight within half of 30 s."""
    settings: dict[str, Any] = {"buffer_memory": 33_554_432, "delivery_timeout": 120.0}
    assert advised(500_000, 2, **settings)["java"]["smallest_limit"] == 2 * (33_554_432 // 120)
    held = advised(500_000, 2, "pause", **settings)["java"]
    assert held["producer"]["request.timeout.ms"] == 42_000
    assert held["smallest_limit"] == 2 * (33_554_432 // 120)


def test_given_settings_are_kept() -> None:
    found = advised(500_000, 2, buffer_memory=8 << 20, batch_size=12_345, delivery_timeout=20.0)
    java, rdkafka = found["java"]["producer"], found["librdkafka"]["producer"]
    assert (java["buffer.memory"], rdkafka["queue.buffering.max.kbytes"]) == (8 << 20, 8 << 10)
    assert java["batch.size"] == rdkafka["batch.size"] == 12_345
    assert java["delivery.timeout.ms"] == rdkafka["delivery.timeout.ms"] == 20_000
    assert java["request.timeout.ms"] == 10_000
    assert found["java"]["smallest_limit"] == 2 * ((8 << 20) // 20) > 500_000
    assert next(text_of(found, 500_000)).endswith("838860 bytes/s: this limit is too low")


def test_a_minute_of_records_for_each_micro_batch_and_the_fetches_of_consumers() -> None:
    found = advised(5_000_000, consumers=50, record_size=500)
    assert found["java"]["consumer"] == {"maxOffsetsPerTrigger": 600_000, "max.partition.fetch.bytes": 1 << 18}
    assert found["librdkafka"]["consumer"] == {"max.partition.fetch.bytes": 1 << 18}
    assert advised(100)["java"]["consumer"] == {"maxOffsetsPerTrigger": 6}


def run(*arguments: str) -> str:
    done = CliRunner().invoke(main, ["advise", *arguments])
    assert done.exit_code == 0, done.output
    return done.output


def test_the_text_can_be_pasted() -> None:
    """Into Python, and into a file of librdkafka's settings."""
    java, rdkafka = run("--rate", "5MB", "--producers", "8", "--consumers", "4").split("# librdkafka")
    options: dict[str, str] = {}

    class Writer:
        def option(self, name: str, value: str) -> Writer:
            options[name] = value
            return self

    eval(f"(writer\n{java})", {"writer": Writer()})  # noqa: S307
    assert options.pop("maxOffsetsPerTrigger") == "300000"
    assert {name.partition(".")[0] for name in options} == {"kafka"}
    found = json.loads(run("--rate", "5MB", "--producers", "8", "--consumers", "4", "--json"))
    producer, consumer = found["java"]["producer"], found["java"]["consumer"]
    del consumer["maxOffsetsPerTrigger"]
    assert {name.removeprefix("kafka."): int(value) for name, value in options.items()} == producer | consumer
    settings = dict(line.split("=") for line in rdkafka.splitlines()[1:])
    assert {name: int(value) for name, value in settings.items()} == (
        found["librdkafka"]["producer"] | found["librdkafka"]["consumer"]
    )


@pytest.mark.parametrize("rate", ["10kB", "500kB", "2GB"])
@pytest.mark.parametrize("mode", MODES)
def test_librdkafka_takes_its_settings(rate: str, mode: str) -> None:
    Producer(json.loads(run("--rate", rate, "--mode", mode, "--json"))["librdkafka"]["producer"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Missing option '--rate'"),
        (["--rate", "5XB"], "--rate '5XB': unknown unit 'XB'"),
        (["--rate", "5MB", "--producers", "0"], "0 is not in the range"),
        (["--rate", "5MB", "--delivery-timeout", "x"], "--delivery-timeout 'x': expected a duration"),
    ],
)
def test_wrong_options(arguments: list[str], message: str) -> None:
    done = CliRunner().invoke(main, ["advise", *arguments])
    assert done.exit_code == 2
    assert message in done.output
