"""What must hold of records: each one that was acknowledged is in the log, once and in order where that is promised.
Consumers get those of a transaction if it was committed.
"""

from collections import Counter
from collections.abc import Iterator

from simulation.cluster import MARKER, TRANSACTIONAL, Batch, Partition
from simulation.consumer import Consumer
from simulation.draws import MOVING
from simulation.producer import Producer
from simulation.scene import Scene


def check(scene: Scene) -> None:
    partitions = [each for partitions in scene.cluster.topics.values() for each in partitions]
    written = Counter(batch.first for each in partitions for _, batch, _ in each.log if batch.kind != MARKER)
    committed = Counter(batch.first for each in partitions for batch in _committed(each))
    for client in scene.clients:
        if isinstance(client, Consumer):
            _read(scene, client, committed)
        elif isinstance(client, Producer):
            _written(scene, client, written, committed)
            _order(scene, client)


def _read(scene: Scene, client: Consumer, committed: Counter[int]) -> None:
    if client.gaps:
        scene.fail(f"{client.client_id} missed records: {client.gaps[:3]}")
    if client.reads_committed and not all(committed[first] for first in client.read):
        scene.fail(f"{client.client_id} read records that were not committed")


def _written(scene: Scene, client: Producer, written: Counter[int], committed: Counter[int]) -> None:
    scene.checked["acknowledged batches"] += len(client.acked)
    for first in client.acked:
        most = 1 if client.shape.is_idempotent and not client.transaction else client.sent[first]
        if not 1 <= written[first] <= most:
            scene.fail(f"{client.client_id}: record {first} was acknowledged and is {written[first]} times in the log")
    for first in client.committed:
        if committed[first] != 1:
            scene.fail(
                f"{client.client_id}: record {first} was committed, and consumers get it {committed[first]} times"
            )
    for first in client.aborted:
        if committed[first]:
            scene.fail(f"{client.client_id}: record {first} was aborted, and consumers get it")


def _committed(partition: Partition) -> Iterator[Batch]:
    """The batches of transactions that were committed."""
    ends = [(producer, first, end) for producer, commits, first, end in partition.ended if commits]
    for offset, batch, _ in partition.log:
        if batch.kind == TRANSACTIONAL and any(
            each == batch.producer_id and first <= offset < end for each, first, end in ends
        ):
            yield batch


def _order(scene: Scene, client: Producer) -> None:
    """Without sequences: of what was sent once. Without acknowledgements also on one connection for each partition. Of
    transactions: of what was committed.
    """
    addresses = [
        each.address for each in scene.links if each.sock.host == client.host and each.address not in client.bootstrap
    ]
    is_steady = not scene.kinds & MOVING and len(addresses) == len(set(addresses))
    is_once = max(client.sent.values(), default=1) == 1
    if not (client.shape.is_idempotent or (is_once and (client.shape.acks or is_steady))):
        return
    last_made = client.first + (1 << 32)
    for name, partitions in scene.cluster.topics.items():
        for number, partition in enumerate(partitions):
            batches = (
                _committed(partition)
                if client.transaction
                else (each[1] for each in partition.log if each[1].kind != MARKER)
            )
            mine = [batch.first for batch in batches if client.first <= batch.first < last_made]
            if mine != sorted(mine):
                scene.fail(f"{client.client_id}: records in {name}-{number} are out of order")
