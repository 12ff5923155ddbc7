"""The interface of a throttle mode."""

from abc import abstractmethod

from proxy.enforcement.holds import Hold
from proxy.enforcement.identity import Identity
from proxy.enforcement.report import Report
from quotas.admission.decision import Decision


class Policy:
    """Shared by all connections: the state of a connection is in its `Identity`.

    enforces   whether requests may be changed and refused; else they pass unchanged
    """

    __slots__ = ("_report",)

    enforces = True

    def __init__(self, report: Report) -> None:
        self._report = report

    @abstractmethod
    def holds(self, identity: Identity, decision: Decision, now_ns: int, *, again: bool) -> bool:
        """Whether a data frame that finds debt is held; `again`: it was held before. Else it passes."""

    @abstractmethod
    def leaves_debt(self, identity: Identity, decision: Decision, now_ns: int, *, was_held: bool) -> None:
        """A data frame passed and left debt. `was_held`: it has been counted as held."""

    @abstractmethod
    def overdraws_requests(self, identity: Identity, decision: Decision, now_ns: int, *, is_counted: bool) -> None:
        """A request of another kind, which is never held, left or found debt of `request_rate`.

        `is_counted`: another limit counts it as throttled.
        """

    @abstractmethod
    def notice_until_ns(self, identity: Identity, decision: Decision, mode: str, now_ns: int) -> int:
        """The end of the wait in the response to one request; 0: none."""

    def released(self, identity: Identity, hold: Hold, now_ns: int) -> None:
        """A held frame passes."""
        self._report.released(identity, hold, now_ns)
