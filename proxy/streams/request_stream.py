"""Client to broker: finds the frames, and asks the handler of each what to do.

A frame's header is parsed (`protocol.request_header`); its payload is forwarded unchanged from the shared buffer.
Requests of the same kind differ only in length and correlation id: they pass in `batches`.
"""

from operator import itemgetter
from typing import Final, final

from protocol.errors import MalformedFrame
from protocol.produce_partitions import ProduceRequest
from protocol.produce_walk import Announced
from protocol.request_header import peek_request, unpack_prefix
from proxy.enforcement.holds import Hold, Overdraft
from proxy.enforcement.identity import NS_PER_MS
from proxy.enforcement.policies.policy import Reply
from proxy.streams.batches import Batches
from proxy.streams.connection import Collected, Connection, RequestKind, Requests
from proxy.streams.handlers.data import HEAD_READ_SIZE, longest_charge
from proxy.streams.handlers.produce import Produce
from proxy.streams.kinds import Kinds
from proxy.streams.memory import READ_SIZE
from proxy.streams.record_rest import RecordRest
from proxy.streams.steps import DRAINED, FULL, HOLD, NEED, PASS, PIECES_PER_STEP, REPLACE, STOP, YIELD
from quotas.admission.limit_set import LimitSet

#: In place of a collected frame: the proxy answers it.
_DROPPED: Final = Collected(bytearray())
#: Size of one read of a client that ignores notices: it will soon be over its limit again.
IGNORING_READ_SIZE = 65_536


class _Charge(Overdraft):
    """The charge of a partly forwarded Produce request, in case it never arrives whole.

    unpaid   bytes at its end that are not charged: they are charged as they arrive
    ahead    least number of bytes that the next charge covers, whether they have arrived or not
    rest     its records, if they are charged
    hold     its first hold, if it counts as held; `held_ns`: the time of all its holds, counted at its end
    """

    __slots__ = ("_requests", "ahead", "charged_ns", "held_ns", "hold", "limits", "rest", "unpaid")

    def __init__(self, requests: "RequestStream", limits: LimitSet, now_ns: int, unpaid: int) -> None:
        self._requests = requests
        self.limits = limits
        self.charged_ns = now_ns
        self.unpaid = unpaid
        self.ahead = longest_charge(limits) if unpaid else 0
        self.rest: RecordRest | None = None
        self.hold: Hold | None = None
        self.held_ns = 0

    def forget(self) -> None:
        """Nothing is charged any more for bytes that have not arrived."""
        holds = self._requests.connection.context.holds
        holds.remove_overdraft(self, self.limits.limits)
        if self.rest is not None:
            holds.remove_overdraft(self, self.rest.limits)

    def reduce(self, now_ns: int) -> None:
        self._requests.refund_rest(now_ns, longest_charge(self.limits))


