"""The sockets of one client connection and its broker connection: reading, pausing, writing, ending.

    gate ─▶ session ─┬─ pump client ─▶ broker ── wire      wakeups: releases held frames
                     └─ pump broker ─▶ client ── wire      turns: shares the loop's time

- `lifecycle`  states × events, as a table
- `wire`       what a pump needs of a socket
- `pump`       one direction: reads, passes the bytes to the stream, carries out its steps, writes
- `turns`      a bounded share of each round of the event loop for each connection
- `wakeups`    one timer for each limit with held frames
- `session`    both directions, their life, delays of responses, notices while a bound of the proxy stops reading
- `login`      the proxy's own login to the broker, before the first request and again in time
- `progress`   what a connection has moved since the last check of the sweep
- `faults`     counts and logs what breaks connections
- `sweep`      checks every session once a second
- `proxy_headers`  the PROXY header of connections from load balancers
- `gate`       admits new connections: at once, after a wait, or never
- `shared`     the parts that all sessions share

`proxy.streams` and `proxy.enforcement` decide what happens to bytes; this package carries it out.
"""
