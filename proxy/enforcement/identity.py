"""The clients of one connection, their limits, and the throttle times of its responses."""

from typing import Final, final

from proxy.config.config import Config
from proxy.enforcement.lag import Lag
from proxy.observability.entities import Entities
from proxy.observability.tallies import EntityMetrics
from quotas.admission.client_limits import ClientLimits
from quotas.admission.limit import Limit
from quotas.entity import ANONYMOUS
from quotas.registry.registry import Registry
from quotas.time_units import NS_PER_MS

LEAST_LOGGED_NS: Final = 1_000_000_000
"""The shortest wait that a client which logs each is notified of, in mode `auto`."""

NEVER_NOTIFIED_NS: Final = 1 << 62
"""The same of a client that repeats each request whose response contains a throttle time."""

#: Used before the first request, which contains the client id.
_NO_LIMITS: Final = ClientLimits(("", ""))


class Notice:
    """A throttle time that responses contain until it is over.

    limit    the limit that caused it; None: a bound of the proxy, which the reason names
    reason   see `proxy.enforcement.report`
    """

    __slots__ = ("_most_ns", "limit", "reason", "until_ns")

    def __init__(self, max_throttle_ms: int) -> None:
        self._most_ns = max_throttle_ms * NS_PER_MS
        self.limit: Limit | None = None
        self.reason = ""
        #: 0: no throttle time.
        self.until_ns = 0

    def extend(self, limit: Limit | None, until_ns: int, reason: str) -> None:
        """Responses contain the wait until `until_ns`, unless they contain a longer one already."""
        if until_ns > self.until_ns:
            self.until_ns = until_ns
            self.limit = limit
            self.reason = reason

    def throttle_time_ms(self, now_ns: int) -> int:
        """The throttle time of a response written now, in milliseconds rounded up; 0 when the wait is over."""
        remaining_ns = self.until_ns - now_ns
        if remaining_ns <= 0:
            self.until_ns = 0
            return 0
        return throttle_time_ms(remaining_ns, self._most_ns)

    def renew(self, registry: Registry, now_ns: int) -> None:
        """Apply changed limits: the wait becomes the present debt of the limit, at most the wait before."""
        limit = self.limit
        if limit is None or not self.until_ns:
            return
        if registry.is_in_use(limit):
            self.until_ns = min(self.until_ns, now_ns + limit.wait_ns(now_ns))
        else:
            self.until_ns = 0


def throttle_time_ms(wait_ns: int, most_ns: int) -> int:
    """A wait as Kafka's throttle_time_ms: rounded up, at most `most_ns`, never below zero."""
    return max(0, -(-min(wait_ns, most_ns) // NS_PER_MS))


@final
class Client:
    """The user and the client id of requests of one connection. A fetch keeps it for its response: a later request may
    have another client id.

    peer      address and port of the connection, for logs
    limits    those of this user and client id
    entity    their counters: the same ones for the life of this object
    """

    __slots__ = ("_registry", "client_id", "entity", "limits", "peer", "user")

    entity: EntityMetrics
    """Set by `Identity.identify`: not before the first request."""

    def __init__(self, registry: Registry, user: str, client_id: str, peer: str) -> None:
        self._registry: Final = registry
        self.user: Final = user
        self.client_id: Final = client_id
        self.peer: Final = peer
        self.limits = _NO_LIMITS

    @property
    def names(self) -> tuple[str, str, str]:
        """Client id, user and peer, as reports have them."""
        return self.client_id, self.user, self.peer

    def refresh(self, now_ns: int) -> None:
        """Look up the limits. They are up to date while `limits.generation` is that of the registry."""
        self.limits = self._registry.resolve(self.user, self.client_id, now_ns)


@final
class Identity:
    """The client of a connection's latest request. Streams read the plain attributes on the hot path.

    client           of the latest request; before the first one its client id is "", and it has no limits
    wire_client_id   the client id in that request; None before the first one
    limits, entity   those of `client`
    lag              how far the client is behind, if it fetches
    generation       that of the registry when `limits` were looked up
    least_notice_ns  the shortest wait that the client is notified of in mode `auto`; 0: of each
    notified_until_ns
                     until when a client that logs each wait was asked to wait: no notice before that
    notice           the throttle time of data responses
    request_notice   the throttle time of all others: of `request_rate` alone
    refusal_error    error code for partitions that `action=reject` refuses; 0: its client is held instead
    """

    __slots__ = (
        "_config",
        "_entities",
        "client",
        "entity",
        "generation",
        "lag",
        "least_notice_ns",
        "limits",
        "notice",
        "notified_until_ns",
        "refusal_error",
        "registry",
        "request_notice",
        "wire_client_id",
    )

    entity: EntityMetrics
    """Set by the first `identify`."""

    def __init__(self, config: Config, registry: Registry, entities: Entities, peer: str) -> None:
        self._config = config
        self._entities = entities
        self.registry = registry
        self.client = Client(registry, config.quotas.principal or ANONYMOUS, "", peer)
        self.wire_client_id: str | None = None
        self.limits = _NO_LIMITS
        self.generation = registry.generation
        self.notice = Notice(config.enforcement.max_throttle_ms)
        self.request_notice = Notice(config.enforcement.max_throttle_ms)
        self.lag = Lag()
        self.refusal_error = 0
        self.least_notice_ns = self.notified_until_ns = 0

    def authenticate(self, user: str, now_ns: int) -> None:
        """Set the user of this and later requests, unless `--principal` names that of all. Nothing that waits for a
        limit of the user before is left: no data request or response is held or under way then.
        """
        if self._config.quotas.principal is not None or user == self.client.user:
            return
        client_id = self.wire_client_id
        self.leave()
        self.drop_notices()
        self.client = Client(self.registry, user, "", self.client.peer)
        if client_id is not None:
            self.identify(client_id, now_ns)

    def identify(self, wire_client_id: str, now_ns: int) -> None:
        """Set the client id of this and later requests."""
        self.leave()
        self.wire_client_id = wire_client_id
        user, fixed = self.client.user, self._config.quotas.client_id
        client_id = wire_client_id if fixed is None else fixed
        self.client = client = Client(self.registry, user, client_id, self.client.peer)
        client.entity = self.entity = self._entities.of(user, client_id)
        client.entity.sessions += 1
        self._look_up(now_ns)

    def refresh(self, now_ns: int) -> None:
        """Look up the limits of this client again: the registry has changed."""
        self.generation = self.registry.generation
        if self.wire_client_id is not None:
            self._look_up(now_ns)
            self.notice.renew(self.registry, now_ns)
            self.request_notice.renew(self.registry, now_ns)

    def leave(self) -> None:
        """The connection is closed, or has another client id from now on: the counters of this one may expire."""
        if self.wire_client_id is not None:
            self.wire_client_id = None
            self.entity.sessions -= 1

    def drop_notices(self) -> None:
        """No response contains a throttle time from now on."""
        self.notice.until_ns = self.request_notice.until_ns = 0

    def _look_up(self, now_ns: int) -> None:
        client = self.client
        client.refresh(now_ns)
        self.limits = limits = client.limits
        self.generation = self.registry.generation
        if self._config.quotas.client_id is None:
            producing = limits.produce.limits + limits.requests.limits
            self._entities.generated_ids.check(client.client_id, client.peer, producing)
