"""ApiVersions: the version ranges in the response are cut to the highest versions of the table.

If the request itself has a version that the table does not list, the proxy answers it the way a broker would (KIP-511).
The software that the client names determines which error its refused partitions get, and of which waits it is notified
(`proxy.enforcement.habits`). With `--client-telemetry`, the proxy offers to receive clients' metrics if the broker does
not (`telemetry`), and with `--quotas-topic` to answer Kafka's quota API (`client_quotas`).

Clients since Kafka 4.4 name the node that they intend to reach (KIP-1242). The name passes if the connection leads to
that node's address, so that the broker can tell if the address now belongs to another node. Otherwise, for instance
while the node is not known, or after another node has received its port, the name becomes "any", and the client learns
the address from Metadata.
"""

from typing import final

from protocol import api_versions
from protocol.errors import MalformedFrame
from protocol.request_header import unpack_prefix
from protocol.wire import INT32
from proxy.config.config import OFF
from proxy.enforcement.habits import habits_of
from proxy.streams.handlers.forward import Forward
from proxy.streams.pending import Responses
from proxy.streams.request import Kind, Requests
from proxy.streams.steps import NEED, REPLACE

#: A longer request does not name any software that the proxy knows.
_LONGEST_NAMED = 512


@final
class Negotiate(Forward):
    """Cuts version ranges, and refuses versions of ApiVersions that the table does not list."""

    unseen = False
    batchable = False
    identifies = False

    def on_request(self, requests: Requests, kind: Kind, pos: int, end: int, now_ns: int) -> int:
        length, _, correlation_id = unpack_prefix(requests.buf, pos)
        if not kind.header.api.covers(kind.version):
            self.count(requests, now_ns)
            requests.responses.answers.add(correlation_id, api_versions.unsupported_version_answer(correlation_id))
            return requests.discard(pos, end, length)
        if kind.version < api_versions.FIRST_FLEXIBLE or length > _LONGEST_NAMED:
            return super().on_request(requests, kind, pos, end, now_ns)
        whole = requests.whole(pos, end, length)
        if not whole:
            return NEED
        connection, body_at = requests.connection, kind.header.body_offset - 4
        body = whole[body_at:]
        connection.software = software = api_versions.client_software(body, kind.version)
        habits = habits_of(software)
        connection.identity.refusal_error = habits.refusal_error
        connection.identity.least_notice_ns = habits.least_notice_ns
        if kind.version < api_versions.FIRST_WITH_NODE_ID:
            return super().on_request(requests, kind, pos, end, now_ns)
        node_id = api_versions.node_id_of(body)
        if node_id == api_versions.ANY_NODE or self.context.nodes.is_at(node_id, connection.broker):
            return super().on_request(requests, kind, pos, end, now_ns)
        self.count(requests, now_ns)
        requests.put_in_flight(kind, kind, pos)
        changed = whole[:body_at] + api_versions.for_any_node(body)
        requests.output = INT32.pack(len(changed)) + changed
        requests.resume_at = pos + 4 + length
        return REPLACE

    def respond(self, responses: Responses, kind: Kind, pos: int, end: int, length: int, now_ns: int) -> int:
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
            throttle_time_ms=connection.observer.notify(connection.identity.request_notice, now_ns),
        )
        connection.is_negotiated = True
        if config.observability.client_telemetry:
            offered, response = response, api_versions.with_telemetry(response, kind.version)
            connection.ends_telemetry = response != offered
        quotas = config.quotas
        if quotas.answers_api or quotas.api == OFF:
            response = api_versions.with_quota_apis(response, kind.version, offers=quotas.answers_api)
        return responses.replace(response, pos, length)
