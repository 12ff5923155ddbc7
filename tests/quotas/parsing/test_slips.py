"""What an operator wrote by a slip: one error, whose hint is the mend; and no slip ends as another limit."""

import re
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quotas.entity import Entity
from quotas.entry import QuotaEntry
from quotas.parsing.file import load_quotas
from quotas.parsing.parse import parse_spec
from quotas.problems import InvalidValues

RATE = "producer_byte_rate"


def answer(spec: str) -> str:
    with pytest.raises(InvalidValues) as caught:
        parse_spec(spec)
    assert len(caught.value.problems) == 1, str(caught.value)
    return str(caught.value)


@pytest.mark.claim(
    "limits",
    "a SPEC that was changed by up to three characters is refused, or means what it says; curly "
    "quotes, bits and placeholders are named",
)
@pytest.mark.parametrize(
    ("rate", "says"),
    [
        ("5Gb/s", "'Gb' may be bits or bytes\n  write 5GB if these are bytes; 5 Gbit/s is 625MB"),
        ("40Mb", "write 40MB if these are bytes; 40 Mbit/s is 5MB"),
        ("5 mb", "write 5MB if these are bytes; 5 mbit/s is 625kB"),
        ("5b", "write 5B if these are bytes"),
        ("5Mib", "write 5MiB if these are bytes; 5 Mibit/s is 655.36kB"),
        ("5Mbit", "'Mbit' is a unit of bits, and limits count bytes\n  5 Mbit/s is 625kB: a byte has 8 bits"),
        ("5mbps", "'mbps' is a unit of bits"),
        ("800 kbits/s", "800 kbit/s is 100kB"),
        ("4bps", "4 bit/s is 0.5B"),
        ("1Mibit", "1 Mibit/s is 131.072kB"),
        ("5M", "unknown unit 'M'\n  did you mean 'MB'?"),
        ("5KIB", "did you mean 'KiB'?"),
        ("5parsec", "unknown unit 'parsec'\n  allowed: B, kB, "),
        ("6MB/min", "limits are per second, not per min\n  write 100kB"),
        ("36GB/hour", "write 10MB"),
        ("5MB/fortnight", "limits are per second, not per fortnight"),
        ("5.5.5MB", "expected a rate per second such as 5000000, 5MB or 5MiB/s"),
        ("NaN", "expected a rate per second"),
        ("-5MB", "must be greater than 0"),
        ("0", "must be greater than 0"),
        ("5,000,000", "found '000'\n  write a number without commas, as in 5000000 or 5.5MB"),
        ("5,5MB", "write a number without commas"),
        ("\uff15MB", "replace \uff15 (U+FF15, fullwidth digit five) with '5'"),
        ("5\u00a0MB", "replace U+00A0, no-break space with ' '"),
        ("5MB\u200b", "remove U+200B, zero width space"),
        ("\u22125MB", "with '-'"),
        ("${RATE}", "${RATE} is a placeholder that nothing has replaced"),
        ("{{ .Values.rate }}", "{{ .Values.rate }} is a placeholder"),
        ("5MB client-id=b", "'client-id' is in the value of 'producer_byte_rate'\n  put a comma before it; if"),
        ("5MB;user=b", "another --quota, or in the environment, what follows a ';'"),
    ],
)
def test_a_wrong_rate(rate: str, says: str) -> None:
    assert says in answer(f"client-id=etl,{RATE}={rate}")


@pytest.mark.parametrize("rate", ["5MB/sec", "5MB/second", "5 MB/s", "5MBps", "5_000_000", "5e6"])
def test_a_rate_with_one_meaning_is_read(rate: str) -> None:
    assert parse_spec(f"client-id=etl,{RATE}={rate}") == QuotaEntry(Entity(None, "etl"), {RATE: 5_000_000})


@pytest.mark.parametrize(
    ("scope", "says"),
    [
        ("client-id=\u201cetl\u201d", "replace \u201c (U+201C, left double quotation mark) with '\"'"),
        ("client-id=\u2018etl\u2019", 'left single quotation mark) with "\'"'),
        ("client\u2013id=etl", "replace \u2013 (U+2013, en dash) with '-'"),
        ("client-id=spark\u2013etl", "with '-'; a name in double quotes is taken as written"),
        ("\ufeffclient-id=etl", "remove U+FEFF"),
        ("client-id=etl\u200b", "remove U+200B"),
        ("client-id\uff1detl", "with '='"),
        ("client-id='etl'", "remove the quotes: they are part of the value; in double quotes"),
        ("client-id=${APP}", "${APP} is a placeholder"),
        ("client-id=$(APP)", "$(APP) is a placeholder"),
        ("client-id=%APP%", "%APP% is a placeholder"),
        (
            "group=g",
            "a consumer group cannot be limited: requests for data do not contain its name\n  limit its members",
        ),
        ("group.id=g", "a consumer group cannot be limited"),
        ("consumer-group=g", "a consumer group cannot be limited"),
    ],
)
def test_a_wrong_scope(scope: str, says: str) -> None:
    assert says in answer(f"{scope},{RATE}=5MB")


