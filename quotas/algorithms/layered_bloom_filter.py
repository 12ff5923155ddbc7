"""Ids seen within a window that slides in steps: the LayeredBloomFilter of commons-collections 4.5, as KIP-936's
discussion proposes it (seed 001).

A list of layers from the oldest to the newest; a layer is a Bloom filter and when it expires. The seed's rules:

- a layer lives for `window_ns` from its creation (`producer.id.quota.window.size.seconds`)
- checkExtend: at every merge, a new layer when the newest is `window_ns / window_count` old, or holds as many ids as it
  is made for
- filterCleanup: expired layers go from the head, before a new one is added; an expired one is never asked

and where the seed is silent:

- An id that only layers older than a step (`window_ns / window_count`) know is put into the newest too when it is seen
  again, so that one in constant use stays known for ever, at one place in each step. Hence an id is known for at least
  `window_ns` less a step after it was last seen, and for less than `window_ns`.
- The false positives of layers add up, so each is shaped for P / `window_count`. That many layers are alive at a time
  when none is full before its time. More of them hold less each: all layers together stay at P as long as they hold
  no more than `window_count` times `ids_per_layer`.
- What is seen again counts for the size of a layer too, and there is no end to it. So when all layers hold more than
  `window_count + 1` of the usual size, the next one is made for as many ids as were put in during the last step (up to
  when the newest was added). A storm then doubles the layers instead of adding one for every few ids, and a steady load
  is back at one layer for each step, at P; only in between does each layer above `window_count` add its share of P.
- For a few ids the formula for the bits is wrong (one id at P = 0.2 % gets 13 bits, and five such layers together have
  4 % instead of 1 %), so no layer has fewer bits than one for 32 ids. A layer for more than 2**20 ids starts at that,
  and grows by the rule before: a limit of 2**53 ids must not cost memory that is not used.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from quotas.algorithms.bloom import BloomFilter, Shape, spread

_FEWEST_SHAPED: Final = 32
_MOST_AT_FIRST: Final = 1 << 20

_shape = lru_cache(maxsize=64)(Shape)


class Layer:
    """One Bloom filter of the list.

    ids           how many it is made for: with so many it is full
    created_ns    when it was added
    expires_ns    from then on it does not count any more
    """

    __slots__ = ("created_ns", "expires_ns", "filter", "ids")

    def __init__(self, ids: int, false_positive_probability: float, created_ns: int, expires_ns: int) -> None:
        self.ids: Final = ids
        self.created_ns: Final = created_ns
        self.expires_ns: Final = expires_ns
        self.filter: Final = BloomFilter(_shape(max(ids, _FEWEST_SHAPED), false_positive_probability))

    @property
    def full(self) -> bool:
        return self.filter.count >= self.ids


class LayeredBloomFilter:
    """Which ids (int64) were seen lately. See the module. Times are nanoseconds of any clock; one that goes back
    makes no layer that expires before an older one.

    ids_per_layer                 N of the seed; may be changed, for layers that are added from then on
    window_ns                     how long a layer lives
    window_count                  how many layers that makes, one after the other
    false_positive_probability    P of the whole filter
    salt                          see `quotas.algorithms.bloom.spread`
    known_until_ns                until then the last id that `see` knew is known, and another `see` changes nothing

    Raises ValueError for what is below 1, and for a probability that is not above 0 and below 1.
    """

    __slots__ = (
        "_layer_probability",
        "_salt",
        "ids_per_layer",
        "known_until_ns",
        "layer_ns",
        "layers",
        "window_count",
        "window_ns",
    )

    def __init__(
        self,
        ids_per_layer: int,
        *,
        window_ns: int,
        window_count: int,
        false_positive_probability: float = 0.01,
        salt: int = 0,
    ) -> None:
        for name, number in (("window_ns", window_ns), ("window_count", window_count)):
            if number < 1:
                raise ValueError(f"{name} must be at least 1, not {number}")
        Shape(ids_per_layer, false_positive_probability)  # raises for what no layer could be made of
        self.ids_per_layer = ids_per_layer
        self.window_ns: Final = window_ns
        self.window_count: Final = window_count
        self.layer_ns: Final = -(-window_ns // window_count)  # rounded up: else one layer more could be alive
        self.layers: list[Layer] = []
        self.known_until_ns = 0
        self._layer_probability: Final = false_positive_probability / window_count
        self._salt: Final = salt

    def holds(self, producer_id: int, now_ns: int) -> bool:
        """Whether the id was seen lately; changes nothing."""
        hashed = spread(producer_id, self._salt)
        return any(layer.filter.holds(hashed) for layer in self.layers if layer.expires_ns > now_ns)

    def see(self, producer_id: int, now_ns: int) -> bool:
        """As `holds`; what it holds is then known for as long as if it had been put in now."""
        hashed = spread(producer_id, self._salt)
        for layer in reversed(self.layers):
            if layer.expires_ns <= now_ns:
                return False
            if layer.filter.holds(hashed):
                if not self._is_young(layer, now_ns):
                    self._merge(hashed, now_ns)
                    layer = self.layers[-1]
                self.known_until_ns = layer.created_ns + self.layer_ns
                return True
        return False

    def put(self, producer_id: int, now_ns: int) -> None:
        """Put the id into the newest layer, after adding one if that is due."""
        hashed = spread(producer_id, self._salt)
        newest = self.layers[-1] if self.layers else None
        if newest is None or not (self._is_young(newest, now_ns) and newest.filter.holds(hashed)):
            self._merge(hashed, now_ns)

    def is_due(self, now_ns: int) -> bool:
        """The seed's checkExtend: whether what is put in now goes into a new layer."""
        if not self.layers:
            return True
        newest = self.layers[-1]
        return newest.full or not self._is_young(newest, now_ns)

    def clean_up(self, now_ns: int) -> int:
        """The seed's filterCleanup: remove the expired layers from the head; returns how many."""
        expired = 0
        for layer in self.layers:
            if layer.expires_ns > now_ns:
                break
            expired += 1
        del self.layers[:expired]
        return expired

    def _is_young(self, layer: Layer, now_ns: int) -> bool:
        """Whether it is of this step: what it holds need not be put in again."""
        return now_ns < layer.created_ns + self.layer_ns

    def _merge(self, hashed: int, now_ns: int) -> None:
        if self.is_due(now_ns):
            self.clean_up(now_ns)
            created_ns = max(now_ns, self.layers[-1].created_ns) if self.layers else now_ns
            self.layers.append(
                Layer(self._next_ids(), self._layer_probability, created_ns, created_ns + self.window_ns)
            )
        self.layers[-1].filter.put(hashed)

    def _next_ids(self) -> int:
        """How many ids the layer that is added next is made for."""
        usual = min(self.ids_per_layer, _MOST_AT_FIRST)
        if sum(layer.filter.count for layer in self.layers) <= (self.window_count + 1) * usual:
            return usual
        since_ns = self.layers[-1].created_ns - self.layer_ns
        return max(usual, sum(layer.filter.count for layer in self.layers if layer.created_ns > since_ns))
