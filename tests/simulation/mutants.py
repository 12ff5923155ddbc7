"""The product with one rule broken each. The simulated world must find them, each within 200 seeds.

Compiled classes cannot be changed: tests with mutants carry `@pytest.mark.pure`.
"""

from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any, Final, NamedTuple

import pytest

from proxy.brokers import nodes
from proxy.brokers.places import Placement, own_port, placed
from proxy.enforcement.identity import Notice
from proxy.enforcement.throttle_actions import ThrottleActions
from proxy.observability.client_times import BROKER_QUOTA
from proxy.observability.entities import Entities
from proxy.process.server import Server
from proxy.sessions.session import Session
from proxy.sessions.wakeups import Wakeups
from proxy.streams import limited_request, observer
from proxy.streams.handlers.fetch import FetchRequest
from proxy.streams.handlers.produce import ProduceRequest
from proxy.streams.limited_request import LimitedRequest
from proxy.streams.memory import READ_SIZE, MemoryPool
from quotas.admission import frame
from quotas.admission.client_limits import ClientLimits
from quotas.admission.fair_queue import FairQueue
from quotas.admission.frame import Verdict
from quotas.admission.limit import Limit
from quotas.admission.limit_set import NO_LIMITS
from quotas.algorithms.producer_ids import ProducerIdQuota
from quotas.algorithms.token_bucket import TokenBucket
from quotas.connections import ConnectionQuotas, ConnectionVerdict
from quotas.entity import EntityKind
from quotas.fleet import member
from quotas.fleet.caps import Caps, Key
from quotas.fleet.parameters import WHOLE
from quotas.limit_kinds import CONNECTION_CREATION_RATE
from quotas.registry import limit_store
from quotas.resource_groups import GroupIndex
from simulation.draws import Options
from tests.quotas.fleet.mutants import (
    CutStatedFirst,
    DoublesValid,
    JoinsAtOnce,
    LeaseForEver,
    LeaseFromBefore,
    LeaseFromReading,
    RaisedAtOnce,
    ShortSilence,
    UnreadIgnored,
)

Patch = pytest.MonkeyPatch


OPTIONS: Final = Options(seconds=12)


class Mutant(NamedTuple):
    """`seed`: one that finds it, as long as the world draws the same."""

    make: Callable[[Patch], None]
    seed: int
    options: Options = OPTIONS


MUTANTS: Final[dict[str, Mutant]] = {}


def mutant(seed: int, options: Options = OPTIONS) -> Callable[[Callable[[Patch], None]], None]:
    def add(make: Callable[[Patch], None]) -> None:
        MUTANTS[make.__name__] = Mutant(make, seed, options)

    return add


# ---- the holes of the rule that reserved what was announced


@mutant(seed=7)
def what_was_fetched_passes(patch: Patch) -> None:
    """A Fetch response passes because its request did: idle consumers bring all that was left when they asked."""
    pass_limits = LimitedRequest.pass_limits

    def passing(self: LimitedRequest, connection: Any, chunk: int, left: int, now_ns: int) -> bool:
        if isinstance(self, FetchRequest):
            for limit, units in self.charges:
                limit.charge(units, now_ns)
            self.charges, self.limit = [], None
            return True
        return pass_limits(self, connection, chunk, left, now_ns)

    patch.setattr(LimitedRequest, "pass_limits", passing)


@mutant(seed=2)
def what_is_announced_is_charged(patch: Patch) -> None:
    """The first chunk of a Produce request is charged for all of it."""
    first = ProduceRequest._charge_chunk

    def charging(self: ProduceRequest, connection: Any, chunk: int, number: int, now_ns: int) -> int:
        return first(self, connection, self.size if number else 0, number, now_ns)

    patch.setattr(ProduceRequest, "_charge_chunk", charging)


@mutant(seed=2)
def what_is_asked_for_is_charged(patch: Patch) -> None:
    """A fetch is charged for all that it may bring."""
    decide = FetchRequest.decide

    def deciding(self: FetchRequest, requests: Any, pos: int, end: int, now_ns: int) -> int:
        step = decide(self, requests, pos, end, now_ns)
        for limit in self.client.limits.fetch.limits if step >= 0 else ():
            limit.charge(1_048_576, now_ns)
        return step

    patch.setattr(FetchRequest, "decide", deciding)


