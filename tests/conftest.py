"""Fixtures every test may ask for, Hypothesis's profiles, and the end of a test that hangs.

`kafka_cluster` and `kafka_cluster3` are real brokers, started when the first test asks for them and shared by the whole
session: use topics, groups and client ids of your own (`unique_name`). Without Java such tests fail; they never skip.
"""

import faulthandler
import gc
import os
import sys
import uuid
from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

from deploy.local.cluster import KafkaCluster
from deploy.local.errors import PlaygroundError
from deploy.local.security import Security

# No deadline: other work on the machine would make examples "too slow" that are not.
settings.register_profile("default", deadline=None)
settings.register_profile("nightly", deadline=None, max_examples=1_000)
settings.load_profile("default")

UniqueName = Callable[[str], str]

#: How long a session of SASL is valid, by mechanism, in `secured_cluster`.
SESSIONS_MS = {"SCRAM-SHA-256": 6_000, "SCRAM-SHA-512": 20_000}

_INTEGRATION = "tests/integration/"
#: What starts slowly, and the folders and files that share one; then single files. The longest begins first, and so on,
#: so that the processes end at about the same time.
TOGETHER = {
    "operators' tools with a broker": tuple(
        f"tests/deploy/operator/test_{each}.py" for each in ("spark", "checkpoints", "alerts", "monitoring")
    ),
    "operators' image": ("tests/deploy/operator/test_image.py",),
    "operators' unit": ("tests/deploy/operator/test_systemd.py",),
    "reports in Spark": tuple(
        f"tests/pipeline/usage/test_{each}.py" for each in ("report_job", "missing", "blame", "rules", "closing")
    ),
    "the rest in Spark": ("tests/pipeline/",),
    "a secured broker": tuple(
        f"{_INTEGRATION}test_{each}.py"
        for each in (
            *("sasl", "own_login", "tls", "connection_age", "broken_lines", "old_librdkafka", "kafka_configs"),
        )
    ),
    "three brokers": (f"{_INTEGRATION}three_brokers/",),
    "a broker that goes": (f"{_INTEGRATION}test_broker_down.py",),
    "a Spark job": (f"{_INTEGRATION}test_spark.py", f"{_INTEGRATION}test_sink.py"),
    "the demo": ("tests/demo/test_demo.py",),
    "a broker of the playground": ("tests/deploy/test_command.py",),
    **{
        each: (f"{_INTEGRATION}test_{each}.py",)
        for each in (
            *("explain", "cluster_quotas", "fleet", "live_change", "telemetry", "transactions", "patience"),
            *("usage_records", "usage_by_topic", "threshold_quota"),
        )
    },
}


class FileScheduling(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """One process runs all tests of a file, and all of a group of `TOGETHER`."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        return next((group for group, paths in TOGETHER.items() if path.startswith(paths)), path)

    def _assign_work_unit(self, node: Any) -> None:
        group = next((group for group in TOGETHER if group in self.workqueue), None)
        if group is not None:
            self.workqueue.move_to_end(group, last=False)
        super()._assign_work_unit(node)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FileScheduling | None:
    """In place of xdist's groups, which it writes into node ids: pytest 9.2 has no place for that."""
    return FileScheduling(config, log) if config.getoption("dist") == "loadfile" else None


STDERR = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    """Keep the true standard error: pytest has not yet replaced it."""
    config.stash[STDERR] = os.dup(2)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """End the process, and print where it hangs, if pytest-timeout fails: an event loop may swallow its exception."""
    end_process_later(item)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(trylast=True)
def pytest_exception_interact(node: pytest.Item | pytest.Collector) -> None:
    """After a failure both pytest and pytest-timeout stop their timers; the teardown is still to come."""
    if isinstance(node, pytest.Item):
        end_process_later(node)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Start a rerun without what the failed attempt left behind.

    Coroutines that a timeout interrupted complain when they are collected, and pytest would fail the rerun for that.
    """
    if getattr(item, "execution_count", 1) > 1:
        for name in ("last_exc", "last_type", "last_value", "last_traceback"):  # pytest keeps its frames there
            if hasattr(sys, name):
                delattr(sys, name)
        reported, sys.unraisablehook = sys.unraisablehook, lambda _: None
        gc.collect()
        sys.unraisablehook = reported


def end_process_later(item: pytest.Item) -> None:
    mark = item.get_closest_marker("timeout")
    seconds = float(mark.args[0] if mark else item.config.getini("timeout"))
    faulthandler.dump_traceback_later(1.25 * seconds, file=item.config.stash[STDERR], exit=True)


@pytest.fixture(scope="session")
def kafka_cluster() -> Iterator[KafkaCluster]:
    """One broker, Kafka 4.3.1, on 127.0.0.2. It aborts transactions soon after their timeout: every half second."""
    overrides = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "500"}
    yield from _running(KafkaCluster(1, overrides=overrides))


@pytest.fixture(scope="session")
def kafka_cluster3() -> Iterator[KafkaCluster]:
    """Three brokers, Kafka 4.3.1, on 127.0.0.2 to .4. Whoever stops one starts it again before the test ends."""
    yield from _running(KafkaCluster(3))


@pytest.fixture(scope="session")
def security() -> Security:
    """The CA and the users of `secured_cluster`."""
    return Security()


@pytest.fixture(scope="session")
def secured_cluster(security: Security) -> Iterator[KafkaCluster]:
    """One broker that also listens with SSL, SASL_SSL and SASL_PLAINTEXT (`secure_addresses`).

    On SASL_SSL it ends a session of SCRAM after `SESSIONS_MS` unless its client logs in again.
    """
    overrides = {
        f"listener.name.sasl_ssl.{mechanism.lower()}.connections.max.reauth.ms": f"{lifetime_ms}"
        for mechanism, lifetime_ms in SESSIONS_MS.items()
    }
    yield from _running(KafkaCluster(1, overrides=overrides, security=security))


@pytest.fixture
def unique_name() -> UniqueName:
    """Names topics, groups and clients as no other test does: `unique_name("orders")` → `orders-3f2a91c0`."""
    return lambda prefix: f"{prefix}-{uuid.uuid4().hex[:8]}"


def _running(cluster: KafkaCluster) -> Iterator[KafkaCluster]:
    problem = ""
    try:
        cluster.start()
    except PlaygroundError as error:
        problem = str(error)
    if problem:  # told here, so that it comes without the traceback
        pytest.fail(problem, pytrace=False)
    with cluster:
        yield cluster
