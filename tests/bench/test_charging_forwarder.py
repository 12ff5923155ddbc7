"""The forwarder that the proxy is compared with passes every byte, and charges what it says."""

import pytest

from bench import frames
from bench.charging_forwarder import BURST, Books
from bench.load import check_answers, run_pipelined
from bench.null_broker import null_broker
from bench.peers import FORWARDERS, forwarder
from bench.shapes import Fetch, Produce


@pytest.mark.parametrize("limits", FORWARDERS)
def test_every_byte_passes(limits: str) -> None:
    java = Produce(16 << 10, version=12, topics=3, partitions=6, is_idempotent=True, varies=True)
    with null_broker() as broker, forwarder(broker, None, limits=limits) as peer:
        for shape in (java.build(), Produce(1 << 20).build(), Fetch(1 << 20, 50).build()):
            check_answers(peer.address, shape)
            [load] = run_pipelined(peer.address, shape, connections=3, depth=5, seconds=0.2)
            assert load.requests > 0


@pytest.mark.parametrize("version", [12, 13])
def test_topics_are_charged_for_their_records(version: int) -> None:
    request = frames.produce_request(4_000, "etl", version=version, topics=2, partitions=4, producer_id=7)
    books = Books(charges_all=True)

    books.charge_topics(bytearray(request) + bytes(100), 15 + len("etl"), len(request), version, 0)

    names = list(frames.TOPICS)[:2]
    keys = [frames.TOPICS[name].bytes if version > 12 else name.encode() for name in names]
    charged = [(BURST - books.topics[key].bytes.level, BURST - books.topics[key].number.level) for key in keys]
    assert [records for _, records in charged] == [2, 2]
    assert 3_500 < sum(size for size, _ in charged) < 4_000
    assert books.producer_ids == {7}
