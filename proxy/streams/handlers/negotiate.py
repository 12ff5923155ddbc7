"""ApiVersions: the version ranges of the response are cut to the maxima of the table.

A version that the table does not list is answered by the proxy as a broker would answer it (KIP-511). The software that
the client names decides which error its refused partitions have (`refusals`). With `--client-telemetry` the proxy
offers to take clients' metrics where the broker does not (`telemetry`).
"""

from typing import final

from protocol import api_versions
from protocol.errors import MalformedFrame
from protocol.request_header import unpack_prefix
from proxy.streams.handlers.forward import Forward
from proxy.streams.handlers.reject.clients import refusal_error
from proxy.streams.request import Kind, Requests
from proxy.streams.response_stream import ResponseStream
from proxy.streams.steps import NEED

#: A longer request has no software that the proxy knows.
_LONGEST_NAMED = 512


@final
class Negotiate(Forward):
    """Cuts the version ranges; refuses versions that the table does not list."""

    unseen = False
    batchable = False
    identifies = False

    def admit(self, requests: Requests, kind: Kind, pos: int, end: int, now_ns: int) -> int:
        length, _, correlation_id = unpack_prefix(requests.buf, pos)
        if kind.header.api.covers(kind.version):
            if kind.version >= api_versions.FIRST_FLEXIBLE and length <= _LONGEST_NAMED:
                whole = requests.whole(pos, end, length)
                if not whole:
                    return NEED
                software = api_versions.client_software(whole[kind.header.body_offset - 4 :], kind.version)
                requests.connection.software = software
                requests.connection.identity.refusal_error = refusal_error(software)
            return super().admit(requests, kind, pos, end, now_ns)
        self.count(requests, now_ns)
        requests.responses.answers.add(correlation_id, api_versions.unsupported_version_answer(correlation_id))
        return requests.discard(pos, end, length)

    def respond(self, responses: ResponseStream, kind: Kind, pos: int, end: int, length: int, now_ns: int) -> int:
        if length > api_versions.MAX_RESPONSE:
            raise MalformedFrame(f"an ApiVersions response within {api_versions.MAX_RESPONSE} bytes", length)
        response = responses.whole(pos, end, length)
        if not response:
            return NEED
        config, connection = self.context.config, responses.connection
        response = api_versions.negotiate(
            response,
            kind.version,
            pass_unknown_apis=config.security.pass_unknown_apis,
            hides_sasl=config.upstream.login is not None,
            throttle_time_ms=connection.identity.request_notice.throttle_time_ms(now_ns),
        )
        connection.is_negotiated = True
        if config.observability.client_telemetry:
            offered, response = response, api_versions.with_telemetry(response, kind.version)
            connection.ends_telemetry = response != offered
        return responses.replace(response, pos, length)
