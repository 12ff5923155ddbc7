"""What passes through one connection pair: bytes in, steps out. No socket, no event loop, no clock.

    request_stream ─▶ handlers ─▶ step      response_stream ─▶ handlers ─▶ step
          └─────── in_flight: requests that wait for their response ───────┘

- `steps`            what the pump is to do next
- `request_stream`   client to broker: finds the frames and asks the handler of each
- `response_stream`  broker to client: matches responses with requests
- `handlers/`        one for each treatment of `protocol.apis`
- `handler`          the base of handlers, and what they call on both streams
- `connection`       one connection pair, and what is in flight
- `kinds`            requests of the same kind: parsed once, compared afterwards
- `batches`          requests of one kind that pass together, without a decision for each
- `batch_plan`       such Produce requests whose records are charged, or counted by topic
- `fetch_ledger`     what a fetch may bring: its budget and its reservation
- `produce_usage`    topics, records and producer ids of the Produce requests of one connection
- `refusals`         noisy topics: which Produce requests are answered with errors
- `memory`           the shared read buffer, and the account of bytes in memory
- `context`          what all connections of one proxy share
"""
