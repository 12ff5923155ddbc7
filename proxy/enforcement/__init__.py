"""From decisions to measures: pass, hold, throttle time. No socket, no event loop, no clock: the time is passed in.

- `identity`   the clients of a connection, their limits, and the throttle times of its responses
- `lag`        how far the client of a connection is behind
- `measures`   the measures against debt: notice, delay or hold, by mode and kind of response
- `delay`      a response that is sent later than the broker sent it
- `report`     log lines, metrics, and the list of throttled clients
"""
