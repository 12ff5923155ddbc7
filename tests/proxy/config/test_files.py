"""Files that are read again when they change are regular ones: no other is read, and none is waited for."""

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from proxy.command.commands import main
from proxy.config.files import read_file

REFUSED = "it is no regular file"


def test_only_a_regular_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"\xff\n")
    (tmp_path / "link").symlink_to("file")
    assert read_file(tmp_path / "file") == read_file(tmp_path / "link") == b"\xff\n"
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(OSError, match=REFUSED):
            read_file(path)
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises((IsADirectoryError, FileNotFoundError)):
            read_file(path)


@pytest.mark.parametrize(
    "text",
    [
        None,
        "quotas_file = 'pipe'",
        "command_config = 'pipe'",
        "command_config = 'client.properties'",
        "usage_topic = 'usage'\nown_client_config = 'client.properties'",
        "ssl_certificate_location = 'pipe'",
    ],
)
def test_a_pipe_without_a_writer(tmp_path: Path, text: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    Path("client.properties").write_text("security.protocol=SSL\nssl.truststore.location=pipe\n")
    if text is not None:
        Path("proxy.toml").write_text(text)
    result = CliRunner().invoke(main, ["check-config", "pipe" if text is None else "proxy.toml"])
    assert (result.exit_code, REFUSED in result.output) == (2, True)
