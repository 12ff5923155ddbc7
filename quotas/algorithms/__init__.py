"""The rate algorithms: small classes, exact on a virtual clock.

- `algorithm`             their interface, and the choice
- `token_bucket`          smooth, exact on integers; the default
- `leased_bucket`         a token bucket whose rate is granted for a limited time
- `sampled_window`        Kafka's windows, with the first-window rule (seed 000)
- `paced_window`          the same with at most one window's worth at once, for new connections
- `ewma`                  the one-minute rate (seed 004)
- `producer_ids`          new producer ids per window (seed 001)
- `layered_bloom_filter`  the known ids: Bloom filters that expire one after the other
- `bloom`                 one Bloom filter
"""
