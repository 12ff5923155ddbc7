"""The throttle time in a response: the larger of the broker's and the proxy's, in every version that has one."""

import struct

import pytest

from proxy.config.config import EnforcementOptions
from proxy.enforcement.report import SOFT
from quotas.admission.limit import SOFT_NS
from quotas.parsing.parse import parse_spec
from tests.proxy import frames
from tests.proxy.conversation import without_burst
from tests.proxy.streams.pair import Pair, World

#: Each byte is a millisecond of debt.
QUOTA = without_burst("client-id=etl,producer_byte_rate=1000,consumer_byte_rate=1000")
NOTIFY = EnforcementOptions(throttle_mode="notify")


@pytest.mark.parametrize("version", range(14))
def test_the_notice_of_a_produce_response(version: int) -> None:
    sent = frames.produce(1, 2_000, version)
    debt_ms = len(sent) - 4
    for broker_ms, passed_ms in ((0, 0), (0, 500), (debt_ms - 1, 0), (debt_ms + 1, 0), (99_999, 0), (7, 60_000)):
        pair = Pair(World([QUOTA], enforcement=NOTIFY))
        pair.client_sends(sent)
        assert pair.to_broker == sent
        pair.world.clock.pass_seconds(passed_ms / 1_000)
        pair.broker_sends(frames.produced(1, version, broker_ms))
        assert pair.to_client == frames.produced(1, version, max(broker_ms, debt_ms - passed_ms) if version else 0)


@pytest.mark.parametrize("version", range(19))
def test_the_notice_of_a_fetch_response(version: int) -> None:
    field = 9 if version >= 12 else 8
    for broker_ms in (0, 1_999, 2_001):
        if version >= 16:
            answer = bytearray(frames.fetched_with_endpoints(1, version, partitions=1, record_bytes=1_800))
        else:
            answer = bytearray(frames.fetched(1, version, size=2_000 - 8 - 4 * (version >= 1) - (version >= 12)))
            assert len(answer) == 2_000
        if version >= 1:
            struct.pack_into(">i", answer, field, broker_ms)
        pair = Pair(World([QUOTA], enforcement=NOTIFY))
        pair.exchange(frames.fetch(1, version), bytes(answer))
        if version >= 1:
            (told_ms,) = struct.unpack_from(">i", pair.to_client, field)
            assert told_ms == max(broker_ms, len(answer)), "each byte of the response costs a millisecond"
            struct.pack_into(">i", answer, field, told_ms)
        assert len(pair.to_client) == len(answer)
        if version < 16:
            assert pair.to_client == answer


@pytest.mark.parametrize("version", [1, 2])
def test_the_notice_of_a_share_fetch_response(version: int) -> None:
    """Flexible from its first version on: the header's tag buffer stands before the throttle time."""
    pair = Pair(World([QUOTA]))
    pair.client_sends(frames.share_fetch(1, version))
    answer = frames.share_fetched(1, version, record_bytes=900)
    pair.broker_sends(answer)
    assert pair.to_client[:600] == answer[:9] + struct.pack(">i", len(answer)) + answer[13:600]


def test_responses_of_other_apis_have_no_throttle_time() -> None:
    pair = Pair(World([QUOTA]))
    pair.client_sends(frames.produce(1, 2_000) + frames.request(12, 4, 2))
    answer = struct.pack(">iib", 11, 2, 0) + bytes(6)
    pair.broker_sends(frames.produced(1) + answer)
    assert pair.received()[1] == answer


# ---- before the debt
@pytest.mark.parametrize("count", [1, 85], ids=["one by one", "in a batch"])
def test_a_notice_comes_before_the_debt_of_bytes(count: int) -> None:
    """The bucket holds 100 kB, and 20 ms earn 20 kB: below that the client is to wait for the difference."""
    pair = Pair(world := World([parse_spec("client-id=etl,producer_byte_rate=1MB,burst_seconds=0.1")]))
    sent = b"".join(frames.produce(number, 85_000 // count) for number in range(count))
    pair.client_sends(sent)
    assert pair.to_broker == sent
    assert world.debts() == {}
    pair.broker_sends(frames.produced(0))
    left = 100_000 - (len(sent) - 4 * count)
    assert frames.produce_throttle_ms(pair.received()[0], 9) == -(-(20_000 - left) // 1_000)
    assert world.metrics.entities.throttle_reasons[SOFT] == 1
    pair.client_sends(frames.fetch(98))
    assert world.metrics.entities.throttle_reasons[SOFT] == 1, "a fetch uses none of that limit"
    pair.client_sends(frames.produce(99, 1_000))
    assert pair.held is None, "nothing is held without debt"
    assert pair.connection.identity.entity.data_during_notice == 0


def test_a_notice_comes_before_the_debt_of_requests() -> None:
    """The bucket holds 100 requests, and 20 ms earn 20 of them."""
    pair = Pair(World([parse_spec("client-id=etl,request_rate=1000,burst_seconds=0.1")]))
    for number in range(90):
        pair.exchange(frames.produce(number, 10), frames.produced(number))
        left_ms = 100 - (number + 1)
        assert frames.produce_throttle_ms(pair.received()[-1], 9) == max(0, SOFT_NS // 1_000_000 - left_ms)
    notice = pair.connection.identity.notice
    assert (notice.reason, notice.limit and notice.limit.name) == (SOFT, "request_rate")
