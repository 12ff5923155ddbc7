"""Slips in flags, variables and files: each is one error whose hint is the mend."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from proxy.command.commands import main
from proxy.config.cautions import Seen, unmatched
from quotas.parsing.parse import parse_spec
from tests.proxy.command_line import UPSTREAM, config, errors

pytestmark = [
    pytest.mark.claim(
        "limits",
        "an argument that no flag takes, a unit of bits, a placeholder, two names of one address, and "
        "a file in another format are answered with what to write",
    ),
    pytest.mark.claim(
        "limits",
        "slips in flags, variables and files are refused in one line with what to correct: servers "
        "without commas or twice, a misspelt variable, an empty file, YAML, dry_run = yes",
    ),
]

OTHER = ("--quota", "client-id=a,request_rate=5")


@pytest.mark.parametrize(
    ("servers", "hint"),
    [
        ("a:1;b:2", "put commas between servers: a:1,b:2"),
        ("a:1|b:2", "put commas between servers: a:1,b:2"),
        ("a:1\nb:2\n", "put commas between servers: a:1,b:2"),
        ("//a:1", "write HOST:PORT, without a scheme and a path"),
        ("a:1/kafka", "write a:1, without a scheme and a path"),
        ("a:1:2", "one address has one colon"),
        ("\u2018a:1\u2019", "replace \u2018 (U+2018, left single quotation mark)"),
        ("'a:1'", "remove the quotes"),
        ("${BROKERS}", "${BROKERS} is a placeholder"),
    ],
)
def test_servers(servers: str, hint: str) -> None:
    [error] = errors("--bootstrap-servers", servers)
    assert hint in error


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--advertised-host", "https://x:9092"), "expected HOST\n  write x, without a scheme and a path"),
        (("--bootstrap-server=b:1",), "give one, with commas: broker:9092,b:1"),
        (
            ("--proxy-protocol-from", "10.0.0.1,10.0.0.2"),
            "give each with its own flag: --proxy-protocol-from 10.0.0.1 --proxy-protocol-from 10.0.0.2",
        ),
        (("--max-connections", "1\u200b0"), "remove U+200B"),
        (("--socket-request-max-bytes", "100Mb"), "write 100MB if these are bytes; 100 Mbit/s is 12.5MB"),
        (("--quota", "client-id=a,producer_byte_rate=-1"), "write unlimited if no limit should apply"),
        (("--quota", "client-id=a,producer_byte_rate=inf"), "write unlimited if no limit should apply"),
        (("--quota", "client-id=a,request_rate=infinity"), "write unlimited if no limit should apply"),
        (("--quota", "client-id=a,request_rate=0"), "to block a client, use an ACL"),
        (("--label", "a=b, c=d"), "give each with its own flag: --label a=b --label c=d"),
        (("--advertised-host", "<host>"), "<host> is a placeholder that nothing has replaced"),
        (("--advertised-host", "$HOST"), "$HOST is a placeholder that nothing has replaced"),
        (("--advertised-host", ""), "the host is missing"),
        (("--metrics-allowed-host", "*"), "expected HOST\n  give each name by which scrapers reach this port"),
        (("--metrics-allowed-host", "*.svc"), "give each name by which scrapers reach this port"),
        (("--metrics-allowed-host", "proxy.svc:19404"), "expected HOST without a port\n  write proxy.svc"),
        (("--quota-admins", "User:*"), "give each user, or User:ANONYMOUS for everyone who has not logged in"),
        (("--quota-admins", "ops-*"), "expected a PRINCIPAL, and * matches no one"),
        (("--quota-admins", "user:alice"), "expected a PRINCIPAL such as User:alice\n  did you mean User:alice?"),
        (("--client-id", '"etl"'), "remove the quotes: they are part of the value"),
        (
            ("--client-id", "etl "),
            "etl ': expected a name; in double quotes, it is taken as written\n  remove the whitespace",
        ),
        (("--principal", "$(USER)"), "$(USER) is a placeholder"),
        (("--sidecar-name", "a\u200b"), "remove U+200B"),
        (("--quota-admins", "'User:alice'"), "remove the quotes"),
        (("--label", 'team="search"'), "remove the quotes"),
        (("--label", "team=a "), "remove the whitespace at its ends"),
        (("--disk-guard-exempt", "user='etl'"), "remove the quotes"),
        (("--quota", "user=$USER_NAME,request_rate=5"), "$USER_NAME is a placeholder"),
        (("--quota", "client-id=<name>,request_rate=5"), "<name> is a placeholder"),
    ],
)
def test_flags(arguments: tuple[str, ...], says: str) -> None:
    assert any(says in error for error in errors(*UPSTREAM, *arguments)), errors(*UPSTREAM, *arguments)


def test_a_name_that_is_really_like_that() -> None:
    found = config(*UPSTREAM, "--client-id", '"etl "', "--principal", "\"'x'\"", "--label", "a=it's", "--label", "b=")
    assert (found.quotas.client_id, found.quotas.principal) == ("etl ", "'x'")
    assert found.usage.labels == (("a", "it's"), ("b", ""))


def test_what_may_be_repeated() -> None:
    assert config(*UPSTREAM, *UPSTREAM, *OTHER, "--quota", "client-id=b,request_rate=5", "--dry-run", "--dry-run")
    assert config(*UPSTREAM, "--max-connections", "5_000_000").security.max_connections == 5_000_000


def test_a_switch_takes_no_value() -> None:
    result = CliRunner().invoke(main, ["run", "--dry-run=false"])
    assert result.exit_code == 2
    assert "--dry-run switches it on, --no-dry-run off." in result.output


@pytest.mark.parametrize(
    ("flag", "text", "hint"),
    [
        ("--quotas-file", "", "is empty\n  if that is intended, write a comment into it: # empty"),
        ("--config", " \n", "is empty"),
        ("--config", "bootstrap_servers: k:9092\n", "it is YAML: in TOML each line is KEY = VALUE"),
        ("--config", "dry_run = yes\n", "write dry_run = true"),
        ("--config", "dry_run = False # now\n", "write dry_run = false"),
        ("--quotas-file", "dry_run = on\n[[quota]]\n", "write dry_run = true"),
        ("--config", "listen = 127.0.0.1:19092\n", "put the value of listen in quotes"),
        ("--config", "dry_run = true\ndry_run = false\n", "dry_run is given twice, first in line 1: keep one"),
        ("--quotas-file", "[[quota]]\nuser = 'a'\nuser = 'b'\n", "user is given twice, first in line 2: keep one"),
        ("--config", "listen = \u201c127.0.0.1:19092\u201d\n", "replace \u201c (U+201C"),
        ("--config", "\u00a0listen = '127.0.0.1:19092'\n", "U+00A0, no-break space"),
        ("--config", "bootstrap.servers=a:1\nsecurity.protocol=SSL\n", "give it with --command-config"),
    ],
)
def test_files(tmp_path: Path, flag: str, text: str, hint: str) -> None:
    (tmp_path / "file").write_text(text)
    [error] = errors(*UPSTREAM, flag, str(tmp_path / "file"))
    assert hint in error
    assert "hidden" not in error


def test_advice_reads_a_rate_as_quotas_do() -> None:
    for rate, code in (("5Mbit", 2), ("5Mb", 2), ("5MB/s", 0), ("5_000_000", 0)):
        assert CliRunner().invoke(main, ["advise", "--rate", rate]).exit_code == code, rate


@pytest.mark.claim(
    "limits",
    "the warning of an entry that matched nothing names a client with another spelling, the other "
    "key, or that no client logs in",
)
@pytest.mark.parametrize(
    ("spec", "clients", "hint"),
    [
        ("user=etl", [(9, "a", "ANONYMOUS")], "no client logs in, so each has the user ANONYMOUS: use client-id"),
        ("resource-group=g,user=etl", [(9, "a", "ANONYMOUS")], "no client logs in"),
        ("user=etl,client-id=<default>", [(9, "a", "bob")], "in /metrics"),
        ("user=etl", [(9, "etl", "bob")], "user 'etl': a client has the client-id 'etl'"),
        ("client-id=bob", [(9, "etl", "bob")], "client-id 'bob': a client has the user 'bob'"),
        ("client-id=ETL", [(9, "etl", "bob")], "client-id 'ETL': a client has 'etl', and names must match exactly"),
        ("client-id=etl", [(9, " etl", "bob")], "a client has ' etl'"),
        ("client-id=spark-etl", [(9, "spark_etl", "bob")], "a client has 'spark_etl'"),
        ("user=Alice", [(9, "etl", "alice")], "user 'Alice': a client has 'alice'"),
        ("client-id=-", [(9, "", "ANONYMOUS")], "in /metrics"),
        ("topic=etl", [(9, "etl", "ANONYMOUS")], "in /metrics"),
    ],
)
def test_the_warning_of_names_that_no_client_has(spec: str, clients: list[Seen], hint: str) -> None:
    [(event, fields)] = unmatched(
        [parse_spec(f"{spec},{'bytes_in_rate' if 'topic' in spec else 'request_rate'}=5")], [], clients
    )
    assert event == "quota_matched_nothing"
    assert hint in str(fields["hint"])


@pytest.mark.parametrize(
    ("by_flag", "of_file", "says"),
    [
        (("ip=localhost,", "ip=127.0.0.1,"), "", "--quota TWICE ip=localhost"),
        (("ip=one.example,", "ip=two.example,"), "", "--quota: ip=two.example TWICE ip=one.example"),
        ((), ("one.example", "Two.example"), "quota[1] ip=Two.example TWICE quota[0] ip=one.example"),
        (("ip=one.example,",), ("two.example",), "quota[0] ip=two.example TWICE --quota ip=one.example"),
        (("ip=127.0.0.1,",), ("two.example",), "one entry: --quota ip=127.0.0.1"),
        (("ip=one.example,",), ("ONE.example",), None),
        (("ip=127.0.0.1,",), ("127.0.0.1",), None),
        (("ip=<default>,",), ("<default>",), None),
    ],
)
def test_two_names_of_one_address(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    by_flag: tuple[str, ...],
    of_file: tuple[str, ...],
    says: str | None,
) -> None:
    monkeypatch.setattr("proxy.config.host_names.addresses_of", lambda _: ["127.0.0.1"])
    file = tmp_path / "quotas.toml"
    file.write_text("# none\n" + "".join(f"[[quota]]\nip = '{name}'\nconnections = 6\n" for name in of_file))
    flags = [part for spec in by_flag for part in ("--quota", f"{spec}connections=5")]
    if says is None:
        config(*UPSTREAM, *flags, "--quotas-file", str(file))
    else:
        [error] = errors(*UPSTREAM, *flags, "--quotas-file", str(file))
        assert says.replace(" TWICE ", ": ip:127.0.0.1 is given twice\n  put its limits into one entry: ") in error


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("\u2013-quota", "x"), "Unexpected argument '\u2013-quota': replace \u2013 (U+2013, en dash) with '-'"),
        (("\u2014dry-run",), "replace \u2014 (U+2014, em dash) with '-'"),
        (("-quota", "x"), "No such option '-quota': did you mean --quota?"),
        (("dry-run",), "Unexpected argument 'dry-run': did you mean --dry-run?"),
        (("bootstrap_servers=a:1",), "did you mean --bootstrap-servers?"),
        (("quotas.toml",), "give a file with --config quotas.toml or --quotas-file quotas.toml"),
        (("--quota", "client-id=a,", "request_rate=5"), "a SPEC is one argument without spaces, in single quotes"),
        (
            ("--dry-run", "true"),
            "Unexpected argument 'true': a switch takes no value: --dry-run is on, --no-dry-run off",
        ),
        (("--dry-run", "OFF"), "Unexpected argument 'OFF': a switch takes no value"),
        (("--", "--dry-run"), "Unexpected argument '--dry-run': remove the -- before it"),
        (("--qouta", "x"), "Did you mean"),
    ],
)
def test_arguments_that_no_flag_takes(arguments: tuple[str, ...], says: str) -> None:
    done = CliRunner().invoke(main, ["run", *UPSTREAM, *arguments])
    assert done.exit_code == 2
    assert says in done.stderr


@pytest.mark.parametrize("flag", ["--config", "--quotas-file", "--command-config"])
@pytest.mark.parametrize("encoding", ["utf-16", "utf_16_be"])
def test_files_in_utf_16(tmp_path: Path, flag: str, encoding: str) -> None:
    file = tmp_path / "file"
    file.write_bytes("\ufeffdry_run = true".encode(encoding))
    assert errors(*UPSTREAM, flag, str(file)) == [f"error: {flag} '{file}': is in UTF-16\n  save it as UTF-8"]
