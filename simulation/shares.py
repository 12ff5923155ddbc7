"""What the members of a fleet may use of their shared limits, looked at after each record that one sends or reads."""

from typing import Final

from proxy.fleet.use import PER_UNIT
from quotas.fleet.parameters import WHOLE
from quotas.fleet.record import MAX_QUOTA
from simulation import draws
from simulation.kernel import SECOND
from simulation.process import ProxyProcess
from simulation.world import World

LOOK_SECONDS: Final = 0.001
"""By then the members have applied what has just happened."""
HEARD_NS: Final = 6 * SECOND
"""Within this all members know the quotas of the others, where nothing is wrong: S4 in `quotas.fleet.caps`."""


class Shares:
    """What the buckets let pass of a limit, by their own clocks and beyond the floors, is at most what there is of it.

    That is the lowest quota that a member has; while members learn of a change, it may be the one before. A member
    without a lease may use a part of each limit instead (`--fleet-fallback`).
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._is_planned = False
        #: By process and key: the quotas that it had, with the time since which it had each.
        self._quotas: dict[tuple[ProxyProcess, str], list[tuple[int, int]]] = {}
        #: Whether members hear of each other, so that the lowest quota counts.
        self._all_hear = not world.kinds & (draws.OF_FLEETS | draws.RESTARTING | {"pause"})
        world.topic.on_use = self._plan

    def _plan(self) -> None:
        if not self._is_planned:
            self._is_planned = True
            self._world.kernel.after(LOOK_SECONDS, self._look)

    def _look(self) -> None:
        self._is_planned = False
        world = self._world
        used: dict[str, int] = {}
        whole: dict[str, int] = {}
        for proxy in world.proxies:
            fleet = getattr(proxy.server, "fleet", None) if proxy.exit_code is None else None
            for shared in fleet.limits if fleet is not None else ():
                name, bucket = shared.key, shared.limit.algorithm
                key = shared.member.caps.keys[name]
                most, floor = key.split(world.max_members)
                bucket.headroom(proxy.clock())  # or it has not noticed that its lease has ended
                rate = bucket.rate.numerator * PER_UNIT // bucket.rate.denominator
                if world.fallback == "floor" or rate * world.max_members > int(shared.rate * PER_UNIT):
                    used[name] = used.get(name, 0) + max(0, rate - floor)
                if self._all_hear:
                    quota = self._highest(proxy, name, key.quota)
                    whole[name] = min(whole.get(name, quota), quota - quota * key.floors_ppm // WHOLE)
                else:
                    whole[name] = max(whole.get(name, 0), most)
        world.checked["sums of a fleet's shares"] += len(used)
        for name, rate in used.items():
            if rate > whole[name]:
                world.fail(f"{name}: the members may use {100 * rate / whole[name]:.2f} % of it")

    def _highest(self, proxy: ProxyProcess, name: str, quota: int) -> int:
        """Of those that a member has had lately; of one that began to have any, anything."""
        now_ns, known = self._world.kernel.now_ns, self._quotas.setdefault((proxy, name), [])
        if not known or known[-1][1] != quota:
            known += [(now_ns, quota)] if known else [(now_ns, MAX_QUOTA), (now_ns, quota)]
        while len(known) > 1 and known[1][0] < now_ns - HEARD_NS:
            del known[0]
        return max(quota for _, quota in known)
