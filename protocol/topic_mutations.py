"""Requests that create or delete partitions: how many, of which topics (KIP-599), and the same without some topics.

The request is complete. It is read in bounded pieces:

    CreateTopics      topics array: name string, partitions int32, replication factor int16,
                          assignments array: partition int32, brokers array of int32, tag buffer (5+)
                          configs array: name string, value nullable string, tag buffer (5+)
                          tag buffer (5+)
                      timeout int32, validate only bool (1+), tag buffer (5+)
    CreatePartitions  topics array: name string, partitions int32,
                          assignments nullable array: brokers array of int32, tag buffer (2+)
                          tag buffer (2+)
                      timeout int32, validate only bool, tag buffer (2+)
    DeleteTopics      topics array: name string (0-5), or name nullable string, topic id, tag buffer (6)
                      timeout int32, tag buffer (4+)

The request counts, with or without `validate_only`, as in Kafka. But Kafka's controller knows all topics, and the proxy
only those in the Metadata responses that it has forwarded:

- CreateTopics: the manual assignments, else the number of partitions, else (-1: the broker's default) 1;
- CreatePartitions: the new number less the present one where that is known, else the manual assignments, else 1;
- DeleteTopics: the topic's partitions where their number is known, else 1.

Each topic counts 1 at least, and at most what a controller would create. A topic that is named twice counts once:
brokers refuse it.

From the versions in `STRICT_FROM` on clients accept that single topics are refused with error 89, and request them
again after the throttle time. In older ones every request passes, and the response reports the throttle time alone.
`mutation_responses` writes both.
"""

from collections.abc import Callable, Collection, Generator
from itertools import islice
from struct import Struct
from typing import NamedTuple

from protocol.apis import APIS, CREATE_PARTITIONS, CREATE_TOPICS, DELETE_TOPICS
from protocol.errors import MalformedFrame, TruncatedFrame, UnknownApi, UnsupportedVersion
from protocol.topics import NO_TOPIC_ID, TOPIC_ID_SIZE, Topic
from protocol.walk import Steps
from protocol.wire import MAX_STRING, encode_varint, skip, unsigned_varint

STRICT_FROM = {CREATE_TOPICS: 6, DELETE_TOPICS: 5, CREATE_PARTITIONS: 3}

MAX_PARTITIONS_PER_BATCH = 10_000
"""Kafka's controller refuses a request for more partitions (ReplicationControlManager), so no topic counts more: a
request for 2,147,483,647 partitions creates none, and must not spend a shared limit for years."""
MAX_TOPICS = 10_000
"""Topics of one request. A request for more is malformed to the proxy: CreateTopics could not succeed with more, and
what is kept of each topic takes some 200 bytes."""

FIRST_DELETE_TOPICS_WITH_IDS = 6
FIRST_CREATE_TOPICS_WITH_VALIDATE_ONLY = 1

_INT16 = Struct(">h")
_INT32 = Struct(">i")


class Mutation(NamedTuple):
    topic: Topic
    """By id only in DeleteTopics 6+."""
    partitions: int
    """How many are created or deleted."""


def is_strict(api_key: int, version: int) -> bool:
    """Whether clients of this version understand that single topics are refused."""
    return api_key in STRICT_FROM and version >= STRICT_FROM[api_key]


def check_mutation(api_key: int, version: int) -> None:
    """Raises UnknownApi for another API, UnsupportedVersion for a version that the table does not let pass."""
    if api_key not in STRICT_FROM:
        raise UnknownApi(api_key)
    api = APIS[api_key]
    if not api.covers(version):
        raise UnsupportedVersion(api.name, version)


def check_strict(api_key: int, version: int) -> None:
    """As `check_mutation`, and raises UnsupportedVersion where no single topic can be refused."""
    check_mutation(api_key, version)
    if not is_strict(api_key, version):
        raise UnsupportedVersion(APIS[api_key].name, version)


