"""ApiVersions: the version ranges of the response are cut to the maxima of the table.

A version that the table does not list is answered by the proxy as a broker would answer it (KIP-511). The software that
the client names decides which error its refused partitions have (`refusals`).
"""

from typing import final

from protocol.api_versions import FIRST_FLEXIBLE, MAX_RESPONSE, client_software, negotiate, unsupported_version_answer
from protocol.errors import MalformedFrame
from protocol.request_header import unpack_prefix
from protocol.throttle_time import INT32
from proxy.streams.handler import Awaited, RequestKind, Requests, Responses
from proxy.streams.handlers.forward import Forward
from proxy.streams.refusals import refusal_error
from proxy.streams.steps import NEED, PASS, REPLACE

#: A longer request has no software that the proxy knows.
_LONGEST_NAMED = 512


@final
class Negotiate(Forward):
    """Cuts the version ranges; refuses versions that the table does not list."""

    unseen = False
    batchable = False
    identifies = False

    def admit(self, requests: Requests, kind: RequestKind, pos: int, end: int, now_ns: int) -> int:
        length, _, correlation_id = unpack_prefix(requests.buf, pos)
        if kind.header.api.covers(kind.version):
            if kind.version >= FIRST_FLEXIBLE and length <= _LONGEST_NAMED:
                whole = requests.whole(pos, end, length)
                if not whole:
                    return NEED
                software = client_software(whole[kind.header.body_offset - 4 :], kind.version)
                requests.connection.identity.refusal_error = refusal_error(software)
            self.count(requests, now_ns)
            return PASS
        self.count(requests, now_ns)
        answer = unsupported_version_answer(correlation_id)
        requests.connection.answer(correlation_id, answer)
        requests.drop(pos, end, length)
        return REPLACE

    def respond(self, responses: Responses, awaited: Awaited, pos: int, end: int, length: int, now_ns: int) -> int:
        assert isinstance(awaited, RequestKind)  # noqa: S101 - for the type checker
        if length > MAX_RESPONSE:
            raise MalformedFrame(f"an ApiVersions response within {MAX_RESPONSE} bytes", length)
        response = responses.whole(pos, end, length)
        if not response:
            return NEED
        config = self.context.config
        response = negotiate(
            response,
            awaited.version,
            pass_unknown_apis=config.security.pass_unknown_apis,
            hides_sasl=config.upstream.login is not None,
            throttle_time_ms=responses.connection.identity.request_notice.throttle_time_ms(now_ns),
        )
        responses.connection.in_flight.popleft()
        responses.has_begun, responses.connection.is_negotiated = False, True
        responses.output = INT32.pack(len(response)) + response
        responses.resume_at = pos + 4 + length
        return REPLACE
