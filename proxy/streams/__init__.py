"""What passes through one connection pair: bytes in, steps out. No socket, no event loop, no clock.

    request_stream ─▶ batches ─▶ step                 response_stream ─▶ pending.respond ─▶ step
          └─▶ request, or the handler of its kind             ▲
                    └──────── in flight: requests that wait for their response

- `steps`            what the pump is to do next
- `request_stream`   client to broker: finds the frames, and lets the request or its kind decide
- `response_stream`  broker to client: matches responses with what is in flight, which answers for itself
- `request`          a request that carries data; the kind of requests that are alike; what handlers share
- `held_request`     the life of such a request as a table, and how it passes its limits
- `handlers/`        one for each treatment of `protocol.apis`
- `connection`       what both streams share
- `batches`          requests of one kind that pass together, without a decision for each
- `batch_plan`       such Produce requests whose records are charged, or counted by topic
- `topic_charges`    what the records of a topic are charged to
- `sent_records`     records of requests in flight: those that the broker refuses are taken back
- `fetch_ledger`     what a fetch may bring
- `groups`           how often consumer groups rebalance, and who joins them
- `memory`           the shared read buffer, and the account of bytes in memory
- `context`          what all connections of one proxy share
"""