@final
class RequestStream(Requests):
    """See the module, and `Stream`."""

    __slots__ = ("_batches", "_charge", "_kind", "_kinds", "_withheld")

    def __init__(self, connection: Connection, kinds: Kinds) -> None:
        super().__init__(connection)
        self._kinds = kinds
        longest = connection.context.config.security.max_request_bytes
        self._batches = Batches(longest, connection.max_in_flight)
        #: The kind of the latest request.
        self._kind: RequestKind | None = None
        #: The bytes of the current frame are collected, or `_DROPPED`; None: they are forwarded.
        self._withheld: Collected | None = None
        #: The charge of the current frame, if it is a Produce request.
        self._charge: _Charge | None = None

    @property
    def is_answered(self) -> bool:
        """Whether the client waits for a response to the latest request that was forwarded, perhaps in part."""
        return not self.is_collecting and (self._kind is None or self._kind.answered)

    @property
    def is_collecting(self) -> bool:
        """Whether the current frame is kept until it is complete, or held since then."""
        return self._withheld is not None and self._withheld is not _DROPPED

    @property
    def has_stalled(self) -> bool:
        """Whether nothing of the current frame arrived for a while, and its rest is charged as it arrives."""
        charge = self._charge
        return charge is not None and self.remaining > 0 and charge.unpaid > 0 and not charge.ahead

    def take(self, pos: int, end: int, now_ns: int) -> int:
        if self.remaining:
            return self._go_on(pos, end, now_ns)
        connection = self.connection
        identity = connection.identity
        if identity.generation != identity.registry.generation:
            identity.refresh(now_ns)
            connection.context.memory.release(self.holding)  # the frame may pass without being collected
        if len(connection.in_flight) >= connection.max_in_flight:
            return self._full()
        if connection.turn is None:
            if connection.is_stopped:
                step = self._stopped(now_ns)
                if step != PASS:
                    return step
            kind = self._kind
            if kind is not None and kind.batchable:
                passed_to = self._batches.take(self, kind, pos, end, now_ns)
                if passed_to > pos:
                    return self._end_batch(kind, passed_to, end, now_ns)
        return self._take_frame(pos, end, now_ns)

    def _full(self) -> int:
        """The step where no request may pass now."""
        return DRAINED if self.connection.is_closing else FULL

    def _stopped(self, now_ns: int) -> int:
        """The step while no request may pass; `PASS`: a stop is over."""
        connection = self.connection
        stop = connection.stop
        if stop is not None and connection.is_over(stop, now_ns):
            connection.set_stop(None)
        elif stop is not None:
            return STOP
        return self._full() if connection.is_stopped else PASS

    def _end_batch(self, kind: RequestKind, passed_to: int, end: int, now_ns: int) -> int:
        """A batch has passed; its last request may not have arrived whole."""
        if passed_to <= end and not self.near_limit and self.want == READ_SIZE:
            return passed_to
        if passed_to > end:
            self.is_charged, self.is_counted, self.unpaid = True, False, 0
            self.remaining = passed_to - end
            self._begin_frame(kind, now_ns, self._batches.cut)
        if self.near_limit:
            self._notify_early(kind, now_ns)
        self._set_want()
        return min(passed_to, end)

    def _notify_early(self, kind: RequestKind, now_ns: int) -> None:
        """Send a notice where a limit is below its soft mark, so that the client stops before there is debt."""
        context, identity = self.connection.context, self.connection.identity
        round_trip_ns = identity.back_off.round_trip_ns + identity.broker_ns
        if not round_trip_ns or kind.reply is not Reply.NOTICE or type(kind.handler) is not Produce:
            return
        limits = identity.limits
        near = [
            (wait_ns, limit)
            for limit in limits.produce.limits + limits.requests.limits
            if (wait_ns := limit.soft_wait_ns(round_trip_ns, now_ns)) >= NS_PER_MS
        ]
        for wait_ns, limit in sorted(near, key=itemgetter(0), reverse=True):
            if context.policy.of(limit).nears(identity, limit, wait_ns, now_ns):
                return  # it counts once, with the longest wait

    def _take_frame(self, pos: int, end: int, now_ns: int) -> int:
        """The step for the request that begins at `pos`."""
        connection = self.connection
        before = self._kind
        kind = self._kind_at(pos, end, now_ns)
        if kind is None:
            return NEED
        if kind is not before and kind.batchable and connection.turn is None:
            passed_to = self._batches.take(self, kind, pos, end, now_ns)
            if passed_to > pos:
                return self._end_batch(kind, passed_to, end, now_ns)
        self.is_counted = connection.turn is not None
        self.unpaid = 0
        step = kind.handler.admit(self, kind, pos, end, now_ns)
        if step == PASS:
            return self._pass(kind, pos, end, now_ns)
        if step == REPLACE:
            self._end_turn(now_ns)
            self._set_want()
        return step

    # ---- one frame

    def _kind_at(self, pos: int, end: int, now_ns: int) -> RequestKind | None:
        """The kind of the request at `pos`. None: more bytes are needed."""
        buf = self.buf
        kind = self._kind
        if kind is not None and kind.shortest <= kind.length_at(buf, pos, end) <= self._batches.longest:
            return kind
        pass_unknown_apis = self.connection.context.config.security.pass_unknown_apis
        header = peek_request(buf, pos, end, self._batches.longest, pass_unknown_apis=pass_unknown_apis)
        if header is None:
            self.want = self.full_read
            return None
        kind = self._kinds.kind_of(header, buf, pos)
        length = unpack_prefix(buf, pos)[0]
        if kind.shortest > length:
            raise MalformedFrame("the head of a request", length)
        if end - pos < kind.needed:
            self.want = kind.needed - (end - pos)
            return None
        identity = self.connection.identity
        if header.client_id != identity.wire_client_id:
            identity.identify(header.client_id, now_ns)
        self._kind = kind
        return kind

    def _pass(self, kind: RequestKind, pos: int, end: int, now_ns: int) -> int:
        """The request at `pos` passes: returns the position up to which its bytes may be forwarded now."""
        connection = self.connection
        length, _, correlation_id = unpack_prefix(self.buf, pos)
        kind.counter.value += 1
        if kind.answered:
            awaited = self.awaited
            connection.in_flight.append((correlation_id, kind if awaited is None else awaited))
            if self.near_limit:
                self._watch(kind, now_ns)
        else:
            connection.sent_unanswered = True
        self.awaited = None
        frame_end = pos + 4 + length
        passed_to = min(end, frame_end)
        if self.walk is not None:
            self.current = kind
            passed_to = self.walked_to
        if self.near_limit and not self.is_counted:
            self._notify_early(kind, now_ns)
        self.remaining = frame_end - passed_to
        if self.remaining:
            self._begin_frame(kind, now_ns)
        if connection.turn is not None:
            self._end_turn(now_ns, self._charge if self.remaining else None)
        self._set_want()
        return passed_to if passed_to > pos else YIELD

    def _watch(self, kind: RequestKind, now_ns: int) -> None:
        """Delay or time the response to the latest request. Brokers answer some others than Produce late on purpose."""
        is_timed = self.is_timing and type(kind.handler) is Produce
        if is_timed or self.delay is not None:
            self.watch_latest(self.delay, now_ns if is_timed else 0)

    def _end_turn(self, now_ns: int, charge: _Charge | None = None) -> None:
        """The current request is done; if it was held, that hold is over. `charge`: of one that passes in part."""
        connection = self.connection
        turn = connection.turn
        if turn is not None:
            connection.turn = None
            if charge is None:
                connection.context.policy.released(connection.identity, turn, now_ns)
            else:
                charge.hold = turn
                self._end_hold(charge, turn, now_ns)
            connection.context.holds.give_up(turn.ticket, now_ns)

    def _end_hold(self, charge: _Charge, hold: Hold, now_ns: int) -> None:
        """A part of a held frame passes. Its holds count together, at its end."""
        self.connection.identity.back_off.released(now_ns)
        charge.held_ns += now_ns - hold.since_ns

    def _begin_frame(self, kind: RequestKind, now_ns: int, cut: Announced | None = None) -> None:
        """A frame is partly forwarded. `cut`: its records, if no walk parses it."""
        self._forget_charge()
        connection = self.connection
        if self.is_charged and type(kind.handler) is Produce:
            limits = connection.identity.limits.produce
            self._charge = charge = _Charge(self, limits, now_ns, self.unpaid)
            usage = connection.usage
            if usage is not None and connection.identity.limits.counts_records:
                source = usage.walk if cut is None else cut
                if source is not None:
                    charge.rest = RecordRest(usage, source)
                    self.note_charge(now_ns)
            if self.near_limit:
                connection.context.holds.add_overdraft(charge, limits.limits, now_ns)

    def note_charge(self, now_ns: int) -> None:
        charge = self._charge
        if charge is None or charge.rest is None:
            return
        rest = charge.rest
        rest.note_charge(now_ns, is_near_limit=self.near_limit)
        if self.near_limit:
            holds = self.connection.context.holds
            if any(limit.waiters.waiting for limit in rest.limits):  # they do not wait for what has not arrived
                holds.credit_returned(rest.refund(self.remaining, now_ns))
            else:
                holds.add_overdraft(charge, rest.limits, now_ns)

    def _forget_charge(self) -> None:
        if self._charge is not None:
            self._charge.forget()
            self._charge = None

    def _set_want(self) -> None:
        """Close to the limit, read only to the end of the frame and the next header: a hold then keeps little."""
        if self.full_read != READ_SIZE and not self.remaining:
            self.end_first()
        if self.near_limit and self.connection.context.policy.enforces:
            charge = self._charge
            unpaid = charge.unpaid if charge is not None and charge.ahead else 0
            self.want = max(0, self.remaining - unpaid) + HEAD_READ_SIZE
        elif self.connection.is_closing and self.remaining:
            self.want = self.remaining
        else:
            self.want = IGNORING_READ_SIZE if self.connection.identity.back_off.ignores else self.full_read

    # ---- the rest of a frame

    def _go_on(self, pos: int, end: int, now_ns: int) -> int:
        """More of the current frame has arrived."""
        if self._withheld is not None:
            return self._withhold(self._withheld, pos, end, now_ns)
        charge = self._charge
        if charge is not None and charge.unpaid and charge.unpaid > self.remaining - (end - pos):
            paid = self.remaining - charge.unpaid
            if paid > 0 and self.walk is None:
                end = pos + paid
            else:
                step = self._charge_rest(charge, end - pos - paid, now_ns)
                if step != PASS:
                    return step
        if self.walk is not None:
            return self._walk_on(pos, end, now_ns)
        passed_to = min(end, pos + self.remaining)
        self.remaining -= passed_to - pos
        if charge is not None:
            self._arrived(charge, charge.rest, now_ns)
        if self.want != READ_SIZE or self.connection.is_closing:
            self._set_want()
        return passed_to

    def _withhold(self, withheld: Collected, pos: int, end: int, now_ns: int) -> int:
        """More of a frame has arrived that is not forwarded as it arrives."""
        arrived = min(end - pos, self.remaining)
        self.remaining -= arrived
        if withheld is not _DROPPED:
            if not self.remaining:
                self.remaining = arrived
                return self._take_collected(withheld, pos, now_ns)
            withheld.data += self.connection.context.memory.view[pos : pos + arrived]
        elif not self.remaining:
            self._withheld = None
        if self.want != READ_SIZE or self.connection.is_closing:
            self._set_want()
        self.output = b""
        self.resume_at = pos + arrived
        return REPLACE

    def _take_collected(self, collected: Collected, pos: int, now_ns: int) -> int:
        """The step for a request whose last bytes begin at `pos`, and the others have been collected."""
        connection, kind = self.connection, self._kind
        identity = connection.identity
        if identity.generation != identity.registry.generation:
            identity.refresh(now_ns)
        assert kind is not None  # noqa: S101 - for the type checker: set with the frame
        handler = kind.handler
        assert isinstance(handler, Produce)  # noqa: S101 - for the type checker: nothing else is collected
        memory = connection.context.memory
        if collected.request is None:
            collected.data += memory.view[pos : pos + self.remaining]
            collected.request = ProduceRequest(kind.version, collected.data, kind.header.body_offset - 4)
        if not collected.request.read(PIECES_PER_STEP):
            return YIELD
        self.is_counted, self.unpaid = connection.turn is not None, 0
        step = handler.admit_collected(self, kind, collected, now_ns)
        if step == REPLACE:
            self.resume_at = pos + self.remaining
            self.drop_collected()
            self._end_turn(now_ns)
            self._set_want()
        return step

    def _walk_on(self, pos: int, end: int, now_ns: int) -> int:
        walk, kind = self.walk, self.current
        assert walk is not None  # noqa: S101 - for the type checker: the caller has checked
        assert kind is not None  # noqa: S101 - for the type checker: set with the walk
        frame_end = pos + self.remaining
        known = min(end, frame_end)
        walk.work_left = PIECES_PER_STEP
        walked_to = walk.advance(self.buf, pos, known)
        self.remaining = frame_end - walked_to
        charge = self._charge
        if charge is not None:
            self._arrived(charge, charge.rest, now_ns)
        kind.handler.on_walked(self, now_ns)
        if not self.remaining:
            self.walk = self.current = None
        elif walk.work_left > 0:
            if frame_end <= end:
                raise MalformedFrame("a request's last field", self.remaining)
            self._set_want()
            return walked_to if walked_to > pos else NEED
        self._set_want()
        return walked_to if walked_to > pos else YIELD

    def _charge_rest(self, charge: _Charge, arrived: int, now_ns: int) -> int:
        """Charge a part of a frame that was not charged in full, to the limits in force now. `arrived`: bytes after
        those that are charged.

        Returns `PASS` or `HOLD`.
        """
        connection = self.connection
        connection.context.holds.remove_overdraft(charge, charge.limits.limits)
        identity = connection.identity
        if identity.generation != identity.registry.generation:
            identity.refresh(now_ns)
        kind = self._kind
        limits = identity.limits.produce
        size = min(charge.unpaid, max(arrived, charge.ahead))
        assert kind is not None  # noqa: S101 - for the type checker: set with the frame
        turn = connection.turn
        if turn is not None and not self.is_counted:
            self.is_counted = True
            charge.hold = turn
        decision = limits.admit(size, now_ns, None if turn is None else turn.ticket)
        handler = kind.handler
        assert isinstance(handler, Produce)  # noqa: S101 - for the type checker: nothing else is charged in full
        if handler.act(self, kind, decision, size, None, now_ns) == HOLD:
            return HOLD
        if self.delay is not None:
            self.watch_latest(self.delay, 0)
        charge.unpaid -= size
        charge.limits = limits
        charge.charged_ns = now_ns
        connection.turn = None
        if turn is not None:
            self._end_hold(charge, turn, now_ns)
            connection.context.holds.give_up(turn.ticket, now_ns)
        return PASS

    def _arrived(self, charge: _Charge, rest: RecordRest | None, now_ns: int) -> None:
        """More of a frame has arrived: charge its records that were refunded. At its end count its holds."""
        kind = self._kind
        if rest is not None and rest.unpaid is not None and kind is not None:
            identity = self.connection.identity
            if identity.generation != identity.registry.generation:
                identity.refresh(now_ns)
            handler = kind.handler
            assert isinstance(handler, Produce)  # noqa: S101 - for the type checker: only these are charged
            handler.on_late(self, kind, rest.charge_arrived(rest.unpaid, self.remaining, now_ns), now_ns)
        if charge.hold is not None and not self.remaining:
            self._count_hold(charge, now_ns)

    def _count_hold(self, charge: _Charge, now_ns: int) -> None:
        if charge.hold is not None:
            connection = self.connection
            connection.context.policy.count_hold(connection.identity, charge.hold, charge.held_ns, now_ns)
            charge.hold = None

    def refund_rest(self, now_ns: int, ahead: int = 0) -> None:
        """Give back what was charged for bytes that have not arrived; they are charged as they arrive, at least
        `ahead` bytes at once.
        """
        charge = self._charge
        if charge is None or not self.remaining:
            return
        holds = self.connection.context.holds
        if self.remaining > charge.unpaid:
            charge.limits.refund(self.remaining - charge.unpaid, charge.charged_ns, now_ns)
            holds.credit_returned(charge.limits.limits)
            charge.unpaid = self.remaining
            charge.ahead = ahead
        if charge.rest is not None:
            holds.credit_returned(charge.rest.refund(self.remaining, now_ns))

    def end(self, now_ns: int) -> None:
        """Nothing of the current frame arrives any more."""
        self.refund_rest(now_ns)
        if self._charge is not None:
            self._count_hold(self._charge, now_ns)
        self._forget_charge()
        self.drop_collected()

    def drop_collected(self) -> None:
        """Forget the current frame if it is collected: nothing of it has been forwarded."""
        if self.is_collecting:
            self._withheld = None
            self.remaining = 0
            self.connection.context.memory.release(self.holding)

    def collect(self, pos: int, upto: int, length: int) -> int:
        self._withheld = Collected(self.buf[pos + 4 : upto])
        self._forget_charge()
        self.remaining = pos + 4 + length - upto
        self.output = b""
        self.resume_at = upto
        return REPLACE

    def drop(self, pos: int, end: int, length: int) -> None:
        frame_end = pos + 4 + length
        kind = self._kind
        if kind is not None:
            kind.counter.value += 1
        self.output = b""
        self.resume_at = min(end, frame_end)
        self.remaining = frame_end - self.resume_at
        self._withheld = _DROPPED if self.remaining else None
        self._forget_charge()
