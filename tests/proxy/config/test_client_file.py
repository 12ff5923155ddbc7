"""The client's file: what Kafka's clients take arrives, each error has its place, and no message has a secret."""

import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploy.local.java import find_java
from deploy.local.security import Security
from proxy.config.client_file import read_client_file, read_client_settings
from proxy.config.client_settings import ClientSettings, LoginSettings, Pem
from proxy.config.errors import ConfigError
from proxy.process.config_watch import _differing, live_part
from quotas.problems import Problem
from tests.proxy.command_line import UPSTREAM, config, errors

PLACE = "--command-config"
TOPIC = ("--usage-topic", "usage")
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
OAUTH = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
PLAIN_SSL = "security.protocol=SASL_SSL\nsasl.mechanism=PLAIN"
KNOWN = LoginSettings(mechanism="PLAIN", username="u", password="p")
DELEGATED = f"sasl.jaas.config={SCRAM} required username=u password=hidden tokenauth=true;"
DELEGATED = f"security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-256\n{DELEGATED}"


def read(path: Path, text: str) -> tuple[ClientSettings, tuple[Problem, ...]]:
    path.write_text(text, encoding="utf-8")
    return read_client_file(path, place=PLACE)


def good(path: Path, text: str) -> ClientSettings:
    found, problems = read(path, text)
    assert problems == ()
    return found


@pytest.mark.parametrize(
    "text",
    [
        "security.protocol=sasl_ssl\nsasl.mechanisms=PLAIN\nsasl.username: u\nsasl.password p\nssl.ca.location = {ca}",
        f"# a comment\n! another\n\n{PLAIN_SSL}\nsasl.jaas.config={PLAIN} required \\\n"
        '  username="u" \\\n  password="p";\nssl.truststore.location={ca}\nssl.truststore.type=JKS\n',
    ],
    ids=["librdkafka's names", "Java's"],
)
def test_each_format_gives_the_same(tmp_path: Path, text: str) -> None:
    authority = tmp_path / "ca.pem"
    authority.write_text("-----BEGIN CERTIFICATE-----")
    found = good(tmp_path / "a", text.replace("{ca}", str(authority)))
    assert (found.protocol, found.login) == ("SASL_SSL", KNOWN)
    assert found.ssl is not None
    assert (found.ssl.ca, found.ssl.certificate, found.ssl.checks_hostname) == (Pem(authority.read_text()), None, True)


def test_the_last_value_of_a_key_counts_like_in_java(tmp_path: Path) -> None:
    found = good(tmp_path / "a", "bootstrap.servers=a:1\nclient.id=x\nbootstrap.servers=\nclient.id=x\n")
    assert (found.servers, found.client_id, found.repeated) == ("", "x", ("bootstrap.servers",))
    [problem] = read(tmp_path / "b", "security.protocol=PLAINTEXT\nsecurity.protocol=SSL2")[1]
    assert problem.place == f"{tmp_path / 'b'}:2: security.protocol"


@pytest.mark.parametrize("prefix", ["kafka.", "spring.kafka.", "spring.kafka.properties.", "consumer.", "producer."])
def test_security_settings_with_the_prefix_of_an_application_are_not_lost(tmp_path: Path, prefix: str) -> None:
    """Otherwise a file of Spark's options would connect without TLS and without a login."""
    text = f"{prefix}security.protocol=SASL_SSL\n{prefix}sasl.mechanism=PLAIN\n{prefix}max.poll.records=5\n"
    found = read(tmp_path / "a", text)[1]
    assert [(each.place, each.message, each.hint) for each in found] == [
        (f"{tmp_path / 'a'}:1: {prefix}security.protocol", "unknown key", "write security.protocol"),
        (f"{tmp_path / 'a'}:2: {prefix}sasl.mechanism", "unknown key", "write sasl.mechanism"),
    ]
    own = f"{text}{PLAIN_SSL}\nsasl.username=u\nsasl.password=p\n"
    assert good(tmp_path / "a", own).protocol == "SASL_SSL", "those of Connect's own clients stand beside others"
    assert good(tmp_path / "a", "schema.registry.ssl.truststore.location=/x\n").protocol == "PLAINTEXT"