@mutant(seed=107)
def a_notice_is_never_dropped(patch: Patch) -> None:
    """Clients are told to wait for limits that are gone."""
    patch.setattr(Notice, "renew", lambda self, registry, now_ns: None)


@mutant(seed=37)
def a_late_topic_does_not_ask(patch: Patch) -> None:
    """A topic that is found in the middle of a frame is charged without asking."""
    _decide(patch, lambda limit, number, now_ns: limit.name == "bytes_in_rate")


@mutant(seed=40)
def a_limit_in_debt_is_pushed_out(patch: Patch) -> None:
    """Limits of a default entry are dropped in debt, and made again with their whole burst."""
    patch.setattr(limit_store, "_is_needed", lambda limit, now_ns: False)
    patch.setattr(limit_store, "MAX_OF_DEFAULTS", 1)


@mutant(seed=8)
def who_waited_for_seconds_passes(patch: Patch) -> None:
    """A hold ends after two seconds, whatever the debt."""
    add = Wakeups.add
    pass_limits = LimitedRequest.pass_limits
    late: set[LimitedRequest] = set()

    def adding(self: Wakeups, request: LimitedRequest, owner: Any, until_ns: int = 0) -> None:
        add(self, request, owner, until_ns)
        self._after(2_000_000_000, end, self, request)

    def end(self: Wakeups, request: LimitedRequest) -> None:
        if request.is_held and request.limit is not None:
            late.add(request)
            request.limit.waiters.discard(request)
            self._release(request, 0)

    def passing(self: LimitedRequest, connection: Any, chunk: int, left: int, now_ns: int) -> bool:
        if self in late:
            charged, self.charges, self.limit = self.charges, [], None
            for limit, units in charged:
                limit.charge(units, now_ns)
            return True
        return pass_limits(self, connection, chunk, left, now_ns)

    patch.setattr(Wakeups, "add", adding)
    patch.setattr(LimitedRequest, "pass_limits", passing)


@mutant(seed=18)
def every_other_frame_passes_limits_in_debt(patch: Patch) -> None:
    """Frames go on that did not take a limit into debt."""
    goes_on: dict[int, bool] = {}
    _decide(patch, lambda limit, number, now_ns: goes_on.setdefault(number, len(goes_on) % 2 == 0))


def _decide(patch: Patch, skips: Callable[[Limit, int, int], bool]) -> None:

    def deciding(charges: Any, number: int, turn: Any, now_ns: int) -> Verdict:
        for at, (limit, _) in enumerate(charges):
            if not skips(limit, number, now_ns):
                found = frame.decide(charges[at:], number, turn, now_ns)
                return found._replace(passed=found.passed + at)
        return Verdict(len(charges), None, 0)

    patch.setattr(limited_request, "decide", deciding)


# ---- faults that people found


@mutant(seed=78)
def a_broker_that_joins_takes_a_port(patch: Patch) -> None:
    """Of two brokers with one port, the one that came last has it."""

    def placing(options: Any, listed: Any, before: Any) -> Placement:
        found = placed(options, listed, before)
        ports = dict(found.ports)
        for node in sorted(listed):
            own = own_port(options, node)
            other = next((each for each, port in ports.items() if port == own and each != node), None)
            if other is not None:
                ports[node], ports[other] = own, ports.get(node, own + 1)
        return found._replace(ports=ports)

    patch.setattr(nodes, "placed", placing)


@mutant(seed=2)
def a_limit_is_taken_for_the_brokers(patch: Patch) -> None:
    """The verdict depends on which of two throttle times was seen first: the limit's is the brokers' own."""
    patch.setattr(observer, "LIMIT", BROKER_QUOTA)


# ---- rules of a fleet


def _has_caps(broken: type[Caps], patch: Patch) -> None:
    patch.setattr(member, "Caps", broken)


_FLEET: Final = Options(seconds=12, proxies=3, clients=5)

for _broken, _seed in {
    CutStatedFirst: 23,
    UnreadIgnored: 23,
    RaisedAtOnce: 23,
    DoublesValid: 50,
    LeaseFromReading: 3,
    LeaseForEver: 52,
    ShortSilence: 7,
    JoinsAtOnce: 45,
    LeaseFromBefore: 4,
}.items():
    MUTANTS[_broken.__name__] = Mutant(partial(_has_caps, _broken), _seed, _FLEET)


