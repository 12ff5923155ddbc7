"""Clients that are none of the libraries: one that is hostile, and one that comes for one request."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from struct import pack
from typing import Any, Final

from simulation import kafka
from simulation.cluster import Batch
from simulation.kernel import Kernel, nothing
from simulation.link import Link
from simulation.network import Address, Network

HOST: Final = "10.0.3.251"


@dataclass
class Hostile:
    """Keeps a few connections open, and does something nasty on each, again and again."""

    kernel: Kernel
    network: Network
    host: str
    client_id: str
    bootstrap: Sequence[Address]
    links: list[Link] = field(default_factory=list)
    is_stopped: bool = False

    def __post_init__(self) -> None:
        self._act()

    def _act(self) -> None:
        if self.is_stopped:
            return
        random = self.kernel.random
        self.kernel.after(random.uniform(0.02, 0.5), self._act)
        if len(self.links) < 4:
            address = random.choice(self.bootstrap)
            self.links.append(Link(self.kernel, self.network, self.host, address, self.client_id, nothing, obeys=False))
            return
        link = random.choice(self.links)
        if link.is_closed:
            self.links.remove(link)
            return
        if not link.is_connected:
            return
        name = self.client_id.encode()
        produce = pack(">hhih", kafka.PRODUCE, 7, 1, len(name)) + name + pack(">hhi", -1, 1, 30_000)
        match random.choice(["stall", "drip", "length", "noise", "hang up", "half-close"]):
            case "stall":  # announce much, and send little
                link.send_raw(pack(">i", 50_000_000) + produce + bytes(random.randrange(200)))
            case "drip":
                link.send_raw(random.choice([b"\0", b"\xff", produce[:1]]))
            case "length":
                link.send_raw(pack(">i", random.choice([-1, 0, 3, 1 << 30])))
            case "noise":
                link.send_raw(random.randbytes(random.randrange(1, 300)))
            case "hang up":
                link.close("hung up", resets=True)
            case "half-close":
                link.sock.shutdown(1)

    def stop(self) -> None:
        self.is_stopped = True
        for link in self.links:
            link.close("stopped")


class Once(Link):
    """Connects, sends one Produce request of `size` bytes, and leaves with its answer."""

    def __init__(
        self, kernel: Kernel, network: Network, host: str, client_id: str, address: Address, size: int
    ) -> None:
        self._size = size
        super().__init__(kernel, network, host, address, client_id, self._produce, obeys=False)

    def _produce(self) -> None:
        self.on_free = nothing
        if not self.is_closed:
            batch = Batch(1 << 60, 1).encode(self._size)
            values = None, 1, 30_000, [("events", [(0, batch)])]
            self.request(kafka.PRODUCE, 7, values, self._answered)

    def _answered(self, values: Any) -> None:
        self.close("answered")
