"""`explain`, `top` and `fleet` with `--fleet`: ten members that answer, or do not, each in its own way."""

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from click.testing import CliRunner, Result

from proxy.admin import fleet_members
from proxy.admin.fleet_members import ask_all
from proxy.command.commands import main
from tests.proxy.admin import rows

pytestmark = [
    pytest.mark.claim("fleet", "one table over all members, with clients summed, and who did not answer"),
    pytest.mark.claim("fleet", "the address of the admin port comes from a topic: a host and a port, or nothing"),
]

CLIENT = rows.client("etl", {"limit": 1.0}, 1_000, 10.0) | {"verdict": "limit", "used_ratio": 1.0}
ADDRESSES: list[dict[str, Any]] = []
FLEET: dict[str, Any] = {"fleet": "jobs", "joined": True, "members": 10, "shared_limits": 1, "delivery_seconds": 0.01}


class Member(ThreadingHTTPServer):
    """`way`: how it answers."""

    daemon_threads = True

    def __init__(self, name: str, way: str) -> None:
        super().__init__(("127.0.0.1", 0), Page)
        self.member, self.way = name, way
        self.ended = threading.Event()
        self.asked: list[str] = []

    def handle_error(self, *_: object) -> None:
        """Those who ask go away in the middle of an answer."""


class Page(BaseHTTPRequestHandler):
    server: Member

    def do_GET(self) -> None:
        way = self.server.way
        self.server.asked.append(self.path)
        page: Any = {**FLEET, "admin_addresses": ADDRESSES} if self.path == "/fleet" else [CLIENT]
        body = {"is no JSON": b"[{", "nests": b"[" * 100_000, "is large": b" " * 50_000}.get(
            way, json.dumps(page).encode()
        )
        self.send_response(302 if way == "redirects" else 200)
        if way == "redirects":
            self.send_header("Location", f"http://{ADDRESSES[0]['admin']}{self.path}")
        self.send_header("Fleet-Member", "pod-0/0" if way == "is another" else self.server.member)
        self.send_header("Content-Length", str(len(body)))
        if way == "has a long head":
            self.send_header("X", "x" * 500_000)
        self.end_headers()
        if way == "hangs":
            self.wfile.flush()
            self.server.ended.wait(60)
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


WAYS = [
    "answers",
    "answers",
    "answers",
    "redirects",
    "is another",
    "is no JSON",
    "nests",
    "is large",
    "has a long head",
]


@contextmanager
def serving(*ways: str) -> Iterator[list[Member]]:
    """The first one is the proxy that commands ask; each other one is where the first one says. And one is gone."""
    with ExitStack() as ending:
        members = [ending.enter_context(Member(f"pod-{number}/{number}", way)) for number, way in enumerate(ways)]
        for member in members:
            thread = threading.Thread(target=member.serve_forever, args=(0.01,))
            thread.start()
            ending.callback(thread.join)
            ending.callback(member.shutdown)
            ending.callback(member.ended.set)
        ADDRESSES[:] = [
            {"member": each.member, "admin": f"127.0.0.1:{each.server_port}", "here": each is members[0]}
            for each in members
        ]
        ADDRESSES.append({"member": "silent/1", "admin": None, "here": False})
        yield members


def run(members: list[Member], *arguments: str) -> Result:
    proxy = f"127.0.0.1:{members[0].server_port}"
    return CliRunner().invoke(main, [*arguments, "--proxy", proxy, "--fleet", "jobs"])


@pytest.fixture
def members(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Member]]:
    monkeypatch.setattr(fleet_members, "PATIENCE_SECONDS", 60.0)  # this machine may be busy
    monkeypatch.setattr(fleet_members, "MAX_BYTES", 40_000)
    with serving(*WAYS) as found:
        yield found


def test_clients_are_summed_over_those_that_answer(members: list[Member]) -> None:
    found = run(members, "explain", "etl")
    assert found.exit_code == 0, found.output
    lines = found.output.splitlines()
    assert lines[0] == "3 of 10 members answered"
    assert lines[2] == "etl is at its limit in 3 of 3 proxies (pod-0, pod-1, pod-2)"
    assert lines[3] == "  3 connections: 30 kB/s in, 0 B/s out, 30 requests a second"
    why = {line.partition("/")[0]: line.partition("): ")[2] for line in lines[5:]}
    assert why == {
        "pod-3": "it answered with 302",
        "pod-4": "another process answers there",
        "pod-5": "the answer is not JSON",
        "pod-6": "the answer has more than 40000 bytes",
        "pod-7": "the answer has more than 40000 bytes",
        "pod-8": "Receive buffer too long",
        "silent": "it advertises no address of its admin port",
    }
    assert members[0].asked == ["/fleet", "/clients"], "no redirect is followed"
    assert all(each.asked == ["/clients"] for each in members[1:])
    table = run(members, "top", "--once").output.splitlines()
    assert (table[1].split()[-1], len(table)) == ("3", 2 + 7)
    top = json.loads(run(members, "top", "--json").output)
    assert [(row["client_id"], row["members"]) for row in top["clients"]] == [("etl", 3)]
    assert len(top["unanswered"]) == 7
    shown = json.loads(run(members, "explain", "--json").output)
    assert [row["verdicts"] for row in shown["clients"]] == [{"limit": ["pod-0/0", "pod-1/1", "pod-2/2"]}]
    states = json.loads(run(members, "fleet", "--json").output)["members"]
    assert [row["member"] for row in states if row["joined"]] == ["pod-0/0", "pod-1/1", "pod-2/2"]


def test_a_client_that_no_member_has_seen_is_an_error_that_lists_who_did_not_answer(members: list[Member]) -> None:
    found = run(members, "explain", "elt")
    assert found.exit_code == 1
    assert found.output.splitlines()[0] == "Error: no client 'elt' in the last minute; seen: etl"
    assert "pod-3" in found.output


def test_deep_nesting_is_no_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_members, "PATIENCE_SECONDS", 60.0)
    with serving("answers", "nests") as members:
        assert "pod-1/1 (" in run(members, "explain").output
        assert "the answer is not JSON" in run(members, "explain").output


def test_those_that_hang_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_members, "PATIENCE_SECONDS", 0.05)
    with serving("answers", *["hangs"] * 3) as members:
        address = "127.0.0.1", members[0].server_port
        page = {"admin_addresses": ADDRESSES[1:4]}
        assert [each.problem for each in ask_all(address, page, "/clients")] == ["no answer within 0 s"] * 3


def test_a_loopback_address_that_a_member_elsewhere_advertises_is_not_asked() -> None:
    with serving("answers", "answers") as members:
        found = ask_all(("192.0.2.1", 1), {"admin_addresses": ADDRESSES[1:2]}, "/clients")
        assert ["is on loopback" in each.problem for each in found] == [True]
        assert members[1].asked == []


def test_another_fleet_is_an_error(members: list[Member]) -> None:
    found = CliRunner().invoke(main, ["explain", "--proxy", ADDRESSES[0]["admin"], "--fleet", "web"])
    assert found.exit_code == 1
    assert "this proxy is in fleet jobs, not in web" in found.output
