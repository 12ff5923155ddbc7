"""The Java client, in Kafka's own console and perf tools, through the proxy."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.integration.java_tools import run_tool
from tests.integration.scanned_proxy import ScannedProxy

RECORDS = 500
RECORD_BYTES = 200
WAYS = {
    "acks-0": ("acks=0", "enable.idempotence=false"),
    "acks-1": ("acks=1", "enable.idempotence=false"),
    "acks-all": ("acks=all", "enable.idempotence=false"),
    "idempotent": ("acks=all", "enable.idempotence=true"),
}


def perf(front: ScannedProxy, topic: str, *more: str, properties: tuple[str, ...] = ()) -> str:
    return run_tool(
        "ProducerPerformance",
        *("--bootstrap-server", front.bootstrap_servers, "--topic", topic, "--throughput", "-1"),
        *("--num-records", str(RECORDS), "--record-size", str(RECORD_BYTES), *more),
        *(("--command-property", *properties) if properties else ()),  # given twice, the last one wins
    )


def lines_of(text: str) -> list[str]:
    return [line for line in text.splitlines() if line]


def offsets(front: ScannedProxy, topic: str) -> int:
    """How many records (and transaction markers) the topic has had."""
    printed = run_tool("GetOffsetShell", "--bootstrap-server", front.bootstrap_servers, "--topic", topic)
    return sum(int(line.rsplit(":", 1)[1]) for line in lines_of(printed))


@pytest.mark.timeout(200)
def test_the_perf_producer_in_every_way_and_the_perf_consumer(
    front_of: ScannedProxy, unique_name: Callable[[str], str]
) -> None:
    topic = front_of.create_topic(unique_name("perf"))
    transactional = ("--transactional-id", unique_name("tx"), "--transaction-duration-ms", "100")
    with ThreadPoolExecutor(2) as pool:  # half the time of each goes into starting a JVM
        ways = [pool.submit(perf, front_of, topic, properties=properties) for properties in WAYS.values()]
        ways.append(pool.submit(perf, front_of, topic, *transactional))
    assert all(f"{RECORDS} records sent" in way.result() for way in ways)
    count = RECORDS * (len(WAYS) + 1)
    assert offsets(front_of, topic) > count, "the records of all ways, and the markers of the transactions"
    printed = run_tool(
        "ConsumerPerformance",
        *("--bootstrap-server", front_of.bootstrap_servers, "--topic", topic),
        *("--num-records", str(count), "--timeout", "60000", "--group", unique_name("group")),
        "--hide-header",
    )
    assert int(printed.split(",")[4]) >= count


def _consume(front: ScannedProxy, topic: str, count: int, *more: str) -> Iterator[str]:
    printed = run_tool(
        "consumer.ConsoleConsumer",
        *("--bootstrap-server", front.bootstrap_servers, "--topic", topic, "--max-messages", str(count)),
        *("--timeout-ms", "60000", "--from-beginning", *more),
    )
    yield from lines_of(printed)


@pytest.mark.timeout(250)
def test_the_console_tools_in_both_group_protocols_and_a_share_group(
    front_of: ScannedProxy, unique_name: Callable[[str], str]
) -> None:
    topic, share_group = front_of.create_topic(unique_name("console")), unique_name("share")
    servers = ("--bootstrap-server", front_of.bootstrap_servers)
    sent = [f"line-{number}" for number in range(RECORDS)]
    run_tool("ConsoleProducer", *servers, "--topic", topic, stdin="\n".join(sent).encode())
    for protocol in ("classic", "consumer"):
        settings = ("--group", unique_name(protocol), "--command-property", f"group.protocol={protocol}")
        assert sorted(_consume(front_of, topic, len(sent), *settings)) == sorted(sent)
    run_tool(
        "kafka.admin.ConfigCommand",
        *(*servers, "--alter", "--entity-type", "groups", "--entity-name", share_group),
        *("--add-config", "share.auto.offset.reset=earliest"),
    )
    received = run_tool(
        "consumer.ConsoleShareConsumer",
        *(*servers, "--topic", topic, "--group", share_group),
        *("--max-messages", str(len(sent)), "--timeout-ms", "60000"),
    )
    assert sorted(lines_of(received)) == sorted(sent)
