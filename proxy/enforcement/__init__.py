"""From decisions to measures: pass, hold, throttle time. No socket, no event loop, no clock: the time is passed in.

- `identity`   the client of a connection, its limits, and the throttle times of its responses
- `backoff`    whether a client waits after a notice
- `policies/`  the measures against debt: one file for each mode
- `holds`      the held frames of all connections, in one queue for each limit
- `report`     log lines, metrics, and the list of throttled clients
- `shares`     warnings about clients whose share of a limit is too small
"""
