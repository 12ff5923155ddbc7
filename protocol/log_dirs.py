"""The disks of a broker: DescribeLogDirs 4, which brokers since 3.3 offer (KIP-827).

The request asks for no topic: the response then has the directories and their sizes alone, however many partitions
the broker has. A broker may list partitions all the same; they are skipped without an object for each.

    results array: error int16, directory string,
        topics array: name string, partitions array of fixed size; tag buffer
      total bytes int64, usable bytes int64, tag buffer
"""

from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

from kio.schema.describe_log_dirs.v4.request import DescribeLogDirsRequest
from kio.schema.errors import ErrorCode

from protocol.errors import MalformedFrame, TruncatedFrame
from protocol.messages import request_frame
from protocol.wire import INT16, read_text, short_name, skip, skip_tags, string_bounds, unpack_int16, unsigned_varint

MAX_DIRECTORIES: Final = 1_000
LOG_DIRS_REQUEST: Final = request_frame(DescribeLogDirsRequest(topics=()), 1)
"""With its length; the responses below are given from their correlation id on."""

_CORRELATION_ID: Final = 4
_THROTTLE_TIME: Final = 4
_PARTITION: Final = 4 + 8 + 8 + 1 + 1
"""Index, size, lag, whether it is a future replica; an empty tag buffer."""
_SIZES: Final = Struct(">qq")
_UNKNOWN: Final = -1


class LogDirectory(NamedTuple):
    """One directory of a broker; sizes in bytes."""

    path: str
    total: int
    usable: int


def log_dirs_in(response: bytes) -> tuple[ErrorCode, list[LogDirectory]]:
    """The broker's error, and the directories whose sizes are known: not those that have failed, nor those that are no
    disks (Redpanda's `remote://`). Raises MalformedFrame.
    """
    try:
        pos = skip_tags(response, _CORRELATION_ID, len(response), 0)
        pos = skip(pos, _THROTTLE_TIME + INT16.size, len(response), 0, "the error")
        error = unpack_int16(response, pos - INT16.size)[0]
        return ErrorCode(error), list(_directories(response, pos))
    except TruncatedFrame as truncated:
        raise MalformedFrame("the directories of a broker", truncated.offset) from None
    except ValueError:
        raise MalformedFrame("a known error", pos) from None


def _directories(buf: bytes, pos: int) -> Iterator[LogDirectory]:
    end = len(buf)
    count, pos = unsigned_varint(buf, pos, end, 0, "the directories")
    if count > MAX_DIRECTORIES:
        raise MalformedFrame(f"at most {MAX_DIRECTORIES} directories", pos)
    for _ in range(count - 1):
        at, pos = pos, skip(pos, INT16.size, end, 0, "an error")
        error = unpack_int16(buf, at)[0]
        start, pos = string_bounds(buf, pos, end, 0, "a name")
        path, pos = buf[start:pos], _skip_topics(buf, pos)
        at, pos = pos, skip(pos, _SIZES.size, end, 0, "the sizes")
        total, usable = _SIZES.unpack_from(buf, at)
        pos = skip_tags(buf, pos, end, 0)
        if not error and total > 0 and usable > _UNKNOWN and b"://" not in path:
            yield LogDirectory(short_name(read_text(path)), total, min(usable, total))


def _skip_topics(buf: bytes, pos: int) -> int:
    end = len(buf)
    count, pos = unsigned_varint(buf, pos, end, 0, "the topics")
    for _ in range(count - 1):
        _, pos = string_bounds(buf, pos, end, 0, "a name")
        partitions, pos = unsigned_varint(buf, pos, end, 0, "the partitions")
        at, pos = pos, skip(pos, max(0, partitions - 1) * _PARTITION, end, 0, "the partitions")
        if any(buf[at + _PARTITION - 1 : pos : _PARTITION]):
            raise MalformedFrame("partitions without tags", at)
        pos = skip_tags(buf, pos, end, 0)
    return pos
