"""SASL that passes through: whom requests are charged to."""

import logging
import struct

import pytest

from protocol.apis import SASL_AUTHENTICATE, SASL_HANDSHAKE
from protocol.errors import LoginRequired
from protocol.wire import encode_varint
from proxy.config.client_settings import ClientSettings
from proxy.config.config import QuotaOptions, SecurityOptions, UsageOptions
from proxy.observability.logs import EventFormatter
from proxy.sessions.pump_set import IN_FLIGHT
from proxy.streams.handlers.authenticate import SaslMessageTooLarge
from proxy.streams.handlers.forward import MAX_KEPT, MAX_PARTIAL
from quotas.entity import ANONYMOUS
from quotas.parsing.parse import parse_spec
from tests.proxy import frames
from tests.proxy.conversation import without_burst
from tests.proxy.streams.exchanges import negotiate
from tests.proxy.streams.pair import Pair, World

ILLEGAL, REFUSED = 34, 58
OPAQUE = b"n,,\x01auth=Bearer opaque\x01\x01"
ROWS = [frames.produce_records(number, {"rows": [frames.batch(1, 1_000)]}) for number in range(40)]
SIZE = len(ROWS[0]) - 4


def plain(user: str) -> bytes:
    return f"\0{user}\0secret".encode()


def handshake(n: int, mechanism: str = "PLAIN") -> bytes:
    return frames.request(SASL_HANDSHAKE, 1, n, struct.pack(">h", len(mechanism)) + mechanism.encode())


def chosen(n: int, error: int = 0) -> bytes:
    return frames.frame(struct.pack(">ihi", n, error, 0))


def sasl(n: int, token: bytes) -> bytes:
    return frames.request(SASL_AUTHENTICATE, 2, n, encode_varint(len(token) + 1) + token + b"\0")


def accepted(n: int, token: bytes = b"", error: int = 0, lifetime_ms: int = 0) -> bytes:
    answer = struct.pack(">ibhb", n, 0, error, 0) + encode_varint(len(token) + 1) + token
    return frames.frame(answer + struct.pack(">qb", lifetime_ms, 0))


def try_login(
    pair: Pair, mechanism: str, token: bytes, *, handshake_error: int = 0, error: int = 0, said: bytes = b""
) -> None:
    """The client's handshake and its one message, each answered by the broker; none after a refused handshake."""
    pair.exchange(handshake(900, mechanism), chosen(900, handshake_error))
    if not handshake_error:
        pair.exchange(sasl(901, token), accepted(901, said, error))


def log_in(pair: Pair, user: str) -> None:
    try_login(pair, "PLAIN", plain(user))


def user_of(pair: Pair) -> str:
    return pair.connection.identity.client.user


def users(world: World) -> list[tuple[str, str]]:
    return sorted((entity.user, entity.client_id) for entity in world.metrics.entities)


def left(world: World, user: str) -> int:
    """What is left of the burst of a user's `producer_byte_rate`."""
    return world.levels()[f"user:{user}", "producer_byte_rate"][1]


@pytest.mark.parametrize("breaks", [False, True])
@pytest.mark.parametrize("cuts", [(), (1,), (7, 3)])
def test_a_client_is_the_user_that_it_proves(cuts: tuple[int, ...], breaks: bool) -> None:
    world = World(
        [parse_spec("user=alice,producer_byte_rate=1MB"), parse_spec("user=<default>,producer_byte_rate=1MB")]
    )
    pair = Pair(world, cuts=cuts, breaks=breaks)
    exchange = negotiate(1)
    pair.exchange(exchange.request, exchange.response)
    log_in(pair, "alice")
    assert users(world) == [], "nobody yet"
    pair.client_sends(frames.produce(2), frames.produce(3))
    pair.broker_sends(frames.produced(2), frames.produced(3))
    assert users(world) == [("alice", "etl")]
    assert left(world, "alice") == 1_000_000 - 2 * (len(frames.produce(2)) - 4)
    assert pair.sent()[1:] == [handshake(900), sasl(901, plain("alice")), frames.produce(2), frames.produce(3)]
    assert pair.received()[1:] == [chosen(900), accepted(901), frames.produced(2), frames.produced(3)]
    pair.hang_up()
    assert world.memory.buffered_bytes == 0


