"""The sockets of one client connection and its broker connection: reading, pausing, writing, ending.

    gate ─▶ session ─┬─ pump client ─▶ broker ── wire      wakeups: releases held frames
                     └─ pump broker ─▶ client ── wire      slices: shares the loop's time

- `listener`   accepts in batches, and pauses when descriptors run out
- `lifecycle`  states × events, as a table
- `wire`       what a pump needs from a socket
- `tls_wire`   a wire with TLS, and its handshake
- `pump_set`   what all pumps share, and the reasons for which one is not read
- `writer`     the writing half of a pump: bytes that the other side does not take wait, and reading stops
- `backlog`    the bytes of a read that do not all pass in one step, and what has to wait
- `pump`       one direction: reads, passes the bytes to the stream and to its writer
- `pair`       the session as its parts see it: its base class, because the session imports the parts
- `slices`     a bounded share of each round of the event loop for each connection
- `wakeups`    one timer for each limit with held frames
- `session`    both directions, their life, and held frames
- `opening`    the client's handshake, and the connection to a broker
- `throttling` delays of responses, and throttle notices while a bound of the proxy stops reading
- `wait_states`  the state of a connection, for the account of where its time goes
- `ending`     what is still delivered and what is dropped after one side has gone
- `broker_login`  the proxy's own login to the broker, before the first request and whenever it is about to expire
- `broker_watch`     whether the broker of a connection works
- `client_timeouts`  the timeouts of a client, checked by the sweep
- `faults`     counts and logs what breaks connections
- `sweep`      checks every session once a second
- `proxy_headers`  the PROXY header of connections from load balancers
- `gate`       admits new connections: at once, after a wait, or never
- `shared`     the parts that all sessions share

`proxy.streams` and `proxy.enforcement` decide what happens to bytes; this package carries it out.
"""
