"""What one client produced to and fetched from one topic."""


class TopicTraffic:
    """Bytes of record batches, as in the log, and records."""

    __slots__ = ("fetch_bytes", "fetch_messages", "produce_bytes", "produce_messages")

    def __init__(self) -> None:
        self.produce_bytes = 0
        self.produce_messages = 0
        self.fetch_bytes = 0
        self.fetch_messages = 0
