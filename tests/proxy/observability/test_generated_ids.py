"""Jobs that share one limit because none of them has set a client id."""

import pytest

from proxy.config.config import QuotaOptions
from proxy.enforcement.identity import Identity
from proxy.observability.generated_ids import MAX_KEPT
from quotas.entity import Entity
from quotas.parsing.parse import parse_spec
from tests.proxy.conversation import lines_of
from tests.proxy.streams.pair import World

pytestmark = pytest.mark.claim(
    "enforcement", "a client id that a library generated is reported once when two addresses have it"
)

DEFAULT = "client-id=<default>,producer_byte_rate=5MB"
EVENT = "client_id_is_generated"


def connect(world: World, address: str, client_id: str = "producer-1") -> Identity:
    who = Identity(world.config, world.registry, world.metrics.entities, f"{address}:40000")
    who.identify(client_id, 0)
    return who


def warned(caplog: pytest.LogCaptureFixture) -> list[dict[str, object]]:
    return [fields for event, fields in lines_of(caplog.records) if event == EVENT]


MADE_UP = """producer-1 producer-22 consumer-null-1 adminclient-3 rdkafka sarama kgo kafkajs ruby-kafka
console-producer console-consumer perf-producer-client aiokafka-producer-1 aiokafka-0.12.0 kafka-python-producer-1
kafka-python-2.0.2 consumer-spark-kafka-source-4f0c-1-driver-0-2"""


@pytest.mark.parametrize("client_id", [*MADE_UP.split(), "job@host (github.com/segmentio/kafka-go)"])
def test_a_generated_id_from_two_addresses_is_reported_once(client_id: str, caplog: pytest.LogCaptureFixture) -> None:
    world = World([parse_spec(DEFAULT)])
    connect(world, "10.0.0.1", client_id)
    connect(world, "10.0.0.1", client_id)
    assert not warned(caplog), "executors of one host may be one job"
    connect(world, "10.0.0.2", client_id)
    connect(world, "10.0.0.3", client_id)
    connect(world, "10.0.0.4", "producer-9")
    (fields,) = warned(caplog)
    assert (fields["client_id"], fields["addresses"]) == (client_id, "10.0.0.1, 10.0.0.2")
    assert (fields["limit"], fields["entity"]) == ("producer_byte_rate", str(Entity(client_id=client_id)))


@pytest.mark.parametrize(
    ("spec", "client_id"),
    [
        (DEFAULT, "flights-etl"),
        (DEFAULT, "producer-orders"),  # of a transactional id
        (DEFAULT, "consumer-orders-1"),  # of one group, whose members belong together
        ("client-id=producer-1,producer_byte_rate=5MB", "producer-1"),
        ("user=<default>,producer_byte_rate=5MB", "producer-1"),
        ("client-id=<default>,consumer_byte_rate=5MB", "producer-1"),
        ("total,producer_byte_rate=5MB", "producer-1"),
    ],
)
def test_others_are_not(spec: str, client_id: str, caplog: pytest.LogCaptureFixture) -> None:
    world = World([parse_spec(spec)])
    connect(world, "10.0.0.1", client_id)
    connect(world, "10.0.0.2", client_id)
    assert not warned(caplog)


def test_a_name_that_the_proxy_gives_all_clients_is_not(caplog: pytest.LogCaptureFixture) -> None:
    world = World(QuotaOptions(entries=(parse_spec(DEFAULT),), client_id="producer-1"))
    for address, client_id in (("10.0.0.1", "a"), ("10.0.0.2", "b")):
        connect(world, address, client_id)
    assert not warned(caplog)


def test_users_are_told_apart_where_their_limits_are(caplog: pytest.LogCaptureFixture) -> None:
    world = World([parse_spec("user=<default>,client-id=<default>,request_rate=5")])
    for address, user in (("10.0.0.1", "alice"), ("[::2]", "bob")):
        who = connect(world, address, "login")
        who.authenticate(user, 0)
        who.identify("producer-1", 0)
    assert not warned(caplog)
    who.authenticate("alice", 0)  # with the client id of before
    assert warned(caplog)[0]["addresses"] == "10.0.0.1, [::2]"


def test_a_limit_that_is_added_while_they_are_connected_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    world = World([])
    clients = [connect(world, f"10.0.0.{host}") for host in (1, 2)]
    world.registry.replace([parse_spec(DEFAULT)], 0)
    assert not warned(caplog)
    for who in clients:
        who.refresh(0)
    assert len(warned(caplog)) == 1


def test_invented_names_take_no_memory() -> None:
    world = World([parse_spec(DEFAULT)])
    for number in range(3 * MAX_KEPT):
        connect(world, "10.0.0.1", f"producer-{number}")
    kept = world.metrics.entities.generated_ids._addresses
    assert kept is not None
    assert len(kept) == MAX_KEPT
