"""What may pass, and how long must it wait: pure arithmetic on a time that the caller passes in (integer nanoseconds).

No clock, no sockets, no asyncio, no Kafka bytes. From the outside in:

what an operator writes

- `spec`             `--quota SPEC` and the quotas file become entries, or every error at once. Its parts: `spec_text`
                     (syntax), `spec_file` (tables), `spec_entry` (one entry), `spec_names`, `spec_limits`,
                     `spec_options` (what each key may be), `spec_batch` (all entries together), `spec_errors`
- `rates`            numbers with units, exact: "5MB" is 5,000,000 and "0.1" is one tenth
- `entry`            one configured quota: an entity, its limits and options
- `entity`           who a quota is for, with Kafka's default entities
- `limit_kinds`      the table of all limits: what each counts, whose it may be
- `resource_groups`  who is in which group, by name or by prefix

what is configured, and what is in use

- `registry`         the front: resolves limits, changes them while running, forgets idle ones
- `configured`       all entries, by entity; `override`: how one is kept; `precedence`: Kafka's eight levels
- `limit_store`      the buckets in use; `idle`: which ones to look at; `change`: one limit set or taken away
- `client_limits`    what applies to one client and one topic; `topic_table`: the topics that are in use

the decision

- `limit`            one limit (its bucket and who waits for it), and the set of limits that one request meets
- `demand`           what one Produce request asks of limits that count different things
- `decision`         what the limits answer
- `connections`      who may connect, and after what wait
- `fair_queue`       who goes next when several sessions wait for one limit

the algorithms

- `algorithm`        what all of them can do, and the choice
- `token_bucket`     smooth, exact on integers; the default
- `sampled_window`   Kafka's windows, with the first-window rule (seed 000)
- `ewma`             the one-minute rate (seed 004)
- `producer_ids`     new producer ids per window (seed 001), on `layered_bloom_filter` and `bloom`
- `topic_thresholds` topics under a total (seed 004), on `ewma`
"""
