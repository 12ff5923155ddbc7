"""Which jars the playground needs, and the promise that those on disk are exactly the pinned ones.

A set is fetched on first use, into `.cache/jars/<set>` of the project. It appears there by one
rename, after every jar matched `checksums/<set>.txt`; a directory that was damaged later is noticed and replaced.
Processes that ask at the same time wait for each other on a file lock.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from deploy.local.errors import DownloadFailed
from deploy.local.ivy import IvyRun, bundled_ivy_command, run_ivy

PROJECT = Path(__file__).resolve().parents[2]
CACHE = PROJECT / ".cache"
CHECKSUMS = Path(__file__).with_name("checksums")
RETRY_PAUSES_SECONDS = (2.0, 5.0, 15.0)


@dataclass(frozen=True, slots=True)
class ArtifactSet:
    """Jars that are fetched together.

    modules: `organisation:module:revision` each; transitive: with everything they depend on at run time.
    """

    name: str
    modules: tuple[str, ...]
    transitive: bool


# slf4j-simple, since the broker's own dependencies bring no logging backend: without one its log would be empty.
KAFKA_4_3_1 = ArtifactSet("kafka-4.3.1", ("org.apache.kafka:kafka_2.13:4.3.1", "org.slf4j:slf4j-simple:1.7.36"), True)
# Its clients log each throttle time (KAFKA-19117), and name the node that they mean to reach (KIP-1242).
KAFKA_4_4_0 = ArtifactSet("kafka-4.4.0", ("org.apache.kafka:kafka_2.13:4.4.0", "org.slf4j:slf4j-simple:1.7.36"), True)
# The last line that speaks the protocol versions which Kafka 4 dropped (KIP-896).
KAFKA_3_9_1 = ArtifactSet("kafka-3.9.1", ("org.apache.kafka:kafka_2.13:3.9.1", "org.slf4j:slf4j-simple:1.7.36"), True)
# All that kafka-tools needs for topics, groups, console clients and perf tests is among the broker's jars.
KAFKA_TOOLS = ArtifactSet("kafka-tools-4.3.1", ("org.apache.kafka:kafka-tools:4.3.1",), False)
# kafka-configs has moved there.
KAFKA_TOOLS_4_4 = ArtifactSet("kafka-tools-4.4.0", ("org.apache.kafka:kafka-tools:4.4.0",), False)
# Spark ships the connector's other dependencies itself.
SPARK_KAFKA = ArtifactSet(
    "spark-kafka-4.0.0",
    (
        "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0",
        "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
        "org.apache.kafka:kafka-clients:3.9.0",
        "org.apache.commons:commons-pool2:2.12.0",
    ),
    False,
)
# Delta Lake for the usage tables. Spark ships its other dependencies (ANTLR) itself.
SPARK_DELTA = ArtifactSet(
    "spark-delta-4.0.0", ("io.delta:delta-spark_2.13:4.0.0", "io.delta:delta-storage:4.0.0"), False
)
BROKERS = {"4.3.1": KAFKA_4_3_1, "4.4.0": KAFKA_4_4_0, "3.9.1": KAFKA_3_9_1}
ALL_SETS = {each.name: each for each in (*BROKERS.values(), KAFKA_TOOLS, KAFKA_TOOLS_4_4, SPARK_KAFKA, SPARK_DELTA)}


def ensure(
    artifacts: ArtifactSet,
    *,
    cache: Path = CACHE,
    checksums: Path = CHECKSUMS,
    ivy_command: Sequence[str] | None = None,
    retry_pauses_seconds: Sequence[float] = RETRY_PAUSES_SECONDS,
    report: Callable[[str], None] | None = None,
) -> list[Path]:
    """The jars of a set, sorted by name; fetched first if they are not here or not what is pinned.

    ivy_command: what runs Ivy, by default the one inside PySpark. report: takes each line for a person, by default
    stderr. Raises DownloadFailed when the set is not complete after all attempts, JavaMissing when Ivy cannot run.
    """
    pins = read_pins(checksums / f"{artifacts.name}.txt")
    directory = cache / "jars" / artifacts.name
    if not faults(directory, pins):
        return sorted(directory.glob("*.jar"))
    say = report or _to_stderr
    with _locked(cache, say):
        if faults(directory, pins):  # not repaired while this process waited for the lock
            command = ivy_command or bundled_ivy_command()
            _fetch(artifacts, pins, cache, command, retry_pauses_seconds, say)
    return sorted(directory.glob("*.jar"))


def class_path(*sets: ArtifactSet) -> str:
    """A Java class path over the jars of the sets, the first set first. Fetches what is missing."""
    return os.pathsep.join(str(jar) for each in sets for jar in ensure(each))


def spark_jars() -> str:
    """The value for Spark's `spark.jars`: its Kafka connector as a comma-separated list. Fetches what is missing."""
    return ",".join(str(jar) for jar in ensure(SPARK_KAFKA))


