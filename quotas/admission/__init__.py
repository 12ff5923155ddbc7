"""Decides whether a request may pass now.

- `limit`             one limit: its bucket and its queue
- `frame`             the rule by which data frames pass their limits: read by read, charged as they pass
- `limit_set`         requests that pass together, control requests, and those that are decided as a whole
- `client_limits`     the limits of one client and of one topic
- `decision`          the decision on a whole request
- `fair_queue`        the order in which the sessions that wait for one limit are served
- `topic_thresholds`  topics under a total (seed 004)
"""
