"""`--dry-run`: all requests pass unchanged; the measures of other modes are counted and logged."""

from typing import final

from proxy.enforcement.identity import Identity
from proxy.enforcement.policies.policy import Policy
from quotas.admission.decision import Decision


@final
class DryRun(Policy):
    """See the module."""

    __slots__ = ()

    enforces = False

    def holds(self, identity: Identity, decision: Decision, now_ns: int, *, again: bool) -> bool:
        if not again:  # held before enforcement was switched off, and counted
            self._report.would_hold(identity, decision, now_ns)
        return False

    def leaves_debt(self, identity: Identity, decision: Decision, now_ns: int, *, was_held: bool) -> None:
        limit = decision.limit
        if limit is not None and not was_held:
            self._report.noticed(identity, decision, decision.wait_ns + limit.queued_ns(), now_ns)

    def overdraws_requests(self, identity: Identity, decision: Decision, now_ns: int, *, is_counted: bool) -> None:
        if not is_counted:
            self._report.noticed(identity, decision, decision.wait_ns, now_ns)

    def notice_until_ns(self, identity: Identity, decision: Decision, mode: str, now_ns: int) -> int:
        self._report.noticed(identity, decision, decision.wait_ns, now_ns, mode)
        return 0


POLICY = DryRun
