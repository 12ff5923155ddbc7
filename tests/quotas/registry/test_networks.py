"""The networks of an address, compared with those that Python's `ipaddress` finds."""

import ipaddress
import timeit
from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from quotas.registry.networks import Networks
from tests.quotas.ip_networks import ADDRESSES, NETWORKS, Network


@given(st.lists(NETWORKS.filter(lambda each: each.num_addresses > 1), max_size=40, unique=True), ADDRESSES)
def test_an_address_has_the_names_of_its_networks_the_longest_prefix_first(
    networks: list[Network], at: Network
) -> None:
    address = at.network_address
    found = sorted((each for each in networks if address in each), key=lambda each: -each.prefixlen)
    assert Networks(map(str, networks)).names_of(str(address)) == (str(address), *map(str, found))


def test_a_look_up_costs_the_same_in_a_hundred_thousand_networks() -> None:
    """It grows with the prefix lengths, not with the networks: a linear search would take 10,000 times as long."""
    start = int(ipaddress.ip_address("10.0.0.0"))
    many = Networks(f"{ipaddress.ip_address(start + 256 * each)}/24" for each in range(100_000))
    one = Networks(["10.0.0.0/24"])
    times = {
        name: min(timeit.repeat(partial(each.names_of, "10.0.0.1"), number=200, repeat=5))
        for name, each in (("many", many), ("one", one))
    }
    assert many.names_of("11.134.159.255") == ("11.134.159.255", "11.134.159.0/24")
    assert times["many"] < 20 * times["one"]