PASSWORDS = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp", "Zs"]), min_size=1, max_size=20)


@settings(max_examples=30)
@given(PASSWORDS.filter(lambda text: "${" not in text), st.booleans())
def test_any_password_arrives(tmp_path_factory: pytest.TempPathFactory, password: str, in_jaas: bool) -> None:
    value = f"sasl.password={password}"
    if in_jaas:
        quoted = password.replace("\\", "\\\\").replace('"', '\\"')
        value = f'sasl.jaas.config={PLAIN} required username="u" password="{quoted}";'
    value = value.replace("\\", "\\\\").replace("\x85", "\\u0085")
    found = good(tmp_path_factory.getbasetemp() / "a", f"{PLAIN_SSL}\nsasl.username=u\n{value}\n")
    assert found.login is not None
    assert found.login.password == password


def test_values_that_stand_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secrets.properties").write_text("password = from the file\n")
    (tmp_path / "pw").write_text("from a volume\n")
    (tmp_path / "bom.properties").write_text("\ufeffpassword=from the file\r\n")
    (tmp_path / "bom").write_text("\ufefffrom a volume\r\n")
    monkeypatch.setenv("ETL_PASSWORD", "from the environment")
    for reference, expected in (
        ("env:ETL_PASSWORD", "from the environment"),
        (f"file:{tmp_path}/secrets.properties:password", "from the file"),
        (f"dir:{tmp_path}:pw", "from a volume"),
        (f"file:{tmp_path}/bom.properties:password", "from the file"),
        (f"dir:{tmp_path}:bom", "from a volume"),
    ):
        text = f'{PLAIN_SSL}\nsasl.jaas.config={PLAIN} required username="u" password="${{{reference}}}";'
        found = good(tmp_path / "a", text)
        assert found.login is not None
        assert found.login.password == expected
        assert tmp_path / "a" not in found.secret_files
    monkeypatch.setenv("JAAS", f'{PLAIN} required username="u" password="p";')
    assert good(tmp_path / "a", f"{PLAIN_SSL}\nsasl.jaas.config=${{env:JAAS}}").login == KNOWN


@pytest.mark.claim(
    "security",
    "a file in TOML for --command-config, and brokers that require a login of the proxy's own "
    "clients, are named in one line",
)
def test_toml_is_named_in_one_line(tmp_path: Path) -> None:
    text = '[kafka]\nsecurity_protocol = "SASL_SSL"\nsasl.mechanism = "PLAIN"\nsasl.password = "hidden"\n'
    [problem] = read(tmp_path / "a", text)[1]
    assert problem.message == "is TOML, but must contain Java properties"


def test_all_secrets_are_known_by_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of other clients' settings, too, which have no effect here, and those in JAAS entries of any module."""
    monkeypatch.setenv("KEY_PASSWORD", "of the key")
    token = tmp_path / "token"
    token.write_text("not of this file")
    found = good(
        tmp_path / "a",
        "security.protocol=SASL_SSL\nsasl.mechanism=OAUTHBEARER\nssl.key.password=${env:KEY_PASSWORD}\n"
        f'sasl.jaas.config={OAUTH} required clientId="etl" clientSecret="s1" oauth.access.token="s2" scope=all;\n'
        "sasl.oauthbearer.client.credentials.client.secret=s3\nssl.truststore.password=s4\nacks=all\n"
        f"sasl.oauthbearer.token.endpoint.url=file://{token}\nschema.registry.basic.auth.user.info=etl:s5",
    )
    assert found.login is not None
    assert found.login.secrets == found.secrets
    assert {"of the key", "s1", "s2", "s3", "s4", "etl:s5"} <= set(found.secrets)
    assert not {"etl", "all", str(token), f"file://{token}"} & set(found.secrets)
    assert "s1" not in repr(found)


