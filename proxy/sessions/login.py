"""The proxy's own login on the broker connection of a session: before its first request, and again before the lifetime
of the login ends (KIP-368).

Its requests are in flight like any other, and `proxy.streams.handlers.login` takes their responses out of the stream.
A login begins at the end of a frame, and no frame begins before the broker has accepted it: one that a limit releases
meanwhile is asked again.
"""

import random
from asyncio import AbstractEventLoop, Future
from collections.abc import Callable
from typing import Final, final

from proxy.brokers.login import CORRELATION_ID, THREAD, Login, LoginRefused
from proxy.config.client_settings import LoginSettings
from proxy.enforcement.identity import ANONYMOUS
from proxy.sessions.pump import LOGIN, Owner, Pump
from proxy.streams.handlers.login import Login as Handler
from proxy.streams.handlers.login import OwnRequest

#: Of the lifetime, when the next login begins. A frame that is under way then has the rest of it to arrive.
EARLIEST: Final = 0.70
LATEST: Final = 0.85
#: However long the broker's lifetime is.
LONGEST_SECONDS: Final = 86_400.0
#: For the first login. Later ones wait for the responses to earlier requests.
TIMEOUT_SECONDS: Final = 10.0


@final
class BrokerLogin:
    """Logs in, again and again, until `close`. `settings`: as they are then. An error closes the owner.

    _login   the login under way
    _first   its first frame, until the current frame ends
    _sent    its request in flight
    """

    __slots__ = (
        "_clock",
        "_first",
        "_handler",
        "_login",
        "_loop",
        "_owner",
        "_requests",
        "_sent",
        "_settings",
        "_timer",
    )

    def __init__(
        self,
        loop: AbstractEventLoop,
        clock: Callable[[], int],
        settings: Callable[[], LoginSettings | None],
        requests: Pump,
        owner: Owner,
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._settings = settings
        self._requests = requests
        self._owner = owner
        self._handler = Handler(requests.stream.connection.context)
        self._login: Login | None = None
        self._first = b""
        self._sent: OwnRequest | None = None
        self._timer = loop.call_later(TIMEOUT_SECONDS, self._on_timeout)

    def begin(self) -> None:
        """Begin a login, at the end of the current frame."""
        connection = self._requests.stream.connection
        if not connection.is_closing:
            connection.stop_for_login()
            settings = self._settings()
            assert settings is not None  # noqa: S101 - for the type checker: the file has a login, or it is refused
            self._login = Login(settings)
            self._first = self._login.first_frame
            self.attend()

    def attend(self) -> None:
        """The current frame may have ended, or a response arrived."""
        login, sent = self._login, self._sent
        if self._first and not self._requests.stream.remaining:
            self._requests.pause(LOGIN)
            frame, self._first = self._first, b""
            self._send(frame)
        elif login is not None and sent is not None and sent.response:
            self._sent = None
            self._loop.run_in_executor(THREAD, login.next_frame, sent.response).add_done_callback(self._go_on)

    def _send(self, frame: bytes) -> None:
        self._sent = OwnRequest(self._handler)
        self._requests.stream.connection.in_flight.append((CORRELATION_ID, self._sent))
        self._requests.write(frame)

    def _go_on(self, done: "Future[bytes | None]") -> None:
        error = done.exception()
        login = self._login
        if login is None:
            return
        if isinstance(error, Exception):
            self._owner.close_for(error)
            return
        frame = done.result()
        if frame is not None:
            self._send(frame)
            return
        self._login = None
        self._timer.cancel()
        if login.lifetime_ms:
            seconds = min(login.lifetime_ms / 1_000, LONGEST_SECONDS) * random.uniform(EARLIEST, LATEST)  # noqa: S311
            self._timer = self._loop.call_later(seconds, self.begin)
        connection = self._requests.stream.connection
        if login.user and connection.identity.client.user == ANONYMOUS:
            connection.identity.authenticate(login.user, self._clock())
        connection.go_on_after_login()
        self._requests.resume(LOGIN)
        self._owner.attend()

    def _on_timeout(self) -> None:
        self._owner.close_for(LoginRefused(f"no answer to the login within {TIMEOUT_SECONDS:g} s"))

    def close(self) -> None:
        """The connection is closed."""
        self._login = None
        self._timer.cancel()
