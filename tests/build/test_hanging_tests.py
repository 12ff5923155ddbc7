"""A test that hangs ends: CI has a bound, and says which test it was."""

import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
PREFIX = "import asyncio, time\n\nimport uvloop\n\n"
HANGS = {
    "its teardown hangs after a failure": """
import pytest

@pytest.fixture
def stuck():
    yield
    time.sleep(60)

def test_it(stuck):
    raise AssertionError
""",
    "it swallows the timeout": """
def test_it():
    for _ in range(2):
        try:
            time.sleep(60)
        except BaseException:
            pass
""",
}
LEAVES_SERVER_OPEN = """
def test_it(tmp_path):
    async def fails():
        server = await asyncio.start_unix_server(print, tmp_path / "socket")
        raise AssertionError

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(fails())
"""


def run_pytest(folder: Path, test: str, timeout_seconds: float) -> subprocess.CompletedProcess[str]:
    """In a process of its own, as two processes of `make test` run their tests."""
    (folder / "conftest.py").write_text("from tests.conftest import *\n")
    (folder / "test_it.py").write_text(PREFIX + test)
    options = ["-c", str(PROJECT / "pyproject.toml"), "-o", f"timeout={timeout_seconds}", "-p", "no:cacheprovider"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "1", *options, str(folder / "test_it.py")],
        capture_output=True,
        text=True,
        cwd=PROJECT,
        timeout=200,
        check=False,
    )


@pytest.mark.parametrize("test", HANGS.values(), ids=HANGS.keys())
def test_a_test_that_hangs_is_ended_and_shown(tmp_path: Path, test: str) -> None:
    done = run_pytest(tmp_path, test, timeout_seconds=1)
    assert done.returncode == 1
    assert "crashed while running '::test_it'" in done.stdout
    assert f'File "{tmp_path / "test_it.py"}", line' in done.stderr, "where it hangs"


def test_what_a_failed_test_leaves_open_is_closed(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, LEAVES_SERVER_OPEN, timeout_seconds=20)
    assert done.returncode == 1
    assert "crashed" not in done.stdout
    assert "1 failed" in done.stdout