def test_oauthbearer_has_a_token_file(tmp_path: Path) -> None:
    token = tmp_path / "a token"
    token.write_text("t")
    text = f"security.protocol=SASL_SSL\nsasl.mechanism=OAUTHBEARER\nsasl.jaas.config={OAUTH} required;\n"
    text += "sasl.login.callback.handler.class=org.example.Handler\n"
    found = good(tmp_path / "a", f"{text}sasl.oauthbearer.token.endpoint.url=file://{tmp_path}/a%20token")
    assert found.login == LoginSettings(mechanism="OAUTHBEARER", token_file=token)
    for line in ("", "sasl.oauthbearer.token.endpoint.url=https://i", "sasl.oauthbearer.token.endpoint.url=file:/no"):
        _, [problem] = read(tmp_path / "a", text + line)
        assert "sasl.oauthbearer.token.endpoint.url: expected file:/PATH of a file with a token" in str(problem)


def test_pem_of_files_and_of_the_file_itself(tmp_path: Path) -> None:
    made = Security()
    authority, client = made.write_ca(tmp_path / "ca.pem"), made.issue(tmp_path, "client")
    found = good(
        tmp_path / "a",
        f"security.protocol=SSL\nssl.truststore.location={authority}\nssl.keystore.type=PKCS12\n"
        f"ssl.keystore.location={client.both}\nssl.endpoint.identification.algorithm=\nssl.enabled.protocols=TLSv1.3",
    )
    assert found.ssl is not None
    assert (found.ssl.certificate, found.ssl.key) == (Pem(client.both.read_text()), None)
    assert (found.ssl.checks_hostname, found.ssl.protocols) == (False, ("TLSv1.3",))
    assert found.secret_files == (client.both,)
    assert found.is_identity
    one_line = {path: " ".join(path.read_text().split("\n")) for path in (authority, client.certificate, client.key)}
    lines = {path: path.read_text().replace("\n", "\\n\\\n") for path in one_line}
    for texts in (one_line, lines):
        found = good(
            tmp_path / "a",
            f"security.protocol=SSL\nssl.truststore.certificates={texts[authority]}\n"
            f"ssl.keystore.certificate.chain={texts[client.certificate]}\nssl.keystore.key={texts[client.key]}\n",
        )
        assert found.ssl is not None
        for pem, path in zip((found.ssl.ca, found.ssl.certificate, found.ssl.key), one_line, strict=True):
            assert pem is not None
            assert pem.text.split() == path.read_text().split()
    assert "BEGIN" not in repr(found)


