"""A real Prometheus that scrapes proxies."""

import json
import re
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, Self

import yaml

from tests.deploy.operator.cache import ROOT, system_tool
from tests.integration.proxy_process import ProxyProcess

RULES: Final = ROOT / "deploy/helm/kafka-quota-proxy/files/rules.yaml"
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
#: What ranges and waiting times are divided by.
_RANGES, _WAITS = 15, 120


def hurried(rules: str) -> str:
    """The same rules for a test: ranges such as [5m] are divided by 15, `for:` by 120, and nothing else changes."""

    def shorter(by: int) -> Any:
        return lambda found: f"{found[1]}{int(found[2]) * _SECONDS[found[3]] * 1000 // by}ms{found[4]}"

    rules = re.sub(r"(\[)(\d+)([smhd])(\])", shorter(_RANGES), rules)
    return re.sub(r"(^ +for: )(\d+)([smhd])($)", shorter(_WAITS), rules, flags=re.MULTILINE)


class Prometheus:
    """Runs while the block lasts. `rules` are those that it evaluates, the shipped ones by default."""

    def __init__(
        self, folder: Path, proxies: Iterable[ProxyProcess], rules: Path = RULES, interval: str = "1s"
    ) -> None:
        config = folder / "prometheus.yaml"
        targets = [address_of(each) for each in proxies]
        scrape = {"job_name": "kqp", "scrape_interval": interval, "static_configs": [{"targets": targets}]}
        config.write_text(
            yaml.safe_dump(
                {
                    "global": {"evaluation_interval": interval, "scrape_timeout": interval},
                    "rule_files": [str(rules)],
                    "scrape_configs": [scrape],
                }
            )
        )
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{free.getsockname()[1]}"
        self._url = f"http://{address}/api/v1"
        self._command = [
            system_tool("prometheus"), f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={address}",
        ]  # fmt: skip
        self._log_path = folder / "prometheus.log"

    def __enter__(self) -> Self:
        with self._log_path.open("w") as log:
            self._process = subprocess.Popen(self._command, stderr=log)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(60)

    def ask(self, path: str, **parameters: str) -> Any:
        """The data of an answer. Raises OSError where it is not 200, as for wrong PromQL."""
        assert self._process.poll() is None, self._log_path.read_text()[-2000:]
        url = f"{self._url}/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=30) as answer:  # noqa: S310 - http, above
            return json.load(answer)["data"]

    def rows(self, expression: str) -> list[Any]:
        """What a query finds now; nothing before the server is there."""
        try:
            found: list[Any] = self.ask("query", query=expression)["result"]
        except urllib.error.HTTPError as error:
            if error.code != 503:  # while it starts
                raise
            return []
        except OSError:
            return []
        return found

    def firing(self) -> set[tuple[str, str]]:
        """Alerts that fire, each with its instance."""
        found = self.rows('ALERTS{alertstate="firing"}')
        return {(each["metric"]["alertname"], each["metric"].get("instance", "")) for each in found}


def address_of(proxy: ProxyProcess) -> str:
    """Its metrics port, which is its instance."""
    return proxy._metrics_url.removeprefix("http://")
