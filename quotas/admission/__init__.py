"""May this request pass now? `check` all, then charge.

- `limit`             one limit (its bucket and who waits for it), and the set of limits that one request meets
- `client_limits`     what applies to one client and one topic
- `demand`            what one Produce request asks of limits that count different things
- `decision`          what the limits answer
- `fair_queue`        who goes next when several sessions wait for one limit
- `topic_thresholds`  topics under a total (seed 004)
"""
