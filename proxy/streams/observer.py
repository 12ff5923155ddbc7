"""The observer of one connection. Each event of its requests is reported here once, and clocks and reports listen.

| event               | reported by, each at one place             | listeners                                     |
|---------------------|--------------------------------------------|-----------------------------------------------|
| spend               | the gate, for a wait before the connection | the clock                                     |
| connected           | the session                                | the clock                                     |
| forwarded, sent     | `Requests`, for a request or a batch       | the clock; the sample of a response time      |
| answered            | the sample in flight (`pending.Timed`)     | the sample                                    |
| notified, throttled | the code that writes or reads such a time  | the clock, the report                         |
| enter, delayed      | the session, when a pump pauses or resumes | the clock (holds, bounds, …); the sample      |
| count               | the session, once a second                 | counters of client and broker, the report     |

Requests that find or leave debt report that to `ThrottleActions`, which decides what follows.

The clock's arithmetic is one timeline (`proxy.observability.client_times` explains the states). In this example, with
times in ms, the broker answers request 1 at 10, the response contains a notice of 30 ms, and the client sends request 2
at 100:

    0           10             40                          100        ▶ time
    │  broker   │    limit     │           client           │  broker
    ▲ forwarded ▲ notified     ┊                            ▲ forwarded(BROKER, now_ns=100, ended_ns=10)
      request 1   until 40     ┊ counted at 100, too          request 2

Nothing is counted at 10 or at 40. The call at 100 adds all three pieces: `broker` until the last response ended (10),
then, while nothing is in flight, `limit` until the client's notice ends (40), and `client` for the rest. So only the
first request after a time with nothing in flight costs anything. A pipeline that never runs dry reports nothing at all;
a check once a second (`enter`) adds up its time.

After a throttle time of its own, the broker does not read from this connection until that time has passed (KIP-219),
whether or not requests are in flight. With one of 300 ms in the response at 10, and request 2 sent at 100 and answered
at 400:

    0           10                           100           310         400
    │  broker   │             broker_quota                  │  broker   │

If both apply, the one that ends last counts while nothing is in flight. Some states last until the next report
(`stands`: a hold, a delay, a bound, a peer that takes no bytes), even if bytes pass in the meantime.

Once a second, the response time of one request is measured, from its last byte to the first byte of its response,
whatever else is in flight. So a pipeline is timed like a connection with one request at a time. If the proxy, the
client or a broker quota delays responses in the meantime, the sample is dropped.
"""

from typing import Final, final

from proxy.enforcement.identity import Identity, Notice
from proxy.enforcement.report import BOUNDS
from proxy.enforcement.throttle_actions import ThrottleActions
from proxy.observability.client_times import BROKER, BROKER_QUOTA, CLIENT, DATA, LIMIT, PROXY, STATES, Key, key_of
from proxy.observability.response_times import ResponseTimes
from quotas.admission.client_limits import ClientLimits
from quotas.time_units import NS_PER_MS

_ANY: Final = 1 << 30