def test_a_scram_exchange_and_a_token() -> None:
    for mechanism, talk in (
        ("SCRAM-SHA-512", [(b"n,,n=alice,r=x", b"r=xy,s=c2FsdA==,i=4096"), (b"c=biws,r=xy,p=cA==", b"v=cA==")]),
        ("OAUTHBEARER", [(b"n,,\x01auth=Bearer e30.eyJzdWIiOiJhbGljZSJ9.\x01\x01", b"")]),
    ):
        pair = Pair(World())
        pair.exchange(handshake(1, mechanism), chosen(1))
        for n, (message, token) in enumerate(talk, start=2):
            assert user_of(pair) == ANONYMOUS
            pair.exchange(sasl(n, message), accepted(n, token))
        assert user_of(pair) == "alice"


@pytest.mark.claim(
    "security", "no other request passes during a login, so a pipelined login cannot use the success of another"
)
def test_an_exchange_has_the_connection_to_itself() -> None:
    """A pipelined second exchange, and data between, pass when the broker has answered what came before."""
    pair = Pair(World())
    pipelined = [handshake(1), sasl(2, plain("alice")), handshake(3), sasl(4, plain("bob")), frames.heartbeat(5)]
    pair.client_sends(*pipelined)
    answers = [chosen(1), accepted(2), chosen(3), accepted(4, error=REFUSED), frames.heartbeat_answer(5)]
    for number, (answer, user) in enumerate(zip(answers, [ANONYMOUS, *["alice"] * 4], strict=True), start=1):
        assert pair.sent() == pipelined[:number]
        if number < 5:
            assert pair.requests.paused == IN_FLIGHT
        pair.broker_sends(answer)
        assert user_of(pair) == user
    assert pair.connection.max_in_flight == SecurityOptions().max_pending_requests


@pytest.mark.claim(
    "security",
    "only the broker's success proves a name: a failed login, a login without a handshake and "
    "GSSAPI's visible name do not",
)
def test_what_changes_nothing() -> None:
    pair = Pair(World())
    pair.exchange(sasl(1, plain("bob")), accepted(1))
    assert user_of(pair) == ANONYMOUS, "without a handshake"
    log_in(pair, "alice")
    pair.exchange(handshake(1), chosen(1, ILLEGAL))
    pair.exchange(sasl(2, plain("bob")), accepted(2))
    assert user_of(pair) == "alice", "after a refused handshake"
    try_login(pair, "PLAIN", plain("bob"), error=REFUSED)
    try_login(pair, "GSSAPI", b"\x05\x04\x04\xff\0\0\0\0bob@TEST")
    try_login(pair, "OAUTHBEARER", OPAQUE)
    pair.exchange(sasl(2, plain("bob")), accepted(2))
    assert user_of(pair) == "alice"


@pytest.mark.claim(
    "security",
    "after a login as another user, the next request is charged to the new user; a response "
    "belongs to the user that sent its request",
)
@pytest.mark.parametrize("by_topic", [False, True])
@pytest.mark.parametrize(
    "quotas", [[], ["topic=rows,bytes_in_rate=1GB"], ["topic=rows,bytes_in_rate=1GB,action=reject"]]
)
def test_requests_after_a_new_login_are_charged_to_the_new_user(quotas: list[str], by_topic: bool) -> None:
    of_users = [f"user={user},producer_byte_rate=1MB" for user in ("alice", "bob")]
    world = World([parse_spec(each) for each in of_users + quotas], usage=UsageOptions(by_topic=by_topic))
    pair = Pair(world)
    log_in(pair, "alice")
    pair.client_sends(*ROWS[:10])
    pair.client_sends(*ROWS[10:20])
    pair.broker_sends(*[frames.produced(n) for n in range(20)])
    log_in(pair, "bob")
    pair.client_sends(*ROWS[20:24])
    pair.broker_sends(*[frames.produced(n) for n in range(20, 24)])
    assert (left(world, "alice"), left(world, "bob")) == (1_000_000 - 20 * SIZE, 1_000_000 - 4 * SIZE)
    log_in(pair, "alice")
    pair.client_sends(*ROWS[24:25])
    assert left(world, "alice") == 1_000_000 - 21 * SIZE
    assert users(world) == [("alice", "etl"), ("bob", "etl")]
    assert [entity.sessions for entity in sorted(world.metrics.entities, key=lambda each: each.user)] == [1, 0]


