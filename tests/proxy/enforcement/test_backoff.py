"""Whether a client waits after a notice: what each order of notices and data shows."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.config.config import EnforcementOptions
from proxy.enforcement.backoff import MOST_ON_THEIR_WAY, BackOff, Conduct
from tests.proxy.conversation import Stage, until, without_burst
from tests.proxy.frames import produce, produced, request

OpenStage = Callable[..., Stage]

NS_PER_MS = 1_000_000
GRACE_MS = 100
ROUND_TRIP_MS = 10


class Client:
    """A connection on a clock of milliseconds."""

    def __init__(self) -> None:
        self.back_off = BackOff(GRACE_MS)
        self.back_off.round_trip_ns = ROUND_TRIP_MS * NS_PER_MS
        self.now_ns = 10**15

    def after(self, ms: int) -> Client:
        self.now_ns += ms * NS_PER_MS
        return self

    def notice(self, ms: int = 1_000) -> bool:
        return self.back_off.notice_sent(ms, self.now_ns)

    def data(self) -> bool:
        return self.back_off.data_arrived(self.now_ns)


@pytest.mark.parametrize(
    ("ms", "conduct"),
    [
        (0, Conduct.UNKNOWN),
        (ROUND_TRIP_MS + GRACE_MS - 1, Conduct.UNKNOWN),
        (ROUND_TRIP_MS + GRACE_MS, Conduct.IGNORES),
        (999, Conduct.IGNORES),
        (1_000, Conduct.UNKNOWN),
    ],
)
def test_data_after_a_notice(ms: int, conduct: Conduct) -> None:
    client = Client()
    client.notice()
    assert client.after(ms).data() == (conduct is Conduct.IGNORES)
    assert client.back_off.conduct is conduct


def test_a_notice_without_data_until_its_end_is_followed() -> None:
    client = Client()
    client.notice()
    client.after(1_000).data()
    assert client.notice(), "the request that caused this one came after the notice"
    assert client.back_off.conduct is Conduct.WAITS


def test_data_that_may_have_been_on_its_way_in_each_notice_was_not() -> None:
    client = Client()
    for _ in range(MOST_ON_THEIR_WAY):
        client.notice()
        assert not client.after(5).data()
        client.after(994)
    client.notice()
    assert client.after(5).data()
    assert client.back_off.ignores


def test_data_between_two_notices_is_no_proof() -> None:
    """Each notice is sent when the one before it ends: the client sends before it knows the next one."""
    client = Client()
    for _ in range(3 * MOST_ON_THEIR_WAY):
        client.notice()
        assert not client.after(5).data()
        client.after(995)
    assert not client.back_off.ignores


def test_data_on_its_way_now_and_then_is_no_proof() -> None:
    client = Client()
    for _ in range(3 * MOST_ON_THEIR_WAY):
        client.notice()
        client.after(5).data()
        client.after(1_000).notice()
        client.after(1_000).notice()
        client.after(1_000).data()
    assert client.back_off.conduct is Conduct.WAITS


@pytest.mark.parametrize("ms", [0, 500, 1_000, 2_000])
def test_holds_are_no_proof(ms: int) -> None:
    """What arrives during a hold is seen after it."""
    client = Client()
    client.back_off.held(client.now_ns)
    client.notice()
    client.after(ms)
    client.back_off.released(client.now_ns)
    client.data()
    client.notice()
    assert client.back_off.conduct is Conduct.UNKNOWN


def test_the_conduct_may_change() -> None:
    client = Client()
    client.back_off.guess("librdkafka")
    assert client.back_off.ignores
    client.notice()
    client.after(1_000).notice()
    assert client.back_off.conduct is Conduct.WAITS
    client.back_off.guess("librdkafka")
    assert client.back_off.conduct is Conduct.WAITS, "behaviour is the proof"
    client.after(500).data()
    assert client.back_off.ignores


@given(st.lists(st.tuples(st.integers(1, 3_000), st.integers(0, 200))))
def test_a_client_that_waits_is_never_found_to_ignore(rounds: list[tuple[int, int]]) -> None:
    """Whatever the notices are, and however late it sends after their end."""
    client = Client()
    for notice_ms, late_ms in rounds:
        client.notice(notice_ms)
        assert not client.after(notice_ms + late_ms).data()
    assert not client.back_off.ignores


def api_versions(software: bytes) -> bytes:
    name = bytes([len(software) + 1]) + software
    return request(18, 3, 900, name + b"\x02" + b"1" + b"\x00")


@pytest.mark.parametrize(
    ("software", "conduct"),
    [(b"librdkafka", "ignores"), (b"confluent-kafka-python", "ignores"), (b"apache-kafka-java", "unknown")],
)
async def test_the_software_is_the_first_guess(open_stage: OpenStage, software: bytes, conduct: str) -> None:
    stage = open_stage(quotas=[without_burst("client-id=etl,producer_byte_rate=1MB")])
    client, broker = await stage.pair()
    await client.send(api_versions(software) + produce(1, 10_000))
    await broker.frame()
    await broker.frame()
    [waiting] = stage.waiting()
    assert waiting.after_notices == conduct


async def test_a_client_that_sends_at_once_after_each_notice(open_stage: OpenStage) -> None:
    """It is held each time, and shown and counted as one that ignores notices."""
    stage = open_stage(
        quotas=[without_burst("client-id=etl,producer_byte_rate=1MB")],
        enforcement=EnforcementOptions(backoff_grace_ms=1),
    )
    client, broker = await stage.pair()
    await client.send(produce(0, 10_000))
    for number in range(3):
        await broker.frame()
        await broker.send(produced(number))
        await client.frame()
        stage.clock.pass_seconds(0.005)
        await client.send(produce(number + 1, 10_000))
        await until(lambda: stage.paused().get("quota", 0) == 1)
        stage.clock.pass_seconds(0.010)
    await broker.frame()
    entity = stage.session_of(client).identity.entity
    assert (entity.notices_waited, entity.notices_ignored) == (0, 3)
    assert stage.session_of(client).request_stream.want < 65_536


async def test_a_client_that_waits_is_not_held(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[without_burst("client-id=etl,producer_byte_rate=1MB")])
    client, broker = await stage.pair()
    for number in range(4):
        await client.send(produce(number, 10_000))
        await broker.frame()
        await broker.send(produced(number))
        await client.frame()
        stage.clock.pass_seconds(0.011)
    entity = stage.session_of(client).identity.entity
    assert (entity.notices_waited, entity.notices_ignored) == (3, 0)
    assert [mode for _, mode in entity.throttles] == ["notify"]


async def test_a_client_that_waits_is_held_for_the_debt_of_its_other_connection(open_stage: OpenStage) -> None:
    """A notice goes to one connection. The hold of the other one does not classify it."""
    stage = open_stage(quotas=[without_burst("client-id=etl,producer_byte_rate=1MB")])
    first, broker = await stage.pair()
    second, second_broker = await stage.pair()
    await first.send(produce(0, 10_000))
    await broker.frame()
    await broker.send(produced(0))
    await first.frame()
    await second.send(produce(1, 10_000))
    await until(lambda: stage.paused().get("quota", 0) == 1)
    stage.clock.pass_seconds(0.011)
    await second_broker.frame()
    assert stage.session_of(second).identity.back_off.conduct is Conduct.UNKNOWN
    assert stage.session_of(second).identity.entity.notices_ignored == 0
