"""The lines of entries in a quotas file, up to the source that advice about a limit names."""

from pathlib import Path

from proxy.config.config import ListeningOptions
from proxy.config.quotas_file import read_quotas
from quotas.entity import DEFAULT, Entity
from quotas.parsing.parse import parse_spec
from quotas.registry.configured import Configured

TEXT = """# Of the team.
quota_share = 0.5

[[quota]]
client-id = "<default>"
producer_byte_rate = "5MB"

  [[ "resource-group" ]]   # with a comment
name = "jobs"
client-id = ["a", "b"]
producer_byte_rate = "5MB"

[[quota]]
client-id = "etl"
producer_byte_rate = "5MB"
"""


def test_the_source_of_a_limit_has_the_line_of_its_entry(tmp_path: Path) -> None:
    file = tmp_path / "quotas.toml"
    file.write_text(TEXT)
    sources, _ = read_quotas([parse_spec("client-id=other,consumer_byte_rate=1")], file, ListeningOptions())
    configured = Configured(sources)
    assert configured.lines[str(file), Entity(client_id=DEFAULT)] == 4
    assert configured.lines[str(file), Entity(client_id="etl")] == 13
    assert Entity(client_id="other") not in {entity for _, entity in configured.lines}
