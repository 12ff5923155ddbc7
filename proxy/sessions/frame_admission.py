"""Asks the limits about one data frame at a time, and does what their Decision says: pass, tell, or hold."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from protocol.apis import SHARE_FETCH
from protocol.fetch import lower_fetch_budget
from protocol.request_header import unpack_prefix
from proxy.sessions.buffers import READ_SIZE
from proxy.sessions.produce_usage import ProduceUsage
from proxy.sessions.request_kind import RequestKind
from quotas.admission.decision import ADMITTED, Decision
from quotas.admission.demand import Demand
from quotas.admission.limit import Limit, LimitSet, Ticket

if TYPE_CHECKING:
    from proxy.sessions.session import Session

#: A share consumer acknowledges with its next ShareFetch, and what it acquired is locked for it for 30 s by default
#: (``group.share.record.lock.duration.ms``, KIP-932): a hold takes a third of that at most.
LONGEST_SHARE_HOLD_NS = 10_000_000_000
#: However little is left, the fetches of a client may bring as much as it earns in this time, all together. With less a
#: consumer at its limit would ask thousands of times a second for a batch each.
SMALLEST_FETCH_NS = 10_000_000


class FrameAdmission:
    """For the data frames of one session, in their order.

    Its methods say whether the frame passes now. One that does has been charged; of one that does not, nothing may be
    forwarded: the session is held, and asks again with ``ticket`` when it is its turn.
    """

    __slots__ = ("_session", "_until_ns", "near_limit", "ticket")

    def __init__(self, session: "Session") -> None:
        self._session = session
        #: When the held frame passes at the latest; 0: there is none, or it waits as long as it takes.
        self._until_ns = 0
        #: The last data frame came near its limit or beyond.
        self.near_limit = False
        #: That of the held frame, while it is looked at again because it is its turn.
        self.ticket: Ticket | None = None

    def produce(self, kind: RequestKind, length: int, now_ns: int) -> bool:
        """A Produce request of ``length`` bytes."""
        decision, amounts = self._ask(self._session.limits.produce, length, now_ns)
        self.near_limit = decision is not ADMITTED or amounts is None or _is_near(amounts, length, now_ns)
        if decision is not ADMITTED and not self._act(decision, kind, length, now_ns, amounts):
            return False
        self.ticket = None
        return True

    def walked(self, usage: ProduceUsage, kind: RequestKind, buf: bytearray, pos: int, end: int, now_ns: int) -> bool:
        """The Produce request at ``pos`` of a client whose topics, records or producer ids are limited."""
        length, _, correlation_id = unpack_prefix(buf, pos)
        decision = usage.admit(kind, length, buf, pos, end, now_ns, self.ticket)
        self.near_limit = decision is not ADMITTED or _is_near(usage.amounts, length, now_ns)
        if decision is not ADMITTED and not self._act(decision, kind, length, now_ns, usage.amounts):
            usage.held()
            return False
        self.ticket = None
        usage.passed(kind, correlation_id, now_ns)
        return True

    def fetch(self, kind: RequestKind, buf: bytearray, pos: int, now_ns: int) -> bool:
        """The Fetch or ShareFetch request at ``pos``; one that passes asks for no more than the budget that is left.

        It is charged what the last one brought, and put right when its response is seen: so several that wait for one
        limit do not all pass at once.
        """
        session = self._session
        limits = session.limits
        fetch = limits.fetch
        reserved = 0
        if fetch.limits or limits.requests.limits:
            headroom = fetch.headroom(now_ns)
            expected = session.last_fetch_size
            decision, amounts = self._ask(fetch, expected, now_ns)
            if decision.admitted:
                reserved = expected
            elif not self._act(decision, kind, expected, now_ns, amounts):
                return False
            elif self.ticket is not None:
                session.shared.throttling.give_up(self.ticket)
            if kind.budget_at and not session.shared.config.dry_run:
                budget = max(headroom, fetch.earned(SMALLEST_FETCH_NS)) // (limits.open_fetches + 1)
                lower_fetch_budget(buf, pos + kind.header.body_offset, kind.version, budget)
        self.ticket = None
        self._until_ns = 0
        session.fetch_opened(reserved)
        return True

    def _ask(self, limits: LimitSet, size: int, now_ns: int) -> tuple[Decision, Mapping[Limit, int] | None]:
        """Ask these limits of bytes, and those of requests; the amounts, where they are not all of them `size`."""
        requests = self._session.limits.requests
        if not requests.limits:
            return limits.admit(size, now_ns, self.ticket), None
        demand = Demand()
        demand.add(limits.limits, size)
        demand.add(requests.limits, 1)
        return demand.admit(now_ns, self.ticket), demand.amounts

    def _act(
        self,
        decision: Decision,
        kind: RequestKind,
        length: int,
        now_ns: int,
        amounts: Mapping[Limit, int] | None,
    ) -> bool:
        """Do what a Decision other than "passes, no debt" asks; True when the frame passes now.

        ``amounts``: what the limits count of it, where they do not all count its bytes.
        """
        session = self._session
        throttling = session.shared.throttling
        if decision.admitted:
            throttling.notify_later(session, decision, now_ns)
            return True
        until_ns = None
        if kind.api_key == SHARE_FETCH:
            if not self._until_ns:  # it may be held again, by another limit or at new rates: the time runs on
                self._until_ns = now_ns + LONGEST_SHARE_HOLD_NS
            until_ns = self._until_ns
            if now_ns >= until_ns:
                session.limits.requests.charge(1, now_ns)
                return True
        limit = decision.limit
        return throttling.hold(
            session,
            decision,
            length,
            answered=kind.expects_response,
            now_ns=now_ns,
            units=None if amounts is None or limit is None else amounts.get(limit),
            ticket=self.ticket,
            until_ns=until_ns,
        )


def _is_near(amounts: Mapping[Limit, int], length: int, now_ns: int) -> bool:
    """Whether a read full of requests like this one, of ``length`` bytes, would bring one of the limits into debt."""
    return any(limit.algorithm.headroom(now_ns) * length < amount * READ_SIZE for limit, amount in amounts.items())
