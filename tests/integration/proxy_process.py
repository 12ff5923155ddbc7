"""`kafka-quota-proxy run` as a process of its own, as an operator runs it."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, TypeVar

from prometheus_client.parser import text_string_to_metric_families

from deploy.local import leash
from deploy.local.artifacts import PROJECT

START_SECONDS = 60.0
STOP_SECONDS = 40.0
PREFIX = "kafka_quota_proxy_"
_POLL_SECONDS = 0.02

Event = dict[str, Any]
_T = TypeVar("_T")


class ProxyProcess:
    """The proxy in front of `bootstrap_servers`, on ports that the kernel chose unless `flags` say otherwise, with a
    `--quota` for each of `quotas`.

    On a clean exit of the block it is drained by SIGTERM, and must end with exit code 0 and without a traceback or an
    error in its log; when the block fails it is only ended.
    """

    def __init__(
        self, bootstrap_servers: str, *flags: str, quotas: Iterable[str] = (), event_loop: str = "uvloop"
    ) -> None:
        command = Path(sys.executable).with_name("kafka-quota-proxy")
        chosen = {"--listen": "127.0.0.1:0", "--broker-ports": "0", "--metrics-listen": "127.0.0.1:0"}
        for flag in flags:
            chosen.pop("--broker-ports" if flag == "--sni-host" else flag, None)
        self._command = [
            *(str(command), "run", "--bootstrap-servers", bootstrap_servers),
            *(part for pair in chosen.items() for part in pair),
            *(part for quota in quotas for part in ("--quota", quota)),
            *("--event-loop", event_loop, "--log-format", "json"),
            *flags,
        ]
        self.events: list[Event] = []
        """Its log so far, oldest first."""
        self.expected_errors: set[str] = set()
        """Events that the test provokes."""
        self._news = threading.Condition()
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self.bootstrap_servers = self._metrics_url = self._last_page = ""

    # ---- its life

    def start(self) -> Self:
        """Start it and wait until it says that it listens. After `stop` it may be started again."""
        self.events = []
        self._scratch = tempfile.TemporaryDirectory(prefix="proxy-under-test-")
        environment = {name: value for name, value in os.environ.items() if not name.startswith("KAFKA_QUOTA_PROXY_")}
        leashed = [sys.executable, "-I", "-S", leash.__file__, str(os.getpid()), self._scratch.name, *self._command]
        options: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "start_new_session": True}
        self._process = subprocess.Popen(leashed, cwd=PROJECT, env=environment, **options)
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()
        try:
            listening = self.wait_for_event("listening", START_SECONDS)
        except BaseException:
            self.kill()
            raise
        self.bootstrap_servers = str(listening["bootstrap"])
        self._metrics_url = str(listening["metrics"]).removesuffix("/metrics")
        return self

    def stop(self) -> None:
        """SIGTERM; it must drain and end with exit code 0, and have logged no error but those expected."""
        assert self._process is not None, "it was never started"
        os.killpg(self._process.pid, signal.SIGTERM)
        try:
            code = self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"it did not end within {STOP_SECONDS:g} s of SIGTERM: {self.events[-3:]}") from None
        self._end()
        assert code == 0, f"exit code {code}: {self.events[-5:]}"
        wrong = [each for each in self.events if each["level"] == "ERROR" and each["event"] not in self.expected_errors]
        assert not wrong, wrong

    @property
    def pid(self) -> int:
        """The proxy's own, not that of its leash."""
        assert self._process is not None, "it was never started"
        leash_pid = self._process.pid
        (proxy_pid,) = Path(f"/proc/{leash_pid}/task/{leash_pid}/children").read_text().split()
        return int(proxy_pid)

    def reload(self) -> None:
        """SIGHUP, to the proxy alone: the leash would not outlive it."""
        os.kill(self.pid, signal.SIGHUP)

    def toggle_enforcement(self) -> None:
        """SIGUSR2, to the proxy alone."""
        os.kill(self.pid, signal.SIGUSR2)

    def kill(self) -> None:
        """End it at once, whatever it does."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._end()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.stop()
        else:
            self.kill()

    # ---- what it says

    def wait_for_event(self, name: str, seconds: float, **fields: object) -> Event:
        """The first line of its log with that event and those fields, past or to come. Raises AssertionError."""

        def found() -> Event | None:
            for each in self.events:
                if each["event"] == name and all(each.get(key) == value for key, value in fields.items()):
                    return each
            return None

        ended = self._reader is None
        with self._news:
            self._news.wait_for(lambda: found() or (self._reader is not None and not self._reader.is_alive()), seconds)
            event = found()
        assert event is not None, f"no {name} {fields or ''} in its log (ended: {ended}): {self.events[-5:]}"
        return event

    @property
    def admin_address(self) -> str:
        """Of its admin port, as `--proxy` takes it."""
        return self._metrics_url.removeprefix("http://")

    def get(self, path: str, accept: str = "*/*") -> tuple[int, str]:
        """Status and body of one HTTP request to its metrics port."""
        request = urllib.request.Request(self._metrics_url + path, headers={"Accept": accept})  # noqa: S310 - loopback
        # No proxy of the environment's: this is loopback.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=20) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def metrics(self) -> str:
        """The page of now: it is rendered once a second at most, and each time it counts more of the loop's lag."""
        while (page := self.get("/metrics")[1]) == self._last_page:
            time.sleep(_POLL_SECONDS)
        self._last_page = page
        return page

    def metric(self, name: str, **labels: str) -> float:
        """As `sum_of`, of the page of now."""
        return sum_of(self.metrics(), name, **labels)

    def page(self, path: str) -> Any:
        """What a page has in JSON."""
        status, body = self.get(path, "application/json")
        assert status == 200, body
        return json.loads(body)

    def throttles(self) -> list[dict[str, Any]]:
        """Who waits now."""
        return list(self.page("/throttles")["waiting"])

    def _read_log(self) -> None:
        assert self._process is not None
        assert self._process.stderr is not None
        for line in self._process.stderr:
            try:
                event: Event = json.loads(line)
            except ValueError:  # a traceback, or what the C library has to say
                event = {"level": "ERROR", "event": "not_json", "line": line.decode(errors="replace").rstrip()}
            with self._news:
                self.events.append(event)
                self._news.notify_all()

    def _end(self) -> None:
        if self._process is not None and self._process.stderr is not None:
            if self._reader is not None:
                self._reader.join(5.0)
            self._process.stderr.close()
        if self._scratch is not None:
            self._scratch.cleanup()


@contextmanager
def killed_at_the_end(argv: Sequence[str]) -> Iterator[None]:
    """A client in a process of its own, without output, as long as the block lasts."""
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=PROJECT) as process:
        try:
            yield
        finally:
            process.kill()


def sum_of(page: str, name: str, **labels: str) -> float:
    """The sum of all samples of that name (without the prefix) whose labels are these or more."""
    return sum(
        sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == PREFIX + name and labels.items() <= sample.labels.items()
    )


def eventually(look: Callable[[], _T], seconds: float, what: str) -> _T:
    """Looks again and again until what it sees is true, and returns that. Raises AssertionError after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        seen = look()
        if seen:
            return seen
        assert time.monotonic() < deadline, f"{what}: not within {seconds:g} s; last seen {seen!r}"
        time.sleep(_POLL_SECONDS)