class WaitClock:
    """Where the time of one connection goes: the timeline above. It also draws the requests that are timed.

    attention   a request is reported if at most this many others are in flight: 0, or any number while a sample is due
    spent_ns    the time by state, since it was last added to the counters of the client
    limits_ns   the time by limit, or bound of the proxy
    since_ns    when the current state began
    muted_ns    until when the broker does not read from this connection
    """

    __slots__ = (
        "_ends_ns",
        "_key",
        "_notice",
        "_notice_ns",
        "_sample_ns",
        "_stands",
        "_state",
        "attention",
        "limits_ns",
        "muted_ns",
        "since_ns",
        "spent_ns",
    )

    def __init__(self, now_ns: int) -> None:
        self.spent_ns = [0] * len(STATES)
        self.limits_ns: dict[Key, int] = {}
        self.since_ns = now_ns
        self.muted_ns = 0
        self.attention = 0
        #: When the request that is timed was forwarded; 0: no request is timed, or it does not count.
        self._sample_ns = 0
        self._state = CLIENT
        self._key: Key | None = None
        self._stands = False
        #: The state of a client that waits for a throttle time of the proxy, the limit, and when that time ends.
        self._notice: tuple[int, Key | None] = LIMIT, None
        self._notice_ns = 0
        #: When the last of the throttle times ends.
        self._ends_ns = 0

    def forwarded(self, state: int, before: int, now_ns: int, ended_ns: int) -> bool:
        """A request passes while `before` others are in flight. If none are, `state` begins: `DATA` if the broker may
        answer late on purpose, otherwise `BROKER`. `ended_ns`: when the last response ended.

        Returns whether the request must be timed. If so, the caller puts a `Timed` in flight, which reports `answered`.
        """
        if not before and not self._stands:
            since_ns = self.since_ns
            if self._ends_ns > since_ns:
                if ended_ns > since_ns:
                    self._count_until(ended_ns)
                self._state = CLIENT
                self._count_until(now_ns)
            else:  # the same arithmetic, without throttle times
                if ended_ns > since_ns:
                    self.spent_ns[self._state] += ended_ns - since_ns
                    since_ns = ended_ns
                self.spent_ns[CLIENT] += now_ns - since_ns
                self.since_ns = now_ns
            self._state = state
        if not self.attention or state != BROKER:
            return False
        self.attention, self._sample_ns = 0, now_ns
        return True

    def sent(self, now_ns: int) -> None:
        """The client has sent all of the only request in flight, which took until now."""
        if not self._stands:
            self.spend(CLIENT, now_ns)

    def notified(self, state: int, key: Key | None, until_ns: int) -> None:
        """A response contains a throttle time of the proxy, so the client sends nothing until `until_ns`."""
        if until_ns > self._notice_ns:
            self._notice, self._notice_ns = (state, key), until_ns
            self._ends_ns = max(self._ends_ns, until_ns)

    def muted(self, now_ns: int, until_ns: int) -> None:
        """A response contains a throttle time of the broker, which does not read from it until `until_ns`."""
        self._count_until(now_ns)
        self.muted_ns = max(self.muted_ns, until_ns)
        self._ends_ns = max(self._ends_ns, until_ns)

    def enter(self, state: int, now_ns: int, ended_ns: int, key: Key | None = None, *, stands: bool = False) -> None:
        """Enter a state. `ended_ns`: when the last response ended; 0: something is in flight. `key`: the limit.
        `stands`: the state lasts until the next call, whatever passes.
        """
        if self._stands or not ended_ns:
            self._count_until(now_ns)
        else:
            self.forwarded(CLIENT, 0, now_ns, ended_ns)
        self._state, self._key, self._stands = state, key, stands

    def spend(self, state: int, until_ns: int, key: Key | None = None) -> None:
        """Count all time up to `until_ns` as time in `state`."""
        spent_ns = until_ns - self.since_ns
        self.spent_ns[state] += spent_ns
        if key is not None and spent_ns:
            self.limits_ns[key] = self.limits_ns.get(key, 0) + spent_ns
        self.since_ns = until_ns

    def _count_until(self, now_ns: int) -> None:
        """Count the time up to `now_ns` as time in the current state, except the part that a throttle time covers."""
        state, since_ns = self._state, self.since_ns
        notice_ns = self._notice_ns if state == CLIENT else 0
        if self.muted_ns > since_ns and self.muted_ns >= notice_ns and state in {BROKER, DATA, CLIENT}:
            self.spend(BROKER_QUOTA, min(self.muted_ns, now_ns))
        elif notice_ns > since_ns:
            by, key = self._notice
            self.spend(by, min(notice_ns, now_ns), key)
        self.spend(state, now_ns, self._key)


