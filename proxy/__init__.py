"""The shell: sockets, event loop, clock, configuration, metrics. It makes no quota or protocol decision of its own.

The way of a request:

    listener ─▶ connection_gate ─▶ session ─┬─ request_flow ─▶ pump ─▶ broker      throttling: acts on the Decisions
                                            └─ response_flow ◀─ pump ◀─ broker     of `quotas`

    request_kind    what is done with such requests       produce_usage   topics, records and producer ids of a Produce
    mutations       topics created and deleted            topics          names by id, partitions (topic_lookup: asks)

    server          binds, ties together, drains          nodes           which broker stands behind which port
    upstream        connects to brokers                   buffers         the one receive buffer; bytes that wait
    shared          what all sessions share               readiness       do the brokers answer?

The way of the configuration, from what a user wrote to one frozen `Config`:

    cli ─▶ options ─▶ option_types ─▶ values              each option once; what its text must look like (host_names)
       └─▶ config_file, config_checks, quotas_file ─▶ config        what options must be together, or an `errors` list
                                            └─▶ quotas_watch        the quotas file again, whenever it changes
    limits_help     what the help says about SPEC

What can be seen from outside:

    metrics         counts, in plain integers (tallies)   exposition      the same as Prometheus families and text
    admin           /metrics /healthz /readyz /throttles  logs            one event per line, text or JSON
"""
