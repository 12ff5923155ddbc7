"""The Java client, in Kafka's own console and perf tools, through the proxy."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.conftest import UniqueName
from tests.integration.java_tools import run_tool
from tests.integration.librdkafka import produce, producer_for
from tests.integration.scanned_proxy import ScannedProxy
from tests.integration.three_brokers.test_confluent import share_from_the_start

RECORDS = 500


def lines_of(text: str) -> list[str]:
    return [line for line in text.splitlines() if line]


def _consume(front: ScannedProxy, topic: str, count: int, *more: str) -> list[str]:
    printed = run_tool(
        "consumer.ConsoleConsumer",
        *("--bootstrap-server", front.bootstrap_servers, "--topic", topic, "--max-messages", str(count)),
        *("--timeout-ms", "60000", "--from-beginning", *more),
    )
    return lines_of(printed)


@pytest.mark.timeout(250)
def test_console_tools_in_groups_of_both_protocols_and_to_share(front: ScannedProxy, unique_name: UniqueName) -> None:
    topic, share_group = front.create_topic(unique_name("console")), unique_name("share")
    servers = ("--bootstrap-server", front.bootstrap_servers)
    sent = [f"line-{number}" for number in range(RECORDS)]
    produce(producer_for(front), topic, [each.encode() for each in sent])
    share_from_the_start(front, share_group)
    with ThreadPoolExecutor(3) as pool:  # most of the time of each is a JVM's start, and waits for its group
        reading = [
            pool.submit(_consume, front, topic, len(sent), "--group", unique_name(protocol), *of_protocol)
            for protocol in ("classic", "consumer")
            for of_protocol in [("--command-property", f"group.protocol={protocol}")]
        ]
        received = run_tool(
            "consumer.ConsoleShareConsumer",
            *(*servers, "--topic", topic, "--group", share_group),
            *("--max-messages", str(len(sent)), "--timeout-ms", "60000"),
        )
    for printed in (lines_of(received), *(each.result() for each in reading)):
        assert sorted(printed) == sorted(sent)
