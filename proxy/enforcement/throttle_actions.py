"""Throttle actions: the mode of the limit in debt and the kind of response decide what the client receives.

| mode     | the response to a data request that leaves debt                                   |
|----------|-----------------------------------------------------------------------------------|
| `notify` | contains the wait as `throttle_time_ms`, and so do later ones until it is over    |
| `delay`  | is sent when the debt is paid, as brokers did before KIP-219                      |
| `pause`  | is unchanged                                                                      |
| `auto`   | Produce 6+, Fetch 8+: `notify`; older versions: `delay`; acks=0: `pause`          |

Java since 4.4 logs each throttle time as a warning. In `auto` it is notified of waits from `LEAST_LOGGED_NS` on, one
after the other (`Observer.notify`), because its requests could time out in these. For shorter ones `auto` is `pause`.
Clients that repeat a request whose response contains a throttle time are never notified
(`proxy.enforcement.habits`).

In every mode a data request or response that finds debt is held. A dry run holds, changes and delays nothing: it only
counts and logs what would have been done.
"""

from collections.abc import Iterable
from enum import Enum
from typing import Final, final

from proxy.enforcement.delay import Delay
from proxy.enforcement.identity import Client, Identity, throttle_time_ms
from proxy.enforcement.report import DELAY, NOTIFY, PAUSE, SOFT, Report, reason_of
from quotas.admission.limit import Limit
from quotas.time_units import NS_PER_MS

LONGEST_NOTICE_OF_SHARE_NS: Final = 100_000_000
"""The longest throttle time for a limit that a fleet shares: parts move within tens of milliseconds."""


class Reply(Enum):
    """What the response to a data request can do against debt."""

    NOTICE = "clients of this version wait for its throttle time"
    LATE = "they do not, or it has none: it can be late"
    NONE = "there is no response (acks=0)"


