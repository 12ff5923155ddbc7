"""The proxy process: sockets, event loop, clock, configuration, metrics.

What passes is decided in `streams` and `enforcement`, which know no socket, event loop or clock.

From the outside in; each imports only what is listed after it:

    cli             the entry point: signals first        commands        run, check-config, healthcheck, fleet, schema
                                                          explain, top
    check           tries what a start needs
    manual          the man page and completions
    server          ties the parts together, drains       ports           binds, knows where each leads
    admin/          the admin port: /metrics, /healthz, /readyz, /throttles
    assemble        makes the parts of all sessions       ticks           what is done ten times a second
    recorder        what the last minutes were like
    active_config   what may change while it runs         config_watch    the files again, when they change
    cluster_quotas  the cluster's own quotas, again and again
    listener        accepts in batches
    sessions/       the sockets of one client connection and its broker connection
    streams/        what passes through them: bytes in, steps out
    enforcement/    from what the limits say to what is done about it
    usage/          records of who used what, to a topic or a file
    fleet/          limits that several proxies share, through a topic
    brokers/        the map between brokers and ports, and connections to them
    retries         when the proxy's own clients try again
    event_loops     connect for the proxy's own clients as for sessions
    own_client      how the proxy's own Kafka clients connect
    own_topic       how topics of its own are read and made
    tls             contexts of connections, made of files again when these change
    certificates    of a file those that clients verify
    file_watch      files again when they change, whole or not at all
    observability/  what is counted and logged
    config/         from what a user wrote to one frozen Config, or every error at once
    threads         for what may wait for something outside: no end waits for it
"""
