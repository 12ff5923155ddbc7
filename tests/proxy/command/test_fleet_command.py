"""`kafka-quota-proxy fleet`: what a member's page has, for people."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from click.testing import CliRunner, Result

from proxy.command.commands import main

PAGE = {
    "fleet": "etl", "member": "pod-0/1", "joined": True, "why_away": "", "members": 1, "leaving": 0,
    "lacking": [], "max_members": 100, "delivery_seconds": 0.012,
    "refused_records": {"void": 2}, "lapses": 0, "shared_limits": 0, "limits": [],
}  # fmt: skip


class Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        status, body = (200, json.dumps(PAGE)) if self.path == "/fleet" else (404, "404: nothing")
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: object) -> None:
        pass


class Stranger(Page):
    """Another server at that port, with a page for every path."""

    status = 200

    def do_GET(self) -> None:
        self.send_response(self.status)
        self.end_headers()
        self.wfile.write(b"<html>\n<b>\x1b[31mhello</b>\n" + b"x" * 10_000)


class StrictStranger(Stranger):
    status = 404


@pytest.mark.parametrize("command", ["explain", "top", "fleet"])
@pytest.mark.parametrize(
    ("page", "says"), [(Stranger, "is no page of kafka-quota-proxy"), (StrictStranger, "<b>\\u001b[31mhello</b>")]
)
def test_another_server_is_not_taken_for_a_proxy(command: str, page: type[Stranger], says: str) -> None:
    with HTTPServer(("127.0.0.1", 0), page) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        found = CliRunner().invoke(main, [command, "--proxy", f"127.0.0.1:{server.server_port}"])
        server.shutdown()
        thread.join()
    assert (found.exit_code, found.stdout) == (1, "")
    assert says in found.stderr
    assert "is this its --metrics-listen? Otherwise give --proxy HOST:PORT" in found.stderr
    assert found.stderr.count("\n") == 1
    assert len(found.stderr) < 600


@pytest.fixture
def proxy() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def fleet(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["fleet", *arguments])


def test_it_shows_the_page(proxy: str) -> None:
    found = fleet("etl", "--proxy", proxy)
    assert found.exit_code == 0
    assert found.output.splitlines() == [
        "fleet etl: 1 of at most 100 members",
        "this proxy, pod-0/1, has joined; a record takes 12 ms",
        "refused records: 2 void; limits in use: 0",
    ]
    assert json.loads(fleet("--proxy", proxy, "--json").output) == PAGE


def test_a_proxy_that_is_not_there_is_named() -> None:
    with HTTPServer(("127.0.0.1", 0), Page) as server:
        port = server.server_port
    found = fleet("--proxy", f"127.0.0.1:{port}")
    assert found.exit_code == 1
    assert f"http://127.0.0.1:{port}/fleet: " in found.output
