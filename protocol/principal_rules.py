"""The user that a client's certificate names, found the way Kafka's brokers do.

A subject is written as Java's `X500Principal.getName()` writes it (RFC 2253): the last part first, nine attribute types
by their names, others as dotted numbers with the value in hex. Rules then make a short name of it: the syntax of
`ssl.principal.mapping.rules` (KIP-371, `SslPrincipalMapper.java`), a list of

    RULE:pattern/replacement/   of the whole name; $1 to $9 in the replacement are groups of the pattern
    RULE:pattern/replacement/L  in lower case; U: in upper case
    DEFAULT                     the name as it is

The first rule that matches counts. Patterns are those of Python, which are Java's but for rare parts.
"""

import re
from collections.abc import Iterable
from functools import cache
from typing import Final, final

from asn1crypto import core, parser, x509

from protocol.wire import read_text

DEFAULT: Final = "DEFAULT"
"""The rules if none are configured."""

#: Kafka's own expression for one rule, and for one with what may follow it.
_RULE: Final = r"(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?).*?|(.*?)"
_SPLITTER: Final = re.compile(rf"\s*({_RULE})\s*(,\s*|$)")
_PARSER: Final = re.compile(_RULE)
#: A group, and an escaped character, of a replacement.
_PIECES: Final = re.compile(r"\$([0-9]?)|\\(.?)", re.DOTALL)

#: The attribute types that RFC 2253 names.
_TYPES: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.25": "DC",
    "0.9.2342.19200300.100.1.1": "UID",
}
#: ASN.1 tags of the types that Java writes as text: UTF8, Printable, T61, IA5, General, BMP.
_STRINGS: Final = frozenset({12, 19, 20, 22, 27, 30})
_ESCAPED: Final = re.compile(r'[,=+<>#;"\\]')
_ENDS: Final = re.compile(r"^[ \r]+|[ \r]+\Z")


def distinguished_name(certificate_der: bytes) -> str:
    """The subject of a certificate. Raises ValueError: it cannot be read."""
    return _written_name(x509.Certificate.load(certificate_der).subject.dump())


def validity(certificate_der: bytes) -> tuple[int, int]:
    """When a certificate begins to be valid and when it expires, in seconds of Unix time. Raises ValueError: it cannot
    be read.
    """
    found = x509.Certificate.load(certificate_der)
    return int(found.not_valid_before.timestamp()), int(found.not_valid_after.timestamp())


def issued(issuer_der: bytes, certificate_der: bytes) -> bool:
    """Whether one certificate is of the issuer of the other, by name and key identifier; the signature is not checked.
    Raises ValueError: one of them cannot be read.
    """
    issuer, found = x509.Certificate.load(issuer_der), x509.Certificate.load(certificate_der)
    key, wanted = issuer.key_identifier, found.authority_key_identifier
    return bool(issuer.subject == found.issuer) and (not key or not wanted or key == wanted)


def as_seen_at(host: str, certificate_der: bytes) -> tuple[list[str], bool]:
    """The names and addresses that a certificate is for, and whether clients that check the name of this host accept
    it. Raises ValueError: it cannot be read.
    """
    found = x509.Certificate.load(certificate_der)
    hosts = [*found.valid_domains, *found.valid_ips] or [str(found.subject.native.get("common_name"))]
    return hosts, bool(found.is_valid_domain_ip(host)) or hosts == [host]


def _written_name(der: bytes) -> str:
    """A Name of X.509: a sequence of sets of attributes, each a type and a value."""
    parts = ["+".join([_written(each) for each in _items(attributes)]) for attributes in _items(der)]
    return ",".join(reversed(parts))


def _items(der: bytes) -> list[bytes]:
    """The items of a sequence or set, which is the first value in `der`."""
    content: bytes = parser.parse(der)[4]
    items = []
    while content:
        size = sum(map(len, parser.parse(content)[3:]))
        items.append(content[:size])
        content = content[size:]
    return items


def _written(attribute_der: bytes) -> str:
    """One attribute, like Java's `AVA.toRFC2253String`: the bytes of any string are read as UTF-8."""
    type_der, value_der = _items(attribute_der)
    dotted: str = core.ObjectIdentifier.load(type_der).dotted
    _, _, tag, _, content, _ = parser.parse(value_der)
    name = _TYPES.get(dotted)
    if name is None or tag not in _STRINGS:
        return f"{name or dotted}=#{value_der.hex()}"
    text = _ESCAPED.sub(r"\\\g<0>", read_text(content)).replace("\0", "\\00")
    return f"{name}={_ENDS.sub(_escape_each, text)}"


def _escape_each(found: re.Match[str]) -> str:
    return "".join(["\\" + character for character in found[0]])


@final
class _Rule:
    """One `RULE`: of a name that the pattern matches, each match is replaced. `case`: L, U, or nothing."""

    def __init__(self, pattern: str, replacement: str, case: str) -> None:
        try:
            self.pattern: Final = re.compile(pattern)
        except re.error as error:
            raise ValueError(f"pattern {pattern!r}: {error}") from None
        self.case: Final = case

        def in_python(found: re.Match[str]) -> str:
            group, escaped = found.groups()
            if escaped:
                return escaped.replace("\\", r"\\")
            if not group or int(group) > self.pattern.groups:
                raise ValueError(f"replacement {replacement!r}: {found[0]} is no group of the pattern, nor escaped")
            return rf"\g<{group}>"

        self._template: Final = _PIECES.sub(in_python, replacement)

    def apply(self, name: str) -> str | None:
        if not self.pattern.fullmatch(name):
            return None
        name = self.pattern.sub(self._template, name)
        return name.lower() if self.case == "L" else name.upper() if self.case == "U" else name


@final
class Rules:
    """Parsed rules; None among them is `DEFAULT`."""

    def __init__(self, rules: Iterable[_Rule | None]) -> None:
        self._rules: Final = tuple(rules)

    def principal_of(self, distinguished_name: str) -> str:
        """The user: the name itself where no rule matches, whose client a broker would refuse, or nothing is left."""
        for rule in self._rules:
            user = distinguished_name if rule is None else rule.apply(distinguished_name)
            if user is not None:
                return user or distinguished_name
        return distinguished_name


@cache  # each connection with a certificate asks
def parse_rules(text: str = DEFAULT) -> Rules:
    """Raises ValueError: a rule is not valid. Its text reads on after "--ssl-principal-mapping-rules"."""
    rules: list[_Rule | None] = []
    for found in _SPLITTER.finditer(text.strip()):
        rule = found[1]
        parts = _PARSER.match(rule)
        if parts is None or parts.end() != len(rule):
            raise ValueError(f"rule {rule!r}: expected DEFAULT or RULE:pattern/replacement/ with L, U or nothing after")
        if parts[1]:
            rules.append(None)
        elif parts[2] is not None:
            rules.append(_Rule(parts[2], parts[3], parts[4]))
    return Rules(rules)
