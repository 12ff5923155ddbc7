"""Two clients under one limit, with small and with large requests: its queue must be fair by bytes, not by requests."""

from typing import Final

from simulation import draws
from simulation.limits import DEBTOR
from simulation.producer import Producer, Shape
from simulation.world import World

HOST: Final = "10.0.5.2"
TOPIC: Final = "audit"
SIZES: Final = 500, 4_000
NUMBER: Final = 1 << 20
"""Before it are those of other clients."""
JUDGED: Final = draws.WITHOUT_EFFECT - draws.PROBED
"""Kinds of faults beside which both always have requests waiting."""


class Pair:
    """Both send more than the limit of the debtor lets pass, and do not care for throttle times."""

    def __init__(self, world: World) -> None:
        self._world = world
        proxy = world.proxies[0]
        self._clients = [
            Producer(
                *(world.kernel, world.network, HOST, DEBTOR, [proxy.listens_at], [TOPIC]),
                obeys=False,
                shape=Shape(rate=50_000, batch_bytes=size, records=1, in_flight=10, request_bytes=size),
                first=(NUMBER + number) << 32,
            )
            for number, size in enumerate(SIZES)
        ]
        world.clients += self._clients

    def judge(self) -> None:
        """What they have got differs by at most one of the largest requests of each connection, at both ends."""
        world = self._world
        if not world.kinds <= JUDGED or world.has_shared_waits:
            return
        small, large = (len(each.acked) * each.shape.batch_bytes for each in self._clients)
        most = 2 * sum(SIZES) * len(world.cluster.topics[TOPIC])
        world.checked["pairs of a limit"] += 1
        if abs(small - large) > most:
            world.fail(f"of one limit {small:,} bytes went to small requests and {large:,} to large ones")
