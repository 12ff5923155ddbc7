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
    _sent    its latest request; None: the current frame must end first
    """

    __slots__ = (
        "_clock",
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
            self.attend()

    def attend(self) -> None:
        """The current frame may have ended, or a response arrived."""
        login, sent = self._login, self._sent
        if login is None or self._requests.stream.remaining:
            return
        if sent is None:
            self._requests.pause(LOGIN)
            self._send(login)
        elif sent.response:
            response, sent.response = sent.response, b""
            self._loop.run_in_executor(THREAD, login.advance, response).add_done_callback(self._on_advanced)

    def _send(self, login: Login) -> None:
        assert login.frame is not None  # noqa: S101 - for the type checker
        self._sent = OwnRequest(self._handler)
        self._requests.stream.connection.in_flight.append((CORRELATION_ID, self._sent))
        self._requests.write(login.frame)

    def _on_advanced(self, done: "Future[None]") -> None:
        login = self._login
        if login is None:  # closed
            done.exception()
            return
        try:
            done.result()
            if login.frame is None:
                self._end(login)
            else:
                self._send(login)
        except Exception as caught:  # noqa: BLE001 - a defect may cost its own connection, never the process
            self._owner.close_for(caught)

    def _end(self, login: Login) -> None:
        """The broker has accepted a login."""
        self._login = self._sent = None
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
