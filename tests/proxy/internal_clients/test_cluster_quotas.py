"""The cluster's own client quotas: read from a scripted broker, applied whole, kept whatever the broker does then."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from kio.schema.api_versions.v0.response import ApiVersion, ApiVersionsResponse
from kio.schema.errors import ErrorCode
from kio.schema.metadata.v1.response import MetadataResponse, MetadataResponseBroker
from kio.static.primitive import i16, i32

from protocol.client_quotas import ClientQuota
from protocol.messages import encode
from proxy.background.host import Host
from proxy.config.addresses import Address
from proxy.config.client_file import read_client_settings
from proxy.config.cluster_entries import ClusterEntries
from proxy.config.config import Config, QuotaOptions
from proxy.internal_clients import cluster_quotas
from proxy.internal_clients.cluster_quotas import ClusterQuotas, ClusterReader
from proxy.observability.metrics import Metrics
from quotas.entry import QuotaEntry
from quotas.time_units import NS_PER_SECOND
from tests.protocol.test_client_quotas import response
from tests.proxy.conversation import lines_of, until
from tests.proxy.sasl_broker import SaslBroker

pytestmark = pytest.mark.claim(
    "limits",
    "what stays without the right, an answer, or the API, and what the log says once; per-broker; "
    "how often the brokers are asked",
)

HEADER = b"\x00\x00\x00\x01"
OTHER = b"\x00\x00\x00\x02"
VERSIONS, METADATA, QUOTAS = 18, 3, 48


def etl(rate: float) -> ClientQuota:
    return ClientQuota({"client-id": "etl"}, {"producer_byte_rate": rate})


def versions(*keys: int) -> bytes:
    offered = tuple(ApiVersion(api_key=i16(key), min_version=i16(0), max_version=i16(1)) for key in keys)
    return HEADER + encode(ApiVersionsResponse(error_code=ErrorCode.none, api_keys=offered))


def no_list() -> bytes:
    """Null in place of a list, without an error."""
    whole = response()
    return whole[:-2] + b"\x00" + whole[-1:]


def metadata(brokers: int) -> bytes:
    found = tuple(
        MetadataResponseBroker(node_id=i32(node), host="b", port=i32(9092), rack=None)  # type: ignore[arg-type]
        for node in range(brokers)
    )
    return HEADER + encode(MetadataResponse(brokers=found, controller_id=i32(1), topics=()))  # type: ignore[arg-type]


GRACE_SECONDS = cluster_quotas.GRACE_NS // NS_PER_SECOND


class Broker:
    """Answers by API key; None: it closes the connection. `asked`: the API keys so far. `login`: wanted first."""

    def __init__(self) -> None:
        self.answers: dict[int, bytes | None] = {VERSIONS: versions(VERSIONS, QUOTAS), METADATA: metadata(3)}
        self.answers[QUOTAS] = response(etl(1_000_000))
        self.asked: list[int] = []
        self.open = self.most_open = 0
        self.login: SaslBroker | None = None
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        self.most_open = max(self.open, self.most_open)
        try:
            while True:
                head = await reader.readexactly(4)
                frame = head + await reader.readexactly(int.from_bytes(head, "big"))
                answer = None if self.login is None else self.login.respond(frame)
                if answer is None:
                    key = int.from_bytes(frame[4:6], "big")
                    self.asked.append(key)
                    await self.may_answer.wait()
                    body = self.answers[key]
                    if body is None:
                        break
                    answer = len(body).to_bytes(4, "big") + body
                writer.write(answer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.open -= 1
            writer.close()


class Reading:
    """A broker, a reader of its quotas, and what was taken over so far."""

    def __init__(self, address: Address, broker: Broker) -> None:
        self.broker = broker
        self.address = address
        self.taken: list[dict[str, dict[str, float]]] = []
        self.config = Config(bootstrap_servers=(address,), quotas=QuotaOptions(cluster="total"))
        self.now = 0.0
        self.begin()

    def begin(self, mode: str = "total", **changes: object) -> None:
        self.config = replace(self.config, quotas=QuotaOptions(cluster=mode), **changes)  # type: ignore[arg-type]
        self.metrics = Metrics()
        host = Host(clock=lambda: int(self.now * NS_PER_SECOND))
        self.cluster = ClusterQuotas(self.config, self._take, self.metrics, host)

    async def _take(self, entries: tuple[QuotaEntry, ...]) -> None:
        self.taken.append({str(entry.entity): dict(entry.limits) for entry in entries})  # type: ignore[arg-type]

    async def reads(self, *quotas: ClientQuota) -> None:
        """With these in the cluster."""
        self.broker.answers[QUOTAS] = response(*quotas)
        await self.cluster.poll()

    @property
    def rates(self) -> list[float]:
        """What the cluster has: a little less is enforced."""
        return [each["client-id:etl"]["producer_byte_rate"] / 0.95 for each in self.taken]

    @property
    def is_ok(self) -> bool:
        return self.metrics.reload_ok["cluster"]


@pytest.fixture
async def reading() -> AsyncIterator[Reading]:
    broker = Broker()
    async with await asyncio.start_server(broker.serve, "127.0.0.1", 0) as server:
        yield Reading(server.sockets[0].getsockname()[:2], broker)


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Callable[[], list[tuple[str, dict[str, object]]]]:
    caplog.set_level("INFO", "proxy")

    def lines() -> list[tuple[str, dict[str, object]]]:
        found = [(name, dict(fields)) for name, fields in lines_of(caplog.records)]
        caplog.clear()
        return found

    return lines


Logged = Callable[[], list[tuple[str, dict[str, object]]]]


async def test_they_are_taken_over_when_they_have_changed(reading: Reading, logged: Logged) -> None:
    for _ in range(3):
        await reading.cluster.poll()
    assert reading.taken == [{"client-id:etl": {"producer_byte_rate": 950_000}}]
    assert logged() == [("cluster_quotas_read", {"entities": 1, "each_times": 1, "share": 0.95})]
    await reading.reads(etl(2_000_000), ClientQuota({"user": None}, {"consumer_byte_rate": 5.0}))
    assert reading.taken[1:] == [
        {"client-id:etl": {"producer_byte_rate": 1_900_000}, "user:<default>": {"consumer_byte_rate": 4}}
    ]
    await reading.reads()
    assert reading.taken[2:] == [{}], "the last one was deleted"
    assert reading.is_ok
    assert METADATA not in reading.broker.asked, "nobody needs it"


async def test_per_broker_follows_the_number_of_brokers(reading: Reading) -> None:
    reading.begin("per-broker")
    for brokers in (3, 3, 4, 2, 0):
        reading.now += GRACE_SECONDS
        reading.broker.answers[METADATA] = metadata(brokers)
        await reading.cluster.poll()
    assert reading.rates == [3_000_000, 4_000_000, 2_000_000, 1_000_000], "at least the one that answers"


async def test_a_rolling_restart_lowers_nothing_and_a_new_broker_counts_at_once(reading: Reading) -> None:
    """Each of three is away for a minute; then one is taken away for good."""
    reading.begin("per-broker")
    for second in range(0, 1_200, 10):
        reading.now = second
        reading.broker.answers[METADATA] = metadata(2 if second % 120 >= 60 else 3)
        await reading.cluster.poll()
    assert reading.rates == [3_000_000]
    reading.now = 1_200
    reading.broker.answers[METADATA] = metadata(4)
    await reading.cluster.poll()
    reading.broker.answers[METADATA] = metadata(3)
    for second in range(0, int(GRACE_SECONDS) + 10, 10):
        assert reading.rates == [3_000_000, 4_000_000]
        reading.now = 1_200 + second
        await reading.cluster.poll()
    assert reading.rates == [3_000_000, 4_000_000, 3_000_000]


async def test_what_was_read_last_stays_and_each_reason_is_said_once(reading: Reading, logged: Logged) -> None:
    await reading.cluster.poll()
    logged()
    refused = response(error=ErrorCode.cluster_authorization_failed)
    for answers, reason, hint in (
        ({QUOTAS: refused}, "cluster_authorization_failed", "User:NAME --operation DescribeConfigs --cluster"),
        ({VERSIONS: versions(VERSIONS)}, "not_offered", "--quotas-file"),
        ({VERSIONS: None}, "closed_early", "security.protocol in --own-client-config FILE"),
        ({QUOTAS: None}, "closed_early", None),
        ({QUOTAS: response()[:-1]}, "truncated_frame", None),
        ({QUOTAS: b"\x00\x00\x00"}, "connect_failed", None),
        # An empty list would lift all limits.
        ({QUOTAS: OTHER + response()[4:]}, "connect_failed", None),
        ({VERSIONS: OTHER + versions(VERSIONS, QUOTAS)[4:]}, "connect_failed", None),
        ({QUOTAS: response() + b"\x00"}, "malformed_frame", None),
        ({QUOTAS: no_list()}, "malformed_frame", None),
        ({QUOTAS: response(error=ErrorCode.unknown_server_error)}, "unknown_server_error", None),
    ):
        before = dict(reading.broker.answers)
        reading.broker.answers |= answers
        for _ in range(3):
            await reading.cluster.poll()
            assert not reading.is_ok
        found = logged()
        assert [name for name, _ in found] in (["cluster_quotas_failed"], []), "the reason of before is not repeated"
        for _, fields in found:
            assert str(fields["message"]).startswith(reason)
            assert hint is None or hint in str(fields["hint"])
        assert reason in str(reading.metrics.reloads["cluster"]["errors"])
        reading.broker.answers = before
    await reading.cluster.poll()
    assert reading.is_ok
    assert [name for name, _ in logged()] == ["cluster_quotas_read", "cluster_quotas_recovered"]
    assert reading.rates == [1_000_000] * 2
    reading.broker.answers[VERSIONS] = None
    await reading.cluster.poll()
    reading.broker.answers[VERSIONS] = versions(VERSIONS, QUOTAS)
    await reading.cluster.poll()
    assert [name for name, _ in logged()] == ["cluster_quotas_failed", "cluster_quotas_recovered"]
    assert len(reading.rates) == 2, "the answer is the one that applies"


async def test_a_broker_that_is_away_changes_nothing_and_the_next_one_is_asked(
    reading: Reading, logged: Logged
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        gone = unused.getsockname()[:2]
    reading.begin(bootstrap_servers=(gone,))
    await reading.cluster.poll()
    [(name, fields)] = logged()
    assert name == "cluster_quotas_failed"
    assert f"connect_refused: 127.0.0.1:{gone[1]}: Connection refused" in str(fields["message"])
    reading.begin(bootstrap_servers=(gone, reading.address, gone))
    for _ in range(2):
        await reading.cluster.poll()
    assert reading.rates == [1_000_000]


async def test_a_response_that_is_too_large_is_not_read(
    reading: Reading, logged: Logged, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ClusterReader, "max_bytes", 100)
    await reading.cluster.poll()
    await reading.reads(*[etl(2_000_000)] * 9)
    assert reading.rates == [1_000_000]
    _, (name, fields) = logged()
    assert (name, "more than 100" in str(fields["message"])) == ("cluster_quotas_failed", True)


async def test_a_bad_answer_is_read_once(reading: Reading, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may take seconds, and it comes again each time."""
    read = list[object]()

    def entries_in(answer: cluster_quotas.ClusterAnswer, options: QuotaOptions) -> ClusterEntries:
        read.append(answer)
        return real(answer, options)

    real = cluster_quotas.entries_in
    monkeypatch.setattr(cluster_quotas, "entries_in", entries_in)
    reading.broker.answers[QUOTAS] = response()[:-1]
    for _ in range(3):
        await reading.cluster.poll()
    assert (len(read), reading.is_ok) == (1, False)
    reading.cluster.read_now()
    await reading.cluster.poll()
    assert len(read) == 2, "at SIGHUP it is read again: a host name may resolve now"


