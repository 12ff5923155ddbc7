"""Mode `auto`, the default: what the response to each request can do.

| response                                     | mode   |
|----------------------------------------------|--------|
| Produce 6+, Fetch 8+: clients wait (KIP-219) | notify |
| older versions                               | delay  |
| none (acks=0)                                | pause  |
"""

from collections.abc import Mapping
from typing import Final, final

from proxy.enforcement.holds import Delay
from proxy.enforcement.identity import Identity
from proxy.enforcement.policies.policy import Policy, Reply
from quotas.admission.decision import Decision
from quotas.admission.limit import Limit

MODE_OF: Final[Mapping[Reply, str]] = {Reply.NOTICE: "notify", Reply.LATE: "delay", Reply.NONE: "pause"}


@final
class Auto(Policy):
    """See the module."""

    __slots__ = ()

    def holds(
        self, identity: Identity, decision: Decision, reply: Reply, units: int, now_ns: int, *, again: bool
    ) -> bool:
        return self.modes[MODE_OF[reply]].holds(identity, decision, reply, units, now_ns, again=again)

    def leaves_debt(
        self, identity: Identity, decision: Decision, reply: Reply, now_ns: int, *, was_held: bool
    ) -> Delay | None:
        mode = self.modes[MODE_OF[reply]]
        return mode.leaves_debt(identity, decision, reply, now_ns, was_held=was_held)

    def nears(self, identity: Identity, limit: Limit, wait_ns: int, now_ns: int) -> bool:
        return self.modes["notify"].nears(identity, limit, wait_ns, now_ns)


POLICY = Auto
