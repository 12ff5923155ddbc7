"""Names of certificates: each expected value is what Java's X500Principal, or Kafka's SslPrincipalMapper, returns."""

from collections.abc import Sequence
from functools import partial

import pytest
from asn1crypto import core
from hypothesis import given
from hypothesis import strategies as st

from protocol.principal_rules import as_seen_at, distinguished_name, parse_rules, validity

CN, C, ST, O, OU = "2.5.4.3", "2.5.4.6", "2.5.4.8", "2.5.4.10", "2.5.4.11"  # noqa: E741 - their names
DC, UID, EMAIL = "0.9.2342.19200300.100.1.25", "0.9.2342.19200300.100.1.1", "1.2.840.113549.1.9.1"
UTF8, PRINTABLE, T61, IA5, UNIVERSAL, BMP, INTEGER = 12, 19, 20, 22, 28, 30, 2

Attribute = tuple[str, int, bytes]


def der(tag: int, *content: bytes) -> bytes:
    joined = b"".join(content)
    size = len(joined)
    return bytes([tag, size] if size < 128 else [tag, 0x82, size >> 8, size & 255]) + joined


def certificate(*subject: Sequence[Attribute], expires: bytes = b"261123101500Z") -> bytes:
    """A certificate with these attributes, by the sets of its subject."""
    sets = [
        der(0x31, *[der(0x30, core.ObjectIdentifier(oid).dump(), der(tag, content)) for oid, tag, content in each])
        for each in subject
    ]
    algorithm = der(0x30, core.ObjectIdentifier("1.2.840.10045.4.3.2").dump())
    validity = der(0x30, der(0x17, b"200101000000Z"), der(0x17, expires))
    key = der(0x30, algorithm, der(3, b"\0"))
    body = der(0x30, der(0xA0, der(2, b"\2")), der(2, b"\1"), algorithm, der(0x30), validity, der(0x30, *sets), key)
    return der(0x30, body, algorithm, der(3, b"\0"))


@pytest.mark.claim(
    "security",
    "names of certificates are those of Java's X500Principal, and mapping rules work the way they do in brokers",
)
@pytest.mark.parametrize(
    ("subject", "name"),
    [
        (
            [[(C, PRINTABLE, b"US")], [(ST, UTF8, b"MD")], [(O, UTF8, b"my cp")], [(CN, UTF8, b"kafka1")]],
            "CN=kafka1,O=my cp,ST=MD,C=US",
        ),
        ([[(DC, IA5, b"org")], [(DC, IA5, b"acme")], [(UID, UTF8, b"7")]], "UID=7,DC=acme,DC=org"),
        ([[(CN, UTF8, b"a")], [(CN, UTF8, b"b"), (OU, UTF8, b"c")]], "CN=b+OU=c,CN=a"),
        ([[(CN, UTF8, b'Acme, "x" + <y>; #1=\\')]], r"CN=Acme\, \"x\" \+ \<y\>\; \#1\=\\"),
        ([[(CN, UTF8, b"  a b \r")]], "CN=\\ \\ a b\\ \\\r"),
        ([[(CN, UTF8, b"a \n")]], "CN=a \n"),
        ([[(CN, UTF8, "€é\n\0".encode())]], "CN=€é\n\\00"),
        ([[(EMAIL, IA5, b"a@b")], [("1.2.3.4", UTF8, b"x")]], "1.2.3.4=#0c0178,1.2.840.113549.1.9.1=#1603614062"),
        (
            [[(CN, BMP, b"\0a")], [(O, UNIVERSAL, b"\0\0\0a")], [(OU, INTEGER, b"\5")]],
            "OU=#020105,O=#1c0400000061,CN=\\00a",
        ),
        ([[(CN, T61, b"\xe9")]], "CN=\ufffd"),
        ([[(CN, UTF8, b"")]], "CN="),
        ([], ""),
    ],
)
def test_a_subject_is_written_as_java_writes_it(subject: list[list[Attribute]], name: str) -> None:
    assert distinguished_name(certificate(*subject)) == name


def test_when_a_certificate_expires() -> None:
    assert validity(certificate(expires=b"700101000100Z"))[1] == 60


@given(st.binary(max_size=300), st.integers(0, 300), st.integers(0, 300))
def test_a_certificate_of_any_bytes_is_read_or_refused(noise: bytes, start: int, end: int) -> None:
    whole = certificate([(CN, UTF8, b"etl"), (OU, UTF8, b"x")], [(EMAIL, IA5, b"a@b")])
    for read in (distinguished_name, validity, partial(as_seen_at, "proxy.test")):
        for data in (noise, whole[:start] + noise + whole[end:]):
            try:
                read(data)
            except ValueError:
                continue


KAFKA1 = "CN=kafka1,OU=SME,O=mycp,L=Fulton,ST=MD,C=US"
DUKE = "CN=Duke,OU=ServiceUsers,O=Org,C=US"


@pytest.mark.claim(
    "security",
    "names of certificates are those of Java's X500Principal, and mapping rules work the way they do in brokers",
)
@pytest.mark.parametrize(
    ("rules", "name", "user"),
    [
        ("DEFAULT", DUKE, DUKE),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/", DUKE, "Duke"),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L,DEFAULT", DUKE, "duke"),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L, DEFAULT", KAFKA1, KAFKA1),
        ("RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/U", KAFKA1, "KAFKA1@SME"),
        (r" RULE:^CN=(.*?), *OU=(\w*).*$/$1$2\$3/,RULE:.*/x/ ", "CN=a,OU=b,c", "ab$3"),
        ("RULE:^CN=([^,]+).*$/$12/", "CN=a,OU=b", "a2"),
        ("RULE:(a)?(.*)/$1-$2/", "b", "-b-"),  # the second match is empty
        ("RULE:(.*),.*/$1/", "no comma", "no comma"),  # a broker would refuse it
        ("RULE:C.*//,DEFAULT", DUKE, DUKE),  # nothing is left
        (r"RULE:a\/b(.*)/$1\/\$1\\/", "a/bq", "q/$1\\"),
        (r"RULE:CN=((?:\\.|[^,])+),.*/$1/", r"CN=Acme\, Inc,O=x", r"Acme\, Inc"),
        (",, RULE:.*(x)/$0$1/,", "ax", "axx"),
        ("", DUKE, DUKE),
        ("RULE:(.*)/$1/U", "CN=ß", "CN=SS"),
    ],
)
def test_rules_make_users_as_kafka_does(rules: str, name: str, user: str) -> None:
    assert parse_rules(rules).principal_of(name) == user


@pytest.mark.parametrize(
    ("rules", "what"),
    [
        ("default", "rule 'default'"),
        ("DEFAULT junk", "rule 'DEFAULT junk'"),
        ("RULE:a", "rule 'RULE:a'"),
        ("RULE:a/b", "rule 'RULE:a/b'"),
        ("RULE:a/b/l", "rule 'RULE:a/b/l'"),
        ("RULE:a/b/LU", "rule 'RULE:a/b/LU'"),
        ("RULE:(/b/", r"pattern '\(': missing \)"),
        ("RULE:a/$1/", r"replacement '\$1': \$1 is no group of the pattern"),
        ("RULE:(a)/$x/", r"replacement '\$x': \$ is no group"),
        ("RULE:(a)/$/", r"replacement '\$': \$ is no group"),
    ],
)
def test_rules_that_could_not_work_are_refused(rules: str, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        parse_rules(rules)
