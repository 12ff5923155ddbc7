"""Mode `notify`: throttle times in responses, and holds for clients that ignore them.

The response to a frame that leaves debt contains `throttle_time_ms`. A client that waits for so long is never held for
its own debt. Otherwise its next data frame is held while the debt lasts.
"""

from proxy.enforcement.identity import Identity
from proxy.enforcement.policies.policy import Policy
from quotas.admission.decision import Decision


class Notify(Policy):
    """See the module."""

    __slots__ = ()

    def holds(self, identity: Identity, decision: Decision, now_ns: int, *, again: bool) -> bool:
        if not again:
            self._report.held(identity, decision, now_ns)
        return True

    def leaves_debt(self, identity: Identity, decision: Decision, now_ns: int, *, was_held: bool) -> None:
        limit = decision.limit
        if limit is None:
            return
        wait_ns = decision.wait_ns + limit.queued_ns()
        identity.notice.extend(limit, now_ns + wait_ns)
        if not was_held:
            self._report.noticed(identity, decision, wait_ns, now_ns)

    def overdraws_requests(self, identity: Identity, decision: Decision, now_ns: int, *, is_counted: bool) -> None:
        limit = decision.limit
        if limit is None:
            return
        identity.request_notice.extend(limit, now_ns + decision.wait_ns)
        if not is_counted:
            self._report.noticed(identity, decision, decision.wait_ns, now_ns)

    def notice_until_ns(self, identity: Identity, decision: Decision, mode: str, now_ns: int) -> int:
        self._report.noticed(identity, decision, decision.wait_ns, now_ns, mode)
        return now_ns + decision.wait_ns


POLICY = Notify
