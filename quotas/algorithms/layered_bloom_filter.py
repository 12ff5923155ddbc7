"""Ids seen within a window that slides in steps: the LayeredBloomFilter of commons-collections 4.5, as proposed in
KIP-936's discussion (seed 001).

A list of layers, oldest first; a layer is a Bloom filter with an expiry. The seed's rules:

- A layer lives for `window_ns` from its creation (`producer.id.quota.window.size.seconds`).
- checkExtend: at every merge, a new layer if the newest is `window_ns / window_count` old, or has the number of ids it
  is sized for.
- filterCleanup: expired layers are removed from the head before a new one is added; an expired one is never read.

Where the seed is silent:

- An id that is seen again, and is only in layers older than a step (`window_ns / window_count`), is added to the newest
  too, so an id in constant use stays known. An id is known for at least `window_ns` less a step after it was last seen,
  and for less than `window_ns`.
- The false positives of layers add up, so each is shaped for P / `window_count`, the number of live layers if none is
  full early. All layers together stay at P while they contain at most `window_count` times `ids_per_layer`.
- Ids that are seen again fill layers too, without bound. So when all layers contain more than `window_count + 1` of the
  configured size, the next one is sized for the ids of the last step (up to the creation of the newest). A storm then
  doubles the layers instead of adding one for every few ids, and a steady load returns to one layer for each step, at
  P; only in between does each layer above `window_count` add its share of P.
- For a few ids the formula for the bits is wrong (one id at P = 0.2 % gets 13 bits, and five such layers together have
  4 % instead of 1 %), so each layer has at least the bits for 32 ids. A layer for more than 2**20 ids starts at that
  size and grows by the previous rule, so a limit of 2**53 ids does not allocate unused memory.
"""

from functools import lru_cache
from typing import Final

from quotas.algorithms.bloom import BloomFilter, Shape, spread

_FEWEST_SHAPED: Final = 32
_MOST_AT_FIRST: Final = 1 << 20

_shape = lru_cache(maxsize=64)(Shape)


class Layer:
    """One Bloom filter of the list.

    ids           its capacity
    expires_ns    when it stops counting
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
    """Recently seen ids (int64); see the module. Times are nanoseconds of any clock; if it goes back, no layer expires
    before an older one.

    ids_per_layer                 N of the seed; a change applies to new layers
    window_ns                     the life of a layer
    window_count                  layers per window
    false_positive_probability    P of the whole filter
    salt                          see `quotas.algorithms.bloom.spread`
    known_until_ns                until when the last id that `see` knew stays known, so that another `see` changes
                                  nothing

    Raises ValueError for a number below 1, and for a probability that is not above 0 and below 1.
    """

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
        Shape(ids_per_layer, false_positive_probability)  # raises ValueError
        self.ids_per_layer = ids_per_layer
        self.window_ns: Final = window_ns
        self.window_count: Final = window_count
        self.layer_ns: Final = -(-window_ns // window_count)  # rounded up, for at most window_count live layers
        self.layers: list[Layer] = []
        self.known_until_ns = 0
        self._layer_probability: Final = false_positive_probability / window_count
        self._salt: Final = salt

    def see(self, producer_id: int, now_ns: int) -> bool:
        """Whether the id is known; then it counts as put in now."""
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
        """The seed's checkExtend: whether the next id goes into a new layer."""
        if not self.layers:
            return True
        newest = self.layers[-1]
        return newest.full or not self._is_young(newest, now_ns)

    def clean_up(self, now_ns: int) -> int:
        """The seed's filterCleanup: remove the expired layers from the head; returns their number."""
        expired = 0
        for layer in self.layers:
            if layer.expires_ns > now_ns:
                break
            expired += 1
        del self.layers[:expired]
        return expired

    def _is_young(self, layer: Layer, now_ns: int) -> bool:
        """Whether it is of this step: its ids need not be put in again."""
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
        """The capacity of the next layer."""
        configured = min(self.ids_per_layer, _MOST_AT_FIRST)
        if sum(layer.filter.count for layer in self.layers) <= (self.window_count + 1) * configured:
            return configured
        since_ns = self.layers[-1].created_ns - self.layer_ns
        return max(configured, sum(layer.filter.count for layer in self.layers if layer.created_ns > since_ns))
