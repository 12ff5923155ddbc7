"""Topics of the proxy's own, through aiokafka's admin client: what they are configured with, and how they are made."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from aiokafka.admin import NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import (
    ClusterAuthorizationFailedError,
    TopicAlreadyExistsError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
    for_code,
)

_NOT_ALLOWED: Final = (TopicAuthorizationFailedError, ClusterAuthorizationFailedError)


class NotAllowed(Exception):
    """This client may not read the configuration. `str()`: the broker's own words."""


class NotCreated(Exception):
    """The topic is missing, and cannot be created. `str()`: why, and what to do."""


async def config_of(admin: Any, topic: str, keys: Iterable[str]) -> dict[str, str] | None:
    """The values of these keys; None: there is no such topic. Raises NotAllowed, and errors of aiokafka."""
    resource = ConfigResource(ConfigResourceType.TOPIC, topic, configs=dict.fromkeys(keys))
    [answer] = await admin.describe_configs([resource])
    [(code, message, _, _, entries)] = answer.resources
    error = for_code(code)
    if error is UnknownTopicOrPartitionError:
        return None
    if error in _NOT_ALLOWED:
        raise NotAllowed(message or "")
    if code:
        raise error(message)
    return {str(name): str(value) for name, value, *_ in entries}


async def create(admin: Any, topic: NewTopic, option: str, how: str) -> bool:
    """Create a topic; returns whether it was not there. `option`: that names it; `how`: what to create it with, for one
    who may. Raises NotCreated, and errors of aiokafka.
    """
    answer = await admin.create_topics([topic])
    [(_, code, message)] = answer.topic_errors
    error = for_code(code)
    if error in _NOT_ALLOWED:
        raise NotCreated(
            f"{option} {topic.name} does not exist, and this client may not create it: create it with {how}"
        )
    if code and error is not TopicAlreadyExistsError:
        raise NotCreated(f"{option} {topic.name} cannot be created: {error.__name__}: {message}")
    return not code


def written(config: Mapping[str, str]) -> str:
    """As operators write it."""
    return ", ".join(f"{key}={value}" for key, value in config.items())
