"""How much has passed, and is it too much? Each is a small class, exact on a virtual clock.

- `algorithm`             what all of them can do, and the choice
- `token_bucket`          smooth, exact on integers; the default
- `sampled_window`        Kafka's windows, with the first-window rule (seed 000)
- `ewma`                  the one-minute rate (seed 004)
- `claims`                claims that count as any charge does, for all but `token_bucket`
- `producer_ids`          new producer ids per window (seed 001)
- `layered_bloom_filter`  what it remembers them in: filters that expire one after the other
- `bloom`                 one such filter
"""
