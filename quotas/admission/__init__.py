"""May this request pass now? `check` all, then charge.

- `limit`             one limit: its bucket, its queue, and the tickets of the frames in the queue
- `limit_set`         the limits that one request has to meet
- `client_limits`     what applies to one client and one topic
- `decision`          what the limits answer
- `fair_queue`        who goes next when several sessions wait for one limit
- `topic_thresholds`  topics under a total (seed 004)
"""
