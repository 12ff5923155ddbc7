"""What one load exchanges: cycles of requests and of answers, built before any clock runs.

A *cycle* is a row of frames with the correlation ids 0, 1, … that is sent over and over: a batch of answers is one
slice of one buffer, and neither end parses a frame while it is measured.

The client id of a load is the name of its shape, from which the null broker builds the same cycles. So one null broker
serves every benchmark.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import astuple, dataclass
from functools import lru_cache
from itertools import accumulate
from statistics import mean

from bench import frames

#: A cycle has about this many bytes: more than any cache close to a core, as real payloads have.
CYCLE_BYTES = 8 << 20
#: Sizes of requests that vary, in percent of their mean. A prime number of them, so that each meets each partition.
VARIED_PERCENT = (100, 52, 131, 88, 149, 70, 117, 61, 140, 95, 79, 124, 103, 56, 145, 82, 108)
PRODUCER_ID = 7
#: lz4.
CODEC = 3


class Cycle:
    """Frames in a row, sent over and over. `data`: their bytes; `ends`: where each ends."""

    def __init__(self, each: Iterable[bytes]) -> None:
        rows = list(each)
        self.data = b"".join(rows)
        self.ends = list(accumulate(map(len, rows)))

    def frame(self, number: int) -> bytes:
        """Frame `number`, from 0 on."""
        return self.data[self.ends[number] - self.size_of(number) : self.ends[number]]

    def size_of(self, number: int) -> int:
        """Bytes of frame `number`."""
        return self.ends[number] - (self.ends[number - 1] if number else 0)

    def bytes_in(self, count: int) -> int:
        """Bytes of the first `count` frames, over as many laps as that takes."""
        laps, rest = divmod(count, len(self.ends))
        return laps * len(self.data) + (self.ends[rest - 1] if rest else 0)

    def frames_in(self, size: int) -> int:
        """Whole frames in the first `size` bytes, over as many laps as that takes."""
        laps, rest = divmod(size, len(self.data))
        return laps * len(self.ends) + bisect_right(self.ends, rest)


@dataclass(frozen=True, slots=True)
class Shape:
    """One kind of exchange. `payload_bytes`: what counts as data in one exchange, on average (the request of a Produce,
    the answer of a Fetch), length prefix included. `one_by_one`: each frame has a `send` of its own, at both ends.
    """

    name: str
    requests: Cycle
    answers: Cycle
    payload_bytes: float
    one_by_one: bool = False


@dataclass(frozen=True, slots=True)
class Produce:
    """Produce requests (acks=all) of `size` bytes, or of that mean size where it `varies`.

    partitions      of each request, in all, spread evenly over `topics` topics
    rotation        the partition index of a request goes through this many, one after the other
    is_idempotent   batches have a producer id; `is_compressed`: their attributes name a codec
    """

    size: int
    version: int = frames.PRODUCE_VERSION
    topics: int = 1
    partitions: int = 1
    rotation: int = 1
    is_idempotent: bool = False
    is_compressed: bool = False
    varies: bool = False
    one_by_one: bool = False

    @property
    def name(self) -> str:
        return "-".join(["produce", *(str(int(value)) for value in astuple(self))])

    def build(self) -> Shape:
        """The cycles."""
        percents = VARIED_PERCENT if self.varies else (100,)
        distinct = len(percents) * self.rotation
        spread = {"version": self.version, "topics": self.topics, "partitions": self.partitions}
        requests = [
            frames.produce_request(
                self.size * percents[number % len(percents)] // 100,
                self.name,
                first_partition=number % self.rotation,
                producer_id=PRODUCER_ID if self.is_idempotent else -1,
                codec=CODEC if self.is_compressed else 0,
                **spread,
            )
            for number in range(distinct)
        ]
        answers = [frames.produce_answer(first_partition=first, **spread) for first in range(self.rotation)]
        sizes = map(len, requests)
        return _shape(self.name, requests, answers, payload_bytes=mean(sizes), one_by_one=self.one_by_one)


@dataclass(frozen=True, slots=True)
class Fetch:
    """Fetch answers with `record_bytes` of record batches in `partitions` partitions."""

    record_bytes: int
    partitions: int = 1

    @property
    def name(self) -> str:
        return f"fetch-{self.record_bytes}-{self.partitions}"

    def build(self) -> Shape:
        """The cycles."""
        answer = frames.fetch_answer(self.record_bytes, self.partitions)
        return _shape(self.name, [frames.fetch_request(self.name)], [answer], payload_bytes=len(answer))


def _shape(
    name: str, requests: list[bytes], answers: list[bytes], *, payload_bytes: float, one_by_one: bool = False
) -> Shape:
    """Cycles of equal length out of distinct frames."""
    largest = max(map(len, requests + answers))
    length = max(8, min(1024, CYCLE_BYTES // largest))
    return Shape(
        name=name,
        requests=_cycle(requests, length, is_request=True),
        answers=_cycle(answers, length, is_request=False),
        payload_bytes=payload_bytes,
        one_by_one=one_by_one,
    )


def _cycle(distinct: list[bytes], length: int, *, is_request: bool) -> Cycle:
    return Cycle(
        frames.with_correlation_id(distinct[number % len(distinct)], number, is_request=is_request)
        for number in range(length)
    )


@lru_cache(maxsize=4)
def shape_of(name: str) -> Shape:
    """The shape with this name. Raises ValueError where a client id names none."""
    kind, *numbers = name.split("-")
    builders: dict[str, Callable[..., Produce | Fetch]] = {"produce": Produce, "fetch": Fetch}
    try:
        return builders[kind](*map(int, numbers)).build()
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"no load has the client id {name!r}") from error
