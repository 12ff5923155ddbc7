"""Mode `notify`: throttle times in responses, and holds for clients that ignore them.

The response to a frame that leaves debt, or nearly does, contains `throttle_time_ms`. A client that waits for so long
is never held for its own debt. Otherwise its next data frame is held while the debt lasts; the throttle times of
earlier responses then cover that frame too, since the client must wait until it is paid.
"""

from typing import final

from proxy.enforcement.holds import Delay
from proxy.enforcement.identity import Identity
from proxy.enforcement.policies.policy import Policy, Reply
from proxy.enforcement.report import SOFT
from quotas.admission.decision import Decision
from quotas.admission.limit import Limit


@final
class Notify(Policy):
    """See the module."""

    __slots__ = ()

    def holds(
        self, identity: Identity, decision: Decision, reply: Reply, units: int, now_ns: int, *, again: bool
    ) -> bool:
        limit = decision.limit
        if limit is not None and not limit.rejects and reply is not Reply.NONE:
            wait_ns = decision.wait_ns + limit.queued_ns(units)
            identity.notice.extend(limit, now_ns + wait_ns, self._report.reason_of(decision))
        return super().holds(identity, decision, reply, units, now_ns, again=again)

    def leaves_debt(
        self, identity: Identity, decision: Decision, reply: Reply, now_ns: int, *, was_held: bool
    ) -> Delay | None:
        limit = decision.limit
        if limit is not None and reply is not Reply.NONE:
            wait_ns = decision.wait_ns + limit.queued_ns()
            identity.notice.extend(limit, now_ns + wait_ns, self._report.reason_of(decision))
            if not was_held:
                self._report.noticed(identity, decision, wait_ns, now_ns)
        return None

    def nears(self, identity: Identity, limit: Limit, wait_ns: int, now_ns: int) -> bool:
        identity.notice.extend(limit, now_ns + wait_ns, SOFT)
        self._report.neared(identity, limit, wait_ns, now_ns)
        return True


POLICY = Notify
