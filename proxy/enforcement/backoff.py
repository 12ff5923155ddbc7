"""Whether a client waits after a notice: observed on its connection, from notices and the data that follows them.

    notice sent ──── round trip ──── --backoff-grace-ms ──────────────── end of the throttle time
         data here was on its way, or the client       data here: the client
         ignores each notice in a row                  ignores the notice

The classification is for people, and for the size of reads; it lets nothing pass.

While a frame is held, the connection is not read. So data that is found right after a hold may have arrived before the
notices that were sent meanwhile. It counts only in a row: these notices cover the held frame too (see
`policies.notify`), so a client that waits has sent at most `MOST_ON_THEIR_WAY` requests when they are over. A hold that
outlasts the notices, as for the debt of other connections, is no proof.
"""

from enum import Enum
from typing import Final, final

#: Requests that clients have on their way: the default of Java's `max.in.flight.requests.per.connection`. In more
#: notices in a row, each sent before the one before it ends, data soon after the notice was not on its way.
MOST_ON_THEIR_WAY: Final = 5
#: Software that is known to ignore notices, by the beginning of its name in ApiVersions (KIP-511).
IGNORING_SOFTWARE: Final = ("librdkafka", "confluent-kafka")

NS_PER_MS: Final = 1_000_000
_NEVER: Final = (1 << 63) - 1


class Conduct(Enum):
    """What a client does after a notice."""

    UNKNOWN = "unknown"
    WAITS = "waits"
    IGNORES = "ignores"


@final
class BackOff:
    """One connection.

    conduct         the classification
    software        the name of the client's software; "": not known
    round_trip_ns   of the connection to the client, measured by the shell; 0: not measured yet
    """

    __slots__ = (
        "_expected_ns",
        "_grace_ns",
        "_in_a_row",
        "_is_held",
        "_is_long",
        "_sent_until_ns",
        "_until_ns",
        "conduct",
        "round_trip_ns",
        "software",
    )

    def __init__(self, grace_ms: int) -> None:
        self._grace_ns = grace_ms * NS_PER_MS
        #: From `_expected_ns` on the client knows the notice, which ends at `_until_ns`; 0: no notice is observed.
        self._expected_ns = 0
        self._until_ns = 0
        #: The end of all notices that have been sent.
        self._sent_until_ns = 0
        self._in_a_row = 0
        #: The notice is longer than a round trip: not all data before its end was on its way.
        self._is_long = False
        self._is_held = False
        self.conduct = Conduct.UNKNOWN
        self.round_trip_ns = 0
        self.software = ""

    @property
    def ignores(self) -> bool:
        return self.conduct is Conduct.IGNORES

    def guess(self, software: str) -> None:
        """The client names its software: the first classification, until its behaviour shows another."""
        self.software = software
        if self.conduct is Conduct.UNKNOWN and software.startswith(IGNORING_SOFTWARE):
            self.conduct = Conduct.IGNORES

    def notice_sent(self, throttle_time_ms: int, now_ns: int) -> bool:
        """A response contains this throttle time, because of debt.

        Returns whether the client has waited after the notice before it.
        """
        until_ns = now_ns + throttle_time_ms * NS_PER_MS
        if now_ns >= self._sent_until_ns:  # the client may have sent after the notices before this one
            self._in_a_row = 0
        self._sent_until_ns = max(self._sent_until_ns, until_ns)
        is_long = throttle_time_ms * NS_PER_MS > self.round_trip_ns
        expected_ns = _NEVER if self._is_held else now_ns + self.round_trip_ns + self._grace_ns
        if now_ns < self._until_ns:  # a further response during the same notice
            self._until_ns = max(self._until_ns, until_ns)
            self._expected_ns = min(self._expected_ns, expected_ns)
            self._is_long |= is_long
            return False
        has_waited = self._has_waited(now_ns)
        self._expected_ns = expected_ns
        self._until_ns = until_ns
        self._is_long = is_long
        return has_waited

    def data_arrived(self, now_ns: int) -> bool:
        """A data frame has arrived, and finds or leaves debt. Returns whether the client has ignored a notice."""
        if now_ns >= self._until_ns:  # the notice is over, or none is observed
            return False
        self._until_ns = 0
        self._in_a_row += self._is_long
        if now_ns < self._expected_ns and not (self._is_long and self._in_a_row > MOST_ON_THEIR_WAY):
            return False
        self.conduct = Conduct.IGNORES
        return True

    def held(self, now_ns: int) -> bool:
        """A frame is held: what arrives from now on is seen late. Returns as `notice_sent`."""
        has_waited = self._has_waited(now_ns)
        self._is_held = True
        self._until_ns = 0
        return has_waited

    def released(self, now_ns: int) -> None:
        """It passes."""
        self._is_held = False
        if now_ns >= self._until_ns:
            self._until_ns = 0
        if now_ns >= self._sent_until_ns:  # the client may have sent since then
            self._in_a_row = 0

    def _has_waited(self, now_ns: int) -> bool:
        """Whether a notice was observed to its end, and no data arrived before that."""
        if self._is_held or not 0 < self._until_ns <= now_ns:
            return False
        self._in_a_row = 0
        self.conduct = Conduct.WAITS
        return True
