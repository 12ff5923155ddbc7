"""The traffic of clients by topic: bounded, and ended with the counters of its client."""

import pytest

from proxy.observability import topic_traffic
from proxy.observability.entities import ENTITY_IDLE_NS, Entities
from proxy.observability.tallies import TopicTraffic
from proxy.observability.topic_traffic import MAX_NAME, MAX_TOPICS_OF_CLIENT, OTHER_TOPICS
from tests.proxy.conversation import Clock

Traffic = dict[str, TopicTraffic]


def entities_of(most: int, clock: Clock) -> Entities:
    return Entities(clock, most, 1000, by_topic=True)


def traffic_of(entities: Entities, client_id: str) -> Traffic:
    topics = entities.of("user", client_id).topics
    assert topics is not None
    return topics


def produce(traffic: Traffic, topic: str, size: int = 1) -> None:
    traffic[topic].produce_bytes += size


@pytest.mark.parametrize("topic", ["x" * (MAX_NAME + 1), OTHER_TOPICS])
def test_what_has_no_series_of_its_own(topic: str) -> None:
    traffic = traffic_of(entities_of(10, Clock()), "etl")
    produce(traffic, "x" * MAX_NAME)
    produce(traffic, topic, 7)
    assert (set(traffic), traffic[OTHER_TOPICS].produce_bytes) == ({"x" * MAX_NAME, OTHER_TOPICS}, 7)


def test_topics_that_a_client_invents_leave_room_for_others() -> None:
    """Nothing is lost: the sums stay."""
    entities = entities_of(10, Clock())
    inventive, modest = (traffic_of(entities, name) for name in ("inventive", "modest"))
    for number in range(MAX_TOPICS_OF_CLIENT + 500):
        produce(inventive, f"topic-{number}")
    produce(modest, "rows")
    assert (len(inventive), inventive[OTHER_TOPICS].produce_bytes) == (MAX_TOPICS_OF_CLIENT + 1, 500)
    assert sum(each.produce_bytes for each in inventive.values()) == MAX_TOPICS_OF_CLIENT + 500
    assert set(modest) == {"rows"}


def test_clients_that_expire_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_traffic, "MAX_SERIES", 2)
    clock = Clock()
    entities = entities_of(10, clock)
    before = traffic_of(entities, "before")
    produce(before, "rows")
    produce(before, "cols")
    after = traffic_of(entities, "after")
    produce(after, "rows")
    assert set(after) == {OTHER_TOPICS}
    del before
    clock.now_ns += ENTITY_IDLE_NS
    entities.expire(clock.now_ns)
    clock.now_ns += ENTITY_IDLE_NS
    entities.of("user", "after").produce_bytes += 1
    entities.expire(clock.now_ns)
    produce(after, "rows")
    assert set(after) == {OTHER_TOPICS, "rows"}


def test_clients_without_counters_of_their_own_share_topics() -> None:
    entities = entities_of(1, Clock())
    entities.of("user", "first")
    assert traffic_of(entities, "second") is traffic_of(entities, "third")
