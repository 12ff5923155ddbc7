"""Common to Produce and Fetch: asks the limits, holds at the frame boundary, reports debt to the measures."""

from collections.abc import Mapping

from proxy.enforcement.holds import Delay, Hold
from proxy.streams.connection import Connection, Handler, RequestKind, Requests
from proxy.streams.steps import HOLD, PASS
from quotas.admission.decision import ADMITTED, Decision
from quotas.admission.limit import Limit, Ticket
from quotas.admission.limit_set import LimitSet, admit_all

#: Largest debt that a dry run adds to. Data that waits for longer expires in its client before it is sent (Java's
#: `delivery.timeout.ms`), and after a change of the limits a dry run shows their effect within this time.
MOST_DRY_RUN_DEBT_NS = 120_000_000_000
#: Close to its limit a connection reads to the end of the current frame and this many bytes of the next.
HEAD_READ_SIZE = 128
#: A frame that was held is charged for at most this many bytes that have not arrived, or for what its limit earns in
#: this time if that is more: a client that announces a long frame and stalls delays others no longer.
LONGEST_CHARGE = 32_768
LONGEST_CHARGE_NS = 50_000_000


class DataHandler(Handler):
    """The base of the handlers whose requests are held. See the module."""

    __slots__ = ()

    def ask(
        self, requests: Requests, limits: LimitSet, size: int, now_ns: int
    ) -> tuple[Decision, Mapping[Limit, int] | None]:
        """Ask limits of bytes about `size` bytes, and `request_rate`; charge them if the frame passes.

        Returns the decision, and the amount for each limit where they do not all count all bytes of the frame: of one
        that was held, `size` may be a part.
        """
        connection = requests.connection
        turn = connection.turn
        ticket = None if turn is None else turn.ticket
        of_requests = connection.identity.limits.requests
        if not of_requests.limits and turn is None:
            return limits.admit(size, now_ns, ticket), None
        amounts = dict.fromkeys(limits.limits, size) | dict.fromkeys(of_requests.limits, 1)
        return admit_all(amounts, now_ns, ticket), amounts

    def leave_debt(
        self, connection: Connection, decision: Decision, kind: RequestKind, now_ns: int, *, was_held: bool
    ) -> Delay | None:
        """A request or its response left debt: see `Measures.after`. Returns the delay of the response.

        `was_held`: it has been counted as held.
        """
        identity = connection.identity
        return self.context.measures.after(identity, identity.client, decision, kind.reply, now_ns, was_held=was_held)

    def act(
        self,
        requests: Requests,
        kind: RequestKind,
        decision: Decision,
        size: int,
        amounts: Mapping[Limit, int] | None,
        now_ns: int,
        until_ns: int = 0,
    ) -> int:
        """Apply a decision. Returns `PASS` or `HOLD`.

        size       bytes of the frame
        amounts    the amount for each limit, where that is not `size`
        until_ns   when it passes even if the limits are in debt; 0: never
        """
        connection = requests.connection
        turn = connection.turn
        identity = connection.identity
        limit = decision.limit
        requests.is_charged = decision.admitted
        if decision is ADMITTED or limit is None:
            return PASS
        if decision.admitted:
            requests.delay = self.leave_debt(connection, decision, kind, now_ns, was_held=requests.is_counted)
            requests.is_counted = True
            return PASS
        if turn is None and not requests.is_counted:
            self.exceeds(requests, limit, size)
        units = size if amounts is None else amounts.get(limit, size)
        expected = self.expected(connection, limit, units)
        measures = self.context.measures
        if not measures.on_debt(identity, decision, kind.reply, expected, now_ns, again=turn is not None):
            requests.is_counted = True
            self.pass_in_debt(requests, decision, size, amounts, now_ns)
            return PASS
        ticket, since_ns = (Ticket(), now_ns) if turn is None else (turn.ticket, turn.since_ns)
        requests.hold = Hold(limit, size, units, ticket, since_ns, answered=kind.answered, until_ns=until_ns)
        requests.hold.uncertain = units - expected
        return HOLD

    def expected(self, connection: Connection, limit: Limit, units: int) -> int:
        """Of the amount of a held frame, what the limit is expected to charge."""
        return units

    def exceeds(self, requests: Requests, limit: Limit, size: int) -> None:
        """A frame of `size` bytes finds debt of a limit for the first time."""

    def pass_in_debt(
        self, requests: Requests, decision: Decision, size: int, amounts: Mapping[Limit, int] | None, now_ns: int
    ) -> None:
        """A dry run forwards a frame that finds debt."""


def longest_charge(limits: LimitSet) -> int:
    """Most bytes that one charge of a held frame covers before they have arrived."""
    return max(LONGEST_CHARGE, limits.earned(LONGEST_CHARGE_NS))
