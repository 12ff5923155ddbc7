"""Messages of every API and version, drawn by kio's schemas and encoded by kio; and how they arrive.

Draw a body with `messages`, put a header before it with `response_bytes`, show it to a walk with `streamed`. Records,
which are bytes to kio, come from `record_batch` and `set_entry`.
"""

import dataclasses
import datetime
import string
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from struct import pack
from types import UnionType
from typing import Any, ClassVar, Protocol, get_args, get_origin
from uuid import UUID

from hypothesis import strategies as st
from kio.index import load_payload_module, load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.schema.request_header.v2.header import RequestHeader
from kio.static.constants import EntityType
from kio.static.primitive import i16, i32

from protocol.addresses import HIDDEN_ADDRESS
from protocol.apis import API_VERSIONS, APIS, PRODUCE
from protocol.messages import decode, encode
from protocol.topics import Topic

REAL_HOST = "real-broker-host.internal"
PROXY_HOST = "proxy"
REAL_HOSTS = st.just(REAL_HOST)
CORRELATION_ID = bytes.fromhex("00c0ffee")
#: kio 0.6.5 has no later version of these; the responses of the table's are the same (`test_apis` compares them).
LAST_OF_KIO = {API_VERSIONS: 4}


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiVersionsRequest5:
    """As kio would have it (KIP-1242)."""

    __type__: ClassVar = EntityType.request
    __version__: ClassVar[i16] = i16(5)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(API_VERSIONS)
    __header_schema__: ClassVar[type[RequestHeader]] = RequestHeader
    client_software_name: str = dataclasses.field(metadata={"kafka_type": "string"})
    client_software_version: str = dataclasses.field(metadata={"kafka_type": "string"})
    cluster_id: str | None = dataclasses.field(metadata={"kafka_type": "string"}, default=None)
    node_id: i32 = dataclasses.field(metadata={"kafka_type": "int32"}, default=i32(-1))


def response_schema(api_key: int, version: int) -> Any:
    """kio's type of a response."""
    return load_response_schema(api_key, min(version, LAST_OF_KIO.get(api_key, version)))


class Addresses:
    """Answers with ports of its own and notes what it was told. `hides`: nodes that clients cannot reach."""

    def __init__(self, hides: Callable[[int], bool] = lambda node_id: False) -> None:
        self.told: list[tuple[int, str, int]] = []
        self.lists: list[list[tuple[int, str, int]]] = []
        self.hides = hides

    def advertise(self, node_id: int, host: str, port: int) -> tuple[str, int]:
        self.told.append((node_id, host, port))
        return HIDDEN_ADDRESS if self.hides(node_id) else (PROXY_HOST, proxy_port(node_id))

    def advertise_all(self, brokers: Sequence[tuple[int, str, int]]) -> Iterator[tuple[str, int] | None]:
        self.lists.append(list(brokers))
        for node_id, _, _ in brokers:
            yield None
            yield HIDDEN_ADDRESS if self.hides(node_id) else (PROXY_HOST, proxy_port(node_id))


def proxy_port(node_id: int) -> int:
    return 20_000 + node_id % 20


def _integers(bits: int, *, signed: bool = True) -> st.SearchStrategy[int]:
    if signed:
        return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return st.integers(0, 2**bits - 1)


_PRIMITIVES: dict[str, st.SearchStrategy[Any]] = {
    "bool": st.booleans(),
    "int8": _integers(8),
    "int16": _integers(16),
    "uint16": _integers(16, signed=False),
    "int32": _integers(32),
    "int64": _integers(64),
    "uuid": st.uuids(),
    "string": st.text(string.printable, max_size=20) | st.text(string.ascii_lowercase, min_size=120, max_size=140),
    "records": st.binary(max_size=40) | st.binary(min_size=120, max_size=300),
    "error_code": st.sampled_from(ErrorCode),
    "timedelta_i32": st.integers(0, 10**6).map(lambda ms: datetime.timedelta(milliseconds=ms)),
    "datetime_i64": st.integers(0, 2 * 10**9).map(lambda s: datetime.datetime.fromtimestamp(s, datetime.UTC)),
}