@pytest.mark.claim(
    "security",
    "after a login as another user, the next request is charged to the new user; a response "
    "belongs to the user that sent its request",
)
def test_a_response_belongs_to_the_user_that_asked() -> None:
    world = World([parse_spec(f"user={user},consumer_byte_rate=1MB") for user in ("alice", "bob")])
    pair = Pair(world)
    log_in(pair, "alice")
    pair.client_sends(frames.fetch(1), handshake(2))
    pair.broker_sends(frames.fetched(1, size=5_000), chosen(2))
    pair.exchange(sasl(3, plain("bob")), accepted(3))
    pair.exchange(frames.fetch(4), frames.fetched(4, size=300))
    bytes_of = {entity.user: entity.fetch_bytes for entity in world.metrics.entities}
    assert bytes_of == {"alice": len(frames.fetched(1, size=5_000)), "bob": len(frames.fetched(4, size=300))}
    levels = {entity: level[1] for (entity, _), level in world.levels().items()}
    assert levels == {"user:alice": 1_000_000 - bytes_of["alice"], "user:bob": 1_000_000 - bytes_of["bob"]}


def test_a_notice_stays_with_the_user_that_it_was_for() -> None:
    pair = Pair(World([without_burst("user=alice,producer_byte_rate=100")]))
    log_in(pair, "alice")
    pair.exchange(frames.produce(1, 1_000), frames.produced(1))
    assert pair.connection.identity.notice.until_ns
    log_in(pair, "bob")
    pair.exchange(frames.produce(2, 1_000), frames.produced(2))
    assert pair.received()[-1] == frames.produced(2)


def test_the_principal_replaces_all_and_nothing_is_read() -> None:
    pair = Pair(World(QuotaOptions(principal="team")))
    long = sasl(2, b"\0bob\0" + bytes(200_000))
    pair.client_sends(handshake(1), long, frames.heartbeat(3))
    assert pair.sent() == [handshake(1), long, frames.heartbeat(3)]
    pair.broker_sends(chosen(1), accepted(2))
    assert user_of(pair) == "team"


def test_names_that_cannot_be_read_are_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    world = World()
    for _ in range(2):
        pair = Pair(world)
        for mechanism, token in (("GSSAPI", b"\x60"), ("OAUTHBEARER", OPAQUE), ("AWS_MSK_IAM", b"{}")):
            try_login(pair, mechanism, token)
        assert user_of(pair) == ANONYMOUS
    named = [record.__dict__["fields"]["mechanism"] for record in caplog.records]
    assert named == ["GSSAPI", "OAUTHBEARER", "AWS_MSK_IAM"]


@pytest.mark.claim(
    "security",
    "a client cannot hide its name in a long message: messages above 128 KiB are refused "
    "(sasl_message_too_large), and while memory is short, so are messages above 4 KiB that arrive "
    "in pieces",
)
def test_a_longer_message_is_refused_where_it_would_hide_the_user() -> None:
    with pytest.raises(SaslMessageTooLarge, match=f"{MAX_KEPT} are the most"):
        try_login(Pair(World()), "OAUTHBEARER", bytes(MAX_KEPT))
    other = Pair(World())
    try_login(other, "GSSAPI", bytes(MAX_KEPT))
    assert other.sent()[1] == sasl(901, bytes(MAX_KEPT))


