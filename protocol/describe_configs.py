"""DescribeConfigs: responses without the addresses in broker configs, and requests for brokers.

A response:

    correlation id int32, tag buffer (4), throttle time int32,
    results array: error code int16, error message nullable string, resource type int8, resource name string,
        configs array: name string, value nullable string, read only bool, source int8, is sensitive bool,
            synonyms array: name string, value nullable string, source int8, tag buffer (4)
            config type int8 (3+), documentation nullable string (3+), tag buffer (4)
        tag buffer (4)
    tag buffer (4)

A request, after its header:

    resources array: type int8, name string, config names nullable array of string, tag buffer (4)
    include synonyms bool, include documentation bool (3+), tag buffer (4)
"""

from protocol.apis import APIS, DESCRIBE_CONFIGS
from protocol.rewriting_walk import RewritingWalk
from protocol.walk import Collecting, FrameWalk, Steps

FIRST_WITH_DOCUMENTATION = 3
BROKER_RESOURCE = 4
"""The resource type of brokers."""

ADDRESS_CONFIGS = (b"listeners", b"quorum.voters", b"bootstrap.servers")
"""Endings of the names of broker configs with addresses: `listeners`, `advertised.listeners`,
`controller.quorum.voters`, `controller.quorum.bootstrap.servers`, and the `...bootstrap.servers` of plug-ins."""

_FLAGS = 3  # read only, source, is sensitive


class DescribeConfigsWalk(RewritingWalk):
    """Rewrites a DescribeConfigs response: values of address configs of brokers, and of their synonyms, become null.

    An empty value stays empty.
    """

    def __init__(self, version: int, frame_length: int) -> None:
        super().__init__(DESCRIBE_CONFIGS, version, frame_length)
        self._has_documentation = version >= FIRST_WITH_DOCUMENTATION
        self._of_broker = False
        """Whether the current result describes a broker."""

    def _walk(self) -> Steps:
        yield from self._copy_correlation_id()
        yield from self._copy(4, "throttle time")
        results = yield from self._copy_count(6 if self._compact else 11, "result count")
        for _ in range(results):
            yield from self._copy(2, "error code")
            yield from self._copy_string("error message")
            yield from self._copy(1, "resource type")
            self._of_broker = self.out[-1] == BROKER_RESOURCE
            yield from self._copy_string("resource name")
            configs = yield from self._copy_count(7 if self._compact else 11, "config count")
            for _ in range(configs):
                yield from self._rewrite_config()
            yield from self._drop_tags()
            yield from self._pause(4)
        yield from self._drop_tags()

    def _rewrite_config(self) -> Steps:
        name = yield from self._copy_name()
        hide = self._of_broker and name.endswith(ADDRESS_CONFIGS)
        yield from self._copy_value(hide)
        yield from self._copy(_FLAGS, "read only, source, is sensitive")
        synonyms = yield from self._copy_count(4 if self._compact else 5, "synonym count")
        for _ in range(synonyms):
            yield from self._copy_string("synonym name")
            yield from self._copy_value(hide)
            yield from self._copy(1, "synonym source")
            yield from self._drop_tags()
            yield from self._pause(2)
        if self._has_documentation:
            yield from self._copy(1, "config type")
            yield from self._copy_string("documentation")
        yield from self._drop_tags()
        yield from self._pause(4)

    def _copy_name(self) -> Collecting:
        self.work_left -= 1
        size = yield from self._string_size(self._compact, "config name")
        self.out += self._size_bytes(size)
        name = yield from self._collect(max(0, size), "config name")
        self.out += name
        return name

    def _copy_value(self, hide: bool) -> Steps:
        """Copies a nullable value; with `hide`, writes null unless it is empty."""
        if not hide:
            yield from self._copy_string("config value")
            return
        self.work_left -= 1
        size = yield from self._string_size(self._compact, "config value")
        if size > 0:
            yield from self._skip(size, "config value")
            self.out += b"\x00" if self._compact else b"\xff\xff"
        else:
            self.out += self._size_bytes(size)


class DescribeConfigsRequestWalk(FrameWalk):
    """Reads whether a DescribeConfigs request contains a broker. It changes no byte.

    The response to a request without brokers contains no broker configs and need not be rewritten.
    """

    def __init__(self, version: int, frame_length: int, body_start: int) -> None:
        """A walk of one request's body.

        Args:
            frame_length: bytes of the request from its API key on.
            body_start: bytes of the frame before the body: `RequestHeader.body_offset` less the four of the length.
        """
        super().__init__(frame_length, body_start)
        self._version = version
        self._compact = APIS[DESCRIBE_CONFIGS].is_flexible(version)
        self.names_broker = False
        """Whether a resource is a broker. Valid when the walk is over."""

    def _walk(self) -> Steps:
        compact = self._compact
        resources = yield from self._items(compact, 4 if compact else 7, "resource count")
        for _ in range(resources):
            yield from self._need(1, "resource type")
            if self._buf[self._pos] == BROKER_RESOURCE:
                self.names_broker = True
            yield from self._skip(1, "resource type")
            yield from self._skip_string(compact, "resource name")
            names = yield from self._items(compact, 1 if compact else 2, "config names")
            for _ in range(names):
                yield from self._skip_string(compact, "config name")
                yield from self._pause()
            if compact:
                yield from self._skip_tags()
            yield from self._pause(5)
        yield from self._skip(2 if self._version >= FIRST_WITH_DOCUMENTATION else 1, "include synonyms")
        if compact:
            yield from self._skip_tags()
