"""Decides what may pass and how long the rest waits: arithmetic on a time that is passed in (integer nanoseconds).

No clock, no sockets, no asyncio, no Kafka bytes. From the outside in; each imports only what is listed after it:

- `connections`      whether a connection may be served, and after what wait
- `parsing/`         text and TOML to entries, or every error at once
- `registry/`        what is configured and what is in use: finds limits, changes them while running, drops idle ones
- `admission/`       limits, the amounts of a request, the Decision, and the queues
- `algorithms/`      token bucket, sampled window, EWMA, producer ids: exact on a virtual clock

By itself:

- `fleet/`           one quota for many proxies: who may use how much of it, from what all state in a shared log

Shared by all of the first:

- `entry`            one configured quota: an entity, its limits and options
- `exemption`        the clients that a limit of others neither charges nor holds
- `resource_groups`  the members of groups, by name or by prefix
- `limit_kinds`      the table of all limits: what each counts, its scopes
- `modes`            the names of the throttle modes
- `entity`           the scope of a quota, with Kafka's default entities
- `problems`         errors of what an operator wrote, each with its place
- `slips`            what copying, shells and templates leave in a text, and what to correct
- `rates`            numbers with units, exact: "5MB" is 5,000,000 and "0.1" is one tenth
"""
