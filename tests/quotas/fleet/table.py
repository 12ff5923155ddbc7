"""Two members around one log: the test says who states what, what is appended, and who reads when."""

from itertools import count

from quotas.fleet.caps import Caps
from quotas.fleet.parameters import WHOLE, Parameters
from quotas.fleet.record import Record, Statement

SECOND = 1_000_000_000
KEY = "client-id=etl,producer_byte_rate"
HALF = WHOLE // 2
#: Without floors, and with round periods: a lease of 10 s, 12 s of silence.
ROUND = Parameters(
    max_members=4, shares_fallback=False, ttl_ns=10 * SECOND, clock_error_ppm=0, margin_ns=2 * SECOND, floors_ppm=0
)


class Seat:
    """One member: its caps, and how much it has read."""

    def __init__(self, caps: Caps) -> None:
        self.caps = caps
        self.read = 0


class Table:
    """Members at one log that knows everything from its beginning; times are seconds."""

    def __init__(self, parameters: Parameters = ROUND) -> None:
        self.log: list[Record] = []
        self.now_ns = 100 * SECOND
        nonces = count(1)
        self.seats = [Seat(Caps("etl", parameters, lambda: next(nonces))) for _ in range(2)]
        for seat in self.seats:
            seat.caps.set_quota(KEY, WHOLE)
            seat.caps.begin(self.now_ns, is_covered=True)

    def wait(self, seconds: float) -> None:
        self.now_ns += round(seconds * SECOND)

    def sends(self, member: int, cap: int | None) -> Record:
        """It states a cap, or nothing; the record is not in the log yet."""
        wishes = {} if cap is None else {KEY: (cap, cap)}
        return self.seats[member].caps.state(wishes, self.now_ns)

    def append(self, *records: Record) -> None:
        self.log += records

    def states(self, member: int, cap: int | None) -> None:
        """It sends a record, which is appended at once."""
        self.append(self.sends(member, cap))

    def reads(self, *members: int, most: int = 1_000_000) -> None:
        """They read what they have not read yet."""
        for member in members:
            seat = self.seats[member]
            for record in self.log[seat.read : seat.read + most]:
                seat.caps.apply(record, self.now_ns)
                seat.read += 1

    def all_read(self) -> None:
        self.reads(*range(len(self.seats)))

    def begins(self, member: int, *, is_covered: bool) -> None:
        """It begins to read again: from the beginning, or from the end."""
        seat = self.seats[member]
        seat.caps.begin(self.now_ns, is_covered=is_covered)
        seat.read = 0 if is_covered else len(self.log)

    def use(self, member: int) -> int:
        """What it may use now, by its rate."""
        return self.seats[member].caps.allowed(KEY, self.now_ns)[0] - 1

    def uses(self) -> list[int]:
        return [self.use(member) for member in range(len(self.seats))]


def forged(member: str, seq: int, cap: int, quota: int = WHOLE, nonce: int = 0) -> Record:
    """A record that a test writes in the name of a member."""
    return Record("etl", member, seq, nonce, (Statement(KEY, quota, cap, cap),))
