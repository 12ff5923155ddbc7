"""Names that are not UTF-8: brokers serve such clients, and limits hold for the name that the broker reads."""

import pytest

from protocol.apis import CREATE_TOPICS
from tests.proxy.conversation import without_burst
from tests.proxy.frames import batch, produce, produce_records
from tests.proxy.mutation_frames import mutation
from tests.proxy.streams.pair import Pair, World

pytestmark = pytest.mark.claim("limits", "a name that is not UTF-8 is the one that a broker reads; limits hold for it")

BUREAU = "B\ufffdro"


def latin(frame: bytes) -> bytes:
    """The name in it as a client of Latin-1 writes it."""
    assert b"B?ro" in frame
    return frame.replace(b"B?ro", "Büro".encode("latin-1"))


@pytest.mark.parametrize(
    ("limit", "frame"),
    [
        (f"client-id={BUREAU},producer_byte_rate=1000", produce(1, client_id="B?ro")),
        ("topic=<default>,bytes_in_rate=1000", produce_records(1, {"B?ro": [batch(1, 70)]}, 9)),
        ("topic=<default>,bytes_in_rate=1000", produce_records(1, {"B?ro": [batch(1, 70)]}, 7)),
        ("topic=<default>,bytes_in_rate=1000", produce_records(1, {"B?ro": [batch(1, 70)], "x": [batch(1, 70)]}, 7)),
        ("client-id=etl,controller_mutation_rate=1", mutation(CREATE_TOPICS, 2, 1, {"B?ro": 5})),
        ("client-id=etl,controller_mutation_rate=1", mutation(CREATE_TOPICS, 7, 1, {"B?ro": 5})),
    ],
    ids=["client id", "topic", "topic of an old version", "topics", "new topic", "new topic, flexible"],
)
def test_a_limit_holds_for_it_and_its_bytes_pass_as_they_are(limit: str, frame: bytes) -> None:
    for cuts in ((), (1,)):
        pair = Pair(world := World([without_burst(limit)]), cuts=cuts)
        pair.client_sends(latin(frame))
        assert pair.to_broker == latin(frame)
        of_topic = limit.startswith("topic")
        wanted = {f"topic:{BUREAU}"} if of_topic else {limit.partition(",")[0].replace("=", ":")}
        assert {entity for entity, _ in world.debts()} - {"topic:x"} == wanted
