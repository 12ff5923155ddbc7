"""The cluster's own client quotas (kafka-configs) as entries, one for each entity."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from protocol.client_quotas import ClientQuota
from proxy.config.host_names import HostNames
from quotas import limit_kinds as kinds
from quotas.entity import DEFAULT, AnyEntity, Entity, Kind, Name, Named
from quotas.entry import QuotaEntry
from quotas.parsing.names import CLIENT_ID, IP, USER, entity_name
from quotas.problems import Refusal
from quotas.rates import LONG_MAX, exact, kafka_rate

_OF_CLIENTS: Final = (kinds.PRODUCER_BYTE_RATE, kinds.CONSUMER_BYTE_RATE, kinds.CONTROLLER_MUTATION_RATE)
_OF_ADDRESSES: Final = (kinds.CONNECTION_CREATION_RATE,)
#: The active controller enforces it alone (KIP-599): one figure for the whole cluster.
_OF_CLUSTER: Final = kinds.CONTROLLER_MUTATION_RATE


class ClusterEntries(NamedTuple):
    """`left_out`: what is not enforced here, and of how many entities: `request_percentage`, most of all. `pending`:
    host names whose addresses are not known yet.
    """

    entries: tuple[QuotaEntry, ...]
    left_out: Mapping[str, int]
    pending: frozenset[str] = frozenset()


def cluster_entries(quotas: Iterable[ClientQuota], brokers: int) -> ClusterEntries:
    """What can be enforced of them. `brokers`: the factor of limits that each broker enforces by itself.

    A name of an `ip` that is a host name is resolved as the broker does: that blocks, for a second.
    """
    entries, left_out = list[QuotaEntry](), Counter[str]()
    names = HostNames()
    for quota in quotas:
        try:
            entity = _entity_of(quota.entity, names)
        except Refusal as refusal:
            left_out[refusal.message] += 1
            continue
        limits = {}
        for name, value in quota.values.items():
            if name not in (_OF_ADDRESSES if isinstance(entity, Named) else _OF_CLIENTS):
                left_out[name] += 1
                continue
            try:
                rate = kafka_rate(name, exact(value), kinds.LIMIT_KINDS[name].kafka_type)
            except ValueError as refusal:  # also of infinities and NaN
                left_out[f"{name} ({str(refusal).splitlines()[0]})"] += 1
            else:
                limits[name] = rate if name == _OF_CLUSTER else min(rate * brokers, LONG_MAX)
        if limits:
            entries.append(QuotaEntry(entity, limits))
    return ClusterEntries(tuple(entries), left_out, frozenset(names.pending))


def _entity_of(of_cluster: Mapping[str, str | None], hosts: HostNames) -> AnyEntity:
    """Raises Refusal."""
    found: dict[str, Name] = {
        key: DEFAULT if name is None else entity_name(key, name, real_name=True, resolve=hosts.addresses_of)
        for key, name in of_cluster.items()
        if key in {USER, CLIENT_ID, IP}
    }
    if found.keys() != of_cluster.keys() or not found or (IP in found and len(found) > 1):
        raise Refusal(f"entities of {' and '.join(sorted(of_cluster)) or 'no type'}")
    return Named(Kind.IP, found[IP]) if IP in found else Entity(found.get(USER), found.get(CLIENT_ID))
