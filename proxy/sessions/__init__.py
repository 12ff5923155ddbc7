"""One client connection and its connection to a broker: the hot path, and the holding.

connection_gate ─▶ session ─┬─ request_flow ─▶ pump ─▶ broker      throttling: acts on the Decisions
                            └─ response_flow ◀─ pump ◀─ broker     of `quotas`

frame_admission may this data frame pass now?
request_kind    what is done with such requests       produce_usage   topics, records and producer ids of a Produce
mutations       topics created and deleted            topics          names by id, partitions (topic_lookup: asks)
shared          what all sessions share               buffers         the one receive buffer; bytes that wait
"""