@mutant(seed=104, options=_FLEET)
def what_others_have_is_ignored(patch: Patch) -> None:
    """S4: a member divides its own quota, though others still have a lower one."""

    def splitting(self: Key, max_members: int) -> tuple[int, int]:
        floors = self.quota * self.floors_ppm // WHOLE
        return self.quota - floors, floors // max_members or 1

    patch.setattr(Key, "split", splitting)


@mutant(seed=11, options=_FLEET)
def a_lower_quota_is_not_taken_up(patch: Patch) -> None:
    """S4: the use stays what it was of a higher quota."""
    highest: dict[Key, tuple[int, int]] = {}
    split = Key.split

    def splitting(self: Key, max_members: int) -> tuple[int, int]:
        highest[self] = max(split(self, max_members), highest.get(self, (0, 0)))
        return highest[self]

    patch.setattr(Key, "split", splitting)


# ---- others


@mutant(seed=2)
def a_bucket_earns_twice_after_a_reload(patch: Patch) -> None:
    change_terms = TokenBucket.change_terms

    def changing(self: TokenBucket, new: Any, now_ns: int) -> None:
        change_terms(self, new, now_ns)
        self._level = 16 * self._terms.full

    patch.setattr(TokenBucket, "change_terms", changing)


@mutant(seed=1)
def a_response_is_released_to_another_connection(patch: Patch) -> None:
    """Now and then the responses of two sessions change places."""
    connected = Session._on_connected
    sessions: list[Session] = []

    def connecting(self: Session, *arguments: Any) -> None:
        connected(self, *arguments)
        sessions.append(self)
        if len(sessions) % 4 == 0:
            self.responses.writer.send = sessions[-2].responses.writer.send

    patch.setattr(Session, "_on_connected", connecting)


@mutant(seed=1)
def each_connection_leaves_an_object(patch: Patch) -> None:
    closed = Server._on_closed

    def closing(self: Server, session: Session) -> None:
        closed(self, session)
        self.shared.wakeups._owners[session] = None  # type: ignore[index, assignment]

    patch.setattr(Server, "_on_closed", closing)


@mutant(seed=3)
def closed_sessions_are_kept(patch: Patch) -> None:
    """In a list that no counter knows of."""
    closed = Server._on_closed
    kept: list[Session] = []

    def closing(self: Server, session: Session) -> None:
        closed(self, session)
        kept.append(session)

    patch.setattr(Server, "_on_closed", closing)


@mutant(seed=1)
def memory_is_not_given_back(patch: Patch) -> None:
    closed = Server._on_closed

    def closing(self: Server, session: Session) -> None:
        closed(self, session)
        self.shared.context.memory.buffered_bytes += 1

    patch.setattr(Server, "_on_closed", closing)


@mutant(seed=19)
def a_queue_serves_the_last_one_first(patch: Patch) -> None:
    """The newest waiter of a queue goes first: others may wait for ever."""
    push = FairQueue.push

    def pushing(self: FairQueue[Any], waiter: Any, size: int, *, is_first: bool = False) -> None:
        push(self, waiter, size, is_first=is_first)
        self._heap = sorted((-arrival, arrival, each) for _, arrival, each in self._heap)

    patch.setattr(FairQueue, "push", pushing)


@mutant(seed=1)
def nobody_is_held(patch: Patch) -> None:
    """Each debt is told, and none is enforced."""
    init = ThrottleActions.__init__

    def starting(self: ThrottleActions, report: Any, mode: str, *, enforces: bool) -> None:
        init(self, report, mode, enforces=False)

    patch.setattr(ThrottleActions, "__init__", starting)


@mutant(seed=3)
def waiters_are_forgotten(patch: Patch) -> None:
    """A limit that is out of debt serves one of those who wait, and no timer is set for the others."""

    def passing(self: Wakeups, limit: Limit) -> None:
        self._serve_round(limit, self._clock())

    patch.setattr(Wakeups, "_pass", passing)


@mutant(seed=3)
def what_was_announced_is_waited_for(patch: Patch) -> None:
    """The throttle time contains all that is announced in a queue."""
    patch.setattr(Limit, "queued_ns", lambda self, own_ns: self.expected_time_of(self.waiters.queued))


