"""`quotas diff` and `apply --dry-run` refuse what `apply` would."""

from pathlib import Path
from typing import cast

import pytest
from click.testing import CliRunner

from proxy.command import quotas_commands
from proxy.command.commands import main
from proxy.command.quotas_topic import StoredQuotas
from proxy.internal_clients.quotas_log import QuotasLog
from quotas.parsing.parse import parse_spec
from quotas.stored import table
from quotas.stored.record import Record, encode

pytestmark = pytest.mark.pure  # it changes a constant


@pytest.mark.parametrize(("most", "code"), [(2, 3), (1, 2)])
@pytest.mark.parametrize("command", [["diff"], ["apply", "--dry-run"]])
def test_a_file_for_which_the_topic_has_no_room(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: list[str], most: int, code: int
) -> None:
    monkeypatch.setattr(table, "MAX_ENTITIES", most)
    stored = StoredQuotas(cast("QuotasLog", None))
    entry = parse_spec("client-id=etl,request_rate=1")
    stored.table.apply(0, *encode(Record(entry.entity, entry)))
    monkeypatch.setattr(quotas_commands, "_read", lambda _: stored)
    file = tmp_path / "quotas.toml"
    file.write_text("".join(f'[[quota]]\nclient-id = "{name}"\nrequest_rate = 1\n' for name in ("etl", "web")))
    options = ("--bootstrap-servers", "a:1", "--quotas-topic", "q", str(file))
    result = CliRunner().invoke(main, ["quotas", *command, *options])
    assert result.stdout == "+ client-id=web request_rate=1\n"
    message = f"error: {file}: there are 1 entities already\n"
    assert (result.exit_code, result.stderr) == (code, message if code == 2 else "")
