"""DescribeConfigs: responses without the addresses in broker configs, and requests for brokers."""

from kio.index import load_request_schema

from protocol.apis import DESCRIBE_CONFIGS
from protocol.layouts import Field, layout_of
from protocol.rewriting_walk import CopyingWalk, RewritingWalk
from protocol.walk import Steps

BROKER_RESOURCE = 4
"""The resource type of brokers."""

ADDRESS_CONFIGS = (b"listeners", b"quorum.voters", b"bootstrap.servers")
"""Endings of the names of broker configs with addresses: `listeners`, `advertised.listeners`,
`controller.quorum.voters`, `controller.quorum.bootstrap.servers`, and the `...bootstrap.servers` of plug-ins."""


class DescribeConfigsWalk(RewritingWalk):
    """Rewrites a DescribeConfigs response: values of address configs of brokers, and of their synonyms, become null.

    An empty value stays empty.
    """

    api_key = DESCRIBE_CONFIGS
    _of_broker = False
    """Whether the current result describes a broker."""
    _hides = False
    """Whether the values of the current config are hidden."""
    _in_synonyms = False

    def _copy_field(self, field: Field) -> Steps:
        before = len(self.out)
        if field.name == "synonyms":
            self._in_synonyms = True
        yield from super()._copy_field(field)
        if field.name == "resource_type":
            self._of_broker = self.out[-1] == BROKER_RESOURCE
        elif field.name == "synonyms":
            self._in_synonyms = False
        elif field.name == "name" and not self._in_synonyms:
            self._hides = self._of_broker and self.out[before:].endswith(ADDRESS_CONFIGS)
        elif field.name == "value" and self._hides and len(self.out) - before > (1 if self._compact else 2):
            self.out[before:] = b"\x00" if self._compact else b"\xff\xff"


class DescribeConfigsRequestWalk(CopyingWalk):
    """Reads whether a DescribeConfigs request contains a broker. It changes no byte, and keeps no copy.

    The response to a request without brokers contains no broker configs and need not be rewritten.
    """

    def __init__(self, version: int, frame_length: int, body_start: int) -> None:
        """A walk of one request's body.

        Args:
            frame_length: bytes of the request from its API key on.
            body_start: bytes of the frame before the body: `RequestHeader.body_offset` less the four of the length.
        """
        super().__init__(layout_of(load_request_schema(DESCRIBE_CONFIGS, version)), frame_length, body_start)
        self.names_broker = False
        """Whether a resource is a broker. Valid once the walk has ended."""

    def _copy_value(self, field: Field) -> Steps:
        yield from super()._copy_value(field)
        if field.name == "resource_type" and self.out[-1] == BROKER_RESOURCE:
            self.names_broker = True
        self.out.clear()
