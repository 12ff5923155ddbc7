"""`simulate`: what quotas would do to clients, held against the rules that the pages document."""

import json
import shlex
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from click.testing import CliRunner, Result

from proxy.command.commands import main
from simulation.demand import parse_demand
from simulation.forecast import ClientForecast, Forecast, forecast
from simulation.forecast_chart import svg_of

OWN = '[[quota]]\nclient-id = "etl"\nproducer_byte_rate = "{}"\n'
TOTAL = '[[quota]]\ntotal = true\nproducer_byte_rate = "{}"\n'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "quotas.toml"


def seen(file: Path, quotas: str, *clients: str, seconds: int = 20) -> Forecast:
    file.write_text(quotas)
    return forecast(file, [parse_demand(each) for each in clients], seconds)


def only(found: Forecast) -> ClientForecast:
    [client] = found.clients
    return client


def near(value: float) -> Any:
    return pytest.approx(value, rel=0.1)


# ---- the forecast


def test_a_client_is_held_to_its_own_limit_and_another_one_is_not_touched(file: Path) -> None:
    found = seen(file, OWN.format("200kB"), "etl: 600kB/s, 2 connections", "web: 100kB/s")
    etl, web = found.clients
    assert etl.bytes_per_second == near(200_000 * 21 / 20)  # and a burst of one second
    assert all(rate <= 250_000 for rate in etl.rates[3:])
    assert etl.held_ratio > 0.9
    assert [(each["limit"], each["entity"]) for each in etl.limits] == [("producer_byte_rate", "client-id:etl")]
    assert etl.limits[0]["seconds"] == near(2 * 20)
    assert (etl.verdict, etl.expired_ratio) == ("limit", 0)
    assert etl.longest_wait_seconds > 10
    assert web.bytes_per_second == near(100_000)
    assert (web.held_ratio, web.limits, web.verdict) == (0, [], "client")
    assert web.longest_wait_seconds < 0.1
    assert found.shared_limits == []


def test_two_clients_share_a_total_evenly_and_a_small_one_gets_all_that_it_wants(file: Path) -> None:
    clients = "etl: 600kB/s, 30kB requests", "web: 600kB/s, 30kB requests", "small: 50kB/s, 5kB requests"
    found = seen(file, TOTAL.format("300kB"), *clients)
    etl, web, small = (each.bytes_per_second for each in found.clients)
    assert etl == pytest.approx(web, rel=0.03)
    assert small == near(50_000)
    [shared] = found.shared_limits
    assert (shared.limit, shared.entity, shared.limit_value) == ("producer_byte_rate", "total", 300_000)
    assert list(shared.shares) == ["etl", "web", "small"]
    assert sum(shared.shares.values()) == pytest.approx(1, abs=0.001)
    assert shared.shares["etl"] == pytest.approx(etl / (etl + web + small), abs=0.001)
    assert 1 <= shared.used_ratio < 1.2


@pytest.mark.claim("limits", "below 280 kB/s per Java producer records expire, and above it they do not")
@pytest.mark.parametrize(("limit", "expires"), [("500kB", True), ("600kB", False)])
def test_records_expire_where_a_limit_is_too_small_for_the_buffers(file: Path, limit: str, expires: bool) -> None:
    found = only(seen(file, OWN.format(limit), "etl: 6MB/s, 2 connections", seconds=30))
    assert (found.expired_ratio > 0) == expires
    assert found.longest_wait_seconds == near(2 * 33_554_432 / (500_000 if expires else 600_000))


def test_only_records_of_the_asked_time_are_waited_for(file: Path) -> None:
    found = only(seen(file, OWN.format("100kB"), "etl: 120kB/s"))
    assert found.longest_wait_seconds == near((20 * 20_000 - 100_000) / 100_000)  # its backlog, less the burst


def test_a_consumer_is_held_to_its_limit_and_reads_later_and_later(file: Path) -> None:
    quotas = '[[quota]]\nclient-id = "reader"\nconsumer_byte_rate = "100kB"\n'
    found = only(seen(file, quotas, "reader: consume 200kB/s"))
    assert found.direction == "consume"
    assert found.bytes_per_second == near(100_000 * 21 / 20)
    assert found.limits[0]["limit"] == "consumer_byte_rate"
    assert found.waits[-1] > found.waits[10] > found.waits[2]
    free = only(seen(file, "# empty", "reader: consume 200kB/s"))
    assert free.bytes_per_second == near(200_000)
    assert free.longest_wait_seconds < 0.2


def test_what_no_client_meets_is_named(file: Path) -> None:
    user = '[[quota]]\nuser = "alice"\nproducer_byte_rate = "1MB"\n'
    both = '[[quota]]\nclient-id = "etl"\nconsumer_byte_rate = "1MB"\nproducer_byte_rate = "1MB"\n'
    found = seen(file, user + both, "etl: 10kB/s", seconds=10)
    assert found.not_exercised == ["user:alice", "consumer_byte_rate of client-id:etl"]


def test_limits_by_topic_and_by_address(file: Path) -> None:
    topic = '[[quota]]\ntopic = "audit"\nmessages_in_rate = 20\n'
    address = '[[quota]]\nip = "10.1.2.3"\nconnections = 1\n'
    writers = [f"{name}: 100kB/s, 5kB requests, to audit" for name in ("etl", "batch")]
    found = seen(file, topic + address, *writers, "web: 10kB/s, 2 connections, from 10.1.2.3")
    etl, batch, web = found.clients
    assert etl.bytes_per_second + batch.bytes_per_second == near(20 * 1_000 * 21 / 20)  # records of 1 kB
    [shared] = found.shared_limits
    assert (shared.entity, shared.shares) == ("topic:audit", {"etl": near(0.5), "batch": near(0.5)})
    assert shared.used_ratio == near(21 / 20)
    assert etl.limits[0]["entity"] == "topic:audit"
    assert web.bytes_per_second == near(5_000)
    assert "connections: ip:10.1.2.3" in found.refused[0]