@mutant(seed=19)
def a_queue_is_fair_by_requests(patch: Patch) -> None:
    """First come, first served: who sends large requests gets most of a limit."""
    push = FairQueue.push

    def pushing(self: FairQueue[Any], waiter: Any, size: int, *, is_first: bool = False) -> None:
        push(self, waiter, size, is_first=is_first)
        self._heap = sorted((0 if is_first else arrival, arrival, each) for _, arrival, each in self._heap)

    patch.setattr(FairQueue, "push", pushing)


# ---- what is counted


@mutant(seed=2)
def any_number_of_connections_is_served(patch: Patch) -> None:
    patch.setattr(ConnectionQuotas, "over", lambda self, ip, listener: None)


@mutant(seed=2)
def a_connection_that_was_reset_keeps_its_place(patch: Patch) -> None:
    """One in four: after a while an address has no place left."""
    close = ConnectionQuotas.close
    closed = count(1)

    def closing(self: ConnectionQuotas, ip: str, listener: tuple[str, ...], *, admitted: bool) -> None:
        if next(closed) % 4:
            close(self, ip, listener, admitted=admitted)

    patch.setattr(ConnectionQuotas, "close", closing)


@mutant(seed=2)
def each_connection_is_served_at_once(patch: Patch) -> None:
    patch.setattr(ConnectionQuotas, "record", lambda self, ip, listener, now_ns: ConnectionVerdict(True))


@mutant(seed=2)
def a_connection_that_is_refused_is_recorded(patch: Patch) -> None:
    """Those that come too often lengthen the wait of all, until none is served."""
    record = ConnectionQuotas.record

    def recording(self: ConnectionQuotas, ip: str, listener: tuple[str, ...], now_ns: int) -> ConnectionVerdict:
        found = record(self, ip, listener, now_ns)
        limit = self._registry.place_limit(CONNECTION_CREATION_RATE, EntityKind.IP, now_ns, ip)
        if limit is not None and not found.admitted:
            limit.algorithm.record(1, now_ns)
        return found

    patch.setattr(ConnectionQuotas, "record", recording)


@mutant(seed=2)
def requests_are_not_counted(patch: Patch) -> None:
    set_produce = ClientLimits.set_produce
    patch.setattr(ClientLimits, "set_produce", lambda self, produce, requests: set_produce(self, produce, NO_LIMITS))


@mutant(seed=4)
def new_producer_ids_pass(patch: Patch) -> None:
    patch.setattr(ProducerIdQuota, "debt_ns", lambda self, now_ns, more=0: 0)


@mutant(seed=19)
def a_producer_id_is_new_each_time(patch: Patch) -> None:
    """Who has one waits like those who bring new ones."""
    patch.setattr(ProducerIdQuota, "unknown", lambda self, producer_ids, now_ns: tuple(dict.fromkeys(producer_ids)))


@mutant(seed=30)
def a_group_has_no_members(patch: Patch) -> None:
    patch.setattr(GroupIndex, "groups_of_client", lambda self, user, client_id: ())


# ---- what is told, and what is kept


@mutant(seed=174)
def half_of_a_debt_is_told(patch: Patch) -> None:
    """The client is back before its debt is paid, and waits without knowing it."""
    told = Notice.throttle_time_ms
    patch.setattr(Notice, "throttle_time_ms", lambda self, now_ns: told(self, now_ns) // 2)


@mutant(seed=35)
def the_pool_does_not_bound_reading(patch: Patch) -> None:
    adjust = MemoryPool._adjust

    def adjusting(self: MemoryPool) -> None:
        adjust(self)
        self.is_tight, self.read_size = False, READ_SIZE

    patch.setattr(MemoryPool, "_adjust", adjusting)
    patch.setattr(MemoryPool, "allowance", lambda self, holding, want, remaining, head_size: want)


@mutant(seed=66)
def each_name_has_metrics_of_its_own(patch: Patch) -> None:
    init = Entities.__init__

    def starting(self: Entities, clock: Any, max_entities: int, *arguments: Any, **options: Any) -> None:
        init(self, clock, 1 << 40, *arguments, **options)

    patch.setattr(Entities, "__init__", starting)
