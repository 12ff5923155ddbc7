"""What may pass, and how long must it wait: pure arithmetic on a time that the caller passes in (integer nanoseconds).

No clock, no sockets, no asyncio, no Kafka bytes. From the outside in; each imports only what stands below it:

- `connections`      who may connect, and after what wait
- `spec/`            what an operator writes becomes entries, or every error at once
- `registry/`        what is configured and what is in use: finds limits, changes them while running, forgets idle ones
- `admission/`       limits, what a request asks of them, their Decision, and who goes next
- `algorithms/`      token bucket, sampled window, EWMA, producer ids: exact on a virtual clock

The words that all of them use:

- `entry`            one configured quota: an entity, its limits and options
- `resource_groups`  who is in which group, by name or by prefix
- `limit_kinds`      the table of all limits: what each counts, whose it may be
- `entity`           who a quota is for, with Kafka's default entities
- `rates`            numbers with units, exact: "5MB" is 5,000,000 and "0.1" is one tenth
"""
