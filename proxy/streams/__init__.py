"""What passes through one connection pair: bytes in, steps out. No socket, no event loop, no clock.

    request_stream ─▶ batches ─▶ step                 response_stream ─▶ pending.respond ─▶ step
          └─▶ request, or the handler of its kind             ▲
                    └──────── in flight: requests that wait for their response

- `steps`            what the pump must do next
- `request_stream`   client to broker: finds the frames, and lets each request or its kind decide
- `response_stream`  broker to client: matches responses with the requests in flight, which handle them
- `pending`          anything in flight, and what it may do with its response
- `request`          a request that carries data; the kind that similar requests share; the base of handlers
- `limited_request`  the life of such a request as a table, and how it passes its limits
- `handlers/`        one handler for each treatment of `protocol.apis`
- `connection`       what both streams of a connection share, and what all connections share
- `batches`          requests of one kind that pass together, without a decision for each of them
- `batch_plan`       batches of Produce requests whose records are charged, or counted by topic
- `topic_charges`    the limits that the records of a topic are charged to
- `sent_records`     the records of requests in flight, so that those that the broker refuses can be subtracted
- `observer`         receives each event of a connection's requests once
- `memory`           the shared read buffer, and the account of bytes in memory
"""
