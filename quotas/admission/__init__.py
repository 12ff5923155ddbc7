"""Decides whether a request may pass now: check all limits, then charge.

- `limit`             one limit: its bucket, its queue, and the tickets of the frames in the queue
- `limit_set`         the limits of one request
- `client_limits`     the limits of one client and of one topic
- `decision`          the result
- `fair_queue`        the order in which the sessions that wait for one limit are served
- `topic_thresholds`  topics under a total (seed 004)
- `refused_sequences` batches that were refused alone, and those that must wait for them
"""
