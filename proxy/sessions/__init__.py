"""The sockets of one client connection and its broker connection: reading, pausing, writing, ending.

    gate ─▶ session ─┬─ pump client ─▶ broker ── wire      wakeups: releases held frames
                     └─ pump broker ─▶ client ── wire      turns: shares the loop's time

- `lifecycle`  states × events, as a table
- `wire`       what a pump needs of a socket
- `tls_wire`   a wire with TLS, and its handshake
- `pump_set`   what all pumps share, and why one is not read
- `writer`     the writing half of a pump: what the other side does not take waits, and stops reading
- `backlog`    a read that does not pass in one step: carries out the steps, keeps what has to wait
- `pump`       one direction: reads, passes the bytes to the stream and to its writer
- `pair`       what the parts of a session know of it
- `turns`      a bounded share of each round of the event loop for each connection
- `wakeups`    one timer for each limit with held frames
- `session`    both directions, their life, and held frames
- `opening`    the client's handshake, and the connection to a broker
- `throttling` delays of responses, notices while a bound of the proxy stops reading
- `wait_states`  where the time of a connection goes: its state now
- `ending`     what is delivered and what is dropped after one side has gone
- `login`      the proxy's own login to the broker, before the first request and again in time
- `broker_watch`     whether the broker of a connection works
- `client_timeouts`  what a client has moved since the last check of the sweep
- `faults`     counts and logs what breaks connections
- `sweep`      checks every session once a second
- `proxy_headers`  the PROXY header of connections from load balancers
- `gate`       admits new connections: at once, after a wait, or never
- `shared`     the parts that all sessions share

`proxy.streams` and `proxy.enforcement` decide what happens to bytes; this package carries it out.
"""
