"""Seed 004 in conversations: a topic waits only while the total and the topic are above their thresholds.

Responses say which records were accepted, and which were errors.
"""

import pytest
from kio.schema.errors import ErrorCode

from protocol.errors import ProtocolError
from proxy.config.config import EnforcementOptions
from quotas.limit_kinds import BYTES_THRESHOLD, MESSAGES_THRESHOLD
from quotas.parsing.parse import parse_spec
from tests.proxy.conversation import lines_of
from tests.proxy.frames import batch, produce_records, produced, refused
from tests.proxy.streams.pair import Pair, World, pass_holds
from tests.proxy.streams.waiting import CUTS, decide_again, holder, replace_quotas, wait

TOTAL = parse_spec("total=true,total.bytes.in.per.sec.threshold=1000")
ROWS = parse_spec("topic=rows,bytes.in.per.sec.threshold=600")
OK = ErrorCode.none
TOO_LARGE = ErrorCode.message_too_large


def counts(world: World) -> tuple[int, int, int]:
    """Accepted, erroneous and throttled bytes."""
    thresholds = world.registry.topics.thresholds[BYTES_THRESHOLD]
    return thresholds.accepted.count, thresholds.erroneous.count, thresholds.throttled.count


def rows(number: int, size: int, topic: str = "rows", acks: int = 1) -> bytes:
    return produce_records(number, {topic: [batch(1, size)]}, acks=acks)


def accept(pair: Pair, number: int, size: int, topic: str = "rows") -> None:
    pair.client_sends(rows(number, size, topic))
    assert pair.held is None
    pair.broker_sends(refused(number, {topic: [OK]}))


def above_both(*, dry_run: bool = False, cuts: list[int] | None = None) -> Pair:
    """The total at 2000 bytes per second, all of it for "rows"."""
    world = World([TOTAL, ROWS], enforcement=EnforcementOptions(dry_run=dry_run))
    pair = Pair(world, cuts=cuts or [])
    accept(pair, 1, 10_000)
    world.clock.pass_seconds(5)
    return pair


@pytest.mark.parametrize("cuts", CUTS)
def test_a_topic_waits_while_it_and_the_total_are_above(cuts: list[int], caplog: pytest.LogCaptureFixture) -> None:
    pair = above_both(cuts=cuts)
    world = pair.world
    # 2000 a second: by a factor of exp(-1/12) less every five seconds, it is at most 1000 after nine times.
    pair.client_sends(rows(2, 300))
    assert holder(pair) == ("topic:rows", BYTES_THRESHOLD)
    [(name, fields)] = lines_of(caplog.records)
    assert (name, fields["topics"], fields["limit_value"], fields["debt_seconds"]) == ("throttled", "rows", 600, 45)
    world.clock.pass_seconds(44.9)
    decide_again(world)
    assert pair.held is not None
    wait(world, 0.1)
    assert pair.sent()[1:] == [rows(2, 300)]
    assert counts(world) == (10_000, 0, 300), "throttled once, though it was decided three times"


def test_a_topic_below_its_share_passes_though_the_total_is_above() -> None:
    pair = above_both()
    accept(pair, 2, 1_000, "cols")
    pair.client_sends(produce_records(3, {"cols": [batch(1, 100)], "rows": [batch(1, 100)]}))
    assert pair.held is not None
    assert counts(pair.world) == (11_000, 0, 100), "as soon as they wait"
    pass_holds(pair.world)
    assert len(pair.sent()) == 3
    assert counts(pair.world) == (11_000, 0, 100), "only the bytes of the topic that held it are throttled"


def test_messages_have_thresholds_of_their_own() -> None:
    pair = Pair(world := World([parse_spec("total=true,total.messages.in.per.sec.threshold=10")]))
    pair.exchange(produce_records(1, {"rows": [batch(60, 1_000)]}), produced(1))
    world.clock.pass_seconds(5)
    pair.client_sends(rows(2, 100))
    assert holder(pair) == ("topic:rows", MESSAGES_THRESHOLD)
    assert pair.held is not None
    assert pair.held.limit is not None
    assert pair.held.limit.rate == 10


def test_a_dry_run_counts_what_would_be_throttled() -> None:
    pair = above_both(dry_run=True)
    pair.client_sends(rows(2, 300))
    assert len(pair.sent()) == 2
    assert counts(pair.world) == (10_000, 0, 300)


# ---- errors
@pytest.mark.parametrize("cuts", CUTS)
@pytest.mark.parametrize("version", [3, 8, 9, 12])
def test_refused_records_count_as_erroneous(version: int, cuts: list[int]) -> None:
    pair = Pair(world := World([TOTAL, ROWS]), cuts=cuts)
    pair.client_sends(produce_records(1, {"rows": [batch(1, 400), batch(1, 600)], "cols": [batch(1, 200)]}, version))
    assert counts(world) == (0, 0, 0), "the response says what is accepted"
    response = refused(1, {"rows": [OK, TOO_LARGE], "cols": [OK]}, version)
    pair.broker_sends(response)
    assert pair.to_client == response
    assert counts(world) == (700, 500, 0), "half of its partitions: half of its bytes"
    world.clock.pass_seconds(5)
    rates = {name: rate for _, name, rate in world.registry.produced(world.clock())}
    assert rates == {"accepted": 140, "erroneous": 100, "throttled": 0}


def test_records_without_a_response_count_as_accepted_at_once() -> None:
    pair = Pair(World([TOTAL, ROWS]))
    pair.client_sends(rows(1, 100, acks=0), rows(2, 70_000, acks=0), rows(3, 300))
    assert counts(pair.world) == (70_100, 0, 0)
    pair.broker_sends(refused(3, {"rows": [OK]}))
    assert counts(pair.world) == (70_400, 0, 0)


def test_responses_match_their_requests_while_thresholds_change() -> None:
    """A request counts if there is a total when it passes and when its response arrives."""
    other = parse_spec("topic=other,bytes_in_rate=1GB")
    pair = Pair(world := World([other]))

    def answer(number: int, error: ErrorCode) -> None:
        pair.broker_sends(refused(number, {"rows": [error]}))

    pair.client_sends(rows(1, 100))
    replace_quotas(world, [other, TOTAL])
    pair.client_sends(rows(2, 200))
    answer(1, TOO_LARGE)
    assert counts(world) == (0, 0, 0)
    replace_quotas(world, [])
    pair.client_sends(rows(3, 300))
    answer(2, OK)
    replace_quotas(world, [TOTAL])
    pair.client_sends(rows(4, 400), rows(5, 500))
    answer(3, TOO_LARGE)
    answer(4, OK)
    answer(5, TOO_LARGE)
    assert counts(world) == (400, 500, 0)


def test_a_response_that_cannot_be_parsed_closes_the_connection() -> None:
    pair = Pair(World([TOTAL]))
    pair.client_sends(rows(1, 100))
    cut = produced(1)[4:-3]
    with pytest.raises(ProtocolError):
        pair.broker_sends(len(cut).to_bytes(4, "big") + cut)
