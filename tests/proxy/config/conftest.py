"""What tests of the configuration share: no environment, and files of quotas."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.proxy.command_line import forget_environment


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_environment(monkeypatch)


@pytest.fixture
def quotas_file(tmp_path: Path) -> Callable[[str], tuple[str, str]]:
    """Write a quotas file; returns the flag that names it."""

    def write(text: str) -> tuple[str, str]:
        path = tmp_path / "quotas.toml"
        path.write_text(text, encoding="utf-8")
        return "--quotas-file", str(path)

    return write
