"""Runs Ivy, which every PySpark carries, and shows how far it has come.

Ivy keeps what it downloads in `<cache>/ivy`, so that an interrupted run goes on where it was.
"""

import contextlib
import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit
from xml.sax.saxutils import quoteattr

from deploy.local.errors import DownloadFailed
from deploy.local.java import find_java

STALL_SECONDS = 180.0
_TERMINAL_PERIOD_SECONDS = 0.25
_LOG_PERIOD_SECONDS = 4.0


@dataclass(frozen=True, slots=True)
class IvyRun:
    """One resolution: which modules (`organisation:module:revision`), where the jars go, and their expected names."""

    name: str
    modules: tuple[str, ...]
    transitive: bool
    cache: Path
    target: Path
    expected: tuple[str, ...]

    @property
    def ivy_cache(self) -> Path:
        return self.cache / "ivy"


def bundled_ivy_command() -> list[str]:
    """The command that runs the Ivy inside the installed PySpark.

    Raises DownloadFailed when PySpark is not installed, JavaMissing when there is no Java.
    """
    spec = importlib.util.find_spec("pyspark")
    places = (spec.submodule_search_locations or ()) if spec else ()
    jars = [jar for place in places for jar in Path(place).glob("jars/ivy-*.jar")]
    if not jars:
        raise DownloadFailed("PySpark is not installed here (its Ivy fetches the jars): run `make setup`")
    timeouts = ["-Dsun.net.client.defaultConnectTimeout=20000", "-Dsun.net.client.defaultReadTimeout=60000"]
    return [find_java(), *timeouts, *java_proxy_options(os.environ), "-jar", str(jars[0])]


def java_proxy_options(environ: Mapping[str, str]) -> list[str]:
    """HTTPS_PROXY, HTTP_PROXY and NO_PROXY as the system properties that Java wants: it does not read the variables."""
    options = []
    for scheme in ("https", "http"):
        value = environ.get(f"{scheme}_proxy") or environ.get(f"{scheme.upper()}_PROXY")
        if value:
            proxy = urlsplit(value if "//" in value else f"//{value}")
            options.append(f"-D{scheme}.proxyHost={proxy.hostname}")
            options.append(f"-D{scheme}.proxyPort={proxy.port or (443 if proxy.scheme == 'https' else 80)}")
    exceptions = environ.get("no_proxy") or environ.get("NO_PROXY")
    if options and exceptions:
        hosts = [
            f"*{host}" if host.startswith(".") else host for host in exceptions.replace(" ", "").split(",") if host
        ]
        options.append(f"-Dhttp.nonProxyHosts={'|'.join(hosts)}")
    return options


def run_ivy(command: Sequence[str], run: IvyRun, say: Callable[[str], None]) -> str:
    """Runs Ivy once. Returns its complaint in one line, or "" when it had none; the caller checks what has arrived.

    A run that makes no progress for three minutes is ended. Its output is kept in `<cache>/ivy.log`.
    """
    run.cache.mkdir(parents=True, exist_ok=True)
    module_file = run.cache / f"{run.name}.ivy.xml"
    module_file.write_text(_module_xml(run), encoding="utf-8")
    log_path = run.cache / "ivy.log"
    arguments = ["-ivy", str(module_file), "-confs", "default", "-cache", str(run.ivy_cache)]
    arguments += ["-retrieve", f"{run.target}/[artifact]-[revision](-[classifier]).[ext]"]
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [*command, *arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            complaint = _watch(process, run, say)
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
    if complaint or process.returncode == 0:
        return complaint
    return _complaint_in(log_path) or f"Ivy ended with exit code {process.returncode}"


def _watch(process: subprocess.Popen[bytes], run: IvyRun, say: Callable[[str], None]) -> str:
    terminal = sys.stderr.isatty()
    period = _TERMINAL_PERIOD_SECONDS if terminal else _LOG_PERIOD_SECONDS
    started = changed = time.monotonic()
    described_before = _arrived(run)[2]
    shown: tuple[int, int, int] | None = None
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=period)
        now = time.monotonic()
        jars, size, descriptions = state = _arrived(run)
        if state != shown:
            shown, changed = state, now
        total = f" of {len(run.expected)}" if run.expected else ""
        line = (
            f"fetching {run.name}: {jars}{total} jars, {size / 1e6:.1f} MB, "
            f"{descriptions - described_before} module descriptions, {now - started:.0f} s"
        )
        if terminal:
            sys.stderr.write(f"\r\x1b[K{line}")
            sys.stderr.flush()
        else:
            say(line)
        ended = process.poll() is not None
        if ended or now - changed > STALL_SECONDS:
            if terminal:
                sys.stderr.write("\n")
            return "" if ended else f"no progress for {STALL_SECONDS:.0f} s"


def _arrived(run: IvyRun) -> tuple[int, int, int]:
    """Jars of this run that are complete in Ivy's cache, bytes of jars with those under way, module descriptions."""
    jars = size = descriptions = 0
    expected = set(run.expected)
    for directory, _, names in os.walk(run.ivy_cache):
        for name in names:
            if name.endswith(".original"):
                descriptions += 1
                continue
            complete = name.endswith(".jar")
            if not complete and not name.endswith(".jar.part"):
                continue
            if expected and name.removesuffix(".part") not in expected:
                continue
            jars += complete
            try:
                size += os.stat(os.path.join(directory, name)).st_size
            except FileNotFoundError:  # Ivy renamed it just now
                continue
    return jars, size, descriptions


def _complaint_in(log_path: Path) -> str:
    """The first line of Ivy's log with an error."""
    for line in log_path.read_text(encoding="utf-8", errors="replace").splitlines():
        text = line.strip(" \t:")
        if any(word in text for word in ("UnknownHost", "Exception", "FAILED", "not found", "timed out", "unable to")):
            return text
    return ""


def _module_xml(run: IvyRun) -> str:
    dependencies = []
    for module in run.modules:
        organisation, name, revision = module.split(":")
        dependencies.append(
            f"<dependency org={quoteattr(organisation)} name={quoteattr(name)} rev={quoteattr(revision)} "
            f'conf="default->default" transitive="{str(run.transitive).lower()}"/>'
        )
    return (
        '<ivy-module version="2.0">'
        f'<info organisation="playground" module={quoteattr(run.name)} revision="1"/>'
        '<configurations><conf name="default"/></configurations>'
        f"<dependencies>{''.join(dependencies)}</dependencies></ivy-module>\n"
    )
