"""Old librdkafkas: those that confluent-kafka's wheels on PyPI contain, for Linux on x86-64.

A wheel is downloaded on first use into `.cache/wheels`, by pip, and must be what `old_librdkafka.txt` pins by SHA-256.
It is not installed: its librdkafka alone is loaded, by a process of its own.
"""

import json
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from deploy.local.artifacts import CACHE, RETRY_PAUSES_SECONDS, faults, read_pins
from deploy.local.errors import DownloadFailed
from tests.integration import librdkafka_client

PINS = read_pins(Path(__file__).with_suffix(".txt"))
WHEELS = {wheel.split("-")[1]: wheel for wheel in PINS}
"""By version, which is librdkafka's as well."""
PIP = (sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps")


def fetch(wheel: str, digest: str) -> Path:
    """A wheel with this SHA-256, from the cache, or downloaded into it. Raises DownloadFailed after all attempts."""
    cache = CACHE / "wheels"
    cache.mkdir(parents=True, exist_ok=True)
    wrong, said = faults(cache, {wheel: digest}), ""
    for pause in (0.0, *RETRY_PAUSES_SECONDS):
        if not wrong:
            break
        time.sleep(pause)
        with tempfile.TemporaryDirectory(dir=cache) as staging:
            command = [*PIP, *_options(wheel), "--dest", staging]
            said = subprocess.run(command, capture_output=True, text=True, check=False).stderr
            wrong = faults(Path(staging), {wheel: digest})
            if not wrong:
                (Path(staging) / wheel).rename(cache / wheel)
    if wrong:
        last = said.strip().rpartition("\n")[2]
        raise DownloadFailed(
            f"cannot fetch {wheel}: it is {wrong[wheel]} after {len(RETRY_PAUSES_SECONDS) + 1} attempts"
            f"{f' ({last})' if last else ''}; check the network (and HTTPS_PROXY), then run the test again"
        )
    return cache / wheel


def _options(wheel: str) -> list[str]:
    """What makes pip choose this very wheel, for another Python than its own."""
    name, version, python, abi, platforms = wheel.removesuffix(".whl").split("-")
    options = ["--only-binary", ":all:", "--python-version", python.removeprefix("cp"), "--abi", abi]
    return [*options, *(f"--platform={each}" for each in platforms.split(".")), f"{name}=={version}"]


def library(version: str, directory: Path) -> Path:
    """Unpack the librdkafka of a version into a directory, with the libraries that it needs."""
    wheel = WHEELS[version]
    with zipfile.ZipFile(fetch(wheel, PINS[wheel])) as archive:
        for name in archive.namelist():
            if ".libs/" in name:
                archive.extract(name, directory)
    (path,) = directory.rglob("librdkafka-*")
    return path


@contextmanager
def producing(library: Path, settings: Mapping[str, str], topic: str) -> Iterator[None]:
    """A producer that has sent a record, and stays connected inside the block."""
    command = [sys.executable, librdkafka_client.__file__, str(library), json.dumps(settings), topic]
    environment = {"LD_LIBRARY_PATH": str(library.parent)}
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE) as client:
        try:
            yield
        finally:
            client.kill()


def produce_and_read(library: Path, settings: Mapping[str, str], topic: str, value: str) -> dict[str, Any]:
    """What `librdkafka_client` prints."""
    done = subprocess.run(
        [sys.executable, librdkafka_client.__file__, str(library), json.dumps(settings), topic, value],
        env={"LD_LIBRARY_PATH": str(library.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))
