"""The FOCUS export before focus-validator, the specification's own checker, in an environment of its own."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from demo.fleet import EXAMPLE_PRICES
from deploy.local.artifacts import CACHE
from pipeline.usage import price_list
from pipeline.usage.jobs.export import export_focus
from pipeline.usage.tables import Warehouse
from pipeline.usage.transforms.chargeback import chargeback_daily
from tests.pipeline.usage.test_money import INVOICE, measured

VALIDATOR = "focus-validator==2.2.1"
ARROW = "pyarrow==19.0.1"
"""It takes NumPy 1 only, and says nothing of pyarrow's versions, of which newer ones do not."""
ONLY_SINCE_3_12 = r"""f"'{k.replace('\"', '\"\"')}'" for k in"""
READ_BY_3_11 = """"'" + k.replace('"', '""') + "'" for k in"""
UNSURE = {"InvoiceId-C-000-O", "InvoiceId-C-003-C", "InvoiceId-C-004-C", "InvoiceId-C-005-C"}
"""InvoiceId has to be null, and must not be: it cannot tell which charges are on an invoice."""


@pytest.fixture(scope="module")
def validator() -> str:
    """Its Python, in the project's cache. It asks for Python 3.12: 3.11 cannot read one of its lines, which says the
    same in other words then.
    """
    folder = CACHE / VALIDATOR.replace("==", "-")
    python, done = folder / "bin" / "python", folder / "complete"
    if not done.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        options = ("--quiet", "--disable-pip-version-check", "--retries", "8", "--ignore-requires-python")
        subprocess.run([python, "-m", "pip", "install", *options, VALIDATOR, ARROW], check=True, timeout=1_200)
        (source,) = folder.glob("lib/*/site-packages/focus_validator/config_objects/focus_to_duckdb_converter.py")
        text = source.read_text(encoding="utf-8")
        assert text.count(ONLY_SINCE_3_12) == 1
        source.write_text(text.replace(ONLY_SINCE_3_12, READ_BY_3_11), encoding="utf-8")
        done.touch()
    return str(python)


def failures(python: str, charges: Path) -> tuple[int, set[str]]:
    """How many rules of FOCUS 1.2 the charges meet, and the names of those that they do not."""
    options = ("--validate-version", "1.2", "--focus-dataset", "CostAndUsage", "--block-download")
    (folder,) = Path(python).parents[1].glob("lib/*/site-packages")  # it looks for its files from where it runs
    done = subprocess.run(
        [python, "-m", "focus_validator.main", "--data-file", str(charges), *options],
        cwd=folder, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    found = re.search(r"Total: (\d+) \| Pass: (\d+) \| Fail: (\d+)", done.stdout)
    assert found is not None, done.stdout[-2_000:] + done.stderr[-2_000:]
    named = set(re.findall(r"^\S+ (\S+): FAIL", done.stdout, re.MULTILINE))
    assert (int(found[1]), int(found[3])) == (578, len(named))
    return int(found[2]), named


@pytest.mark.timeout(2_400)
@pytest.mark.nightly
def test_focus_validator_accepts_it(spark: SparkSession, warehouse: Warehouse, tmp_path: Path, validator: str) -> None:
    prices = price_list.parse(EXAMPLE_PRICES + INVOICE)
    rows = [
        (1, "a", "c", "t", "network_in", 10**9),
        (2, "unallocated", "d", None, "requests", 7_000_000),
        (3, "b", "c", "t2", "network_out", 5 * 10**9),
    ]
    charges = chargeback_daily(measured(spark, rows), prices).withColumn("closed_period", f.lit(None).cast("string"))
    warehouse.append("chargeback_daily", charges.coalesce(1))
    (exported,) = Path(export_focus(warehouse, str(tmp_path), "csv", prices)).glob("*.csv")
    passed, failed = failures(validator, exported)
    assert failed == UNSURE
    assert passed >= 130
    wrong = tmp_path / "wrong.csv"
    wrong.write_text(exported.read_text(encoding="utf-8").replace(",EUR,", ",Euro,"), encoding="utf-8")
    _, failed = failures(validator, wrong)
    assert failed - UNSURE >= {"BillingCurrency-C-003-M"}
