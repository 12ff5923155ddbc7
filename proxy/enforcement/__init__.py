"""From decisions to measures: pass, hold, throttle time. No socket, no event loop, no clock: the time is passed in.

- `identity`   the clients of a connection, their limits, and the throttle times of its responses
- `measures`   the measures against debt: notice, delay or hold, by mode and kind of response
- `holds`      the held frames of all connections, in one queue for each limit
- `report`     log lines, metrics, and the list of throttled clients
- `shares`     warnings about clients whose share of a limit is too small
"""
