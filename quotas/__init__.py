"""What may pass, and how long must it wait: pure arithmetic on a time that the caller passes in (integer nanoseconds).

No clock, no sockets, no asyncio, no Kafka bytes. From the outside in:

- `spec`          what an operator writes (`--quota SPEC`, `[[quota]]` in TOML) becomes entries, or every error at once
- `entry`         one configured quota: an entity, its limits and options
- `spec_text`     the syntax of SPEC alone
- `rates`         numbers with units, exact: "5MB" is 5,000,000 and "0.1" is one tenth
- `entity`        who a quota is for: user, client id, the pair, and Kafka's default entities
- `precedence`    Kafka's eight levels: which configured quota applies to one (user, client id)
- `registry`      the live buckets: resolves a session's limits, changes them while running, forgets idle ones
- `limit`         one limit of one entity (its bucket and who waits for it), and the set of limits one request meets
- `decision`      what such a set answers
- `token_bucket`  the algorithm, exact on integers
- `fair_queue`    who goes next when several sessions wait for one limit
"""
