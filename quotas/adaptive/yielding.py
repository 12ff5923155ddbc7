"""A limit for clients that use what others leave: its rate moves between two bounds, so that the Produce responses of
protected clients stay below a target.

Once a second, `Yielding.decide` judges what each broker has answered to the protected clients since the last call (a
window). Only requests that were sent after the last cut count, since earlier ones do not show its effect. A window with
fewer than 20 responses decides nothing. It exceeds the target if more than 1 % of the responses, and at least 3, took
longer.

    3 of the last 6 windows of a broker exceed, the newest one too   rate * (1 - 0.25 * min(1, excess / target))
    the brokers are silent while requests wait                       the lower bound
    no window exceeds, and at least 75 % of the rate is used         rate * 1.04, or 1.15
    nothing was sent by protected clients for 10 s                   rate * 1.01
    anything else                                                    the rate stays

The windows of all brokers together count like those of one more broker, so few requests per broker can decide, too. If
one broker is slow, its own windows exceed. The excess is the mean time above the target of those responses that took
longer. If protected clients send to other brokers than before, because leaders have moved, the windows so far are
forgotten: the rate stays, and is not raised until there are as many new ones.

A rate that is raised until it is felt, cut, and raised again would be felt half of the time. So a rate rests for a
minute after each cut, five at most: it is raised only if there is room, which means that hardly any response takes
longer than half of the target. If it does not rest and there is room, it is raised by 15 %. Otherwise a rate that
begins at a hundredth of what is left would need two minutes to use it.

The numbers are those of cake-autorate, which shapes an Internet line by the delay of its packets, with the threshold of
Netflix's concurrency limits for the least number of samples. Times are integer nanoseconds.
"""

import math
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from quotas.time_units import NS_PER_SECOND

LEAST_SAMPLES: Final = 20
LEAST_ABOVE: Final = 3
MOST_ABOVE: Final = 0.01
WINDOWS: Final = 6
EXCEEDED: Final = 3
LARGEST_CUT: Final = 0.25
RAISE: Final = 1.04
CLIMB: Final = 1.15
"""Instead of `RAISE`, while there is room and the rest after the last cut is over."""
DRIFT: Final = 1.01
USED: Final = 0.75
CUT_GAP_NS: Final = NS_PER_SECOND - NS_PER_SECOND // 20
"""Between two cuts: a second, by a timer that may be a little early."""
SILENT_NS: Final = 3 * NS_PER_SECOND
"""A request that waits this long while its broker answers no other one; longer if the target is above a second."""
ABSENT_NS: Final = 10 * NS_PER_SECOND
FORGET_NS: Final = 10 * NS_PER_SECOND
"""Windows are forgotten at most this often, so clients that move all the time cannot keep a rate from being cut."""
REST_NS: Final = 60 * NS_PER_SECOND
MOST_REST_NS: Final = 300 * NS_PER_SECOND
EVEN_OUT: Final = 0.05
"""The part of the difference to the mean that rates for one target lose each second."""
AHEAD: Final = 1.25
NEARLY: Final = 1.2
"""Below `AHEAD`: a member that follows another one advertises nothing."""
STEP: Final = 1.1
TOGETHER: Final = ""
"""Stands for all brokers together."""


@dataclass(slots=True)
class Window:
    """The responses of a window, how many were above the target, and the sum of what they were above it. `waits_ns`:
    the longest that a request waits for its response. `near`: the responses above half the target.
    """

    count: int = 0
    above: int = 0
    excess_ns: int = 0
    waits_ns: int = 0
    near: int = 0

    @property
    def exceeds(self) -> bool | None:
        """Whether too many were above the target; None: it decides nothing."""
        if self.count < LEAST_SAMPLES:
            return None
        return self._is_much(self.above)

    def is_silent(self, silent_ns: int) -> bool:
        """Whether nothing was answered while a request waited for so long."""
        return not self.count and self.waits_ns >= silent_ns

    @property
    def has_room(self) -> bool:
        """Whether hardly any response took longer than half of the target."""
        return not self._is_much(self.near)

    def _is_much(self, count: int) -> bool:
        return count >= LEAST_ABOVE and count > MOST_ABOVE * self.count

    @property
    def mean_excess_ns(self) -> float:
        """Of the responses above the target."""
        return self.excess_ns / self.above if self.above else 0.0


