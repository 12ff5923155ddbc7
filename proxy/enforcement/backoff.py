"""Whether a client waits after a notice: observed on its connection, from notices and the data that follows them.

    notice sent ──── round trip ──── --backoff-grace-ms ──────────────── end of the throttle time
         data here was on its way, or the client       data here: the client
         ignores each notice in a row                  ignores the notice

The classification is for people, and for the size of reads; it lets nothing pass. Data that was held tells nothing: it
may have arrived before the notice. So does a notice that the client receives while the proxy does not read it.
"""

from enum import Enum
from typing import Final, final

#: Requests that clients have on their way: the default of Java's `max.in.flight.requests.per.connection`. In more
#: notices in a row, data soon after the notice was not on its way.
MOST_ON_THEIR_WAY: Final = 5
#: Software that is known to ignore notices, by the beginning of its name in ApiVersions (KIP-511).
IGNORING_SOFTWARE: Final = ("librdkafka", "confluent-kafka")

NS_PER_MS: Final = 1_000_000


class Conduct(Enum):
    """What a client does after a notice."""

    UNKNOWN = "unknown"
    WAITS = "waits"
    IGNORES = "ignores"


@final
class BackOff:
    """One connection.

    conduct         the classification
    round_trip_ns   of the connection to the client, measured by the shell; 0: not measured yet
    """

    __slots__ = ("_expected_ns", "_grace_ns", "_in_a_row", "_is_held", "_until_ns", "conduct", "round_trip_ns")

    def __init__(self, grace_ms: int) -> None:
        self._grace_ns = grace_ms * NS_PER_MS
        #: From `_expected_ns` on the client knows the notice, which ends at `_until_ns`; 0: no notice is observed.
        self._expected_ns = 0
        self._until_ns = 0
        self._in_a_row = 0
        self._is_held = False
        self.conduct = Conduct.UNKNOWN
        self.round_trip_ns = 0

    @property
    def ignores(self) -> bool:
        return self.conduct is Conduct.IGNORES

    def guess(self, software: str) -> None:
        """The client names its software: the first classification, until its behaviour shows another."""
        if self.conduct is Conduct.UNKNOWN and software.startswith(IGNORING_SOFTWARE):
            self.conduct = Conduct.IGNORES

    def notice_sent(self, throttle_time_ms: int, now_ns: int) -> bool:
        """A response contains this throttle time, because of debt.

        Returns whether the client has waited after the notice before it.
        """
        if self._is_held:
            return False
        until_ns = now_ns + throttle_time_ms * NS_PER_MS
        if now_ns < self._until_ns:  # a further response during the same notice
            self._until_ns = max(self._until_ns, until_ns)
            return False
        has_waited = self._until_ns > 0
        if has_waited:
            self._in_a_row = 0
            self.conduct = Conduct.WAITS
        self._expected_ns = now_ns + self.round_trip_ns + self._grace_ns
        self._until_ns = until_ns
        return has_waited

    def data_arrived(self, now_ns: int) -> bool:
        """A data frame has arrived, and finds or leaves debt. Returns whether the client has ignored a notice."""
        if now_ns >= self._until_ns:  # the notice is over, or none is observed
            return False
        self._until_ns = 0
        self._in_a_row += 1
        if now_ns < self._expected_ns and self._in_a_row <= MOST_ON_THEIR_WAY:
            return False
        self.conduct = Conduct.IGNORES
        return True

    def held(self, *, is_held: bool) -> None:
        """A frame is held, or passes after a hold: what arrives in between is seen late."""
        self._is_held = is_held
        self._until_ns = 0
