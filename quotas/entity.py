"""Quota entities: Kafka's user and client-id, and the others that can have limits.

`DEFAULT` is Kafka's default entity, written `<default>`. It is not a string, so it differs from a client with the id
"<default>" (Kafka: a null name and `%3Cdefault%3E`).
"""

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

DEFAULT_NAME: Final = "<default>"
"""How the default entity is written, in Kafka's tools and here."""


ANONYMOUS: Final = "ANONYMOUS"
"""Kafka's name for the user of a client that did not authenticate."""


class Default(Enum):
    """The type of `DEFAULT`."""

    DEFAULT = DEFAULT_NAME


DEFAULT: Final = Default.DEFAULT
Name: TypeAlias = str | Default

# Names that need no quotes.
_PLAIN: Final = re.compile(r'[^\s",\\<>][^\s",\\]*')


@dataclass(frozen=True, slots=True)
class Entity:
    """A user, a client id, or a client id of a user; at least one of the two is given (ValueError otherwise).

    As the key of a configured quota a name may be `DEFAULT`; as the owner of a bucket every name is a real one.
    `str()` is unambiguous: "client-id:etl", "user:alice,client-id:<default>", 'user:"CN=etl,O=acme"'.
    """

    user: Name | None = None
    client_id: Name | None = None

    def __post_init__(self) -> None:
        if self.user is None and self.client_id is None:
            raise ValueError("Invalid empty client quota entity")  # Kafka's words

    def __str__(self) -> str:
        return self._joined(":")

    @property
    def spec(self) -> str:
        """As in a SPEC of `--quota`."""
        return self._joined("=")

    def _joined(self, sign: str) -> str:
        parts = (("user", self.user), ("client-id", self.client_id))
        return ",".join(f"{kind}{sign}{_written(name)}" for kind, name in parts if name is not None)


class EntityKind(Enum):
    """The other entities, by their key in a SPEC."""

    IP = "ip"
    LISTENER = "listener"
    RESOURCE_GROUP = "resource-group"
    TOPIC = "topic"
    TOTAL = "total"

    # Enum's own hash is a Python function, and each topic look-up hashes its kind about seven times.
    __hash__ = object.__hash__


@dataclass(frozen=True, slots=True)
class Named:
    """An address, a listener, a resource group, a topic, or the proxy as a whole (`TOTAL`).

    As the key of a configured quota the name of an ip, a listener or a topic may be `DEFAULT`; as the owner of a bucket
    it is a real one. `str()`: "topic:orders", "ip:127.0.0.1", "total".
    """

    kind: EntityKind
    name: Name

    def __str__(self) -> str:
        return self.kind.value if self.kind is EntityKind.TOTAL else f"{self.kind.value}:{_written(self.name)}"

    @property
    def spec(self) -> str:
        """As in a SPEC of `--quota`."""
        return f"{self.kind.value}={'true' if self.kind is EntityKind.TOTAL else _written(self.name)}"


TOTAL: Final = Named(EntityKind.TOTAL, "")
"""All traffic of this process."""

AnyEntity: TypeAlias = Entity | Named


def _written(name: Name) -> str:
    if isinstance(name, Default):
        return DEFAULT_NAME
    if _PLAIN.fullmatch(name):
        return name
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'