@cache
def messages(entity: type[Any], /, **fixed: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Messages of one of kio's types. `fixed`: strategies for fields of that name, wherever in the message.

    Cached, since Hypothesis prepares every new strategy at length: hand in strategies that are made once.
    """
    drawn: dict[str, st.SearchStrategy[Any]] = {}
    for field in fields(entity):
        annotation: Any = field.type
        nullable = get_origin(annotation) is UnionType
        if nullable:
            annotation = next(argument for argument in get_args(annotation) if argument is not type(None))
        if field.name in fixed:
            drawn[field.name] = fixed[field.name]
            continue
        is_array = get_origin(annotation) is tuple
        item = get_args(annotation)[0] if is_array else annotation
        one = _one(item, field.metadata.get("kafka_type"), fixed)
        strategy = st.lists(one, max_size=3).map(tuple) if is_array else one
        drawn[field.name] = st.none() | strategy if nullable else strategy
    return st.builds(entity, **drawn)


def _one(item: Any, kafka_type: str | None, fixed: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[Any]:
    if isinstance(item, type) and is_dataclass(item):
        return messages(item, **fixed)
    assert kafka_type is not None
    return _PRIMITIVES[kafka_type]


@cache
def responses(api_key: int, version: int, /, **fixed: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return messages(response_schema(api_key, version), **fixed)


@cache
def requests(api_key: int, version: int, /, **fixed: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return messages(load_request_schema(api_key, version), **fixed)


_LEAST: dict[str, Any] = {
    "bool": False,
    "string": "",
    "bytes": b"",
    "uuid": None,
    "error_code": ErrorCode.none,
    "timedelta_i32": datetime.timedelta(0),
    "datetime_i64": datetime.datetime.fromtimestamp(0, datetime.UTC),
}


def made(entity: type[Any], /, **values: Any) -> Any:
    """One of kio's types, with those of these values that this version has, and the least in fields without a value."""
    fixed = {field.name: values[field.name] for field in fields(entity) if field.name in values}
    for field in fields(entity):
        if field.name not in values and field.default is MISSING:
            annotation: Any = field.type
            is_array = get_origin(annotation) is tuple
            least = () if is_array else _LEAST.get(str(field.metadata.get("kafka_type")), 0)
            fixed[field.name] = None if get_origin(annotation) is UnionType else least
    return entity(**fixed)


def of_response(api_key: int, version: int, name: str, /, **values: Any) -> Any:
    """The struct of this name of a response; see `made`."""
    return made(getattr(load_payload_module(api_key, version, EntityType.response), name), **values)


def of_request(api_key: int, version: int, name: str, /, **values: Any) -> Any:
    """The struct of this name of a request; see `made`."""
    return made(getattr(load_payload_module(api_key, version, EntityType.request), name), **values)


def record_batch(count: int, payload: bytes, *, producer_id: int = -1, codec: int = 0, magic: int = 2) -> bytes:
    """A batch of magic 2 whose header says `count`, whatever the payload is."""
    inside = (
        pack(">ibIhiqqqhii", 0, magic, 0xC0FFEE, codec, max(0, count - 1), 1000, 1000, producer_id, 0, 0, count)
        + payload
    )
    return pack(">qi", 0, len(inside)) + inside


def idempotent(
    sequence: int, *, producer_id: int = 7, epoch: int = 2, attributes: int = 0, payload: bytes = b"\x01" * 40
) -> bytes:
    """A batch of four messages of an idempotent producer, of 101 bytes."""
    inside = pack(">ibIhiqqqhii", 0, 2, 0, attributes, 3, 1000, 1000, producer_id, epoch, sequence, 4) + payload
    return pack(">qi", 0, len(inside)) + inside


def topic_of(version: int, index: int) -> Topic:
    """The topic at this place of a message."""
    return UUID(int=index + 1).bytes if version >= 13 else f"topic-{index}"


def produce_body(
    version: int,
    topics: Iterable[tuple[Topic | UUID, Sequence[bytes | None]]],
    transactional_id: str | None = None,
    acks: int = -1,
) -> bytes:
    """A Produce request's, with the records of each partition. kio knows versions from 3 on: those before are 3
    without its transactional id.
    """
    known = max(3, version)
    data = []
    for topic, partitions in topics:
        made = tuple(
            of_request(PRODUCE, known, "PartitionProduceData", index=index, records=records)
            for index, records in enumerate(partitions)
        )
        topic_id = UUID(bytes=topic) if isinstance(topic, bytes) else topic
        data.append(of_request(PRODUCE, known, "TopicProduceData", name=topic, topic_id=topic_id, partition_data=made))
    fixed = {"transactional_id": transactional_id, "acks": i16(acks), "timeout": datetime.timedelta(seconds=30)}
    body = encode(of_request(PRODUCE, known, "ProduceRequest", **fixed, topic_data=tuple(data)))
    return body if version >= 3 else body[2:]


def set_entry(magic: int, value: bytes, *, offset: int = 0, codec: int = 0) -> bytes:
    """An entry of a message set of magic 0 or 1, with a null key."""
    timestamp = pack(">q", 1000) if magic else b""
    inside = pack(">Ibb", 0xC0FFEE, magic, codec) + timestamp + pack(">ii", -1, len(value)) + value
    return pack(">qi", offset, len(inside)) + inside


def header(api_key: int, version: int) -> bytes:
    return CORRELATION_ID + (b"\x00" if APIS[api_key].response_header_is_flexible(version) else b"")


def response_bytes(api_key: int, version: int, body: Any) -> bytes:
    return header(api_key, version) + encode(body)


def parsed(api_key: int, version: int, response: bytes | bytearray) -> Any:
    """kio's reading of a response, all of it, without the tags that kio does not know."""
    start = len(header(api_key, version))
    assert response[:start] == header(api_key, version)
    return decode(response_schema(api_key, version), bytes(response), start)


#: Half of the bytes are arbitrary; half are a real message with something changed, which gets further in.
BYTES = st.binary(max_size=200) | st.lists(
    st.sampled_from([b"\x00", b"\x01", b"\x02", b"\x7f", b"\x80", b"\xff", b"\x00\x00\x00\x01", b"listeners"]),
    max_size=80,
).map(b"".join)
CHANGES = st.lists(st.tuples(st.integers(0, 2_000), st.binary(min_size=1, max_size=5)), min_size=1, max_size=3)


def with_changes(draw: Any, real: bytes) -> bytes:
    changed = bytearray(real)
    for at, new in draw(CHANGES):
        changed[at % len(changed) : at % len(changed) + len(new)] = new
    return bytes(changed)


def versions(api_key: int) -> range:
    return range(APIS[api_key].min_version, APIS[api_key].max_version + 1)


class Walk(Protocol):
    def advance(self, buf: bytearray, pos: int, end: int) -> int: ...


def streamed(walk: Walk, frame: bytes, sizes: list[int]) -> bytes:
    """What a walk returns as final of a frame that arrives in chunks of these sizes, and then in one for the rest.

    As the session does it: bytes not final yet are kept aside and shown again with the next chunk, elsewhere in a
    buffer whose other bytes are none of the walk's business.
    """
    passed = b""
    kept = b""
    at = 0
    for index, size in enumerate([*sizes, len(frame)]):
        if at == len(frame):
            break
        chunk = kept + frame[at : at + size]
        at = min(len(frame), at + size)
        before, behind = b"\xa5" * (index % 7), b"\x00" * 3 if index % 2 else b""
        buf = bytearray(before + chunk + behind)
        pos, end = len(before), len(before) + len(chunk)
        final = walk.advance(buf, pos, end)
        assert pos <= final <= end
        assert buf[:pos] == before
        assert buf[end:] == behind
        passed += bytes(buf[pos:final])
        kept = bytes(buf[final:end])
        assert len(kept) <= 64, "a walk keeps few bytes waiting"
    assert kept == b""
    return passed


class BoundedWalk(Walk, Protocol):
    work_left: int


class Taking:
    """A walk whose findings are taken after each call, also after one that fails."""

    def __init__(self, walk: Any) -> None:
        self.walk = walk
        self.found: list[Any] = []
        self.work_left = 1 << 40

    def advance(self, buf: bytearray, pos: int, end: int) -> int:
        self.walk.work_left = self.work_left
        try:
            final: int = self.walk.advance(buf, pos, end)
        finally:
            self.work_left = self.walk.work_left
            self.found += self.walk.take()
        return final


class Resting:
    """A walk that may process `work` pieces at once, and continues until it needs more bytes.

    beyond    the pieces that end together: a batch, its partition and its topic
    """

    def __init__(self, walk: BoundedWalk, work: int, beyond: int = 2) -> None:
        self.walk = walk
        self.work = work
        self.beyond = beyond
        self.rests = 0

    def advance(self, buf: bytearray, pos: int, end: int) -> int:
        while True:
            self.walk.work_left = self.work
            pos = self.walk.advance(buf, pos, end)
            assert self.walk.work_left >= -self.beyond
            if self.walk.work_left > 0 or pos == end:
                return pos
            self.rests += 1


chunk_sizes = st.lists(st.integers(0, 40), max_size=30) | st.just([1] * 5_000)
"""Random splits, and byte by byte."""