def test_while_memory_is_short_a_message_that_stalls_is_refused() -> None:
    world = World()
    stalled = sasl(2, bytes(MAX_PARTIAL))
    pairs = [Pair(world) for _ in range(3)]
    for pair in pairs:
        pair.exchange(handshake(1), chosen(1))
    pairs[0].client_sends(stalled[:-1])
    assert len(pairs[0].requests.backlog.kept) == len(stalled) - 1
    world.memory.kept_bytes += world.memory.limit // 2
    pairs[1].client_sends(stalled)
    with pytest.raises(SaslMessageTooLarge):
        pairs[2].client_sends(stalled[:-1])
    pairs[2].hang_up()
    world.memory.kept_bytes -= world.memory.limit // 2
    pairs[0].client_sends(stalled[-1:])
    assert [pair.sent()[1:] for pair in pairs] == [[stalled], [stalled], []]


@pytest.mark.parametrize(
    "response",
    [
        accepted(901, lifetime_ms=2**63 - 1),  # longer than Python's times
        frames.frame(struct.pack(">i", 901)),
        accepted(901, bytes(MAX_KEPT)),
    ],
)
def test_a_response_that_cannot_be_read_passes_and_proves_nothing(response: bytes) -> None:
    pair = Pair(World())
    pair.exchange(handshake(900), chosen(900))
    pair.client_sends(sasl(901, plain("alice")), frames.heartbeat(902))
    pair.broker_sends(response)
    assert pair.received()[-1] == response
    assert user_of(pair) == ANONYMOUS
    assert pair.sent()[-1] == frames.heartbeat(902)


@pytest.mark.claim(
    "security",
    "where clients must log in (SASL_* in --command-config without a login of the proxy), a "
    "connection that sends anything else first is closed (login_required), and nothing is charged "
    "to it",
)
@pytest.mark.parametrize("mechanism", ["", "PLAIN", "GSSAPI"])
def test_where_brokers_require_a_login_nothing_is_charged_before_it(mechanism: str) -> None:
    """So nobody without a login can use the limits of others up. The end of GSSAPI cannot be seen."""
    world = World([parse_spec("total=true,producer_byte_rate=1MB")], upstream=ClientSettings(protocol="SASL_SSL"))
    pair = Pair(world)
    exchange = negotiate(1)
    pair.exchange(exchange.request, exchange.response)
    if mechanism:
        try_login(pair, mechanism, plain("alice"), error=0 if mechanism == "GSSAPI" else REFUSED)
    if mechanism == "GSSAPI":
        pair.client_sends(frames.produce(4, 1_000))
        assert users(world)
    else:
        with pytest.raises(LoginRequired):
            pair.client_sends(frames.produce(4, 1_000))
        assert users(world) == []
    assert len(world.levels()) == (mechanism == "GSSAPI")


@pytest.mark.parametrize(
    ("mechanism", "handshake_error", "error"),
    [
        ("PLAIN", 0, "sasl_authentication_failed"),
        ("SCRAM-SHA-1", 33, "unsupported_sasl_mechanism"),
        ("PLAIN", ILLEGAL, "illegal_sasl_state"),
    ],
)
def test_a_refused_login(caplog: pytest.LogCaptureFixture, mechanism: str, handshake_error: int, error: str) -> None:
    """Who it was, and no word of the broker or the client besides the name."""
    caplog.set_level(logging.WARNING)
    world = World([])
    for _ in range(2):
        token = plain("al\x1b[31mice")
        try_login(Pair(world), mechanism, token, handshake_error=handshake_error, error=REFUSED, said=b"secret")
    assert world.metrics.errors.logins == 2
    [record] = caplog.records
    fields = record.__dict__["fields"]
    assert (record.getMessage(), fields["error"], fields["mechanism"]) == ("client_login_refused", error, mechanism)
    assert fields["user"] == (None if handshake_error else "al\x1b[31mice")
    line = EventFormatter(is_json=False, tracebacks=False).format(record)
    assert "secret" not in line
    assert line.isprintable()
