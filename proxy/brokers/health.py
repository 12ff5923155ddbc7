"""What is wrong with each broker address: the log has a line when it begins to fail, at most one a minute for each
reason while it fails, and one when it works again. Clients see what the broker itself would do: a connection that is
closed, or no response.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, final

from proxy.config.addresses import format_address
from proxy.config.config import Config
from proxy.observability.logs import EventLog
from proxy.observability.response_times import MAX_BROKERS

REPEAT_NS: Final = 60_000_000_000
#: After a recovery the next line of the same reason may come this early.
FLAPPING_NS: Final = 10_000_000_000

_FILE: Final = "--command-config FILE"
#: Each reason, with what may help. `_FILE` becomes the name of the file.
_HINTS: Final = {
    "connect_failed": None,
    "connection_reset": None,
    "closed_mid_frame": None,
    "name_resolution": "see --bootstrap-servers, or advertised.listeners of the broker",
    "connect_refused": "nothing listens there: see --bootstrap-servers, or advertised.listeners of the broker",
    "connect_timeout": "a firewall blocks it, or it is in another network: see advertised.listeners of the broker",
    "plaintext_to_tls": f"the listener uses TLS: set security.protocol=SSL or SASL_SSL in {_FILE}",
    "closed_early": "TLS listeners, SASL listeners without a login, and Kafka 4 with clients from before 2.1 do this: "
    f"see security.protocol in {_FILE}",
    "tls_plaintext_peer": f"the listener may not use TLS: set security.protocol=PLAINTEXT or SASL_PLAINTEXT in {_FILE}",
    "tls_certificate": f"set ssl.truststore.location in {_FILE} to the CA of the broker's certificate",
    "tls_hostname": "use a name of the certificate in --bootstrap-servers and advertised.listeners, or set "
    f"ssl.endpoint.identification.algorithm to nothing in {_FILE}",
    "tls_expired": "the broker needs a new certificate, or the clock of this machine is wrong",
    "tls_failed": f"see ssl.keystore.location and ssl.enabled.protocols in {_FILE}",
    "sasl_required": "let clients log in (security.protocol=SASL_PLAINTEXT), or the proxy: set sasl.mechanism and "
    f"sasl.jaas.config in {_FILE}; Kafka 4 also does this to clients from before 2.1",
    "login_refused": f"see sasl.mechanism and sasl.jaas.config in {_FILE}",
    "silent": "it is overloaded or hangs, or the network drops its packets",
}
#: A broker may answer ApiVersions and still fail for these reasons.
_UNPROBED: Final = frozenset({"sasl_required", "silent"})

_log = EventLog("proxy.brokers")


def hint_of(reason: str, file: str) -> str | None:
    """The property that may help. `file` is the file of the connection's settings, with its option."""
    text = _HINTS.get(reason)
    return text and text.replace(_FILE, file)


@dataclass(slots=True)
class _Outage:
    """The failures of one address, which works if there are none. `lines`: when a line was last written, by reason."""

    since_ns: int = 0
    last_ns: int = 0
    failures: int = 0
    reason: str = ""
    is_logged: bool = False
    lines: dict[str, int] = field(default_factory=dict)


@final
class Health:
    """Counts and logs the failures of brokers. `errors` has a count for each reason from the start; `clock` returns
    monotonic nanoseconds.
    """

    def __init__(self, config: Config, errors: Counter[str], clock: Callable[[], int]) -> None:
        self._servers = {format_address(server) for server in config.bootstrap_servers}
        self._file = f"--command-config {config.upstream.file or 'FILE'}"
        self._errors = errors
        errors.update(dict.fromkeys(_HINTS, 0))
        self._clock = clock
        self._outages: OrderedDict[str, _Outage] = OrderedDict()

    def hint(self, reason: str) -> str | None:
        """The property that may help."""
        return hint_of(reason, self._file)

    def failing(self, address: str) -> str | None:
        """The latest reason why this broker failed; None if it works, as far as the proxy knows."""
        outage = self._outages.get(address)
        return outage.reason if outage is not None and outage.failures else None

    def outages(self, since_ns: int) -> list[str]:
        """The addresses of the brokers that are failing and have failed since then."""
        return [each for each, outage in self._outages.items() if outage.failures and outage.last_ns >= since_ns]

    def failed(self, address: str, reason: str, detail: str | None) -> None:
        """A connection to the broker failed, or a request got no response."""
        self._errors[reason] += 1
        now_ns = self._clock()
        outage = self._outages.pop(address, None) or _Outage()
        self._outages[address] = outage
        if len(self._outages) > MAX_BROKERS:
            self._outages.popitem(last=False)
        if not outage.failures:
            outage.since_ns = now_ns
        outage.failures += 1
        outage.last_ns, outage.reason = now_ns, reason
        last_line_ns = outage.lines.get(reason)
        if last_line_ns is not None and now_ns - last_line_ns < REPEAT_NS:
            return
        outage.lines[reason] = now_ns
        is_first, outage.is_logged = not outage.is_logged, True
        none_works = all(server in self._outages and self._outages[server].failures for server in self._servers)
        _log.warning(
            "broker_failed",
            address=address,
            reason=reason,
            detail=detail,
            hint=self.hint(reason),
            effect="no bootstrap server can be used" if none_works and address in self._servers else None,
            failures=None if is_first else outage.failures,
            for_seconds=None if is_first else (now_ns - outage.since_ns) // 1_000_000_000,
        )

    def worked(self, address: str, begun_ns: int, *, is_probe: bool = False) -> None:
        """A connection that began at this time got a response. `is_probe`: only to ApiVersions."""
        outage = self._outages.get(address)
        if outage is None or not outage.failures or begun_ns < outage.last_ns:
            return
        if is_probe and outage.reason in _UNPROBED:
            return
        if outage.is_logged:
            seconds = (self._clock() - outage.since_ns) // 1_000_000_000
            _log.info("broker_recovered", address=address, after_seconds=seconds, failures=outage.failures)
            outage.lines = {reason: at_ns - REPEAT_NS + FLAPPING_NS for reason, at_ns in outage.lines.items()}
        outage.failures, outage.is_logged = 0, False
