"""`Caps` with one rule broken each: the exhaustive model must find them.

Compiled classes have no such subclasses: tests with mutants carry `@pytest.mark.pure`.
"""

from collections.abc import Callable, Mapping

from quotas.fleet.caps import NEVER, Caps, Entry, Key
from quotas.fleet.parameters import WHOLE, Parameters
from quotas.fleet.record import Record, Statement


class CutStatedFirst(Caps):
    """S2: states a lower cap before the use is lowered: until it reads it back."""

    def state(self, wishes: Mapping[str, tuple[int, int]], now_ns: int) -> Record:
        uses = {name: self.keys[name].use for name in wishes}
        record = super().state(wishes, now_ns)
        for name, use in uses.items():
            self.keys[name].use = use
        return record

    def _take(self, record: Record, statement: Statement, sent_ns: int | None, now_ns: int) -> None:
        super()._take(record, statement, sent_ns, now_ns)
        if sent_ns is not None:
            key = self.keys[statement.key]
            key.use = min(key.use, self._most(key, key.stated[self.name]))


class UnreadIgnored(Caps):
    """S2: only the cap that was read back."""

    def _most(self, key: Key, own: Entry) -> int:
        return own.cap


class RaisedAtOnce(Caps):
    """S3: does not wait until the claim is read back."""

    def state(self, wishes: Mapping[str, tuple[int, int]], now_ns: int) -> Record:
        record = super().state(wishes, now_ns)
        for name, (cap, _) in wishes.items():
            key = self.keys[name]
            own = key.stated.get(self.name)
            if own is not None and now_ns < key.lease_ns:
                key.use = max(key.use, min(cap, WHOLE - (key.total - own.cap)))
        return record


class DoublesValid(Caps):
    """S1: every statement is valid."""

    def _is_valid(self, seq: int, last: Entry) -> bool:
        return True


class LeaseFromReading(Caps):
    """S5: the lease begins when the record is read back."""

    def _take(self, record: Record, statement: Statement, sent_ns: int | None, now_ns: int) -> None:
        super()._take(record, statement, sent_ns if sent_ns in (None, NEVER) else now_ns, now_ns)


class LeaseRenewedFirst(Caps):
    """S5: what may renew a lease is applied before its end is noticed."""

    def _lapse(self, key: Key, now_ns: int) -> None:
        pass

    def allowed(self, name: str, now_ns: int) -> tuple[int, int]:
        super()._lapse(self.keys[name], now_ns)
        return super().allowed(name, now_ns)


class LeaseForEver(Caps):
    """S5: a use does not end."""

    def _lapse(self, key: Key, now_ns: int) -> None:
        pass


class ShortSilence(Caps):
    """S6: others are dropped before their leases are over."""

    def __init__(self, fleet: str, parameters: Parameters, nonce: Callable[[], int], host: str = "") -> None:
        super().__init__(fleet, parameters, nonce, host)
        self._overdue_ns = self.parameters.ttl_ns // 2


class NoMargin(Caps):
    """S6: without the difference between clocks."""

    def __init__(self, fleet: str, parameters: Parameters, nonce: Callable[[], int], host: str = "") -> None:
        super().__init__(fleet, parameters, nonce, host)
        self._overdue_ns = self.parameters.lease_ns


class DroppedByReading(Caps):
    """S6: by the time of reading, not of an own sending."""

    def _take(self, record: Record, statement: Statement, sent_ns: int | None, now_ns: int) -> None:
        horizon_ns = self._horizon_ns
        if horizon_ns != NEVER:
            self._horizon_ns = now_ns
        super()._take(record, statement, sent_ns, now_ns)
        self._horizon_ns = horizon_ns


class JoinsAtOnce(Caps):
    """S7: knows what it has not read."""

    def begin(self, now_ns: int, *, is_covered: bool) -> None:
        super().begin(now_ns, is_covered=True)


class LeaseFromBefore(Caps):
    """S7: records that were sent before it began to read count."""

    def begin(self, now_ns: int, *, is_covered: bool) -> None:
        sent = getattr(self, "_sent", {})
        super().begin(now_ns, is_covered=is_covered)
        self._sent = sent
