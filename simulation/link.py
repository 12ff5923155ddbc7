"""A client's connection to one address, with its requests in flight, the way the libraries have it."""

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from struct import pack, unpack_from
from typing import Any, Final, NamedTuple

from simulation import kafka
from simulation.kernel import MS, SECOND, Kernel, nothing
from simulation.network import Address, Network, SimSocket
from simulation.stream import Stream

Answered = Callable[[Any], object]
"""Called with the values of a response, or with None when there will be none."""
REQUEST_TIMEOUT_NS: Final = 30 * SECOND
#: By API: since which version clients wait for the throttle time, and where it is among the values of a response.
THROTTLES: Final = {kafka.PRODUCE: (6, 1), kafka.FETCH: (8, 0)}


class Sent(NamedTuple):
    correlation: int
    api: int
    version: int
    sent_ns: int
    answered: Answered


class Link(Stream):
    """Connects when it is made.

    obeys        it sends nothing for the throttle time of a response (KIP-219), like Java's clients
    muted_ns     until when
    answered_ns  when the latest response came
    has_unanswered
                 requests without a response were sent (acks=0), for which others may wait
    on_free      called when another request may be sent, and when the connection has ended
    on_response  called with each request and the values of its response; for checkers
    """

    def __init__(
        self,
        kernel: Kernel,
        network: Network,
        host: str,
        address: Address,
        client_id: str,
        on_free: Callable[[], object],
        *,
        obeys: bool,
    ) -> None:
        super().__init__(SimSocket(network, host))
        self.kernel, self.address, self.client_id = kernel, address, client_id
        self.obeys, self.on_free = obeys, on_free
        self.on_response: Callable[[Sent, Sequence[Any]], object] = nothing
        self.in_flight: deque[Sent] = deque()
        self.muted_ns = self.answered_ns = 0
        self.is_connected = self.has_unanswered = False
        self._began_ns = kernel.now_ns
        self._correlation = kernel.random.randrange(1 << 20)
        with suppress(BlockingIOError):
            self.sock.connect(address)
        self._watch()

    def on_ready(self) -> None:
        if self.is_connected:
            super().on_ready()
        elif self.sock.error:
            self.close("refused")
        elif self.sock.peer is not None:
            self.is_connected = True
            self.on_free()

    @property
    def is_free(self) -> bool:
        return self.is_connected and not self.is_closed and self.kernel.now_ns >= self.muted_ns

    def request(
        self, api: int, version: int, values: Sequence[Any], answered: Answered, *, is_answered: bool = True
    ) -> None:
        self._correlation += 1
        name = self.client_id.encode()
        sent = Sent(self._correlation, api, version, self.kernel.now_ns, answered)
        if is_answered:
            self.in_flight.append(sent)
        else:
            self.has_unanswered = True
        head = pack(">hhih", api, version, sent.correlation, len(name)) + name
        self.send(head + bytes(kafka.has_tags(api, version)) + kafka.request(api, version).encode(values))

    def _obey(self, sent: Sent, values: Sequence[Any]) -> None:
        """As Java does: it sends nothing for the throttle time of versions that are answered at once (KIP-219)."""
        since, place = THROTTLES.get(sent.api, (0, 0))
        if self.obeys and since and sent.version >= since and values[place] > 0:
            self.muted_ns = max(self.muted_ns, self.kernel.now_ns + values[place] * MS)
            self.kernel.at(self.muted_ns, self.on_free)

    def on_frame(self, frame: bytes) -> None:
        [correlation] = unpack_from(">i", frame)
        if not self.in_flight or self.in_flight[0].correlation != correlation:
            raise AssertionError(f"{self.client_id}: a response to {correlation} that is not next: {self.in_flight}")
        sent = self.in_flight.popleft()
        values = kafka.response(sent.api, sent.version).decode(frame[4 + kafka.has_tags(sent.api, sent.version) :])
        self._obey(sent, values)
        self.on_response(sent, values)
        self.answered_ns = self.kernel.now_ns
        sent.answered(values)
        if not self.is_closed:
            self.on_free()

    def _watch(self) -> None:
        """Close it when it has been silent for too long."""
        if self.is_closed:
            return
        since_ns = self.kernel.now_ns if self.is_connected else self._began_ns
        if self.in_flight:
            since_ns = self.in_flight[0].sent_ns
        if self.kernel.now_ns - since_ns >= REQUEST_TIMEOUT_NS:
            self.close("timeout")
        else:
            self.kernel.at(since_ns + REQUEST_TIMEOUT_NS, self._watch)

    def on_end(self, why: str) -> None:
        """What is in flight will have no response."""
        self.kernel.note(self.client_id, why)
        lost, self.in_flight = self.in_flight, deque()
        for sent in lost:
            sent.answered(None)
        self.on_free()
