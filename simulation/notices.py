"""Whether clients are told of their debt: what a response must contain by what has passed on the wire."""

from collections.abc import Sequence
from typing import Any, Final

from quotas.limit_kinds import CONSUMER_BYTE_RATE, PRODUCER_BYTE_RATE
from simulation.checks import MOST_THROTTLE_SECONDS
from simulation.draws import IDS
from simulation.kernel import MS, SECOND
from simulation.limits import of_client
from simulation.link import THROTTLES, Link, Sent
from simulation.taps import Line
from simulation.world import World

CHANGING: Final = {"reload", "lift", "kill", "drain", "pause"}
"""Kinds of faults after which a limit may be another one, or may be earned while nobody is told."""
BURST_SECONDS: Final = 1.0
LATE_SECONDS: Final = 0.25


class Notices:
    """The throttle time of a response reaches as far as the debt with all of a Produce request, or of a Fetch response,
    when the first byte of it passed.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        #: By client id and correlation id: until when the client must wait.
        self._owed_ns: dict[tuple[str, int], int] = {}
        # A request may wait at a shared limit after its client's own was charged, and others go on there.
        if not (world.has_shared_waits or IDS in world.parts or world.kinds & CHANGING):
            world.on_passing.append(self._passes)
            world.on_response.append(self._told)

    def _passes(self, line: Line) -> None:
        world, name = self._world, of_client(line.client_id)
        bound = world.limits.bounds.get((name, PRODUCER_BYTE_RATE if line.is_request else CONSUMER_BYTE_RATE))
        if bound is None or name in world.limits.cluster:
            return
        bound.add(0)
        owed_seconds = (bound.level + line.frame_bytes) / bound.rate - BURST_SECONDS
        self._owed_ns[line.client_id, line.correlation] = world.kernel.now_ns + int(owed_seconds * SECOND)

    def _told(self, link: Link, sent: Sent, values: Sequence[Any]) -> None:
        owed_ns = self._owed_ns.pop((link.client_id, sent.correlation), None)
        since, place = THROTTLES.get(sent.api, (0, 0))
        if owed_ns is None or not since or sent.version < since:
            return
        world, told_ms = self._world, values[place]
        world.checked["notices"] += 1
        owed_seconds = min(MOST_THROTTLE_SECONDS, (owed_ns - world.kernel.now_ns) / SECOND)
        if told_ms * MS < (owed_seconds - LATE_SECONDS) * SECOND:
            world.fail(f"{link.client_id} was told to wait for {told_ms:,} ms, and owes {1_000 * owed_seconds:,.0f} ms")
