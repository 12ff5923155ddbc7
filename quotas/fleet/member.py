"""One proxy of a fleet: records as bytes in, rates and the next record as bytes out."""

from collections.abc import Callable, Mapping
from heapq import nlargest
from itertools import islice
from typing import Final

from quotas.fleet.caps import NEVER, Caps
from quotas.fleet.parameters import NS_PER_MS, NS_PER_SECOND, WHOLE, Parameters
from quotas.fleet.policy import UNUSED, Claim, Demand, Outlook
from quotas.fleet.record import MAX_STATEMENTS, encode, is_key, parse

GAP_NS: Final = 50 * NS_PER_MS
"""Between two records of a member."""
MAX_KEYS: Final = 1_000
"""Keys of a member that want more than their floor; the others stay at it."""
RESTATED_AT_ONCE: Final = 50
"""Keys. What is more than that is restated in several records, one after the other, in the same time."""


class Member:
    """One member of a fleet. Rates, quotas and times as in `quotas.fleet.caps`.

    After `apply`, `plan`, `set_quota`, `begin` and `leave` the rates of the keys in `caps.changed` may be others: pass
    them on, and empty it, before a record that `plan` or `leave` returned is sent.
    """

    def __init__(self, fleet: str, parameters: Parameters, nonce: Callable[[], int], host: str = "") -> None:
        self.caps = Caps(fleet, parameters, nonce, host)
        self.heard: dict[str, int] = {}
        """The members that were heard lately, and when."""
        self.left_out = 0
        """Keys above `MAX_KEYS`."""
        self._parameters = parameters
        self._claims: dict[str, Claim] = {}
        self._sent_ns = self._restated_ns = NEVER

    def set_quota(self, name: str, quota: int, *, is_default: bool = False) -> None:
        """See `Caps.set_quota`. ValueError for a name that no record can contain."""
        if not is_key(name):
            raise ValueError(f"a key has at most 400 bytes of JSON, not {name[:100]!r}")
        self.caps.set_quota(name, quota, is_default=is_default)
        if not quota:
            self._claims.pop(name, None)

    def begin(self, now_ns: int, *, is_covered: bool) -> None:
        """See `Caps.begin`. The next `plan` returns a record."""
        self.caps.begin(now_ns, is_covered=is_covered)
        self._sent_ns = self._restated_ns = NEVER

    def apply(self, data: bytes, now_ns: int) -> None:
        """The next record of the log, any bytes. See `Caps.apply`."""
        record = parse(data)
        if record is None:
            self.caps.counts["void"] += 1
        elif record.fleet != self.caps.fleet:
            self.caps.counts["foreign"] += 1
        else:
            self.heard[record.member] = now_ns
            self.caps.apply(record, now_ns)

    def allowed(self, name: str, now_ns: int) -> tuple[int, int]:
        """See `Caps.allowed`."""
        return self.caps.allowed(name, now_ns)

    def plan(self, now_ns: int, demand: Mapping[str, Demand]) -> bytes | None:
        """The next record to produce, or None; a key without a demand is unused. Uses are lowered before it returns.

        To be called every 20 to 100 ms, and when a key becomes limited. All that is held is restated once in
        `restate_ns`. A record that states nothing is a sign of life; a member that waits to join sends one each second.
        """
        if now_ns - self._sent_ns < GAP_NS:
            return None
        is_joined = self.caps.is_joined(now_ns)
        pace_ns = self._parameters.restate_ns * RESTATED_AT_ONCE // max(RESTATED_AT_ONCE, len(self._claims))
        is_due = now_ns - self._restated_ns >= (pace_ns if is_joined else NS_PER_SECOND)
        wishes = self._wishes(demand, RESTATED_AT_ONCE * is_due, now_ns) if is_joined else {}
        if is_due:
            self._restated_ns = now_ns
            alive_ns = now_ns - self._parameters.overdue_ns
            self.heard = {member: heard_ns for member, heard_ns in self.heard.items() if heard_ns > alive_ns}
        return self._state(wishes, now_ns) if wishes or is_due else None

    def leave(self, now_ns: int) -> bytes:
        """The last record: nothing is held or wanted."""
        names = islice((name for name, claim in self._claims.items() if claim.cap or claim.want), MAX_STATEMENTS)
        return self._state(dict.fromkeys(names, (0, 0)), now_ns)

    def stated_quotas(self, name: str) -> dict[int, list[str]]:
        """Which members state which quota of a key."""
        quotas: dict[int, list[str]] = {}
        for member, entry in self.caps.keys[name].stated.items():
            quotas.setdefault(entry.quota, []).append(member)
        return quotas

    def _state(self, wishes: dict[str, tuple[int, int]], now_ns: int) -> bytes:
        for name, (cap, want) in wishes.items():
            claim = self._claims[name] = self._claims.pop(name)  # those stated longest ago come first
            claim.quota, claim.cap, claim.want, claim.stated_ns = self.caps.keys[name].quota, cap, want, now_ns
        self._sent_ns = now_ns
        return encode(self.caps.state(wishes, now_ns))

    def _wishes(self, demand: Mapping[str, Demand], restated: int, now_ns: int) -> dict[str, tuple[int, int]]:
        """Cap and want of the keys to state now; at most `restated` of them because it is time."""
        outlook = Outlook(self.caps.name, WHOLE // max(1, len(self.heard)), now_ns, self._parameters)
        wishes: dict[str, tuple[int, int]] = {}
        for name, want in self._wants(demand, outlook).items():
            key, claim = self.caps.keys[name], self._claims[name]
            cap = claim.next_cap(key, want, outlook)
            if cap is None and (claim.cap or claim.want):
                is_old = restated > 0 and now_ns - claim.stated_ns >= self._parameters.restate_ns // 2
                if is_old or claim.quota != key.quota:
                    cap = claim.cap
                    restated -= is_old
            if cap is not None:
                wishes[name] = cap, want
            elif claim.is_over(key, want) and now_ns >= claim.wants_until_ns:
                del self._claims[name]
        return dict(islice(wishes.items(), MAX_STATEMENTS))

    def _wants(self, demand: Mapping[str, Demand], outlook: Outlook) -> dict[str, int]:
        """What each key that takes part wants above its floor. A key takes part from when it is limited until its use
        has fitted its floor for two `ttl_ns`.
        """
        keys, claims = self.caps.keys, self._claims
        for name, each in demand.items():
            if each.is_limited and name in keys and keys[name].quota:
                claims.setdefault(name, Claim())
        wants = {name: claims[name].next_want(keys[name], demand.get(name, UNUSED), outlook) for name in claims}
        self.left_out = max(0, sum(want > 0 for want in wants.values()) - MAX_KEYS)
        if self.left_out:
            # One that holds a cap gives way to one that wants twice as much.
            largest = nlargest(MAX_KEYS, wants, key=lambda name: wants[name] * (2 if claims[name].cap else 1))
            wants = dict.fromkeys(wants, 0) | {name: wants[name] for name in largest}
        return wants
