"""From decisions to measures: pass, hold, throttle time. No socket, no event loop, no clock: the time is passed in.

- `identity`   the clients of a connection, their limits, and the throttle times of its responses
- `measures`   the measures against debt: notice, delay or hold, by mode and kind of response
- `data_frame` the life of a data frame that is held, or that does not arrive whole
- `holds`      the held frames of all connections, in one queue for each limit; the reservations that may lapse
- `report`     log lines, metrics, and the list of throttled clients
"""
