"""Decides whether a request may pass now.

- `limit`             one limit: its bucket and its queue
- `frame`             the rule by which frames pass their limits: chunk by chunk, charged as they pass
- `limit_set`         requests that pass together, and control requests
- `client_limits`     the limits of one client and of one topic
- `fair_queue`        the order in which the sessions that wait for one limit are served
- `topic_thresholds`  topics under a total (seed 004)
"""
