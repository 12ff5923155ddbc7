"""Networks and addresses for property tests: in few bits, so that they meet."""

import ipaddress
from typing import TypeAlias

from hypothesis import strategies as st

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

_STARTS = {4: "10.0.0.0", 6: "2001:db8::"}


def _network(version: int, low_bits: int, length: int) -> Network:
    start = int(ipaddress.ip_address(_STARTS[version])) + low_bits
    address = ipaddress.ip_address(start) if version == 4 else ipaddress.IPv6Address(start)
    return ipaddress.ip_network((address, length), strict=False)


_LOW_BITS = st.integers(0, 2**12 - 1)
IPV4_NETWORKS = st.builds(_network, st.just(4), _LOW_BITS, st.integers(0, 32))
IPV6_NETWORKS = st.builds(_network, st.just(6), _LOW_BITS, st.integers(0, 128))
NETWORKS = IPV4_NETWORKS | IPV6_NETWORKS
#: Each a network of one address.
ADDRESSES = st.builds(_network, st.just(4), _LOW_BITS, st.just(32)) | st.builds(
    _network, st.just(6), _LOW_BITS, st.just(128)
)
