"""The settings of the client of usage records: from both formats, with each error, and never with a secret in one."""

from __future__ import annotations

from inspect import signature
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.helpers import create_ssl_context
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.config.client_file import CLIENT, SSL, ClientFile, read_client_file
from tests.proxy.command_line import UPSTREAM, config, errors, forget_environment

PLACE = "--usage-client-config"
TOPIC = ("--usage-topic", "usage")


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_environment(monkeypatch)


def read(path: Path, text: str) -> ClientFile:
    path.write_text(text, encoding="utf-8")
    return read_client_file(path, place=PLACE)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.properties", "security.protocol=SASL_SSL\nsasl.username: u\nsasl.password p\nssl.ca.location = {ca}\n"),
        (
            "a.toml",
            'security_protocol = "sasl_ssl"\nsasl_plain_username = "u"\nsasl_password = "p"\nssl_cafile = "{ca}"',
        ),
        (
            "a.config",
            "# a comment\n! another\n\nsecurity.protocol=SASL_SSL\nsasl.jaas.config="
            'org.apache.kafka.common.security.plain.PlainLoginModule required \\\n  username="u" \\\n  password="p";\n'
            "ssl.cafile={ca}\n",
        ),
    ],
)
def test_each_format_gives_the_same(tmp_path: Path, name: str, text: str) -> None:
    authority = tmp_path / "ca.pem"
    authority.touch()
    found = read(tmp_path / name, text.replace("{ca}", str(authority)))
    assert found.problems == ()
    assert found.client == {"security_protocol": "SASL_SSL", "sasl_plain_username": "u", "sasl_plain_password": "p"}
    assert found.ssl == {"cafile": str(authority)}


PASSWORDS = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp", "Zs"]), min_size=1, max_size=20)


@settings(max_examples=30)
@given(PASSWORDS)
def test_any_password_arrives(tmp_path_factory: pytest.TempPathFactory, password: str) -> None:
    escaped = password.replace("\\", "\\\\").replace("\x85", "\\u0085")
    path = tmp_path_factory.getbasetemp() / "client.properties"
    found = read(path, f"security.protocol=SASL_PLAINTEXT\nsasl.username=u\nsasl.password={escaped}\n")
    assert found.problems == ()
    assert found.client["sasl_plain_password"] == password


def test_a_key_without_password_asks_nobody_at_the_terminal(tmp_path: Path) -> None:
    for name in ("cert", "key"):
        (tmp_path / name).touch()
    text = f"security.protocol=SSL\nssl.certfile={tmp_path}/cert\nssl.key.location={tmp_path}/key\n"
    assert read(tmp_path / "a", text).ssl["password"] == ""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("security.protocol=TLS", "security.protocol: unknown value"),
        ("security.protocol=SASL_SSL\nsasl.mechanism=GSSAPI", "sasl.mechanism: unknown value"),
        ("security.protocol=SASL_SSL\nsasl.username=u", "needs sasl.username and sasl.password"),
        ("sasl.username=u\nsasl.password=hidden", "does not use sasl settings"),
        ("ssl.cafile=/dev/null", "does not use ssl settings"),
        ("security.protocol=SSL\nssl.cafile=/nowhere", "ssl.cafile = '/nowhere': is not a file"),
        ("security.protocol=SSL\nssl.password=hidden", "needs ssl.certfile"),
        ("sasl.pasword=hidden", "sasl.pasword: unknown key\n  did you mean 'sasl_password'?"),
        ("ssl.truststore.location=x.jks", "PEM files: ssl.cafile"),
        ("bootstrap.servers=a:1", "brokers are those of --usage-bootstrap-servers"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, expected: str) -> None:
    messages = "\n".join(map(str, read(tmp_path / "a", text).problems))
    assert expected in messages
    assert "hidden" not in messages


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b"sasl.password=\xff")
    for path, expected in (
        (tmp_path / "missing", "cannot be read"),
        (tmp_path / "missing.toml", "cannot be read"),
        (tmp_path / "latin", "is not UTF-8 at byte 14"),
    ):
        [problem] = read_client_file(path, place=PLACE).problems
        assert problem.message.startswith(expected)
    [problem] = read(tmp_path / "a.toml", "sasl_password = 5").problems
    assert problem.message == "expected text in quotes"


def test_all_settings_are_those_of_aiokafka() -> None:
    for client in (AIOKafkaProducer, AIOKafkaAdminClient):
        assert set(CLIENT.values()) <= signature(client).parameters.keys()
    assert set(SSL.values()) <= signature(create_ssl_context).parameters.keys()


# ---- the options together


def test_settings_arrive_and_are_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text("security.protocol=SASL_PLAINTEXT\nsasl.username=u\nsasl.password=hidden")
    found = config(*UPSTREAM, *TOPIC, "--usage-client-config", str(path))
    assert found.usage.client["sasl_plain_password"] == "hidden"
    assert "hidden" not in repr(found)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (("--usage-topic", "a", "--usage-file", "b"), "--usage-file 'b': and --usage-topic a are both set"),
        (("--usage-bootstrap-servers", "a:1"), "has no effect without --usage-topic"),
        (("--usage-client-config", "/dev/null"), "has no effect without --usage-topic"),
        (("--usage-file", "b", "--usage-bootstrap-servers", "a:1"), "has no effect without --usage-topic"),
        (("--usage-by-topic",), "has no effect without --usage-topic or --usage-file"),
        (("--usage-topic", "a b"), "expected a topic name"),
        (("--usage-interval", "100ms"), "expected a duration from 1s to 10m"),
        (("--usage-interval", "11m"), "expected a duration from 1s to 10m"),
        (("--label", "team"), "expected NAME=VALUE"),
        (("--label", "a b=c"), "the name: at most 64"),
        (("--label", "a=" + "x" * 257), "the value: at most 256"),
        (("--label", "a=1", "--label", "a=2"), "a has a value already: 1"),
        (tuple(part for number in range(33) for part in ("--label", f"l{number}=x")), "33 labels"),
        ((*TOPIC, "--usage-bootstrap-servers", "127.0.0.1:19092"), "is a port of this proxy itself"),
    ],
)
def test_options_that_do_not_fit_together(flags: tuple[str, ...], expected: str) -> None:
    [error] = errors(*UPSTREAM, *flags)
    assert expected in error


def test_a_client_file_is_relative_to_the_file_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "proxy.toml").write_text('usage_topic = "usage"\nusage_client_config = "client.properties"')
    (tmp_path / "client.properties").write_text("client.id = records")
    found = config(*UPSTREAM, "--config", str(tmp_path / "proxy.toml"))
    assert found.usage.client["client_id"] == "records"
