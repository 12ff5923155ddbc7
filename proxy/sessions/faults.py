"""Counts and logs what breaks connections, at most one line of each kind every few seconds."""

import re
from collections.abc import Callable
from typing import Final, final

from protocol.errors import NotKafka, ProtocolError, UnsupportedVersion
from proxy.enforcement.identity import Identity
from proxy.observability.logs import EventLog, RateLimited
from proxy.observability.metrics import Metrics

_log = EventLog(__name__)


class ClosedMidFrame(ProtocolError):
    """The client's stream ended within a request: the client died, or it never spoke Kafka."""

    reason = "closed_mid_frame"

    def __init__(self, missing: int | None) -> None:
        super().__init__(f"the client closed its connection {missing or 'some'} bytes before the end of a request", -1)


class HandshakeFailed(ProtocolError):
    """The client's TLS handshake failed."""

    reason = "tls_handshake"


#: OpenSSL's words for the alerts of clients that do not accept the certificate. Java sends "certificate unknown".
_DISTRUSTS: Final = re.compile("alert (?:unknown ca|bad certificate|certificate (?:unknown|expired))")
#: What to do about a client that speaks another protocol, or uses a version of an API that is refused.
_HINTS: Final = {
    "tls": "set security.protocol=PLAINTEXT or SASL_PLAINTEXT in the client, or --ssl-certificate-location here",
    "http": "HTTP is at --metrics-listen",
    "proxy": "name the load balancer by --proxy-protocol-from",
    # Java sends version 0 where SASL is not offered, as where the proxy logs in for its clients.
    "SaslHandshake": "if the proxy logs in for its clients (sasl.jaas.config in --command-config), let them use "
    "PLAINTEXT or SSL; otherwise update the client: librdkafka 1.2.0, kafka-python 2.1.0 and Sarama 1.41.0 send "
    "version 1",
}


@final
class Faults:
    """Counts and logs what breaks connections; shared by all sessions."""

    def __init__(self, metrics: Metrics, clock: Callable[[], int]) -> None:
        self._metrics: Final = metrics
        self._clock: Final = clock
        self._lines: Final = RateLimited()

    def rejected(self, reason: str, peer: str, entity: object = None, **fields: object) -> None:
        """A connection was closed before it was served. `entity`: that of the limit that refused it."""
        self._metrics.connections.rejected[reason] += 1
        fields = {"peer": peer, "reason": reason, "entity": entity and str(entity), **fields}
        self._metrics.errors.latest[reason] = self._clock(), fields
        self._event(_log.warning, "connection_rejected", (reason, entity), **fields)

    def header(self, peer: str, error: ProtocolError) -> None:
        """A load balancer's connection does not begin with a PROXY header."""
        hint = "connections from --proxy-protocol-from begin with a PROXY header"
        self._refused(error, peer=peer, hint=hint)

    def ended_mid_frame(self) -> None:
        """The broker ended its stream within a response."""
        self._metrics.errors.upstream["closed_mid_frame"] += 1

    def dropped(self, identity: Identity, size: int) -> None:
        """A held request of `size` bytes was dropped, because its client has gone."""
        self._metrics.connections.dropped_frames += 1
        self._event(_log.info, "held_frame_dropped", "held_frame_dropped", peer=identity.client.peer, frame_bytes=size)

    def protocol(self, identity: Identity, error: ProtocolError, broker: str = "", certificate: str = "") -> None:
        """One side sent something that cannot be handled. `broker`: its address, if it was the broker. `certificate`: a
        description of the certificate that the client did not accept.
        """
        api = error.api_name if isinstance(error, UnsupportedVersion) else ""
        hint = None if broker else _HINTS.get(error.protocol if isinstance(error, NotKafka) else api)
        if not _DISTRUSTS.search(str(error)):
            certificate = ""
        elif certificate:
            hint = (
                "the client trusts another CA (ssl.truststore.location, ssl.ca.location), or connects by another name"
            )
        client = identity.client
        names = {"peer": client.peer, "client_id": client.client_id, "broker": broker or None}
        self._refused(error, **names, certificate=certificate or None, hint=hint)

    def defect(self, identity: Identity, error: Exception) -> None:
        """A defect in this program, which closes only the connection where it showed."""
        self._metrics.errors.protocol["defect"] += 1
        self._event(_log.exception, "defect", type(error).__name__, peer=identity.client.peer)

    def _refused(self, error: ProtocolError, **fields: object) -> None:
        reason = error.reason
        self._metrics.errors.protocol[reason] += 1
        fields.update(reason=reason, offset=error.offset, detail=str(error))
        self._metrics.errors.latest[reason] = self._clock(), fields
        self._event(_log.warning, "protocol_error", reason, **fields)

    def _event(self, log: Callable[..., None], name: str, key: object, **fields: object) -> None:
        self._lines.event(log, name, (name, key), self._clock(), **fields)
