"""Decides whether a request may pass now: check all limits, then charge or reserve.

- `limit`             one limit: its bucket, its queue, and the tickets of the frames in the queue
- `passage`           a frame under way: reserved when it is admitted, charged as it passes
- `limit_set`         the limits of one request
- `client_limits`     the limits of one client and of one topic
- `decision`          the result
- `fair_queue`        the order in which the sessions that wait for one limit are served
- `topic_thresholds`  topics under a total (seed 004)
- `refused_sequences` batches that were refused, and those that must wait for them
"""
