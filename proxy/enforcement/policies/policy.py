"""The interface of a throttle mode."""

from abc import abstractmethod
from collections.abc import Mapping
from enum import Enum

from proxy.enforcement.holds import Delay, Hold
from proxy.enforcement.identity import Identity
from proxy.enforcement.report import Report
from quotas.admission.decision import Decision
from quotas.admission.limit import Limit


class Reply(Enum):
    """What the response to a data request can do against debt."""

    NOTICE = "clients of this version wait for its throttle time"
    LATE = "they do not, or it has none: it can be late"
    NONE = "there is no response (acks=0)"


class Policy:
    """Shared by all connections: the state of a connection is in its `Identity`.

    enforces   whether requests may be changed and refused; else they pass unchanged
    modes      the policies of all modes, by name
    """

    __slots__ = ("_report", "modes")

    enforces = True

    def __init__(self, report: Report, modes: Mapping[str, "Policy"]) -> None:
        self._report = report
        self.modes = modes

    def of(self, limit: Limit | None) -> "Policy":
        """The policy where this limit is in debt: that of its own mode, if it has one."""
        return self if limit is None or limit.mode is None else self.modes[limit.mode]

    def holds(
        self, identity: Identity, decision: Decision, reply: Reply, units: int, now_ns: int, *, again: bool
    ) -> bool:
        """Whether a data frame that finds debt is held; `again`: it was held before. Else it passes.

        `units`: what it is expected to be charged to the limit
        """
        if not again:
            self._report.held(identity, decision, now_ns)
            if identity.back_off.held(now_ns):
                identity.entity.notices_waited += 1
        return True

    @abstractmethod
    def leaves_debt(
        self, identity: Identity, decision: Decision, reply: Reply, now_ns: int, *, was_held: bool
    ) -> Delay | None:
        """A data frame passed and left debt. `was_held`: it has been counted as held.

        Returns the delay of its response.
        """

    def nears(self, identity: Identity, limit: Limit, wait_ns: int, now_ns: int) -> bool:
        """A data frame passed and left less than the soft mark; in `wait_ns` the limit is above it again.

        Returns whether its response contains that wait.
        """
        return False

    def stop_of(self, decision: Decision, now_ns: int) -> Delay | None:
        """The stop of reading after a data frame that left debt."""
        return self._report.stop_of(decision, now_ns)

    def overdraws_requests(self, identity: Identity, decision: Decision, now_ns: int, *, is_counted: bool) -> None:
        """A request of another kind, which is never held, left or found debt of `request_rate`.

        `is_counted`: another limit counts it as throttled.
        """
        limit = decision.limit
        if limit is None:
            return
        identity.request_notice.extend(limit, now_ns + decision.wait_ns, self._report.reason_of(decision))
        if not is_counted:
            self._report.noticed(identity, decision, decision.wait_ns, now_ns)

    def notice_until_ns(self, identity: Identity, decision: Decision, mode: str, now_ns: int) -> int:
        """The end of the wait in the response to one request; 0: none."""
        self._report.noticed(identity, decision, decision.wait_ns, now_ns, mode)
        return now_ns + decision.wait_ns

    def blocks(self, identity: Identity, reason: str, now_ns: int) -> None:
        """A bound of the proxy keeps the connection from being read."""
        self._report.blocked(identity, reason, now_ns)

    def exceeds(self, identity: Identity, limit: Limit, size: int) -> None:
        """Data of `size` bytes finds debt of a limit."""
        self._report.exceeded(identity, limit, size)

    def refused(self, identity: Identity, limit: Limit, size: int) -> None:
        """Records of `size` bytes are answered with an error."""
        self._report.refused(identity, limit, size)

    def released(self, identity: Identity, hold: Hold, now_ns: int) -> None:
        """A held frame passes."""
        identity.back_off.released(now_ns)
        self.count_hold(identity, hold, now_ns - hold.since_ns, now_ns)

    def count_hold(self, identity: Identity, hold: Hold, held_ns: int, now_ns: int) -> None:
        """A frame has passed that was held for `held_ns`, first by this hold."""
        self._report.released(identity, hold.limit, held_ns, now_ns)