async def test_what_is_not_enforced_is_named_once(reading: Reading, logged: Logged) -> None:
    quota = ClientQuota({"user": "a"}, {"request_percentage": 50.0})
    for quotas in ((quota,), (quota, etl(1)), (quota, ClientQuota({"user": "b"}, {"rack_rate\n": 1.0}))):
        await reading.reads(*quotas)
    left_out = [fields for name, fields in logged() if name == "cluster_quotas_left_out"]
    assert [fields["limits"] for fields in left_out] == [
        "request_percentage of 1 entities",
        "rack_rate\n of 1 entities",
    ]


async def test_a_broker_that_invents_limits_fills_no_memory(reading: Reading, logged: Logged) -> None:
    for number in range(300):
        await reading.reads(ClientQuota({"user": "a"}, {f"x{number}": 1.0}))
    assert sum(name == "cluster_quotas_left_out" for name, _ in logged()) == cluster_quotas.MAX_NAMED


async def test_a_defect_does_not_end_the_reading(
    reading: Reading, logged: Logged, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_quotas, "REST_SECONDS", 0.001)
    monkeypatch.setattr(cluster_quotas, "PAUSE_SECONDS", (0.001, 0.001))
    fail, taken = [ArithmeticError("a defect")], asyncio.Event()

    async def take(_: tuple[QuotaEntry, ...]) -> None:
        if fail:
            raise fail.pop()
        taken.set()

    running = asyncio.ensure_future(ClusterQuotas(reading.config, take, reading.metrics, Host()).run())
    await taken.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert "defect: a defect" in str(logged()[0])


