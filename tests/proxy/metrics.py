"""Counters of a proxy that does not run, and names as clients may send them."""

from hypothesis import strategies as st

from proxy.observability.metrics import Metrics
from tests.proxy.conversation import Clock

NAMES = st.text(st.characters(), max_size=400) | st.text(
    st.sampled_from('a\r\n\0"\\\x85\u2028\ud800\udc80 '), max_size=6
)
"""Names as they may come from the wire. `st.characters()` includes surrogates."""


def metrics_with(clock: Clock, max_metric_entities: int = 1000) -> Metrics:
    return Metrics(clock, max_entities=max_metric_entities)