class Signal:
    """The responses of one broker to protected clients in the present window."""

    __slots__ = ("_since_ns", "_target_ns", "_window")

    def __init__(self, target_ns: int) -> None:
        self._target_ns, self._since_ns = target_ns, 0
        self._window = Window()

    def answered(self, sent_ns: int, took_ns: int) -> None:
        """A response: when its request was sent, and how long it took."""
        if sent_ns > self._since_ns:
            window, excess_ns = self._window, took_ns - self._target_ns
            window.count += 1
            if excess_ns > 0:
                window.above += 1
                window.excess_ns += excess_ns
            if 2 * took_ns > self._target_ns:
                window.near += 1

    def waits(self, waits_ns: int) -> None:
        """A request has had no response for this long."""
        self._window.waits_ns = max(self._window.waits_ns, waits_ns)

    def take(self, since_ns: int, target_ns: int) -> Window:
        """End the window. In the next one, requests count that are sent after `since_ns`."""
        window, self._window = self._window, Window()
        self._since_ns, self._target_ns = since_ns, target_ns
        return window


class State(Enum):
    """What was decided, as shown to people."""

    CUT = "yields"
    FLOOR = "stops, because brokers are silent"
    RAISED = "raised"
    HELD = "held"
    DRIFTS = "drifts to its maximum"


class Cause(NamedTuple):
    """Why the rate was cut: what `broker` did in that window, the address or `TOGETHER`."""

    at_ns: int
    broker: str
    window: Window


@dataclass(frozen=True, slots=True)
class Terms:
    """The bounds of the rate in units per second, and the target of the protected clients' responses."""

    least: float
    most: float
    target_ns: int


class Yielding:
    """One rate that moves, in units per second.

    state   what the last call of `decide` did
    cause   of the last cut; None before the first one
    cut_ns  when the rate was last cut, here or by another member of a fleet
    counts  cuts, and windows in which some broker exceeded the target
    """

    def __init__(self, terms: Terms, rate: float, now_ns: int) -> None:
        self.terms = terms
        self.rate = rate
        self.state = State.HELD
        self.cause: Cause | None = None
        self.cut_ns = now_ns
        self.cuts = self.exceeded = 0
        self.seen_ns: int | None = None
        self._history: dict[str, deque[bool]] = {}
        #: Of the last windows: the brokers with requests, and those with enough of them.
        self._brokers: tuple[set[str], set[str]] = set(), set()
        self._forgot_ns = now_ns - FORGET_NS
        self._rests_until_ns = now_ns

    def watches(self, now_ns: int) -> bool:
        """Whether protected clients were seen lately."""
        return self.seen_ns is not None and now_ns - self.seen_ns < ABSENT_NS

    def decide(self, windows: Mapping[str, Window], now_ns: int, *, is_used: bool) -> float:
        """The rate from now on, from the windows that end now, by broker. `is_used`: at least `USED` of the rate is."""
        windows = {**windows, TOGETHER: _together(windows.values())}
        if windows[TOGETHER].count or windows[TOGETHER].waits_ns:
            self.seen_ns = now_ns
        silent_ns = max(SILENT_NS, 3 * self.terms.target_ns)
        stuck = next((name for name, each in windows.items() if name and each.is_silent(silent_ns)), None)
        self._forget_if_moved(windows, now_ns)
        worst = self._worst(windows)
        self.exceeded += any(each.exceeds for each in windows.values())
        if stuck is not None:
            self._lower(0, State.FLOOR, Cause(now_ns, stuck, windows[stuck]))
        elif worst is not None and now_ns - self.cut_ns >= CUT_GAP_NS:
            excess = windows[worst].mean_excess_ns / self.terms.target_ns
            shown = max(windows, key=lambda name: (windows[name].above, name))  # one broker, if all of them are its
            self._lower(self.rate * (1 - LARGEST_CUT * min(1, excess)), State.CUT, Cause(now_ns, shown, windows[shown]))
        elif not self.watches(now_ns):
            self._raise(DRIFT, State.DRIFTS)
        elif is_used and (pace := self._pace(windows.values(), now_ns)) > 1:
            self._raise(pace, State.RAISED)
        else:
            self.state = State.HELD
        self.move_to(self.rate)
        return self.rate

    def move_to(self, rate: float) -> None:
        """Another rule than the windows sets the rate."""
        self.rate = min(max(rate, self.terms.least), self.terms.most)

    def _pace(self, windows: Collection[Window], now_ns: int) -> float:
        """By how much a rate that is used is raised; 1: it stays."""
        found = {each.exceeds for each in windows}
        if True in found or False not in found or now_ns - self._forgot_ns < WINDOWS * NS_PER_SECOND:
            return 1.0
        has_room, has_rested = all(each.has_room for each in windows), now_ns >= self._rests_until_ns
        return CLIMB if has_room and has_rested else RAISE if has_room or has_rested else 1.0

    def _lower(self, rate: float, state: State, cause: Cause) -> None:
        self.state, self.cause, self.cut_ns = state, cause, cause.at_ns
        now_ns = cause.at_ns
        if self.rate > self.terms.least:
            self.cuts += 1
            self._rests_until_ns = min(max(self._rests_until_ns, now_ns) + REST_NS, now_ns + MOST_REST_NS)
        self.rate = rate

    def _raise(self, factor: float, state: State) -> None:
        self.state = state if self.rate < self.terms.most else State.HELD
        self.rate *= factor

    def _worst(self, windows: Mapping[str, Window]) -> str | None:
        """Adds the windows to those before. Of the brokers that make a cut due, the one with the largest excess."""
        self._history = {name: self._history.get(name) or deque(maxlen=WINDOWS) for name in windows}
        for name, window in windows.items():
            self._history[name].append(bool(window.exceeds))
        due = [name for name, each in windows.items() if each.exceeds and sum(self._history[name]) >= EXCEEDED]
        return max(due, key=lambda name: windows[name].mean_excess_ns, default=None)

    def _forget_if_moved(self, windows: Mapping[str, Window], now_ns: int) -> None:
        """Forget all windows if protected clients send to other brokers than before, while some of them stay."""
        used = {name for name, each in windows.items() if name and (each.count or each.waits_ns)}
        busy = {name for name in used if windows[name].count >= LEAST_SAMPLES}
        (used_before, busy_before), self._brokers = self._brokers, (used, busy)
        have_moved = busy - used_before or busy_before - used
        if busy & busy_before and have_moved and now_ns - self._forgot_ns >= FORGET_NS:
            self._forgot_ns = now_ns
            self._history.clear()


