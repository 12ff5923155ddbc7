"""From a quota to the size of a micro-batch and the settings of Kafka's producer. Pure arithmetic."""

import argparse
import math
import re
from dataclasses import dataclass
from typing import Final

MIB: Final = 2**20
BUFFER_SECONDS: Final = 2.0
"""Of the rate, in the buffers of all producers: enough to send while Spark reads the next lines."""
MIN_BUFFER: Final = MIB
"""64 open batches of 16 KiB: with less, a topic of many partitions gets tiny batches."""
MAX_BUFFER: Final = 32 * MIB
"""Kafka's default."""
MIN_REQUEST_TIMEOUT_MS: Final = 30_000
MIN_DELIVERY_TIMEOUT_MS: Final = 120_000

_UNITS: Final = {"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}
_RATE: Final = re.compile(r"(\d+(?:\.\d+)?)(?:(|[kMG]|[KMG]i)B(?:/s)?)?")


@dataclass(frozen=True, slots=True)
class Sizing:
    """rate_bytes_per_s: the quota of this job, over all producers. producers: one in each executor.

    batch_seconds: how long one micro-batch takes at that rate. It is what a kill repeats, at most.
    """

    rate_bytes_per_s: float
    producers: int = 1
    batch_seconds: float = 10.0

    @property
    def batch_bytes(self) -> int:
        """Bytes of input in a micro-batch: Spark's `maxBytesPerTrigger`. A larger file is a micro-batch of its own."""
        return max(1, int(self.rate_bytes_per_s * self.batch_seconds))

    @property
    def buffer_bytes(self) -> int:
        """`buffer.memory` of each producer."""
        return int(min(MAX_BUFFER, max(MIN_BUFFER, self.rate_bytes_per_s * BUFFER_SECONDS / self.producers)))

    @property
    def drain_seconds(self) -> float:
        """The longest that a record waits in a full buffer, with the rate shared evenly by the producers."""
        return self.buffer_bytes * self.producers / self.rate_bytes_per_s

    @property
    def producer_settings(self) -> dict[str, str]:
        """Settings of Kafka's producer with which no request times out and no record expires at this rate.

        A request is in flight for at most the time that the buffer takes to drain: its timeout is twice that. The
        delivery timeout leaves room for one retry more.
        """
        drain_ms = math.ceil(1000 * self.drain_seconds)
        request_timeout_ms = max(MIN_REQUEST_TIMEOUT_MS, 2 * drain_ms)
        delivery_timeout_ms = max(MIN_DELIVERY_TIMEOUT_MS, 2 * request_timeout_ms)
        return {
            "acks": "all",
            "enable.idempotence": "true",
            "buffer.memory": f"{self.buffer_bytes}",
            # Full batches, and not one request for each line that a task has written.
            "linger.ms": "50",
            "request.timeout.ms": f"{request_timeout_ms}",
            "delivery.timeout.ms": f"{delivery_timeout_ms}",
            # How long a task waits for a free buffer. Kafka's default of 60 s is less than a slow buffer takes.
            "max.block.ms": f"{delivery_timeout_ms}",
        }


def parse_rate(text: str) -> float:
    """Bytes per second, from `5MB`, `512KiB/s` or a plain number. Raises argparse.ArgumentTypeError."""
    match = _RATE.fullmatch(text.strip())
    rate = float(match[1]) * _UNITS[match[2] or ""] if match else 0.0
    if rate <= 0:
        raise argparse.ArgumentTypeError(f"{text!r}: expected bytes per second above 0, such as 5MB, 512KiB or 5000000")
    return rate
