"""The proxy logs in on real sockets: before the first request, and again in time, whatever is under way."""

import asyncio
import hashlib
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from protocol.apis import FETCH, PRODUCE
from proxy.admin.exposition import expose
from proxy.brokers import sasl_exchange as messages
from proxy.brokers.readiness import Readiness
from proxy.config.client_settings import ClientSettings, LoginSettings
from proxy.config.config import QuotaOptions, SecurityOptions
from proxy.sessions.session import Session
from tests.proxy.conversation import PATIENCE_SECONDS, OpenStage, Peer, Stage, lines_of, until, without_burst
from tests.proxy.frames import correlation_of, fetched, heartbeat, heartbeat_answer, produce, produced
from tests.proxy.sasl_broker import REFUSED, SaslBroker
from tests.proxy.tls_peer import Certificates, TlsPeer

PASSWORD = "not-in-any-log"
LOGIN = LoginSettings(mechanism="SCRAM-SHA-512", username="etl", password=PASSWORD)
#: Renewed after 70 to 85 ms.
SHORT_MS = 100


class KafkaBroker(SaslBroker):
    """Plays connections, as strictly as Kafka: from SaslHandshake until the end of the login no other request may come.

    requests   of clients, in order; `wrong`: what came at the wrong time
    answers    False: it takes requests, and sends no response
    """

    def __init__(self, lifetime_ms: int = 0, password: str = PASSWORD) -> None:
        super().__init__("etl", password, lifetime_ms)
        self.requests: list[bytes] = []
        self.wrong: list[bytes] = []
        self.answers = asyncio.Event()
        self.answers.set()

    async def play(self, peer: Peer) -> None:
        while True:
            frame = await peer.frame()
            response = self.respond(frame, peer)
            if response is None:
                self.requests.append(frame)
                if self.begun > self.done:
                    self.wrong.append(frame)
                if frame == produce(1, acks=0):
                    continue
                answer = {PRODUCE: produced, FETCH: fetched}.get(frame[5], heartbeat_answer)
                response = answer(correlation_of(frame))
            await self.answers.wait()
            await peer.send(response)


@asynccontextmanager
async def playing(
    stage: Stage, kafka: KafkaBroker, connections: int = 1, *, answers: bool = True
) -> AsyncIterator[list[Peer]]:
    """Clients of the proxy, each with its connection to `kafka`, which may not answer at first."""
    if not answers:
        kafka.answers.clear()

    async def accept() -> None:
        plays = [asyncio.ensure_future(kafka.play(await stage.broker.accept())) for _ in range(connections)]
        await asyncio.gather(*plays, return_exceptions=True)

    accepting = asyncio.ensure_future(accept())
    yield [await stage.client() for _ in range(connections)]
    accepting.cancel()


async def beat(client: Peer) -> None:
    """A request, and its response."""
    await client.send(heartbeat(1))
    assert await client.frame() == heartbeat_answer(1)


def timer_of(session: Session) -> asyncio.TimerHandle:
    """That of the login under way, or of the next one."""
    assert session.login is not None
    assert session.login._timer is not None
    return session.login._timer


@pytest.fixture
def stage_of(open_stage: OpenStage) -> OpenStage:
    """A stage whose proxy logs in."""
    return lambda **options: open_stage(upstream=ClientSettings(login=LOGIN), **options)


@pytest.mark.parametrize(("token", "user"), [("e30.eyJhenAiOiAiZXRsIn0.", "etl"), ("opaque", "ANONYMOUS")])
async def test_the_user_of_a_token_is_a_claim(open_stage: OpenStage, tmp_path: Path, token: str, user: str) -> None:
    (tmp_path / "token").write_text(token)
    login = LoginSettings(mechanism="OAUTHBEARER", token_file=tmp_path / "token")
    security = SecurityOptions(sasl_oauthbearer_sub_claim_name="azp")
    stage = open_stage(upstream=ClientSettings(login=login), security=security)
    async with playing(stage, KafkaBroker(password=token)) as [client]:
        await beat(client)
        assert stage.session_of(client).identity.client.user == user


