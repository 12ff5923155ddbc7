"""A run: Produce requests of one kind in one read that pass together and whose records are read.

Consecutive requests of a producer for one partition of a topic are the same bytes from the client id to the partition
count: their prefix. Of each further request only the length of its records and the header of its batch are read:

    length, API, version | correlation id | client id ... partition count | partition | size | batch header ...
    compared             |                | compared: the prefix          |           | read | read

`plan` has the runs that are charged for their records, `usage_plan` those that are counted for usage alone.
"""

from collections.abc import Callable
from typing import Any, Final, final

from protocol.produce_walk import FIRST_FLEXIBLE
from protocol.record_batch import PLAIN_WIDTH, width_of
from protocol.request_header import PREFIX_SIZE, unpack_prefix
from proxy.observability.topic_traffic import TopicTraffic
from proxy.streams.connection import InFlight, RequestKind
from quotas.admission.client_limits import ClientLimits
from quotas.admission.limit import Limit

#: The longest prefix.
MAX_PREFIX: Final = 1_024

#: Bytes of a partition's index.
INDEX: Final = 4
#: The tags of the partition, the topic and the body, at the end of a request of a flexible version.
_NO_TAGS: Final = bytes(3)

Unpack = Callable[[bytearray, int], tuple[Any, ...]]
Charge = tuple[Limit, int, int]
"""A limit, its amount, and the units beside it: see `spend_all`."""


class Run:
    """Requests of one read that pass together. This one finds none.

    count       the number of requests that `scan` has found
    last_size   bytes of the last of them, without the length field, where it has not arrived whole
    """

    __slots__ = ("count", "last_size")

    def __init__(self) -> None:
        self.count = 0
        self.last_size = 0

    def fit(self, buf: bytearray, pos: int) -> bool:
        """Adapt to the request at `pos`. Returns whether `scan` may find now what it did not find before."""
        return False

    def scan(
        self,
        kind: RequestKind,
        buf: bytearray,
        pos: int,
        end: int,
        most: int,
        longest: int,
        in_flight: InFlight,
        now_ns: int,
    ) -> int:
        """Find the requests of `kind` from `pos` on, `most` at most, and add them to those in flight. Returns where the
        last one ends, which may be after `end`. `longest`: the longest request that is accepted.
        """
        return pos

    def charges(self, client: ClientLimits, size: int, missing: int) -> list[Charge]:
        """What the requests found, of `size` bytes together, are charged. `missing`: bytes of the last one that have
        not arrived; what these will be charged is beside.
        """
        return []

    def is_known(self, client: ClientLimits, now_ns: int) -> bool:
        """Whether no limit counts their producer id as a new one."""
        return True

    def count_topics(self, traffic: dict[str, TopicTraffic]) -> None:
        """The requests found pass: count their records by topic."""


NO_RUN: Final = Run()


@final
class Layout:
    """How requests with one prefix are read, as long as the length of their records has the same number of bytes.

    width    that number
    tags     the bytes at the end of each request
    unpack   reads one
    """

    __slots__ = ("_make", "_prefix_size", "tags", "unpack", "width")

    def __init__(self, kind: RequestKind, prefix_size: int, make: Callable[[int, int], Unpack]) -> None:
        """make: what reads requests with a prefix of this size and records with a length of this width."""
        self._make: Final = make
        self._prefix_size: Final = prefix_size
        self.tags: Final = _NO_TAGS if kind.version >= FIRST_FLEXIBLE else b""
        self.width = PLAIN_WIDTH
        self.unpack = make(prefix_size, PLAIN_WIDTH)

    def fit(self, buf: bytearray, pos: int) -> bool:
        """Set the width for the request at `pos`. Returns whether it was another."""
        if not self.tags:
            return False
        length: int = unpack_prefix(buf, pos)[0]
        width = width_of(length + 4 - PREFIX_SIZE - self._prefix_size - INDEX - len(_NO_TAGS))
        if width == self.width:
            return False
        self.width, self.unpack = width, self._make(self._prefix_size, width)
        return True


def requests_charges(client: ClientLimits, size: int, missing: int, requests: int) -> list[Charge]:
    """What Produce requests of `size` bytes together are charged, besides their records; see `Run.charges`."""
    charges = [(limit, size - missing, missing) for limit in client.produce.limits]
    return charges + [(limit, requests, 0) for limit in client.requests.limits]
