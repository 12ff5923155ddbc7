"""The HTTP side, spoken to over a real socket."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, cast

import pytest
from aiohttp import ClientSession

from proxy.admin.answer_page.served import AnswerPage
from proxy.admin.exposition import MetricsPage
from proxy.admin.pages import Pages, start_admin
from proxy.admin.throttles import MAX_SHOWN, ThrottlesPage, table
from proxy.brokers.readiness import Status
from proxy.config.config import Config, ObservabilityOptions
from proxy.config.effective import page_of
from proxy.config.quota_sources import Quotas
from proxy.enforcement.report import ThrottleStatus
from proxy.observability.metrics import Metrics
from tests.proxy.command_line import UPSTREAM, config

EFFECTIVE = config(*UPSTREAM, "--listen", "127.0.0.1:0", "--quota", "client-id=etl,request_rate=5")
CONFIG = Config(bootstrap_servers=(("127.0.0.1", 9092),))
OPTIONS = ObservabilityOptions(metrics_listen=("127.0.0.1", 0))

AS_TEXT = {"Accept": "text/plain"}
WAITING = ThrottleStatus(
    user="ANONYMOUS",
    client_id="etl",
    peer="127.0.0.1:51344",
    limit="producer_byte_rate",
    entity="client-id:etl",
    limit_value=5_000_000,
    waited_seconds=0.4,
    remaining_seconds=1.8,
    mode="notify",
)


async def _ready() -> Status:
    return Status(ok=True, reason="broker-1:9092 answers")


@asynccontextmanager
async def admin(
    options: ObservabilityOptions = OPTIONS,
    *,
    health: Callable[[], Status] = lambda: Status(ok=True, reason="fine"),
    readiness: Callable[[], Awaitable[Status]] = _ready,
    throttles: Callable[[], Iterable[Sequence[ThrottleStatus]]] = tuple,
    exemptions: Callable[[], Sequence[str]] = tuple,
) -> AsyncIterator[ClientSession]:
    activity = cast("Any", None)  # see `test_activity`
    refused = {"at": "2026-11-24T06:05:45+00:00", "ok": False, "errors": ["quotas.toml: is \x1b[31m\n  do"]}
    shown = page_of(EFFECTIVE, Quotas({"--quota": EFFECTIVE.quotas.entries}, 0.5)) | {"reloads": {"config": refused}}
    metrics = MetricsPage(Metrics())
    answer = AnswerPage(activity).respond
    held = ThrottlesPage(throttles, exemptions)
    pages = Pages(metrics, held, lambda: shown, health, readiness, _ready, activity, answer)
    server = await start_admin(options, pages)
    try:
        async with ClientSession(f"http://127.0.0.1:{server.port}") as client:
            yield client
    finally:
        await server.close()


async def text_of(answer: AbstractAsyncContextManager[object]) -> tuple[int, str, str]:
    async with answer as response:
        return response.status, response.content_type, await response.text()  # type: ignore[attr-defined]


async def test_the_configuration_by_source() -> None:
    async with admin() as client:
        page = json.loads((await text_of(client.get("/config")))[2])
        assert page["options"]["listen"] == {"value": "127.0.0.1:0", "source": "flag"}
        assert page["options"]["drain_timeout"] == {"value": "20s", "source": "default"}
        quota = {"quota": "client-id:etl,request_rate=5", "source": "--quota"}
        assert (page["quotas"], page["quota_share"]) == ([quota], 0.5)
        assert page["reloads"]["config"]["ok"] is False
        _, kind, text = await text_of(client.get("/config", headers=AS_TEXT))
        assert kind == "text/plain"
        assert ["listen", "127.0.0.1:0", "(flag)"] in [line.split() for line in text.splitlines()]
        end = "refused, the previous configuration stays in force\n  quotas.toml: is \\u001b[31m\n    do\n"
        assert text.endswith(end)


async def test_browsers_get_the_page_which_may_load_nothing() -> None:
    async with admin() as client:
        async with client.get("/", headers={"Accept": "text/html,*/*;q=0.8"}) as response:
            assert response.content_type == "text/html"
            policy = response.headers["Content-Security-Policy"]
            assert "Is it the proxy?" in await response.text()
        assert policy.startswith("default-src 'none'; ")
        assert (await text_of(client.get("/")))[1] == "text/plain"


async def test_health_and_readiness_say_why() -> None:
    async with admin(health=lambda: Status(ok=False, reason="no listener")) as client:
        assert await text_of(client.get("/healthz")) == (503, "text/plain", "no listener\n")
        assert await text_of(client.get("/readyz")) == (200, "text/plain", "broker-1:9092 answers\n")

    async def no_broker() -> Status:
        return Status(ok=False, reason="no bootstrap server answers ApiVersions")

    async with admin(readiness=no_broker) as client:
        assert await text_of(client.get("/healthz")) == (200, "text/plain", "fine\n")
        assert await text_of(client.get("/readyz")) == (503, "text/plain", "no bootstrap server answers ApiVersions\n")
        assert await text_of(client.get("/started")) == (200, "text/plain", "broker-1:9092 answers\n")


async def test_a_page_that_fails_is_logged_and_the_next_one_works(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> Status:
        raise RuntimeError("a defect")

    async with admin(health=fail) as client:
        assert await text_of(client.get("/healthz")) == (500, "text/plain", "this page failed; the log says why\n")
        assert (await text_of(client.get("/readyz")))[0] == 200
    assert [record.getMessage() for record in caplog.records] == ["page_failed"]


async def test_the_port_answers_to_names_of_the_options() -> None:
    """`localhost` and addresses: see `test_http_server`."""
    options = ObservabilityOptions(metrics_listen=("localhost", 0), metrics_allowed_hosts=("Proxy.svc.",))
    async with admin(options) as client:
        assert (await text_of(client.get("/healthz", headers={"Host": "proxy.svc:1"})))[0] == 200
        status, _, text = await text_of(client.get("/healthz", headers={"Host": "proxy.svc.evil"}))
        assert (status, "--metrics-allowed-host" in text) == (421, True)


@pytest.mark.parametrize("waiting", [[WAITING], []])
async def test_who_waits_as_json_by_default(waiting: Sequence[ThrottleStatus]) -> None:
    exemptions = ["client-id:free: producer_byte_rate=unlimited"]
    async with admin(throttles=lambda: [waiting], exemptions=lambda: exemptions) as client:
        async with client.get("/throttles") as response:
            assert response.content_type == "application/json"
            held = [{name: value for name, value in each._asdict().items() if value is not None} for each in waiting]
            assert await response.json() == {"total": len(waiting), "waiting": held, "exempt": exemptions}
        text = (await text_of(client.get("/throttles", headers=AS_TEXT)))[2]
    assert text.startswith("CLIENT ID" if waiting else "no connection is held\n")
    assert text.endswith(f"exempt: {exemptions[0]}\n")


def test_who_waits_as_a_table_for_people() -> None:
    shared = WAITING._replace(fleet="team", fleet_members=40, allowed_here=1_300_000)
    heading, row = table([WAITING], total=1).splitlines()
    cells = "etl|ANONYMOUS|127.0.0.1:51344|producer_byte_rate|client-id:etl|5000000|0.4 s|1.8 s|notify|debt"
    assert "|".join(" ".join(cell.split()) for cell in row.split("  ") if cell) == cells
    assert heading.index("PEER") == row.index("127.0.0.1"), "columns are aligned"
    assert heading.index("REMAINING") + len("REMAINING") == row.index("1.8 s") + len("1.8 s"), "numbers to the right"
    assert "FLEET" not in heading
    lines = table([WAITING, shared], total=2).splitlines()
    assert lines[0].endswith("FLEET  FLEET MEMBERS  ALLOWED HERE")
    assert lines[2].split()[-3:] == ["team", "40", "1300000"]


async def test_a_long_list_is_cut_and_ordered_by_wait() -> None:
    crowd = [
        ThrottleStatus(f"c{number}", "u", "p", "l", "e", 1, 0, float(number), "notify")
        for number in range(MAX_SHOWN + 5)
    ]
    async with admin(throttles=lambda: [crowd[:70], [], crowd[70:]]) as client:
        async with client.get("/throttles") as response:
            shown = await response.json()
        table = (await text_of(client.get("/throttles", headers=AS_TEXT)))[2]
    assert (shown["total"], len(shown["waiting"])) == (MAX_SHOWN + 5, MAX_SHOWN)
    assert shown["waiting"][0]["client_id"] == f"c{MAX_SHOWN + 4}"
    assert table.endswith("\n... and 5 more\n")


async def test_the_loop_runs_between_groups_of_a_long_list() -> None:
    loop, rounds, begun = asyncio.get_running_loop(), 0, list[int]()

    def count() -> None:
        nonlocal rounds
        rounds += 1
        if rounds_are_counted:
            loop.call_soon(count)

    def groups() -> Iterable[Sequence[ThrottleStatus]]:
        for _ in range(10):
            begun.append(rounds)
            yield [WAITING] * MAX_SHOWN

    rounds_are_counted = True
    async with admin(throttles=groups) as client:
        count()
        await text_of(client.get("/throttles"))
        rounds_are_counted = False
    assert len(set(begun)) == 10


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("*/*", "application/json"),
        ("TEXT/plain; charset=utf-8, */*;q=0.1", "text/plain"),
        ("application/json, text/plain, */*", "application/json"),
        ("text/html, application/xhtml+xml, */*;q=0.8", "application/json"),
    ],
)
async def test_which_accept_headers_mean_the_table(accept: str, kind: str) -> None:
    async with admin() as client:
        assert (await text_of(client.get("/throttles", headers={"Accept": accept})))[:2] == (200, kind)


async def test_what_is_not_there_and_what_is_not_allowed() -> None:
    async with admin() as client:
        status, kind, text = await text_of(client.get("/metric"))
        assert (status, kind, "/metrics" in text) == (404, "text/plain", True)
        for send in (client.post, client.put, client.delete, client.options):
            async with send("/metrics", data=b"ignored") as response:
                assert (response.status, response.headers["Allow"]) == (405, "GET, HEAD")
                assert await response.text() == "405: this port serves GET and HEAD only\n"


@pytest.mark.parametrize("page", ["/", "/metrics", "/healthz", "/readyz", "/throttles"])
async def test_head_has_the_status_and_no_body(page: str) -> None:
    async with admin() as client:
        assert await text_of(client.head(page)) == (200, (await text_of(client.get(page)))[1], "")