@pytest.mark.parametrize("name", ["etl ", " etl", "\u201cetl\u201d", "${APP}", "'etl'", "et\u200bl", "\u00a0etl"])
def test_a_name_that_is_really_like_that_is_in_double_quotes(name: str) -> None:
    expected = QuotaEntry(Entity(name), {RATE: 5})
    assert parse_spec(f'user="{name}",{RATE}=5') == expected
    (wrong,) = load_quotas({"quota": [{"user": name, RATE: 5}]}).placed
    assert [(each.place, each.message) for each in wrong.errors] == [
        ("quota[0].user", f"{name!r} is probably not the name")
    ]
    assert "in double quotes, user = '\"...\"', it is taken as written" in str(wrong.errors[0].hint)
    (right,) = load_quotas({"quota": [{"user": f'"{name}"', RATE: 5}]}).placed
    assert right.entry == expected


def test_names_of_other_alphabets_are_names() -> None:
    client = "\u30af\u30e9\u30a4\u30a2\u30f3\u30c8"
    for name in ("B\u00fcro", client, "\u00aa", "$ConnectionString", "caf\u00e9-\U0001f980"):
        assert parse_spec(f"user={name},{RATE}=5").entity == Entity(name)


@pytest.mark.parametrize("key", ["exempt-user", "exempt-client-id"])
def test_two_names_in_one_text(key: str) -> None:
    (reading,) = load_quotas({"quota": [{"total": True, RATE: 5, key: "alice,bob"}]}).placed
    assert [str(each) for each in reading.errors] == [
        f"quota[0].{key}: expected one name, not 'alice,bob'\n"
        f'  write a list in a file, {key} = ["alice", "bob"]; repeat the key in a SPEC'
    ]
    assert "expected one name" in answer(f'total,{RATE}=5,{key}="alice,bob"')
    (reading,) = load_quotas({"quota": [{"total": True, RATE: 5, key: ["alice,bob", "CN=a,O=b"]}]}).placed
    assert reading.entry is not None, "a name with a comma, in a list"


_STRICT = re.compile(
    rf"\s*client-id\s*=\s*([^,\"]*[^,\"\s])\s*,\s*{RATE}\s*=\s*([0-9]+(?:_[0-9]+)*\.?[0-9]*)\s*([kMG]i?B|B|)(?:ps)?\s*"
    r"(?:/\s*(?:s|sec|second))?\s*",
)
_DECIMAL = {"": 1, "B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9}
_FACTORS = _DECIMAL | {"kiB": 0, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
ODD = "=,;\"' \u00a0\u200b\u2013\u201c\uff15bBkKMGimps/_.-0195${}<>\n"


@pytest.mark.claim(
    "limits",
    "a SPEC that was changed by up to three characters is refused, or means what it says; curly "
    "quotes, bits and placeholders are named",
)
@given(st.data())
def test_no_mutation_of_an_entry_is_another_limit_without_an_error(data: st.DataObject) -> None:
    """Up to three characters are inserted, removed, replaced or swapped: it is refused, or means what it says."""
    text = list(f"client-id=etl,{RATE}=5MB/s")
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text) - 2))
        kind = data.draw(st.sampled_from("idrs"))
        new = data.draw(st.sampled_from(ODD))
        text[at : at + 2] = {"i": [new, *text[at : at + 2]], "d": text[at + 1 : at + 2], "r": [new, text[at + 1]],
                             "s": [text[at + 1], text[at]]}[kind]  # fmt: skip
    try:
        entry = parse_spec("".join(text))
    except InvalidValues:
        return
    strict = _STRICT.fullmatch("".join(text))
    assert strict is not None, "".join(text)
    assert str(entry.entity) == str(Entity(None, strict[1]))
    assert entry.limits == {RATE: Fraction(strict[2].replace("_", "")) * _FACTORS[strict[3]]}
