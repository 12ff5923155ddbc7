"""The configured networks, and those that an address is in: a look-up for each prefix length that is configured."""

from collections.abc import Iterable
from ipaddress import ip_address, ip_network


def is_network(name: str) -> bool:
    """Whether the name of an `ip` is that of a network, like "10.1.0.0/16"."""
    return "/" in name


class Networks:
    """Networks by their canonical names: there may be a million, with 162 prefix lengths at most."""

    __slots__ = ("_tables",)

    def __init__(self, names: Iterable[str]) -> None:
        """O(names)."""
        #: By version of IP and by number of host bits: a network's name by its other bits.
        tables: dict[int, dict[int, dict[int, str]]] = {4: {}, 6: {}}
        for name in names:
            network = ip_network(name)
            host_bits = network.max_prefixlen - network.prefixlen
            tables[network.version].setdefault(host_bits, {})[int(network.network_address) >> host_bits] = name
        #: The longest prefix, which has the fewest host bits, first.
        self._tables = {version: sorted(found.items()) for version, found in tables.items() if found}

    def names_of(self, name: str) -> tuple[str, ...]:
        """The names under which an address may be configured: its own, then its networks', the longest prefix first.
        A network has only its own name.
        """
        if not self._tables or is_network(name):
            return (name,)
        address = ip_address(name)
        bits = int(address)
        found = [networks.get(bits >> host_bits) for host_bits, networks in self._tables.get(address.version, ())]
        return (name, *[each for each in found if each is not None])
