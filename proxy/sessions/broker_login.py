"""The proxy's own login on the broker connection of a session: before its first request, and again before the lifetime
of the login ends (KIP-368).

Its requests are in flight like any other, and `proxy.streams.handlers.login` removes their responses from the stream.
A login begins at the end of a frame, and no other frame begins until the broker has accepted it; a frame that a limit
releases in the meantime is decided again. A login may take `CONNECT_TIMEOUT_SECONDS`, starting when the broker has
answered all requests before it. For the first login, the time that connecting took is subtracted.
"""

from asyncio import Future, TimerHandle
from typing import Final, final

from proxy.brokers.sasl_exchange import CORRELATION_ID, THREAD, Login
from proxy.brokers.upstream import CONNECT_TIMEOUT_SECONDS, BrokerFailed
from proxy.sessions.pair import ConnectionPair
from proxy.sessions.pump_set import LOGIN
from proxy.streams.handlers.login import OwnRequest
from quotas.entity import ANONYMOUS

#: The next login begins after this fraction of the lifetime. The rest is for a frame that has begun to arrive by then.
EARLIEST: Final = 0.70
LATEST: Final = 0.85
#: The shortest time between two logins. A broker whose sessions are shorter closes the connection.
MIN_SECONDS: Final = 1.0


@final
class BrokerLogin:
    """Logs in, and repeats that until `close`. An error closes the pair. `spent_ns`: how long connecting took.

    _login   the current login
    _sent    its latest request; None while it waits for the end of the current frame
    _timer   the timeout of the current login, or the timer that starts the next one
    """

    def __init__(self, pair: ConnectionPair, spent_ns: int) -> None:
        self._pair = pair
        self._spent_ns = spent_ns
        self._login: Login | None = None
        self._sent: OwnRequest | None = None
        self._timer: TimerHandle | None = None

    def start(self) -> None:
        """Begin a login at the end of the current frame."""
        connection, settings = self._pair.connection, self._pair.shared.tls.upstream.login
        if settings is not None and not connection.is_closing:
            self._login = Login(settings, connection.context.config.security.sasl_oauthbearer_sub_claim_name)
            self._timer = None
            connection.max_in_flight = 0
            connection.needs_session = True
            self.after_step()

    def after_step(self) -> None:
        """Continue the login, if the current frame has ended or a response has arrived."""
        login, sent = self._login, self._sent
        if login is None or self._pair.requests.stream.remaining:
            return
        if sent is None:
            self._pair.requests.pause(LOGIN)
            self._send(login)
        elif sent.response:
            response, sent.response = sent.response, b""
            advancing = self._pair.shared.loop.run_in_executor(THREAD, login.advance, response)
            advancing.add_done_callback(self._on_advanced)

    def _send(self, login: Login) -> None:
        in_flight = self._pair.response_stream.in_flight
        self._sent = OwnRequest()
        if self._timer is None and not in_flight:
            seconds = CONNECT_TIMEOUT_SECONDS - self._spent_ns / 1_000_000_000
            self._timer = self._pair.shared.loop.call_later(seconds, self._on_silent)
        in_flight.append((CORRELATION_ID, self._sent))
        self._pair.requests.writer.write(login.frame)

    def _on_advanced(self, done: "Future[None]") -> None:
        login = self._login
        # Not `result`, which would raise the error: its traceback would refer to `done`, which refers to the error.
        error = done.exception()
        if login is None:  # closed
            return
        try:
            if isinstance(error, Exception):
                self._pair.close_for(error)
            elif login.frame:
                self._send(login)
            else:
                self._end(login)
        except Exception as defect:  # noqa: BLE001 - it may cost its own connection, never the process
            self._pair.close_for(defect)

    def _on_silent(self) -> None:
        detail = f"no answer to the login of the proxy within {CONNECT_TIMEOUT_SECONDS:g} s"
        self._pair.close_for(BrokerFailed("silent", detail))

    def _end(self, login: Login) -> None:
        """The broker has accepted a login."""
        shared, connection = self._pair.shared, self._pair.connection
        self.close()
        self._sent = None
        self._spent_ns = 0
        if login.lifetime_ms:
            seconds = login.lifetime_ms / 1_000 * shared.host.random.uniform(EARLIEST, LATEST)
            self._timer = shared.loop.call_later(max(seconds, MIN_SECONDS), self.start)
        if login.user and connection.identity.client.user == ANONYMOUS:
            connection.identity.authenticate(login.user, shared.clock())
        connection.max_in_flight = connection.context.config.security.max_pending_requests
        self._pair.requests.resume(LOGIN)
        self._pair.after_step()

    def close(self) -> None:
        """End the current login and cancel the timer: the connection is closed, or the login has succeeded."""
        if self._login is not None:
            self._login.close()
            self._login = None
        if self._timer is not None:
            self._timer.cancel()
