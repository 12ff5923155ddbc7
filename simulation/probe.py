"""Clients that wait for one known thing, to compare that with what the proxy says: its counters, and `/explain`."""

import json
from typing import Any, Final, NamedTuple

from proxy.observability.client_times import STATES
from simulation import http, kafka
from simulation.client import Client
from simulation.cluster import Batch
from simulation.draws import BROKERS, QUIET
from simulation.kernel import SECOND, START_NS, nothing
from simulation.limits import DEBTOR, LIMIT_OF_DEBTOR
from simulation.process import ProxyProcess
from simulation.scene import ADMIN_PORT, Scene

HOST: Final = "10.0.5.1"
TOLERANCE_NS: Final = SECOND
"""To connect, to send the first request and to fill buffers, and between two counts of the proxy."""
_PLACE: Final = ("events", 0)
_FIRST: Final = 1 << 61
_RECORDS_BYTES: Final = 1_400_000
"""More than the buffers of a connection hold."""
_IN_FLIGHT: Final = 5
LEAST_SECONDS: Final = 3.0
SILENT_NS: Final = 4 * SECOND
"""By then `/explain` has noticed that a broker answers nothing."""
MEDIAN: Final = 0.75


class Cause(NamedTuple):
    """The state that a client is in, and the verdicts that name it."""

    state: str
    verdicts: frozenset[str]


CAUSES: Final = {
    "freeze": Cause("broker", frozenset({"broker"})),
    "slow": Cause("broker", frozenset({"broker"})),
    "debt": Cause("limit", frozenset({"limit"})),
    "stuck": Cause("slow_reader", frozenset({"slow_reader"})),
    "still": Cause("client", frozenset({"client", "none"})),
}


class Probe(Client):
    """`kind`: that of the fault for which it waits; `node`: the broker that it asks, if that is the cause.

    freeze, slow  it asks for metadata, again and again
    debt          it sends more than its limit lets pass, and does not care for throttle times
    stuck         it fetches much, and does not take it
    still         it has asked once
    """

    def __init__(self, scene: Scene, proxy: ProxyProcess, kind: str, node: int | None = None) -> None:
        self.kind, self.node, self.proxy = kind, node, proxy
        self.began_ns = scene.kernel.now_ns
        self._has_asked = False
        self._offset = scene.cluster.topics[_PLACE[0]][_PLACE[1]].end
        if kind == "stuck":
            scene.cluster.topics[_PLACE[0]][_PLACE[1]].append(Batch(_FIRST, 1), _RECORDS_BYTES)
        name = DEBTOR if kind == "debt" else f"probe-{len(scene.probes)}"
        super().__init__(
            scene.kernel, scene.network, HOST, name, [proxy.listens_at], [_PLACE[0]], obeys=False, metadata_version=7
        )
        scene.probes.append(self)

    def work(self) -> None:
        node = self.leaders.get(_PLACE) if self.node is None else self.node
        link = None if node is None else self.link(node)
        while link is not None and link.is_free and len(link.in_flight) < (_IN_FLIGHT if self.kind == "debt" else 1):
            if self.kind == "debt":
                records = Batch(_FIRST, 1).encode(2 * LIMIT_OF_DEBTOR)
                link.request(kafka.PRODUCE, 7, (None, 1, 30_000, [(_PLACE[0], [(_PLACE[1], records)])]), nothing)
            elif self.kind == "stuck":
                wanted = [(_PLACE[0], [(_PLACE[1], -1, self._offset, -1, -1, _RECORDS_BYTES)])]
                link.request(kafka.FETCH, 7, (-1, 500, 1, _RECORDS_BYTES, 0, 0, -1, wanted, [], ""), nothing)
                link.is_reading = False
            elif self._has_asked and self.kind == "still":
                return
            else:
                self._has_asked = True
                link.request(kafka.METADATA, 7, ([(_PLACE[0], {})], False, False, False), nothing)

    def judge(self, scene: Scene) -> None:
        """Now it has waited for nothing else."""
        proxy, cause = self.proxy, CAUSES[self.kind]
        spent_ns = [each.times.spent_ns for each in proxy.server.metrics.entities if each.client_id == self.client_id]
        total_ns = sum(map(sum, spent_ns))
        state_ns = sum(each[STATES.index(cause.state)] for each in spent_ns)
        passed_ns = scene.kernel.now_ns - self.began_ns
        if not state_ns + TOLERANCE_NS >= total_ns >= passed_ns - 2 * TOLERANCE_NS:
            found = {name: round(sum(each[n] for each in spent_ns) / SECOND, 2) for n, name in enumerate(STATES)}
            scene.fail(
                f"{self.kind}: {self.client_id} was in {cause.state} for {passed_ns / SECOND:.2f} s, not {found}"
            )

        def explained(page: str) -> None:
            found: list[Any] = [each for each in json.loads(page or "[]") if each["client_id"] == self.client_id]
            verdicts = {each["verdict"] for each in found}
            # How slow a broker is, is a median of the last minute: before the fault it was fast.
            least_ns = MEDIAN * (scene.kernel.now_ns - START_NS) if self.kind == "slow" else SILENT_NS
            is_early = passed_ns < least_ns and self.kind in BROKERS
            if not verdicts <= cause.verdicts and not is_early:
                scene.fail(f"{self.kind}: /explain says {verdicts} of {self.client_id}, in a state of {cause.state}")

        http.ask(scene.network, proxy.listens_at[0], ADMIN_PORT, "/explain", explained)


def begin(scene: Scene, kind: str, proxy: ProxyProcess, lasts: float, node: int | None = None) -> Probe:
    """Judged shortly before its cause ends."""
    probe = Probe(scene, proxy, kind, node)
    allowed = QUIET | (BROKERS if kind in BROKERS else set())
    if lasts >= LEAST_SECONDS and scene.kinds <= allowed:
        scene.kernel.after(lasts - 0.5, lambda: probe.judge(scene))
    return probe
