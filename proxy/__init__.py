"""The proxy process: sockets, event loop, clock, configuration, metrics.

`streams` and `enforcement` decide what passes. They use no socket, event loop or clock.

The packages, from the outside in; each imports only the packages listed after it:

    command/           what a user types: the entry point, the commands, the manual
    process/           one running proxy: the server, its ports, what it does ten times a second
    admin/             the admin port: /metrics, /healthz, /readyz, /clients, and the page for browsers
    sessions/          the sockets of one client connection and its broker connection
    streams/           the data that passes through them: bytes in, steps out
    enforcement/       from what the limits decide to the throttle action
    adaptive/          limits whose rates follow what the proxy measures
    usage/             records of what each client used, to a topic or a file
    adaptive/          limits whose rates follow a measurement: the disk guard
    fleet/             limits that several proxies share, through a topic
    internal_clients/  the proxy's internal Kafka clients, one of which reads the cluster's quotas
    brokers/           the map between brokers and ports, and connections to brokers
    files/             certificates and other files that are read again when they change
    observability/     what is counted and logged
    config/            from what a user wrote to one frozen Config, or every error at once
    background/        threads for work that may block, and the pauses between failed attempts
"""
