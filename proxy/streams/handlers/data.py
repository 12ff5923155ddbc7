"""Common to Produce and Fetch: holds at the frame boundary, and the rest of a frame that did not arrive in time."""

from typing import Final

from proxy.enforcement.data_frame import DataFrame
from proxy.enforcement.holds import LEAST_PORTION
from proxy.streams.handler import Handler, RequestKind, Requests
from proxy.streams.steps import HOLD, PASS
from quotas.admission.decision import ADMITTED, Decision
from quotas.admission.limit_set import admit_part
from quotas.admission.passage import Passage, earned

#: Largest debt that a dry run adds to. Data that waits for longer expires in its client before it is sent (Java's
#: `delivery.timeout.ms`), and after a change of the limits a dry run shows their effect within this time.
MOST_DRY_RUN_DEBT_NS: Final = 120_000_000_000
#: Close to its limit a connection reads to the end of the current frame and this many bytes of the next.
HEAD_READ_SIZE: Final = 128
#: A frame that lapsed asks for at least this many bytes at once, or what its limits earn in this time if that is more.
LEAST_PORTION_NS: Final = 50_000_000


class DataHandler(Handler):
    """The base of the handlers whose requests are held."""

    __slots__ = ()

    def is_held(
        self,
        requests: Requests,
        kind: RequestKind,
        decision: Decision,
        size: int,
        units: int,
        now_ns: int,
        until_ns: int = 0,
    ) -> bool:
        """Whether a refused frame is held: then return `HOLD`. A dry run lets it pass.

        size       its bytes; 0: those of its response count. `units`: its amount in the unit of the limit
        until_ns   when it passes even if the limit is in debt; 0: never
        """
        connection, limit = requests.connection, decision.limit
        frame = connection.frame
        if limit is None:
            return False
        again = frame is not None and (frame.counted_by is not None or frame.rest_bytes > 0)
        if size and not again:
            self.context.measures.report.exceeded(connection.identity.client, limit, size)
        if not self.context.measures.on_debt(connection.identity, decision, kind.reply, units, now_ns, again=again):
            requests.is_counted = True
            return False
        if frame is None:
            frame = connection.frame = DataFrame(size, answered=kind.answered)
        frame.until_ns = until_ns
        frame.hold(limit, units, now_ns)
        return True

    def leaves_debt(self, requests: Requests, kind: RequestKind, decision: Decision, now_ns: int) -> None:
        """A frame passes and leaves debt, perhaps late in it."""
        identity = requests.connection.identity
        was_held = requests.is_counted
        requests.delay = (
            self.context.measures.after(identity, identity.client, decision, kind.reply, now_ns, was_held=was_held)
            or requests.delay
        )
        requests.is_counted = requests.near_limit = True

    def ask_rest(self, requests: Requests, kind: RequestKind, frame: DataFrame, arrived: int, now_ns: int) -> int:
        """More of a frame has arrived than it has reserved: ask its limits about a portion.

        Returns `PASS` or `HOLD`.
        """
        holds, registry = self.context.holds, self.context.registry
        if frame.passage is not None:
            holds.release(frame.passage)
            frame.lapse()
        at_once = min(earned(frame.rest, frame.rest_bytes, LEAST_PORTION_NS), default=0)
        size = min(frame.rest_bytes, max(arrived, LEAST_PORTION, at_once))
        whole = frame.portion(size)
        portion = {limit: units for limit, units in whole.items() if registry.is_in_use(limit)}
        requests.is_counted = True
        decision, passage = admit_part(portion, size, 0, now_ns, frame.ticket)
        if passage is None:
            units = portion.get(decision.limit, size) if decision.limit is not None else size
            if self.is_held(requests, kind, decision, frame.size, units, now_ns):
                return HOLD
            passage = Passage(portion, size)
        frame.take(whole, size)
        self.passes(frame, passage, now_ns)
        if decision.admitted and decision is not ADMITTED:
            self.leaves_debt(requests, kind, decision, now_ns)
            if requests.delay is not None:
                requests.delay_latest(requests.delay)
        return PASS

    def passes(self, frame: DataFrame, passage: Passage, now_ns: int) -> None:
        """A frame passes that has not arrived whole."""
        frame.pass_on(passage, now_ns)
        self.context.holds.reserve(passage, now_ns)
