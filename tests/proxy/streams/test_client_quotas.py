"""Kafka's quota API on one connection: who answers it, in which order, and to whom."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from kio.index import load_response_schema
from kio.schema.errors import ErrorCode

from protocol.apis import ALTER_CLIENT_QUOTAS, API_VERSIONS, DESCRIBE_CLIENT_QUOTAS
from protocol.errors import UnexpectedResponse
from protocol.messages import decode
from protocol.quota_api import Alterations, Filter
from proxy.config.config import QuotaOptions
from proxy.streams.handlers.client_quotas import MOST_AT_ONCE, MOST_VALIDATED_AT_ONCE, QuotaRequestTooLarge
from proxy.streams.handlers.forward import MAX_KEPT
from quotas.entity import AnyEntity
from quotas.parsing.parse import parse_spec
from quotas.stored import table
from quotas.stored.record import Record, encode
from quotas.stored.table import Table
from tests.protocol.test_quota_api import alter_body, describe_body
from tests.proxy.frames import api_versions, heartbeat, heartbeat_answer, noise, request
from tests.proxy.streams.pair import Pair, World
from tests.proxy.streams.test_telemetry import negotiated

pytestmark = pytest.mark.claim("kafka-quotas", "the proxy answers Kafka's quota API to --quota-admins only, in order")

BY_PROXY = QuotaOptions(topic="quotas", admins=("ANONYMOUS",))
EVERYTHING = Filter((), False)
ETL = (("client-id", "etl"),)


class Topic:
    """A `QuotaApi` whose changes are in force when the test says so."""

    def __init__(self, *specs: str) -> None:
        self.table = Table()
        for n, each in enumerate(map(parse_spec, specs)):
            self.table.apply(n, *encode(Record(each.entity, each)))
        self.is_read = True
        self.written: list[Record] = []
        self.done: list[Callable[[str], None]] = []

    def submit(
        self, decide: Callable[[Mapping[AnyEntity, Record]], Sequence[Record]], done: Callable[[str], None]
    ) -> None:
        self.written += decide(self.table.records)
        self.done.append(done)

    def compute(self, work: Callable[[], bytes], done: Callable[[bytes], None]) -> None:
        self.done.append(lambda _: done(work()))


def connected(quotas: QuotaOptions = BY_PROXY, topic: Topic | None = None) -> Pair:
    world = World(quotas)
    world.context.quota_api = topic
    return Pair(world)


def finish(pair: Pair, topic: Topic, problem: str = "") -> None:
    """The change is in force, or not."""
    topic.done[0](problem)
    pair.world.loop.run()


def describe(n: int, wanted: Filter = EVERYTHING, version: int = 1) -> bytes:
    return request(DESCRIBE_CLIENT_QUOTAS, version, n, describe_body(version, wanted))


def alter(n: int, *keys: str, entity: Any = ETL, validate_only: bool = False, version: int = 1) -> bytes:
    operations = tuple((key, 5.0, False) for key in keys)
    body = alter_body(version, Alterations(((entity, operations),), validate_only))
    return request(ALTER_CLIENT_QUOTAS, version, n, body)


def told(pair: Pair, api: int, version: int = 1) -> Any:
    """The last response."""
    return decode(load_response_schema(api, version), pair.received()[-1], 9 if version else 8)


@pytest.mark.parametrize("version", [0, 1])
def test_what_is_in_the_topic_is_described(version: int) -> None:
    pair = connected(topic=Topic("client-id=etl,producer_byte_rate=7", "topic=t,bytes_in_rate=1"))
    pair.client_sends(describe(1, version=version))
    found = told(pair, DESCRIBE_CLIENT_QUOTAS, version)
    assert [(each.entity[0].entity_name, each.values[0].value) for each in found.entries] == [("etl", 7.0)]
    assert not pair.to_broker
    for components, error in (
        ((("x", 2, None),), ErrorCode.unsupported_version),
        ((("user", 0, None),), ErrorCode.invalid_request),
    ):
        pair.client_sends(describe(2, Filter(components, True), version))
        refused = told(pair, DESCRIBE_CLIENT_QUOTAS, version)
        assert (refused.error_code, refused.entries) == (error, None)


def test_many_are_described_outside_of_the_loop_and_in_order() -> None:
    topic = Topic(*(f"client-id=c{n},producer_byte_rate=1" for n in range(MOST_AT_ONCE + 1)))
    pair = connected(topic=topic)
    pair.client_sends(describe(1), heartbeat(2))
    assert (bytes(pair.to_client), bytes(pair.to_broker)) == (b"", b"")
    finish(pair, topic)
    assert len(told(pair, DESCRIBE_CLIENT_QUOTAS).entries) == MOST_AT_ONCE + 1
    assert pair.to_broker == heartbeat(2)


@pytest.mark.parametrize("version", [0, 1])
def test_a_change_is_answered_once_it_is_in_force_and_in_order(version: int) -> None:
    pair = connected(topic=(topic := Topic()))
    pair.client_sends(heartbeat(1), alter(2, "producer_byte_rate", version=version), heartbeat(3))
    assert pair.to_broker == heartbeat(1), "nothing passes before the change is answered"
    assert [each.fields for each in topic.written] == [{"producer_byte_rate": 5}]
    assert topic.written[0].author.by == "User:ANONYMOUS"
    pair.broker_sends(heartbeat_answer(1))
    assert pair.received() == [heartbeat_answer(1)]
    finish(pair, topic)
    [entry] = told(pair, ALTER_CLIENT_QUOTAS, version).entries
    assert (entry.error_code, entry.error_message, entry.entity[0].entity_name) == (ErrorCode.none, None, "etl")
    assert pair.to_broker == heartbeat(1) + heartbeat(3)
    pair.broker_sends(heartbeat_answer(3))
    assert [int.from_bytes(each[4:8], "big") for each in pair.received()] == [1, 2, 3]


def test_a_change_that_is_not_read_back_times_out() -> None:
    pair = connected(topic=(topic := Topic()))
    pair.client_sends(alter(1, "producer_byte_rate"))
    finish(pair, topic, "the topic is away")
    [entry] = told(pair, ALTER_CLIENT_QUOTAS).entries
    assert (entry.error_code, entry.error_message) == (ErrorCode.request_timed_out, "the topic is away")


def test_a_change_that_could_not_begin_is_answered_for_each_entity() -> None:
    """It waited for others for too long. A client that misses its entity in a response reports a bug of the broker."""
    topic = Topic()
    topic.submit = lambda decide, done: topic.done.append(done)  # type: ignore[method-assign]
    pair = connected(topic=topic)
    pair.client_sends(alter(1, "producer_byte_rate"))
    finish(pair, topic, "others are under way")
    [result] = told(pair, ALTER_CLIENT_QUOTAS).entries
    assert (result.error_code, result.error_message) == (ErrorCode.request_timed_out, "others are under way")


def test_results_are_by_entity_and_validation_writes_nothing() -> None:
    pair = connected(topic=(topic := Topic()))
    pair.client_sends(alter(1, "producer_byte_rat"))
    finish(pair, topic, "the topic is away")
    [entry] = told(pair, ALTER_CLIENT_QUOTAS).entries
    assert (entry.error_code, entry.error_message) == (
        ErrorCode.invalid_request, "Invalid configuration key producer_byte_rat",
    )  # fmt: skip
    pair.client_sends(alter(2, "producer_byte_rate", validate_only=True))
    assert told(pair, ALTER_CLIENT_QUOTAS).entries[0].error_code is ErrorCode.none
    pair.client_sends(alter(3, "x", validate_only=True))
    assert told(pair, ALTER_CLIENT_QUOTAS).entries[0].error_code is ErrorCode.invalid_request
    assert (topic.written, len(topic.done)) == ([], 1)


@pytest.mark.pure  # it changes a constant
@pytest.mark.parametrize("count", [1, MOST_VALIDATED_AT_ONCE + 1])
def test_a_validation_fails_like_the_change_if_the_topic_has_no_room(
    monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(table, "MAX_ENTITIES", count)
    pair = connected(topic=(topic := Topic("client-id=a,producer_byte_rate=1")))
    entries = tuple(((("user", f"u{n}"),), (("producer_byte_rate", 1.0, False),)) for n in range(count))
    wrong = ((("user", "v"),), (("x", 1.0, False),))
    pair.client_sends(request(ALTER_CLIENT_QUOTAS, 1, 1, alter_body(1, Alterations((*entries, wrong), True))))
    if topic.done:
        finish(pair, topic)
    *results, last = told(pair, ALTER_CLIENT_QUOTAS).entries
    assert {(each.error_code, each.error_message) for each in results} == {
        (ErrorCode.request_timed_out, f"nothing would be written: there are {count} entities already")
    }
    assert (last.error_code, topic.written) == (ErrorCode.invalid_request, [])


def test_many_are_validated_outside_of_the_loop_and_in_order() -> None:
    pair = connected(topic=(topic := Topic()))
    entries = tuple(((("user", f"u{n}"),), (("x", 1.0, False),)) for n in range(MOST_VALIDATED_AT_ONCE + 1))
    pair.client_sends(request(ALTER_CLIENT_QUOTAS, 1, 1, alter_body(1, Alterations(entries, True))), heartbeat(2))
    assert (bytes(pair.to_client), bytes(pair.to_broker)) == (b"", b"")
    finish(pair, topic)
    results = told(pair, ALTER_CLIENT_QUOTAS).entries
    assert [each.error_code for each in results] == [ErrorCode.invalid_request] * len(entries)
    assert pair.to_broker == heartbeat(2)


@pytest.mark.parametrize("admins", [(), ("alice",)])
def test_others_are_refused_and_the_option_is_named(admins: tuple[str, ...]) -> None:
    pair = connected(
        QuotaOptions(topic="quotas", admins=admins), topic=(topic := Topic("client-id=a,producer_byte_rate=1"))
    )
    pair.client_sends(describe(1))
    shown = told(pair, DESCRIBE_CLIENT_QUOTAS)
    pair.client_sends(alter(2, "producer_byte_rate"))
    [changed] = told(pair, ALTER_CLIENT_QUOTAS).entries
    for each in (shown, changed):
        assert each.error_code is ErrorCode.cluster_authorization_failed
        assert each.error_message.endswith("add it to --quota-admins of the proxy")
    assert (shown.entries, topic.written, bytes(pair.to_broker)) == (None, [], b"")


@pytest.mark.parametrize("is_there", [True, False])
def test_before_the_topic_is_read_nothing_is_described(is_there: bool) -> None:
    """An empty answer would make tools create everything again."""
    topic = Topic()
    topic.is_read = False
    pair = connected(topic=topic if is_there else None)
    pair.client_sends(describe(1))
    assert told(pair, DESCRIBE_CLIENT_QUOTAS).error_code is ErrorCode.request_timed_out
    pair.client_sends(alter(2, "producer_byte_rate"))
    assert told(pair, ALTER_CLIENT_QUOTAS).entries[0].error_code is ErrorCode.request_timed_out


@pytest.mark.parametrize(
    ("options", "by_broker"),
    [
        (QuotaOptions(), True),
        (QuotaOptions(topic="quotas", api="cluster"), True),
        (QuotaOptions(api="off"), False),
        (QuotaOptions(topic="quotas", api="off"), False),
    ],
)
def test_the_cluster_or_no_one_answers(options: QuotaOptions, by_broker: bool) -> None:
    pair = connected(options, topic=Topic())
    pair.client_sends(describe(1), alter(2, "producer_byte_rate"))
    assert bytes(pair.to_broker) == (describe(1) + alter(2, "producer_byte_rate")) * by_broker
    if not by_broker:
        assert told(pair, ALTER_CLIENT_QUOTAS).entries[0].error_code is ErrorCode.unsupported_version


@pytest.mark.parametrize("keys", [(3, 18), (3, 18, 48, 49)])
@pytest.mark.parametrize(
    ("options", "offered"), [(BY_PROXY, True), (QuotaOptions(api="off"), False), (QuotaOptions(), None)]
)
def test_what_is_offered(options: QuotaOptions, offered: bool | None, keys: tuple[int, ...]) -> None:
    pair = connected(options)
    pair.exchange(api_versions(1, 3), negotiated(1, *keys))
    found: Any = decode(load_response_schema(API_VERSIONS, 3), bytes(pair.to_client), 8)
    ranges = {each.api_key: (each.min_version, each.max_version) for each in found.api_keys}
    assert ({48, 49} <= ranges.keys()) == (48 in keys if offered is None else offered)
    if offered:
        assert ranges[48] == ranges[49] == (0, 1)
    assert {3, 18} <= ranges.keys()


def test_the_requests_of_strimzi_and_of_kafbat() -> None:
    """Strimzi's user operator asks for everything, and alters many users at once with all four keys, most of which it
    removes. kafbat's UI looks for an entity without strictness, then alters it with removals.
    """
    topic = Topic('user="CN=a",producer_byte_rate=7', 'user="CN=a",client-id=c,producer_byte_rate=8')
    pair = connected(topic=topic)
    removed = ("producer_byte_rate", "consumer_byte_rate", "controller_mutation_rate")
    operations = (*((key, 0.0, True) for key in removed), ("request_percentage", 55.0, False))
    entries = tuple(((("user", name),), operations) for name in ("CN=a", "b"))
    pair.client_sends(describe(1), request(ALTER_CLIENT_QUOTAS, 1, 2, alter_body(1, Alterations(entries, False))))
    finish(pair, topic)
    results = told(pair, ALTER_CLIENT_QUOTAS).entries
    assert [(each.error_code, each.entity[0].entity_name) for each in results] == [
        (ErrorCode.none, "CN=a"), (ErrorCode.none, "b"),
    ]  # fmt: skip
    assert [each.fields for each in topic.written] == [{"request_percentage": 55.0}] * 2
    pair.client_sends(describe(3, Filter((("user", 0, "CN=a"),), False)))
    assert [each.values[0].value for each in told(pair, DESCRIBE_CLIENT_QUOTAS).entries] == [7.0, 8.0]


def test_a_client_may_go_before_its_change_is_in_force() -> None:
    pair = connected(topic=(topic := Topic()))
    pair.client_sends(alter(1, "producer_byte_rate"))
    pair.session.close()
    finish(pair, topic)
    assert not pair.to_client


def test_a_response_to_nothing_closes_the_connection() -> None:
    pair = connected(topic=Topic())
    pair.client_sends(alter(1, "producer_byte_rate"))
    with pytest.raises(UnexpectedResponse):
        pair.broker_sends(heartbeat_answer(1))


def test_a_request_that_is_too_large_closes_the_connection() -> None:
    pair = connected(topic=Topic())
    with pytest.raises(QuotaRequestTooLarge):
        pair.client_sends(request(ALTER_CLIENT_QUOTAS, 1, 1, noise(MAX_KEPT)))
