"""What streams and handlers of all connections share."""

from dataclasses import dataclass, field

from proxy.brokers.nodes import Nodes
from proxy.brokers.topics import Topics
from proxy.config.config import Config
from proxy.enforcement.measures import Measures
from proxy.observability.metrics import Metrics
from proxy.streams.groups import Groups
from proxy.streams.memory import MemoryPool
from quotas.registry.registry import Registry


@dataclass(slots=True, eq=False)
class Context:
    """One for all connections of a proxy."""

    config: Config
    metrics: Metrics
    registry: Registry
    memory: MemoryPool
    nodes: Nodes
    topics: Topics
    measures: Measures
    groups: Groups = field(default_factory=Groups)
