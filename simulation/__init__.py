"""A world in virtual time: whole proxies, model brokers and model clients, from a seed.

    kernel    time, and the order of what happens at one time          network   addresses, TCP connections, names
    loop      asyncio on that network                                  process   one proxy: the real `Server`
    draws     what a seed leaves to chance: parts, and faults          world     what becomes of that: a run's parts
    faults    what each kind of them does                              checks    what must hold
    run       from the start to the end, and its problems              forecast  what quotas would do to clients
    limits    what applies, and what has passed of it                  stored    the topic of quotas, and an operator
    disks     how full they are, and what the disk guard allows        probe     who waits for one known thing
    counted   limits on connections, requests and producer ids

Simulated: time, TCP (partial reads and writes, buffers that fill, delay, resets, half-close), names, the order in which
an event loop reports sockets and timers, CPU time, randomness, signals, and the topics of a fleet and of quotas.

Real: everything in `proxy`, `protocol` and `quotas`, from `Server` inwards; files, which are in a directory of the run.

Refused with an error, since other connections stand behind them: `--usage-topic`, TLS and `--command-config`.
"""