def _together(windows: Iterable[Window]) -> Window:
    found = list(windows)
    return Window(
        sum(each.count for each in found),
        sum(each.above for each in found),
        sum(each.excess_ns for each in found),
        max((each.waits_ns for each in found), default=0),
        sum(each.near for each in found),
    )


def evened_out(rates: Sequence[float]) -> list[float]:
    """What these rates become in a second if all of them are used and yield to the same clients: each moves towards
    their mean, and their sum stays. Factors alone would preserve what the first one had gained before the others came.
    """
    mean = sum(rates) / max(1, len(rates))
    return [rate + EVEN_OUT * (mean - rate) for rate in rates]


class Agreed(NamedTuple):
    """What applies in a fleet, and the own rate from now on."""

    applies: float
    own: float


def agreed(own: float, others: Iterable[int], *, watches: bool) -> Agreed:
    """One rate for a fleet, from the own one and from those that other members advertise: above zero by members that
    see protected clients, below zero (`-rate`) by members that only use the limit.

    The lowest rate of those that see protected clients applies. A member's own rate stays within `AHEAD` times of it,
    so that little changes when the one that held it down has gone. While no other member watches, one that watches
    begins with what is in use, and those that use the limit have the same rate.
    """
    found = list(others)
    watching, using = [each for each in found if each > 0], [-each for each in found if each < 0]
    if watching:
        lowest = min(watching)
        own = min(own, AHEAD * lowest) if watches else AHEAD * lowest
        return Agreed(min(own, lowest), own)
    if using:
        own = min(own, AHEAD * max(using)) if watches else max(own, *using)
    return Agreed(own, own)


def advertised(own: float, others: Iterable[int], *, watches: bool, uses: bool) -> int | None:
    """What a member advertises: see `agreed`. None: nothing, as its own rate holds nothing down; so a fleet of many
    members exchanges few records.
    """
    if watches:
        lowest = min((each for each in others if each > 0), default=None)
        return int(own) if lowest is None or own < NEARLY * lowest else None
    # In steps, because a rate that is raised changes each second.
    return -int(STEP ** math.floor(math.log(max(1.0, own), STEP))) if uses else None
