"""The proxy's internal topics, through aiokafka's admin client: reads their configuration and creates them."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import (
    ClusterAuthorizationFailedError,
    TopicAlreadyExistsError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
    for_code,
)

from proxy.internal_clients.failures import LogFailed

_NOT_ALLOWED: Final = (TopicAuthorizationFailedError, ClusterAuthorizationFailedError)


Config = dict[str, str]


@asynccontextmanager
async def existing(
    client: Mapping[str, Any], topic: str, keys: Iterable[str], create: Callable[[Any, str], Awaitable[None]]
) -> AsyncIterator[tuple[Any, Config, str]]:
    """A topic that `create` creates if it is missing: an admin client, the values of these keys, and "". If this client
    may not read them: none, and the broker's own words. `client`: arguments of aiokafka's clients. Raises its errors.
    """
    admin = AIOKafkaAdminClient(**client)
    try:
        await admin.start()
        found = await _config_of(admin, topic, keys)
        if found is None:
            await create(admin, topic)
            found = await _config_of(admin, topic, keys)
        yield (admin, {}, found) if isinstance(found, str) else (admin, found or {}, "")
    finally:
        await admin.close()


async def _config_of(admin: Any, topic: str, keys: Iterable[str]) -> Config | str | None:
    """The values of these keys, or why they cannot be read; None if the topic does not exist."""
    resource = ConfigResource(ConfigResourceType.TOPIC, topic, configs=dict.fromkeys(keys))
    [answer] = await admin.describe_configs([resource])
    [(code, message, _, _, entries)] = answer.resources
    error = for_code(code)
    if error is UnknownTopicOrPartitionError:
        return None
    if error in _NOT_ALLOWED:
        return str(message or error.__name__)
    if code:
        raise error(message)
    return {str(name): str(value) for name, value, *_ in entries}


async def create(admin: Any, topic: NewTopic, option: str, how: str) -> bool:
    """Create a topic; returns whether it is new. `option` is the option that names it. `how` describes its settings for
    a user who may create it. Raises LogFailed, and errors of aiokafka.
    """
    answer = await admin.create_topics([topic])
    [(_, code, message)] = answer.topic_errors
    error = for_code(code)
    if error in _NOT_ALLOWED:
        why = f"does not exist, and this client may not create it: create it with {how}"
        raise LogFailed("topic_missing", f"{option} {topic.name} {why}")
    if code and error is not TopicAlreadyExistsError:
        why = f"cannot be created: {error.__name__}: {message}"
        raise LogFailed("topic_missing", f"{option} {topic.name} {why}")
    return not code


def written(config: Mapping[str, str]) -> str:
    """The configuration the way operators write it."""
    return ", ".join(f"{key}={value}" for key, value in config.items())
