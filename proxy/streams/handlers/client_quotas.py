"""DescribeClientQuotas and AlterClientQuotas: with `--quotas-topic` the proxy answers them (`--quota-api`), on the
connection to every node. A change is answered once it is in force here. Without the topic they are forwarded.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, final

from kio.schema.errors import ErrorCode

from protocol import quota_api
from protocol.apis import DESCRIBE_CLIENT_QUOTAS
from protocol.errors import ProtocolError
from protocol.quota_api import Alterations, Filter, Result
from protocol.request_header import unpack_prefix
from proxy.config.config import OFF
from proxy.streams.connection import Connection
from proxy.streams.handlers.forward import MAX_KEPT, Forward
from proxy.streams.request import Kind, Requests
from proxy.streams.steps import NEED
from quotas.entity import AnyEntity
from quotas.problems import InvalidValue
from quotas.stored.kafka_api import Altered, UnsupportedType, altered, described
from quotas.stored.record import Author, Record
from quotas.stored.table import Table

Records = Mapping[AnyEntity, Record]
MOST_AT_ONCE: Final = 100
"""Entities that are described in the event loop: 4 ms. More are described in a thread."""
MOST_VALIDATED_AT_ONCE: Final = 10
"""Likewise of changes that are only validated: 2 ms."""
_NOT_READ: Final = "the proxy has not read the topic of --quotas-topic yet"
_OFF: Final = "the proxy does not answer this API (--quota-api off)"


class QuotaRequestTooLarge(ProtocolError):
    """It would have to be kept whole."""

    reason = "quota_request_too_large"

    def __init__(self, length: int) -> None:
        super().__init__(f"quota request of {length} bytes: {MAX_KEPT} are the most; alter fewer entities at once", -1)


@final
class ClientQuotas(Forward):
    """Answers in the order of the requests: no other request of the connection passes while a change is under way."""

    batchable = False

    def on_request(self, requests: Requests, kind: Kind, pos: int, end: int, now_ns: int) -> int:
        options = self.context.config.quotas
        if not options.answers_api and options.api != OFF:
            return super().on_request(requests, kind, pos, end, now_ns)
        length, _, correlation_id = unpack_prefix(requests.buf, pos)
        if not self.may_keep(pos, end, length):
            raise QuotaRequestTooLarge(length)
        request = requests.whole(pos, end, length)
        if not request:
            return NEED
        self.count(requests, now_ns)
        body, connection = request[kind.header.body_offset - 4 :], requests.connection
        throttle_ms = connection.observer.notify(connection.identity.request_notice, now_ns)
        if kind.api_key == DESCRIBE_CLIENT_QUOTAS:
            self._describe(requests, kind.version, body, correlation_id, throttle_ms)
        else:
            self._alter(requests, kind.version, body, correlation_id, throttle_ms)
        return requests.discard(pos, end, length)

    def _refusal(self, connection: Connection) -> tuple[ErrorCode, str] | None:
        """Why this client may not, or cannot now, use the API."""
        options, user = self.context.config.quotas, connection.identity.client.user
        if options.api == OFF:
            return ErrorCode.unsupported_version, _OFF
        if user not in options.admins:
            message = f"User:{user} may not describe or alter the quotas of --quotas-topic {options.topic}: add it to "
            return ErrorCode.cluster_authorization_failed, f"{message}--quota-admins of the proxy"
        api = self.context.quota_api
        return (ErrorCode.request_timed_out, _NOT_READ) if api is None or not api.is_read else None

    def _describe(self, requests: Requests, version: int, body: bytes, correlation_id: int, throttle_ms: int) -> None:
        wanted, answers = quota_api.describe_request(body, version), requests.responses.answers
        refusal, api = self._refusal(requests.connection), self.context.quota_api
        if refusal is not None or api is None:
            code, message = refusal or (ErrorCode.request_timed_out, _NOT_READ)
            response = quota_api.describe_error(correlation_id, version, code, message, throttle_ms)
            answers.add(correlation_id, response)
            return
        work = partial(_described, api.table.records, wanted, correlation_id, version, throttle_ms)
        if len(api.table) <= MOST_AT_ONCE:
            answers.add(correlation_id, work())
        else:
            api.compute(work, self._promised(requests, correlation_id))

    def _promised(self, requests: Requests, correlation_id: int) -> Callable[[bytes], None]:
        """Let no request pass until the returned function is called with the response to this one."""
        connection, answers = requests.connection, requests.responses.answers
        answer = answers.promise(correlation_id)
        connection.max_in_flight = 0

        def keep(response: bytes) -> None:
            connection.max_in_flight = self.context.config.security.max_pending_requests
            answers.keep(answer, response)

        return keep

    def _alter(self, requests: Requests, version: int, body: bytes, correlation_id: int, throttle_ms: int) -> None:
        request, connection = quota_api.alter_request(body, version), requests.connection
        refusal, api, answers = self._refusal(connection), self.context.quota_api, requests.responses.answers
        if refusal is not None or api is None:
            why = refusal or (ErrorCode.request_timed_out, _NOT_READ)
            results = [Result(entity, *why) for entity, _ in request.entries]
            answers.add(correlation_id, quota_api.alter_response(correlation_id, version, results, throttle_ms))
            return
        change = _Change(request, self._author(connection))
        if request.validate_only:
            table = api.table
            work = partial(_validated, change, table, table.records, correlation_id, version, throttle_ms)
            if len(request.entries) <= MOST_VALIDATED_AT_ONCE:
                answers.add(correlation_id, work())
            else:
                api.compute(work, self._promised(requests, correlation_id))
            return
        keep = self._promised(requests, correlation_id)

        def done(problem: str) -> None:
            keep(quota_api.alter_response(correlation_id, version, change.results(problem), throttle_ms))

        api.submit(change.decide, done)

    def _author(self, connection: Connection) -> Author:
        client = connection.identity.client
        return Author(f"User:{client.user}", f"AlterClientQuotas by {client.client_id} at {client.peer}", "")


def _described(records: Records, wanted: Filter, correlation_id: int, version: int, throttle_ms: int) -> bytes:
    try:
        found = described(records, wanted.components, strict=wanted.strict)
    except InvalidValue as error:
        is_unsupported = isinstance(error, UnsupportedType)
        code = ErrorCode.unsupported_version if is_unsupported else ErrorCode.invalid_request
        return quota_api.describe_error(correlation_id, version, code, error.message, throttle_ms)
    return quota_api.describe_response(correlation_id, version, found, throttle_ms)


def _validated(
    change: "_Change", table: Table, records: Records, correlation_id: int, version: int, throttle_ms: int
) -> bytes:
    """`records`: those of the table, which may change while a thread works."""
    problem = ""
    try:
        table.check(change.decide(records))
    except InvalidValue as error:
        problem = f"nothing would be written: {error.message}"
    return quota_api.alter_response(correlation_id, version, change.results(problem), throttle_ms)


class _Change:
    """The alterations of one request."""

    def __init__(self, request: Alterations, author: Author) -> None:
        self._request = request
        self._author = author
        self._outcomes: list[Altered] | None = None

    def decide(self, records: Records) -> Sequence[Record]:
        """The records to write, by what the topic has now."""
        self._outcomes = altered(records, self._request.entries, self._author)
        return [each.outcome for each in self._outcomes if isinstance(each.outcome, Record)]

    def results(self, problem: str) -> list[Result]:
        """`problem`: why what was decided is not in force, or why nothing was decided; "": it is in force."""
        if self._outcomes is None:
            return [Result(entity, ErrorCode.request_timed_out, problem) for entity, _ in self._request.entries]
        found = []
        for each in self._outcomes:
            error, message = ErrorCode.none, None
            if isinstance(each.outcome, InvalidValue):
                error, message = ErrorCode.invalid_request, each.outcome.message
            elif problem and each.outcome is not None:
                error, message = ErrorCode.request_timed_out, problem
            found.append(Result(tuple(each.entity), error, message))
        return found
