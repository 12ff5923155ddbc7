"""`--dry-run`: all requests pass unchanged; the measures of other modes are counted and logged."""

from typing import final

from proxy.enforcement.holds import Delay
from proxy.enforcement.identity import Identity
from proxy.enforcement.policies.policy import Policy, Reply
from quotas.admission.decision import Decision
from quotas.admission.limit import Limit


@final
class DryRun(Policy):
    """See the module."""

    __slots__ = ()

    enforces = False

    def of(self, limit: Limit | None) -> Policy:
        return self

    def holds(
        self, identity: Identity, decision: Decision, reply: Reply, units: int, now_ns: int, *, again: bool
    ) -> bool:
        if not again:  # held before enforcement was switched off, and counted
            self._report.would_hold(identity, decision, now_ns)
        return False

    def stop_of(self, decision: Decision, now_ns: int) -> Delay | None:
        return None

    def leaves_debt(
        self, identity: Identity, decision: Decision, reply: Reply, now_ns: int, *, was_held: bool
    ) -> Delay | None:
        limit = decision.limit
        if limit is not None and not was_held:
            self._report.noticed(identity, decision, decision.wait_ns + limit.queued_ns(), now_ns)
        return None

    def overdraws_requests(self, identity: Identity, decision: Decision, now_ns: int, *, is_counted: bool) -> None:
        if not is_counted:
            self._report.noticed(identity, decision, decision.wait_ns, now_ns)

    def notice_until_ns(self, identity: Identity, decision: Decision, mode: str, now_ns: int) -> int:
        self._report.noticed(identity, decision, decision.wait_ns, now_ns, mode)
        return 0


POLICY = DryRun
