"""Label values of metrics: printable, and of bounded length.

User names and client ids come from the wire, with any character. Parsers of the exposition format disagree about
control characters, so none is written. Two names may give one label value: callers add such series up, and never write
one series twice.
"""

from typing import Final

from protocol.wire import short_name
from quotas.entity import Default, Entity, Name, Named

OTHER: Final = "other"
"""The label value for everything above a bound on the number of series, which is counted together."""

REPLACEMENT: Final = "\ufffd"


def label_value(name: str) -> str:
    """The `short_name`, with U+FFFD for each character that is not printable."""
    name = short_name(name)
    return name if name.isprintable() else "".join(char if char.isprintable() else REPLACEMENT for char in name)


def entity_label(entity: object) -> str:
    """`str(entity)` with each name as `label_value` has it: at most 1,050 characters for a client, with escapes."""
    if isinstance(entity, Entity):
        names = (None if name is None else _bounded(name) for name in (entity.user, entity.client_id))
        return str(Entity(*names))
    if isinstance(entity, Named):
        return str(Named(entity.kind, _bounded(entity.name)))
    return label_value(str(entity))


def _bounded(name: Name) -> Name:
    return name if isinstance(name, Default) else label_value(name)