@final
class Observer(WaitClock):
    """The observer of one connection: see above.

    sent_ns   when the last byte was forwarded of the latest request that was timed and that did not arrive at once
    """

    __slots__ = ("_actions", "_client", "_identity", "_protected", "_times", "sent_ns")

    def __init__(self, identity: Identity, actions: ThrottleActions, now_ns: int) -> None:
        super().__init__(now_ns)
        self._identity: Final = identity
        self._actions: Final = actions
        self._times: ResponseTimes | None = None
        #: The resource groups that yield to the client, with the target of its responses; for which client that is.
        self._protected: tuple[tuple[str, int], ...] = ()
        self._client: tuple[int, ClientLimits | None] = -1, None
        self.sent_ns = 0

    def connected(self, began_ns: int, now_ns: int, times: ResponseTimes) -> None:
        """A broker is connected. `began_ns`: when connecting began. `times`: the response times of that broker."""
        self.spend(CLIENT, began_ns)
        self.spend(BROKER, now_ns)
        self._times = times

    def delayed(self) -> None:
        """The proxy or the client delays responses, so that the timed one does not measure the broker."""
        self._sample_ns = 0

    def answered(self, sample_ns: int, since_ns: int, now_ns: int, *, is_produce: bool, is_delayed: bool) -> None:
        """The response to the timed request has begun.

        sample_ns    when the request was forwarded
        since_ns     when its last byte was forwarded
        is_delayed   the broker has delayed the response by its own quota
        """
        if sample_ns == self._sample_ns:
            self._sample_ns, times = 0, self._times
            if times is not None and self.muted_ns <= since_ns and not is_delayed:
                (times.produce if is_produce else times.others).observe(max(0, now_ns - since_ns) / 1e9)
                if self._protected and is_produce:
                    for group, target_ns in self._protected:
                        times.signal(group, target_ns).answered(since_ns, now_ns - since_ns)
                    self.attention = _ANY  # the next request, too: one a second would be too few to judge by

    def count(self, now_ns: int) -> None:
        """Add what was observed to the counters of client and broker. Called once a second, and at the end."""
        identity, times = self._identity, self._times
        if self._client != (identity.generation, identity.limits):
            self._client = identity.generation, identity.limits
            self._protected = identity.registry.yielding_to(*identity.limits.key)
        if not self._sample_ns:
            self.attention = _ANY
        elif times is not None:
            since_ns = max(self._sample_ns, self.sent_ns, self.muted_ns)
            for group, target_ns in self._protected:
                times.signal(group, target_ns).waits(now_ns - since_ns)
        if identity.wire_client_id is not None:  # the client is not known before its first request
            identity.entity.times.add(self.spent_ns, self.limits_ns)
            self._actions.report.blocked(identity.client, self.limits_ns, now_ns)
            self.spent_ns, self.limits_ns = [0] * len(STATES), {}

    # ---- throttle times

    def notify(self, notice: Notice, now_ns: int) -> int:
        """The throttle time in ms for a response that is written now, which the client is assumed to keep. 0: none."""
        throttle_ms, identity = notice.throttle_time_ms(now_ns), self._identity
        wait_ns = throttle_ms * NS_PER_MS
        if identity.least_notice_ns and throttle_ms:
            is_early = now_ns < identity.notified_until_ns
            if is_early or self._actions.must_not_notify(identity, notice.limit, wait_ns):
                return 0
            identity.notified_until_ns = now_ns + wait_ns
        if throttle_ms:
            state, key = LIMIT, key_of(notice.limit)
            if key is None:
                state, key = PROXY, BOUNDS.get(notice.reason)
            self.notified(state, key, now_ns + wait_ns)
        return throttle_ms

    def throttled_by_broker(self, throttle_ms: int, now_ns: int) -> None:
        """A response contains a throttle time of the broker, because of a quota of its own."""
        self.muted(now_ns, now_ns + throttle_ms * NS_PER_MS)
        self._actions.report.broker_throttled(self._identity.client, throttle_ms, now_ns)
