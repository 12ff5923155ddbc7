"""Rates between two bounds: both ways to write them, and one clear line for each error."""

import tomllib

import pytest

from quotas.entry import QuotaEntry
from quotas.limit_options import Yields
from quotas.parsing.batch import yield_errors
from quotas.parsing.entry import Reading
from quotas.parsing.file import load_quotas
from quotas.parsing.parse import parse_spec
from quotas.problems import InvalidValues

GROUP = "resource-group=backfill,client-id=backfill-*,"


def of_file(text: str) -> list[QuotaEntry]:
    found = load_quotas(tomllib.loads(text))
    assert not found.errors
    return [reading.entry for reading in found.placed if reading.entry is not None]


def test_a_spec_and_both_forms_of_a_file_mean_the_same() -> None:
    spec = parse_spec(GROUP + "producer_byte_rate=1MB..200MB,yield_to=resource-group:online,target=50ms,observe=true")
    table = '{min = "1MB", max = "200MB", yield-to = "resource-group:online", target = "50ms", observe = true}'
    head = '[[resource-group]]\nname = "backfill"\nclient-id = "backfill-*"\nproducer_byte_rate = '
    flat = '"1MB..200MB"\nyield_to = "resource-group:online"\ntarget = "0.05s"\nobserve = true'
    assert of_file(head + table) == of_file(head + flat) == [spec]
    assert spec.limits == {"producer_byte_rate": 200_000_000}
    assert spec.options.yields == Yields(1_000_000, 50_000_000, "online", is_observed=True)


@pytest.mark.parametrize(
    ("rest", "error"),
    [
        ("producer_byte_rate=2MB..1MB,yield_to=client-id:x,target=5ms", "min 2MB is above max 1MB"),
        ("producer_byte_rate=1MB..,yield_to=client-id:x,target=5ms", "max is missing"),
        ("producer_byte_rate=..,yield_to=client-id:x,target=5ms", "min and max is missing"),
        ("producer_byte_rate=0..1MB,yield_to=client-id:x,target=5ms", "must be greater than 0"),
        ("producer_byte_rate=1MB..2MB,target=5ms", "yield_to is missing: the clients to protect"),
        ("producer_byte_rate=1MB..2MB", "yield_to is missing"),
        ("producer_byte_rate=1MB..2MB,yield_to=client-id:x", "target is missing"),
        ("producer_byte_rate=1MB..2MB,yield_to=client-id:x,target=0ms", "target must be from 1ms to 60s, not 0ms"),
        ("producer_byte_rate=1MB..2MB,yield_to=client-id:x,target=0", "expected a time with its unit"),
        ("producer_byte_rate=1MB..2MB,yield_to=online,target=5ms", "expected the clients to protect, not 'online'"),
        ("producer_byte_rate=1MB..2MB,yield_to=client-id:x,target=5ms,observe=no", "expected true or false"),
        ("producer_byte_rate=1MB..2MB,yield_to=client-id:x,target=5ms,algorithm=ewma", "needs a token-bucket"),
        ("producer_byte_rate=2MB,target=5ms", "target has no effect on a rate without bounds"),
        ("consumer_byte_rate=1MB..2MB,yield_to=client-id:x,target=5ms", "only producer_byte_rate can move"),
        ("producer_byte_rate=1MB..2MB,yield_to=client-id:x,taget=5ms", "did you mean 'target'"),
    ],
)
def test_a_wrong_one_has_one_clear_line(rest: str, error: str) -> None:
    with pytest.raises(InvalidValues) as caught:
        parse_spec(GROUP + rest)
    assert error in str(caught.value)
    assert len(caught.value.problems) == 1


def entries(*yields: tuple[str, str]) -> list[QuotaEntry]:
    rest = ",producer_byte_rate=1MB..2MB,target=5ms,yield_to="
    return [parse_spec(f"resource-group={name},client-id={name}{rest}{to}") for name, to in yields]


def test_entries_together() -> None:
    def errors(*found: QuotaEntry) -> list[str]:
        return [str(each) for each in yield_errors(found)]

    online = parse_spec("resource-group=online,client-id=online,producer_byte_rate=1GB")
    topics = parse_spec("resource-group=online,topic=t,bytes_in_rate=1GB")
    assert errors(*entries(("b", "resource-group:online"), ("c", "resource-group:b")), online) == []
    [error] = errors(*entries(("b", "resource-group:online")))
    assert "resource-group:b: yields to resource-group:online, which no entry defines" in error
    [error] = errors(*entries(("b", "resource-group:online")), topics)
    assert "which has no client" in error
    [error] = errors(*entries(("a", "resource-group:b"), ("b", "resource-group:c"), ("c", "resource-group:a")))
    assert "yields in a circle: resource-group:a to resource-group:b to resource-group:c to resource-group:a" in error
    [error] = errors(*entries(("a", "resource-group:a")))
    assert "yields in a circle" in error
    [error] = errors(*entries(("a", "client-id:a")))
    assert "its own member" in error
    [error] = errors(*entries(*[(str(n), "client-id:x") for n in range(9)]))
    assert "9 resource groups yield, and at most 8 can" in error
    assert list(yield_errors(entries(("b", "resource-group:online")), [Reading("")])) == []
