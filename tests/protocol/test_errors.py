"""The tree of errors: drawn as it is, with a reason and a plain message each."""

import re

import pytest

from protocol import errors

EXAMPLES = [
    errors.ProtocolError("message", 0),
    errors.NegativeFrameLength(-1),
    errors.NotKafka("tls"),
    errors.InvalidProxyHeader("length", 14),
    errors.FrameTooLarge(200, 100),
    errors.UnknownApi(99),
    errors.UnsupportedVersion("Fetch", 99),
    errors.MalformedFrame("a varint", 7),
    errors.TruncatedFrame("records", 7),
    errors.TooManyItems(7),
    errors.CorrelationMismatch(1, 2),
    errors.UnexpectedResponse(),
    errors.LoginRequired(),
]


@pytest.mark.pure
def test_the_drawing_is_the_tree() -> None:
    drawn = re.findall(r"(\w+)  +\w", errors.__doc__ or "")
    classes = [
        value for value in vars(errors).values() if isinstance(value, type) and value.__module__ == "protocol.errors"
    ]
    assert ["ProtocolError", *drawn] == [each.__name__ for each in classes]
    assert {type(example) for example in EXAMPLES} == set(classes)


def test_each_reason_is_used_once() -> None:
    assert len({example.reason for example in EXAMPLES}) == len(EXAMPLES)
