"""Request heads: what is understood, and what each wrong one is answered with."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.observability.http_request import Request, RequestError, check_host, parse_request

PLAIN = Request("GET", "/metrics", "localhost", "", keep_alive=True)


def head(line: str, *fields: str) -> bytes:
    return "\r\n".join([line, *fields]).encode("latin-1")


@pytest.mark.parametrize(
    ("given_head", "expected"),
    [
        (head("GET /metrics HTTP/1.1", "Host: localhost"), PLAIN),
        (head("GET /metrics HTTP/1.1", "host:LOCALHOST:19404 "), PLAIN),
        (head("GET /metrics?name[]=x HTTP/1.1", "Host: localhost."), PLAIN),
        (head("GET http://localhost:19404/metrics HTTP/1.1", "Host: other"), PLAIN),
        (head("GET http://localhost HTTP/1.1", "Host: a"), Request("GET", "/", "localhost", "", True)),
        (head("HEAD / HTTP/1.1", "Host: [::1]:80"), Request("HEAD", "/", "[::1]", "", True)),
        (head("GET / HTTP/1.0"), Request("GET", "/", None, "", False)),
        (
            head("GET / HTTP/1.1", "Host: a", "Accept: text/plain", "Accept: */*"),
            Request("GET", "/", "a", "text/plain,*/*", True),
        ),
        (
            head("GET / HTTP/1.1", "Host: a", "Connection: keep-alive, Close"),
            Request("GET", "/", "a", "", False),
        ),
        (head("GET / HTTP/1.1", "Host: a", "Content-Length: 5"), Request("GET", "/", "a", "", False)),
        (head("GET / HTTP/1.1", "Host: a", "Content-Length: 0"), Request("GET", "/", "a", "", True)),
        (head("GET / HTTP/1.1", "Host: a", "Transfer-Encoding: chunked"), Request("GET", "/", "a", "", False)),
        (head("BREW /pot HTTP/1.1", "Host: a"), Request("BREW", "/pot", "a", "", True)),
    ],
)
def test_heads_that_are_understood(given_head: bytes, expected: Request) -> None:
    assert parse_request(given_head) == expected


@pytest.mark.parametrize(
    ("given_head", "status"),
    [
        (b"", 400),
        (b"\x16\x03\x01\x02\x00\x01", 400),  # a TLS hello
        (b"GET /metrics", 400),
        (b"GET  / HTTP/1.1\r\nHost: a", 400),
        (head("GET metrics HTTP/1.1", "Host: a"), 400),
        (head("OPTIONS * HTTP/1.1", "Host: a"), 400),
        (head("GET / HTTP/1.1"), 400),
        (head("GET / HTTP/1.1", "Host: a", "Host: b"), 400),
        (head("GET / HTTP/1.0", "Host: a", "Host: b"), 400),
        (head("GET / HTTP/1.1", "Host: a", " folded"), 400),
        (head("GET / HTTP/1.1", "Host : a"), 400),
        (head("GET / HTTP/1.1", "Host: a", "X: a\rb"), 400),
        (head("GET / HTTP/1.1", "Host: a", "X: a\nb"), 400),
        (head("GET / HTTP/1.1", "Host: a", "X: a\0b"), 400),
        (head("GET / HTTP/2.0", "Host: a"), 505),
    ],
)
def test_heads_that_are_refused(given_head: bytes, status: int) -> None:
    with pytest.raises(RequestError) as raised:
        parse_request(given_head)
    assert raised.value.status == status


@given(st.binary(max_size=200) | st.builds(lambda rest: b"GET / HTTP/1.1\r\nHost:" + rest, st.binary(max_size=200)))
def test_any_bytes_are_a_request_or_an_error(given_head: bytes) -> None:
    try:
        request = parse_request(given_head)
        assert request.path.startswith("/")
        check_host(request.host, ())
    except RequestError as found:
        error = found
    else:
        return
    assert error.status in {400, 421, 505}
    assert error.sentence.isprintable()


@pytest.mark.parametrize("host", [None, "localhost", "127.0.0.1", "[::1]", "[fe80::1]", "169.254.169.254", "known"])
def test_hosts_that_are_answered(host: str | None) -> None:
    check_host(host, {"known"})


@pytest.mark.parametrize("host", ["", "known.evil", "127.0.0.1.nip.io", "127.1", "localhost.evil", "a b", "[::1].evil"])
def test_hosts_that_are_refused(host: str) -> None:
    with pytest.raises(RequestError) as raised:
        check_host(host, {"known"})
    assert raised.value.status == 421