async def test_signals_ask_no_faster_and_one_request_is_in_flight(
    reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand signals while a broker does not answer are one more reading, after the rest."""
    monkeypatch.setattr(cluster_quotas, "PAUSE_SECONDS", (3600, 3600))
    rests, may_go_on = list[float](), asyncio.Event()

    async def sleep(seconds: float) -> None:
        rests.append(seconds)
        await may_go_on.wait()
        may_go_on.clear()

    monkeypatch.setattr(asyncio, "sleep", sleep)
    reading.broker.may_answer.clear()
    running = asyncio.ensure_future(reading.cluster.run())
    asked = reading.broker.asked

    async def turns(condition: Callable[[], object]) -> None:
        async with asyncio.timeout(20):
            while not condition():
                done = asyncio.get_running_loop().create_future()
                asyncio.get_running_loop().call_later(0.0005, done.set_result, None)
                await done

    await turns(lambda: asked)
    for _ in range(1_000):
        reading.cluster.read_now()
    reading.broker.may_answer.set()
    await turns(lambda: rests)
    for _ in range(1_000):
        reading.cluster.read_now()
    assert asked == [VERSIONS, QUOTAS]
    may_go_on.set()
    await turns(lambda: len(rests) == 2)
    assert asked == [VERSIONS, QUOTAS] * 2
    may_go_on.set()
    await turns(lambda: not may_go_on.is_set())
    assert asked == [VERSIONS, QUOTAS] * 2, "nothing is asked for now"
    assert (rests, reading.broker.most_open) == ([cluster_quotas.REST_SECONDS] * 2, 1)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_the_proxys_own_login_is_read_again_for_each_connection(
    reading: Reading, logged: Logged, tmp_path: Path
) -> None:
    reading.broker.login = SaslBroker("quota-reader", "right-and-secret")
    file = tmp_path / "own.properties"
    login = "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\nsasl.username=quota-reader\n"
    file.write_text(f"{login}sasl.password=wrong-and-secret\n")
    reading.begin(internal_client=read_client_settings(file))
    await reading.cluster.poll()
    [(name, fields)] = logged()
    assert (name, str(fields["message"])[:13]) == ("cluster_quotas_failed", "login_refused")
    assert f"sasl.jaas.config in --own-client-config {file}" in str(fields["hint"])
    assert "secret" not in str(fields)
    file.write_text(f"{login}sasl.password=right-and-secret\n")
    await reading.cluster.poll()
    assert reading.rates == [1_000_000]
    reading.broker.answers[QUOTAS] = response(error=ErrorCode.cluster_authorization_failed)
    await reading.cluster.poll()
    assert "--allow-principal User:quota-reader --operation" in str(logged()[-1][1]["hint"])


async def test_it_ends_while_a_broker_hangs(reading: Reading) -> None:
    reading.broker.may_answer.clear()
    running = asyncio.ensure_future(reading.cluster.run())
    await until(lambda: reading.broker.asked)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert running.cancelled()
    reading.broker.may_answer.set()
    await until(lambda: not reading.broker.open)
