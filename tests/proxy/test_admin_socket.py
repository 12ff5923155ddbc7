"""The off switch over its UNIX socket: who may use it, what it answers, and what it leaves behind."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import stat
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from proxy.admin_socket import MAX_OFF_SECONDS, MAX_REQUEST_BYTES, AdminSocket, _bound
from proxy.config.errors import BindError
from proxy.enforcement_command import NotAnswered, ask
from tests.proxy.conversation import PATIENCE_SECONDS, Stage

OpenStage = Callable[..., Stage]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "admin.sock"


def state_of(stage: Stage, path: Path) -> tuple[bool, bool]:
    """Whether quotas are enforced, and whether the socket exists."""
    return stage.metrics.enforcement_enabled, path.exists()


def permissions(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def respond(path: Path, line: bytes) -> dict[str, object]:
    async with asyncio.timeout(PATIENCE_SECONDS):
        reader, writer = await asyncio.open_unix_connection(str(path))
        writer.write(line)
        writer.write_eof()
        data = await reader.read()
        writer.close()
    return dict(json.loads(data)) if data else {}


async def test_off_status_and_on(open_stage: OpenStage, path: Path, caplog: pytest.LogCaptureFixture) -> None:
    stage = open_stage()
    admin = AdminSocket(path, stage.server.in_force)
    await admin.open()
    try:
        assert await asyncio.to_thread(ask, str(path), {"command": "status"}) == "enforcement is on, throttle mode auto"
        off = await asyncio.to_thread(ask, str(path), {"command": "off", "seconds": 1800})
        assert off.endswith(f"(by uid {os.geteuid()}, pid {os.getpid()})")
        assert state_of(stage, path) == (False, True)
        assert await asyncio.to_thread(ask, str(path), {"command": "on"}) == "enforcement is on, throttle mode auto"
        assert state_of(stage, path) == (True, True)
    finally:
        admin.close()
    logged = [(each.getMessage(), each.__dict__["fields"]) for each in caplog.records]
    assert [name for name, _ in logged] == ["enforcement_off", "enforcement_on"]
    assert (logged[0][1]["uid"], logged[0][1]["pid"], logged[0][1]["seconds"]) == (os.geteuid(), os.getpid(), 1800)
    assert logged[0][1]["until"] in off
    assert state_of(stage, path) == (True, False)
    with pytest.raises(NotAnswered, match="No such file"):
        ask(str(path), {"command": "status"})


async def test_the_file_is_for_the_owner_from_its_first_moment(open_stage: OpenStage, path: Path) -> None:
    admin = AdminSocket(path, open_stage().server.in_force)
    before = os.umask(0)
    try:
        await admin.open()
    finally:
        os.umask(before)
    assert permissions(path) == 0o600
    admin.close()


async def test_another_user_gets_no_answer(open_stage: OpenStage, path: Path, caplog: pytest.LogCaptureFixture) -> None:
    stage = open_stage()
    admin = AdminSocket(path, stage.server.in_force, owner=os.geteuid() + 1)
    await admin.open()
    with pytest.raises(NotAnswered, match="only the owner"):
        await asyncio.to_thread(ask, str(path), {"command": "off", "seconds": 5})
    admin.close()
    assert stage.metrics.enforcement_enabled
    assert [record.getMessage() for record in caplog.records] == ["admin_caller_refused"]


@pytest.mark.parametrize(
    "line",
    [
        b"off\n",
        b"[]\n",
        b"{}\n",
        b'{"command": "off"}\n',
        b'{"command": "off", "seconds": 0}\n',
        b'{"command": "off", "seconds": NaN}\n',
        b'{"command": "off", "seconds": "5"}\n',
        b'{"command": "off", "seconds": %d}\n' % (MAX_OFF_SECONDS + 1),
        b"",
        b"\xff\n",
        b"[" * 1_000 + b"\n",
    ],
)
async def test_any_other_request_changes_nothing(open_stage: OpenStage, path: Path, line: bytes) -> None:
    stage = open_stage()
    admin = AdminSocket(path, stage.server.in_force)
    await admin.open()
    assert (await respond(path, line))["ok"] is False
    assert stage.metrics.enforcement_enabled
    admin.close()


async def test_a_long_line_is_not_read(open_stage: OpenStage, path: Path) -> None:
    admin = AdminSocket(path, open_stage().server.in_force)
    await admin.open()
    with suppress(ConnectionResetError):
        assert await respond(path, b" " * 3 * MAX_REQUEST_BYTES) == {}
    assert (await respond(path, b'{"command": "status"}\n'))["ok"] is True
    admin.close()


async def test_a_socket_without_a_listener_is_replaced(open_stage: OpenStage, path: Path) -> None:
    in_force = open_stage().server.in_force
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(path))
    left.close()
    admin = AdminSocket(path, in_force)
    await admin.open()
    with pytest.raises(BindError, match=r"--admin-socket: cannot listen on .*admin.sock: Address already in use"):
        await AdminSocket(path, in_force).open()
    assert (await respond(path, b'{"command": "status"}\n'))["ok"] is True
    admin.close()


def test_another_file_is_not_replaced(path: Path) -> None:
    path.write_text("mine")
    with pytest.raises(FileExistsError, match="no socket"):
        _bound(path)
    assert path.read_text() == "mine"


async def test_only_the_own_file_is_removed(open_stage: OpenStage, path: Path) -> None:
    stage = open_stage()
    first, second = [AdminSocket(path, stage.server.in_force) for _ in range(2)]
    await first.open()
    os.rename(path, f"{path}.old")
    await second.open()
    first.close()
    assert (await respond(path, b'{"command": "status"}\n'))["ok"]
    second.close()
    assert state_of(stage, path) == (True, False)


def test_a_socket_of_a_process_that_accepts_nothing_is_not_replaced(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener, ExitStack() as callers:
        listener.bind(str(path))
        listener.listen(0)
        is_full = False
        while not is_full:
            caller = callers.enter_context(socket.socket(socket.AF_UNIX))
            caller.setblocking(False)
            is_full = caller.connect_ex(str(path)) != 0
        with pytest.raises(FileExistsError, match="another process"):
            _bound(path)