def test_a_java_keystore_is_refused_with_the_way_to_convert_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands are run as they are printed."""
    authority = Security().write_ca(tmp_path / "ca.pem")
    keytool = str(Path(find_java()).resolve().with_name("keytool"))
    monkeypatch.chdir(tmp_path)
    password = ["-storepass", "changeit"]
    made = [keytool, "-importcert", "-noprompt", "-file", str(authority), "-keystore", "trust.jks", *password]
    subprocess.run([*made, "-storetype", "JKS"], check=True, capture_output=True)
    text = "security.protocol=SSL\nssl.truststore.location=trust.jks\nssl.truststore.password=changeit"
    _, [problem] = read(tmp_path / "a", text)
    commands = [line.split() for line in str(problem).splitlines() if "trust.p12" in line]
    commands[0] = [keytool, *commands[0][1:], "-srcstorepass", "changeit", "-deststorepass", "changeit"]
    for command in (commands[0], [*commands[1], "-passin", "pass:changeit"]):
        subprocess.run(command, check=True, capture_output=True)
    good(tmp_path / "a", text.replace("trust.jks", "trust.pem"))
    assert ssl.create_default_context(cafile="trust.pem").cert_store_stats()["x509_ca"] == 1


def test_white_space_around_a_value_is_no_part_of_it(tmp_path: Path) -> None:
    """As AdminClientConfig of Kafka 4.3.1 has it, for passwords too: `ConfigDef.parseType` trims every text."""
    text = "sasl.mechanism=PLAIN\t\nsasl.username= etl \nsasl.password= a b\\u0020 \n"
    login = good(tmp_path / "a", f"security.protocol = SASL_PLAINTEXT \n{text}").login
    assert login is not None
    assert (login.mechanism, login.username, login.password) == ("PLAIN", "etl", "a b")


def test_lines_of_a_key_that_was_pasted_are_not_named(tmp_path: Path) -> None:
    key = "-----BEGIN PRIVATE KEY-----\nMIGHAgEAMBMGByqGSM49AgEG\nCCqG+SM/a==\n"
    found = good(tmp_path / "a", f"schema.registry.key={key}")
    assert found.ignored == ("schema.registry.key", "(not a property name)")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("security.protocol=TLS", "unknown value 'TLS'\n  allowed: PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
        ("security.protocol=SASLSSL", "unknown value 'SASLSSL'\n  did you mean 'SASL_SSL'? allowed: PLAINTEXT"),
        (f"security.protocol={'x' * 50}", f"unknown value '{'X' * 40}'\n"),
        ('security.protocol="SSL"', ':1: security.protocol: the quotes of "SSL" are part of the value\n  remove'),
        ("security.protocol=SSL\nssl.ca.location='/dev/null'", "the quotes of '/dev/null' are part of the value"),
        ("ssl.truststore.typ=PEM", "unknown key\n  did you mean 'ssl.truststore.type'?"),
        ("security.protocol=SASL_SSL\nsasl.mechanism=GSSAPI", "cannot log in with GSSAPI"),
        ("security.protocol=SASL_SSL\nsasl.mechanism=AWS_MSK_IAM", "contains the broker's host name"),
        ("security.protocol=SASL_SSL\nsasl.mechanism=DIGEST", ":2: sasl.mechanism: unknown value 'DIGEST'\n"),
        ("security.protocol=SASL_SSL\nsasl.username=u", "sasl.mechanism: is missing\n  allowed: PLAIN, SCRAM"),
        (f"{PLAIN_SSL}\nsasl.username=u", "or sasl.username and sasl.password"),
        ("sasl.username=u\nsasl.password=hidden", "does not use sasl settings"),
        (f"{PLAIN_SSL}\nsasl.jaas.config={PLAIN} required username=u password='hidden;", "not end with a semicolon"),
        (f"{PLAIN_SSL}\nsasl.jaas.config={PLAIN} required username:u password=hidden;", "without = and a value"),
        (f"{PLAIN_SSL}\nsasl.jaas.config={PLAIN} required password=hidden;", "expected a username and a password"),
        (f"{PLAIN_SSL}\nsasl.jaas.config=;", "PACKAGE.MODULE required username="),
        (f"{PLAIN_SSL}\nsasl.jaas.config=M password=hidden;", "not begin with a module and a flag such as required"),
        (f"{PLAIN_SSL}\nsasl.jaas.config=M required a=b; N required c=hidden;", "has more than one module"),
        (DELEGATED, "cannot log in with a delegation token"),
        ("ssl.ca.location=/dev/null", "does not use ssl settings"),
        ("security.protocol=SSL\nssl.ca.location=/nowhere", ":2: ssl.ca.location = /nowhere: cannot be read"),
        ("security.protocol=SSL\nssl.keystore.key=hidden", "has no certificate"),
        ("security.protocol=SSL\nssl.enabled.protocols=TLSv1.2,TLSv1.1", "allowed: TLSv1.2, TLSv1.3"),
        ("security.protocol=SSL\nssl.endpoint.identification.algorithm=ldaps", "allowed: https, none"),
        ("security.protocol=SSL\nssl.cipher.suites=x", "ssl.cipher.suites: unknown key"),
        ("sasl.pasword=hidden", "sasl.pasword: unknown key\n  did you mean 'sasl.password'?"),
        ("security_protocol=SSL", "security_protocol: unknown key\n  did you mean 'security.protocol'?"),
        ("sasl.password=\\uhidden", "has an escape that is not"),
        ("sasl.password=${file:/dev/stdin/no:k}", "/dev/stdin/no: "),
        ("sasl.password=${env:NO_SUCH}", "the environment variable NO_SUCH is not set"),
        ("sasl.password=${file:/nowhere:k}", "/nowhere: No such file"),
        ("sasl.password=${file:/dev/null:k}", "/dev/null: it is no regular file"),
        ("sasl.password=${vault:a:b}", "is not a reference; allowed: ${env:NAME}"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, expected: str) -> None:
    messages = "\n".join(f"error: {problem}" for problem in read(tmp_path / "a", text)[1])
    assert expected in messages
    assert "hidden" not in messages
    with pytest.raises(ConfigError) as raised:
        read_client_settings(tmp_path / "a")
    assert str(raised.value) == messages


@pytest.mark.claim(
    "security", "a reload cannot give the proxy an identity: that takes a restart, which checks --allow-open-relay"
)
def test_what_a_running_proxy_takes_over(tmp_path: Path) -> None:
    """A password, but neither an identity more or less, nor the text of a file that is just being written. With a new
    login or certificate it would be open to everyone who reaches a port that was opened when there was none.
    """
    before = good(tmp_path / "a", LOGIN)
    (tmp_path / "a").write_text(LOGIN.replace("hidden", "another"))
    changed = read_client_settings(tmp_path / "a", before).login
    assert changed is not None
    assert changed.password == "another"
    certificate = f"security.protocol=SSL\nssl.keystore.location={Security().issue(tmp_path, 'client').both}\n"
    for old, new in (
        *((LOGIN, text) for text in ("security.protocol=SASL_PLAINTEXT", LOGIN.replace("PLAINTEXT", "SSL"), "")),
        ("security.protocol=SSL\n", certificate),
    ):
        before = good(tmp_path / "a", old)
        (tmp_path / "a").write_text(new)
        with pytest.raises(ConfigError, match="adds or removes the proxy's own login"):
            read_client_settings(tmp_path / "a", before)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b"sasl.password=\xff")
    for path, expected in ((tmp_path / "missing", "cannot be read"), (tmp_path / "latin", "is not UTF-8 at byte 14")):
        _, [problem] = read_client_file(path, place=PLACE)
        assert problem.message.startswith(expected)


# ---- the options together
LOGIN = "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.username=u\nsasl.password=hidden\n"


def flags(tmp_path: Path, text: str, *more: str) -> tuple[str, ...]:
    (tmp_path / "client.properties").write_text(text)
    return ("--command-config", str(tmp_path / "client.properties"), *more)


def test_settings_arrive_and_are_not_shown(tmp_path: Path) -> None:
    found = config(*flags(tmp_path, LOGIN + "bootstrap.servers=a:1,b:2"), *TOPIC)
    assert found.bootstrap_servers == (("a", 1), ("b", 2))
    assert found.upstream.login == LoginSettings(mechanism="PLAIN", username="u", password="hidden")
    assert (found.internal_client, found.internal_servers) == (found.upstream, ())  # by default
    assert "hidden" not in repr(found)
    assert config(*flags(tmp_path, "bootstrap.servers=a:1"), *UPSTREAM).bootstrap_servers == (("broker", 9092),)
    own = tmp_path / "own.properties"
    for text, servers in (("client.id=records", ()), ("bootstrap.servers=c:3,d:4", (("c", 3), ("d", 4)))):
        own.write_text(text)
        found = config(*flags(tmp_path, LOGIN), *UPSTREAM, *TOPIC, "--own-client-config", str(own))
        assert (found.internal_client.login, found.internal_servers) == (None, servers)
        assert found.bootstrap_servers == (("broker", 9092),)
    own.write_text("bootstrap.servers=c:x")
    assert "own.properties: bootstrap.servers: " in errors(*UPSTREAM, *TOPIC, "--own-client-config", str(own))[0]


def test_another_file_needs_a_restart_and_another_password_does_not(tmp_path: Path) -> None:
    before = config(*UPSTREAM, *TOPIC, *flags(tmp_path, LOGIN))
    after = config(*UPSTREAM, *TOPIC, *flags(tmp_path, LOGIN.replace("hidden", "another")))
    assert before != after
    assert live_part(before, after) == after
    without = config(*UPSTREAM, *TOPIC)
    assert live_part(before, without) == before
    assert "login" in _differing(live_part(before, without), without)


def test_a_login_is_not_for_everyone_who_reaches_the_port(tmp_path: Path) -> None:
    own = Security().issue(tmp_path, "client").both
    certificate = f"security.protocol=SSL\nssl.keystore.location={own}"
    for host, is_open in (("127.0.0.1", False), ("localhost", False), ("[::]", True), ("10.1.2.3", True)):
        for text, relays in ((LOGIN, True), (certificate, True), ("security.protocol=SASL_SSL", False)):
            given_flags: Any = (*UPSTREAM, *flags(tmp_path, text), "--listen", f"{host}:0", "--advertised-host", "h")
            if is_open and relays:
                [error] = errors(*given_flags)
                assert f"--listen '{host}:0': anyone who can reach this address has the rights of the login" in error
                assert "--allow-open-relay permits it" in error
                given_flags = (*given_flags, "--allow-open-relay")
            config(*given_flags)


@pytest.mark.parametrize(
    ("given_flags", "expected"),
    [
        (("--usage-topic", "a", "--usage-file", "b"), "--usage-file 'b': and --usage-topic a are both set"),
        (("--usage-by-topic",), "has no effect without --usage-topic or --usage-file"),
        (("--usage-topic", "a b"), "Topic name is invalid"),
        (("--usage-interval", "100ms"), "  from 1s to 600s"),
        (("--usage-interval", "11m"), "  from 1s to 600s"),
        (("--label", "team"), "expected NAME=VALUE"),
        (("--label", "a b=c"), "the name: at most 64"),
        (("--label", "a=" + "x" * 257), "the value: at most 256"),
        (tuple(part for number in range(33) for part in ("--label", f"l{number}=x")), "33 labels"),
    ],
)
def test_options_that_do_not_fit_together(given_flags: tuple[str, ...], expected: str) -> None:
    [error] = errors(*UPSTREAM, *given_flags)
    assert expected in error


def test_servers_of_the_file_are_checked(tmp_path: Path) -> None:
    [wrong] = errors(*flags(tmp_path, "bootstrap.servers=a"))
    assert "client.properties: bootstrap.servers: expected HOST:PORT" in wrong
    [missing] = errors(*flags(tmp_path, "acks=1"))
    assert "--bootstrap-servers: is missing" in missing
    _, own = flags(tmp_path, "bootstrap.servers=127.0.0.1:19092")
    [itself] = errors(*UPSTREAM, "--own-client-config", own)
    assert "--own-client-config '127.0.0.1:19092': is a port of this proxy itself" in itself


def test_a_client_file_is_relative_to_the_file_that_names_it(tmp_path: Path) -> None:
    for key in ("command_config", "own_client_config"):
        (tmp_path / "proxy.toml").write_text(f'usage_topic = "usage"\n{key} = "client.properties"')
        (tmp_path / "client.properties").write_text("client.id = records")
        found = config(*UPSTREAM, "--config", str(tmp_path / "proxy.toml"))
        assert found.internal_client.client_id == "records"
