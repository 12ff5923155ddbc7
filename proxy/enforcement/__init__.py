"""From decisions to throttle actions: pass, hold, throttle time. No socket, event loop or clock: the time is passed in.

- `identity`   the clients of a connection, their limits, and the throttle times of its responses
- `habits`     what is known of clients by the software that they name
- `lag`        how far the client of a connection is behind
- `throttle_actions`  what is done against debt: notice, delay or hold, by mode and kind of response
- `delay`      a response that is sent later than the broker sent it
- `report`     log lines, metrics, and the list of throttled clients
"""