@pytest.mark.pure
async def test_a_broker_that_is_silent_during_the_login_costs_its_time_limit(
    stage_of: OpenStage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Not while it has an earlier request, which may be a long poll."""
    monkeypatch.setattr("proxy.sessions.broker_login.CONNECT_TIMEOUT_SECONDS", 0.5)
    stage, kafka = stage_of(), KafkaBroker(SHORT_MS)
    async with playing(stage, kafka) as [polling]:
        await until(lambda: kafka.done and not stage.paused())
        kafka.answers.clear()
        await polling.send(heartbeat(1))
        await until(lambda: stage.paused() == {"login": 1})
        async with playing(stage, kafka) as [silent]:
            await silent.closed()
        kafka.answers.set()
        assert await polling.frame() == heartbeat_answer(1)
    [fields] = [fields for name, fields in lines_of(caplog.records) if name == "broker_failed"]
    assert (fields["reason"], fields["detail"]) == ("silent", "no answer to the login of the proxy within 0.5 s")


async def test_connecting_and_the_first_login_have_their_time_together(open_stage: OpenStage, tmp_path: Path) -> None:
    """The handshake took 20 s of 30 s. The next login has all of it."""
    certificates = Certificates(tmp_path)
    stage = open_stage(upstream=ClientSettings(ssl=certificates.upstream().ssl, login=LOGIN))
    client = await stage.client()
    accepted = await stage.broker.accept()
    stage.clock.pass_seconds(20)
    broker = TlsPeer(accepted, certificates.of_server(), None)
    await broker.handshake()
    now = asyncio.get_running_loop().time()
    session = stage.session_of(client)
    await until(lambda: session.login is not None)
    assert session.login is not None

    def left() -> float:
        return timer_of(session).when() - now

    assert left() == pytest.approx(10, abs=5)
    kafka = KafkaBroker()
    while not kafka.done:
        response = kafka.respond(await broker.frame())
        assert response is not None
        await broker.send(response)
    await until(lambda: not stage.paused())
    session.login.start()
    assert left() == pytest.approx(30, abs=5)


@pytest.mark.parametrize("principal", ["alice", None])
async def test_a_name_of_the_user_from_elsewhere_stays(stage_of: OpenStage, principal: str | None) -> None:
    """That of `--principal`, or what the client has proved before."""
    stage = stage_of(quotas=QuotaOptions(principal=principal))
    kafka = KafkaBroker()
    async with playing(stage, kafka, answers=False) as [client]:
        await until(lambda: kafka.begun)
        session = stage.session_of(client)
        session.identity.authenticate("CN=etl", stage.clock())
        kafka.answers.set()
        await beat(client)
        assert session.identity.client.user == (principal or "CN=etl")


async def test_the_next_login_begins_in_time(stage_of: OpenStage) -> None:
    """After 70 to 85 % of the session, not at the same time for all connections."""
    stage = stage_of()
    async with playing(stage, KafkaBroker(1_000_000), connections=20) as clients:
        for client in clients:
            await client.send(heartbeat(1))
        for client in clients:
            await client.frame()
        now = asyncio.get_running_loop().time()
        seconds = {timer_of(session).when() - now for session in stage.sessions}
    assert len(seconds) == 20
    assert 700 - PATIENCE_SECONDS < min(seconds) < max(seconds) <= 850


@pytest.mark.parametrize("size", [100, 900_000])
async def test_the_login_is_renewed_while_requests_flow(stage_of: OpenStage, size: int) -> None:
    stage, kafka = stage_of(), KafkaBroker(SHORT_MS)
    async with playing(stage, kafka) as [client]:
        number = 0
        while kafka.done < 3:
            await client.send(b"".join(produce(number + n, size) for n in range(3)))
            for _ in range(3):
                assert await client.frame() == produced(number)
                number += 1
        assert (kafka.wrong, len(kafka.requests)) == ([], number)
        assert len(stage.sessions) == 1


async def test_a_login_is_renewed_while_a_frame_is_held(stage_of: OpenStage) -> None:
    """The frame is released when its time has come, not before the end of a login that is under way then."""
    stage = stage_of(quotas=[without_burst("client-id=etl,producer_byte_rate=1000")])
    kafka = KafkaBroker(SHORT_MS)
    async with playing(stage, kafka) as [client]:
        requests = [produce(1, 20_000), produce(2, 20_000), heartbeat(3)]
        await client.send(b"".join(requests))
        assert (await client.frame())[4:8] == produced(1)[4:8]
        session = stage.session_of(client)
        await until(lambda: session.request_stream.held is not None and kafka.done >= 2)
        kafka.answers.clear()
        await until(lambda: kafka.begun > kafka.done)
        stage.clock.pass_seconds(60)
        stage.shared.wakeups.limits_changed()
        await until(lambda: session.request_stream.held is None)
        assert (kafka.requests, session.bound) == (requests[:1], "")
        kafka.answers.set()
        assert (await client.frame())[4:8] == produced(2)[4:8]
        assert await client.frame() == heartbeat_answer(3)
        assert (kafka.wrong, kafka.requests) == ([], requests)


@pytest.mark.parametrize("lifetime_ms", [0, SHORT_MS])
async def test_refused_logins_close_it(stage_of: OpenStage, caplog: pytest.LogCaptureFixture, lifetime_ms: int) -> None:
    stage = stage_of()
    kafka = KafkaBroker(lifetime_ms, PASSWORD if lifetime_ms else "another password")
    async with playing(stage, kafka) as [client]:
        if lifetime_ms:
            await beat(client)
            kafka.user = "another user"
        await client.closed()
    [(_, fields)] = [line for line in lines_of(caplog.records) if line[1].get("reason") == "login_refused"]
    assert fields["detail"] == f"sasl_authentication_failed: {REFUSED} with SASL mechanism SCRAM-SHA-512"
    assert stage.metrics.errors.upstream["login_refused"] == 1
    assert PASSWORD not in caplog.text


@pytest.mark.claim(
    "security",
    "passwords appear in no log (even at level debug), metric, error or process list, even if a "
    "broker repeats one in an error",
)
async def test_a_repeated_password_is_nowhere(stage_of: OpenStage, caplog: pytest.LogCaptureFixture) -> None:
    stage = stage_of()
    kafka = KafkaBroker(password="another password")
    kafka.words = f"wrong: {PASSWORD}"
    async with playing(stage, kafka) as [client]:
        await client.closed()
    readiness = Readiness([stage.broker.address], stage.server.tls, stage.shared.health, stage.clock)
    probe = readiness._probing()
    with pytest.raises(EOFError):
        await kafka.play(await stage.broker.accept())
    await probe
    status = await readiness.check()
    detail = "sasl_authentication_failed: wrong: ***"
    assert {fields["detail"] for name, fields in lines_of(caplog.records) if name == "broker_failed"} == {detail}
    assert detail in status.reason
    written = [status.reason, str([vars(record) for record in caplog.records]), (await expose(stage.metrics)).decode()]
    assert not [text for text in written if PASSWORD in text]


async def test_a_client_that_has_gone_before_the_login_is_done(stage_of: OpenStage) -> None:
    """What it sent with acks=0 is delivered, if the broker answers in time."""
    stage, kafka = stage_of(), KafkaBroker()
    async with playing(stage, kafka, answers=False) as [client]:
        await client.send(produce(1, acks=0))
        await until(lambda: kafka.begun)
        session = stage.session_of(client)
        client.close()
        await until(lambda: session.ending._timer is not None)
        kafka.answers.set()
        await until(lambda: kafka.requests)
        assert kafka.requests == [produce(1, acks=0)]


async def test_a_client_without_a_request_is_closed_though_its_login_was_answered(stage_of: OpenStage) -> None:
    stage, kafka = stage_of(), KafkaBroker()
    async with playing(stage, kafka) as [client]:
        await until(lambda: kafka.done and not stage.paused())
        stage.clock.pass_seconds(31)
        await client.closed()
        assert stage.metrics.connections.closed["handshake_timeout"] == 1


async def test_keys_are_not_derived_in_the_event_loop(stage_of: OpenStage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many logins at once: one derivation, in another thread."""
    threads: list[str] = []
    derive = hashlib.pbkdf2_hmac

    def noting(*arguments: Any) -> bytes:
        threads.append(threading.current_thread().name)
        return derive(*arguments)

    stage, kafka = stage_of(), KafkaBroker()
    messages._salted.cache_clear()
    monkeypatch.setattr(hashlib, "pbkdf2_hmac", noting)
    async with playing(stage, kafka, 50) as clients:
        for client in clients:
            await client.send(heartbeat(1))
        for client in clients:
            assert await client.frame() == heartbeat_answer(1)
        assert kafka.done == 50
    assert threads == ["login_0"]
