"""What happens to the partitions of one Produce request with `action=reject`: see `proxy.streams.refusals`."""

from typing import final

from protocol.produce_partitions import PartitionData
from protocol.produce_refusals import Refused
from protocol.produce_walk import TopicUsage
from quotas.admission.limit import Limit
from quotas.admission.refused_sequences import ProducerPartition


@final
class Verdicts:
    """See the module. Partitions are decided in their order.

    decided    the number of them that have been decided
    refused    by their position in the request, with the limit; None: for the order alone
    passing    asked and charged as any other
    amounts    what the passing ones are charged to each limit on topics and records
    followed   the passing ones whose sequence counts
    errors     those of refused partitions, once `Refusals.refuse` has recorded these
    rest       the request without the refused partitions, once all are decided
    """

    __slots__ = ("amounts", "decided", "errors", "followed", "generation", "passing", "refused", "rest")

    def __init__(self, generation: int) -> None:
        self.decided = 0
        self.refused: dict[int, tuple[ProducerPartition, Limit | None]] = {}
        self.passing: list[TopicUsage] = []
        self.amounts: dict[Limit, int] = {}
        self.followed: list[tuple[ProducerPartition, PartitionData]] = []
        self.errors: list[Refused] = []
        self.rest: bytes | bytearray | None = None
        #: That of the limits by which they were decided.
        self.generation = generation