def test_a_dry_run_is_shown_as_it_would_be_enforced(file: Path) -> None:
    found = seen(file, "dry_run = true\n" + OWN.format("50kB"), "etl: 100kB/s", seconds=10)
    assert found.is_dry_run
    assert only(found).bytes_per_second == near(55_000)


def test_a_seed_gives_one_forecast(file: Path) -> None:
    quotas, client = OWN.format("50kB"), "etl: 100kB/s, 3 connections"
    assert seen(file, quotas, client, seconds=10) == seen(file, quotas, client, seconds=10)


def test_the_picture_has_a_line_for_each_client_in_both_panels(file: Path) -> None:
    found = seen(file, "# empty", "a<b: 10kB/s", *(f"c{n}: 1kB/s" for n in range(8)), seconds=10)
    picture = ET.fromstring(svg_of(found))  # noqa: S314 - our own
    name = "{http://www.w3.org/2000/svg}"
    assert len(list(picture.iter(f"{name}polyline"))) == 2 * 9
    assert "a<b" in [each.text for each in picture.iter(f"{name}text")]


# ---- the command


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["simulate", *arguments])


def test_the_command_prints_a_table_shares_and_a_sentence_for_each_client(file: Path) -> None:
    file.write_text(TOTAL.format("100kB"))
    clients = "--client", "etl: 200kB/s", "--client", "web: 20kB/s"
    found = invoke(str(file), *clients, "--for", "10s", "--picture", str(file.with_suffix(".svg")))
    assert found.exit_code == 0
    lines = found.output.splitlines()
    assert lines[0].split("  ")[0] == "CLIENT"
    assert [line.split()[0] for line in lines[1:3]] == ["etl", "web"]
    assert lines[4].startswith("producer_byte_rate of total, 100 kB/s, is 1")
    assert "etl: a limit of this proxy is holding it back" in lines
    assert f"raise producer_byte_rate in the entry total=true ({file}:1)" in found.output
    assert file.with_suffix(".svg").read_text().startswith("<svg ")


def test_the_page_shows_what_the_command_prints(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs/how-to.md").read_text()
    _, quotas = page.split("### 4. ")[1].split("```")[:2]
    command, _, printed = page.split("```console\n$ kafka-quota-proxy simulate ")[1].split("```")[0].partition("\n")
    file.write_text(quotas.removeprefix("toml\n"))
    monkeypatch.chdir(file.parent)
    assert invoke(*shlex.split(command)).output == printed


def test_json_has_the_documented_keys(file: Path) -> None:
    file.write_text(OWN.format("50kB"))
    found = json.loads(invoke(str(file), "--client", "etl: 100kB/s", "--for", "10s", "--json").output)
    assert list(found) == list(Forecast._fields)
    [client] = found["clients"]
    assert list(client) == list(ClientForecast._fields)
    assert len(client["rates"]) == len(client["waits"]) == 10


@pytest.mark.parametrize(
    ("client", "message", "hint"),
    [
        ("etl 5MB/s", "expected 'NAME: [consume] RATE", "put a colon behind the client id"),
        (": 5MB/s", "expected a name, not an empty one", ""),
        ("etl: 5MBs", "unknown unit 'MBs'", "did you mean 'MB'?"),
        ("etl: 5MB/min", "limits are per second, not per min", ""),
        ("etl: 5MB, 0 connections", "expected from 1 to 1,000 connections, not 0", ""),
        ("etl: 5MB, 4 conections", "not '4 conections'", "did you mean 'connections'?"),
        ("etl: 5MB, 2MB requests", "requests of 100 to 1,048,576 bytes, not 2MB", ""),
        ("etl: 5MB, from nowhere", "expected an IP address, not 'nowhere'", "as in 'etl: 5MB/s, from 10.1.2.3'"),
        ("etl: consume 5MB, to events", "a consumer has only connections and an address", "leave out"),
    ],
)
def test_a_client_that_cannot_be_read_is_one_error_with_a_hint(
    file: Path, client: str, message: str, hint: str
) -> None:
    file.write_text("# empty")
    found = invoke(str(file), "--client", client)
    assert found.exit_code == 2
    first, *rest = found.output.splitlines()
    assert first.startswith(f"error: --client {client!r}: ")
    assert message in first
    assert hint in "\n".join(rest)
    assert len(rest) <= 1


def test_other_mistakes_are_errors_of_their_places(file: Path) -> None:
    one = "--client", "etl: 1kB/s"
    file.write_text('[[quota]]\nclient-id = "etl"\nproducer_byte_rat = "5MB"\n')
    found = invoke(str(file), *one)
    assert found.exit_code == 2
    assert found.output.splitlines() == [
        f"error: {file}: quota[0].producer_byte_rat: unknown key 'producer_byte_rat'",
        "  did you mean 'producer_byte_rate'?",
    ]
    file.write_text("# empty")
    assert "'etl' is given twice" in invoke(str(file), *one, *one).output
    assert "expected FILE.svg, not 'a.png'" in invoke(str(file), *one, "--picture", "a.png").output
    assert "--for '1s'" in invoke(str(file), *one, "--for", "1s").output
    assert invoke(str(file)).exit_code == invoke("none.toml", *one).exit_code == 2