class MutationRequest:
    """One request of CreateTopics, DeleteTopics or CreatePartitions.

    Call `read` until it returns True. Everything else is valid then.
    """

    def __init__(self, api_key: int, version: int, request: bytes, body_start: int) -> None:
        """Reads nothing yet.

        Args:
            request: the whole of it, from its API key on.
            body_start: offset in it of the body: `RequestHeader.body_offset` less the four bytes of the length.

        Raises:
            UnknownApi: another API.
            UnsupportedVersion: the table does not let this version pass.
        """
        check_mutation(api_key, version)
        self._api_key = api_key
        self._version = version
        self._compact = APIS[api_key].is_flexible(version)
        self._request = request
        self._count_at = body_start
        self._pos = body_start
        self._work_left = 0
        self._steps: Generator[None, None, None] | None = None
        self._topics: list[Topic | None] = []
        """Each topic of the request, in order; None for one that the broker will refuse."""
        self._ends: list[int] = []
        """Where each topic's entry ends. The first begins at `_topics_at`."""
        self._topics_at = body_start
        self._asked: dict[Topic, tuple[int, int]] = {}
        """Number of partitions and of manual assignments, as the first entry of each topic has them."""

    def read(self, work: int) -> bool:
        """Reads on.

        Args:
            work: how many pieces (a few microseconds each) it may take.

        Returns:
            Whether the request has been read to its end.

        Raises:
            MalformedFrame: the bytes are no such request, or it names more than `MAX_TOPICS` topics.
        """
        if self._steps is None:
            self._steps = self._read()
        self._work_left = work
        for _ in self._steps:
            return False
        return True

    @property
    def topics(self) -> int:
        """How many topics `mutations` lists."""
        return len(self._asked)

    def mutations(
        self, partitions_of: Callable[[Topic], int | None], first: int = 0, most: int = MAX_TOPICS
    ) -> list[Mutation]:
        """The mutations of the request, topic by topic, in order.

        Args:
            partitions_of: how many partitions a topic has, `None` where that is not known.
            first: how many topics to leave out at the beginning.
            most: how many topics to list. For callers that handle a long request in pieces.
        """
        mutations = []
        for topic, (count, assigned) in islice(self._asked.items(), first, first + most):
            partitions = self._partitions(count, assigned, partitions_of(topic))
            mutations.append(Mutation(topic, min(max(1, partitions), MAX_PARTITIONS_PER_BATCH)))
        return mutations

    def without(self, refused: Collection[Topic]) -> bytes:
        """The request, from its API key on, without these topics. It may have none left.

        All other bytes are the client's.

        Raises:
            UnsupportedVersion: no topic can be refused in this version.
        """
        check_strict(self._api_key, self._version)
        refused = frozenset(refused)
        request, parts, kept = self._request, [b""], 0
        start = kept_from = self._topics_at
        for topic, end in zip(self._topics, self._ends, strict=True):
            if topic in refused:
                parts.append(request[kept_from:start])
                kept_from = end
            else:
                kept += 1
            start = end
        parts.append(request[kept_from:])
        parts[0] = request[: self._count_at] + encode_varint(kept + 1)  # strict versions are flexible
        return b"".join(parts)

    def _partitions(self, count: int, assigned: int, present: int | None) -> int:
        if self._api_key == CREATE_TOPICS:
            return assigned or count
        if self._api_key == DELETE_TOPICS:
            return present or 0
        return assigned if present is None else count - present

    def _read(self) -> Steps:
        topics = self._read_count("topic count")
        if topics > MAX_TOPICS:
            raise MalformedFrame(f"topic count, at most {MAX_TOPICS}", self._count_at)
        self._topics_at = self._pos
        read_entry = {
            CREATE_TOPICS: self._read_created_topic,
            CREATE_PARTITIONS: self._read_grown_topic,
            DELETE_TOPICS: self._read_deleted_topic,
        }[self._api_key]
        for _ in range(topics):
            yield from read_entry()
            self._ends.append(self._pos)
            yield from self._pause()
        self._skip(4, "timeout")
        if self._has_validate_only():
            self._skip(1, "validate only")
        if self._has_tags():
            yield from self._skip_tags()
        if self._pos != len(self._request):
            raise MalformedFrame("the end of the frame: bytes after its last field", self._pos)

    def _has_validate_only(self) -> bool:
        if self._api_key == CREATE_TOPICS:
            return self._version >= FIRST_CREATE_TOPICS_WITH_VALIDATE_ONLY
        return self._api_key == CREATE_PARTITIONS

    def _read_created_topic(self) -> Steps:
        name = self._read_name()
        partitions = self._read_int32("partitions")
        self._skip(2, "replication factor")
        assignments = self._read_count("assignments")
        for _ in range(assignments):
            self._skip(4, "partition")
            self._skip(4 * self._read_count("brokers"), "brokers")
            if self._has_tags():
                yield from self._skip_tags()
            yield from self._pause()
        for _ in range(self._read_count("configs")):
            self._skip_string("config name", nullable=False)
            self._skip_string("config value", nullable=True)
            if self._has_tags():
                yield from self._skip_tags()
            yield from self._pause(2)
        if self._has_tags():
            yield from self._skip_tags()
        self._add(name, partitions, assignments)
        self._work_left -= 3

    def _read_grown_topic(self) -> Steps:
        name = self._read_name()
        partitions = self._read_int32("partitions")
        assignments = self._read_count("assignments", nullable=True)
        for _ in range(assignments):
            self._skip(4 * self._read_count("brokers"), "brokers")
            if self._has_tags():
                yield from self._skip_tags()
            yield from self._pause()
        if self._has_tags():
            yield from self._skip_tags()
        self._add(name, partitions, assignments)
        self._work_left -= 3

    def _read_deleted_topic(self) -> Steps:
        if self._version < FIRST_DELETE_TOPICS_WITH_IDS:
            self._add(self._read_name(), 0, 0)
            return
        name = self._read_nullable_name()
        at = self._pos
        self._skip(TOPIC_ID_SIZE, "topic id")
        topic_id = self._request[at : self._pos]
        if self._has_tags():
            yield from self._skip_tags()
        if (name is None) == (topic_id == NO_TOPIC_ID):
            self._topics.append(None)  # both or neither: the broker answers the whole request with INVALID_REQUEST
        else:
            self._add(topic_id if name is None else name, 0, 0)
        self._work_left -= 1

    def _add(self, topic: Topic, count: int, assigned: int) -> None:
        self._topics.append(topic)
        self._asked.setdefault(topic, (count, assigned))

    def _pause(self, pieces: int = 1) -> Steps:
        self._work_left -= pieces
        if self._work_left <= 0:
            yield

    def _skip(self, size: int, what: str) -> None:
        self._pos = skip(self._pos, size, len(self._request), 0, what)

    def _has_tags(self) -> bool:
        """False also after it has skipped an empty tag buffer."""
        if not self._compact or self._request[self._pos : self._pos + 1] == b"\x00":
            self._pos += self._compact
            return False
        return True

    def _skip_tags(self) -> Steps:
        request, end = self._request, len(self._request)
        count, self._pos = unsigned_varint(request, self._pos, end, 0, "tag count")
        for _ in range(count):  # each takes two bytes or more, so a false count ends with the request
            _, self._pos = unsigned_varint(request, self._pos, end, 0, "tag")
            size, self._pos = unsigned_varint(request, self._pos, end, 0, "tag size")
            self._skip(size, "tagged field")
            yield from self._pause()

    def _read_int32(self, what: str) -> int:
        at = self._pos
        self._skip(4, what)
        value: int = _INT32.unpack_from(self._request, at)[0]
        return value

    def _read_count(self, what: str, *, nullable: bool = False) -> int:
        """Items of an array, 0 also when it is null. Each takes a byte or more."""
        at = self._pos
        if self._compact:
            count, self._pos = unsigned_varint(self._request, at, len(self._request), 0, what)
            count -= 1
        else:
            count = self._read_int32(what)
        if count < (-1 if nullable else 0):
            raise MalformedFrame(what, at)
        if count > len(self._request) - self._pos:
            raise TruncatedFrame(what, at)
        return max(0, count)

    def _skip_string(self, what: str, *, nullable: bool) -> int:
        """Returns the string's size, -1 when it is null."""
        at = self._pos
        if self._compact:
            size, self._pos = unsigned_varint(self._request, at, len(self._request), 0, what)
            size -= 1
        else:
            self._skip(2, what)
            size = _INT16.unpack_from(self._request, at)[0]
        if not (-1 if nullable else 0) <= size <= MAX_STRING:
            raise MalformedFrame(what, at)
        if size > 0:
            self._skip(size, what)
        return size

    def _read_name(self) -> str:
        return self._text(self._skip_string("topic name", nullable=False))

    def _read_nullable_name(self) -> str | None:
        size = self._skip_string("topic name", nullable=True)
        return None if size < 0 else self._text(size)

    def _text(self, size: int) -> str:
        """The string of `size` bytes that ends at the position."""
        at = self._pos - size
        try:
            return self._request[at : self._pos].decode()
        except UnicodeDecodeError:
            raise MalformedFrame("topic name as UTF-8", at) from None
