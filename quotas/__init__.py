"""Decides what may pass and how long the rest waits: arithmetic on a time that is passed in (integer nanoseconds).

No clock, no sockets, no asyncio, no Kafka bytes. From the outside in; each imports only what is listed after it:

- `stored/`          quotas that are kept in a topic: records, and Kafka's quota API over them
- `connections`      whether a connection may be served, and after what wait
- `parsing/`         text and TOML to entries, or every error at once
- `registry/`        what is configured and what is in use: finds limits, changes them while running, drops idle ones
- `adaptive/`        limits whose rates follow a measurement: the disk guard, and groups that yield to others
- `admission/`       limits, the amounts of a request, and the queues
- `algorithms/`      token bucket, sampled window, EWMA, producer ids: exact on a virtual clock

By itself:

- `fleet/`           one quota for many proxies: how much each may use, from what all advertise in a shared log

Shared by all of the first:

- `entry`            one configured quota: an entity, its limits and options
- `limit_options`    what an entry says about its limits besides their rates
- `exemption`        the clients that a limit of others neither charges nor holds
- `resource_groups`  the members of groups, by name or by prefix
- `limit_kinds`      the table of all limits: what each counts, its scopes
- `modes`            the names of the throttle modes
- `time_units`       nanoseconds in what people write
- `entity`           the scope of a quota, with Kafka's default entities
- `problems`         errors of what an operator wrote, each with its place
- `slips`            what copying, shells and templates leave in a text, and what to correct
- `rates`            numbers with units, exact: "5MB" is 5,000,000 and "0.1" is one tenth
"""
