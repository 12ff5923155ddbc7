"""What a quotas file in another format would be in TOML, as far as the error's hint has it."""

import pytest

from proxy.config.other_formats import in_toml

ENTRY = '[[quota]]\nclient-id = "etl"\nproducer_byte_rate = "5MB"'


YAML = "quota:\n  # one\n  - client-id: etl\n    producer_byte_rate: 5MB\n  - client-id: b\n"
LIST = "---\n- client-id: 'etl'\n  producer_byte_rate: \"5MB\"\n"
JSON = '{"quota": [{"client-id": "etl", "producer_byte_rate": "5MB"}]}'
GROUP = '[[resource-group]]\nname = "g"\nuser = ["a", "b"]\nrequest_rate = 5'
BARE = "[[quota]]\nclient-id = 'etl'\nproducer_byte_rate = 5MB"


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        (YAML, f"it is YAML; its first entry as TOML:\n{ENTRY}"),
        (LIST, f"it is YAML; its first entry as TOML:\n{ENTRY}"),
        (JSON, f"it is JSON; its first entry as TOML:\n{ENTRY}"),
        ('[{"name": "g", "user": ["a", "b"], "request_rate": 5}]', f"it is JSON; its first entry as TOML:\n{GROUP}"),
        ("client-id=etl\nproducer_byte_rate=5MB\n", f"it is properties; its first entry as TOML:\n{ENTRY}"),
        ("client-id=etl,producer_byte_rate=5MB", f"it is properties; its first entry as TOML:\n{ENTRY}"),
        (BARE, 'put the value in quotes: producer_byte_rate = "5MB"'),
        ("[[quota]]\nclient-id = 'etl\n", None),
        ("", None),
        ("[" * 100_000, None),
    ],
)
def test_the_entry_is_shown(text: str, hint: str | None) -> None:
    assert in_toml(text) == hint


def test_of_a_file_of_something_else_nothing_is_shown() -> None:
    """It may have secrets: a client file that was given for another."""
    assert in_toml("sasl.username=etl\nsasl.password=hidden\n") is None
    assert "hidden" not in str(in_toml("client-id=etl\nsasl.password=hidden\n"))
    assert "hidden" not in str(in_toml('{"user": "a", "password": "hidden"}'))


def test_curly_quotes_are_not_put_into_quotes() -> None:
    """They would be part of the name; the line's own hint replaces them."""
    assert in_toml("[[quota]]\nclient-id = \u201cetl\u201d\n") is None
