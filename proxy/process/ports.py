"""The ports of the proxy: one to bootstrap from, and one for each broker."""

import errno
from asyncio import AbstractEventLoop
from collections.abc import Iterable, Sequence

from proxy.background.host import Host
from proxy.brokers.nodes import Nodes, Place
from proxy.config.addresses import Address, is_of_this_host, is_wildcard, server_name
from proxy.config.config import Config
from proxy.config.errors import BindError
from proxy.config.ports import same_host
from proxy.observability.metrics import Metrics
from proxy.sessions.listener import Listener
from proxy.sessions.proxy_headers import ProxyHeaders
from quotas.parsing.names import BOOTSTRAP

NOT_SHARED = ": another process has it without --reuse-port, or as another user"


class Ports:
    """Binds the ports, and returns the brokers that each leads to. ``headers`` takes the accepted connections."""

    def __init__(
        self, loop: AbstractEventLoop, config: Config, metrics: Metrics, headers: ProxyHeaders, host: Host
    ) -> None:
        self._loop = loop
        self._config = config
        self._metrics = metrics
        self._headers = headers
        self._host = host
        self._listeners: dict[int, Listener] = {}
        self.bootstrap = 0
        #: Index of the bootstrap server that the next connection tries first.
        self._next_server = 0

    def __len__(self) -> int:
        return len(self._listeners)

    def open(self, fixed_ports: Iterable[int]) -> None:
        """Bind --listen and these. Raises BindError."""
        config = self._config
        self.bootstrap = self._bind(config.listening.address, "--listen")
        for port in fixed_ports:
            flag = "--broker-ports" if port in (config.listening.broker_ports or ()) else "--broker-port"
            self._bind((config.listening.address[0], port), flag)

    def open_any(self) -> int:
        """Bind a port that the kernel chooses; with --sni-host all nodes have that of --listen. Raises BindError."""
        if self._config.listening.sni_host is not None:
            return self.bootstrap
        return self._bind((self._config.listening.address[0], 0), "--broker-ports")

    def names_of(self, port: int) -> tuple[str, ...]:
        """The names of a port's listener in quotas."""
        return (BOOTSTRAP, str(port)) if port == self.bootstrap else (str(port),)

    def place_of(self, port: int, name: str | None) -> Place:
        """Where a connection to this port arrives, by the server name of its handshake."""
        return port if self._config.listening.sni_host is None else server_name(name or "")

    def brokers_at(self, place: Place, nodes: Nodes) -> Sequence[Address]:
        """The brokers to try for a connection that arrives here: its node, otherwise the bootstrap servers."""
        node = nodes.broker_at(place)
        if node is not None:
            return (node,)
        servers = self._config.bootstrap_servers
        first = self._next_server % len(servers)
        self._next_server = first + 1
        return servers[first:] + servers[:first]

    def is_own(self, address: Address) -> bool:
        """Whether clients reach this proxy at an address. Names are not resolved, only compared."""
        host, port = address
        listener = self._listeners.get(port)
        if listener is None:
            return False
        listening = self._config.listening
        own = (listening.address[0], listening.advertised_host or "", listener.host)
        return any(same_host(host, each) for each in own) or (is_wildcard(listener.host) and is_of_this_host(host))

    def close(self) -> None:
        """Stop accepting, and close connections that are not accepted because their PROXY header is not complete."""
        for listener in self._listeners.values():
            listener.close()
        self._listeners.clear()
        self._headers.close()

    def _bind(self, address: Address, flag: str) -> int:
        reuse_port = self._config.listening.reuse_port
        try:
            accepted, new_socket = self._headers.accept, self._host.new_socket
            listener = Listener(self._loop, address, accepted, self._metrics, new_socket, reuse_port=reuse_port)
        except OSError as error:
            is_shared = reuse_port and error.errno == errno.EADDRINUSE
            raise BindError(flag, address, error, NOT_SHARED if is_shared else "") from error
        self._listeners[listener.port] = listener
        return listener.port