@final
class ThrottleActions:
    """Shared by all connections: the state of a connection is in its `Identity`.

    mode       `--throttle-mode`, for limits without their own; one of `quotas.modes.MODES`
    enforces   whether requests may be held, changed or refused; False in a dry run
    """

    __slots__ = ("enforces", "mode", "report")

    def __init__(self, report: Report, mode: str, *, enforces: bool) -> None:
        self.report: Final = report
        self.change(mode, enforces=enforces)

    def change(self, mode: str, *, enforces: bool) -> None:
        """Apply another mode from now on, to all connections."""
        self.mode = mode
        self.enforces = enforces
        self.report.is_dry_run = not enforces

    def mode_of(self, limit: Limit, reply: Reply = Reply.NOTICE) -> str:
        """`NOTIFY`, `DELAY` or `PAUSE`: the measure of a limit in debt against requests with this reply."""
        if reply is Reply.NONE:
            return PAUSE
        mode = limit.options.mode or self.mode
        if mode != "auto":
            return mode
        return NOTIFY if reply is Reply.NOTICE else DELAY

    def must_not_notify(self, identity: Identity, limit: Limit | None, wait_ns: int) -> bool:
        """Whether the client must not be notified of this wait, since it logs or repeats: the hold enforces it alone.
        `limit`: None for a bound of the proxy.
        """
        least_ns = identity.least_notice_ns
        if not least_ns or ((limit is not None and limit.options.mode) or self.mode) != "auto":
            return False
        return wait_ns < least_ns or (limit is not None and limit.whole is not None)

    # ---- data requests and responses

    def found_debt(
        self,
        identity: Identity,
        client: Client,
        limit: Limit,
        wait_ns: int,
        size: int,
        topics: tuple[str, ...],
        now_ns: int,
    ) -> None:
        """A data request or response of `size` bytes found debt for the first time; 0: its size is not known yet. It is
        held, and counted when the hold ends; a dry run counts it now. `topics`: see `Report.held`.
        """
        client.entity.data_during_notice += now_ns < identity.notice.until_ns
        wait_ns = limit.expected_ns(wait_ns, now_ns)
        if size:
            self.report.exceeded(client, limit, size)
        if self.enforces:
            self.report.held(client, limit, wait_ns, size, topics, now_ns)
        else:
            self.report.throttled(client, limit, PAUSE, reason_of(limit), wait_ns, wait_ns, now_ns)

    def notify_held(
        self, identity: Identity, limit: Limit, wait_ns: int, reply: Reply, queued: int, now_ns: int
    ) -> None:
        """A data request or response is held: in mode `notify` earlier responses contain the time until it has passed.

        queued   what is left of it, in the limit's unit
        """
        own_ns = limit.expected_time_of(queued)
        wait_ns = limit.expected_ns(wait_ns, now_ns) + limit.queued_ns(own_ns) + own_ns
        notifies = not limit.rejects and self.mode_of(limit, reply) == NOTIFY
        if notifies and not self.must_not_notify(identity, limit, wait_ns):
            identity.notice.extend(limit, now_ns + notified_ns(limit, wait_ns), reason_of(limit))

    def debt_left(
        self,
        identity: Identity,
        client: Client,
        limit: Limit,
        wait_ns: int,
        reply: Reply,
        now_ns: int,
        *,
        is_counted: bool,
    ) -> Delay | None:
        """A data request of `client`, or its response, passed and left debt. Returns the delay of its response.

        is_counted   as throttled
        """
        mode = self.mode_of(limit, reply)
        # The client's next frame is taken to be as large as the one that left this debt.
        debt_ns, wait_ns, reason = wait_ns, notified_ns(limit, wait_ns + limit.queued_ns(wait_ns)), reason_of(limit)
        if mode == PAUSE or self.must_not_notify(identity, limit, wait_ns):
            return None
        if not is_counted:
            self.report.throttled(client, limit, mode, reason, wait_ns, debt_ns, now_ns)
        if not self.enforces:
            return None
        if mode == DELAY:
            # Clients that do not wait for a throttle time find the delay in it; others would wait twice.
            delay_ms = throttle_time_ms(wait_ns, self.report.most_ns)
            return Delay(limit, now_ns, delay_ms, is_shown=reply is Reply.LATE)
        identity.notice.extend(limit, now_ns + wait_ns, reason)
        return None

    def soft(self, identity: Identity, limits: Iterable[Limit], reply: Reply, now_ns: int) -> None:
        """A data request passed without debt: in mode `notify` its response contains the longest wait until these
        limits are above their soft marks, from 1 ms on.
        """
        if not self.enforces or reply is not Reply.NOTICE:
            return
        longest_ns, nearest = NS_PER_MS - 1, None
        for limit in limits:
            wait_ns = limit.soft_wait_ns(now_ns)
            is_longest = wait_ns > longest_ns and self.mode_of(limit) == NOTIFY
            if is_longest and not self.must_not_notify(identity, limit, wait_ns):
                longest_ns, nearest = wait_ns, limit
        if nearest is not None:
            identity.notice.extend(nearest, now_ns + longest_ns, SOFT)
            self.report.throttled(identity.client, nearest, NOTIFY, SOFT, longest_ns, 0, now_ns)

    # ---- control requests

    def on_requests_debt(
        self, identity: Identity, limit: Limit, wait_ns: int, now_ns: int, *, is_counted: bool
    ) -> None:
        """A control request, which is never held, left or found this limit (`request_rate`) in debt for `wait_ns`.

        `is_counted`: another limit counts it as throttled
        """
        if self.mode_of(limit) == PAUSE or self.must_not_notify(identity, limit, wait_ns):
            return
        reason, wait_ns = reason_of(limit), notified_ns(limit, limit.expected_ns(wait_ns, now_ns))
        if self.enforces:
            identity.request_notice.extend(limit, now_ns + wait_ns, reason)
        if not is_counted:
            self.report.throttled(identity.client, limit, NOTIFY, reason, wait_ns, wait_ns, now_ns)


def notified_ns(limit: Limit, wait_ns: int) -> int:
    """How much of a wait a response contains, or is late by. A share of a fleet's limit grows once somebody wants more,
    and a client that waits for long at a small share sends nothing meanwhile: it would stay small.
    """
    return wait_ns if limit.whole is None else min(wait_ns, LONGEST_NOTICE_OF_SHARE_NS)