def usage_jars() -> str:
    """The value for Spark's `spark.jars`: the Kafka connector and Delta Lake. Fetches what is missing."""
    return ",".join(str(jar) for each in (SPARK_KAFKA, SPARK_DELTA) for jar in ensure(each))


def read_pins(path: Path) -> dict[str, str]:
    """File name → SHA-256 in hex, from a file as `sha256sum` writes it. Raises DownloadFailed when there is none."""
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except FileNotFoundError as error:
        raise DownloadFailed(
            f"no checksums are pinned in {path}; `python -m deploy.local pin SET` writes them"
        ) from error
    pins = {}
    for line in lines:
        digest, name = line.split()
        pins[name] = digest
    return pins


def faults(directory: Path, pins: dict[str, str]) -> dict[str, str]:
    """File name → what is wrong with it (`missing`, `damaged`, `not pinned`); empty for an intact set."""
    wrong = {}
    for name, digest in pins.items():
        try:
            with (directory / name).open("rb") as file:
                actual = hashlib.file_digest(file, "sha256").hexdigest()
        except FileNotFoundError:
            wrong[name] = "missing"
        else:
            if actual != digest:
                wrong[name] = "damaged"
    for jar in directory.glob("*.jar"):
        if jar.name not in pins:
            wrong[jar.name] = "not pinned"
    return wrong


def pin(artifacts: ArtifactSet, *, cache: Path = CACHE, checksums: Path = CHECKSUMS) -> Path:
    """Fetches a set as it resolves now and writes its checksum file, which it returns: for changing a version."""
    with _locked(cache, _to_stderr):
        staging = _empty_staging(cache, artifacts)
        run = IvyRun(artifacts.name, artifacts.modules, artifacts.transitive, cache, staging, expected=())
        run_ivy(bundled_ivy_command(), run, _to_stderr)
        lines = []
        for jar in sorted(staging.glob("*.jar")):
            with jar.open("rb") as file:
                lines.append(f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {jar.name}\n")
        path = checksums / f"{artifacts.name}.txt"
        path.write_text("".join(lines), encoding="ascii")
        _put_in_place(staging, cache / "jars" / artifacts.name)
    return path


def _fetch(
    artifacts: ArtifactSet,
    pins: dict[str, str],
    cache: Path,
    ivy_command: Sequence[str],
    retry_pauses_seconds: Sequence[float],
    say: Callable[[str], None],
) -> None:
    wrong: dict[str, str] = {}
    complaint = ""
    attempts = len(retry_pauses_seconds) + 1
    for attempt in range(1, attempts + 1):
        staging = _empty_staging(cache, artifacts)
        run = IvyRun(artifacts.name, artifacts.modules, artifacts.transitive, cache, staging, expected=tuple(pins))
        complaint = run_ivy(ivy_command, run, say)
        wrong = faults(staging, pins)
        if not wrong:
            _put_in_place(staging, cache / "jars" / artifacts.name)
            return
        for name in wrong:  # Ivy trusts its own cache: a damaged jar in there would come back for ever
            for cached in run.ivy_cache.rglob(name):
                cached.unlink()
        if attempt < attempts:
            pause = retry_pauses_seconds[attempt - 1]
            say(f"{artifacts.name}: {_sum_up(wrong)}; attempt {attempt + 1} of {attempts} in {pause:g} s")
            time.sleep(pause)
    raise DownloadFailed(
        f"cannot fetch {artifacts.name}: {_sum_up(wrong)} after {attempts} attempts"
        f"{f' ({complaint})' if complaint else ''}; check the network (and HTTPS_PROXY), then run the same command "
        f"again: what has arrived is kept. Ivy's log: {cache / 'ivy.log'}"
    )


def _sum_up(wrong: dict[str, str]) -> str:
    name, what = next(iter(wrong.items()))
    others = len(wrong) - 1
    return f"{name} is {what}" + (f" and {others} more are not right" if others else "")


def _empty_staging(cache: Path, artifacts: ArtifactSet) -> Path:
    staging = cache / "staging" / artifacts.name
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    return staging


def _put_in_place(staging: Path, directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    directory.parent.mkdir(parents=True, exist_ok=True)
    staging.rename(directory)


@contextlib.contextmanager
def _locked(cache: Path, say: Callable[[str], None]) -> Iterator[None]:
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:  # never removed: a removed lock file excludes no process
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another process is fetching jars into the same cache; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
