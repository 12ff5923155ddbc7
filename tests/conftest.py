"""Fixtures every test may ask for, and Hypothesis's profiles.

`kafka_cluster` and `kafka_cluster3` are real brokers, started when the first test asks for them and shared by the whole
session: use topics, groups and client ids of your own (`unique_name`). Without Java such tests fail; they never skip.
"""

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

from deploy.local.cluster import KafkaCluster
from deploy.local.errors import PlaygroundError

# No deadline: other work on the machine would make examples "too slow" that are not.
settings.register_profile("default", deadline=None)
settings.register_profile("nightly", deadline=None, max_examples=1_000)
settings.load_profile("default")


class FileScheduling(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """One process runs all tests of a file, and all of a folder of the pipeline: these share a Spark session."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        return path.rpartition("/")[0] if path.startswith("tests/pipeline/") else path


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FileScheduling | None:
    """In place of xdist's groups, which it writes into node ids: pytest 9.2 has no place for that."""
    return FileScheduling(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.fixture(scope="session")
def kafka_cluster() -> Iterator[KafkaCluster]:
    """One broker, Kafka 4.3.1, on 127.0.0.2."""
    yield from _running(KafkaCluster(1))


@pytest.fixture(scope="session")
def kafka_cluster3() -> Iterator[KafkaCluster]:
    """Three brokers, Kafka 4.3.1, on 127.0.0.2 to .4. Whoever stops one starts it again before the test ends."""
    yield from _running(KafkaCluster(3))


@pytest.fixture
def unique_name() -> Callable[[str], str]:
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
