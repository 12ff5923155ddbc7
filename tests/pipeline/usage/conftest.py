"""A Spark session for this folder. It ends with the folder: other tests start and end Spark too."""

import gc
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pipeline.usage.session import FEW_ROWS, session
from pipeline.usage.tables import Warehouse


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """PySpark's collect() leaves its socket to the garbage collector."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))


@pytest.fixture(scope="package")
def spark() -> Iterator[SparkSession]:
    """One core, 1 GB of heap, UTC, with Delta and Kafka.

    For a few rows, compiled code takes longer than it saves, be it Spark's or the JVM's; so does planning again after
    each shuffle.
    """
    with session(cores=1, settings=FEW_ROWS, short=True) as running:
        yield running
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture
def warehouse(spark: SparkSession, tmp_path: Path) -> Warehouse:
    """Tables of this test only."""
    return Warehouse(spark, str(tmp_path / "warehouse"))
