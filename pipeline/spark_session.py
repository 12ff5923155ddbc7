"""A local Spark session for this package's jobs: quiet, on loopback, leaving nothing in the working directory."""

import logging
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException, PySparkRuntimeError
from pyspark.sql import SparkSession

from pipeline.failures import InputError, JobFailedError, reason

# Without it Spark and the Kafka client fill the terminal with hundreds of INFO and WARN lines about their own settings.
_QUIET_LOGS = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n
"""
# The first compiler alone, which has little room for code by default, and the collector without threads of its own. A
# report of some hundred rows, after the start of the session: 94 s of CPU without that compiler, 48 s with it. Classes
# get the room that they need at once, since each step towards it is a full collection.
_COMPILE_LESS = (
    " -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC -XX:NewRatio=1 -XX:MetaspaceSize=256m"
)
# The second compiler for a tenth of the methods, since most generated code runs for seconds, and the collector of least
# work. A report of 20 million records: 198 s of CPU in compilers and collector without this, 137 s with it.
_COMPILE_LATER = (
    " -XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 -XX:Tier4CompileThreshold=150000"
    " -XX:Tier4BackEdgeThreshold=400000 -XX:+UseParallelGC"
)


class SparkStartError(InputError):
    """Spark's JVM did not start; the text ends with the last line that it wrote."""


@contextmanager
def spark_session(
    connector_jars: str,
    *,
    app_name: str = "flights-etl",
    log: Path | None = None,
    settings: Mapping[str, str] | None = None,
    short: bool = False,
) -> Iterator[SparkSession]:
    """A session on two local cores with the Kafka connector loaded. Its JVM is gone when this returns.

    connector_jars: paths, separated by commas. The connector comes as files (`spark.jars`), since `spark.jars.packages`
    would resolve it on every start and fails on a half-filled ~/.m2.
    settings: Spark settings that replace and add to those given here.
    short: for jobs of seconds, whose JVM spends half its time on compiling: it compiles less, and plans a query once.
    log: where the JVM's own output goes; by default it is thrown away with the session's other scratch files.
    Raises SparkStartError.
    """
    with tempfile.TemporaryDirectory(prefix="flights-spark-") as scratch:
        log_config = Path(scratch, "log4j2.properties")
        log_config.write_text(_QUIET_LOGS)
        all_settings = {
            "spark.master": "local[2]",
            "spark.app.name": app_name,
            "spark.jars": connector_jars,
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.memory": "1g",
            "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={log_config} -Djava.io.tmpdir={scratch}"
            f"{_COMPILE_LESS if short else _COMPILE_LATER}",
            "spark.local.dir": scratch,
            "spark.sql.warehouse.dir": f"{scratch}/warehouse",
            "spark.sql.shuffle.partitions": "2",
            # It makes a job of each stage, to plan the next one by: of small tables there is nothing to learn.
            "spark.sql.adaptive.enabled": f"{not short}".lower(),
            # A report has more generated classes than the default of 100: each run would compile them again.
            "spark.sql.codegen.cache.maxEntries": "2000",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            **(settings or {}),
        }
        logging.getLogger("py4j").setLevel(logging.ERROR)
        # It writes each refused query as a line of JSON, besides the error that it raises.
        logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
        _start_jvm(all_settings, Path(scratch), log or Path(scratch, "spark.log"))
        try:
            spark = SparkSession.builder.getOrCreate()
            # Each use of a function looks this name up, as a class of each package that PySpark imports, in all jars.
            functions = "org.apache.spark.sql.functions"
            vars(SparkContext._jvm)[functions] = getattr(SparkContext._jvm, functions)
            try:
                yield spark
            except KeyboardInterrupt:
                kill_spark()  # to stop it takes as long as its tasks are blocked
                raise
            finally:
                if _jvm_process().poll() is None:
                    spark.stop()
        finally:
            _end_jvm()


@contextmanager
def job_session(
    app_name: str, *, with_delta: bool = False, settings: Mapping[str, str] | None = None, short: bool = False
) -> Iterator[SparkSession]:
    """The session for one command: spark-submit's where that started this process, of a Spark Connect server where
    `SPARK_REMOTE` names one, else a local one that ends with it.

    settings, short: of the local session, as for `spark_session`. Raises SparkStartError, and JobFailedError in place
    of what PySpark raises in the block: the text of its errors is gone with the JVM.
    """
    with _submitted_or_local(app_name, with_delta, settings, short) as spark:
        try:
            yield spark
        except (PySparkException, Py4JError) as error:
            raise JobFailedError(reason(error)) from error


@contextmanager
def _submitted_or_local(
    app_name: str, with_delta: bool, settings: Mapping[str, str] | None, short: bool
) -> Iterator[SparkSession]:
    if "PYSPARK_GATEWAY_PORT" in os.environ or "SPARK_REMOTE" in os.environ:
        yield SparkSession.builder.getOrCreate()
        return
    # The playground is not on the clusters that spark-submit reaches.
    from deploy.local import artifacts
    from deploy.local.errors import PlaygroundError

    try:
        jars = artifacts.usage_jars() if with_delta else artifacts.spark_jars()
    except PlaygroundError as error:
        raise SparkStartError(str(error)) from error
    with spark_session(jars, app_name=app_name, settings=settings, short=short) as spark:
        yield spark


def kill_spark() -> None:
    """End this process's Spark JVM at once: a Kafka producer in it would retry for minutes when its broker has gone."""
    if SparkContext._gateway is not None:
        _jvm_process().kill()
        _jvm_process().wait()  # until then it seems to run, and stopping it would fail


def _start_jvm(settings: dict[str, str], scratch: Path, log: Path) -> None:
    """PySpark's own launch, with two properties of this process lent to the JVM while it starts.

    Its working directory: Spark 4.0 leaves an empty `artifacts` folder there. Its standard error: the JVM warns of an
    incubating module, and of its log level, before any setting is read.
    """
    # The JVM takes its address from the environment before it reads a setting.
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    working_directory = Path.cwd()
    terminal = os.dup(2)
    try:
        with log.open("ab") as log_file:
            os.dup2(log_file.fileno(), 2)
        os.chdir(scratch)
        SparkContext._ensure_initialized(conf=SparkConf(loadDefaults=False).setAll(list(settings.items())))
    except PySparkRuntimeError as error:
        lines = log.read_text(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        raise SparkStartError(f"Spark's JVM did not start: {last or error}") from error
    finally:
        os.chdir(working_directory)
        os.dup2(terminal, 2)
        os.close(terminal)


def _jvm_process() -> subprocess.Popen[bytes]:
    process: subprocess.Popen[bytes] = SparkContext._gateway.proc
    return process


def _end_jvm() -> None:
    """PySpark leaves its JVM running until the parent's end, and a second session in the process would share it."""
    process = _jvm_process()
    SparkContext._gateway.shutdown()
    SparkContext._gateway = None
    SparkContext._jvm = None
    # Closing its standard input is how PySpark's JVM is told to end.
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
